"""A text log: blocks of lines → records of all parsers → rows of the event table."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelog.events import EVENTS, WORD, Input, Skipped, conform, constant
from pipelog.parsing import BlockParser, LineParser, RecordParser, Records, taken
from pipelog.reading import blocks, heads, stamped
from pipelog.reading.blocks import Ahead
from pipelog.reading.files import Source, local_rank_of_name, rank_of_name
from pipelog.reading.json_lines import Note
from pipelog.reading.marks import PROGRESS_BAR, RANK_TAG, Found, Hits, cut, find, find_lines, scan
from pipelog.reading.streams import Chunk, Stream, chunks

_SAMPLE = 256 << 10
_MOST_SKIPPED = 200
"""How many skipped places of one file are listed; the rest are counted."""


def read_log(source: Source, note: Note | None = None) -> tuple[pa.Table, Input]:
    """All rows of a log, and what was skipped. Never raises for what the file holds. note: told of each line of a log of JSON objects."""
    stream = Stream(source.path)
    reader = _Reader(source)
    ahead = Ahead(chunks(stream.text(note=note)))
    tables: list[pa.Table] = []
    for chunk in ahead:
        tables += reader.chunk(chunk, ahead)
    if not tables:
        tables = [conform(pa.table({"line": pa.array([], pa.int64())}))]
    table = _untraced(pa.concat_tables(tables))
    table = pa.concat_tables([table, reader.stamps(table)])
    given = Input(source.shown, "log", source.bytes, table.num_rows, [*reader.skipped, *stream.trouble])
    if reader.more_skipped:
        given.skipped.append(Skipped(None, f"{reader.more_skipped} more places like these"))
    given.notes = reader.notes(stream)
    return table, given


def _untraced(table: pa.Table) -> pa.Table:
    """*table* without the lines that only begin like an exception, where the log has tracebacks: they are the last lines of those."""
    name = table.column("name")
    if not {"bare-exception", "python-exception"} <= {word for chunk in name.chunks for word in chunk.dictionary.to_pylist()}:
        return table
    return table.filter(pc.invert(pc.fill_null(pc.equal(name, "bare-exception"), False)))


def _first_of_equal(texts: pa.Array) -> np.ndarray:
    """Where the first of those stands that are equal."""
    code = texts.dictionary_encode().indices.to_numpy()
    return np.flatnonzero(np.diff(np.maximum.accumulate(code), prepend=-1))


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
        self.tail = self.head = b""
        self.final: Chunk | None = None
        self.odd = self.tagged = self.barred = True
        self.taken: blocks.Taken = {}

    def notes(self, stream: Stream) -> dict[str, Any]:
        """What the report says of the file as a whole."""
        fragment = self.tail and not self.tail.endswith(b"\n")
        return {
            "prefixes": [*self.prefix.found, *(["ranked"] if self.prefix.fields else [])] if self.prefix else [],
            "rank_from_name": self.rank,
            "lines": self.lines,
            "unfinished_line": self.tail[-400:].decode("utf-8", "replace") if fragment else None,
            "cut_stream": bool(stream.trouble),
        }

    def stamps(self, table: pa.Table) -> pa.Table:
        """Rows of the times at both ends of the file that those of *table*, all others of it, lack."""
        if self.final is None or self.prefix is None or not table.num_rows:
            return table.slice(0, 0)
        return self._finish(stamped.rows(self.head, self.final, table, self.prefix))

    def chunk(self, chunk: Chunk, ahead: Ahead) -> list[pa.Table]:
        """The rows of one chunk."""
        data = chunk.data
        if self.prefix is None:
            self.prefix = heads.prefix(data[:_SAMPLE])
        if data:
            self.head = self.head if self.final else data[: data.rfind(b"\n", 0, stamped.HEAD) + 1]
            self.final = chunk
            self.tail = data[data.rfind(b"\n", 0, len(data) - 1) + 1 :]
        if chunk.last:
            self.lines = chunk.first - 1 + len(chunk.newlines) + bool(data and not data.endswith(b"\n"))
        if len(data) >= 2**31 - 1:  # cannot be: chunks are limited
            self._skip(Skipped(chunk.first, "a line of more than 2 GiB"))
            return []
        hits = scan(data)
        self.odd = b"\0" in data or b"\x1b" in data
        self.tagged, self.barred = hits.hold(RANK_TAG), hits.hold(PROGRESS_BAR)
        tables = self._lines(chunk, hits)
        found = find(hits, data, chunk.newlines)
        if found is None:
            return tables
        columns = self._columns(chunk, found)
        for index in np.flatnonzero(np.bincount(found.parser)).tolist():
            parser = hits.marks.records[index]
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
        before = heads.clean(cut(chunk.data, found.head, found.start).take(even), odd=self.odd)
        before = heads.without_bars(before) if self.barred else before
        assert self.prefix is not None
        begin = None  # where there is no prefix to look for
        if self.prefix.found or self.prefix.fields or self.tagged:
            begin = before.take(pa.array(found.opener)) if whole is None else whole
        known = heads.parse(before, begin, self.prefix, tagged=self.tagged)
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

    def _lines(self, chunk: Chunk, hits: Hits) -> list[pa.Table]:
        """The rows of the parsers of whole lines."""
        found = find_lines(hits, chunk.data, chunk.newlines)
        if found is None:
            return []
        lines, claims = found
        assert self.prefix is not None
        raw = cut(chunk.data, lines.head, lines.end)
        for index, (claimed, mine) in enumerate(claims):
            if claimed.once:  # before anything is done with them: there may be very many
                claims[index] = claimed, mine[_first_of_equal(raw.take(pa.array(2 * mine)))]
        some = np.unique(np.concatenate([mine for _, mine in claims]))
        pieces = heads.clean(raw.take(pa.array(2 * some)), odd=self.odd)
        whole = heads.without(pieces, self.prefix) if self.prefix.found or self.tagged else pieces
        matches: list[tuple[LineParser, np.ndarray, dict[str, pa.Array]]] = []
        wanted = np.zeros(len(some), bool)
        for claimed, claim in claims:
            mine = np.searchsorted(some, claim)
            if claimed.once:  # as well where only the prefix differs
                mine = mine[_first_of_equal(whole.take(pa.array(mine)))]
            texts = whole.take(pa.array(mine))
            match = pc.extract_regex(texts, claimed.pattern)
            keep = pc.is_valid(match)
            mine, match, texts = mine[keep.to_numpy(zero_copy_only=False)], match.filter(keep), texts.filter(keep)
            groups = {match.type.field(i).name: match.field(i) for i in range(match.type.num_fields)} | {"line": texts}
            matches.append((claimed, mine, groups))
            wanted[mine] = True
        if not wanted.any():
            return []
        own = pieces.filter(pa.array(wanted))
        columns = self._columns(chunk, lines.of(some[wanted]), own)
        columns |= heads.yearless(columns, own, self.prefix)
        row = np.cumsum(wanted) - 1  # of a line among those that are wanted
        tables = []
        for claimed, mine, groups in matches:
            if len(mine):
                known = {k: taken(v, pa.array(row[mine])) for k, v in columns.items() if not k.startswith("_")}
                tables += self._parsed(claimed.parse, Records(groups, known))
        return tables

    def _records(self, parser: RecordParser, columns: dict[str, pa.Array], which: np.ndarray) -> list[pa.Table]:
        take = pa.array(which)
        mine = {k: taken(v, take) for k, v in columns.items() if not k.startswith("_")}
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
