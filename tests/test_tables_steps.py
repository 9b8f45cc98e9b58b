"""Intervals, their steps and times, what is put right by version, and the timers around them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelog.summary import weighted_quantile
from pipelog.tables.steps import Steps, series, version_tuple
from tests.making import MS, Row, Trace, fact, of_traces, scalar, step, tables, timer

EVERY_10 = fact("config.steps_per_print", 10)


def steps(*rows: Row) -> Steps:
    found: Steps = tables(rows)["steps"]
    return found


def intervals(found: Steps) -> list[tuple[int, int, float]]:
    """(last step, how many steps, seconds a step)."""
    rows = found.rows
    return [(int(a), int(b), round(int(c) / 1e9, 6)) for a, b, c in zip(rows["step"], rows["steps"], rows["dur_ns"], strict=True)]


# ---- intervals


def test_an_interval_reaches_back_to_the_line_before() -> None:
    assert intervals(steps(EVERY_10, step(10, 1.0), step(20, 1.1), step(25, 1.2))) == [(10, 10, 1.0), (20, 10, 1.1), (25, 5, 1.2)]


def test_the_first_interval_without_steps_per_print_is_as_the_others() -> None:
    assert intervals(steps(step(10, 1.0), step(20, 1.1), step(30, 1.2)))[0] == (10, 10, 1.0)


def test_the_first_interval_never_reaches_before_the_first_step() -> None:
    assert intervals(steps(fact("config.steps_per_print", 100), step(40, 1.0), step(140, 1.0)))[0] == (40, 40, 1.0)


def test_a_single_line_without_steps_per_print_has_no_length() -> None:
    assert steps(step(10, 1.0)).rows["steps"].isna().tolist() == [True]


def test_the_first_interval_after_a_resume_at_a_multiple() -> None:
    assert intervals(steps(EVERY_10, fact("resume.step", 50), step(60, 1.0), step(70, 1.1)))[0] == (60, 10, 1.0)


def test_the_first_interval_after_a_resume_at_a_non_multiple() -> None:
    """Resumed at 57: step 60 ends three steps, whose time the engine divides by ten (formats/deepspeed-logs.md 11)."""
    assert intervals(steps(EVERY_10, fact("resume.step", 57), step(60, 0.3), step(70, 1.1))) == [(60, 3, 1.0), (70, 10, 1.1)]


def test_a_resume_long_before_the_first_line_changes_nothing() -> None:
    assert intervals(steps(EVERY_10, fact("resume.step", 7), step(60, 1.0)))[0] == (60, 10, 1.0)


def test_printed_lengths_are_believed() -> None:
    found = steps(step(5, 1.0, name="other", steps=5), step(6, 1.2, name="other", steps=1))
    assert intervals(found) == [(5, 5, 1.0), (6, 1, 1.2)]
    assert found.source == "other"


@pytest.mark.parametrize(
    ("names", "source"),
    [
        (("megatron", "deepspeed"), "deepspeed"),
        (("megatron", "neox"), "neox"),
        (("other", "megatron"), "megatron"),
        (("other",), "other"),
        ((), None),
    ],
)
def test_the_best_kind_of_line_counts_alone(names: tuple[str, ...], source: str | None) -> None:
    """DeepSpeed's iter time holds train_batch alone. Lines that nobody has weighed yet come last, but are not dropped."""
    found = steps(*(step(n, 1.0 + i, name=name) for n in (1, 2, 3) for i, name in enumerate(names)))
    assert found.source == source
    assert len(found.rows) == (3 if source else 0)


def test_lines_in_the_merged_log_and_in_the_ranks_own_count_once() -> None:
    rows = [{**step(n, 1.0), "file": f, "line": n} for f in ("train.log", "rank0.log") for n in (10, 20, 30)]
    assert intervals(steps(EVERY_10, *rows)) == [(10, 10, 1.0), (20, 10, 1.0), (30, 10, 1.0)]


