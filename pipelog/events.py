"""The event table: one row for everything that a file says, from every rank, in one schema.

`EVENTS` declares it, here and nowhere else. A value that is not known is null, never 0 or -1. Times are integer
nanoseconds: rounding to microseconds loses 10 to 17 % of the busy time of real traces.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipelog.errors import BadReport

WORD = pa.dictionary(pa.int32(), pa.string())
"""Type of the columns that hold few different words."""


ZONES_NS = 26 * 3600 * 10**9
"""Clocks of one job are at most this far apart: the world's time zones from UTC-12 to UTC+14."""


def _column(name: str, dtype: pa.DataType, meaning: str) -> pa.Field:
    return pa.field(name, dtype, metadata={"meaning": meaning})


EVENTS = pa.schema(
    [
        _column("kind", WORD, "what the row is: step, timer, memory, scalar, fact, error, kernel, send, …; an open list"),
        _column("name", WORD, "which one: the timer, kernel, collective, scalar or fact"),
        _column("attempt", pa.int16(), "start of the job this belongs to, 0 first"),
        _column("rank", pa.int32(), "global rank"),
        _column("stage", pa.int16(), "pipeline stage of the rank"),
        _column("replica", pa.int32(), "data-parallel index of the rank"),
        _column("tensor", pa.int16(), "tensor-parallel index of the rank"),
        _column("host", WORD, "machine that wrote it"),
        _column("label", WORD, "what a launcher's prefix calls the writer: 'local 3', 'task 3'; the rank is derived from it"),
        _column("step", pa.int32(), "optimizer step as DeepSpeed counts, 1 first; the last one of an interval"),
        _column("steps", pa.int32(), "how many steps, ending at `step`, the row speaks of"),
        _column("micro_batch", pa.int32(), "micro-batch of the step, 0 first"),
        _column("clock", WORD, "whose clock start_ns is on: 'log' (local time of the writer), 'utc', 'host:<name>', 'trace:<file>'"),
        _column("start_ns", pa.int64(), "when it began, or when the line was written, ns since the epoch of its clock"),
        _column("dur_ns", pa.int64(), "how long it took, ns; for a timer the printed figure, for a step the mean over `steps`"),
        _column("value", pa.float64(), "a scalar in the unit of its name"),
        _column("bytes", pa.int64(), "memory or message size, bytes"),
        _column("peer", pa.int32(), "global rank at the other end of a p2p message"),
        _column("group", WORD, "process group"),
        _column("device", WORD, "'gpu 0', … for device work; 'cpu' for what ran on the host in a trace; null in logs"),
        _column("stream", WORD, "device stream or host thread"),
        _column("launch_ns", pa.int64(), "start of the host call that launched it, same clock"),
        _column("file", WORD, "where it stands: path as shown in the report"),
        _column("line", pa.int64(), "line, 1 first; in a trace the index of the event in traceEvents, 0 first"),
        _column("text", pa.large_string(), "the words, for `fact`, `error` and other rare kinds only"),
    ]
)

_PARQUET_KEY = b"pipelog.inputs"
_VERSION_KEY = b"pipelog.events"
_VERSION = b"1"


@dataclass(frozen=True, slots=True)
class Skipped:
    """A piece of a file that was not read: where (line, or byte offset of a trace, null for the whole file) and why."""

    line: int | None
    why: str


