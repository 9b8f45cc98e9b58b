"""CSV monitor files: told by content, read whole, what is broken is listed."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelog.events import EVENTS
from pipelog.reading.files import Source
from pipelog.reading.monitors import is_monitor, read_monitor


def read(tmp_path: Path, data: bytes):
    path = tmp_path / "Train_Samples_train_loss.csv"
    path.write_bytes(data)
    return read_monitor(Source(path, path.name, len(data), 0))


def test_rows_headers_and_what_is_broken(tmp_path: Path) -> None:
    data = b"step,train_loss\r\n16,6.39\r\n32,nan\r\nstep,train_loss\r\n48,6.25e-1\r\n\r\n64\r\n80,1,2\r\n96,six\r\n112,6.1"
    table, given_input = read(tmp_path, data)
    assert table.schema.equals(EVENTS)
    rows = table.select(["kind", "name", "clock", "start_ns", "value", "line"]).to_pylist()
    assert [(r["start_ns"], r["line"]) for r in rows] == [(16, 2), (32, 3), (48, 5)]
    assert rows[0]["value"] == 6.39
    assert math.isnan(rows[1]["value"])
    assert rows[2] == {"kind": "monitor", "name": "train_loss", "clock": "samples", "start_ns": 48, "value": 0.625, "line": 5}
    assert (given_input.kind, given_input.events) == ("monitor", 3)
    assert [s.line for s in given_input.skipped] == [7, 8, 9, 10]
    assert "no end" in given_input.skipped[-1].why


@pytest.mark.parametrize(
    ("head", "is_one"),
    [
        (b"step,lr\r\n16,0.001\r\n", True),
        (b"step,lr\n16,1e-05\n32,nan\n", True),
        (b"step,lr\r\n", True),
        (b"step,lr\n16,0.0", True),
        (b"step,loss,lr\n1,2,3\n", False),
        (b"step,name\n1,abc\n", False),
        (b"time,lr\n1,2\n", False),
        (b"steps: 5 loss: 6.4020\n", False),
        (b"", False),
    ],
)
def test_told_by_content(head: bytes, *, is_one: bool) -> None:
    assert is_monitor(head) is is_one


@given(st.lists(st.sampled_from([b"16", b"step", b",", b"\n", b"\r\n", b'"', b"nan", b"\xff", b"\0", b"1e999", b"x" * 300])).map(b"".join))
def test_no_bytes_raise(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    table, given_input = read(tmp_path_factory.mktemp("m"), b"step,lr\n" + data)
    assert table.num_rows == given_input.events
