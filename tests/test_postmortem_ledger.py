"""Where the time of the attempts went, and which steps are lost: by hand, and laws."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import pipelog
from pipelog.postmortem.ledger import effective_ratio
from pipelog.tables import Tables
from tests.making import Row, events, fact, step, tables

SECOND = 10**9
T0 = 1_709_650_000 * SECOND
PARTS = ["productive_s", "lost_s", "hang_s", "other_s"]


def at(seconds: float) -> Row:
    return {"clock": "log", "start_ns": T0 + round(seconds * SECOND)}


def start(seconds: float) -> Row:
    return {"kind": "start", "name": "launcher", **at(seconds)}


def steps(numbers: list[int], each_s: float, **more: Any) -> list[Row]:
    return [step(n, each_s, **more) for n in numbers]


def saved(number: int, name: str = "complete") -> Row:
    return {"kind": "checkpoint", "name": name, "step": number}


def failed(seconds: float, code: int = 1) -> Row:
    return {"kind": "end", "name": "exit-code", "value": float(code), "text": f"exits with return code = {code}", **at(seconds)}


def done(seconds: float) -> Row:
    return {"kind": "end", "name": "training-done", "text": "[after training is done]", **at(seconds)}


TWO = [start(0), *steps([10], 2.0), *steps([20], 2.0), saved(20), *steps([30], 2.0), failed(100)]
TWO += [start(160), fact("resume.step", 20), *steps([30, 40], 2.0), done(220)]
"""Prints every ten steps; dies at 30, resumes from 20 after a minute, comes to 40."""


def row(made: Tables, attempt: int) -> dict[str, Any]:
    found: dict[str, Any] = made["ledger"].iloc[attempt].to_dict()
    return found


# ---- two attempts by hand


def test_two_attempts_by_hand() -> None:
    made = tables(TWO)
    first, second = row(made, 0), row(made, 1)
    assert (first["status"], second["status"]) == ("failed", "completed")
    # 100 s: 20 steps kept, 10 steps made again, the rest is start-up
    assert [first[c] for c in ("wall_s", *PARTS)] == [100.0, 40.0, 20.0, 0.0, 40.0]
    assert pd.isna(first["gap_s"])
    # 60 s: steps 21 to 40 kept
    assert [second[c] for c in ("wall_s", *PARTS, "gap_s")] == [60.0, 40.0, 0.0, 0.0, 20.0, 60.0]
    assert effective_ratio(made["ledger"]) == pytest.approx(80 / 220)


def test_the_report_has_the_same_figures() -> None:
    run = pipelog.diagnose(events(TWO)).run
    assert run["ledger"]["effective_ratio"] == pytest.approx(80 / 220, abs=1e-3)
    assert [a["lost_s"] for a in run["ledger"]["attempts"]] == [20.0, 0.0]


def test_the_time_of_a_hang_is_neither_kept_nor_lost() -> None:
    """Steps end at 60 s, the call that timed out began at 100 s, the log ends at 700 s."""
    text = "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=5, OpType=ALLREDUCE, Timeout(ms)=600000)"
    wait = {"kind": "error", "name": "nccl-watchdog", "rank": 0, "value": 5.0, "dur_ns": 600 * SECOND, "text": text, **at(700)}
    made = tables([start(0), *steps([10, 20], 2.0), saved(20), wait, failed(700, -6)])
    only = row(made, 0)
    assert only["status"] == "hung"
    assert [only[c] for c in ("wall_s", *PARTS)] == [700.0, 40.0, 0.0, 600.0, 60.0]


def test_without_times_nothing_is_known() -> None:
    made = tables([{"kind": "start", "name": "launcher"}, *steps([10, 20], 2.0), saved(10), {"kind": "end", "name": "exit-code", "value": 1.0}])
    assert row(made, 0)["lost_s"] == 20.0
    assert pd.isna(row(made, 0)["wall_s"])
    assert pd.isna(row(made, 0)["other_s"])
    assert effective_ratio(made["ledger"]) is None


def test_without_a_word_of_checkpoints_nothing_is_called_kept_or_lost() -> None:
    made = tables([start(0), *steps([10, 20], 2.0), failed(100)])
    assert pd.isna(row(made, 0)["productive_s"])
    assert effective_ratio(made["ledger"]) is None


def test_stamps_that_do_not_cover_the_steps_tell_no_shares() -> None:
    """Only the first lines have times: when the last step was made, and when the job ended, is not known."""
    made = tables(
        [start(0), {"kind": "phase", "name": "note", **at(5)}, *steps([10, 20], 2.0), saved(20), {"kind": "end", "name": "exit-code", "value": 1.0}]
    )
    assert np.isnan(row(made, 0)["wall_s"])
    assert effective_ratio(made["ledger"]) is None


# ---- laws


@given(
    st.integers(1, 20),
    st.integers(1, 40),
    st.integers(0, 40),
    st.floats(0.01, 5.0),
    st.floats(0.0, 500.0),
    st.sampled_from(["failed", "done"]),
)
@settings(max_examples=15, deadline=None)
def test_parts_sum_to_the_span_and_the_ratio_is_one(first: int, count: int, kept: int, each_s: float, idle_s: float, end: str) -> None:
    """Whatever was saved: what was kept, lost and idle is the time from the first stamp to the last."""
    assume(kept < count)
    each_s = round(each_s, 3)
    wall = count * each_s + round(idle_s, 3)
    rows = [start(0), *steps(list(range(first, first + count)), each_s), done(wall) if end == "done" else failed(wall)]
    if kept:
        rows.insert(kept + 1, saved(first + kept - 1))
    made = tables(rows)
    ledger = made["ledger"]
    only = ledger.iloc[0]
    if only[PARTS].notna().all():
        assert only[PARTS].sum() == pytest.approx(only["wall_s"], abs=1e-3)
        assert (only[PARTS] >= 0).all()
    else:
        assert not kept
        assert end == "failed"
    ratio = effective_ratio(ledger)
    assert ratio is None or 0 <= ratio <= 1


@given(st.floats(-0.05, 0.05))
@settings(max_examples=6, deadline=None)
def test_a_median_that_is_off_by_a_little_breaks_no_law(off: float) -> None:
    """Steps times their median are not exactly the time that they took: the parts still sum to the span."""
    made = tables([start(0), *steps(list(range(1, 41)), 1.0 + off), saved(20), failed(40)])
    only = made["ledger"].iloc[0]
    assert only["wall_s"] == 40.0
    if only[PARTS].notna().all():
        assert only[PARTS].sum() == pytest.approx(40.0, abs=1e-3)
    ratio = effective_ratio(made["ledger"])
    assert ratio is None or 0 <= ratio <= 1


@given(st.integers(-(10**6), 10**6))
@settings(max_examples=3, deadline=None)
def test_shifted_times_change_nothing(shift_s: int) -> None:
    moved = [{**r, "start_ns": r["start_ns"] + shift_s * SECOND} if "start_ns" in r else r for r in TWO]
    pd.testing.assert_frame_equal(tables(moved)["ledger"], tables(TWO)["ledger"])


# ---- lost steps


def lost(rows: list[Row], attempt: int = -1) -> tuple[int | None, int | None]:
    """(saved, lost_steps) of an attempt."""
    found = tables(rows)["losses"].iloc[attempt]
    return tuple(None if pd.isna(v) else int(v) for v in (found["saved"], found["lost_steps"]))  # type: ignore[return-value]


def test_steps_since_the_last_complete_checkpoint() -> None:
    assert lost([*steps([10, 20], 1.0), saved(20), *steps([30, 40], 1.0), saved(40), *steps([50, 57], 1.0), failed(0)]) == (40, 17)


def test_a_checkpoint_that_was_begun_and_not_finished_is_none() -> None:
    rows = [*steps([10, 20], 1.0), saved(20), *steps([30, 40], 1.0), saved(40, "begin"), failed(0)]
    assert lost(rows) == (20, 20)


def test_nothing_is_lost_of_a_run_that_came_to_its_end() -> None:
    assert lost([*steps([10], 1.0), saved(10), *steps([20, 25], 1.0), done(0)]) == (10, None)


def test_where_no_line_speaks_of_checkpoints_nobody_knows() -> None:
    assert lost([*steps([10, 20], 1.0), failed(0)]) == (None, None)


def test_all_is_lost_where_the_first_checkpoint_was_never_due() -> None:
    assert lost([fact("args.save_interval", 1000), *steps([10, 20], 1.0), failed(0)]) == (None, 20)


def test_all_is_lost_where_the_first_checkpoint_was_not_finished() -> None:
    assert lost([*steps([10, 20], 1.0), saved(20, "begin"), failed(0)]) == (None, 20)


def test_a_checkpoint_that_was_loaded_is_complete() -> None:
    assert lost([fact("resume.step", 40), *steps([50, 57], 1.0), failed(0)]) == (40, 17)


def test_an_attempt_falls_back_on_the_checkpoint_of_the_one_before() -> None:
    rows = [start(0), *steps([10, 20], 1.0), saved(20), *steps([30], 1.0), failed(100), start(200), *steps([22, 24], 1.0), failed(300)]
    assert lost(rows, 0) == (20, 10)
    assert lost(rows, 1) == (20, 4)


def test_a_checkpoint_of_a_later_attempt_helps_no_earlier_one() -> None:
    rows = [start(0), *steps([10, 20], 1.0), saved(10), failed(100), start(200), *steps([20, 30], 1.0), saved(30), failed(300)]
    assert lost(rows, 0) == (10, 10)
    assert lost(rows, 1) == (30, 0)


# ---- spans


def test_the_first_printed_step_ends_an_interval() -> None:
    """Printed every ten: the first line speaks of steps 1 to 10, or of 21 to 30 after a resume."""
    made = tables([start(0), *steps([10, 20, 30], 2.0), failed(100), start(200), *steps([30, 40], 3.0), failed(300)])
    spans = made["spans"]
    assert spans[["first", "last"]].to_numpy().tolist() == [[1, 30], [21, 40]]
    assert spans["step_ns"].tolist() == [2.0 * SECOND, 3.0 * SECOND]


def test_one_line_speaks_of_as_many_steps_as_are_printed_together() -> None:
    made = tables([fact("config.steps_per_print", 10), *steps([30], 2.0), failed(100)])
    assert made["spans"][["first", "last"]].to_numpy().tolist() == [[21, 30]]


def test_a_checkpoint_within_the_first_interval_begins_the_attempt() -> None:
    """Resumed at 14, printed every ten: the first line, of step 20, speaks of steps 15 to 20. One that is older than the interval moves nothing."""
    within = tables([start(0), fact("resume.step", 14), *steps([20, 30, 40], 3.0), failed(300)])
    assert within["spans"][["first", "last"]].to_numpy().tolist() == [[15, 40]]
    older = tables([start(0), fact("resume.step", 5), *steps([20, 30, 40], 3.0), failed(300)])
    assert older["spans"][["first", "last"]].to_numpy().tolist() == [[11, 40]]


# ---- the last word, and what comes after the last step


def wait(seconds: float, **more: Any) -> Row:
    text = "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=5, OpType=ALLREDUCE, Timeout(ms)=600000)"
    return {"kind": "error", "name": "nccl-watchdog", "rank": 0, "value": 5.0, "dur_ns": 600 * SECOND, "text": text, **at(seconds), **more}


def test_an_error_after_the_last_stamped_line_ends_the_attempt() -> None:
    """The watchdog's lines are the last that a job that hangs prints; they bear no year."""
    begin = pd.Timestamp(T0).replace(year=1970).value
    late = wait(0, clock="log-yearless", start_ns=begin + 700 * SECOND)
    given = [start(0), step(10, 2.0, **at(20)), step(20, 2.0, **at(40)), late]
    assert row(tables(given), 0)["wall_s"] == 700.0
    run = pipelog.diagnose(events(given)).run
    assert (run["duration_s"], run["ended_at"]) == (700.0, pd.Timestamp(T0 + 700 * SECOND).isoformat(timespec="milliseconds"))


