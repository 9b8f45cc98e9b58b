"""A log that stops while the GPUs go on: what a wait without a timeout looks like from outside."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from pipelog._text import count, seconds
from pipelog.tables import frame, table

_BUSY_PERCENT = 90.0
"""A kernel that waits for a peer spins: the GPU counts as used all the time. One that is dead shows 0 %."""
_INTERVALS, _LEAST_NS = 10, 300 * 10**9
"""Silence counts from so many steps' time on, and never below five minutes: evaluations and checkpoints print nothing either."""
_WORK = ("step", "progress", "iteration")


@dataclass(frozen=True, slots=True)
class Silence:
    """since_ns: time of the last line of the job; until_ns: of the last sample of the GPUs (ns, local). evidence: (file, line)."""

    since_ns: int
    until_ns: int
    why: str
    evidence: tuple[tuple[str, int], ...]


@table("silence", needs=("placed",))
def silence(placed: pa.Table) -> Silence | None:
    """That all GPUs stayed busy long after the job's last line; None where nothing shows it.

    Nothing is concluded from a log that just stops: the copy may be older than the end.
    """
    use = (
        frame(placed, ("gpu_use",), ("name", "device", "value", "start_ns", "file", "line"))
        .query("name == 'utilization'")
        .dropna(subset=["start_ns"])
    )
    if not len(use):
        return None
    clock = placed.column("clock").cast(pa.string())
    stamped = placed.filter(pa.compute.and_(pa.compute.is_in(clock, pa.array(["log", "utc"])), pa.compute.is_valid(placed.column("start_ns"))))
    said = stamped.filter(pa.compute.not_equal(stamped.column("kind").cast(pa.string()), "gpu_use")).select(["file", "line", "start_ns"]).to_pandas()
    work = frame(placed, _WORK, ("step", "file", "line", "start_ns")).dropna(subset=["step"])
    if not len(said) or not len(work):
        return None
    last = int(said["start_ns"].max())
    times = np.unique(work["start_ns"].dropna().to_numpy(dtype=np.int64))
    usual = int(np.median(np.diff(times))) if len(times) > 1 else 0
    later = use[use["start_ns"] >= last + max(_INTERVALS * usual, _LEAST_NS)]
    devices = use["device"].nunique(dropna=False)
    if later["device"].nunique(dropna=False) < devices or later["value"].min() < _BUSY_PERCENT or later["start_ns"].nunique() < 2:
        return None
    end = int(later["start_ns"].max())
    row = work.sort_values(["step", "line"]).iloc[-1]
    gpus = "the GPU still showed" if devices == 1 else f"all {count(devices, 'GPU')} still showed"
    low = later["value"].min()
    why = f"nothing was printed for {seconds(end - last)} after step {int(row['step'])}, while {gpus} {low:.0f} %{' or more' if low < 100 else ''}"
    places = ((row["file"], row["line"]), *((later.at[i, "file"], later.at[i, "line"]) for i in (later.index[0], later.index[-1])))
    return Silence(last, end, why, tuple((str(f), int(n)) for f, n in places))
