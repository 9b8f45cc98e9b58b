"""Compute per micro-batch of each stage, and of each rank against the ranks that do the same work."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd

from pipelog.tables import table


@table("balance", needs=("compute_time",))
def balance(compute_time: pd.DataFrame) -> pd.DataFrame:
    """One row a stage: stage, compute_ns, forward_ns, backward_ns, recompute_ns (per micro-batch), excess (over the mean stage - 1).

    Per micro-batch, of timers per step where their number is not known (`compute_time`).

    Median over steps of each rank, then the lower median over the replicas of the stage: one slow replica is a straggler, not an
    imbalance. The imbalance of the run is the largest excess: max/mean - 1 (design/product.md).
    """
    names = ["busy_ns", "forward_ns", "backward_ns", "recompute_ns"]
    per = compute_time[names].div(compute_time["micro_batches"], axis=0)
    of_rank = per.join(compute_time[["stage", "rank"]]).groupby(["stage", "rank"])[names].median()
    of_stage = of_rank.groupby("stage").quantile(0.5, interpolation="lower").reset_index().rename(columns={"busy_ns": "compute_ns"})
    of_stage["excess"] = of_stage["compute_ns"] / of_stage["compute_ns"].mean() - 1
    return of_stage


@table("peers", needs=("compute_time",))
def peers(compute_time: pd.DataFrame) -> pd.DataFrame:
    """One row a step and rank whose stage was measured on two or more replicas: step, stage, rank, replica, compute_ns, peer_ns, ratio, file, line.

    compute_ns per micro-batch; peer_ns: lower median over all ranks of the stage in that step; ratio: the one over the other.
    """
    rows = compute_time[["step", "stage", "rank", "replica", "file", "line"]].assign(
        compute_ns=compute_time["busy_ns"] / compute_time["micro_batches"]
    )
    groups = rows.groupby(["step", "stage"])["compute_ns"]
    rows["count"] = rows.groupby(["step", "stage"])["replica"].transform("nunique")  # the ranks of a tensor-parallel group wait for each other
    rows = rows.join(groups.quantile(0.5, interpolation="lower").rename("peer_ns"), on=["step", "stage"])
    rows = rows[rows["count"] > 1].drop(columns="count")
    return rows.assign(ratio=rows["compute_ns"] / rows["peer_ns"]).reset_index(drop=True)


_ONE_STEP = 3
"""Replicas of healthy runs differ by up to 12 % in a single step of a busy machine (six processes on two cores), never so over two."""

_IN_A_ROW = 5
"""So many measured steps or intervals in a row, to the end, are no hiccup, however long the run was before."""


@dataclass(frozen=True, slots=True)
class Straggler:
    """A rank that stays above its peers. steps: its rows of peers from then on; from_start: in all of them; lost: share of the step; certain: worth a warning.

    ranks: all of its tensor-parallel group where they all stay above, which are then one straggler: in a group all wait for its slowest.
    """

    ranks: tuple[int, ...]
    stage: int
    steps: pd.DataFrame
    from_start: bool
    lost: float
    certain: bool


_STRAY = 0.1
"""Share of steps on either side of a change that may be as those of the other side."""


def since(slow: np.ndarray) -> int:
    """From where on a rank is slow to the end: the place that leaves the fewest steps on the wrong side, at most one in ten of either; else that of the
    unbroken end; the length where there is none.
    """
    strict = len(slow) - int(np.logical_and.accumulate(slow[::-1]).sum())
    wrong = np.concatenate(([0], np.cumsum(slow))) + np.concatenate((np.cumsum(~slow[::-1])[::-1], [0]))
    place = int(np.argmin(wrong))
    if place == len(slow) or np.mean(~slow[place:]) > _STRAY or (place and np.mean(slow[:place]) > _STRAY):
        return strict
    return place


def stragglers(peers: pd.DataFrame, compute_time: pd.DataFrame, limit: float) -> Iterator[Straggler]:
    """Ranks more than *limit* above their peers, from some step on to the end: half of what was measured, or several steps in a row."""
    length = float(compute_time["step_ns"].median())
    found: list[pd.DataFrame] = []
    for _, mine in peers.sort_values("step").groupby("rank"):
        slow = (mine["ratio"] > 1 + limit).to_numpy()
        first = since(slow)
        late = mine.iloc[first:]
        if len(late) >= min(2, len(slow)) and (slow.mean() >= 0.5 or len(late) >= _IN_A_ROW):
            found.append(late.assign(from_start=not first))
    for group in _groups(found):
        late = max(group, key=lambda rows: float(rows["ratio"].median()))
        lost = float((late["compute_ns"] - late["peer_ns"]).median()) * float(compute_time["micro_batches"].median()) / length
        certain = lost > 0.02 and (len(late) > 1 or float(late["ratio"].median()) > 1 + _ONE_STEP * limit)
        ranks = tuple(int(rows["rank"].iloc[0]) for rows in group)
        yield Straggler(ranks, int(late["stage"].iloc[0]), late, bool(late["from_start"].iloc[0]), lost, certain)


def _groups(found: list[pd.DataFrame]) -> list[list[pd.DataFrame]]:
    """The slow ranks of one replica of a stage together: they are a tensor-parallel group, or alone."""
    groups: dict[tuple[int, int], list[pd.DataFrame]] = {}
    for rows in found:
        groups.setdefault((int(rows["stage"].iloc[0]), int(rows["replica"].iloc[0])), []).append(rows)
    return list(groups.values())
