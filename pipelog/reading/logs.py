"""A text log: blocks of lines → records of all parsers → rows of the event table."""

from __future__ import annotations

import itertools
import logging
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelog.events import EVENTS, Input, Skipped, conform, constant
from pipelog.parsing import Block, BlockParser, RecordParser, Records, Row
from pipelog.reading import heads
from pipelog.reading.files import Source, rank_of_name
from pipelog.reading.marks import Found, cut, find, marks
from pipelog.reading.streams import Chunk, Stream, chunks

log = logging.getLogger(__name__)
_SAMPLE = 256 << 10
_MOST_SKIPPED = 200
"""How many skipped places of one file are listed; the rest are counted."""
_MOST_BLOCKS = 32
"""How many blocks of one kind may begin on one line."""


def read_log(source: Source) -> tuple[pa.Table, Input]:
    """All rows of a log, and what was skipped. Never raises for what the file holds."""
    stream = Stream(source.path)
    reader = _Reader(source)
    ahead = _Ahead(chunks(stream.text()))
    tables: list[pa.Table] = []
    for chunk in ahead:
        tables += reader.chunk(chunk, ahead)
    if not tables:
        tables = [conform(pa.table({"line": pa.array([], pa.int64())}))]
    table = pa.concat_tables(tables)
    given = Input(source.shown, "log", source.bytes, table.num_rows, [*reader.skipped, *stream.trouble])
    if reader.more_skipped:
        given.skipped.append(Skipped(None, f"{reader.more_skipped} more places like these"))
    given.notes = reader.notes(stream)
    return table, given


class _Ahead:
    """Chunks, one after another, and a look at those to come for a block that runs over a border."""

    def __init__(self, source: Iterator[Chunk]) -> None:
        self._source = source
        self._waiting: list[Chunk] = []

    def __iter__(self) -> Iterator[Chunk]:
        while True:
            if self._waiting:
                yield self._waiting.pop(0)
                continue
            chunk = next(self._source, None)
            if chunk is None:
                return
            yield chunk

    def coming(self) -> Iterator[Chunk]:
        """The chunks after the present one; they are still to be read in their turn."""
        for index in itertools.count():
            if index == len(self._waiting):
                chunk = next(self._source, None)
                if chunk is None:
                    return
                self._waiting.append(chunk)
            yield self._waiting[index]


