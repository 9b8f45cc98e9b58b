"""The bubble of all stages from Megatron's timers of all ranks."""

from __future__ import annotations

import pandas as pd

from pipelog._text import seconds
from pipelog.tables import CannotTell, table
from pipelog.tables.bubble import Bubble
from pipelog.tables.timers import SYNCED
from pipelog.tables.topology import Topology


@table("rank_bubble", needs=("rank_timers", "compute_time", "topology"))
def rank_bubble(rank_timers: pd.DataFrame, compute_time: pd.DataFrame, topology: Topology) -> Bubble:
    """From forward-backward of all ranks: idle = 1 - compute / (forward-backward - reduction of gradients), of a replica the mean over its stages.

    Per step the replica that idles least, since the others may wait for it in the reduction (that is no bubble); then the median over the intervals.
    low: the lower quartile of these; high: the upper quartile of the mean over all replicas. Speaks of the run: all stages of a replica have to be timed.
    """
    if "forward-backward" not in rank_timers or not (compute_time["source"] == "timers").all():
        raise CannotTell("Megatron's forward-backward was not timed on all ranks")
    keys = ["step", "rank"]
    phase = rank_timers.set_index(keys)["forward-backward"]
    if SYNCED[0] in rank_timers:
        phase = phase - rank_timers.set_index(keys)[[n for n in SYNCED if n in rank_timers]].sum(axis=1)
    rows = compute_time.join(phase.rename("phase_ns"), on=keys)
    rows = rows.assign(bubble=1 - rows["busy_ns"] / rows["phase_ns"])
    rows = rows[(rows["phase_ns"] > 0) & (rows["bubble"] >= 0)]
    of_stage = rows.groupby(["step", "replica", "stage"])[["bubble", "busy_ns"]].mean().reset_index()
    of_replica = of_stage.groupby(["step", "replica"])["bubble"].agg(["mean", "size"])
    whole = of_replica.loc[of_replica["size"] == (topology.pp or 0), "mean"]
    if not len(whole) or (topology.pp or 0) < 2:
        raise CannotTell("not all stages of a replica were timed")
    least, every = (getattr(whole.groupby("step"), how)() for how in ("min", "mean"))
    stages = of_stage.groupby("stage")[["bubble", "busy_ns"]].median()
    witness = rows.loc[rows["bubble"].idxmax()]
    return Bubble(
        measured=float(least.median()),
        low=float(least.quantile(0.25)),
        high=float(every.quantile(0.75)),
        source="timers",
        basis="timer",
        scope="run",
        per_stage=[{"stage": int(s), "bubble": float(r["bubble"]), "busy_s": float(r["busy_ns"]) / 1e9} for s, r in stages.iterrows()],
        where=[(str(witness["file"]), int(witness["line"]))],
        shows=f"step {int(witness['step'])}: rank {int(witness['rank'])} (stage {int(witness['stage'])}) computes for {seconds(float(witness['busy_ns']))} "
        f"of {seconds(float(witness['phase_ns']))} (forward-compute and backward-compute of forward-backward)",
        intervals=int(rank_timers["step"].nunique()),
    )
