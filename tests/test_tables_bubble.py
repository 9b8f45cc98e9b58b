"""Busy time, pipeline phase and bubble: from hand-made traces, from rank 0's timers, from Megatron's last rank (figures of a real job)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelog.schedule import ideal_bubble
from pipelog.tables import CannotTell
from pipelog.tables.bubble import Bubble
from tests.host_pipeline import Pipeline, bubble, busy, phase, simulate, traces
from tests.making import MS, Row, fact, of_traces, step, tables, timer, topology_map


def of(line: Pipeline, *rows: Row, keep: set[int] | None = None) -> Any:
    """The tables over a pipeline's traces; *keep*: ranks whose traces are there."""
    made = {f"traces/rank{i}.json": t for i, t in enumerate(traces(line)) if keep is None or i in keep}
    return of_traces(made, [*topology_map(line.p, line.replicas), fact("config.micro_batches", line.m), *rows])


# ---- from traces


@given(st.integers(2, 4), st.integers(1, 6), st.integers(0, 3), st.integers(10, 30))
@settings(max_examples=12, deadline=None)
def test_bubble_and_busy_time_are_the_simulation_s(p: int, m: int, slow: int, factor: int) -> None:
    line = Pipeline(p=p, m=m, stage_factor={slow % p: factor / 10}, steps=1)
    made = of(line)
    truth = simulate(line)
    begin, end = phase(truth)
    found = made["stage_time"]
    # a short gap between passes and messages is part of the pass: 5 us a call of send
    assert found["busy_ns"].tolist() == pytest.approx([1000 * b for b in busy(truth)], abs=1000 * 11 * m)
    assert found["phase_ns"].tolist() == pytest.approx([1000 * (end - begin)] * p, abs=1)
    assert made["bubble"].measured == pytest.approx(bubble(truth), abs=2e-3)
    assert all(0 <= b <= 1 for b in made["bubble_by_stage"]["bubble"])


@given(st.integers(2, 5), st.integers(1, 8))
@settings(max_examples=8, deadline=None)
def test_equal_stages_idle_as_the_schedule_says(p: int, m: int) -> None:
    found = of(Pipeline(p=p, m=m, steps=1))["bubble"]
    assert found.measured == pytest.approx((p - 1) / (m + p - 1), abs=3e-3)
    assert found.ideal == ideal_bubble(p, m)
    assert (found.source, found.basis, found.scope) == ("trace", "instruction", "run")
    assert [s["stage"] for s in found.per_stage] == list(range(p))


def test_the_run_s_bubble_is_the_mean_over_stages_and_replicas() -> None:
    """Replica 1's stage 0 computes twice as long: its own phase is longer, each replica is measured against its own."""
    line = Pipeline(p=2, m=4, replicas=2, factor={(1, 0): 2.0})
    found = of(line)["bubble"]
    assert found.measured == pytest.approx((bubble(simulate(line, 0)) + bubble(simulate(line, 1))) / 2, abs=1e-3)
    assert (found.low, found.high) == pytest.approx((found.measured, found.measured))


def test_waiting_for_another_replica_is_no_bubble() -> None:
    """After its last backward pass a rank waits in the reduction for the slow replica: that lies after the phase."""
    with_reduction = Pipeline(p=2, m=4, replicas=2, factor={(1, 0): 2.0}, reduce=4000.0)
    without = Pipeline(p=2, m=4, replicas=2, factor={(1, 0): 2.0})
    assert of(with_reduction)["bubble"].measured == pytest.approx(of(without)["bubble"].measured, abs=1e-9)


def test_start_skew_lies_before_the_phase() -> None:
    """All stages begin 30 ms late: the phase begins with the first forward pass."""
    skewed = of(Pipeline(p=2, m=4, skew={0: 30_000.0, 1: 30_000.0}))
    assert skewed["bubble"].measured == pytest.approx(0.2, abs=1e-3)
    assert (skewed["stage_time"]["phase_start_ns"] - skewed["stage_time"]["step_start_ns"]).min() >= 30_000_000


