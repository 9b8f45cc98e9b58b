"""A network port that was lost: what the kernel says around it, and where the picture of the end puts it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pipelog
from pipelog.report import Report
from tests.telling import traceback

LAUNCHED = (
    "[2024-08-30 11:55:00,000] [INFO] [launch.py:256:main] process 3302 spawned with command: ['/opt/python', '-u', 'train.py', '--local_rank=0']"
)
TOPOLOGY = "Using topology: {ProcessCoord(pipe=0, data=0): 0, ProcessCoord(pipe=1, data=0): 1}"
STEPS = [
    f"[2024-08-30 12:08:{10 + n},000] [INFO] [logging.py:96:log_dist] [Rank 0] step={n}, skipped=0, lr=[0.001], mom=[(0.9, 0.95)]"
    for n in range(10, 50, 10)
]
PORT = "hgx-b:3302:3811 [1] transport/net_ib.cc:100 NCCL WARN NET/IB : mlx5_2:1 Got async event : port error"
LOST = "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:1691, remote process exited or there was a network error"
DOWN = "Aug 30 12:09:01 hgx-b kernel: [712200.012] mlx5_core 0000:4c:00.0 mlx5_2: Port: 1 Link DOWN"
PULLED = "Aug 30 12:09:01 hgx-b kernel: [712200.011] mlx5_core 0000:4c:00.0: Port module event: module 0, Cable unplugged"
BACK = "Aug 30 12:09:24 hgx-b kernel: [712222.410] mlx5_core 0000:4c:00.0 mlx5_2: Port: 1 Link ACTIVE"
OTHER = "0000:5d:00.0"


def report(folder: Path, kernel: list[str]) -> Report:
    end = "[2024-08-30 12:09:20,000] [ERROR] [launch.py:325:sigkill_handler] ['/opt/python', '--local_rank=1'] exits with return code = 1"
    lines = [LAUNCHED, TOPOLOGY, *STEPS, PORT, *traceback(LOST, rank=1), end]
    (folder / "train.log").write_text("".join(f"{line}\n" for line in lines))
    (folder / "hgx-b.kern").write_text("".join(f"{line}\n" for line in kernel))
    return pipelog.diagnose(pipelog.read(folder))


def failure(folder: Path, kernel: list[str]) -> dict[str, Any]:
    found = report(folder, kernel).failure
    assert found is not None
    return dict(found)


def test_a_cable_that_was_pulled_and_a_link_that_came_back(tmp_path: Path) -> None:
    found = failure(tmp_path, [PULLED, DOWN, BACK])
    assert found["category"] == "network"
    assert found["title"].endswith("lost an InfiniBand port; its cable was unplugged; the link was up again 23.0 s later")
    kernel = [e["line"] for e in found["evidence"] if e["file"] == "hgx-b.kern"]
    assert kernel == [2, 1, 3]


def test_of_another_port_or_another_time_nothing_is_said(tmp_path: Path) -> None:
    """Each port without a cable, and each link that comes up, is told when a machine starts."""
    at_start = PULLED.replace("12:09:01", "11:40:00")
    up_before = BACK.replace("12:09:24", "11:40:02")
    elsewhere = [line.replace("0000:4c:00.0", OTHER) for line in (PULLED, BACK)]
    found = failure(tmp_path, [at_start, up_before, *elsewhere, DOWN])
    assert found["title"].endswith("lost an InfiniBand port")


def test_a_port_without_a_cable_alone_is_no_cause(tmp_path: Path) -> None:
    found = failure(tmp_path, [PULLED.replace("0000:4c:00.0", OTHER)])
    assert not [e for e in found["evidence"] if e["file"] == "hgx-b.kern"]


def test_a_line_of_the_kernel_stands_in_the_lane_of_the_rank_that_it_began_with(tmp_path: Path) -> None:
    """Within the time of the ranks' lines: the clock of another machine may be in another zone."""
    found = report(tmp_path, [DOWN])
    assert found.failure is not None
    assert found.failure["ranks"] == [1]
    lane = next(r for r in found.charts["lanes"]["rows"] if r["rank"] == 1)
    assert (lane["error_file"], lane["error_line"], lane["error_role"]) == ("hgx-b.kern", 1, "initiating")
    assert lane["error_s"] == 11.0  # the first of the last steps is that of 12:08:50
