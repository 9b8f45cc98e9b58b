"""How attempts ended, as the report says it: by a scheduler, by a signal, well, again on the same host."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import pipelog
from pipelog.findings import Confidence, Severity
from pipelog.postmortem.deaths import Death
from pipelog.report import Report
from tests.making import Row, events, step, tables, topology_map
from tests.telling import read, traceback
from tests.test_postmortem_roles import DISK, OOM, PEER, T0, at, killing, left, raised

LOUD = {"run-failed", "run-hung"}
ECC = "RuntimeError: CUDA error: uncorrectable ECC error encountered"


def end(name: str, text: str, **more: Any) -> Row:
    return {"kind": "end", "name": name, "text": text, **more}


LIMIT = end("slurm-time-limit", "slurmstepd: error: *** STEP 812345.0 ON node-7 CANCELLED AT 2024-03-05T16:00:00 DUE TO TIME LIMIT ***")
PREEMPTED = end("slurm-preempted", "slurmstepd: error: *** STEP 812345.0 ON node-7 CANCELLED AT 2024-03-05T16:00:00 DUE TO PREEMPTION ***")
CANCELLED = end("slurm-cancelled", "slurmstepd: error: *** STEP 812345.0 ON node-7 CANCELLED AT 2024-03-05T15:31:02 ***")
DONE = end("training-done", "[after training is done] datetime: 2024-03-05 16:00:00")


def report_of(rows: list[Row]) -> Report:
    return pipelog.diagnose(events(rows))


def loud(report: Report) -> set[str]:
    return {f.name for f in report.findings if f.severity is Severity.ERROR}


def verdict(rows: list[Row]) -> Death:
    found: Death = tables(rows)["deaths"][-1]
    return found


# ---- ended from outside

SCHEDULERS = {
    "time-limit": (LIMIT, "scheduler.time-limit", "reached its time limit"),
    "preempted": (PREEMPTED, "scheduler.preempted", "was preempted"),
    "cancelled": (CANCELLED, "scheduler.cancelled", "was cancelled"),
}


@pytest.mark.parametrize("status", SCHEDULERS)
def test_the_scheduler_s_word_is_the_end_and_no_failure(status: str) -> None:
    line, category, words = SCHEDULERS[status]
    behind = [raised("SystemExit: 143", 0), raised(PEER, 1), killing(100), left(-15)]
    report = report_of([step(1), step(2), line, *behind])
    failure = report.failure
    assert failure is not None
    assert (report.run["status"], failure["category"], failure["cause_known"], failure["confidence"]) == (status, category, True, "high")
    assert words in failure["title"]
    assert failure["ranks"] == []
    assert [e["line"] for e in failure["evidence"]] == [3]
    assert failure["advice"]
    assert not loud(report) & LOUD
    assert {c["role"] for c in failure["consequences"]} == {"teardown"}


def test_a_step_is_also_cancelled_because_a_rank_failed() -> None:
    death = verdict([step(1), step(2), raised(OOM, 3), left(1), CANCELLED])
    assert (death.status, death.kind, death.ranks) == ("failed", "gpu-oom", (3,))


def test_the_time_limit_kills_and_the_kill_is_not_the_cause() -> None:
    death = verdict([step(1), step(2), raised(PEER, 1), left(-9), LIMIT])
    assert (death.status, death.category, death.known) == ("time-limit", "scheduler.time-limit", True)


DEADLINE = [end("k8s-deadline", "Failed   True    DeadlineExceeded"), end("k8s-deadline", "Warning  DeadlineExceeded")]


def active(seconds: int) -> Row:
    return {"kind": "fact", "name": "limit.active_deadline_s", "value": float(seconds), "text": str(seconds)}


def test_the_deadline_of_a_job_of_kubernetes_is_said_and_is_no_limit_of_slurm() -> None:
    death = verdict([active(1800), step(1), step(2), *DEADLINE, end("signal", "Main process received SIGTERM, exiting", value=15.0)])
    assert (death.status, death.title) == ("time-limit", "The job reached its time limit of 1,800 s (activeDeadlineSeconds)")
    assert [e.line for e in death.evidence] == [4, 1]
    assert [c["what"] for c in death.consequences] == ["was cancelled"]  # the event repeats what the status says
    assert "activeDeadlineSeconds" in death.advice[0].action
    assert not [a for a in death.advice if "Slurm" in a.action]


def test_of_two_deadlines_none_is_said_and_slurm_has_none() -> None:
    assert verdict([active(1800), active(7200), step(1), step(2), *DEADLINE]).title == "The job reached its time limit"
    assert [a.action for a in verdict([step(1), step(2), LIMIT]).advice if "sbatch --signal" in a.action]


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        ([DONE, raised("ModuleNotFoundError: No module named 'convert'"), left(1)], "ModuleNotFoundError: No module named 'convert'” (train.log:4)"),
        ([DONE, end("signal", "Received 15 death signal, shutting down workers", value=15.0)], "Received 15 death signal, shutting down workers”"),
        ([DONE, raised(PEER, 1)], None),  # ranks that end one after another
        ([DONE, raised("TypeError: 'NoneType' object is not callable", stream="ignored")], None),
        ([raised("ValueError: a file is not there"), step(3), step(4), DONE], None),  # survived
        ([DONE], None),
    ],
)
def test_what_fails_after_the_end_has_one_quiet_line(rows: list[Row], told: str | None) -> None:
    report = report_of([step(1), step(2), *rows])
    assert report.run["status"] == "completed"
    assert report.failure is None
    notes = [n for n in report.notes if n.startswith("After the end of the training (train.log:")]
    assert len(notes) == (told is not None)
    assert told is None or told in notes[0]


def test_a_node_that_failed_is_no_cancellation() -> None:
    text = "slurmstepd: error: *** STEP 812345.0 ON node-7 CANCELLED AT 2024-03-05T16:00:00 DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***"
    death = verdict([step(1), step(2), end("slurm-node-failure", text, host="node-7"), left(-15)])
    assert (death.status, death.category, death.hosts, death.known) == ("failed", "hardware.node", ("node-7",), True)
    assert any("node-7" in a.action for a in death.advice)


def test_ctrl_c_is_a_cancellation() -> None:
    death = verdict([step(1), step(2), raised("KeyboardInterrupt", 0), raised("KeyboardInterrupt", 1), left(-2)])
    assert (death.status, death.category) == ("cancelled", "scheduler.cancelled")


def test_a_signal_from_outside_has_no_known_sender() -> None:
    """`Received 15 death signal, shutting down workers`: the files do not say who sent it."""
    death = verdict([step(1), step(2), end("signal", "Received 15 death signal, shutting down workers", value=15.0), killing(100)])
    assert (death.status, death.category, death.known) == ("cancelled", "scheduler.cancelled", False)
    assert death.confidence is not Confidence.HIGH
    assert "do not say who" in death.title
    assert death.missing


@pytest.mark.parametrize(
    ("rows", "status", "category"),
    [
        ([raised("KeyboardInterrupt", 0)], "cancelled", "scheduler.cancelled"),
        ([left(-15)], "cancelled", "scheduler.cancelled"),
        ([left(143)], "cancelled", "scheduler.cancelled"),
        ([left(-2)], "cancelled", "scheduler.cancelled"),
        ([end("signal", "received SIGTERM", value=15.0)], "cancelled", "scheduler.cancelled"),
        ([end("batch-cancelled", "Job was aborted. via condor_rm (by user x)")], "cancelled", "scheduler.cancelled"),
        ([end("batch-preempted", "Job was evicted.")], "preempted", "scheduler.preempted"),
        ([end("k8s-scale-down", "deleting pod for node scale down")], "preempted", "scheduler.preempted"),
        ([end("cloud-preempted", "Instance was preempted.")], "preempted", "scheduler.preempted"),
        ([end("batch-time-limit", "JobState=TIMEOUT")], "time-limit", "scheduler.time-limit"),
        ([{"kind": "error", "name": "level", "text": "ERROR: DUE TO TIME LIMIT"}, left(1)], "time-limit", "scheduler.time-limit"),
    ],
)
def test_status_and_category_never_disagree(rows: list[Row], status: str, category: str) -> None:
    """Cancelled is scheduler.cancelled, preempted scheduler.preempted, time-limit scheduler.time-limit, whoever says so (contract)."""
    death = verdict([step(1), step(2), *rows])
    assert (death.status, death.category) == (status, category)


def test_a_signal_after_a_failure_only_cleans_up() -> None:
    death = verdict([step(1), step(2), raised(DISK, 2), end("signal", "Received 15 death signal, shutting down workers", value=15.0)])
    assert (death.status, death.kind) == ("failed", "disk-full")


# ---- well, or not known

ERRORS = [raised(OOM, 3), raised(PEER, 1), {"kind": "error", "name": "level", "text": "[ERROR] the tracking server did not answer"}, killing(100)]


@pytest.mark.parametrize("behind", [[], ERRORS], ids=["before", "behind"])
def test_a_completed_run_has_no_failure_whatever_errors_it_holds(behind: list[Row]) -> None:
    report = report_of([step(1), *ERRORS, step(2), step(3), DONE, *behind])
    assert report.run["status"] == "completed"
    assert report.failure is None
    assert not loud(report)


def test_all_errors_of_a_completed_run_are_benign() -> None:
    death: Death = tables([step(1), *ERRORS, step(2), step(3), DONE])["death"]
    assert set(death.roles["role"]) == {"benign"}
    assert (death.category, death.title, death.evidence, death.consequences) == (None, "", (), ())


def test_a_log_that_stops_says_nothing() -> None:
    report = report_of([step(1), step(2)])
    assert (report.run["status"], report.failure) == ("incomplete", None)
    assert {o.name for o in report.outcomes if o.status.value == "not-applicable"} >= LOUD


def test_without_any_step_it_failed_at_the_start() -> None:
    text = "AssertionError: Check batch related parameters. train_batch_size is not equal to micro_batch_per_gpu * gradient_acc_step * world_size 64 != 4 * 4 * 2"
    start = {"kind": "start", "name": "launcher"}
    death = verdict([start, raised(text, 0), raised(text, 1), left(1)])
    assert (death.category, death.ranks, death.step, death.phase) == ("config.batch", (), None, "start-up")
    assert death.title.startswith("The job")


def test_a_failure_while_a_checkpoint_is_written() -> None:
    rows: list[Row] = [{"kind": "start", "name": "launcher"}, step(1), step(2), {"kind": "checkpoint", "name": "begin", "step": 2}]
    assert verdict([*rows, raised(DISK, 0), left(1)]).phase == "checkpoint"
    assert verdict([*rows, {"kind": "checkpoint", "name": "complete", "step": 2}, step(3), raised(DISK, 0), left(1)]).phase == "training"


# ---- several attempts


def attempts(*ends: list[Row]) -> list[Row]:
    """Starts of the job an hour apart, each with two steps before its end."""
    rows: list[Row] = []
    for number, last in enumerate(ends):
        first = {"kind": "start", "name": "launcher", "clock": "log", "start_ns": T0 + number * 3600 * 10**9}
        rows += [first, *topology_map(2, 2), step(number * 10 + 1), step(number * 10 + 2), *last]
    return rows


def test_the_failure_is_that_of_the_last_attempt() -> None:
    report = report_of(attempts([raised(OOM, 1), left(1)], [raised(DISK, 2), left(1)]))
    assert [a["category"] for a in report.run["attempts"]] == ["memory.gpu-oom", "storage"]
    assert report.failure is not None
    assert (report.failure["category"], report.failure["ranks"]) == ("storage", [2])


def test_a_restart_that_came_to_its_end_leaves_no_failure() -> None:
    report = report_of(attempts([raised(OOM, 1), left(1)], [DONE]))
    assert [a["status"] for a in report.run["attempts"]] == ["failed", "completed"]
    assert report.failure is None
    assert not loud(report)


def hardware_then(second: str, host: str) -> Report:
    first = [raised(ECC, 1, host="node-1"), left(1)]
    return report_of(attempts(first, [raised(second, 3, host=host), left(1)]))


def test_a_broken_gpu_explains_a_later_symptom_on_the_same_host() -> None:
    report = hardware_then("RuntimeError: CUDA error: an illegal memory access was encountered", "node-1")
    failure = report.failure
    assert failure is not None
    assert (failure["category"], failure["hosts"], failure["confidence"]) == ("hardware.gpu", ["node-1"], "medium")
    assert "fails again" in failure["title"]
    assert any("node-1" in a["action"] for a in failure["advice"])
    (finding,) = [f for f in report.findings if f.name == "repeat-offender"]
    assert finding.where.hosts == ("node-1",)


def test_it_explains_nothing_on_another_host() -> None:
    report = hardware_then("RuntimeError: CUDA error: an illegal memory access was encountered", "node-2")
    assert report.failure is not None
    assert report.failure["category"] == "unknown"
    assert not [f for f in report.findings if f.name == "repeat-offender"]


def test_it_explains_no_failure_that_names_its_own_cause() -> None:
    report = hardware_then(DISK, "node-1")
    assert report.failure is not None
    assert report.failure["category"] == "storage"


def test_lost_work_is_told_of_the_run_that_failed() -> None:
    rows = [*topology_map(2), *(step(n, 2.0) for n in (10, 20)), {"kind": "checkpoint", "name": "complete", "step": 20}]
    report = report_of([*rows, *(step(n, 2.0) for n in (30, 40)), raised(DISK, 1), left(1)])
    assert (report.run["last_checkpoint_step"], report.run["lost_steps"]) == (20, 20)
    (finding,) = [f for f in report.findings if f.name == "lost-work"]
    assert "20 steps (40.0 s) lost" in finding.title
    assert finding.where.steps == (21, 40)


def test_times_of_the_verdict_are_those_of_its_line() -> None:
    death = verdict([step(1, **at(0)), step(2, **at(1)), raised(DISK, 1, **at(5)), left(1, **at(9))])
    assert (death.at_ns, death.step) == (T0 + 5 * 10**9, 2)


def test_a_fault_of_the_post_mortem_costs_the_verdict_and_not_the_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kind whose advice raises: the report is there, status and all, and the rules that need the verdict say that they failed."""
    (tmp_path / "train.log").write_text(
        'Traceback (most recent call last):\n  File "train.py", line 3, in main\n    f()\nValueError: x\n'
        "[2024-03-05 15:10:09,832] [ERROR] [launch.py:325:sigkill_handler] ['python', 'train.py'] exits with return code = 1\n"
    )
    assert pipelog.diagnose(pipelog.read(tmp_path)).failure is not None

    def broken(*_: object, **__: object) -> None:
        raise KeyError("no such column")

    monkeypatch.setattr("pipelog.postmortem.deaths.title_of", broken)
    found = pipelog.diagnose(pipelog.read(tmp_path))
    assert (found.run["status"], found.failure) == ("failed", None)
    status = {o.id: (o.status.value, o.reason) for o in found.outcomes}
    assert status["PL501"] == ("failed", "RuntimeError: KeyError: 'no such column'")


