"""What holds for any run: one fault makes one claim, scarce data make none, and units and names change nothing."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pipelog
from pipelog.findings import Status
from pipelog.report import Report
from tests.host_pipeline import Pipeline, traces
from tests.making import Row, Trace, events, fact, inputs_of, read_bytes, scalar, step, table, timer, topology_map


def diagnosed(made: dict[str, Trace] | list[Trace], rows: list[Row]) -> Report:
    """The report of traces and of rows of a log."""
    named = made if isinstance(made, dict) else {f"traces/rank{i}.json": t for i, t in enumerate(made)}
    read = [read_bytes(trace, name) for name, trace in named.items()]
    log = table(rows)
    whole = pa.concat_tables([log, *(t for t, _ in read)]).unify_dictionaries().combine_chunks()
    return pipelog.diagnose(pipelog.Events(whole, [*inputs_of(log), *(i for _, i in read)]))


def of(line: Pipeline, keep: set[int] | None = None, *more: Row) -> Report:
    made = {f"traces/rank{i}.json": t for i, t in enumerate(traces(line)) if keep is None or i in keep}
    head = [*topology_map(line.p, line.replicas), fact("config.micro_batches", line.m), fact("config.train_micro_batch_size_per_gpu", 2)]
    return diagnosed(made, [*head, *more])


def loud(report: Report) -> dict[str, list[Any]]:
    """Rule → places, at warning or error."""
    found: dict[str, list[Any]] = {}
    for f in report.findings:
        if f.severity is not pipelog.Severity.INFO:
            found.setdefault(f.name, []).append((*f.where.stages, *f.where.ranks, *f.where.links))
    return found


# ---- one fault, one claim

WIDE: dict[str, Any] = {"p": 4, "m": 24, "steps": 3, "reduce": 500.0, "optimizer": 4000.0, "broadcast": 300.0}
"""Ideal bubble 3/27 = 11 %: healthy."""
BUBBLE = "high-bubble-ratio"


def test_a_healthy_pipeline_makes_no_claim() -> None:
    assert loud(of(Pipeline(**WIDE))) == {}


@pytest.mark.parametrize("stage", range(4))
def test_a_heavy_stage_is_an_imbalance_and_nothing_else(stage: int) -> None:
    found = loud(of(Pipeline(**WIDE, stage_factor={stage: 2.0})))
    assert found["stage-imbalance"] == [(stage, stage)]  # the stage and its rank
    assert set(found) <= {"stage-imbalance", BUBBLE}


@pytest.mark.parametrize("edge", [(0, 1), (1, 0), (1, 2), (3, 2)])
@pytest.mark.parametrize("how", ["slow", "late"])
def test_a_bad_link_is_a_stall_and_nothing_else(edge: tuple[int, int], how: str) -> None:
    found = loud(of(Pipeline(**WIDE, **{how: {edge: 12_000.0}})))
    assert found["communication-stall"] == [((min(edge), max(edge)),)]
    assert set(found) <= {"communication-stall", BUBBLE}


@pytest.mark.parametrize("stage", [0, 3])
def test_late_batches_are_slow_loading_and_nothing_else(stage: int) -> None:
    found = loud(of(Pipeline(**WIDE, load={stage: 9000.0})))
    assert found["slow-data-loading"] == [(stage, stage)]
    assert set(found) <= {"slow-data-loading", BUBBLE}


@pytest.mark.parametrize("rank", [1, 2])
def test_a_slow_rank_is_a_straggler_and_no_imbalance(rank: int) -> None:
    """Two stages, two replicas: rank 1 is stage 0 of replica 1, rank 2 stage 1 of replica 0."""
    line = Pipeline(p=2, m=24, steps=3, replicas=2, factor={(rank % 2, rank // 2): 1.6}, reduce=500.0, optimizer=4000.0)
    found = loud(of(line))
    assert found["straggler-rank"] == [(rank // 2, rank)]
    assert set(found) <= {"straggler-rank", BUBBLE}


def test_recomputation_on_one_stage_is_named_as_such() -> None:
    report = of(Pipeline(**WIDE, again={1: 20_000.0}))
    (finding,) = [f for f in report.findings if f.name == "stage-imbalance"]
    assert finding.where.stages == (1,)
    assert "recomputes activations" in finding.title


def test_too_few_micro_batches_are_the_schedule_s_fault() -> None:
    found = loud(of(Pipeline(p=4, m=4, steps=3)))
    assert set(found) == {"few-micro-batches", BUBBLE}


# ---- scarce data make no claim, and clear nothing


def spoken(report: Report) -> dict[str, str]:
    """Rules that say something: found or clear."""
    return {o.name: o.status.value for o in report.outcomes if o.status in (Status.FOUND, Status.CLEAR)}


def test_a_log_without_a_known_line_clears_no_rule() -> None:
    report = pipelog.diagnose(events([{"kind": "phase", "name": "something"}]))
    assert set(spoken(report)) <= {"truncated-input", "lost-work", "repeat-offender", "run-failed", "run-hung"}
    assert report.findings == ()
    assert report.run["status"] == "incomplete"


COMPARING = {"stage-imbalance", "straggler-rank", "communication-stall", "memory-skew", "memory-growth", "throughput-drop", "loss-spike"}
"""Rules that hold one thing against another."""


def test_one_stage_clears_nothing_that_compares_stages() -> None:
    rows = [
        *topology_map(1),
        fact("config.micro_batches", 4),
        *(step(n, 1.0) for n in range(1, 4)),
        timer("fwd", 100.0),
        timer("bwd", 200.0),
        step(4, 1.0),
    ]
    said = spoken(pipelog.diagnose(events(rows)))
    assert not set(said) & {BUBBLE, "few-micro-batches", "stage-imbalance", "straggler-rank", "communication-stall", "memory-skew"}


def test_one_printed_step_clears_nothing_that_compares_steps() -> None:
    rows = [
        *topology_map(4),
        fact("config.micro_batches", 64),
        step(10, 1.0),
        scalar("loss", 10, 9.0),
        {"kind": "memory", "name": "max_allocated", "rank": 0, "step": 10, "bytes": 2**30},
    ]
    assert not set(spoken(pipelog.diagnose(events(rows)))) & COMPARING


@pytest.mark.parametrize("rank", range(4))
def test_one_rank_s_trace_clears_nothing_that_compares_ranks(rank: int) -> None:
    """A heavy stage 2 and a slow link, seen by one rank alone."""
    report = of(Pipeline(**WIDE, stage_factor={2: 2.0}, late={(0, 1): 9000.0}), {rank})
    said = spoken(report)
    assert not set(said) & {"stage-imbalance", "straggler-rank", "communication-stall", "memory-skew"}
    assert said.get(BUBBLE) != "clear"
    assert report.metrics["stage_imbalance"]["value"] is None
    assert all(set(f.where.stages) <= {rank} and not f.where.links for f in report.findings)


def test_one_step_of_all_ranks_clears_no_change_over_steps() -> None:
    said = spoken(of(Pipeline(p=4, m=24, steps=1)))
    assert not set(said) & {"throughput-drop", "memory-growth", "loss-spike"}


# ---- units and names


def figures(report: Report) -> list[Any]:
    """Ratios of the pipeline phase."""
    metrics = report.metrics
    shares = [p["share"] for p in metrics["phase_breakdown"]]
    return [metrics["bubble"]["measured"], metrics["stage_imbalance"]["value"], *(s["bubble"] for s in metrics["bubble"]["per_stage"]), *shares]


@given(st.sampled_from([3.0, 10.0]), st.integers(2, 4), st.integers(2, 5), st.sampled_from([1.0, 1.5, 2.0]))
@settings(max_examples=5)
def test_ratios_do_not_depend_on_the_unit_of_time(factor: float, p: int, m: int, heavy: float) -> None:
    """All durations longer by a factor: the same shares. Calls of a send keep their 5 us, so nearly."""
    plain = {"forward": 10_000.0, "backward": 20_000.0, "transfer": 2000.0, "reduce": 3000.0, "optimizer": 9000.0}
    one, other = (of(Pipeline(p=p, m=m, stage_factor={1: heavy}, **{k: v * f for k, v in plain.items()})) for f in (1.0, factor))
    assert figures(other) == pytest.approx(figures(one), abs=6e-3)


def test_the_numbers_of_steps_change_nothing() -> None:
    assert figures(of(Pipeline(p=2, m=4, first=900))) == pytest.approx(figures(of(Pipeline(p=2, m=4))))


def test_the_names_of_files_change_nothing() -> None:
    line = Pipeline(p=2, m=4, stage_factor={1: 2.0})
    one, other = traces(line), traces(line)
    rows = [*topology_map(2), fact("config.micro_batches", 4)]
    report = diagnosed({f"z{1 - i}/node_{i}.json": t for i, t in enumerate(other)}, rows)
    assert figures(report) == pytest.approx(figures(diagnosed(one, rows)))
    assert [f.fingerprint for f in report.findings] == [f.fingerprint for f in diagnosed(one, rows).findings]