@pytest.mark.parametrize("name", ["kernel-oom", "storage-lustre"])
def test_the_kernel_s_log_goes_on_after_the_job(name: str) -> None:
    late = {"kind": "error", "name": name, "text": "Out of memory: Killed process 7 (python)", "file": "kern.log", **at(5000)}
    given = [start(0), step(10, 2.0, **at(20)), step(20, 2.0, **at(40)), failed(45), late]
    assert row(tables(given), 0)["wall_s"] == 45.0


def test_the_time_after_the_last_step_is_no_start_up() -> None:
    """100 s of steps, then 900 s in which none was made; the first began 5 s after the start."""
    given = [start(0), *(step(n, 1.0, **at(5 + n)) for n in range(10, 101, 10)), failed(1005)]
    made = row(tables([*given[:-1], saved(100), given[-1]]), 0)
    assert [made[c] for c in ("wall_s", *PARTS, "after_s")] == [1005.0, 100.0, 0.0, 0.0, 5.0, 900.0]


def test_an_end_soon_after_the_last_step_is_not_told_apart() -> None:
    """Steps are printed every 100 s: the next was not due for long."""
    given = [start(0), *(step(n, 10.0, **at(5 + 10 * n)) for n in range(10, 101, 10)), saved(100), failed(1205)]
    made = row(tables(given), 0)
    assert (made["after_s"], made["other_s"]) == (0.0, 205.0)


def test_where_the_line_has_no_time_those_around_it_tell_when() -> None:
    raised = {"kind": "error", "name": "python-exception", "rank": 1, "text": "OSError: [Errno 28] No space left on device"}
    given = [start(0), step(10, 2.0, **at(20)), raised, failed(45)]
    failure = pipelog.diagnose(events(given)).failure
    assert failure is not None
    assert failure["at"] is None
    assert (failure["not_before"], failure["not_after"]) == tuple(pd.Timestamp(T0 + s * SECOND).isoformat(timespec="milliseconds") for s in (20, 45))
