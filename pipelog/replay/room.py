"""Whether a change fits in the memory of a device, and what is left."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pipelog._text import percent, size
from pipelog.schedule import in_flight
from pipelog.tables import Tables
from pipelog.tables.capacity import FULL, Capacity
from pipelog.tables.memory import StageMemory


@dataclass(frozen=True, slots=True)
class Room:
    """What a change holds in memory: more says whether any stage holds more than now. peak_bytes: predicted by stage, null where it cannot be told.

    now_bytes: the highest peak now, null where it was not printed. capacity_bytes: of a device, null where nothing states it.
    """

    more: bool
    peak_bytes: tuple[int, ...] | None = None
    now_bytes: int | None = None
    capacity_bytes: int | None = None

    @property
    def left_bytes(self) -> int | None:
        """What the fullest stage then leaves free; negative where it does not fit, null where that cannot be told."""
        return self.capacity_bytes - max(self.peak_bytes) if self.peak_bytes and self.capacity_bytes is not None else None

    @property
    def fits(self) -> bool | None:
        """Whether every stage stays below 92 % of its device, at which PL302 warns; null where that cannot be told."""
        return max(self.peak_bytes) <= FULL * self.capacity_bytes if self.peak_bytes and self.capacity_bytes else None

    def __str__(self) -> str:
        """What a change that holds more does to memory, in words; empty for any other."""
        if not self.more:
            return ""
        if self.peak_bytes:
            most = max(range(len(self.peak_bytes)), key=self.peak_bytes.__getitem__)
            peak = f"stage {most} then needs {size(self.peak_bytes[most])}"
            if self.capacity_bytes is None or self.left_bytes is None:
                return f"{peak}; the capacity of its device is not known"
            if self.fits:
                return f"{peak} of {size(self.capacity_bytes)}, {size(self.left_bytes)} left"
            return f"does not fit: {peak} of {size(self.capacity_bytes)}, of which {percent(FULL)} can be counted on"
        if self.now_bytes is not None and self.capacity_bytes is not None:
            left = max(0, self.capacity_bytes - self.now_bytes)
            return f"the fullest stage leaves {size(left)} of {size(self.capacity_bytes)} now, and how much more this takes is not known"
        return "more activations are held, and whether they fit is not known"


def room(tables: Tables, more: Sequence[float], peak_bytes: tuple[int, ...] | None = None, *, comparable: bool = True) -> Room:
    """Of a change after which stage s holds more[s] times the activations of one micro-batch of now on top of what it holds.

    peak_bytes: where they were told already. Without *comparable* stages nothing is predicted: its layers or its activations are others.
    """
    memory: StageMemory | None = tables.get("stage_memory")
    stated: Capacity | None = tables.get("capacity")
    peaks = memory.per_stage.sort_values("stage")["peak_bytes"].tolist() if memory is not None else []
    if peak_bytes is None and comparable and memory is not None and memory.slope_bytes is not None and len(peaks) == len(more):
        peak_bytes = tuple(max(0, int(p + n * memory.slope_bytes)) for p, n in zip(peaks, more, strict=True))
    now = int(max(peaks)) if peaks else None
    return Room(any(n > 0 for n in more), peak_bytes, now, stated.size_bytes if stated is not None else None)


def of_doubling(tables: Tables, p: int, m: int) -> Room:
    """Twice as many micro-batches of the present size: a stage holds more of them only where there are fewer than it could."""
    return room(tables, [in_flight(s, p, 2 * m) - in_flight(s, p, m) for s in range(p)])