def test_steps_of_traces_where_no_line_was_printed() -> None:
    """ProfilerStep#k is DeepSpeed's step k + 1; the slowest rank counts."""
    traces = [Trace(r, 2) for r in range(2)]
    for r, trace in enumerate(traces):
        trace.step(2, 0, 100 + 10 * r)
        trace.step(3, 200, 130 - 10 * r)
    found = of_traces(traces)["steps"]
    assert found.source == "trace"
    assert [(int(n), int(d)) for n, d in zip(found.rows["step"], found.rows["dur_ns"], strict=True)] == [(3, 110_000), (4, 130_000)]
    assert found.rows["file"].tolist() == ["traces/rank1.json", "traces/rank0.json"]


def test_nothing_printed_is_no_step() -> None:
    found = steps(fact("x", 1))
    assert found.source is None
    assert len(found.rows) == len(found.measured()) == 0


def test_the_first_interval_is_warm_up_where_there_are_others() -> None:
    assert steps(EVERY_10, step(10, 9.0), step(20, 1.0)).measured()["step"].tolist() == [20]
    assert steps(EVERY_10, step(10, 9.0)).measured()["step"].tolist() == [10]


# ---- what is put right


@pytest.mark.parametrize(
    ("version", "factor"),
    [
        ("0.3.16", 1.0),
        ("0.4.0", 10.0),
        ("0.4.5+cu111", 10.0),
        ("0.5.6", 10.0),
        ("0.5.7", 1.0),
        ("0.6.1", 1.0),
        ("0.6.2", 1e-3),
        ("0.6.3", 1e-3),
        ("0.6.4", 1.0),
        ("0.16.9", 1.0),
        (None, 1.0),
    ],
)
def test_iter_time_of_releases_that_print_it_wrong(version: str | None, factor: float) -> None:
    known = [] if version is None else [fact("version.deepspeed", version)]
    found = steps(*known, EVERY_10, step(10, 2.0), step(20, 3.0))
    assert [s for *_, s in intervals(found)] == pytest.approx([2.0 * factor, 3.0 * factor])
    assert (found.correction is None) == (factor == 1.0)
    assert found.printed["dur_ns"].tolist() == [2_000 * MS, 3_000 * MS]


def test_iter_time_of_every_step_needs_no_correction() -> None:
    """Divided by steps_per_print = 1 it is what it says."""
    assert steps(fact("version.deepspeed", "0.5.0"), fact("config.steps_per_print", 1), step(1, 2.0)).correction is None


def test_other_lines_are_not_corrected() -> None:
    assert steps(fact("version.deepspeed", "0.6.2"), step(1, 2.0, name="megatron"), step(2, 2.0, name="megatron")).correction is None


@pytest.mark.parametrize(
    ("text", "version"), [("0.16.9+abc", (0, 16, 9)), ("v0.18", (0, 18, 0)), ("1.2.3.4", (1, 2, 3)), ("unknown", ()), ("", ()), (None, ())]
)
def test_version_tuple(text: str | None, version: tuple[int, ...]) -> None:
    assert version_tuple(text) == version


# ---- the median over steps


def test_an_interval_counts_as_often_as_it_has_steps() -> None:
    """One step of 9 s among 10 steps of 1 s and 5 of 2 s: of 16 steps the eighth and ninth take 1 s."""
    assert weighted_quantile(np.array([9.0, 1.0, 2.0]), np.array([1.0, 10.0, 5.0]), 0.5) == 1.0
    assert weighted_quantile(np.array([1.0, 2.0]), np.array([5.0, 5.0]), 0.5) == 1.5


@given(st.lists(st.tuples(st.integers(0, 100), st.integers(1, 9)), min_size=1, max_size=12))
def test_weighted_median_is_the_median_of_repeated_values(pairs: list[tuple[int, int]]) -> None:
    values, weights = (np.array(x, float) for x in zip(*pairs, strict=True))
    assert weighted_quantile(values, weights, 0.5) == float(np.median(np.repeat(values, weights.astype(int))))


# ---- scalars


