"""Who wrote a line: launchers' prefixes, Ray's list of processes, names of files and folders; and numbers that are no global rank."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pytest

import pipelog
from pipelog.reading import heads
from pipelog.tables import frame
from tests.telling import read, traceback

RAISED = traceback("KeyError: 91", "/job/train.py:40 main")
OTHER = traceback("torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:2251, remote process exited or there was a network error")
TOPOLOGY = "Using topology: {ProcessCoord(pipe=0, data=0): 0, ProcessCoord(pipe=1, data=0): 1, ProcessCoord(pipe=2, data=0): 2, ProcessCoord(pipe=3, data=0): 3}"


def step(number: int, rank: int = 0) -> str:
    return f"[2024-03-05 14:10:{number:02},101] [INFO] [logging.py:107:log_dist] [Rank {rank}] step={number}, skipped=0, lr=[0.1], mom=[0.9]"


FIRST = [TOPOLOGY, *(step(n) for n in range(10, 40, 10))]


def ranks(files: dict[str, Sequence[str]], text: str = "KeyError: 91") -> list[int | None]:
    """The rank of each exception with this text."""
    rows = frame(read(files)["placed"], ("error",), ("name", "rank", "text"))
    mine = rows[(rows["name"] == "python-exception") & rows["text"].str.startswith(text)]
    return [None if pd.isna(r) else int(r) for r in mine["rank"]]


def merged(prefix: str, *, first: int = 0, failing: int = 3, more: Sequence[tuple[int, str]] = ()) -> dict[str, Sequence[str]]:
    """One log whose lines have a prefix with a number: the steps of one writer, the exception of another."""
    lines = [(first, line) for line in FIRST] + list(more) + [(failing, line) for line in RAISED]
    return {"run.log": [prefix.replace("#", str(n)) + line for n, line in lines]}


@pytest.mark.parametrize(
    "prefix",
    [
        "[2024-03-05T14:10:00.000000Z] 5b3b5f11 || [rank=#] ",  # Determined
        "[RANK #] ",
        "[Rank #] ",
        "[rank: #] ",
        "(rank #) ",
        "RANK=# ",
        "rank#: ",
        "Rank #: ",
        "global_rank=# ",
        "[rank #/4]: ",
        "2024-03-05 14:10:00.123 | rank:# | ",
        "[1,#]<stderr>:",
        "[prterun-n1-4312@1,#]<stderr>: ",
        "[1,mpirank:#,algo-1]<stderr>:",
        "[#] ",
        "#: ",
        "[default#]:",
    ],
)
def test_prefixes_that_name_the_rank(prefix: str) -> None:
    assert ranks(merged(prefix)) == [3]


@pytest.mark.parametrize("prefix", ["local_rank=# ", "[local rank #] ", "node#: ", "[node_rank: #] ", "node_rank #: ", "stage #: "])
def test_prefixes_that_name_something_else(prefix: str) -> None:
    assert ranks(merged(prefix, failing=1)) in ([None], [])


def test_a_task_that_starts_others_is_no_rank() -> None:
    """Two tasks of srun, each an agent of two ranks: the second writes ranks 2 and 3."""
    lines = [f"0: {line}" for line in FIRST] + [f"1: {step(30, 2)}"] + [f"1: {line}" for line in RAISED]
    assert ranks({"slurm.out": lines}) == [None]


def test_tasks_of_which_some_name_themselves() -> None:
    """Four tasks of four ranks, the last of which says nothing."""
    lines = [f"0: {line}" for line in FIRST] + [f"1: {step(30, 1)}"] + [f"2: {line}" for line in RAISED]
    assert ranks({"slurm.out": lines}) == [2]
    assert ranks({"slurm.out": [line for line in lines if "Rank 1" not in line]}) == [None]


def table(rank: int, local: int) -> list[str]:
    head = [*traceback("torch.distributed.elastic.multiprocessing.errors.ChildFailedError: "), "=" * 60, "train.py FAILED", "-" * 60]
    where = ["  time      : 2024-03-05_14:20:01", "  host      : node-a", f"  rank      : {rank} (local_rank: {local})", "  exitcode  : 1 (pid: 33)"]
    return [*head, "Root Cause (first observed failure):", "[0]:", *where, "  error_file: <N/A>", "=" * 60]


def roles(failing: int, rank: int) -> dict[str, Sequence[str]]:
    lines = [f"[default0]:{line}" for line in FIRST] + [f"[default{failing}]:{line}" for line in RAISED]
    return {"run.log": [*lines, *table(rank, failing)]}


def test_local_ranks_beyond_the_half_are_those_of_a_single_host() -> None:
    assert ranks(roles(2, rank=2)) == [2]
    assert ranks(roles(1, rank=1)) == [None]  # two hosts with two ranks would say the same
    assert ranks(roles(2, rank=1)) == [None]  # its launcher counts otherwise


RAY = [
    "(TorchTrainer pid=4200) Started distributed worker processes: ",
    *(
        f"(TorchTrainer pid=4200) - (node_id=a{n // 2}, ip=10.0.4.{16 + n // 2}, pid={4390 + n}) world_rank={n}, local_rank={n % 2}, node_rank={n // 2}"
        for n in range(4)
    ),
]


def test_processes_that_ray_lists() -> None:
    wrote = [f"(RayTrainWorker pid=4390, ip=10.0.4.16) {line}" for line in FIRST] + [
        f"(RayTrainWorker pid=4393, ip=10.0.4.17) {line}" for line in RAISED
    ]
    assert ranks({"driver.log": RAY + wrote}) == [3]
    assert ranks({"driver.log": wrote}) == [None]
    assert read({"driver.log": RAY + wrote})["topology"].host_of(3) == "10.0.4.17"


def test_the_process_that_ray_lost(tmp_path: Path) -> None:
    lost = ["ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.", "\tclass_name: RayTrainWorker"]
    lines = [
        *RAY,
        *(f"(RayTrainWorker pid=4390, ip=10.0.4.16) {line}" for line in FIRST),
        *traceback("\n".join([*lost, "\tpid: 4392", "\tip: 10.0.4.17"])),
    ]
    assert blamed(tmp_path, lines) == (2,)
    assert blamed(tmp_path, [line.replace("pid: 4392", "pid: 5000") for line in lines]) == ()


def blamed(folder: Path, lines: Sequence[str]) -> tuple[int, ...]:
    (folder / "driver.log").write_text("\n".join(lines))
    failure = pipelog.diagnose(pipelog.read(folder)).failure
    assert failure is not None
    return tuple(failure["ranks"])


def per_rank(name: str, *, failing: int = 3, world: int = 4, first: Sequence[str] = FIRST) -> dict[str, Sequence[str]]:
    """A log a rank: steps in the first, an exception in one, what others notice in the rest."""
    return {name.replace("#", str(n)): first if n == 0 else RAISED if n == failing else OTHER for n in range(world)}


@pytest.mark.parametrize(
    "name",
    [
        "logs/rank_#/stderr.log",
        "logs/#/stderr.log",
        "attempt_0/#/stderr.log",
        "user_logs/std_log_process_0#.txt",
        "log_#.txt",
        "node0_rank#.log",
        "rank#.err",
        "rank#.txt",
        "job-123-#.out",
        "slurm-4711_#.out",
        "worker-#.log",
    ],
)
def test_files_that_are_one_a_rank(name: str) -> None:
    assert ranks(per_rank(name)) == [3]


def test_files_that_are_not_one_a_rank() -> None:
    whole = [TOPOLOGY, *(step(n) for n in (10, 20, 30)), *RAISED]
    array = {f"slurm-4711_{n}.out": whole for n in range(4)}
    assert ranks(array) == [None] * 4  # an array of jobs: each has a rank 0
    assert ranks(per_rank("log_#.txt", world=3, failing=2)) == [None]  # not all are there
    assert ranks(per_rank("log_#.txt", first=[TOPOLOGY])) == [None]  # nothing says that the numbers are ranks
    assert ranks({f"2024030{n}.log": lines for n, lines in enumerate(per_rank("#").values(), 1)}) == [None]
    assert ranks({"rank8/train.log": whole}) == [None]  # a LoRA of rank 8


@pytest.mark.parametrize("name", ["node#.log", "local_rank#.log", "node_rank_#.log", "host-#/train.log"])
def test_numbers_of_nodes_and_local_ranks(name: str) -> None:
    assert ranks(per_rank(name)) == [None]


def test_two_nodes_with_local_ranks() -> None:
    files = {f"node{node}_rank{local}.log": OTHER for node in range(2) for local in range(2)}
    assert ranks(files | {"node0_rank0.log": FIRST, "node1_rank1.log": RAISED}) == [None]
    through = {f"node{n // 2}_rank{n}.log": OTHER for n in range(4)}  # numbered through
    assert ranks(through | {"node0_rank0.log": FIRST, "node1_rank3.log": RAISED}) == [3]


def test_a_rank_of_ones_own_that_counts_within_a_host() -> None:
    lines = [f"node-a: rank 0: {line}" for line in FIRST] + [f"node-a: rank 1: {step(30)}", f"node-b: rank 0: {step(30)}"] * 3
    assert ranks({"run.log": lines + [f"node-b: rank 1: {line}" for line in RAISED]}) == [None]
    nodes = {f"{node}.log": [f"rank 0: {line}" for line in FIRST] + [f"rank 1: {line}" for line in OTHER] for node in ("a", "b")}
    assert ranks(nodes | {"b.log": [f"rank 0: {line}" for line in OTHER] + [f"rank 1: {line}" for line in RAISED]}) == [None]


def test_a_host_before_the_name_of_the_stream() -> None:
    lines = [f"nodes.cn-d00{n % 2} [{('stdout', 'stderr')[n % 2]}] step {n} made" for n in range(12)]
    found = heads.prefix("\n".join(lines).encode())
    assert found.found == ("stream",)
    assert heads.parse(pa.array(lines), pa.array(lines), found)["host"].to_pylist() == ["cn-d000", "cn-d001"] * 6
    devices = [f"bench.D{n % 2} [stdout] step {n} made" for n in range(12)]
    found = heads.prefix("\n".join(devices).encode())
    assert heads.parse(pa.array(devices), pa.array(devices), found)["host"].null_count == 12  # a device is no host


def test_stern_names_the_pod() -> None:
    lines = [f"trainer-0 main {line}" for line in FIRST] + [f"trainer-1 main {line}" for line in RAISED]
    assert heads.prefix("\n".join(lines).encode()).found == ("stern",)
    assert "stern" not in heads.prefix("\n".join(f"layer-{n} norm is 3" for n in range(90)).encode()).found


def watchdogs(*pairs: tuple[int, int]) -> list[int | None]:
    """The rank of watchdogs behind srun's labels: of each the task, and the rank that the line states."""
    text = "{}: [E ProcessGroupNCCL.cpp:821] [Rank {}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=331, OpType=ALLREDUCE, Timeout(ms)=600000) ran for 600183 milliseconds before timing out."
    head = [f"{task}: {line}" for task, line in ((0, TOPOLOGY), *((0, step(n)) for n in range(10, 30)), (3, "a"), (1, "b"), (2, "c"), (3, "d"))]
    rows = frame(read({"run.log": [*head, *(text.format(*pair) for pair in pairs)]})["placed"], ("error",), ("name", "rank"))
    return [None if pd.isna(r) else int(r) for r in rows.loc[rows["name"] == "nccl-watchdog", "rank"]]


def test_a_watchdog_s_rank_is_that_of_its_group() -> None:
    """`2: … [Rank 0]`: the first of a group of tasks 2 and 3."""
    assert watchdogs((2, 0), (3, 1)) == [2, 3]
    assert watchdogs((0, 0), (1, 1)) == [0, 1]
