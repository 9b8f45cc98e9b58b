"""The host of a kernel's log, told by its name only where other lines know it."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipelog import diagnose, read
from pipelog.reading.node_logs import host_of_name

XID = "[Tue Mar  5 15:20:08 2024] NVRM: Xid (PCI:0000:3b:00): 79, pid=4312, name=python, GPU has fallen off the bus.\n"


@pytest.mark.parametrize(
    ("name", "host"),
    [
        ("dmesg-gpu17.txt", "gpu17"),
        ("gpu17.dmesg", "gpu17"),
        ("dmesg.gpu17.log.gz", "gpu17"),
        ("GPU17_kern.log", "gpu17"),
        ("gpu17-sol.txt", "gpu17"),
        ("bmc-console-gpu17.log", "gpu17"),
        ("console.log", None),
        ("logs/gpu17/dmesg.log", "gpu17"),
        ("dmesg-gpu20.txt", "gpu20"),
        ("dmesg/gpu17.txt", "gpu17"),
        ("nodes/journal/gpu20.log", "gpu20"),
        ("dmesg/rank3.txt", None),
        ("dmesg-gpu16.txt", "gpu16.cluster.local"),
        ("dmesg.txt", None),
        ("dmesg-T.txt", None),
        ("dmesg-2024-03-05.txt", None),
        ("dmesg_run2.txt", None),
        ("dmesg-rank3.txt", None),
        ("gpu17.log", None),
    ],
)
def test_name_of_a_kernel_log(name: str, host: str | None) -> None:
    """`gpu20` is none of the job's hosts, but built like them."""
    assert host_of_name(name, ["gpu16.cluster.local", "gpu17", "localhost"]) == host


def test_no_host_is_known() -> None:
    assert host_of_name("dmesg-gpu17.txt", []) is None


def test_rows_of_the_kernel_get_the_host_of_their_file(tmp_path: Path) -> None:
    (tmp_path / "dmesg-gpu17.txt").write_text(XID)
    (tmp_path / "dmesg.txt").write_text(XID)
    (tmp_path / "slurm-7.out").write_text("srun: error: gpu17: task 6: Aborted\nsrun: error: gpu16: task 2: Terminated\nKilled\n")
    rows = read(tmp_path, jobs=1).table.select(["file", "name", "host"]).to_pylist()
    assert [(r["file"], r["host"]) for r in rows if r["name"] == "kernel-xid"] == [("dmesg-gpu17.txt", "gpu17"), ("dmesg.txt", None)]
    assert [r["host"] for r in rows if r["name"] == "shell-signal"] == [None]


STARTED = "+ torchrun --nnodes 3 --node_rank {} --master_addr {}a --master_port 29400 train.py\n"
JOINED = "torch.distributed.DistStoreError: Timed out after 901 seconds waiting for clients. 2/3 clients joined.\n"
LOST = "[W210 09:15:22.000000001 TCPStore.cpp:125] [c10d] recvValue failed on SocketImpl(fd=3, addr=[{0}b]:41222, remote=[{0}a]:29400): Connection reset by peer\n"
NOT_FOUND = "/usr/bin/env: ‘torchrun’: No such file or directory\n"


def whose(folder: Path, names: tuple[str, str, str], host: str = "") -> list[str]:
    raised = f'Traceback (most recent call last):\n  File "/usr/local/bin/torchrun", line 8, in <module>\n    sys.exit(main())\n{JOINED}'
    for n, (name, text) in enumerate(zip(names, (raised, LOST.format(host), NOT_FOUND), strict=True)):
        (folder / name).write_text(STARTED.format(n, host) + text)
    failure = diagnose(read(folder)).failure
    assert failure is not None
    return list(failure["hosts"])


def test_the_node_that_could_not_start_anything(tmp_path: Path) -> None:
    assert whose(tmp_path, ("a.log", "b.log", "c.log")) == ["c"]


def test_a_log_that_is_not_named_after_its_node(tmp_path: Path) -> None:
    assert whose(tmp_path, ("a.log", "b.log", "launcher.log")) == []


def test_hosts_of_which_nobody_speaks(tmp_path: Path) -> None:
    assert whose(tmp_path, ("a.log", "b.log", "c.log"), host="gpu-") == []


def test_logs_that_have_the_numbers_of_their_hosts(tmp_path: Path) -> None:
    """`node-0.out` and `node-1.out` are those of q0 and q1, as their sockets say: `node-2.out` is that of q2, where the job knows a q2."""
    mapping = (
        "[2024-03-05 14:10:02,101] [INFO] [launch.py:163:main] global_rank_mapping=defaultdict(<class 'list'>, {'q0': [0], 'q1': [1], 'q2': [2]})\n"
    )
    assert numbered(tmp_path, mapping, "[q0]", "[q1]") == ["q2"]
    assert numbered(tmp_path, mapping, "[q1]", "[q2]") == []
    assert numbered(tmp_path, "", "[q0]", "[q1]") == []


def numbered(folder: Path, mapping: str, *addresses: str) -> list[str]:
    lost = "[W210 09:15:22.000000001 TCPStore.cpp:125] [c10d] recvValue failed on SocketImpl(fd=3, addr={}:41222, remote=[q0]:29400): Connection reset by peer\n"
    raised = f'Traceback (most recent call last):\n  File "/usr/local/bin/torchrun", line 8, in <module>\n    sys.exit(main())\n{JOINED}'
    (folder / "node-0.out").write_text(mapping + lost.format(addresses[0]) + raised)
    (folder / "node-1.out").write_text(lost.format(addresses[1]))
    (folder / "node-2.out").write_text(NOT_FOUND)
    failure = diagnose(read(folder)).failure
    assert failure is not None
    return list(failure["hosts"])


POD = "Name:             trainer-0\nNode:             {}\nStatus:           Failed\nContainers:\n  main:\n    State:          Terminated\n      Reason:       OOMKilled\n      Exit Code:    137\n"


def test_the_end_of_a_pod_is_on_its_node(tmp_path: Path) -> None:
    (tmp_path / "describe-trainer-0.txt").write_text(POD.format("node7/10.0.0.7"))
    failure = diagnose(read(tmp_path)).failure
    assert failure is not None
    assert failure["hosts"] == ["node7"]


def test_of_two_pods_in_one_description_each_is_on_its_node(tmp_path: Path) -> None:
    well = POD.format("node8/10.0.0.8").replace("OOMKilled", "Completed").replace("137", "0")
    (tmp_path / "describe.txt").write_text(POD.format("node7/10.0.0.7") + well)
    failure = diagnose(read(tmp_path)).failure
    assert failure is not None
    assert failure["hosts"] == ["node7"]
    (tmp_path / "describe.txt").write_text(
        POD.format("node7/10.0.0.7").removeprefix("Name:             trainer-0\n") + "Node:             node8/10.0.0.8\n"
    )
    failure = diagnose(read(tmp_path)).failure
    assert failure is not None
    assert failure["hosts"] == []  # without the pods' names nothing parts them
