"""PL303 memory-growth: the peak of a rank creeps from step to step.

What it does: follows the peak of each rank over its reports, the first one left out (warm-up), and asks that it rises in most of
them, by a share and an amount that matter.
Why it matters: a leak ends the job with an out-of-memory error, hours later and on one rank.
What to do: look for tensors kept in lists (losses, logs), growing caches, graphs kept alive on that rank.
When it is wrong: sequences that get longer (curriculum), a batch-size ramp-up, evaluation that began later.
Thresholds: limit 0.15 of the first level, mib 256 MiB, reports 4 or more after the first.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd

from pipelog._text import percent, size
from pipelog.findings import Advice, Confidence, Finding, Severity, Where, cite, detector
from pipelog.tables import CannotTell


@detector("PL303", "memory-growth", needs=("memory",))
def memory_growth(memory: pd.DataFrame, *, limit: float = 0.15, mib: float = 256, reports: float = 4) -> Iterator[Finding]:
    """One finding a rank."""
    rows = memory.dropna(subset=["max_allocated", "step"]) if len(memory) else memory
    counts = rows.groupby("rank")["step"].nunique() if len(rows) else pd.Series(dtype=int)
    if not (counts > reports).any():
        raise CannotTell(f"no rank reported its memory at {int(reports) + 1} steps or more")
    for rank, every in rows.sort_values("step").groupby("rank"):
        mine = every.iloc[1:]
        if len(mine) < reports:
            continue
        peak, step = mine["max_allocated"].to_numpy(dtype=float), mine["step"].to_numpy(dtype=float)
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
