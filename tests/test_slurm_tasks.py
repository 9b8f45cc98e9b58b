"""srun's tasks are ranks where they are as many as the ranks; where a task is a node's launcher they are not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pipelog import diagnose, read

STEPS = "".join(f"0: steps: {n} loss: 2.5 iter time (s): 1.0 samples/sec: 8.0\n" for n in (10, 20))
MAP = "0: Using topology: {ProcessCoord(pipe=0, data=0): 0, ProcessCoord(pipe=0, data=1): 1, ProcessCoord(pipe=1, data=0): 2, ProcessCoord(pipe=1, data=1): 3}\n"
KILL = "slurmstepd-nx20-15: error: Detected 1 oom-kill event(s) in StepId=7730416.0. Some of your processes may have been killed by the cgroup out-of-memory handler.\n"


def failure(tmp_path: Path, *end: str) -> dict[str, Any]:
    (tmp_path / "slurm-7730416.out").write_text(MAP + STEPS + KILL + "".join(f"{line}\n" for line in end))
    found = diagnose(read(tmp_path)).failure
    assert found is not None
    assert found["category"] == "host.oom"
    return found


def test_a_task_that_ran_out_of_memory_is_a_rank_where_each_rank_is_a_task(tmp_path: Path) -> None:
    found = failure(tmp_path, "srun: error: nx20-15: task 2: Out Of Memory", "srun: error: nx20-15: tasks 0-1,3: Terminated")
    assert (found["ranks"], found["stages"], found["hosts"]) == ([2], [1], ["nx20-15"])
    assert [e["line"] for e in found["evidence"]][:2] == [4, 5]


def test_a_task_is_no_rank_where_two_tasks_launch_four_ranks(tmp_path: Path) -> None:
    found = failure(tmp_path, "srun: error: nx20-15: task 1: Out Of Memory", "srun: error: nx20-16: task 0: Terminated")
    assert (found["ranks"], found["stages"], found["hosts"]) == ([], [], ["nx20-15"])


def test_tasks_that_do_not_make_up_the_world_are_no_ranks(tmp_path: Path) -> None:
    """Of tasks 4-7 there are no ranks: the step has more tasks than the job."""
    found = failure(tmp_path, "srun: error: nx20-15: task 2: Out Of Memory", "srun: error: nx20-16: tasks 0-1,3-7: Terminated")
    assert found["ranks"] == []
