"""How an attempt ended, as far as its lines say so plainly, and which checkpoints were written to the end."""

from __future__ import annotations

from typing import Any

import pytest

from pipelog.tables.ending import Ending
from tests.making import Row, step, tables


def end(name: str, value: float | None = None, **more: Any) -> Row:
    return {"kind": "end", "name": name, "value": value, "text": name, **more}


def traceback(text: str = "Traceback …\nValueError: x", **more: Any) -> Row:
    return {"kind": "error", "name": "python-exception", "text": text, **more}


def spawned(*pids: int) -> list[Row]:
    return [{"kind": "process", "name": "spawned", "value": float(p)} for p in pids]


def endings(*rows: Row) -> list[Ending]:
    found: list[Ending] = tables(rows)["endings"]
    return found


def status(*rows: Row) -> tuple[str, str | None, int | None]:
    """(status, category, line of the proof) of the last attempt."""
    last = endings(*rows)[-1]
    return last.status, last.category, last.line


STEPS = [step(1), step(2)]
KILLED = {"kind": "process", "name": "killed", "value": 1.0}


def test_a_log_that_stops_is_incomplete() -> None:
    assert status(*STEPS) == ("incomplete", None, None)


@pytest.mark.parametrize(
    ("name", "want"),
    [
        ("slurm-time-limit", ("time-limit", "scheduler.time-limit")),
        ("slurm-preempted", ("preempted", "scheduler.preempted")),
        ("slurm-requeue", ("preempted", "scheduler.preempted")),
        ("slurm-cancelled", ("cancelled", "scheduler.cancelled")),
        ("slurm-node-failure", ("failed", "hardware.node")),
        ("k8s-deadline", ("time-limit", "scheduler.time-limit")),
        ("k8s-preempted", ("preempted", "scheduler.preempted")),
    ],
)
def test_a_scheduler_s_line_says_who_ended_it(name: str, want: tuple[str, str]) -> None:
    """Whatever the kill brings with it: signals, kills, exit codes of SIGTERM after the scheduler's line."""
    assert status(*STEPS, end(name), KILLED, end("signal", 15.0), end("exit-code", -15.0)) == (*want, 3)


def test_a_step_cancelled_after_a_task_failed_is_no_cancellation() -> None:
    """srun cancels the step because one of its tasks died: the failure came first."""
    rows = [*STEPS, traceback(), end("exit-code", 1.0), end("slurm-cancelled")]
    assert status(*rows)[:2] == ("failed", None)


STEP_CANCELLED = end("slurm-cancelled", text="slurmstepd: error: *** STEP 7.0 ON n1 CANCELLED AT 2025-06-02T10:08:11 ***")
JOB_CANCELLED = {**STEP_CANCELLED, "text": "*** JOB 7 ON n1 CANCELLED AT 2025-06-02T10:08:11 ***"}
TASKS = [end("slurm-task", 1.0), end("slurm-task", -15.0)]


def test_the_words_of_the_task_that_failed_may_be_written_after_the_step_was_cancelled() -> None:
    assert status(*STEPS, STEP_CANCELLED, traceback("KeyError: 'wiki'"), *TASKS) == ("failed", None, 4)


@pytest.mark.parametrize(
    "rows",
    [
        [STEP_CANCELLED, traceback("DistBackendError: NCCL error, remote process exited"), *TASKS],  # an echo
        [STEP_CANCELLED, *TASKS],  # nobody says why
        [STEP_CANCELLED, traceback("KeyError: 'wiki'"), end("slurm-task", -15.0)],  # no task left of its own
        [STEP_CANCELLED, traceback("KeyError: 'wiki'"), *TASKS, end("slurm-task", 1.0)],  # two did
        [STEP_CANCELLED, traceback("RuntimeError: DataLoader worker (pid(s) 71021) exited unexpectedly"), *TASKS],  # the signal went to all
        [STEP_CANCELLED, JOB_CANCELLED, traceback("KeyError: 'wiki'"), *TASKS],  # the job, too
        [JOB_CANCELLED, traceback("KeyError: 'wiki'"), *TASKS],
    ],
)
def test_what_tasks_say_when_somebody_cancels_is_no_failure(rows: list[Row]) -> None:
    assert status(*STEPS, *rows)[:2] == ("cancelled", "scheduler.cancelled")