TORCHRUN = "/opt/venv/bin/torchrun:8 <module>"
KILLED_LOCAL = "E0305 14:{}:37.280000 39213 torch/distributed/elastic/multiprocessing/api.py:702] failed (exitcode: -9) local_rank: 1 (pid: 9{}0) of binary: /opt/venv/bin/python"
AGAIN = [
    "I0305 14:10:37.290000 39213 torch/distributed/elastic/agent/server/api.py:881] [default] Worker group FAILED. 1/1 attempts left; will restart worker group",
]
TABLE = [
    "=" * 60,
    "train.py FAILED",
    "Root Cause (first observed failure):",
    "[0]:",
    "  time      : 2024-03-05_14:12:38",
    "  host      : {}",
    "  rank      : 1 (local_rank: 1)",
    "  exitcode  : -9 (pid: 920)",
    "  error_file: <N/A>",
    "  traceback : Signal 9 (SIGKILL) received by PID 920",
]


def elastic(*hosts: str) -> dict[str, object]:
    """Two starts of torchrun's workers, each ended by SIGKILL of local rank 1; the tables of hosts stand at the end."""
    mapping = "Using topology: {ProcessCoord(pipe=0, data=0): 0, ProcessCoord(pipe=0, data=1): 1, ProcessCoord(pipe=1, data=0): 2, ProcessCoord(pipe=1, data=1): 3}"
    steps = [f"[2024-03-05 14:1{{}}:{n},101] [INFO] [logging.py:107:log_dist] [Rank 0] step={n}, skipped=0, lr=[0.1], mom=[0.9]" for n in (10, 20)]
    tables_ = [
        line.format(host)
        for host in hosts
        for line in (*traceback("torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ", TORCHRUN), *TABLE)
    ]
    first = [mapping, *(line.format(0) for line in steps), KILLED_LOCAL.format(10, 0), *AGAIN]
    made = read({"run.log": [*first, mapping, *(line.format(2) for line in steps), KILLED_LOCAL.format(12, 2), *tables_]})
    before, _ = made["deaths"]
    return {"ranks": before.ranks, "hosts": before.hosts, "title": before.title}


