"""The bubble: ideal beside measured, from the best source there is, and of which stages it speaks."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from pipelog._text import seconds
from pipelog.schedule import ideal_bubble
from pipelog.tables import CannotTell, Tables, table
from pipelog.tables.config import Config
from pipelog.tables.topology import Topology


@dataclass(slots=True)
class Bubble:
    """ideal: (p-1)/(v*m+p-1). measured: of the run (scope `run`) or of the stages in per_stage only (scope `stage`).

    source: trace or timers. basis: instruction, kernel or timer. low..high bound what measured claims; why_wide: where they are far apart, what from.
    per_stage: stage, bubble, busy_s. per_step: step, bubble (traces only). where: (file, line) of the witness, shows: what it shows, where its own words do not. intervals: how many
    printed intervals timers gave, the first with its warm-up among them.
    """

    ideal: float | None = None
    measured: float | None = None
    low: float | None = None
    high: float | None = None
    source: str | None = None
    basis: str | None = None
    scope: str | None = None
    per_stage: list[dict[str, float]] = field(default_factory=list)
    per_step: pd.DataFrame = field(default_factory=pd.DataFrame)
    where: list[tuple[str, int]] = field(default_factory=list)
    shows: str | None = None
    note: str | None = None
    why_wide: str | None = None
    intervals: int | None = None

    @property
    def certain(self) -> float | None:
        """What a claim may rest on: rank-0 timers hold reductions and untimed work in `measured`, so there it is `low`."""
        return self.low if self.source == "timers" and self.per_stage and self.per_stage[0]["stage"] == 0 else self.measured


@table("bubble_by_stage", needs=("stage_time",))
def bubble_by_stage(stage_time: pd.DataFrame) -> pd.DataFrame:
    """Idle share of the pipeline phase per step, replica and rank: bubble = 1 - busy / phase."""
    known = stage_time.dropna(subset=["phase_ns"])
    return known.assign(bubble=1 - known["busy_ns"] / known["phase_ns"])


@table("trace_bubble", needs=("bubble_by_stage",))
def trace_bubble(bubble_by_stage: pd.DataFrame) -> Bubble:
    """From instructions: per step the mean over stages and replicas, then the median over steps.

    Speaks of the run where all stages of at least one replica were recorded, else of stage 0 alone.
    """
    if not len(bubble_by_stage):
        raise CannotTell("the traces hold neither all stages of a replica nor its stage 0")
    whole = bubble_by_stage[bubble_by_stage["complete"]]
    rows = whole if len(whole) else bubble_by_stage[bubble_by_stage["stage"] == 0]
    per_step = rows.groupby("step")["bubble"].mean()
    by_stage = rows.groupby(["step", "stage"])[["bubble", "busy_ns"]].mean().groupby("stage").median()
    witness = rows.loc[rows["bubble"].idxmax()]
    return Bubble(
        measured=float(per_step.median()),
        low=float(per_step.min()),
        high=float(per_step.max()),
        source="trace",
        basis="instruction",
        scope="run" if len(whole) else "stage",
        per_stage=[{"stage": int(s), "bubble": float(r["bubble"]), "busy_s": float(r["busy_ns"]) / 1e9} for s, r in by_stage.iterrows()],
        per_step=per_step.reset_index(),
        where=[(str(witness["file"]), int(witness["line"]))],
        shows=f"step {int(witness['step'])}: rank {int(witness['rank'])} (stage {int(witness['stage'])}) computes for {seconds(float(witness['busy_ns']))} "
        f"of a phase of {seconds(float(witness['phase_ns']))}; here its longest pass",
    )


@table("megatron_bubble", needs=("megatron_timers", "topology"))
def megatron_bubble(megatron_timers: pd.DataFrame, topology: Topology) -> Bubble:
    """From Megatron's last-rank timers, of the last stage alone (corpus/public/FACTS.md).

    window = step - optimizer - params all-reduce; measured = 1 - (forward-compute + backward-compute) / window;
    low = (forward-recv + backward-embedding-all-reduce) / step, the fill and the drain: there the embedding all-reduce is the wait for
    stage 0, not communication; high = measured. Median over the lines without the first.
    """
    need = ("forward-compute", "backward-compute")
    pp = topology.pp or 0
    if pp < 2 or not set(need) <= set(megatron_timers.columns):
        raise CannotTell("no forward-compute and backward-compute timers of a pipeline")
    used = (megatron_timers.iloc[1:] if len(megatron_timers) > 1 else megatron_timers).fillna(0.0)
    compute = used[need[0]] + used[need[1]]

    def of(*names: str) -> pd.Series:
        return sum((used[n] for n in names if n in used), start=pd.Series(0.0, index=used.index))

    step = used["step_ns"]
    window = step - of("optimizer", "backward-params-all-reduce", "grads-all-reduce", "grads-reduce-scatter", "params-all-gather")
    good = (compute > 0) & (window > compute)
    if not good.any():
        raise CannotTell("Megatron's compute timers are all zero")
    measured = float((1 - compute / window)[good].median())
    ends = of("forward-recv", "backward-embedding-all-reduce") / step
    low = float(ends[good].median())
    witness = used.loc[(1 - compute / window)[good].idxmax()]
    return Bubble(
        measured=measured,
        low=min(low, measured),
        high=measured,
        source="timers",
        basis="timer",
        scope="stage",
        per_stage=[{"stage": pp - 1, "bubble": measured, "busy_s": float(compute[good].median()) / 1e9}],
        where=[(str(witness["file"]), int(witness["line"]))],
        note="the last rank alone prints timers: this is the idle share of the last stage; its embedding all-reduce is the drain, not communication",
        intervals=len(megatron_timers),
    )


@table("bubble", needs=("topology", "config", "tables"))
def bubble(topology: Topology, config: Config, tables: Tables) -> Bubble:
    """The best of traces, timers of all ranks, rank-0 timers and last-rank timers, with the ideal beside it."""
    best = (
        next((b for name in ("trace_bubble", "rank_bubble", "timer_bubble", "megatron_bubble") if (b := tables.get(name)) is not None), None)
        or Bubble()
    )
    if topology.pp and topology.pp > 1 and config.micro_batches and config.virtual_stages:
        best.ideal = ideal_bubble(topology.pp, config.micro_batches, config.virtual_stages)
    elif topology.pp == 1:
        best.ideal = 0.0
    if best.measured is not None and not np.isfinite(best.measured):
        best.measured = None
    return best
