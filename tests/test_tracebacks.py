"""Tracebacks: whatever the order in which ranks write, however the file is cut, each exception is told once, and nothing is made up."""

from __future__ import annotations

import functools
import random
import re
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipelog.reading import logs
from pipelog.reading.files import Source
from pipelog.reading.streams import chunks
from tests.conftest import FIXTURES

QUIET = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
LOGS = sorted((FIXTURES / "logs" / "python-traceback").glob("*.log"))


def read(text: str | bytes, name: str = "any.log") -> list[dict[str, Any]]:
    """Rows of kind `error` of the parser of tracebacks, in order of line."""
    data = text.encode() if isinstance(text, str) else text
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_bytes(data)
        rows = logs.read_log(Source(path, name, len(data), 0))[0].to_pylist()
    return sorted(
        (r for r in rows if r["name"] in ("python-exception", "python-frame")), key=lambda r: (r["line"], r["name"], r["group"], r["stream"] or "")
    )


def said(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """What the rows say but for lines and groups, sorted."""
    return sorted((str(r["rank"]), r["name"], r["stream"] or "", r["value"], r["text"]) for r in rows)


def trace(*frames: str, last: str, prefix: str = "", more: tuple[str, ...] = ()) -> list[str]:
    lines = ["Traceback (most recent call last):"]
    for frame in frames:
        path, _, function = frame.partition(" ")
        lines += [f'  File "{path}", line 7, in {function}', f"    {function}()"]
    return [prefix + line for line in [*lines, last, *more]]


def shuffled(order: random.Random, *parts: list[str]) -> list[str]:
    """The lines of *parts* one in another, each in its own order."""
    left = [list(part) for part in parts]
    out = []
    while any(left):
        out.append(order.choice([part for part in left if part]).pop(0))
    return out


ENGINE = "/opt/conda/lib/python3.11/site-packages/deepspeed/runtime/pipe/engine.py"
FIRST = trace("/w/train.py main", f"{ENGINE} _exec_forward_pass", "/w/net.py forward", last="ValueError: bad sample in shard 17", more=("of 40",))
SECOND = trace("/w/train.py main", f"{ENGINE} _exec_recv_grads", last="torch.distributed.DistBackendError: NCCL communicator was aborted on rank 1.")


def of_rank(rank: int, lines: list[str]) -> list[str]:
    return [f"[rank{rank}]: {line}" for line in lines]


@QUIET
@given(st.randoms(use_true_random=False))
def test_ranks_that_write_one_in_another_are_told_apart_by_their_prefix(order: random.Random) -> None:
    apart = said(read("\n".join([*of_rank(0, FIRST), *of_rank(1, SECOND)]) + "\n"))
    assert said(read("\n".join(shuffled(order, of_rank(0, FIRST), of_rank(1, SECOND))) + "\n")) == apart
    assert ("0", "python-exception", "", 0.0, "ValueError: bad sample in shard 17\nof 40") in apart
    assert ("0", "python-frame", "own", 0.0, "/w/net.py:7 forward") in apart
    assert ("1", "python-frame", "pipe", 0.0, f"{ENGINE}:7 _exec_recv_grads") in apart


@QUIET
@given(st.randoms(use_true_random=False), st.sampled_from(["(Worker pid=11) ", "worker 3 | ", "2024-03-05 14:10:02,101 stderr "]))
def test_tracebacks_are_told_apart_by_a_margin_of_their_own(order: random.Random, margin: str) -> None:
    mine, other = trace("/w/a.py a", last="TypeError: a", prefix=margin), trace("/w/b.py b", last="KeyError: 'b'")
    rows = read("\n".join(shuffled(order, mine, other)) + "\n")
    frames = {r["group"]: r["text"] for r in rows if r["stream"] == "raised"}
    assert sorted((r["text"], frames[r["group"]]) for r in rows if r["name"] == "python-exception") == [
        ("KeyError: 'b'", "/w/b.py:7 b"),
        ("TypeError: a", "/w/a.py:7 a"),
    ]


@QUIET
@given(st.randoms(use_true_random=False), st.integers(2, 6))
def test_without_prefix_every_exception_is_found_and_frames_where_all_have_the_same(order: random.Random, ranks: int) -> None:
    alike = [trace("/w/train.py main", f"{ENGINE} _exec_forward_pass", "/opt/lib/python3.9/x.py f", last="AssertionError") for _ in range(ranks)]
    rows = read("\n".join(shuffled(order, *alike)) + "\n")
    assert [r["text"] for r in rows if r["name"] == "python-exception"] == ["AssertionError"] * ranks
    assert [r["text"] for r in rows if r["stream"] == "raised"] == ["/opt/lib/python3.9/x.py:7 f"] * ranks
    assert [r["text"] for r in rows if r["stream"] == "own"] == ["/w/train.py:7 main"] * ranks
    assert len({r["group"] for r in rows}) == ranks


@QUIET
@given(st.randoms(use_true_random=False))
def test_without_prefix_frames_that_are_not_certain_are_left_out(order: random.Random) -> None:
    lines = shuffled(order, trace("/w/a.py a", "/w/b.py b", last="TypeError: a"), trace("/w/c.py c", last="KeyError: 'c'"))
    rows = read("\n".join(lines) + "\n")
    assert sorted(r["text"] for r in rows if r["name"] == "python-exception") == ["KeyError: 'c'", "TypeError: a"]
    one_after_another = lines[1].startswith("  ") and [i for i, line in enumerate(lines) if "Traceback" in line][1] > min(
        i for i, line in enumerate(lines) if "Error" in line
    )
    assert bool([r for r in rows if r["name"] == "python-frame"]) == one_after_another


@QUIET
@given(st.sampled_from(LOGS), st.integers(0, 4000), st.integers(0, 4000))
def test_a_log_that_is_cut_anywhere_tells_nothing_that_it_does_not_hold(log: Path, begin: int, end: int) -> None:
    whole = log.read_bytes()
    data = whole[begin % len(whole) :][: end + 1]
    lines = data.decode("utf-8", "replace").split("\n")
    for row in read(data):
        if row["name"] == "python-exception":
            assert row["text"].split("\n")[0] in lines[row["line"] - 1]
        else:
            assert re.sub(r":\d+ .*", "", row["text"], flags=re.DOTALL).rpartition("/")[2][:9] in "".join(lines[row["line"] - 2 : row["line"]])


@QUIET
@given(st.sampled_from(LOGS), st.integers(20, 3000))
def test_borders_of_chunks_change_nothing(monkeypatch: pytest.MonkeyPatch, log: Path, size: int) -> None:
    whole = read(log.read_bytes())
    with monkeypatch.context() as patch:
        patch.setattr(logs, "chunks", functools.partial(chunks, size=size))
        assert read(log.read_bytes()) == whole


@pytest.mark.parametrize("prefix", ["", "[rank3]: ", "[default1]:[rank3]: ", "node-1: "])
def test_each_region_is_read_once_under_every_prefix(prefix: str) -> None:
    lines = [*trace("/w/a.py a", last="TypeError: a"), "", "During handling of the above exception, another exception occurred:", ""]
    lines += trace("/w/b.py b", last="KeyError: 'b'")
    text = "".join(f"{prefix if line or not prefix.endswith(': ') else ''}{line}\n" for line in lines * 5)
    rows = [r for r in read(text) if r["name"] == "python-exception"]
    assert [(r["text"], r["value"]) for r in rows] == [("TypeError: a", 0.0), ("KeyError: 'b'", 1.0)] * 5
    assert len({r["group"] for r in rows}) == 5


@pytest.mark.parametrize(
    "line",
    [
        'sample = "Traceback (most recent call last):"',
        "print('Traceback (most recent call last):')",
        '{"log": "Traceback (most recent call last):\\n  File x", "level": "error"}',
        "      Traceback (most recent call last):",
        "it prints `Traceback (most recent call last):` then",
        "see the Traceback (most recent call last) above",
    ],
)
def test_a_mark_in_quotes_is_no_traceback(line: str) -> None:
    """In a log of plain lines; where every line is such JSON, it is Docker's."""
    assert not read(f'starting\n{line}\n  File "x.py", line 3, in f\n    f()\nValueError: x\n')


def test_a_rank_of_another_rank_s_line_is_not_taken() -> None:
    text = "\n".join(trace("/w/a.py a", last="TypeError: a"))
    glued = "[2024-03-05 14:10:02,101] [INFO] [logging.py:107:log_dist] [Rank 0] step=10, skipped=0"
    rows = read(glued + text)
    assert {r["rank"] for r in rows} == {None}
    logged = "[2024-03-05 14:10:02,101] [ERROR] [worker.py:33:go] [Rank 3] failed: "
    rows = read(logged + text)
    assert {r["rank"] for r in rows} == {3}
    assert [r["stream"] for r in rows if r["name"] == "python-exception"] == ["logged"]


def test_an_exception_of_a_file_named_after_its_rank() -> None:
    rows = read("\n".join(FIRST), name="rank3.log")
    assert {r["rank"] for r in rows} == {3}


def test_messages_are_limited() -> None:
    rows = read("\n".join(of_rank(0, trace("/w/a.py a", last="ValueError: " + "x" * 5000, more=tuple("yz" * 30)))))
    text = next(r["text"] for r in rows if r["name"] == "python-exception")
    assert len(text) == 2000
    rows = read("\n".join(of_rank(0, trace("/w/a.py a", last="ValueError: x", more=tuple("yz" * 30)))))
    assert next(r["text"] for r in rows if r["name"] == "python-exception").count("\n") == 12


@pytest.mark.parametrize(
    ("name", "is_one"),
    [
        ("torch.cuda.OutOfMemoryError: x", True),
        ("queue.Empty", True),
        ("socket.timeout: timed out", True),
        ("ray.exceptions.RayTaskError(ValueError): ray::f()", True),
        ("KeyboardInterrupt", True),
        ("SystemExit: 143", True),
        ("StopIteration", True),
        ("steps: 5", False),
        ("Loss: 3.2", False),
        ("WARNING: x", False),
        ("wandb: x", False),
        ("ncclSystemError: System call failed", False),
        ("torch.float16: x", False),
        ("12 errors", False),
    ],
)
def test_what_an_exception_is_called(name: str, is_one: bool) -> None:
    text = "\n".join([*trace("/w/a.py a", last=name), "", "done"])
    assert bool([r for r in read(text) if r["name"] == "python-exception"]) == is_one
