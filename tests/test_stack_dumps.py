"""Files of stacks: py-spy, faulthandler, gdb; which process and rank; what is a log and no dump."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelog import reading
from pipelog.events import EVENTS, Input
from pipelog.reading.files import Source
from pipelog.reading.stack_dumps import is_stack_dump, read_stack_dump

PY_SPY = b"""Process 4312: /usr/bin/python -u train.py --local_rank=1 --deepspeed
Python v3.10.12 (/usr/bin/python3.10)

Thread 4312 (idle): "MainThread"
    wait (threading.py:320)
        Arguments:
            self: <Event at 0x7f1c2b7fe700>
    _exec_recv_activations (deepspeed/runtime/pipe/engine.py:1004)
    <module> (train.py:88)
Thread 4400 (active): "Thread-1"
    run (tqdm/_monitor.py:60)
Thread 4401 (idle)
Thread 0x7F3C5C000 (active+gil): "pin"
    0x7f1c5a1b2c3d (libc.so.6)
"""
FAULTHANDLER = b"""Timeout (0:10:00)!
Thread 0x00007f1c2b7fe700 [pt_data_pin] (most recent call first):
  File "/usr/lib/python3.10/threading.py", line 320 in wait

Current thread 0x00007f1c5d3aa740 (most recent call first):
  File "/home/user/train/model.py", line 88 in forward
  File "/home/user/train/train.py", line 12 in <module>
"""
GDB = b"""Thread 2 (Thread 0x7f1c2b7fe700 (LWP 4315) "cuda-EvtHandlr"):
#0  0x00007f1c5a1b2c3d in poll () from /lib/x86_64-linux-gnu/libc.so.6
#1  0x00007f1c4b000000 in ?? () from /usr/lib/x86_64-linux-gnu/libcuda.so.1

