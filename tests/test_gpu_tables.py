"""Tables of GPU utilization: told by content, both forms of nvidia-smi, what is broken is listed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelog import reading
from pipelog.events import EVENTS, Input
from pipelog.reading.files import Source
from pipelog.reading.gpu_tables import is_gpu_table, read_gpu_table

QUERY = b"""timestamp, index, count, utilization.gpu [%], memory.used [MiB]
2024/05/27 12:00:04.110, 0, 4, 100 %, 61000 MiB
2024/05/27 12:00:04.110, 1, 4, 0 %, 10 MiB
"""
DMON = b"""#Date       Time        gpu    pwr     sm    mem     fb   bar1
#YYYYMMDD   HH:MM:SS    Idx      W      %      %     MB     MB
 20240305   15:20:09      0    312    100     43  61000      5
 20240305   15:20:09      1      -      -     41  60990      5
"""


def read(tmp_path: Path, data: bytes) -> tuple[list[dict[str, Any]], Input]:
    path = tmp_path / "gpu.csv"
    path.write_bytes(data)
    table, given_input = read_gpu_table(Source(path, path.name, len(data), 0))
    assert table.schema.equals(EVENTS)
    rows = [{k: v for k, v in row.items() if v is not None and k not in ("kind", "file")} for row in table.to_pylist()]
    return sorted(rows, key=lambda r: (r["line"], r["name"])), given_input


def test_query(tmp_path: Path) -> None:
    rows, given_input = read(tmp_path, QUERY)
    first = {"clock": "log", "start_ns": 1716811204110000000, "device": "gpu 0", "line": 2}
    assert rows[0] == first | {"name": "memory_used", "bytes": 61000 << 20}
    assert rows[1] == first | {"name": "utilization", "value": 100.0}
    assert [r.get("value", r.get("bytes")) for r in rows[2:]] == [10 << 20, 0.0]
    assert (given_input.kind, given_input.events, given_input.skipped) == ("monitor", 4, [])


def test_the_memory_of_each_device_is_told_once(tmp_path: Path) -> None:
    data = b"index, memory.used [MiB], memory.total [MiB]\n0, 10 MiB, 81559 MiB\n1, 11 MiB, [N/A]\n0, 12 MiB, 81559 MiB\n1, 13 MiB, 40960 MiB\n"
    rows, given_input = read(tmp_path, data)
    told = [(r["device"], r["bytes"], r["line"]) for r in rows if r["name"] == "gpu"]
    assert told == [("gpu 0", 81559 << 20, 2), ("gpu 1", 40960 << 20, 5)]
    assert given_input.events == 6


def test_devices_without_an_index_are_numbered_by_their_address(tmp_path: Path) -> None:
    data = b"utilization.gpu, pci.bus_id\n7, 00000000:07:00.0\n9, 00000000:0F:00.0\n8, 00000000:07:00.0\n"
    rows, _ = read(tmp_path, data)
    assert [(r["device"], r["value"]) for r in rows] == [("gpu 0", 7.0), ("gpu 1", 9.0), ("gpu 0", 8.0)]


def test_dmon(tmp_path: Path) -> None:
    rows, _ = read(tmp_path, DMON)
    assert [(r["name"], r["device"], r["line"]) for r in rows] == [
        ("memory_used", "gpu 0", 3),
        ("utilization", "gpu 0", 3),
        ("memory_used", "gpu 1", 4),
    ]
    assert {r["start_ns"] for r in rows} == {1709652009000000000}


def test_what_is_broken_is_listed_and_a_lost_gpu_is_an_error(tmp_path: Path) -> None:
    data = b"Mon May 27 12:00:00 CEST 2024\n" + QUERY + b"2024/05/27 12:00:05, 0, 4, [GPU is lost], [GPU is lost]\r\n" + QUERY + b"torn, li"
    rows, given_input = read(tmp_path, data)
    assert len([r for r in rows if r["name"] == "utilization"]) == 4
    lost = [r for r in rows if r["name"] == "gpu-driver"]
    assert [(r["device"], r["line"]) for r in lost] == [("gpu 0", 5)]
    assert [s.line for s in given_input.skipped] == [9]


@pytest.mark.parametrize(
    ("head", "is_one"),
    [
        (QUERY, True),
        (DMON, True),
        (b"\n" + QUERY, True),
        (b"utilization.gpu [%], memory.used [MiB]\r\n", True),
        (b"# gpu   pwr gtemp mtemp    sm   mem   enc   dec  mclk  pclk\n", True),
        (b"# gpu        pid  type    sm   mem   enc   dec   command\n", False),
        (b"step,train_loss\n16,0.1\n", False),
        (b"name, memory.total [MiB]\nA100, 81920 MiB\n", False),
        (b"the table has utilization.gpu, memory.used and more, as we know\n", False),
        (b"steps: 5 loss: 6.4020\n" * 20 + QUERY, False),
        (b"", False),
    ],
)
def test_told_by_content(head: bytes, *, is_one: bool) -> None:
    assert is_gpu_table(head) is is_one


def test_a_folder_with_one(tmp_path: Path) -> None:
    (tmp_path / "gpu_util.txt").write_bytes(QUERY)
    (tmp_path / "train.log").write_text("steps: 10 loss: 1.5000 iter time (s): 0.500 samples/sec: 64.000\n")
    events = reading.read(tmp_path)
    assert {i.path: i.kind for i in events.inputs} == {"gpu_util.txt": "monitor", "train.log": "log"}
    assert reading.cite(events, [("gpu_util.txt", 2)])["gpu_util.txt", 2].startswith("2024/05/27")


@given(
    st.lists(st.sampled_from([*QUERY.split(b" "), *DMON.split(b" "), b",", b"\n", b"\r\n", b'"', b"\xff", b"\0", b"\x01", b"9" * 30])).map(b" ".join)
)
def test_no_bytes_raise(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    for head in (QUERY, DMON, b""):
        rows, given_input = read(tmp_path_factory.mktemp("g"), head + data)
        assert len(rows) == given_input.events