def test_a_scalar_printed_twice_is_one_point_and_the_last_line_counts() -> None:
    rows = [scalar("loss", 1, 2.0), scalar("loss", 1, 2.0), scalar("loss", 2, 1.9), scalar("loss", 2, 1.8), scalar("loss", None, 7.0)]
    made = tables(rows)["scalars"]
    assert len(made) == 4  # (1, 2.0) once, both of step 2, the one without a step
    found = series(made, "loss")
    assert list(zip(found["step"], found["value"], strict=True)) == [(1, 2.0), (2, 1.8)]


def test_a_series_of_another_name_is_empty() -> None:
    assert len(series(tables([scalar("loss", 1, 2.0)])["scalars"], "grad_norm")) == 0


# ---- timers


def timers(*rows: Row, **more: Any) -> dict[int, dict[str, float]]:
    """step → timer → ms per step."""
    found = tables(rows, **more)["timers"]
    names = [c for c in found.columns if c.endswith("_ns")]
    return {int(r["step"]): {n.removesuffix("_ns"): round(r[n] / MS, 6) for n in names if r[n] == r[n]} for r in found.to_dict("records")}


def test_timers_stand_around_their_step_line() -> None:
    """Of one interval of ten steps: fwd and bwd before the line `steps:`, pipe_… after it; sums over the interval become times of a step."""
    found = timers(
        EVERY_10,
        *(timer("fwd", 100.0), timer("bwd", 200.0), step(10, 0.05), timer("pipe_send_output", 10.0), timer("pipe_recv_grad", 50.0)),
        *(timer("fwd", 110.0), timer("bwd", 220.0), step(20, 0.06), timer("pipe_send_output", 20.0), timer("pipe_recv_grad", 60.0)),
    )
    assert found == {
        10: {"fwd": 10.0, "bwd": 20.0, "pipe_send_output": 1.0, "pipe_recv_grad": 5.0, "iter": 50.0},
        20: {"fwd": 11.0, "bwd": 22.0, "pipe_send_output": 2.0, "pipe_recv_grad": 6.0, "iter": 60.0},
    }


def test_timers_of_every_optimizer_step_add_up_over_the_interval() -> None:
    rows = [row for n in range(10) for row in (timer("optimizer_step", 5.0 + n),)]
    assert timers(EVERY_10, *rows, timer("step", 70.0), step(10, 0.1))[10] == {"optimizer_step": 9.5, "step": 7.0, "iter": 100.0}


def test_timers_on_the_line_of_their_step() -> None:
    """Two records glued on one line, and the pipe timers on the line of the next."""
    rows = [
        {**timer("fwd", 30.0), "line": 1},
        {**step(10, 0.1), "line": 1},
        {**timer("pipe_recv_grad", 20.0), "line": 1},
        {**step(20, 0.1), "line": 2},
    ]
    assert timers(EVERY_10, *rows) == {10: {"fwd": 3.0, "pipe_recv_grad": 2.0, "iter": 100.0}}


def test_timers_after_the_last_line_belong_to_no_interval() -> None:
    """The job was killed within an interval; only its last pipe_ line is whole."""
    found = timers(EVERY_10, timer("fwd", 100.0), step(10, 0.1), timer("pipe_recv_grad", 10.0), timer("fwd", 999.0), timer("bwd", 999.0))
    assert found == {10: {"fwd": 10.0, "pipe_recv_grad": 1.0, "iter": 100.0}}


def test_timers_of_other_ranks_are_left_out() -> None:
    assert timers(EVERY_10, timer("fwd", 100.0, rank=0), timer("fwd", 900.0, rank=3), step(10, 0.1))[10]["fwd"] == 10.0


def test_timers_in_the_merged_log_and_in_rank_0_s_count_once() -> None:
    lines = [timer("fwd", 100.0), step(10, 0.1), timer("pipe_recv_grad", 10.0)]
    rows = [{**row, "file": f, "line": n} for f in ("logs/rank0.log", "train.log") for n, row in enumerate(lines, 1)]
    assert timers(EVERY_10, *rows) == {10: {"fwd": 10.0, "pipe_recv_grad": 1.0, "iter": 100.0}}


