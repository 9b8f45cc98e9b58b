"""Error files of torchelastic: the exception, its frames, its time, the local rank of its folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelog import reading
from pipelog.events import EVENTS, Input
from pipelog.reading.error_files import is_error_file, read_error_file
from pipelog.reading.files import Source

STACK = """Traceback (most recent call last):
  File "/opt/py/lib/python3.10/site-packages/torch/distributed/elastic/multiprocessing/errors/__init__.py", line 346, in wrapper
    return f(*args, **kwargs)
  File "/home/user/train/train.py", line 88, in main
    loss = engine.train_batch()
  File "/opt/py/lib/python3.10/site-packages/deepspeed/runtime/pipe/engine.py", line 700, in _exec_forward_pass
    outputs = super().forward(inputs)
  File "/opt/py/lib/python3.10/site-packages/torch/nn/functional.py", line 1700, in linear
    return x
RuntimeError: mat1 and mat2 shapes cannot be multiplied (32x512 and 256x512)
"""
EXTRA = {"py_callstack": STACK, "timestamp": "1709652009"}
FILE = json.dumps({"message": {"message": "RuntimeError: mat1 and mat2 shapes cannot be multiplied", "extraInfo": EXTRA}}).encode()


def read(tmp_path: Path, data: bytes, shown: str = "error.json") -> tuple[list[dict[str, Any]], Input]:
    path = tmp_path / "error.json"
    path.write_bytes(data)
    table, given_input = read_error_file(Source(path, shown, len(data), 0))
    assert table.schema.equals(EVENTS)
    return [{k: v for k, v in row.items() if v is not None and k != "file"} for row in table.to_pylist()], given_input


def test_exception_frames_time_and_local_rank(tmp_path: Path) -> None:
    rows, given_input = read(tmp_path, FILE, "logs/none_x/attempt_0/3/error.json")
    assert given_input.kind == "log"
    first = rows[0]
    assert (first["name"], first["text"]) == ("python-exception", "RuntimeError: mat1 and mat2 shapes cannot be multiplied")
    assert (first["label"], first["clock"], first["start_ns"], first["line"]) == ("local 3", "utc", 1709652009 * 10**9, 1)
    assert [(r["stream"], r["text"].rpartition("/")[2]) for r in rows[1:]] == [
        ("raised", "functional.py:1700 linear"),
        ("own", "train.py:88 main"),
        ("pipe", "engine.py:700 _exec_forward_pass"),
    ]
    assert {(r["group"], r["value"]) for r in rows} == {("1", 0.0)}


@pytest.mark.parametrize(
    ("document", "text"),
    [
        ({"message": "SIGSEGV", "errorCode": 1, "timestamp": 1709652009}, "SIGSEGV"),
        ({"message": {"message": "ValueError: x", "errorCode": 3}}, "ValueError: x"),
        ({"message": {"message": "ValueError: \ud800", "extraInfo": None}}, "ValueError: ?"),
        ({"message": {"message": 7, "extraInfo": {}}}, None),
        ({"message": None, "timestamp": 1}, None),
        (["message"], None),
    ],
)
def test_other_forms(tmp_path: Path, document: Any, text: str | None) -> None:
    rows, _ = read(tmp_path, json.dumps(document).encode())
    assert [r["text"] for r in rows] == ([] if text is None else [text])


def test_a_broken_one_is_listed(tmp_path: Path) -> None:
    rows, given_input = read(tmp_path, FILE[:-30])
    assert not rows
    assert "broken JSON" in given_input.skipped[0].why


@pytest.mark.parametrize(
    ("head", "is_one"),
    [
        (FILE, True),
        (b'{"message": "SIGSEGV", "errorCode": 1}', True),
        (b'{"message": "hello"}', False),
        (b'{"train_batch_size": 8, "message": {"message": "x", "extraInfo": {}}}', False),
        (b"[]", False),
        (b"", False),
    ],
)
def test_told_by_content(head: bytes, *, is_one: bool) -> None:
    assert is_error_file(head) is is_one


def test_a_folder_with_one_is_one_attempt(tmp_path: Path) -> None:
    (tmp_path / "attempt_0" / "3").mkdir(parents=True)
    (tmp_path / "attempt_0" / "3" / "error.json").write_bytes(FILE)
    (tmp_path / "train.log").write_text("steps: 10 loss: 1.5000 iter time (s): 0.500 samples/sec: 64.000\n")
    events = reading.read(tmp_path)
    assert {i.path: i.kind for i in events.inputs} == {"attempt_0/3/error.json": "log", "train.log": "log"}


@given(
    st.recursive(
        st.none() | st.integers() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["message", "extraInfo", "py_callstack", "timestamp", "x"]), inner),
    )
)
def test_no_document_raises(tmp_path_factory: pytest.TempPathFactory, document: Any) -> None:
    rows, given_input = read(tmp_path_factory.mktemp("e"), json.dumps(document).encode())
    assert len(rows) == given_input.events
