"""PL105 slow-data-loading: batches arrive late.

What it does: takes the time that the first and the last stage spend on getting a micro-batch (the only ones that load data), from
traces, or from the timers batch_input (DeepSpeed, rank 0) and batch-generator (Megatron, last rank, or the slowest rank of its tables over ranks), as a
share of the step; the median over the recorded steps, since one late batch (the first of an epoch) is no slow loading. Where one batch of a step makes most of that
wait, it is named; if only one step was recorded, the confidence is then medium.
Why it matters: in a pipeline the load stands in the way of every micro-batch of stage 0, and so of all stages behind it.
What to do: more loader workers, prefetching, pinned memory, data on a faster file system, preprocessing done before the job.
When it is wrong: from a trace without stacks any idle time right before a forward pass of these stages counts as loading.
Thresholds: limit 0.10 (a tenth of the step on one stage).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pandas as pd

from pipelog._text import percent, seconds
from pipelog.findings import Advice, Confidence, Evidence, Finding, Severity, Where, cite, detector
from pipelog.replay.cited import at_best
from pipelog.tables import CannotTell, Tables
from pipelog.tables.topology import Topology

_ADVICE = (
    Advice("raise num_workers and prefetch_factor of the DataLoader, or wrap the iterator in a background prefetcher"),
    Advice("check where the data come from: a shared file system under load, decompression or tokenization on the fly"),
)
_BETWEEN = Advice(
    "see what the data iterator does when a step begins: workers that start anew, a buffer that is filled only when asked for, "
    "a broadcast or a log call in between; prefetch the next step's batches while this one computes"
)


@detector("PL105", "slow-data-loading", needs=("tables", "topology"))
def slow_data_loading(tables: Tables, topology: Topology, *, limit: float = 0.10) -> Iterator[Finding]:
    """One finding a source: the traces where there are any, else the timers."""
    passes = tables.get("passes") if (topology.pp or 0) > 1 else None
    loading = {0, (topology.pp or 1) - 1}
    if passes is not None and len(passes) and set(tables["stage_time"]["stage"]) & loading:
        yield from _from_traces(passes, tables, limit)
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
    ranges: pd.DataFrame = tables["timer_ranges"]
    loading_times = ranges[ranges["name"] == "batch-generator"].sort_values("step")
    if len(loading_times) == 1:
        raise CannotTell("one print interval alone times the loading, and the first holds warm-up: a longer log would tell")
    if len(loading_times):
        yield from _from_ranges(loading_times, topology, limit)
        return
    raise CannotTell("nothing times the loading: the timer batch_input (wall_clock_breakdown), Megatron's batch-generator or a trace of rank 0 would")


def _from_traces(passes: pd.DataFrame, tables: Tables, limit: float) -> Iterator[Finding]:
    stage_time: pd.DataFrame = tables["stage_time"]
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
    waits = loads[loads["rank"] == worst["rank"]]
    longest = _longest(waits)
    single = longest["load_ns"].sum() > waits["load_ns"].sum() / 2 and len(waits) > 2 * len(longest)
    said = _one_of_a_step(waits, longest) if single else f"{seconds(float(waits.groupby('step')['load_ns'].mean().median()))} for each micro-batch"
    at_once = single and bool((longest["nth"] == 0).all())
    stages = tuple(sorted({int(s) for s in late["stage"]}))
    yield Finding(
        "PL105",
        "slow-data-loading",
        f"stage {int(worst['stage'])} waits {said}, {percent(worst['usual'])} of the step",
        Severity.WARNING,
        Confidence.MEDIUM if single and len(longest) == 1 else Confidence.HIGH,
        Where(ranks=tuple(sorted({int(r) for r in late["rank"]})), stages=stages, steps=(int(late["step"].min()), int(late["step"].max()))),
        cite(longest, by="load_ns") if single else cite(late, by="share"),
        (replace(_BETWEEN if at_once else _ADVICE[0], expected=at_best(tables, "batches ready in time")), *_ADVICE[1:]),
        cost=float(worst["usual"]),
    )


def _longest(waits: pd.DataFrame) -> pd.DataFrame:
    """The longest wait of each step of one rank; nth: for which of the step's micro-batches, from 0."""
    numbered = waits.assign(nth=waits.groupby("step").cumcount())
    return numbered.loc[numbered.groupby("step")["load_ns"].idxmax()]


def _one_of_a_step(waits: pd.DataFrame, longest: pd.DataFrame) -> str:
    """One batch of each step is late, not all: which, and how long the others take."""
    others = float(waits.drop(longest.index)["load_ns"].median())
    first = bool((longest["nth"] == 0).all())
    which = "the first micro-batch" if first else "one micro-batch"
    of = f"of step {int(longest['step'].iloc[0])}" if len(longest) == 1 else "of each step"
    return f"{seconds(float(longest['load_ns'].median()))} for {which} {of} (the others: {seconds(others)})"


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


def _from_ranges(ranges: pd.DataFrame, topology: Topology, limit: float) -> Iterator[Finding]:
    """Of Megatron's tables over ranks: the rank that waits longest for its batches, which all others wait for. Whose it is is told where all ranks are listed."""
    used = ranges.iloc[1:]
    share = float((used["max_ns"] / used["step_ns"]).median())
    if not share > limit:
        return
    most, least = float(used["max_ns"].median()), float(used["min_ns"].median())
    usual = used["rank"].dropna().mode()
    late = (used["rank"] == usual.iloc[0]).mean() > 0.5 if len(usual) else False
    ranks = (int(usual.iloc[0]),) if late else ()
    stages = {stage for rank in used["rank"].dropna().unique() if (stage := topology.stage_of(int(rank))) is not None}
    whose = f"rank {ranks[0]}" if ranks else "the slowest rank"
    others = f"; on the fastest of the ranks that load it takes {seconds(least)}" if least == least else ""  # noqa: PLR0124
    yield Finding(
        "PL105",
        "slow-data-loading",
        f"getting the batches (batch-generator) takes {seconds(most)} of a step on {whose}, {percent(share)} of it{others}",
        Severity.WARNING,
        Confidence.HIGH,
        Where(ranks=ranks, stages=tuple(sorted(stages)), steps=(int(used["step"].min()), int(used["step"].max()))),
        cite(used, by="max_ns"),
        _ADVICE,
        cost=share,
    )