@pytest.mark.parametrize(("version", "kept"), [("0.3.16", True), ("0.4.0", False), ("0.5.6", False), ("0.5.7", True)])
def test_timers_of_releases_that_keep_the_last_micro_batch_only(version: str, kept: bool) -> None:
    assert bool(timers(fact("version.deepspeed", version), EVERY_10, timer("fwd", 100.0), step(10, 0.1))) is kept


def test_timers_without_the_time_of_a_step_are_left_out() -> None:
    assert timers(EVERY_10, timer("fwd", 100.0), step(10)) == {}


def megatron(name: str, ms: float, **more: Any) -> Row:
    return {"kind": "megatron_timer", "name": name, "dur_ns": round(ms * MS), **more}


def test_megatron_s_timers_follow_their_iteration_line() -> None:
    """Means of a step already; those before the first iteration are the set-up's; rows over ranks (min, max) are no one-line form."""
    rows = [
        *(
            megatron("model-and-optimizer-setup", 900.0),
            step(10, 1.0, name="megatron"),
            megatron("forward-compute", 300.0),
            megatron("optimizer", 20.0),
        ),
        *(step(20, 1.1, name="megatron"), megatron("forward-compute", 310.0), megatron("forward-compute", 999.0, text="max")),
    ]
    found = tables(rows)["megatron_timers"]
    assert found["step"].tolist() == [10, 20]
    assert (found["forward-compute"] / MS).tolist() == [300.0, 310.0]
    assert (found["step_ns"] / MS).tolist() == [1000.0, 1100.0]
    assert "model-and-optimizer-setup" not in found
    assert found["optimizer"].isna().tolist() == [False, True]


# ---- lines that give no time


def stamped(number: int, seconds: float, rank: int | None = None) -> Row:
    return step(number, name="torchtitan", rank=rank, start_ns=round(seconds * 1e9), clock="log")


def test_a_step_that_no_line_times_takes_from_the_stamp_of_one_line_to_the_next() -> None:
    """61.2 s for one step, 40 s for the ten that follow; the other rank's lines are a second later each, and measured by themselves."""
    lines = [stamped(n, at + late, rank) for n, at in ((1, 0.0), (2, 61.2), (12, 101.2)) for rank, late in ((0, 0.0), (7, 1.0))]
    made = tables(lines)["steps"].rows
    assert made["step"].tolist() == [1, 2, 12]
    assert made["dur_ns"].isna().tolist() == [True, False, False]
    assert made["dur_ns"].dropna().tolist() == [61_200_000_000, 4_000_000_000]
    assert steps(*lines).correction is None, "nothing that was printed was wrong"


def test_stamps_of_whole_seconds_do_not_tell_the_time_of_short_steps() -> None:
    made = steps(*(stamped(n, float(n)) for n in range(1, 5))).rows
    assert made["dur_ns"].isna().all()
    made = steps(*(stamped(10 * n, 10.0 * n) for n in range(1, 5))).rows
    assert made["dur_ns"].dropna().tolist() == [1_000_000_000] * 3


def test_stamps_are_left_alone_where_lines_give_their_times() -> None:
    made = steps(*(step(n, 2.0, name="torchtitan", start_ns=n * 10**10) for n in range(1, 4))).rows
    assert made["dur_ns"].tolist() == [2_000_000_000] * 3


def test_the_distance_of_the_lines_is_steps_per_print_where_no_line_states_it() -> None:
    """1.2 s is a tenth of the last step's time in 0.5.4, a mean in 0.5.7; of one line alone nobody knows what it was divided by."""
    assert intervals(steps(fact("version.deepspeed", "0.5.4"), step(10, 1.2), step(20, 1.2), step(30, 1.2)))[1] == (20, 10, 12.0)
    assert steps(fact("version.deepspeed", "0.5.7"), step(10, 1.2), step(20, 1.2)).correction is None
    assert steps(fact("version.deepspeed", "0.5.4"), step(10, 1.2)).correction is None
    assert steps(fact("version.deepspeed", "0.5.4"), step(1, 1.2), step(2, 1.2)).correction is None