def test_one_replica_alone_speaks_for_itself() -> None:
    found = of(Pipeline(p=2, m=4, replicas=2), keep={0, 2})
    assert found["bubble"].scope == "run"
    assert found["stage_time"]["replica"].unique().tolist() == [0]


def test_stage_0_alone_speaks_of_itself_only() -> None:
    line = Pipeline(p=4, m=8, stage_factor={2: 2.0})
    found = of(line, keep={0})["bubble"]
    truth = simulate(line)
    begin, end = phase(truth)
    assert found.scope == "stage"
    assert [s["stage"] for s in found.per_stage] == [0]
    assert found.measured == pytest.approx(1 - busy(truth)[0] / (end - begin), abs=2e-3)


@pytest.mark.parametrize("keep", [{1}, {3}, {1, 2, 3}])
def test_without_stage_0_and_without_a_whole_replica_nothing_is_measured(keep: set[int]) -> None:
    found = of(Pipeline(p=4, m=4), keep=keep)
    assert found["bubble"].measured is None
    assert found["stage_time"]["phase_ns"].isna().all()
    assert not found["stage_time"]["complete"].any()
    with pytest.raises(CannotTell, match="neither all stages"):
        found["trace_bubble"]


def test_traces_under_the_map_of_another_job_tell_nothing() -> None:
    """Two stages and two replicas (0 talks to 2, 1 to 3), beside a log whose four ranks are four stages."""
    made = of_traces(traces(Pipeline(p=2, m=4, replicas=2)), topology_map(4))
    with pytest.raises(CannotTell, match="log and traces are of two jobs"):
        made["stage_time"]
    assert made["bubble"].measured is None


def test_traces_without_passes_say_what_to_record() -> None:
    with pytest.raises(CannotTell, match="record torch profiler traces"):
        tables(topology_map(4))["stage_time"]


def test_the_median_over_steps_is_taken_after_the_mean_over_stages() -> None:
    """Three files of steps with another imbalance each: the run's bubble is that of the middle one."""
    lines = [Pipeline(p=2, m=4, stage_factor={1: f}, steps=1, first=10 * i) for i, f in enumerate((1.0, 3.0, 1.5))]
    made = {f"traces/rank{r}.{i}.json": t for i, line in enumerate(lines) for r, t in enumerate(traces(line))}
    for i, line in enumerate(lines):
        for r in range(line.p):
            made[f"traces/rank{r}.{i}.json"].header["baseTimeNanoseconds"] += i * 10**10
    found = of_traces(made, topology_map(2))["bubble"]
    each = sorted(bubble(simulate(line)) for line in lines)
    assert found.measured == pytest.approx(each[1], abs=1e-3)
    assert (found.low, found.high) == pytest.approx((each[0], each[2]), abs=1e-3)


# ---- from rank 0's timers

TIMERS = [
    *(timer("fwd", 999.0), timer("bwd", 999.0), timer("step", 99.0), step(10, 0.9), timer("pipe_recv_grad", 9.0)),  # warm-up
    *(timer("batch_input", 20.0), timer("fwd", 300.0), timer("bwd", 600.0), timer("step", 100.0), step(20, 0.2)),
    *(timer("pipe_send_output", 40.0), timer("pipe_recv_grad", 440.0)),
]


def test_bubble_of_stage_0_from_timers_by_hand() -> None:
    """A step of 150 ms, of which 30 forward, 60 backward, 10 optimizer, 4 send, 44 receive, 2 load: compute is 90, and all is timed."""
    found = tables([fact("config.steps_per_print", 10), *topology_map(4), *TIMERS[:9], step(20, 0.15), *TIMERS[-2:]])["bubble"]
    assert found.low == pytest.approx(1 - 90 / (90 + 4 + 44 + 2))
    assert found.high == pytest.approx(1 - 90 / 150)
    assert found.measured == pytest.approx(1 - 90 / (150 - 10))
    assert (found.source, found.basis, found.scope) == ("timers", "timer", "stage")
    assert found.per_stage == [{"stage": 0, "bubble": found.measured, "busy_s": pytest.approx(0.09)}]
    assert found.certain == found.low
    assert found.why_wide == "the optimizer takes 6.7 %"


