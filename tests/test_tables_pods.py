"""Events of other pods, and systemd's words on other units, are nothing of the job's."""

from __future__ import annotations

import pytest

from pipelog.postmortem.deaths import Death
from tests.telling import read, traceback

STEPS = [f"[2025-02-10 09:0{n}:00,100] [INFO] [logging.py:128:log_dist] [Rank 0] step={n}, skipped=0, lr=[0.1], mom=[(0.9, 0.95)]" for n in (1, 2, 3)]
KILLED = "[2025-02-10 09:03:32,111] [ERROR] [launch.py:325:sigkill_handler] ['python', 'train.py', '--local_rank=3'] exits with return code = -9"


def death_of(files: dict[str, list[str]]) -> Death:
    found: Death = read(files)["death"]
    return found


def event(pod: str) -> list[str]:
    return [
        "LAST SEEN   TYPE      REASON      OBJECT       MESSAGE",
        f"39m         Normal    Preempted   pod/{pod}   Preempted by pod 1c1b on node a-2",
    ]


@pytest.mark.parametrize(
    ("log", "pod", "ours"),
    [
        ("pp-worker-0.log", "eval-7", False),
        ("pp-worker-0.log", "ppx-worker-0", False),
        ("pp-worker-0.log", "pp-worker-0", True),
        ("pp-worker-0.log", "pp-worker-3", True),  # its log is not among the files
        ("pp-worker-0.log", "pp-master-0", True),
        ("describe-pp-worker-0.txt", "eval-7", False),
        ("train.log", "eval-7", True),  # no name tells what the job's pods are called
        ("rank-0.log", "eval-7", True),
    ],
)
def test_only_events_of_the_job_s_pods_end_it(log: str, pod: str, ours: bool) -> None:
    death = death_of({log: [*STEPS, *traceback("AttributeError: no mean", rank=1)], "events.txt": event(pod)})
    assert (death.status, death.category, death.ranks) == (("preempted", "scheduler.preempted", ()) if ours else ("failed", "code", (1,)))


KEY_ERROR = traceback("KeyError: 'wiki'", rank=1)
ECHO = traceback("torch.distributed.DistBackendError: NCCL error, Connection closed by remote peer", rank=1)
SCALED = "2m    Normal   ScaleDown   pod/{}   deleting pod for node scale down"
KUEUE = (
    "3m    Normal   Preempted   workload/pytorchjob-{}-7c1a1   Preempted to accommodate a workload (UID: 5515) due to reclamation within the cohort"
)
VOLCANO = "3m    Warning   Evict   pod/{}   Pod is evicted, because of preempt"
SHUTDOWN = [
    "Name:     pp-worker-3",
    "Status:   Failed",
    "Reason:   Terminated",
    "Message:  Pod was terminated in response to imminent node shutdown.",
]


@pytest.mark.parametrize(
    ("log", "beside", "want"),
    [
        ([], [SCALED.format("pp-worker-1")], "preempted"),
        (ECHO, [SCALED.format("pp-worker-1")], "preempted"),
        (KEY_ERROR, [SCALED.format("pp-worker-1")], "failed"),  # a node whose job has failed is no longer needed
        (ECHO, [SCALED.format("eval-7")], "failed"),
        ([], [SCALED.format("eval-7")], "incomplete"),
        ([], [KUEUE.format("pp")], "preempted"),
        ([], [KUEUE.format("eval")], "incomplete"),
        ([], [VOLCANO.format("pp-worker-0")], "preempted"),
        ([], [VOLCANO.format("eval-7")], "incomplete"),
        ([], SHUTDOWN, "preempted"),
        (KEY_ERROR, SHUTDOWN, "failed"),
        ([], ["55m   Normal   ScaleDown   node/pool-7c2f   marked the node as toBeDeleted/unschedulable"], "incomplete"),
    ],
)
def test_a_cluster_that_takes_pods_away(log: list[str], beside: list[str], want: str) -> None:
    death = death_of({"pp-worker-0.log": [*STEPS, *log], "events.txt": beside})
    assert death.status == want
    assert want != "preempted" or death.category == "scheduler.preempted"


def oomd(unit: str, minute: int = 3) -> list[str]:
    words = f"Killed /user.slice/user-7.slice/{unit} due to memory pressure for /user.slice being 71.20% > 50.00% for > 20s with reclaim activity"
    return [f"Feb 10 09:0{minute}:20 gx10 systemd-oomd[912]: {words}"]


@pytest.mark.parametrize(("unit", "category"), [("pp-train.scope", "host.oom"), ("app.slice/vscode-server.scope", "killed")])
def test_only_the_job_s_own_unit_is_killed_for_it(unit: str, category: str) -> None:
    death = death_of({"train.log": ["Running scope as unit: pp-train.scope", *STEPS, KILLED], "journal.txt": oomd(unit)})
    assert (death.category, death.known) == (category, category == "host.oom")


@pytest.mark.parametrize(("minute", "category"), [(3, "host.oom"), (4, "host.oom"), (7, None)])
def test_a_kill_within_the_step_under_way_explains_a_log_that_stops(minute: int, category: str | None) -> None:
    """Steps are printed every minute: at 09:04 the next was due, and 90 seconds later at the latest all is over."""
    death = death_of({"train.log": STEPS, "journal.txt": oomd("session-3.scope", minute)})
    assert death.category == category
