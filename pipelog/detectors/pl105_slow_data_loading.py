"""PL105 slow-data-loading: batches arrive late.

What it does: takes the time that the first and the last stage spend on getting a micro-batch (the only ones that load data), from
traces, or from the timers batch_input (DeepSpeed, rank 0) and batch-generator (Megatron, last rank), as a share of the step; the median
over the recorded steps, since one late batch (the first of an epoch) is no slow loading.
Why it matters: in a pipeline the load stands in the way of every micro-batch of stage 0, and so of all stages behind it.
What to do: more loader workers, prefetching, pinned memory, data on a faster file system, preprocessing done before the job.
When it is wrong: from a trace without stacks any idle time right before a forward pass of these stages counts as loading.
Thresholds: limit 0.10 (a tenth of the step on one stage).
"""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from pipelog._text import percent, seconds
from pipelog.findings import Advice, Confidence, Evidence, Finding, Severity, Where, cite, detector
from pipelog.tables import CannotTell, Tables
from pipelog.tables.topology import Topology

_ADVICE = (
    Advice("raise num_workers and prefetch_factor of the DataLoader, or wrap the iterator in a background prefetcher"),
    Advice("check where the data come from: a shared file system under load, decompression or tokenization on the fly"),
)


@detector("PL105", "slow-data-loading", needs=("tables", "topology"))
def slow_data_loading(tables: Tables, topology: Topology, *, limit: float = 0.10) -> Iterator[Finding]:
    """One finding a source: the traces where there are any, else the timers."""
    passes = tables.get("passes") if (topology.pp or 0) > 1 else None
    loading = {0, (topology.pp or 1) - 1}
    if passes is not None and len(passes) and set(tables["stage_time"]["stage"]) & loading:
        yield from _from_traces(passes, tables["stage_time"], limit)
        return
    for name, column, whole, stage in (
        ("timers", "batch_input_ns", "iter_ns", 0),
        ("megatron_timers", "batch-generator", "step_ns", topology.pp - 1 if topology.pp else None),
    ):
        timers = tables[name]
        if column in timers:
            if len(timers) < 2:
                raise CannotTell("one print interval alone times the loading, and the first holds warm-up: a longer log would tell")
            yield from _from_timers(timers, column, whole, stage, limit)
            return
    raise CannotTell("nothing times the loading: the timer batch_input (wall_clock_breakdown), Megatron's batch-generator or a trace of rank 0 would")


def _from_traces(passes: pd.DataFrame, stage_time: pd.DataFrame, limit: float) -> Iterator[Finding]:
    loads = passes[passes["instruction"] == "forward"]
    each = loads.groupby(["step", "rank"]).agg(
        load_ns=("load_ns", "sum"), one_ns=("load_ns", "median"), file=("file", "first"), line=("line", "first")
    )
    steps = stage_time.assign(step_ns=stage_time["step_end_ns"] - stage_time["step_start_ns"]).set_index(["step", "rank"])[["stage", "step_ns"]]
    each = each.join(steps, how="inner")
    each["share"] = each["load_ns"] / each["step_ns"]
    usual = each.groupby("rank")["share"].median()
    late = each[each.index.get_level_values("rank").isin(usual.index[usual > limit])].reset_index()
    if not len(late):
        return
    late["usual"] = late["rank"].map(usual)
    worst = late[late["usual"] == late["usual"].max()].iloc[0]
    one = float(late[late["rank"] == worst["rank"]]["one_ns"].median())
    stages = tuple(sorted({int(s) for s in late["stage"]}))
    yield Finding(
        "PL105",
        "slow-data-loading",
        f"stage {int(worst['stage'])} waits {seconds(one)} for each micro-batch, {percent(worst['usual'])} of the step",
        Severity.WARNING,
        Confidence.HIGH,
        Where(ranks=tuple(sorted({int(r) for r in late["rank"]})), stages=stages, steps=(int(late["step"].min()), int(late["step"].max()))),
        cite(late, by="share"),
        _ADVICE,
        cost=float(worst["usual"]),
    )


def _from_timers(timers: pd.DataFrame, column: str, whole: str, stage: int | None, limit: float) -> Iterator[Finding]:
    used = timers.iloc[1:]
    share = (used[column] / used[whole]).median()
    if pd.isna(share):
        raise CannotTell("the loading was timed in the first print interval only, which holds warm-up")
    if share <= limit:
        return
    worst = used.loc[used[column].idxmax()]
    yield Finding(
        "PL105",
        "slow-data-loading",
        f"getting the batches takes {seconds(float(used[column].median()))} of a step{'' if stage is None else f' on stage {stage}'}, {percent(float(share))} of it",
        Severity.WARNING,
        Confidence.HIGH,
        Where(stages=() if stage is None else (stage,), steps=(int(used["step"].min()), int(used["step"].max()))),
        (Evidence(str(worst["file"]), int(worst["line"])),),
        _ADVICE,
        cost=float(share),
    )