def test_time_that_nothing_timed_may_be_work() -> None:
    """The same in a step of 200 ms: 50 ms are timed by nothing, so that only 50 of 190 ms are waiting for certain."""
    found = tables([fact("config.steps_per_print", 10), *topology_map(4), *TIMERS])["bubble"]
    assert found.low == pytest.approx((4 + 44 + 2) / 190)
    assert (found.measured, found.high) == pytest.approx((1 - 90 / 190, 1 - 90 / 200))
    assert "no timer holds 25.0 % of a step" in found.why_wide


def test_late_batches_are_not_certainly_within_the_phase() -> None:
    """60 ms of loading, 30 of waiting and 90 of passes fill a step of 180: all of the loading may come before the first pass."""
    mine = [timer("batch_input", 600.0), timer("fwd", 300.0), timer("bwd", 600.0), step(20, 0.18), timer("pipe_recv_grad", 300.0)]
    found = tables([fact("config.steps_per_print", 10), *topology_map(4), *TIMERS[:5], *mine])["bubble"]
    assert found.low == pytest.approx(30 / 120)
    assert found.measured == found.high == pytest.approx(0.5)
    assert "33.3 % of a step is late data" in found.why_wide


def interval(last: int, seconds: float, receive_ms: float) -> list[Row]:
    """Ten steps that end with *last*, of *seconds* each: 30 ms forward, 60 ms backward."""
    return [timer("fwd", 300.0), timer("bwd", 600.0), step(last, seconds), timer("pipe_recv_grad", 10 * receive_ms)]


def test_intervals_that_differ_give_wide_bounds() -> None:
    """Five intervals of 100 to 180 ms a step that wait for all but 1 ms of it: quartiles of 10, 25, 35.7, 43.75 and 50 %."""
    lengths = (100, 120, 140, 160, 180)
    rows = [row for i, ms in enumerate((900, *lengths), 1) for row in interval(10 * i, ms / 1e3, ms - 91)]
    found = tables([fact("config.steps_per_print", 10), *topology_map(4), *rows])["bubble"]
    assert found.measured == pytest.approx(1 - 90 / 140)
    assert found.low == pytest.approx(1 - 90 / 119)
    assert found.high == pytest.approx(1 - 90 / 160)


@pytest.mark.parametrize(("first_pass", "low"), [(1.0, 0.1), (1.5, 0.4)])
def test_of_two_intervals_the_first_bounds_the_other_where_it_is_no_warm_up(first_pass: float, low: float) -> None:
    """100 ms a step, then 150 with one long wait among them: usual is 10 % idle, which the first tells, if its passes are as short as the later ones."""
    first = [timer("fwd", 300.0 * first_pass), timer("bwd", 600.0 * first_pass), step(10, 0.1 * first_pass), timer("pipe_recv_grad", 100.0)]
    found = tables([fact("config.steps_per_print", 10), *topology_map(4), *first, *interval(20, 0.15, 60)])["bubble"]
    assert (found.low, found.measured, found.high) == pytest.approx((low, 0.4, 0.4))
    assert found.why_wide == (None if low == 0.4 else "the 2 printed intervals differ, the first of all among them (10.0 % to 40.0 % idle)")


def test_messages_of_an_evaluation_turn_the_bounds_round() -> None:
    """The timers hold more waiting than the step had idle time: 60 ms in a step of 120 of which 90 are computing."""
    rows = [row for i, ms in enumerate((900, 120), 1) for row in interval(10 * i, ms / 1e3, 60)]
    found = tables([fact("config.steps_per_print", 10), *topology_map(4), *rows])["bubble"]
    assert found.measured == found.low == pytest.approx(1 - 90 / 120)
    assert found.high == pytest.approx(1 - 90 / 150)


