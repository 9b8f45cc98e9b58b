"""PL303 memory-growth: the peak of a rank creeps from step to step.

What it does: follows the peak of each rank over its reports, the first one left out (warm-up), and asks that it rises in most of
them, by a share and an amount that matter; of many reports evenly spaced ones.
Why it matters: a leak ends the job with an out-of-memory error, hours later and on one rank.
What to do: look for tensors kept in lists (losses, logs), growing caches, graphs kept alive on that rank.
When it is wrong: evaluation that began later; longer sequences (curriculum) or a batch-size ramp-up that the lines do not print: where
they do, only what comes after the last change is followed.
Thresholds: limit 0.15 of the first level, mib 256 MiB, reports 4 or more after the first.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd

from pipelog._text import percent, size
from pipelog.findings import Advice, Confidence, Finding, Severity, Where, cite, detector
from pipelog.tables import CannotTell
from pipelog.tables.work import levels, work

_MOST = 12
"""Reports that are looked at: enough to tell a creep from a jump, few enough that what rounding hides from one to the next counts for nothing."""


@detector("PL303", "memory-growth", needs=("memory", "scalars"))
def memory_growth(memory: pd.DataFrame, scalars: pd.DataFrame, *, limit: float = 0.15, mib: float = 256, reports: float = 4) -> Iterator[Finding]:
    """One finding a rank."""
    rows = memory.assign(peak=_peaks(memory)).dropna(subset=["peak", "step"]) if len(memory) else memory
    counts = rows.groupby("rank")["step"].nunique() if len(rows) else pd.Series(dtype=int)
    if not (counts > reports).any():
        raise CannotTell(f"no rank reported its memory at {int(reports) + 1} steps or more")
    for rank, every in rows.sort_values("step").groupby("rank"):
        level = levels(work(scalars, every["step"]))
        mine = _spaced(every[level == level[-1]].iloc[1:])
        if len(mine) < reports:
            continue
        peak, step = mine["peak"].to_numpy(dtype=float), mine["step"].to_numpy(dtype=float)
        rise = peak[-1] - peak[0]
        if rise < limit * peak[0] or rise < mib * 2**20 or np.mean(np.diff(peak) > 0) < 0.75:
            continue
        if peak[-1] - peak[len(peak) // 2] < 0.25 * rise:  # it has levelled off
            continue
        per_step = rise / (step[-1] - step[0])
        stage = mine["stage"].iloc[0]
        yield Finding(
            "PL303",
            "memory-growth",
            f"the peak memory of rank {rank} grows by {size(per_step)} a step: {size(peak[0])} at step {int(step[0])}, {size(peak[-1])} at step {int(step[-1])} "
            f"({percent(rise / peak[0])})",
            Severity.WARNING,
            Confidence.HIGH,
            Where(ranks=(int(rank),), stages=() if pd.isna(stage) else (int(stage),), steps=(int(step[0]), int(step[-1]))),
            cite(mine.iloc[[-1, 0]]),
            (Advice("look for tensors that outlive their step on this rank: losses kept with their graph, growing lists, caches"),),
        )


def _peaks(memory: pd.DataFrame) -> pd.Series:
    """The allocated peak of each report; the reserved one of ranks that print no other."""
    allocated = memory.groupby("rank")["max_allocated"].transform("count") > 0
    return memory["max_allocated"].where(allocated, memory["max_reserved"])


def _spaced(reports: pd.DataFrame) -> pd.DataFrame:
    """At most a dozen of them, evenly spaced, the first and the last among them."""
    if len(reports) <= _MOST:
        return reports
    return reports.iloc[np.linspace(0, len(reports) - 1, _MOST).round().astype(int)]
