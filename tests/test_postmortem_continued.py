"""Tracebacks that a logger prints below a record which names the rank, and loggers whose every line names it."""

from __future__ import annotations

import pyarrow as pa
import pytest

from pipelog.reading.heads import parse, prefix
from tests.telling import read, traceback

STEP = "steps: {step} loss: 5.67 iter time (s): 3.145 samples/sec: 20.347"
LOGURU = "2025-06-02 19:{minute:02}:00.019 | {level:<8} | rank={rank:02} host=gpu-{host} | trainer.loop:run:48 - {said}"
CAUGHT = "An error has been caught in function 'run', process 'MainProcess' (58213), thread 'MainThread' (140224416233280):"


def start() -> list[str]:
    """What four ranks on two hosts say of themselves through their logger, and the steps that the engine prints without one."""
    ranks = [LOGURU.format(minute=r, level="INFO", rank=r, host=r // 2, said=f"process group up: world_size=4 local_rank={r % 2}") for r in range(4)]
    return [*ranks, *(STEP.format(step=step) for step in range(10, 200, 10))]


def told(*lines: str) -> tuple[tuple[int, ...], tuple[str, ...]]:
    death = read({"train.log": [*start(), *lines]})["deaths"][-1]
    return death.ranks, death.hosts


def test_a_traceback_below_the_record_of_a_rank_is_of_that_rank() -> None:
    record = LOGURU.format(minute=9, level="ERROR", rank=3, host=1, said=CAUGHT)
    assert told(record, *traceback("KeyError: 4096")) == ((3,), ("gpu-1",))
    failed = LOGURU.format(minute=9, level="CRITICAL", rank=2, host=1, said="train step failed")
    assert told(failed, *traceback("KeyError: 4096")) == ((2,), ("gpu-1",))


def test_a_traceback_below_a_record_that_speaks_of_something_else_is_of_nobody() -> None:
    slow = LOGURU.format(minute=9, level="ERROR", rank=3, host=1, said="p2p recv from previous stage is slow: 4.1 s")
    assert told(slow, *traceback("KeyError: 4096")) == ((), ())
    caught = LOGURU.format(minute=9, level="ERROR", rank=3, host=1, said=CAUGHT)
    assert told(caught, STEP.format(step=200), *traceback("KeyError: 4096")) == ((), ())


def test_what_another_rank_says_below_is_its_own() -> None:
    record = LOGURU.format(minute=9, level="ERROR", rank=3, host=1, said=CAUGHT)
    assert told(record, *traceback("KeyError: 4096", rank=1))[0] == (1,)


@pytest.mark.parametrize(
    ("form", "hosts"),
    [
        ("2025-06-02 19:10:00.019 | INFO     | rank={rank:02} host=gpu-{host} | trainer:run:48 - {said}", True),
        ("2025-06-02 19:10:00 | rank={rank} | WARNING | trainer - {said}", False),
        ("[2025-06-02 19:10:00,019] [INFO] [rank={rank}, host=gpu-{host}] {said}", True),
        ("time=2025-06-02T19:10:00Z level=info host=gpu-{host} rank={rank} msg={said}", True),
        ("2025-06-02T19:10:00.019Z [info     ] {said}   [trainer] host=gpu-{host} local_rank=0 rank={rank} stage=0", True),
    ],
)
def test_a_logger_that_names_the_rank_on_every_line(form: str, hosts: bool) -> None:
    said = ("up", "step made in 3 s", "saved to /ckpt", "peak allocated 61.2 GiB")
    lines = [form.format(rank=n % 4, host=n % 4 // 2, said=said[n % 3]) for n in range(12)]
    begins = pa.array(lines)
    known = parse(begins, begins, prefix("\n".join(lines).encode()))
    assert known["rank"].to_pylist() == [0, 1, 2, 3] * 3
    assert known["host"].to_pylist() == (["gpu-0", "gpu-0", "gpu-1", "gpu-1"] * 3 if hosts else [None] * 12)


@pytest.mark.parametrize(
    "form",
    [
        "2025-06-02 19:10:00.019 | INFO     | trainer:run:48 - {said} of rank={rank} and more",
        "[2025-06-02 19:10:00,019] [INFO] [utils.py:7:log] {said} of local_rank={rank}",
        "the rank={rank} of this adapter is {said}",
    ],
)
def test_talk_of_ranks_is_no_field(form: str) -> None:
    said = ("the norm", "in a step the loss", "of all that was saved the size", "the peak")
    lines = [form.format(rank=n % 4, said=said[n % 4]) for n in range(12)]
    begins = pa.array(lines)
    assert parse(begins, begins, prefix("\n".join(lines).encode()))["rank"].null_count == 12


def test_a_level_is_no_container() -> None:
    lines = [f"2025-06-02 19:10:{n:02} | {('INFO', 'WARNING')[n % 2]:<8} | trainer:run:48 - step made" for n in range(12)]
    begins = pa.array(lines)
    assert parse(begins, begins, prefix("\n".join(lines).encode()))["host"].null_count == 12
    composed = [f"{('worker-1', 'worker-2')[n % 2]:<9} | step made" for n in range(12)]
    begins = pa.array(composed)
    assert parse(begins, begins, prefix("\n".join(composed).encode()))["host"].to_pylist() == ["worker-1", "worker-2"] * 6


def abort(rank: int, second: float, *below: str) -> list[str]:
    """torch's watchdog that ends with an error of NCCL, whose message runs over several lines."""
    said = "Process group watchdog thread terminated with exception: NCCL error: unhandled system error, NCCL version 2.21.5"
    first = f"[rank{rank}]:[E602 19:09:{second:012.9f} ProcessGroupNCCL.cpp:1895] [PG ID 2 PG GUID 5 Rank 0] {said}"
    return [first, "ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error.", "Last error:", *below]


BROKEN = "NET/IB : mlx5_2:1 async fatal event: local catastrophic error"
RETRIES = "NET/IB: Got completion from peer 10.50.0.13<41001> with status=12 opcode=0 len=0 vendor err 129"
CHANGED = "NET/IB : mlx5_2:1 Got async event : client reregistration"


def test_what_stands_below_last_error_is_of_the_record_above() -> None:
    """The file that comes first, and is the loudest, tells of what came nine seconds later."""
    ended = [
        f"[2025-06-02 19:10:0{n},000] [ERROR] [launch.py:325:sigkill_handler] ['python', '--local_rank={n}'] exits with return code = -6"
        for n in (0, 1)
    ]
    late = [*abort(0, 26.7, RETRIES), *abort(1, 26.9, RETRIES), *ended]
    files = {"a.err": late, "b.err": [*abort(2, 17.1, BROKEN), ended[0]], "train.log": start()}
    death = read(files)["deaths"][-1]
    assert (death.kind, death.known, death.ranks, death.hosts) == ("ib-adapter", True, (2,), ("gpu-1",))
    assert (death.evidence[0].file, death.evidence[0].line) == ("b.err", 4)


def test_events_after_which_an_adapter_goes_on_explain_nothing() -> None:
    death = read({"b.err": abort(2, 17.1, CHANGED), "train.log": start()})["deaths"][-1]
    assert death.kind != "ib-port"
    assert not death.known


def test_the_last_warning_of_two_records_is_of_neither() -> None:
    torn = [abort(2, 17.1)[0], abort(3, 17.2)[0], "Last error:", BROKEN]
    death = read({"b.err": torn, "train.log": start()})["deaths"][-1]
    assert (death.kind, death.ranks) == ("ib-adapter", ())


def test_a_record_with_a_time_comes_before_what_follows_it_without() -> None:
    """Stamps without a year: the second wording of the same stands below the first, though steps were last made long before."""
    ecc = "CUDA error: uncorrectable ECC error encountered"
    watchdog = f"[rank3]:[E602 19:20:17.100000000 ProcessGroupNCCL.cpp:1515] [PG 0 (default_pg) Rank 3] Process group watchdog thread terminated with exception: {ecc}"
    thrown = [
        "terminate called after throwing an instance of 'c10::DistBackendError'",
        f"  what():  [PG 0 (default_pg) Rank 3] Process group watchdog thread terminated with exception: {ecc}",
    ]
    other = ["2025-06-02 19:20:20.000 | ERROR    | rank=00 host=gpu-0 | trainer.loop:run:48 - exiting"]
    death = read({"a.log": [*start(), watchdog, *thrown], "b.log": other})["deaths"][-1]
    assert (death.ranks, death.evidence[0].line) == ((3,), len(start()) + 1)