@pytest.mark.parametrize(("text", "want"), [("KeyError: 'wiki'", "failed"), ("DistBackendError: NCCL error, remote process exited", "cancelled")])
def test_what_is_deleted_after_it_failed_is_no_cancellation(text: str, want: str) -> None:
    assert status(*STEPS, traceback(text), end("batch-cancelled"))[0] == want


def test_a_time_limit_is_one_whatever_came_before() -> None:
    assert status(*STEPS, traceback(), end("slurm-time-limit"))[0] == "time-limit"


def test_every_process_that_exits_well_completes_the_run() -> None:
    assert status(*spawned(11, 12), *STEPS, end("exit-success", 11.0), end("exit-success", 12.0)) == ("completed", None, 6)


def test_one_process_of_two_that_exits_well_completes_nothing() -> None:
    assert status(*spawned(11, 12), *STEPS, end("exit-success", 11.0))[0] == "incomplete"


@pytest.mark.parametrize("code", [1.0, -9.0, -11.0, 137.0, 2.0])
def test_an_exit_code_other_than_zero_is_a_failure(code: float) -> None:
    assert status(*STEPS, end("exit-code", code)) == ("failed", None, 3)


def test_an_exit_code_of_zero_is_none() -> None:
    assert status(*STEPS, end("exit-code", 0.0))[0] == "incomplete"


def test_a_signal_to_all_is_a_cancellation() -> None:
    assert status(*STEPS, end("signal", 2.0), end("exit-code", -2.0))[:2] == ("cancelled", "scheduler.cancelled")


def test_a_keyboard_interrupt_is_a_cancellation() -> None:
    assert status(*STEPS, traceback("KeyboardInterrupt"), end("exit-code", 1.0))[:2] == ("cancelled", "scheduler.cancelled")


def test_a_failed_child_is_a_failure_and_the_traceback_its_proof() -> None:
    assert status(*STEPS, traceback(), end("child-failed", 1.0)) == ("failed", None, 3)


def test_a_traceback_that_was_survived_is_no_failure() -> None:
    """A data loader's worker died and was restarted; steps go on, all processes exit well."""
    assert status(*spawned(11), step(1), traceback(), step(2), end("exit-success", 11.0))[0] == "completed"
    assert status(step(1), traceback(), step(2))[0] == "incomplete"


def test_a_traceback_after_the_last_step_is_a_failure() -> None:
    assert status(*STEPS, traceback()) == ("failed", None, 3)


def test_a_traceback_after_the_training_said_it_was_done_is_no_failure() -> None:
    """Teardown of the process group complains."""
    assert status(*STEPS, end("training-done"), traceback(), end("exit-code", 1.0))[0] == "completed"


def test_a_script_that_says_it_is_done() -> None:
    assert status(*STEPS, end("script-done")) == ("completed", None, 3)


def test_a_script_that_says_it_is_done_and_trains_on_is_not() -> None:
    """A first phase came to its end, of which the second one's steps say nothing."""
    assert status(*STEPS, end("script-done"), *(step(n) for n in range(3, 30)))[0] == "incomplete"


def test_a_pod_that_succeeded_completes_the_run_where_nothing_failed() -> None:
    assert status(*STEPS, end("k8s-succeeded"))[0] == "completed"
    assert status(*STEPS, end("k8s-succeeded"), end("exit-code", 1.0))[0] == "failed"


def test_the_planned_number_of_iterations_is_an_end() -> None:
    rows = [{"kind": "iteration", "name": "megatron", "step": n, "value": 30.0} for n in (10, 20, 30)]
    assert status(*rows)[0] == "completed"
    assert status(*rows[:2])[0] == "incomplete"


def test_an_earlier_attempt_whose_processes_were_killed_failed() -> None:
    start = {"kind": "start", "name": "launcher"}
    found = endings(start, *STEPS, KILLED, start, *STEPS, end("script-done"))
    assert [e.status for e in found] == ["failed", "completed"]
    assert [e.attempt for e in found] == [0, 1]


