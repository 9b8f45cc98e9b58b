"""A text log: blocks of lines → records of all parsers → rows of the event table."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelog.events import EVENTS, WORD, Input, Skipped, conform, constant
from pipelog.parsing import BlockParser, LineParser, RecordParser, Records
from pipelog.reading import blocks, heads
from pipelog.reading.blocks import Ahead
from pipelog.reading.files import Source, local_rank_of_name, rank_of_name
from pipelog.reading.marks import Found, cut, find, find_lines, line_marks, marks
from pipelog.reading.streams import Chunk, Stream, chunks

_SAMPLE = 256 << 10
_MOST_SKIPPED = 200
"""How many skipped places of one file are listed; the rest are counted."""


def read_log(source: Source) -> tuple[pa.Table, Input]:
    """All rows of a log, and what was skipped. Never raises for what the file holds."""
    stream = Stream(source.path)
    reader = _Reader(source)
    ahead = Ahead(chunks(stream.text()))
    tables: list[pa.Table] = []
    for chunk in ahead:
        tables += reader.chunk(chunk, ahead)
    if not tables:
        tables = [conform(pa.table({"line": pa.array([], pa.int64())}))]
    table = _untraced(pa.concat_tables(tables))
    given = Input(source.shown, "log", source.bytes, table.num_rows, [*reader.skipped, *stream.trouble])
    if reader.more_skipped:
        given.skipped.append(Skipped(None, f"{reader.more_skipped} more places like these"))
    given.notes = reader.notes(stream)
    return table, given


def _untraced(table: pa.Table) -> pa.Table:
    """*table* without the lines that only begin like an exception, where the log has tracebacks: they are the last lines of those."""
    name = table.column("name")
    bare = pc.equal(name, "bare-exception")
    if not pc.any(bare).as_py() or not pc.any(pc.equal(name, "python-exception")).as_py():
        return table
    return table.filter(pc.invert(pc.fill_null(bare, False)))


class _Reader:
    """What is known of one log while its chunks go by."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.prefix: heads.Prefix | None = None
        self.skipped: list[Skipped] = []
        self.more_skipped = 0
        self.rank = rank_of_name(source.shown)
        local = local_rank_of_name(source.shown)
        self.label = f"local {local}" if local is not None else None
        self.lines = 0
        self.tail = b""
        self.odd = True
        self.taken: blocks.Taken = {}

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

    def chunk(self, chunk: Chunk, ahead: Ahead) -> list[pa.Table]:
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
        tables = self._lines(chunk)
        found = find(data, chunk.newlines)
        if found is None:
            return tables
        columns = self._columns(chunk, found)
        for index in np.unique(found.parser).tolist():
            parser = marks().parsers[index]
            which = np.flatnonzero(found.parser == index)
            if isinstance(parser, RecordParser):
                tables += self._records(parser, columns, which)
            elif isinstance(parser, BlockParser):
                made = blocks.rows(parser, chunk, found, columns, which, ahead, self.prefix, self.taken, self._skip)
                tables += [self._finish(made)] if made is not None else []
        return tables

    def _columns(self, chunk: Chunk, found: Found, whole: pa.Array | None = None) -> dict[str, pa.Array]:
        """What is known of each record from its head. whole: the lines themselves, where a mark may stand in the launcher's prefix (`: `)."""
        even = pa.array(2 * np.arange(len(found.start)))
        self.odd = b"\x1b" in chunk.data or b"\0" in chunk.data
        before = heads.without_bars(heads.clean(cut(chunk.data, found.head, found.start).take(even), odd=self.odd))
        assert self.prefix is not None
        begin = before.take(pa.array(found.opener)) if whole is None else whole
        has_prefix = bool(self.prefix.found) or pc.any(pc.match_substring_regex(begin, r"^\[rank\d")).as_py()
        known = heads.parse(before, begin if has_prefix else None, self.prefix)
        if self.rank is not None:
            known["rank"] = pc.coalesce(known["rank"], pa.scalar(self.rank, pa.int32()))
        if self.label is not None:
            known["label"] = pc.coalesce(known["label"], pa.scalar(self.label, pa.string()))
        known["line"] = pa.array(chunk.first + found.line)
        known["_head"] = known["_own_head"] = before
        if self.prefix.found:  # what parsers of records ask of a head holds behind a launcher's prefix, too
            begins = pa.array(found.opener == np.arange(len(found.start)))
            known["_own_head"] = pc.if_else(begins, heads.without(before, self.prefix), before)
        known["_pieces"] = cut(chunk.data, found.start, found.end)
        return known

    def _lines(self, chunk: Chunk) -> list[pa.Table]:
        """The rows of the parsers of whole lines."""
        found = find_lines(chunk.data, chunk.newlines)
        if found is None:
            return []
        lines, parser, place = found
        self.odd = b"\x1b" in chunk.data or b"\0" in chunk.data
        assert self.prefix is not None
        pieces = heads.clean(cut(chunk.data, lines.head, lines.end).take(pa.array(2 * np.arange(len(lines.start)))), odd=self.odd)
        whole = heads.without(pieces, self.prefix)
        matches: list[tuple[LineParser, np.ndarray, dict[str, pa.Array]]] = []
        wanted = np.zeros(len(lines.start), bool)
        for index in np.unique(parser).tolist():
            claimed, mine = line_marks().parsers[index], place[parser == index]
            assert isinstance(claimed, LineParser)
            if claimed.once:
                mine = mine[np.unique(whole.take(pa.array(mine)).dictionary_encode().indices.to_numpy(), return_index=True)[1]]
            texts = whole.take(pa.array(mine))
            match = pc.extract_regex(texts, claimed.pattern)
            keep = pc.is_valid(match)
            mine, match, texts = mine[keep.to_numpy(zero_copy_only=False)], match.filter(keep), texts.filter(keep)
            groups = {match.type.field(i).name: match.field(i) for i in range(match.type.num_fields)} | {"line": texts}
            matches.append((claimed, mine, groups))
            wanted[mine] = True
        if not wanted.any():
            return []
        some = np.flatnonzero(wanted)
        columns = self._columns(
            chunk,
            Found(
                lines.parser[some],
                lines.head[some],
                lines.start[some],
                lines.end[some],
                lines.line[some],
                lines.line_start[some],
                np.arange(len(some)),
            ),
            pieces.take(pa.array(some)),
        )
        columns |= heads.yearless(columns, pieces.take(pa.array(some)), self.prefix)
        row = np.cumsum(wanted) - 1  # of a line among those that are wanted
        tables = []
        for claimed, mine, groups in matches:
            if len(mine):
                known = {k: v.take(pa.array(row[mine])) for k, v in columns.items() if not k.startswith("_")}
                tables += self._parsed(claimed.parse, Records(groups, known))
        return tables

    def _records(self, parser: RecordParser, columns: dict[str, pa.Array], which: np.ndarray) -> list[pa.Table]:
        take = pa.array(which)
        mine = {k: v.take(take) for k, v in columns.items() if not k.startswith("_")}
        texts = heads.clean(columns["_pieces"].take(pa.array(2 * which)), odd=self.odd)
        match = pc.extract_regex(texts, parser.pattern)
        keep, torn = pc.is_valid(match), pc.is_null(match)
        groups = {match.type.field(i).name: match.field(i) for i in range(match.type.num_fields)}
        if parser.head:
            match_head = pc.extract_regex(columns["_own_head"].take(take), parser.head)
            keep, torn = pc.and_(keep, pc.is_valid(match_head)), pc.and_(torn, pc.is_valid(match_head))
            groups |= {match_head.type.field(i).name: match_head.field(i) for i in range(match_head.type.num_fields)}
        if parser.torn and pc.any(torn).as_py():
            torn = pc.and_(torn, pc.match_substring_regex(texts, parser.torn))
            self.more_skipped += max(0, pc.sum(torn).as_py() - _MOST_SKIPPED)
            for line, text in zip(mine["line"].filter(torn)[:_MOST_SKIPPED].to_pylist(), texts.filter(torn)[:_MOST_SKIPPED].to_pylist(), strict=True):
                self._skip(Skipped(line, f"{parser.key}: the record is broken off: {text[:80]!r}"))
        return self._parsed(parser.parse, Records(groups, mine).where(keep))

    def _parsed(self, parse: Callable[[Records], Iterable[pa.Table]], found: Records) -> list[pa.Table]:
        if not len(found):
            return []
        out = [self._finish(rows) for rows in parse(found) if rows.num_rows]
        for place in found.skipped:
            self._skip(place)
        return out

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
        rows = rows.append_column("file", constant(self.source.shown, WORD, rows.num_rows))
        return conform(rows)

    def _skip(self, place: Skipped) -> None:
        if len(self.skipped) < _MOST_SKIPPED:
            self.skipped.append(place)
        else:
            self.more_skipped += 1
