"""Ranks that nearly all reports of a straggler detector name as slow, from some report on."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from pipelog.tables.topology import Topology

_LEAST_REPORTS = 3
_IN_A_ROW = 5
_NEARLY_ALL = 0.9
"""A straggler is named by this many reports; by this many where it is so in less than half of the run; and by this share of those from the first one on."""
_BY_CHANCE = 0.01
"""Where the slowest rank alone is printed, the replicas of a heavy stage take turns: that it is the same one this often is no chance."""
_THROTTLED = 0.95
"""Clocks of healthy devices under the same load lie within 2 % in published reports (1950 to 1980 MHz)."""


@dataclass(frozen=True, slots=True)
class Reported:
    """Ranks that reports name as slow, from some report on to the end. rows: theirs, one a report; of: all reports from then on; from_start: in all of them.

    ranks: one, or those of a tensor-parallel group. peers: whether ranks that do the same work are known to be faster. clock: lowest clock and the
    highest of all, where the lowest is theirs and far below; hot: their temperature where it is the highest; device: the rank that these two speak of.
    """

    ranks: tuple[int, ...]
    stage: int | None
    source: str
    rows: pd.DataFrame
    of: int
    from_start: bool
    peers: bool
    clock: tuple[float, float] | None
    hot: float | None
    device: int | None


def reported(reports: pd.DataFrame, topology: Topology, limit: float) -> list[Reported]:
    """Ranks more than *limit* slower than others in nearly all reports of one source, from one on to the last; never more than half of the replicas of a stage,
    which would be an imbalance of stages.
    """
    out: list[Reported] = []
    for source in ("megatron", "relative", "individual", "flagged"):
        mine = reports[reports["source"] == source]
        if out or not len(mine) or mine["report"].max() + 1 < _LEAST_REPORTS:
            continue
        found = [r for unit in mine["unit"].unique() if (r := _of_unit(mine, unit, topology, limit)) is not None]
        slow = pd.Series([r.stage for r in found], dtype="Int64").value_counts()
        out = [r for r in found if r.stage is None or slow[r.stage] <= max(1, (topology.dp or 1) // 2)]
    return out


def _of_unit(reports: pd.DataFrame, unit: str, topology: Topology, limit: float) -> Reported | None:
    total = int(reports["report"].max()) + 1
    theirs = reports[(reports["unit"] == unit) & (reports["excess"] > limit)]
    numbers = np.zeros(total, bool)
    numbers[theirs["report"].unique()] = True
    shares = numbers[::-1].cumsum()[::-1] / np.arange(total, 0, -1)
    begins = np.flatnonzero(numbers & (shares >= _NEARLY_ALL))
    if not len(begins):
        return None
    first = int(begins[0])
    late, rows = numbers[first:], theirs[theirs["report"] >= first]
    if late.sum() < _LEAST_REPORTS or (late.sum() < _IN_A_ROW and numbers.mean() < 0.5):
        return None
    worst = rows.loc[rows.groupby("report")["took"].idxmax()].sort_values("report")
    replicas = topology.dp or 1
    if replicas > 1 and not worst["listed"].all() and float(replicas) ** (1 - late.sum()) > _BY_CHANCE:
        return None
    often = rows.groupby("rank")["report"].nunique()
    ranks = sorted(int(r) for r in often.index[often >= _NEARLY_ALL * late.sum()]) or _members(worst, topology)
    clock, hot = _clock(worst, ranks), _hot(worst, ranks)
    stage = None if pd.isna(worst["stage"].iloc[0]) else int(worst["stage"].iloc[0])
    return Reported(
        tuple(ranks),
        stage,
        str(worst["source"].iloc[0]),
        worst,
        len(late),
        first <= 1,  # the first report holds warm-up
        _same_work(worst, stage, topology),
        clock,
        hot,
        int(worst["clock_rank" if clock else "hot_rank"].mode().iloc[0]) if clock or hot else None,
    )


def _members(worst: pd.DataFrame, topology: Topology) -> list[int]:
    """All ranks of the unit."""
    stage, replica = worst["stage"].iloc[0], worst["replica"].iloc[0]
    if pd.isna(stage) or pd.isna(replica):
        return [int(r) for r in worst["rank"].unique()]
    places = topology.ranks
    return [int(r) for r in places.loc[(places["stage"] == stage) & (places["replica"] == replica), "rank"]]


def _same_work(worst: pd.DataFrame, stage: int | None, topology: Topology) -> bool:
    """Whether ranks of the same stage are known to be faster: others of it cannot hide where the report lists the slowest; else the fastest of all is one."""
    if topology.pp == 1:
        return True
    if stage is None or (topology.dp or 1) < 2:
        return False
    if worst["listed"].all():
        return True
    return bool((worst["best_rank"].map(topology.stage_of) == stage).mean() >= 0.5)


def _clock(worst: pd.DataFrame, ranks: list[int]) -> tuple[float, float] | None:
    theirs = worst[worst["clock_rank"].isin(ranks) & (worst["clock_mhz"] < _THROTTLED * worst["clock_most_mhz"])]
    return (float(theirs["clock_mhz"].median()), float(theirs["clock_most_mhz"].median())) if len(theirs) > len(worst) / 2 else None


def _hot(worst: pd.DataFrame, ranks: list[int]) -> float | None:
    theirs = worst[worst["hot_rank"].isin(ranks)]
    return float(theirs["hot_c"].median()) if len(theirs) > len(worst) / 2 else None
