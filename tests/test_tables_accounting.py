"""What accountings, controllers and services say of a job counts where it is the job of the files, and where the files do not say otherwise."""

from __future__ import annotations

import pytest

from pipelog.postmortem.deaths import Death
from tests.telling import read, traceback

STEPS = [f"[2025-02-10 09:0{n}:00,100] [INFO] [logging.py:128:log_dist] [Rank 0] step={n}, skipped=0, lr=[0.1], mom=[(0.9, 0.95)]" for n in (1, 2, 3)]
DONE = "[2025-02-10 09:04:00,100] [INFO] [launch.py:347:main] Process 21000 exits successfully."
SPAWNED = "[2025-02-10 09:00:00,259] [INFO] [launch.py:256:main] process 21000 spawned with command: ['python', '-u', 'train.py', '--local_rank=0']"
SIGTERM = "[2025-02-10 09:03:10,122] [INFO] [launch.py:328:sigkill_handler] Main process received SIGTERM, exiting"
KILLED = "[2025-02-10 09:03:32,111] [ERROR] [launch.py:325:sigkill_handler] ['python', 'train.py', '--local_rank=3'] exits with return code = -9"
SCANCEL = "slurmstepd: error: *** JOB 4400 ON tg01 CANCELLED AT 2025-02-10T09:03:30 ***"


def sacct(*rows: str) -> list[str]:
    """Rows `id state`."""
    head = ["JobID           JobName      State ExitCode", "------------ ---------- ---------- --------"]
    return head + [f"{row.split(' ', 1)[0]:12} {'pp-train':>10} {row.split(' ', 1)[1]:>10}      0:0" for row in rows]


def told(log: list[str], beside: list[str], name: str = "slurm-4400.out", other: str = "sacct.txt") -> tuple[str, str | None]:
    death: Death = read({name: log, other: beside})["death"]
    return death.status, death.category


CANCELLED, PREEMPTED = ("cancelled", "scheduler.cancelled"), ("preempted", "scheduler.preempted")
LIMIT, NOTHING = ("time-limit", "scheduler.time-limit"), ("incomplete", None)


@pytest.mark.parametrize(
    ("state", "want"),
    [
        ("TIMEOUT", LIMIT),
        ("CANCELLED by 1034", CANCELLED),
        ("PREEMPTED", PREEMPTED),
        ("NODE_FAIL", ("failed", "hardware.node")),
        ("OUT_OF_ME+", ("failed", "host.oom")),
        ("COMPLETED", NOTHING),
        ("RUNNING", NOTHING),
    ],
)
def test_the_state_in_the_accounting_explains_a_log_that_stops(state: str, want: tuple[str, str | None]) -> None:
    assert told(STEPS, sacct(f"4400 {state}")) == want


@pytest.mark.parametrize(
    ("name", "log", "rows", "want"),
    [
        ("slurm-4400.out", STEPS, ["4399 NODE_FAIL", "4400 TIMEOUT", "4401 CANCELLED"], LIMIT),
        ("pp_4400.log", STEPS, ["4399 NODE_FAIL", "4400 TIMEOUT"], LIMIT),
        ("4400/train.log", STEPS, ["4399 NODE_FAIL", "4400 TIMEOUT"], LIMIT),
        ("train.log", ["SLURM_JOB_ID=4400", *STEPS], ["4399 NODE_FAIL", "4400 TIMEOUT"], LIMIT),
        ("train.log", [*STEPS, SCANCEL], ["4399 TIMEOUT", "4400 PREEMPTED"], PREEMPTED),
        ("train.log", STEPS, ["4400 TIMEOUT"], LIMIT),  # the only one
        ("slurm-4400_7.out", STEPS, ["4400_6 TIMEOUT", "4400_7 PREEMPTED"], PREEMPTED),
        ("train.log", STEPS, ["4399 NODE_FAIL", "4400 TIMEOUT"], NOTHING),  # whose is whose?
        ("train.log", STEPS, ["4399 COMPLETED", "4400 TIMEOUT"], NOTHING),
        ("slurm-4401.out", STEPS, ["4400 TIMEOUT"], NOTHING),
        ("train.log", ["SLURM_JOB_ID=4401", *STEPS], ["4400 TIMEOUT"], NOTHING),
        ("slurm-4400.out", STEPS, ["4399 OUT_OF_ME+", "4400 COMPLETED"], NOTHING),
    ],
)
def test_only_the_row_of_the_job_counts(name: str, log: list[str], rows: list[str], want: tuple[str, str | None]) -> None:
    assert told(log, sacct(*rows), name) == want


