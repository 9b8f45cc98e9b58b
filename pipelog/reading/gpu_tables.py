"""Tables of GPU utilization: what `nvidia-smi --query-gpu=… --format=csv` and `nvidia-smi dmon` write every few seconds.

    timestamp, index, utilization.gpu [%], memory.used [MiB]
    2024/05/27 12:00:04.110, 0, 100 %, 61000 MiB

    # gpu   pwr gtemp mtemp    sm   mem   enc   dec  mclk  pclk
    # Idx     W     C     C     %     %     %     %   MHz   MHz
        0   312    61    58   100    43     0     0  1593  1410

A device that says no index is numbered in the order in which its bus address or UUID first comes, which is nvidia-smi's own order.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from pipelog.events import EVENTS, WORD, Input, Skipped, conform, constant
from pipelog.parsers._stamps import iso_ns
from pipelog.reading.files import Source
from pipelog.reading.streams import Stream

_FIELD = rb"[a-z][a-z_0-9.]*(?: \[[A-Za-z%/]+\])?"
_QUERY = re.compile(rb"(?:" + _FIELD + rb", ?)+" + _FIELD + rb" *\r?$")
_TELLING = re.compile(rb"(?:^|, ?)(?:utilization\.gpu|memory\.used|pci\.bus_id|gpu_bus_id)\b")
_DMON = re.compile(rb"# ?(?:Date +Time +|Time +)?gpu +(?!.*\bpid\b).*\b(?:sm|fb)\b.*$")
_BEFORE = 10
"""Lines that may stand before the header: a date, the command."""
_MOST_SKIPPED = 200
_UNITS = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "MB": 2**20}
_LOST = r"GPU is lost|Unknown Error|ERR!"


@dataclass(frozen=True, slots=True)
class _Columns:
    """Line of the header; names of the columns in order; unit of memory; whether blanks part them."""

    line: int
    names: tuple[str, ...]
    memory_unit: int
    blanks: bool


def is_gpu_table(head: bytes) -> bool:
    """Whether one of the first lines of a file that begins with *head* is the header of such a table."""
    return _header(head) is not None


def _header(head: bytes) -> _Columns | None:
    for number, line in enumerate(head.split(b"\n", _BEFORE)[:_BEFORE], 1):
        if _QUERY.match(line) and _TELLING.search(line):
            fields = [field.strip() for field in line.decode().split(",")]
            unit = next((m.group(1) for f in fields if (m := re.match(r"memory\.used \[(\w+)\]", f))), "MiB")
            return _Columns(number, tuple(f.partition(" ")[0] for f in fields), _UNITS.get(unit, 2**20), blanks=False)
        if _DMON.match(line):
            return _Columns(number, tuple(line.decode("utf-8", "replace").lstrip("# ").split()), 2**20, blanks=True)
    return None


def read_gpu_table(source: Source) -> tuple[pa.Table, Input]:
    """Two rows a line: kind `gpu_use`, `utilization` (value: percent) and `memory_used` (bytes), with device and time where they are there.

    Of a column `memory.total` the first row of each device besides, kind `memory_capacity`.
    Never raises for what the file holds: lines of another width are listed as skipped.
    """
    stream = Stream(source.path)
    data = b"".join(stream.text()).decode("utf-8", "replace").encode()
    columns = _header(data[: 1 << 16])
    given = Input(source.shown, "monitor", source.bytes, skipped=list(stream.trouble))
    if columns is None:
        return conform(pa.table({"line": pa.array([], pa.int64())})), given
    numbers, cells, wrong = _cells(data, columns)
    rows = _rows(numbers, cells, columns)
    rows = rows.append_column("file", constant(source.shown, WORD, rows.num_rows))
    table = conform(rows)
    given.events = table.num_rows
    given.skipped += wrong[:_MOST_SKIPPED]
    if len(wrong) > _MOST_SKIPPED:
        given.skipped.append(Skipped(None, f"{len(wrong) - _MOST_SKIPPED} more places like these"))
    return table, given


def _cells(data: bytes, columns: _Columns) -> tuple[pa.Array, dict[str, pa.Array], list[Skipped]]:
    """Line numbers and columns of the rows, as strings; headers and empty lines are passed over."""
    read = csv.ReadOptions(use_threads=False, block_size=len(data) + 1, column_names=["text"])
    parse = csv.ParseOptions(delimiter="\x01", quote_char=False, ignore_empty_lines=False)
    convert = csv.ConvertOptions(column_types={"text": pa.string()}, strings_can_be_null=False)
    text = csv.read_csv(pa.BufferReader(data.replace(b"\x01", b" ").replace(b"\0", b" ")), read, parse, convert)["text"].combine_chunks()
    text = pc.utf8_trim_whitespace(text)
    number = pa.array(range(1, len(text) + 1), pa.int64())
    heading = pc.or_(
        pc.less(number, columns.line),
        pc.or_(pc.equal(text, ""), pc.match_substring_regex(text, r"^#|utilization\.gpu|memory\.used|pci\.bus_id|gpu_bus_id")),
    )
    text, number = text.filter(pc.invert(heading)), number.filter(pc.invert(heading))
    parts = pc.utf8_split_whitespace(text) if columns.blanks else pc.split_pattern(text, ",")
    fits = pc.equal(pc.list_value_length(parts), len(columns.names))
    wrong = [
        Skipped(n, f"not {len(columns.names)} columns: {t[:60]!r}")
        for n, t in zip(number.filter(pc.invert(fits)).to_pylist(), text.filter(pc.invert(fits)).to_pylist(), strict=True)
    ]
    parts, number = parts.filter(fits), number.filter(fits)
    cells = {name: pc.utf8_trim_whitespace(pc.list_element(parts, i)) for i, name in enumerate(columns.names)} if len(parts) else {}
    cells["_text"] = text.filter(fits)
    return number, cells, wrong


def _rows(number: pa.Array, cells: dict[str, pa.Array], columns: _Columns) -> pa.Table:
    n = len(number)
    start = _times(cells, n)
    common: dict[str, Any] = {
        "line": number,
        "start_ns": start,
        "device": _devices(cells, n),
        "clock": pc.if_else(pc.is_valid(start), pa.scalar("log"), None),
    }
    use, memory = cells.get("utilization.gpu", cells.get("sm")), cells.get("memory.used", cells.get("fb"))
    tables = []
    for name, cell in (("utilization", use), ("memory_used", memory)):
        value = None if cell is None else _number(cell)
        if value is None:
            continue
        held = (
            {"value": value} if name == "utilization" else {"bytes": pc.cast(pc.multiply(value, float(columns.memory_unit)), pa.int64(), safe=False)}
        )
        words = {"kind": constant("gpu_use", WORD, n), "name": constant(name, WORD, n)}
        tables.append(conform(pa.table(common | held | words)).filter(pc.is_valid(value)))
    if "memory.total" in cells:
        size = pc.multiply(_number(cells["memory.total"]), float(columns.memory_unit))
        words = {"kind": constant("memory_capacity", WORD, n), "name": constant("gpu", WORD, n), "bytes": pc.cast(size, pa.int64(), safe=False)}
        tables.append(conform(pa.table(common | words)).take(_firsts(common["device"], size)))
    if "index" in cells and (bus := cells.get("pci.bus_id", cells.get("gpu_bus_id"))) is not None:
        words = {"kind": constant("device", WORD, n), "name": constant("bus", WORD, n), "text": bus}
        tables.append(conform(pa.table(common | words)).take(_firsts(common["device"], bus)))
    lost = pc.match_substring_regex(cells["_text"], _LOST)
    words = {"kind": constant("error", WORD, n), "name": constant("gpu-driver", WORD, n), "text": cells["_text"]}
    tables.append(conform(pa.table(common | words)).filter(lost))
    return pa.concat_tables(tables).drop_columns(["file"]) if tables else EVENTS.empty_table().drop_columns(["file"])


def _firsts(devices: pa.Array, said: pa.Array) -> pa.Array:
    """The first row of each device that says it: its capacity and its address do not change."""
    known = [i for i, value in enumerate(said.to_pylist()) if value]
    names = devices.take(pa.array(known, pa.int64())).to_pylist()
    return pa.array(sorted(dict(zip(reversed(names), reversed(known), strict=True)).values()), pa.int64())


def _number(cell: pa.Array) -> pa.Array:
    """Numbers with or without their unit; what is none (`[N/A]`, `-`) is null."""
    found = pc.replace_substring_regex(cell, r"^(\d{1,15}(?:\.\d+)?)(?: ?[A-Za-z%]+)?$", r"\1")
    plain = pc.if_else(pc.match_substring_regex(found, r"^\d{1,15}(?:\.\d+)?$"), found, pa.scalar(None, pa.string()))
    return pc.cast(plain, pa.float64())


def _times(cells: dict[str, pa.Array], n: int) -> pa.Array:
    if "timestamp" in cells:
        return iso_ns(cells["timestamp"])
    if {"Date", "Time"} <= cells.keys():
        date = pc.replace_substring_regex(cells["Date"], r"^(\d{4})(\d\d)(\d\d)$", r"\1-\2-\3")
        return iso_ns(pc.binary_join_element_wise(date, cells["Time"], "T"))
    return pa.nulls(n, pa.int64())


def _devices(cells: dict[str, pa.Array], n: int) -> pa.Array:
    for name in ("index", "gpu"):
        if name in cells:
            plain = pc.if_else(pc.match_substring_regex(cells[name], r"^\d{1,4}$"), cells[name], pa.scalar(None, pa.string()))
            return pc.binary_join_element_wise(pa.scalar("gpu"), plain, " ")
    for name in ("pci.bus_id", "gpu_bus_id", "uuid", "gpu_uuid", "serial", "gpu_serial"):
        if name in cells:
            order = cells[name].dictionary_encode().indices
            return pc.binary_join_element_wise(pa.scalar("gpu"), pc.cast(order, pa.string()), " ")
    return pa.nulls(n, pa.string())
