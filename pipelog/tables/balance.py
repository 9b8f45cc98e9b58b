"""Compute per micro-batch of each stage, and of each rank against the ranks that do the same work."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd

from pipelog.tables import table


@table("balance", needs=("stage_time",))
def balance(stage_time: pd.DataFrame) -> pd.DataFrame:
    """One row a stage: stage, compute_ns, forward_ns, backward_ns, recompute_ns (per micro-batch), excess (over the mean stage - 1).

    Median over steps of each rank, then the lower median over the replicas of the stage: one slow replica is a straggler, not an
    imbalance. The imbalance of the run is the largest excess: max/mean - 1 (design/product.md).
    """
    names = ["busy_ns", "forward_ns", "backward_ns", "recompute_ns"]
    per = stage_time[names].div(stage_time["micro_batches"], axis=0)
    of_rank = per.join(stage_time[["stage", "rank"]]).groupby(["stage", "rank"])[names].median()
    of_stage = of_rank.groupby("stage").quantile(0.5, interpolation="lower").reset_index().rename(columns={"busy_ns": "compute_ns"})
    of_stage["excess"] = of_stage["compute_ns"] / of_stage["compute_ns"].mean() - 1
    return of_stage


@table("peers", needs=("stage_time",))
def peers(stage_time: pd.DataFrame) -> pd.DataFrame:
    """One row a step and rank whose stage was recorded on two or more replicas: step, stage, rank, replica, compute_ns, peer_ns, ratio, file, line.

    compute_ns per micro-batch; peer_ns: lower median over all ranks of the stage in that step; ratio: the one over the other.
    """
    rows = stage_time[["step", "stage", "rank", "replica", "file", "line"]].assign(compute_ns=stage_time["busy_ns"] / stage_time["micro_batches"])
    groups = rows.groupby(["step", "stage"])["compute_ns"]
    rows["count"] = groups.transform("size")
    rows = rows.join(groups.quantile(0.5, interpolation="lower").rename("peer_ns"), on=["step", "stage"])
    rows = rows[rows["count"] > 1].drop(columns="count")
    return rows.assign(ratio=rows["compute_ns"] / rows["peer_ns"]).reset_index(drop=True)


_ONE_STEP = 3
"""Replicas of healthy runs differ by up to 12 % in a single step of a busy machine (six processes on two cores), never so over two."""


@dataclass(frozen=True, slots=True)
class Straggler:
    """A rank that stays above its peers. steps: its rows of peers from then on; from_start: in all of them; lost: share of the step; certain: worth a warning."""

    rank: int
    stage: int
    steps: pd.DataFrame
    from_start: bool
    lost: float
    certain: bool


def stragglers(peers: pd.DataFrame, stage_time: pd.DataFrame, limit: float) -> Iterator[Straggler]:
    """Ranks more than *limit* above their peers, from some step on to the end."""
    length = float((stage_time["step_end_ns"] - stage_time["step_start_ns"]).median())
    for rank, mine in peers.sort_values("step").groupby("rank"):
        slow = (mine["ratio"] > 1 + limit).to_numpy()
        first = len(slow) - int(np.logical_and.accumulate(slow[::-1]).sum())
        if first > len(slow) - min(2, len(slow)) or slow.mean() < 0.5:
            continue
        late = mine.iloc[first:]
        lost = float((late["compute_ns"] - late["peer_ns"]).median()) * float(stage_time["micro_batches"].median()) / length
        certain = lost > 0.02 and (len(late) > 1 or float(late["ratio"].median()) > 1 + _ONE_STEP * limit)
        yield Straggler(int(rank), int(late["stage"].iloc[0]), late, not first, lost, certain)
