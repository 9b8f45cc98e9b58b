"""Runs of frameworks around a pipeline, from their lines to the report: how they ended, and what their figures say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import pipelog


def report(folder: Path, *lines: str) -> dict[str, Any]:
    (folder / "run.log").write_text("".join(f"{line}\n" for line in lines))
    made: dict[str, Any] = pipelog.diagnose(pipelog.read(folder, jobs=1)).to_dict()
    return made


def batches(last: int) -> list[str]:
    return [
        line for n in range(20, last + 1, 20) for line in (f"[batch={n}/120]:", f"\t Train time/batch: {n - 1}", "\t Train loss/train/total: 6.9000")
    ]


def swift(last: int) -> list[str]:
    return [f"{{'loss': 1.4{n % 7}, 'grad_norm': 0.4, 'learning_rate': 1e-05, 'global_step/max_steps': '{n}/100'}}" for n in range(5, last + 1, 5)]


def verl(last: int) -> list[str]:
    return [f"(TaskRunner pid=7) step:{n} - actor/pg_loss:-0.01 - actor/grad_norm:0.2{n % 7} - timing_s/step:21.{n % 5}" for n in range(1, last + 1)]


CLOSED = "2024-08-30 11:12:33,715: rank0[208865][MainThread]: DEBUG: composer.core.engine: Engine closed."


@pytest.mark.parametrize(
    ("lines", "status", "last"),
    [
        ([*batches(120), CLOSED, "Done."], "completed", 120),
        ([*batches(60), CLOSED], "incomplete", 60),  # it is closed after an exception as well
        ([*swift(100), "[INFO:swift] last_model_checkpoint: out/checkpoint-100"], "completed", 100),
        ([*swift(60), "[INFO:swift] End time of running main: 2026-03-25 01:45:12.100231"], "completed", 60),  # stopped early, as it was told
        ([*swift(60), "[INFO:swift] last_model_checkpoint: out/checkpoint-60"], "incomplete", 60),
        ([*verl(40), "Job 'raysubmit_1' succeeded"], "completed", 40),
        ([*verl(40), "Job 'raysubmit_1' failed"], "failed", 40),
        ([*verl(40), "Job 'raysubmit_1' was stopped"], "cancelled", 40),
        (verl(40), "incomplete", 40),
        ([*verl(40), "====== Training on All Nodes =====", "a: success", "b: success"], "completed", 40),
        ([*verl(40), "====== Training on All Nodes =====", "a: success", "b: failure"], "failed", 40),
    ],
)
def test_how_a_run_ended(tmp_path: Path, lines: list[str], status: str, last: int) -> None:
    run = report(tmp_path, *lines)["run"]
    assert (run["status"], run["last_step"]) == (status, last)


def titan(rank: int, step: int, loss: float, gib: float) -> str:
    minute, second = divmod(step * 3, 60)
    return (
        f"[rank{rank}]:[titan] 2025-06-01 00:{minute:02}:{second:02},{rank:03} - root - INFO - step: {step:2}  loss: {loss:7.4f}  "
        f"memory: {gib:5.2f}GiB({gib / 0.8:.2f}%)  tps: 5,188  tflops: 281.11  mfu: 28.42%"
    )


def test_torchtitan_s_figures(tmp_path: Path) -> None:
    """2 x 2 ranks, 4 micro-batches: bubble 1/5. Rank 1 grows by 0.2 GiB a step; rank 2 is at 95 % of 80 GiB; only ranks 2 and 3 know the loss."""
    start = [
        "[rank0]:[titan] 2025-06-01 00:00:00,000 - root - INFO - Building 2-D device mesh with ['pp', 'dp_shard'], [2, 2]",
        "[rank0]:[titan] 2025-06-01 00:00:00,000 - root - INFO - Using pipeline schedule 1F1B with 4 microbatches and 2 stages.",
        "[rank0]:[titan] 2025-06-01 00:00:00,000 - root - INFO - CUDA capacity: NVIDIA H100 with 80.00GiB memory",
    ]
    memory = {0: lambda _: 40.0, 1: lambda n: 40.0 + 0.2 * n, 2: lambda _: 76.0, 3: lambda _: 40.0}
    lines = [titan(rank, n, -1.0 if rank < 2 else 8 - 0.01 * n, size(n)) for n in range(1, 101) for rank, size in memory.items()]
    made = report(tmp_path, *start, *lines, "[rank0]:[titan] 2025-06-01 00:05:01,000 - root - INFO - Training completed")
    assert made["run"]["status"] == "completed"
    assert (made["topology"]["pp"], made["topology"]["dp"], made["topology"]["world_size"]) == (2, 2, 4)
    assert (made["config"]["micro_batches"], made["config"]["schedule"]) == (4, "1f1b")
    assert made["metrics"]["bubble"]["ideal"] == pytest.approx(1 / 5)
    assert made["metrics"]["step_time_s"]["median"] == pytest.approx(3.0)
    found = {f["name"]: f["where"]["ranks"] for f in made["findings"] if f["severity"] != "info"}
    assert found == {"memory-growth": [1], "memory-headroom": [2]}