@dataclass(slots=True)
class Input:
    """One file that was looked at, and what became of it.

    kind: log, trace, config, …, events or ignored (see `reading.sniff`). notes: what is known of the file as a whole (a trace's
    header, a log's prefix); values are plain JSON.
    """

    path: str
    kind: str
    bytes: int
    events: int = 0
    skipped: list[Skipped] = field(default_factory=list)
    notes: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Events:
    """The event table and the files it came from. `roots` maps the shown paths back to files on this machine.

    told: tables that were computed when the events were placed, and are the same for whoever derives more from them; no part of what is written.
    """

    table: pa.Table
    inputs: list[Input]
    roots: dict[str, str] = field(default_factory=dict)
    told: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)

    def write(self, path: Path | str) -> None:
        """Write the table as Parquet; the inputs travel in the file's metadata, so that it is a whole input again."""
        meta = {**(self.table.schema.metadata or {}), _VERSION_KEY: _VERSION, _PARQUET_KEY: json.dumps([asdict(i) for i in self.inputs]).encode()}
        pq.write_table(self.table.replace_schema_metadata(meta), path, compression="zstd")

    @staticmethod
    def read(path: Path | str) -> Events:
        """Read what `write` wrote; raises BadReport where the file is something else."""
        try:
            table = pq.read_table(path)
        except (pa.ArrowInvalid, OSError) as error:
            raise BadReport(f"{path}: not a Parquet file that can be read ({error})") from error
        meta = table.schema.metadata or {}
        if meta.get(_VERSION_KEY) != _VERSION or _PARQUET_KEY not in meta:
            raise BadReport(f"{path}: a Parquet file, but not an event table of pipelog")
        try:
            inputs = [Input(**{**item, "skipped": [Skipped(**s) for s in item["skipped"]]}) for item in json.loads(meta[_PARQUET_KEY])]
        except (ValueError, TypeError, KeyError) as error:
            raise BadReport(f"{path}: an event table whose list of inputs is damaged ({error})") from error
        return Events(conform(table), inputs)


ACCOUNTING = "accounting"
"""`stream` of an `end` that an accounting, a controller or a service tells of a job (`group`: its id): it has no place in the order of the job's lines."""

_NULLS: dict[pa.DataType, pa.Array] = {}


def nulls(dtype: pa.DataType, length: int) -> pa.Array:
    """*length* nulls. All columns of nulls share one piece of memory: most rows leave most columns empty."""
    have = _NULLS.get(dtype)
    if have is None or len(have) < length:
        have = _NULLS[dtype] = pa.nulls(length + min(length, 1 << 20), dtype)
    return have.slice(0, length)


def constant(value: Any, dtype: pa.DataType, length: int) -> pa.Array:
    """*length* times the same value; a dictionary of one for words."""
    if value is None:
        return nulls(dtype, length)
    if pa.types.is_dictionary(dtype):
        return pa.DictionaryArray.from_arrays(pa.array(np.zeros(length, np.int32)), pa.array([value], dtype.value_type))
    return pa.repeat(pa.scalar(value, dtype), length)


def of_rows(rows: list[dict[str, Any]], names: tuple[str, ...]) -> pa.Table:
    """Rows of few files, one dict each, as the columns *names*; null where a row lacks one."""
    types = {name: EVENTS.field(name).type for name in names}
    plain = {name: t.value_type if pa.types.is_dictionary(t) else t for name, t in types.items()}
    return pa.table({name: pa.array([row.get(name) for row in rows], plain[name]) for name in names})


def conform(table: pa.Table) -> pa.Table:
    """*table* with exactly the columns and types of `EVENTS`; what it lacks is null, what it has beside is dropped."""
    columns = []
    for want in EVENTS:
        index = table.schema.get_field_index(want.name)
        if index < 0:
            columns.append(nulls(want.type, table.num_rows))
            continue
        column = table.column(index)
        if column.type != want.type and column.null_count == len(column):
            column = nulls(want.type, len(column))
        elif column.type != want.type:
            if pa.types.is_dictionary(want.type) and not pa.types.is_dictionary(column.type):
                column = column.cast(pa.string()).dictionary_encode()
            column = column.cast(want.type)
        columns.append(column)
    return pa.Table.from_arrays(columns, schema=EVENTS)


def join(tables: list[pa.Table]) -> pa.Table:
    """One table of many conforming ones, words in one dictionary per column, in one chunk."""
    if not tables:
        return EVENTS.empty_table()
    whole = pa.concat_tables([t for t in tables if t.num_rows] or tables[:1]).unify_dictionaries()
    columns = [nulls(c.type, len(c)) if c.null_count == len(c) else c.combine_chunks() for c in whole.columns]
    return pa.Table.from_arrays(columns, schema=EVENTS)