Thread 1 (Thread 0x7f1c5d3aa740 (LWP 4312) "python"):
#0  __futex_abstimed_wait_common64 (private=0, cancel=true) at futex-internal.c:57
"""
LOG = b"steps: 10 loss: 1.5000 iter time (s): 0.500 samples/sec: 64.000\n" * 40


def read(tmp_path: Path, data: bytes, name: str = "dump.txt") -> tuple[list[dict[str, Any]], Input]:
    path = tmp_path / name
    path.write_bytes(data)
    table, given_input = read_stack_dump(Source(path, name, len(data), 0))
    assert table.schema.equals(EVENTS)
    return [{k: v for k, v in row.items() if v is not None and k not in ("kind", "file")} for row in table.to_pylist()], given_input


def test_py_spy(tmp_path: Path) -> None:
    rows, given_input = read(tmp_path, PY_SPY)
    process = {"value": 4312.0, "label": "local 1"}
    frames = "threading.py:320 wait\ndeepspeed/runtime/pipe/engine.py:1004 _exec_recv_activations\ntrain.py:88 <module>"
    assert rows == [
        process | {"name": "idle", "line": 4, "stream": "MainThread", "text": frames, "group": "5 8 9"},
        process | {"name": "active", "line": 10, "stream": "Thread-1", "text": "tqdm/_monitor.py:60 run"},
        process | {"name": "active+gil", "line": 13, "stream": "pin", "text": "libc.so.6 0x7f1c5a1b2c3d"},
    ]
    assert (given_input.kind, given_input.events) == ("stack-dump", 3)


def test_several_processes_with_lines_between_them(tmp_path: Path) -> None:
    rows, _ = read(tmp_path, b"==== rank 2 ====\n" + PY_SPY + b"==== rank 3 ====\n" + PY_SPY.replace(b"4312", b"4313"))
    assert [(r["rank"], r["value"]) for r in rows] == [(2, 4312.0)] * 3 + [(3, 4313.0)] * 3


@pytest.mark.parametrize(
    ("behind", "told"),
    [
        (b" (RANK=6 LOCAL_RANK=2 NODE_RANK=1)", {"rank": 6, "label": "local 2"}),
        (b" [LOCAL_RANK=2]", {"label": "local 2"}),
        (b" LORA_RANK=64 --rank 16", {}),  # of a matrix
    ],
)
def test_the_environment_behind_the_command(tmp_path: Path, behind: bytes, told: dict[str, Any]) -> None:
    rows, _ = read(tmp_path, PY_SPY.replace(b" --local_rank=1 --deepspeed", behind))
    assert [{k: r[k] for k in ("rank", "label") if k in r} for r in rows] == [told] * 3


def test_prefixes_of_launchers_part_the_writers(tmp_path: Path) -> None:
    one, two = ([f"{host}: {line}" for line in PY_SPY.decode().splitlines()] for host in ("node-1", "node-2"))
    mixed = "\n".join(line for pair in zip(one, two, strict=True) for line in pair)
    rows, _ = read(tmp_path, mixed.encode())
    assert sorted((r["host"], r["name"], r["text"].count("\n") + 1) for r in rows) == [
        (host, name, frames) for host in ("node-1", "node-2") for name, frames in (("active", 1), ("active+gil", 1), ("idle", 3))
    ]


def test_json(tmp_path: Path) -> None:
    thread = {"pid": 4312, "thread_id": 1, "thread_name": "MainThread", "os_thread_id": 4312, "active": True, "owns_gil": True}
    frames = [{"name": "wait", "filename": "/usr/lib/threading.py", "short_filename": "threading.py", "line": 320}]
    info = {"pid": 4312, "command_line": "python -u train.py --local_rank=1"}
    data = json.dumps([thread | {"frames": frames, "process_info": info}, thread | {"frames": []}]).encode()
    assert is_stack_dump(data)
    rows, _ = read(tmp_path, data)
    row = {"name": "active+gil", "stream": "MainThread", "value": 4312.0, "label": "local 1", "text": "threading.py:320 wait"}
    assert rows == [row | {"line": 1, "group": "1"}]
    rows, given_input = read(tmp_path, data[:-20])
    assert not rows
    assert "broken JSON" in given_input.skipped[0].why


def test_faulthandler_and_the_rank_of_the_file(tmp_path: Path) -> None:
    rows, _ = read(tmp_path, FAULTHANDLER, "hang_rank5.txt")
    assert [(r["name"], r["rank"], r["stream"]) for r in rows] == [("thread", 5, "pt_data_pin"), ("current", 5, "0x00007f1c5d3aa740")]
    assert rows[1]["text"] == "/home/user/train/model.py:88 forward\n/home/user/train/train.py:12 <module>"


def test_gdb(tmp_path: Path) -> None:
    rows, _ = read(tmp_path, GDB)
    assert [(r["value"], r["stream"]) for r in rows] == [(4315.0, "cuda-EvtHandlr"), (4312.0, "python")]
    assert rows[1]["text"] == "futex-internal.c:57 __futex_abstimed_wait_common64"


@pytest.mark.parametrize(
    ("head", "is_one"),
    [
        (PY_SPY, True),
        (b"==== rank 0 ====\n" + PY_SPY, True),
        (FAULTHANDLER, True),
        (GDB, True),
        (LOG + b"Fatal Python error: Aborted\n\n" + FAULTHANDLER, False),
        (b'Thread 4312 (idle): "MainThread"\n', False),
        (b"#0  one () from a\n" * 5, False),
        (b'[{"frames": []}]', False),
        (b"", False),
    ],
)
def test_told_by_content(head: bytes, *, is_one: bool) -> None:
    assert is_stack_dump(head) is is_one


def test_a_folder_with_one(tmp_path: Path) -> None:
    (tmp_path / "py-spy.log").write_bytes(PY_SPY)
    (tmp_path / "train.log").write_bytes(LOG + FAULTHANDLER)
    events = reading.read(tmp_path)
    assert {i.path: i.kind for i in events.inputs} == {"py-spy.log": "stack-dump", "train.log": "log"}
    assert reading.cite(events, [("py-spy.log", 4)]) == {("py-spy.log", 4): 'Thread 4312 (idle): "MainThread"'}


@given(
    st.lists(st.sampled_from([*PY_SPY.split(b" "), *FAULTHANDLER.split(b" "), *GDB.split(b" "), b"\n", b"\r", b"\xff", b"\0", b"9" * 30])).map(
        b" ".join
    )
)
def test_no_bytes_raise(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    is_stack_dump(data)
    for head in (PY_SPY, b"", b'[{"thread_name": '):
        rows, given_input = read(tmp_path_factory.mktemp("s"), head + data)
        assert len(rows) == given_input.events
