"""Whose output it is, told by the variables of the process: files of one process, pods that are described, tasks that say hello."""

from __future__ import annotations

import pytest

from pipelog.postmortem.deaths import Death
from pipelog.tables.environment import places
from tests.telling import read, traceback

TOPOLOGY = "Using topology: {ProcessCoord(pipe=0, data=0): 0, ProcessCoord(pipe=0, data=1): 1, ProcessCoord(pipe=1, data=0): 2, ProcessCoord(pipe=1, data=1): 3}"
RAISED = traceback("KeyError: 4096")


def death(files: dict[str, list[str]]) -> Death:
    found: Death = read({"stdout.log": [TOPOLOGY], **files})["deaths"][-1]
    return found


@pytest.mark.parametrize(
    "shown",
    [
        ["RANK=2", "WORLD_SIZE=4", "HOSTNAME=gpu-07"],
        ['declare -x RANK="2"', 'declare -x WORLD_SIZE="4"', 'declare -x HOSTNAME="gpu-07"'],
        ["+ export RANK=2", "+ export WORLD_SIZE=4", "SLURMD_NODENAME=gpu-07"],
        ["SLURM_NTASKS=4", "SLURM_PROCID=2", "SLURMD_NODENAME=gpu-07", "HOSTNAME=login-1"],
    ],
)
def test_a_file_of_one_process_that_shows_its_variables(shown: list[str]) -> None:
    found = death({"c.log": [*shown, *RAISED]})
    assert (found.ranks, found.stages, found.hosts) == ((2,), (1,), ("gpu-07",))


@pytest.mark.parametrize(
    "shown",
    [
        ["RANK=1", "WORLD_SIZE=2"],  # the number of a node: two nodes of two ranks
        ["RANK=1"],
        ["RANK=2", "RANK=3", "WORLD_SIZE=4"],
        ["SLURM_PROCID=0", "SLURM_NTASKS=4"],  # a batch script
        ["NODE_RANK=2", "WORLD_SIZE=4"],
        ["RANK=2", "WORLD_SIZE=4", *traceback("ValueError: x", rank=3)],
    ],
)
def test_variables_that_name_no_single_rank(shown: list[str]) -> None:
    assert 2 not in death({"c.log": [*shown, *RAISED]}).ranks


def test_a_rank_that_two_files_claim_is_neither() -> None:
    shown = ["RANK=2", "WORLD_SIZE=4"]
    assert death({"c.log": [*shown, *RAISED], "d.log": shown}).ranks == ()


def pod(name: str, rank: int, *, size: int = 4, killed: bool = False) -> list[str]:
    """`kubectl describe pod`."""
    ended = (
        ["    State:          Terminated", "      Reason:       OOMKilled", "      Exit Code:    137"] if killed else ["    State:          Running"]
    )
    variables = ["    Environment:", f"      WORLD_SIZE:        {size}", f"      RANK:              {rank}"]
    return [f"Name:             {name}", "Namespace:        train", "Containers:", "  pytorch:", *ended, *variables, ""]


def test_the_rank_of_a_pod_is_that_of_its_variables_and_not_of_its_name() -> None:
    found = death({"pods.txt": [*pod("pp-worker-0", 1), *pod("pp-worker-1", 2, killed=True), *pod("pp-worker-2", 3)]})
    assert (found.ranks, found.stages, found.category) == ((2,), (1,), "host.oom")
    several = death({"pods.txt": [*pod("pp-worker-0", 0, size=2), *pod("pp-worker-1", 1, size=2, killed=True)]})
    assert several.ranks == ()  # two ranks a pod


def test_what_stands_behind_the_name_of_a_pod() -> None:
    behind = [f"[pod/pp-worker-1/pytorch] {line}" for line in RAISED]
    noise = [f"[pod/pp-worker-{n % 3}/pytorch] step made" for n in range(6)]
    assert death({"pods.txt": pod("pp-worker-1", 2), "logs.txt": [*noise, *behind]}).ranks == (2,)
    assert death({"pods.txt": pod("pp-worker-0", 1), "logs.txt": [*noise, *behind]}).ranks == ()


def test_tasks_that_say_where_they_are() -> None:
    hello = [f"{n}: gpu-{n // 2}: task {n} of 4, SLURM_LOCALID={n % 2}" for n in range(4)]
    more = [f"{n % 4}: copying the tokens" for n in range(8)]
    tables = read({"slurm.out": [f"0: {TOPOLOGY}", *hello, *more]})
    assert tables["topology"].ranks["host"].tolist() == ["gpu-0", "gpu-0", "gpu-1", "gpu-1"]
    launchers = [f"{n}: gpu-{n}: task {n} of 2, SLURM_LOCALID=0" for n in range(2)]
    assert read({"slurm.out": [f"0: {TOPOLOGY}", *launchers, *more]})["topology"].ranks["host"].isna().all()


def test_nothing_is_told_without_the_number_of_ranks() -> None:
    assert places(read({"c.log": ["RANK=2", "WORLD_SIZE=4"]})["here"], None) == []
