"""Who is who: ranks of processes, of devices by their bus address, of local ranks; and what an error then says of a rank."""

from __future__ import annotations

from typing import Any

import pytest

from pipelog.parsers.nccl import bus_address
from pipelog.postmortem.identities import Identities
from pipelog.tables import Tables
from tests.telling import read, traceback

LAUNCH = "[2024-10-08 10:11:00,861] [INFO] [launch.py:145:main] "
WORLD = [
    "ga: " + LAUNCH + "WORLD INFO DICT: {{'ga': [4, 5, 6, 7], 'gb': [0, 1, 2, 3]}}".replace("{{", "{").replace("}}", "}"),
    "ga: " + LAUNCH.replace("145", "162") + "global_rank_mapping=defaultdict(<class 'list'>, {'ga': [0, 1, 2, 3], 'gb': [4, 5, 6, 7]})",
]
SPAWNED = "{}: [2024-10-08 10:11:01,000] [INFO] [launch.py:256:main] process {} spawned with command: ['python', '-u', 't.py', '--local_rank={}']"
XID = "[Tue Oct  8 10:32:01 2024] NVRM: Xid (PCI:0000:{}:00): {}, {}"
INIT = "{}:{}:{} [{}] NCCL INFO comm 0x55b0 rank {} nranks 8 cudaDev {} nvmlDev {} busId {} commId 0x2114bc51af4fb978 - Init COMPLETE"


def whom(files: dict[str, list[str]]) -> Any:
    return read(files)["death"]


def who(tables: Tables) -> Identities:
    found: Identities = tables["identities"]
    return found


@pytest.mark.parametrize(("word", "address"), [("c3000", "0000:c3:00"), ("07000", "0000:07:00"), ("100018000", "1000:18:00"), ("", None)])
def test_the_bus_of_nccl(word: str, address: str | None) -> None:
    """domain << 20 | bus << 12 | device << 4 | function."""
    assert bus_address(word) == address


def test_processes_of_two_hosts() -> None:
    """Process 501 is on both hosts and is only told with one; 502 is on one, and told also where the host has another name."""
    found = who(read({"a.log": [*WORLD, SPAWNED.format("ga", 501, 0), SPAWNED.format("gb", 501, 0), SPAWNED.format("gb", 502, 1)]}))
    assert [found.of_process(h, 501) for h in ("ga", "gb", None, "gc")] == [0, 4, None, None]
    assert [found.of_process(h, 502) for h in ("gb", None, "ga")] == [5, 5, None]


def test_a_device_is_known_by_nccl_s_bus() -> None:
    """Of the communicator that has all ranks; hosts of one make have their devices at the same addresses."""
    lines = [INIT.format(h, 900 + r, 990 + r, r % 4, r, r % 4, r % 4, f"{0xA0 + r % 4:x}000") for r in range(8) for h in ("ga" if r < 4 else "gb",)]
    lines.append(INIT.format("ga", 903, 999, 3, 0, 3, 3, "a3000").replace("nranks 8", "nranks 2"))
    found = who(read({"a.log": [*WORLD, *lines]}))
    assert [found.of_bus(h, "PCI:0000:a3:00") for h in ("ga", "gb", None)] == [3, 7, None]
    assert found.of_bus("gb", "00000000:A1:00.0") == 5


FELL = XID.format("c3", 79, "pid='<unknown>', name=<unknown>, GPU has fallen off the bus.")
CHANNEL = XID.format("c3", 45, "pid=502, name=python3, Ch 00000002")


def test_an_xid_of_a_process_ties_the_bus_to_a_rank() -> None:
    """The line that begins it names no process; another of the same device does. One of another device says nothing."""
    log = [*WORLD, SPAWNED.format("gb", 502, 1), *(f"gb: {line}" for line in traceback("RuntimeError: CUDA error: unspecified launch failure"))]
    assert whom({"train.log": log, "dmesg-gb.txt": [FELL, CHANNEL]}).ranks == (5,)
    assert whom({"train.log": log, "dmesg-gb.txt": [FELL, CHANNEL.replace("c3", "d1")]}).ranks == ()


SMI = ["index, pci.bus_id, name", "6, 00000000:C3:00.0, NVIDIA A100-SXM4-40GB", "7, 00000000:C4:00.0, NVIDIA A100-SXM4-40GB"]


def test_a_table_of_devices_and_the_launcher_s_list() -> None:
    """Device 6 of a host whose processes use 4 to 7 is local rank 2. On the other host, whose processes use 0 to 3, nobody uses it."""
    log = [*WORLD, *(f"{h}: {line}" for h in ("ga",) for line in traceback("RuntimeError: CUDA error: unspecified launch failure"))]
    assert whom({"train.log": log, "dmesg-ga.txt": [FELL], "nvidia-smi-ga.csv": SMI}).ranks == (2,)
    other = [line.replace("ga: ", "gb: ") for line in log]
    assert whom({"train.log": other, "dmesg-gb.txt": [FELL], "nvidia-smi-gb.csv": SMI}).ranks == ()


