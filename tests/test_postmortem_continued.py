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