def test_each_start_that_is_a_job_of_its_own_has_its_own_row() -> None:
    """Two jobs one after the other: only the second is that of the last start."""
    later = [line.replace("2025-02-10", "2025-02-11") for line in STEPS]
    for rows, want in ((["4400 NODE_FAIL", "4410 TIMEOUT"], LIMIT), (["4400 NODE_FAIL", "4410 RUNNING"], NOTHING)):
        death: Death = read(
            {"slurm-4400.out": [SPAWNED, *STEPS], "slurm-4410.out": [SPAWNED.replace("10 09", "11 09"), *later], "sacct.txt": sacct(*rows)}
        )["deaths"][-1]
        assert (death.status, death.category) == want


def test_a_run_that_came_to_its_end_did_so_whatever_became_of_the_job() -> None:
    assert told([SPAWNED, *STEPS, DONE], sacct("4400 CANCELLED by 0"))[0] == "completed"
    assert told([SPAWNED, *STEPS, DONE], sacct("4400 TIMEOUT"))[0] == "completed"


@pytest.mark.parametrize("state", ["CANCELLED by 1034", "PREEMPTED", "NODE_FAIL"])
def test_a_run_that_failed_by_itself_failed_before_it_was_ended(state: str) -> None:
    assert told([*STEPS, *traceback("AttributeError: no mean", rank=1)], sacct(f"4400 {state}")) == ("failed", "code")


def test_a_step_that_ran_out_of_memory_explains_a_job_that_only_failed() -> None:
    assert told(STEPS, sacct("4400 FAILED", "4400.batch FAILED", "4400.0 OUT_OF_ME+")) == ("failed", "host.oom")
    assert told(STEPS, sacct("4400 TIMEOUT", "4400.batch CANCELLED", "4400.0 OUT_OF_ME+")) == LIMIT
    assert told(STEPS, sacct("4400 COMPLETED", "4400.batch COMPLETED", "4401 OUT_OF_ME+", "4401.0 OUT_OF_ME+")) == NOTHING


def test_what_is_said_before_the_steps_is_of_the_job_before() -> None:
    death: Death = read({"train.log": [*sacct("4399 TIMEOUT"), *STEPS]})["death"]
    assert (death.status, death.category) == NOTHING
    death = read({"train.log": [*STEPS, *sacct("4399 TIMEOUT")]})["death"]
    assert (death.status, death.category) == LIMIT


def test_a_loader_that_the_kernel_killed_is_no_consequence_of_a_cancellation() -> None:
    killed, ended = (traceback(f"RuntimeError: DataLoader worker (pid 7) is killed by signal: {how}. ", rank=1) for how in ("Killed", "Terminated"))
    assert told([*STEPS, *killed], sacct("4400 CANCELLED by 1034"))[0] == "failed"
    assert told([*STEPS, *ended], sacct("4400 CANCELLED by 1034")) == CANCELLED


def test_a_cancellation_that_the_accounting_explains() -> None:
    assert told([*STEPS, SCANCEL], sacct("4400 TIMEOUT")) == LIMIT
    assert told([*STEPS, SCANCEL], sacct("4400 CANCELLED by 1034")) == CANCELLED


def test_memory_that_the_accounting_names_explains_a_kill() -> None:
    assert told([*STEPS, KILLED], sacct("4400 OUT_OF_ME+")) == ("failed", "host.oom")
    assert told([*STEPS, KILLED], sacct("4399 OUT_OF_ME+", "4400 FAILED")) == ("failed", "killed")


CONTROL = ["JobId=4400 JobName=pp", "   JobState=TIMEOUT Reason=TimeLimit Dependency=(null)", "   Requeue=1 Restarts=0 ExitCode=0:15"]
SEFF = ["Job ID: 4400", "Cluster: tg", "State: TIMEOUT (exit code 0)"]


@pytest.mark.parametrize("lines", [CONTROL, SEFF])
def test_the_controller_and_seff_say_the_same(lines: list[str]) -> None:
    assert told(STEPS, lines) == LIMIT
    assert told(STEPS, lines, "slurm-4401.out") == NOTHING


LSF = ["Job <4400>, User <u>, Project <d>, Status <EXIT>, Queue <gpu>", "Tue Feb 11 09:03:30: Completed <exit>; TERM_{}."]
PBS = ["Job Id: 4400.pbs01", "    resources_used.walltime = {}", "    Exit_status = {}", "    Resource_List.walltime = 24:00:00"]
SGE = ["jobnumber    4400", "failed       100 : assumedly after job", "exit_status  137   (Killed)", "ru_wallclock {}s", "category     -l h_rt=86400"]