class _Reader:
    """What is known of one log while its chunks go by."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.prefix: heads.Prefix | None = None
        self.skipped: list[Skipped] = []
        self.more_skipped = 0
        self.rank = rank_of_name(source.shown)
        self.lines = 0
        self.tail = b""
        self.odd = True

    def notes(self, stream: Stream) -> dict[str, Any]:
        """What the report says of the file as a whole."""
        fragment = self.tail and not self.tail.endswith(b"\n")
        return {
            "prefixes": list(self.prefix.found) if self.prefix else [],
            "rank_from_name": self.rank,
            "lines": self.lines,
            "unfinished_line": self.tail[-400:].decode("utf-8", "replace") if fragment else None,
            "cut_stream": bool(stream.trouble),
        }

    def chunk(self, chunk: Chunk, ahead: _Ahead) -> list[pa.Table]:
        """The rows of one chunk."""
        data = chunk.data
        if self.prefix is None:
            self.prefix = heads.prefix(data[:_SAMPLE])
        if data:
            self.tail = data[data.rfind(b"\n", 0, len(data) - 1) + 1 :]
        if chunk.last:
            self.lines = chunk.first - 1 + len(chunk.newlines) + bool(data and not data.endswith(b"\n"))
        if len(data) >= 2**31 - 1:  # cannot be: chunks are limited
            self._skip(Skipped(chunk.first, "a line of more than 2 GiB"))
            return []
        found = find(data, chunk.newlines)
        if found is None:
            return []
        columns = self._columns(chunk, found)
        tables = []
        for index in np.unique(found.parser).tolist():
            parser = marks().parsers[index]
            which = np.flatnonzero(found.parser == index)
            if isinstance(parser, RecordParser):
                tables += self._records(parser, columns, which)
            else:
                tables += self._blocks(parser, chunk, found, columns, which, ahead)
        return tables

    def _columns(self, chunk: Chunk, found: Found) -> dict[str, pa.Array]:
        even = pa.array(2 * np.arange(len(found.start)))
        self.odd = b"\x1b" in chunk.data or b"\0" in chunk.data
        before = heads.clean(cut(chunk.data, found.head, found.start).take(even), odd=self.odd)
        assert self.prefix is not None
        has_prefix = bool(self.prefix.found) or pc.any(pc.match_substring_regex(before, r"^\[rank\d")).as_py()
        known = heads.parse(before, found.opener, self.prefix, has_prefix=has_prefix)
        if self.rank is not None:
            known["rank"] = pc.coalesce(known["rank"], pa.scalar(self.rank, pa.int32()))
        known["line"] = pa.array(chunk.first + found.line)
        known["_head"] = before
        known["_pieces"] = cut(chunk.data, found.start, found.end)
        return known

    def _records(self, parser: RecordParser, columns: dict[str, pa.Array], which: np.ndarray) -> list[pa.Table]:
        take = pa.array(which)
        mine = {k: v.take(take) for k, v in columns.items() if not k.startswith("_")}
        texts = heads.clean(columns["_pieces"].take(pa.array(2 * which)), odd=self.odd)
        match = pc.extract_regex(texts, parser.pattern)
        keep, torn = pc.is_valid(match), pc.is_null(match)
        groups = {match.type.field(i).name: match.field(i) for i in range(match.type.num_fields)}
        if parser.head:
            match_head = pc.extract_regex(columns["_head"].take(take), parser.head)
            keep, torn = pc.and_(keep, pc.is_valid(match_head)), pc.and_(torn, pc.is_valid(match_head))
            groups |= {match_head.type.field(i).name: match_head.field(i) for i in range(match_head.type.num_fields)}
        if parser.torn and pc.any(torn).as_py():
            torn = pc.and_(torn, pc.match_substring_regex(texts, parser.torn))
            for line, text in zip(mine["line"].filter(torn).to_pylist(), texts.filter(torn).to_pylist(), strict=True):
                self._skip(Skipped(line, f"{parser.key}: the record is broken off: {text[:80]!r}"))
        found = Records(groups, mine).where(keep)
        if not len(found):
            return []
        out = [self._finish(rows) for rows in parser.parse(found) if rows.num_rows]
        for place in found.skipped:
            self._skip(place)
        return out

    def _blocks(
        self, parser: BlockParser, chunk: Chunk, found: Found, columns: dict[str, pa.Array], which: np.ndarray, ahead: _Ahead
    ) -> list[pa.Table]:
        rows: list[Row] = []
        for i, limit in self._few(parser, found, which):
            head = columns["_head"][i].as_py()
            if parser.head and not pc.match_substring_regex(pa.array([head]), parser.head)[0].as_py():
                continue
            known = {k: columns[k][i].as_py() for k in ("rank", "host", "label", "clock", "start_ns", "line")}
            for row in parser.parse(self._block(parser, chunk, found, i, limit, head, ahead)):
                if isinstance(row, Skipped):
                    self._skip(row)
                else:
                    rows.append(known | row)
        if not rows:
            return []
        names = list(dict.fromkeys(key for row in rows for key in row))
        return [self._finish(pa.table({name: self._column(name, rows) for name in names}))]

    def _few(self, parser: BlockParser, found: Found, which: np.ndarray) -> Iterator[tuple[int, int]]:
        """The marks that may begin a block, and where the next one stands: a line with very many of them is no log."""
        line, begun = -1, 0
        for i, limit in zip(which.tolist(), [*found.start[which[1:]].tolist(), sys.maxsize], strict=True):
            begun = begun + 1 if found.line_start[i] == line else 1
            line = int(found.line_start[i])
            if begun <= _MOST_BLOCKS:
                yield i, limit
            elif begun == _MOST_BLOCKS + 1:
                self._skip(Skipped(None, f"{parser.key}: a line with more than {_MOST_BLOCKS} of them"))

    def _column(self, name: str, rows: list[Row]) -> pa.Array:
        """One column of a block's rows; what its type cannot hold becomes null and is listed as skipped."""
        dtype = EVENTS.field(name).type
        dtype = dtype.value_type if pa.types.is_dictionary(dtype) else dtype
        values = [row.get(name) for row in rows]
        try:
            return pa.array(values, dtype)
        except (pa.ArrowInvalid, OverflowError):
            return pa.array([self._held(name, row, dtype) for row in rows], dtype)

    def _held(self, name: str, row: Row, dtype: pa.DataType) -> Any:
        try:
            return pa.scalar(row.get(name), dtype).as_py()
        except (pa.ArrowInvalid, OverflowError):
            self._skip(Skipped(row["line"], f"{name}: {str(row[name])[:40]} is out of range"))
            return None

    def _block(self, parser: BlockParser, chunk: Chunk, found: Found, i: int, limit: int, head: str, ahead: _Ahead) -> Block:
        start = int(found.start[i])
        newline = chunk.data.find(b"\n", start)
        newline = len(chunk.data) if newline < 0 else newline
        assert self.prefix is not None
        strip = self.prefix.compiled
        opener = chunk.data[int(found.line_start[i]) : start]
        writer = _writer(strip, opener)
        first = heads.clean_line(chunk.data[start : min(newline, limit)].partition(b"\r")[0])
        number = int(chunk.first + found.line[i])
        rest = _lines(chunk, newline + 1, number + 1, ahead, parser.most - 1)
        own = ((n, text[m.end() :]) for n, text, m in ((n, t, strip.match(t)) for n, t in rest) if m and _key(m) == writer)
        return Block(first, head, number, own)

    def _fitting(self, rows: pa.Table) -> pa.Table:
        """*rows*; integers that their column of the event table cannot hold become null and are listed as skipped."""
        for index, given in enumerate(rows.schema):
            want = EVENTS.field(given.name).type if given.name in EVENTS.names else given.type
            if not (pa.types.is_integer(want) and pa.types.is_integer(given.type) and want.bit_width < given.type.bit_width):
                continue
            column, limit = rows.column(index), 1 << (want.bit_width - 1)
            bad = pc.fill_null(pc.or_(pc.less(column, -limit), pc.greater_equal(column, limit)), False)
            if pc.any(bad).as_py():
                for line, value in zip(rows["line"].filter(bad).to_pylist(), column.filter(bad).to_pylist(), strict=True):
                    self._skip(Skipped(line, f"{given.name}: {value} is out of range"))
                rows = rows.set_column(index, given, pc.if_else(bad, pa.scalar(None, given.type), column))
        return rows

    def _finish(self, rows: pa.Table) -> pa.Table:
        rows = self._fitting(rows)
        rows = rows.append_column("file", constant(self.source.shown, pa.dictionary(pa.int32(), pa.string()), rows.num_rows))
        return conform(rows)

    def _skip(self, place: Skipped) -> None:
        if len(self.skipped) < _MOST_SKIPPED:
            self.skipped.append(place)
        else:
            self.more_skipped += 1


def _key(match: Any) -> tuple[str | None, ...]:
    """Whose line it is: rank, label, host, as far as its prefix says."""
    groups = match.groupdict()
    return tuple(groups.get(name) for name in ("rank", "local", "task", "host", "pod"))


def _writer(strip: Any, before: bytes) -> tuple[str | None, ...]:
    match = strip.match(before.decode("utf-8", "replace"))
    return _key(match) if match else ()


def _lines(chunk: Chunk, begin: int, number: int, ahead: _Ahead, most: int) -> Iterator[tuple[int, str]]:
    """Up to *most* lines from *begin* on, into the chunks to come where need be; colours and NUL removed."""
    given = 0
    for data, at, first in itertools.chain([(chunk.data, begin, number)], ((c.data, 0, c.first) for c in ahead.coming())):
        line = first
        while at < len(data) and given < most:
            end = data.find(b"\n", at)
            end = len(data) if end < 0 else end
            yield line, heads.clean_line(data[at:end])
            at, line, given = end + 1, line + 1, given + 1
        if given >= most:
            return