def test_the_pair_of_micro_timers_is_used_where_the_other_is_missing_and_never_added() -> None:
    renamed = {"fwd": "fwd_microstep", "bwd": "bwd_microstep", "step": "step_microstep"}
    micro = [{**row, "name": renamed.get(row["name"], row["name"])} for row in TIMERS]
    head = [fact("config.steps_per_print", 10), *topology_map(4)]
    alone, both = tables([*head, *micro])["bubble"], tables([*head, *(r for pair in zip(micro, TIMERS, strict=True) for r in pair)])["bubble"]
    assert alone.measured == both.measured == pytest.approx(1 - 90 / 190)


@pytest.mark.parametrize("rows", [topology_map(1), []], ids=["one stage", "stages unknown"])
def test_timers_without_a_pipeline_tell_no_bubble(rows: list[Row]) -> None:
    made = tables([fact("config.steps_per_print", 10), *rows, *TIMERS])["bubble"]
    assert made.measured is None


def test_timers_that_read_zero_tell_no_bubble() -> None:
    rows = [timer("fwd", 0.0), timer("bwd", 0.0), step(10, 0.2), timer("fwd", 0.0), timer("bwd", 0.0), step(20, 0.2)]
    assert tables([fact("config.steps_per_print", 10), *topology_map(4), *rows])["bubble"].measured is None


# ---- from Megatron's last rank


def megatron(step_ms: float, **ms: float) -> list[Row]:
    """Three equal iteration lines with their timers; underscores stand for hyphens."""
    line = [{"kind": "megatron_timer", "name": n.replace("_", "-"), "dur_ns": round(v * MS)} for n, v in ms.items()]
    return [row for n in (10, 20, 30) for row in (step(n, step_ms / 1000, name="megatron"), *line)]


R01 = {"forward_compute": 176.0, "backward_compute": 514.9, "forward_recv": 126.4, "backward_embedding_all_reduce": 418.6, "optimizer": 115.1}
R08 = {"forward_compute": 28135.6, "backward_compute": 74917.5, "forward_recv": 1506.3, "backward_embedding_all_reduce": 4157.4, "optimizer": 76.6}


@pytest.mark.parametrize(
    ("step_ms", "timers", "all_reduce", "p", "m", "of_step", "of_window"),
    [(1380.6, R01, 23.2, 4, 4, 0.395, 0.444), (126640.6, R08, 17.4, 16, 256, 0.045, 0.186)],
)
def test_bubble_of_real_jobs_from_megatron_s_timers(
    step_ms: float, timers: dict[str, float], all_reduce: float, p: int, m: int, of_step: float, of_window: float
) -> None:
    """Medians of R01 and R08; fill and drain as a share of the step, and all idle time of the window, as published with them."""
    rows = [*topology_map(p), fact("config.micro_batches", m), *megatron(step_ms, **timers, backward_params_all_reduce=all_reduce)]
    found: Bubble = tables(rows)["bubble"]
    assert found.low == pytest.approx(of_step, abs=5e-4)
    assert found.measured == found.high == pytest.approx(of_window, abs=5e-4)
    assert found.ideal == pytest.approx((p - 1) / (m + p - 1))
    assert [s["stage"] for s in found.per_stage] == [p - 1]
    assert found.scope == "stage"
    assert found.certain == found.measured


def test_megatron_s_timers_of_one_stage_tell_no_bubble() -> None:
    assert tables([*topology_map(1, 4), *megatron(1000.0, forward_compute=100.0, backward_compute=200.0)])["bubble"].measured is None


# ---- which source


def test_traces_are_believed_before_timers() -> None:
    found = of(Pipeline(p=2, m=4), fact("config.steps_per_print", 10), *TIMERS)["bubble"]
    assert found.source == "trace"


def test_the_ideal_stands_alone_where_nothing_was_measured() -> None:
    found = tables([*topology_map(4), fact("config.micro_batches", 4)])["bubble"]
    assert (found.measured, found.source, found.scope, found.certain) == (None, None, None, None)
    assert found.ideal == pytest.approx(3 / 7)


def test_one_stage_has_no_bubble_and_an_unknown_m_no_ideal() -> None:
    assert tables([*topology_map(1, 4), fact("config.micro_batches", 4)])["bubble"].ideal == 0.0
    assert tables(topology_map(4))["bubble"].ideal is None