@pytest.mark.parametrize(
    ("lines", "want"),
    [
        ([LSF[0], LSF[1].format("RUNLIMIT: job killed after reaching LSF run time limit")], LIMIT),
        ([LSF[0], LSF[1].format("MEMLIMIT: job killed after reaching LSF memory usage limit")], ("failed", "host.oom")),
        ([LSF[0], LSF[1].format("OWNER: job killed by owner")], CANCELLED),
        ([LSF[0], LSF[1].format("RC: job killed by LSF when an LSF resource connector execution host is reclaimed by cloud")], PREEMPTED),
        ([PBS[0], PBS[1].format("24:00:31"), PBS[2].format(271), PBS[3]], LIMIT),
        ([PBS[0], PBS[1].format("02:00:31"), PBS[2].format(271), PBS[3]], CANCELLED),  # a signal, long before the limit
        ([PBS[0], PBS[1].format("24:00:31"), PBS[2].format(1), PBS[3]], ("failed", "unknown")),
        ([PBS[0], PBS[2].format(-29)], LIMIT),
        ([PBS[0], PBS[2].format(-27)], ("failed", "host.oom")),
        ([PBS[0], PBS[2].format(0)], NOTHING),
        ([*SGE[:3], SGE[3].format(86402), SGE[4]], LIMIT),
        ([*SGE[:3], SGE[3].format(402), SGE[4]], ("failed", "killed")),
        ([*SGE[:3], SGE[3].format(402), SGE[4], "deleted_by   user@login1"], CANCELLED),
    ],
)
def test_other_batch_systems_say_it_in_their_words(lines: list[str], want: tuple[str, str | None]) -> None:
    assert told(STEPS, lines, "pp.o4400", "acct.txt") == want
    assert told(STEPS, lines, "slurm-4401.out", "acct.txt") == NOTHING  # that of another job


def condor(*events: str) -> list[str]:
    begun = ["000 (4711.000.000) 2025-02-10 08:59:01 Job submitted from host: <10.1.0.5:9618>", "..."]
    return [*begun, *(line for event in events for line in (*event.split("\n"), "..."))]


RUNS = "001 (4711.000.000) 2025-02-10 08:59:31 Job executing on host: <10.1.7.22:9618>"
EVICTED = "004 (4711.000.000) 2025-02-10 09:03:10 Job was evicted.\n\t(0) CPU times"
HELD = "012 (4711.000.000) 2025-02-10 09:03:10 Job was held.\n\tJob has gone over cgroup memory limit of 65536 megabytes.\n\tCode 34 Subcode 102"
ABORTED = "009 (4711.000.000) 2025-02-10 09:03:10 Job was aborted.\n\tvia condor_rm (by user mkoch)"
OTHER = "009 (4800.000.000) 2025-02-10 09:03:10 Job was aborted.\n\tvia condor_rm (by user mkoch)"


@pytest.mark.parametrize(
    ("log", "events", "want"),
    [
        (STEPS, [RUNS, EVICTED], PREEMPTED),
        ([*STEPS, SIGTERM], [RUNS, EVICTED], PREEMPTED),
        (STEPS, [RUNS, HELD], ("failed", "host.oom")),
        (STEPS, [RUNS, ABORTED], CANCELLED),
        (STEPS, [RUNS, EVICTED, ABORTED], CANCELLED),
        (STEPS, [RUNS, EVICTED, RUNS], NOTHING),  # it runs again
        (STEPS, [RUNS, OTHER], NOTHING),
        ([*STEPS, *traceback("AttributeError: no mean", rank=1)], [RUNS, ABORTED], ("failed", "code")),
        ([*STEPS, *traceback("torch.distributed.DistBackendError: NCCL error, Connection closed", rank=1)], [RUNS, EVICTED], PREEMPTED),
    ],
)
def test_the_last_event_of_the_job_says_how_it_ended(log: list[str], events: list[str], want: tuple[str, str | None]) -> None:
    assert told(log, condor(*events), "job.4711.out", "job.4711.log") == want


@pytest.mark.parametrize(
    ("lines", "want"),
    [
        (["Stopping - Stopping the training job", "Stopped - Training job stopped"], CANCELLED),
        (["Stopping - Stopping the training job", "MaxRuntimeExceeded - Training job runtime exceeded MaxRuntimeInSeconds provided"], LIMIT),
        (["Interrupted - Training job interrupted"], PREEMPTED),
        (["Failed - Training job failed"], ("failed", "unknown")),
        (["Uploading - Uploading generated training model", "Completed - Training job completed"], NOTHING),
    ],
)
def test_sagemaker_says_why_it_stopped(lines: list[str], want: tuple[str, str | None]) -> None:
    death: Death = read({"cloudwatch.log": [*STEPS, *(f"2025-02-10 09:07:00 {line}" for line in lines)]})["death"]
    assert (death.status, death.category if want[1] != "unknown" else want[1]) == want


def test_a_job_that_is_stopped_after_it_failed_has_failed() -> None:
    lines = [*STEPS, *traceback("AttributeError: no mean", rank=1), "2025-02-10 09:07:00 Stopping - Stopping the training job"]
    death: Death = read({"cloudwatch.log": lines})["death"]
    assert (death.status, death.category, death.ranks) == ("failed", "code", (1,))