def test_the_local_rank_of_an_earlier_start_of_the_same_agent() -> None:
    told = elastic("n1")
    assert (told["ranks"], told["hosts"]) == ((1,), ("n1",))
    assert str(told["title"]).startswith("Local rank 1 (n1) was killed")
    assert elastic("n1", "n2")["ranks"] == ()


STEP_LINE = "steps: 260 loss: 4.7709 iter time (s): 3.949 samples/sec: 8.103"
CLOSING = "W1010 19:01:34.784000 4390 torch/distributed/elastic/multiprocessing/api.py:897] Sending process {} closing signal SIGTERM"


@pytest.mark.parametrize(("closed", "ranks"), [((0, 1, 2, 4), (3,)), ((0, 1, 2, 3, 4), ()), ((0, 1, 4), ()), ((0, 1), ())])
def test_the_process_that_a_launcher_need_not_take_down(closed: tuple[int, ...], ranks: tuple[int, ...]) -> None:
    """A log that stops while an agent closes its processes: of all but one, that one had gone; of all, or all but two, nobody is named."""
    log = [*(f"[rank {r}] pid {900 + r} host gx ready" for r in range(5)), STEP_LINE, *(CLOSING.format(900 + r) for r in closed)]
    found = read({"console.log": log})["death"]
    assert (found.status, found.ranks) == ("failed" if ranks else "incomplete", ranks)
    assert (found.known, found.category) == (False, "unknown" if ranks else None)


def test_a_loader_s_worker_is_no_process_that_a_launcher_takes_down() -> None:
    """The worker of rank 1's loader is known by its number, too: the agent closes all but rank 3, and still rank 3 is the one that had gone."""
    worker = "[rank1]: RuntimeError: DataLoader worker (pid 7001) is killed by signal: Killed. "
    log = [*(f"[rank {r}] pid {900 + r} host gx ready" for r in range(5)), worker, STEP_LINE, STEP_LINE.replace("260", "270")]
    closed = [CLOSING.format(900 + r) for r in (0, 1, 2, 4)]
    assert read({"console.log": [*log, STEP_LINE.replace("260", "280"), *closed]})["death"].ranks == (3,)