TOPOLOGY = "Using topology: {" + ", ".join(f"ProcessCoord(pipe={r // 2}, data={r % 2}): {r}" for r in range(8)) + "}"
FRAME = "    recv (deepspeed/runtime/pipe/p2p.py:79)\n    _exec_recv_grads (deepspeed/runtime/pipe/engine.py:1100)\n    <module> (train.py:9)"


def test_a_dump_of_stacks_by_process() -> None:
    dump = []
    for rank in range(8):
        frames = "    readinto (/job/data.py:207)\n    <module> (train.py:9)" if rank == 6 else FRAME
        dump += [f"Process {700 + rank}: python train.py", "Python v3.10.12 (/usr/bin/python3.10)", "", f'Thread {700 + rank} (active): "MainThread"']
        dump += [*frames.split("\n"), ""]
    log = [TOPOLOGY, *(f"[rank {r}] pid {700 + r} host gx ready" for r in range(8))]
    assert read({"train.log": log, "pyspy.txt": dump})["stacks"].ranks == (6,)


GUARD = "AssertionError: Rank 5: found NaN in local grad norm in backward pass before data-parallel communication collective. Device: 1, node: dsw-1"
SHARED = "n3:65:165 [0] init.cc:943 NCCL WARN Duplicate GPU detected : rank 2 and rank 1 both on CUDA device c3000"


def test_ranks_that_a_message_names() -> None:
    found = whom({"train.log": [TOPOLOGY, *traceback(GUARD)]})
    assert (found.ranks, found.stages, found.hosts) == ((5,), (2,), ("dsw-1",))
    found = whom({"train.log": [TOPOLOGY, SHARED]})
    assert (found.ranks, found.title) == ((1, 2), "Ranks 1 and 2 (stages 0 and 1, n3) were started on one and the same GPU")


FLOOR = traceback("Exception: Current loss scale already at minimum - cannot decrease scale anymore. Exiting run.")
OVERFLOW = "rank {} detected overflow nan in tensor 0:0 shape torch.Size([128256, 4096])"


@pytest.mark.parametrize(("seen_by", "ranks"), [((3, 3, 3), (3,)), ((3, 1, 3), ()), ((), ())])
def test_who_saw_the_overflows(seen_by: tuple[int, ...], ranks: tuple[int, ...]) -> None:
    """Every rank raises the end of the loss scale; the overflows were seen by one, or by several."""
    raised = [f"[rank{r}]: {line}" for r in range(8) for line in FLOOR]
    assert whom({"train.log": [TOPOLOGY, *(OVERFLOW.format(r) for r in seen_by), *raised]}).ranks == ranks


GONE = [
    "[884312.308145] NVRM: The NVIDIA GPU 0000:61:00.0",
    "               NVRM: (PCI ID: 10de:2330) installed in this system has",
    "               NVRM: fallen off the bus and is not responding to commands.",
]
FAULT = "[884355.120043] python[962]: segfault at 8 ip 00007f11c02 sp 00007ffd error 4 in libcuda.so.570.158.01"


def test_a_crash_beside_a_gpu_s_own_word_is_another_rank_s() -> None:
    """The driver tells of one GPU: local rank 1 of gb says what became of it; process 962, of local rank 2, crashed in the driver behind it."""
    spawned = [SPAWNED.format("gb", 960 + n, n) for n in range(4)]
    said = [f"gb: {line}" for line in traceback("RuntimeError: CUDA error: unknown error", rank=5)]
    assert whom({"train.log": [*WORLD, *spawned, *said], "dmesg-gb.txt": [*GONE, FAULT]}).ranks == (5,)
    assert whom({"train.log": [*WORLD, *spawned], "dmesg-gb.txt": [*GONE, FAULT]}).ranks == (6,)
    both = [*said, *(f"gb: {line}" for line in traceback("RuntimeError: CUDA error: unknown error", rank=7))]
    assert whom({"train.log": [*WORLD, *spawned, *both], "dmesg-gb.txt": [*GONE, FAULT]}).ranks == ()  # one GPU is no two ranks'


def test_the_last_line_of_the_driver_s_sentence_is_of_the_gpu_in_the_first() -> None:
    """The address is ga's and gb's; on gb it is rank 6's. Of one that NCCL does not name none is told."""
    log = [*WORLD, *(INIT.format("gb", 900 + r, 990 + r, r % 4, r, r % 4, r % 4, f"{0x5F + r % 4:x}000") for r in range(4, 8))]
    assert whom({"train.log": log, "dmesg-gb.txt": GONE}).ranks == (6,)
    assert whom({"train.log": log, "dmesg-gb.txt": [GONE[0].replace("61", "71"), *GONE[1:]]}).ranks == ()
    assert whom({"train.log": log, "dmesg-gb.txt": [GONE[0], "[884312.4] eth0: up", "[884312.5] eth0: up", *GONE[1:]]}).ranks == ()