def test_the_proof_carries_text_time_and_host() -> None:
    found = endings(*STEPS, end("slurm-node-failure", host="node-3", start_ns=5_000_000_000, clock="log"))[-1]
    assert (found.file, found.line, found.text, found.at_ns, found.hosts) == ("train.log", 3, "slurm-node-failure", 5_000_000_000, ("node-3",))


# ---- checkpoints


def checkpoint(name: str, number: int | None, **more: Any) -> Row:
    return {"kind": "checkpoint", "name": name, "step": number, **more}


def saved(*rows: Row) -> list[tuple[int, int]]:
    found = tables(rows)["checkpoints"]
    return list(zip(found["attempt"].astype(int), found["step"].astype(int), strict=True))


def test_checkpoints_that_were_said_to_be_complete() -> None:
    assert saved(step(10), checkpoint("begin", 10), checkpoint("complete", 10), step(20), checkpoint("complete", 20)) == [(0, 10), (0, 20)]


def test_a_checkpoint_begun_counts_only_where_training_went_on() -> None:
    """Releases from v0.17.1 on print no `complete`: steps after the save show that it was written."""
    assert saved(step(10), checkpoint("begin", 10), step(20), checkpoint("begin", 20)) == [(0, 10)]


def test_one_rank_s_file_is_no_checkpoint() -> None:
    assert saved(step(10), checkpoint("saved", 10), checkpoint("saving", 10), checkpoint("loaded", 5)) == []


def test_a_checkpoint_said_by_every_rank_counts_once_and_without_a_step_not_at_all() -> None:
    assert saved(step(10), *(checkpoint("complete", 10, rank=r) for r in range(4)), checkpoint("complete", None)) == [(0, 10)]


def test_a_scheduler_s_word_with_steps_and_a_good_end_behind_it() -> None:
    """A sample that the model wrote, a node of another job: what this run did afterwards counts. Without its own good end it is not so sure."""
    word: Row = {"kind": "end", "name": "slurm-node-failure", "text": "srun: error: Node failure on node7", "line": 20}
    steps = [step(10 * n, 1.0, line=20 + n) for n in range(1, 5)]
    done: Row = {"kind": "end", "name": "training-done", "text": "[after training is done]", "line": 30}
    assert endings(word, *steps, done)[0].status == "completed"
    assert endings(word, *steps)[0].status == "failed"


def test_a_checkpoint_that_names_no_step_is_of_the_step_printed_last() -> None:
    rows = [
        {"kind": "checkpoint", "name": "finished"},
        step(10, name="torchtitan"),
        step(20, name="torchtitan"),
        {"kind": "checkpoint", "name": "finished"},
        step(30, name="torchtitan"),
        {"kind": "checkpoint", "name": "finished", "file": "other.log"},
    ]
    found = tables(rows)["checkpoints"]
    assert found[["step", "file", "line"]].to_numpy().tolist() == [[20, "train.log", 4]]


def test_a_job_that_is_put_back_into_the_queue_after_a_crash_has_failed() -> None:
    """The job's script asks for it. Signals that a scheduler sends, and ranks that only lost a peer, come with a preemption as well."""
    crash = end("slurm-task", -11.0, label="task 18", host="n3")
    assert status(*STEPS, crash, end("slurm-cancelled"), end("slurm-requeue")) == ("failed", None, 3)
    assert status(*STEPS, end("slurm-requeue"), crash) == ("preempted", "scheduler.preempted", 3)
    assert status(*STEPS, end("slurm-task", -9.0), end("slurm-requeue")) == ("preempted", "scheduler.preempted", 4)
    assert status(*STEPS, end("slurm-task", -15.0), end("slurm-requeue")) == ("preempted", "scheduler.preempted", 4)
    lost = traceback("Traceback …\ntorch.distributed.DistBackendError: NCCL error: remote process exited")
    assert status(*STEPS, lost, end("slurm-requeue")) == ("preempted", "scheduler.preempted", 4)
    assert status(*STEPS, traceback(), end("slurm-requeue")) == ("failed", None, 3)
    assert status(*STEPS, crash, end("slurm-preempted")) == ("preempted", "scheduler.preempted", 4)
