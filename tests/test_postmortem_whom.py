"""Whom a verdict names where the kind of failure mostly concerns the whole job, and on which node it was."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pipelog
from tests.telling import traceback

TOPOLOGY = "Using topology: {ProcessCoord(pipe=0, data=0): 0, ProcessCoord(pipe=0, data=1): 1, ProcessCoord(pipe=1, data=0): 2, ProcessCoord(pipe=1, data=1): 3}"
STEP = "[2024-03-05 14:10:10,101] [INFO] [logging.py:107:log_dist] [Rank 0] step=10, skipped=0, lr=[0.1], mom=[0.9]"
PEER = "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:2251, remote process exited or there was a network error"
SHAPE = "megatron.core.dist_checkpointing.core.CheckpointingException: Global shape mismatch for loaded (50304, 4096) and expected ((50432, 4096))"


def failure(folder: Path, lines: Sequence[str]) -> dict[str, Any]:
    (folder / "run.log").write_text("".join(f"{line}\n" for line in lines))
    found = pipelog.diagnose(pipelog.read(folder)).failure
    assert found is not None
    return dict(found)


def test_a_checkpoint_that_one_stage_could_not_load(tmp_path: Path) -> None:
    raised = [line for rank in (0, 1) for line in traceback(SHAPE, rank=rank)]
    found = failure(tmp_path, [TOPOLOGY, *raised, *traceback(PEER, rank=2), *traceback(PEER, rank=3)])
    assert (found["ranks"], found["stages"]) == ([0, 1], [0])
    assert found["title"].startswith("Ranks 0 and 1 (stage 0)")


def test_a_checkpoint_of_which_only_some_had_time_to_complain(tmp_path: Path) -> None:
    found = failure(tmp_path, [TOPOLOGY, *traceback(SHAPE, rank=0)])
    assert (found["ranks"], found["stages"]) == ([], [])
    assert found["title"].startswith("The job")


def test_a_module_that_is_missing_late(tmp_path: Path) -> None:
    missing = traceback("ModuleNotFoundError: No module named 'einops'", rank=2)
    assert failure(tmp_path, [TOPOLOGY, STEP, *missing])["ranks"] == [2]
    assert failure(tmp_path, [TOPOLOGY, *missing])["ranks"] == []  # at the start, all ask for it


CONTAINER = [
    "slurmstepd: error: pyxis: container start failed with error code: 1",
    "slurmstepd: error: pyxis: couldn't start container",
    "srun: error: pod2-17: task 3: Exited with exit code 1",
]


def test_a_container_that_one_node_could_not_start(tmp_path: Path) -> None:
    ended = [f"srun: error: pod2-1{n}: task {n}: Terminated" for n in range(3)]
    found = failure(tmp_path, [*CONTAINER, *ended])
    assert (found["hosts"], found["category"]) == (["pod2-17"], "launch")
    assert "on pod2-17" in found["title"]
    both = failure(tmp_path, [*CONTAINER, "srun: error: pod2-16: task 2: Exited with exit code 1"])
    assert both["hosts"] == []
