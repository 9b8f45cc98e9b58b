"""What the replay predicts for a change that a rule proposes, in words: an advice and the what-if never name two numbers for one change."""

from __future__ import annotations

from dataclasses import dataclass

from pipelog._text import percent, seconds
from pipelog.replay.room import Room, of_doubling
from pipelog.replay.what_if import LEAST_GAIN, WhatIf
from pipelog.tables import Tables


@dataclass(frozen=True, slots=True)
class Cited:
    """A predicted change beside the present setting, which is the first of the what-if."""

    found: WhatIf
    now: WhatIf

    @property
    def name(self) -> str:
        """`setting=value`."""
        return self.found.change.name

    @property
    def gain(self) -> float:
        """Share of the time per sample that goes."""
        return self.found.gain

    @property
    def advised(self) -> bool:
        """Whether the what-if advises it."""
        return self.found.advised

    def __str__(self) -> str:
        """211 ms → 178 ms a step, 15.8 % less time per sample, bubble 45.3 % → 34.8 % (replay)."""
        samples = self.found.change.samples
        more = f" for {samples:g} times the samples" if samples != 1 else ""
        way = f"{percent(abs(self.gain))} {'less' if self.gain >= 0 else 'more'} time per sample"
        bubble = f"bubble {percent(self.now.bubble)} → {percent(self.found.bubble)}"
        return f"{seconds(self.now.step_ns)} → {seconds(self.found.step_ns)} a step{more}, {way}, {bubble} (replay)"


def cited(tables: Tables, *names: str) -> Cited | None:
    """The first of these changes that was predicted, by its name or, where that ends in `=` or a space, by its beginning; None where none was."""
    every: list[WhatIf] = tables.get("what_if") or []
    for name in names:
        for found in every[1:]:
            if found.change.name == name or (name.endswith(("=", " ")) and found.change.name.startswith(name)):
                return Cited(found, every[0])
    return None


def at_best(tables: Tables, *names: str) -> str | None:
    """What is gained where a cause is gone altogether, in words; None where that was not predicted, or is nothing."""
    found = cited(tables, *names)
    return f"{found.name}, at best: {found}" if found is not None and found.gain >= LEAST_GAIN else None


@dataclass(frozen=True, slots=True)
class Doubled:
    """Twice as many micro-batches. size: of which size where the present one can be halved and nothing speaks against that, which keeps the global batch; else null.

    replayed: what is predicted of it, null where nothing was. against: what is predicted of the halves, where that speaks against them. room: whether it fits.
    """

    size: int | None
    replayed: Cited | None
    against: Cited | None
    room: Room

    @property
    def pays(self) -> bool:
        """Whether nothing speaks against it: neither the replay nor the memory of the device."""
        return self.room.fits is not False and (self.replayed is None or self.replayed.advised)


def doubled(tables: Tables | None, p: int, m: int, micro: int | None) -> Doubled:
    """Of half the size where that can be and the replay does not say that it would not pay, else of the present size; without *tables* by that alone."""
    if tables is None:
        return Doubled(micro // 2 if micro and micro % 2 == 0 else None, None, None, Room(more=False))
    same = f"micro_batches={2 * m}"
    halves = cited(tables, f"{same}, micro_batch_size={micro // 2}") if micro and micro % 2 == 0 else None
    if micro and micro % 2 == 0 and (halves is None or halves.gain > 0):
        return Doubled(micro // 2, halves, None, Room(more=False))  # twice as many of half the size: no more is held
    return Doubled(None, cited(tables, same), halves, of_doubling(tables, p, m))
