"""Records over several lines: a block parser gets the lines of the same writer, across interleaved ranks and chunk borders."""

from __future__ import annotations

import bisect
import functools
import itertools
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelog.events import EVENTS, Skipped
from pipelog.parsing import Block, BlockParser, Row
from pipelog.reading import heads
from pipelog.reading.marks import Found
from pipelog.reading.streams import Chunk

_MOST_BLOCKS = 32
"""How many blocks of a kind may begin on one line: glued output has a few, a line with thousands is no log."""
_KNOWN = ("rank", "host", "label", "clock", "start_ns", "line")

Skip = Callable[[Skipped], None]
Taken = dict[tuple[str, Any], int]
"""Of each parser that takes blocks as a whole, and each writer: the last line that was read."""


class Ahead:
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


def rows(
    parser: BlockParser,
    chunk: Chunk,
    found: Found,
    columns: dict[str, pa.Array],
    which: np.ndarray,
    ahead: Ahead,
    prefix: heads.Prefix,
    taken: Taken,
    skip: Skip,
) -> pa.Table | None:
    """The rows of all blocks of one parser in a chunk, None where there is none."""
    before = columns["_head"].take(pa.array(which))
    keep = pc.match_substring_regex(before, parser.head).to_numpy(zero_copy_only=False) if parser.head else np.ones(len(which), bool)
    heads_of = before.to_pylist()
    out: list[Row] = []
    lines = _Lines(chunk, ahead, prefix)
    for n, i, limit in _few(parser, found, which, skip):
        if not keep[n]:
            continue
        block, who = _block(parser, chunk, found, i, sys.maxsize if parser.whole else limit, heads_of[n], lines, prefix)
        if parser.whole:
            if block.line <= taken.get((parser.key, who), 0):
                continue
            taken[parser.key, who] = block.line
            block.note = functools.partial(taken.__setitem__, (parser.key, who))
        known = {k: columns[k][i].as_py() for k in _KNOWN}
        block.rank = known["rank"]
        for row in parser.parse(block):
            if isinstance(row, Skipped):
                skip(row)
            else:
                out.append(known | row)
    if not out:
        return None
    names = list(dict.fromkeys(key for row in out for key in row))
    return pa.table({name: _column(name, out, skip) for name in names})


def _few(parser: BlockParser, found: Found, which: np.ndarray, skip: Skip) -> Iterator[tuple[int, int, int]]:
    """(number, place, where the next mark stands) of the marks that may begin a block."""
    line, begun = -1, 0
    for n, (i, limit) in enumerate(zip(which.tolist(), [*found.start[which[1:]].tolist(), sys.maxsize], strict=True)):
        begun = begun + 1 if found.line_start[i] == line else 1
        line = int(found.line_start[i])
        if begun <= _MOST_BLOCKS:
            yield n, i, limit
        elif begun == _MOST_BLOCKS + 1:
            skip(Skipped(None, f"{parser.key}: a line with more than {_MOST_BLOCKS} of them"))


def _block(parser: BlockParser, chunk: Chunk, found: Found, i: int, limit: int, head: str, lines: _Lines, prefix: heads.Prefix) -> tuple[Block, Any]:
    start = int(found.start[i])
    newline = chunk.data.find(b"\n", start)
    newline = len(chunk.data) if newline < 0 else newline
    raw = chunk.data[int(found.line_start[i]) : start]
    before = heads.without_bar(heads.clean_line(raw[raw.rfind(b"\r") + 1 :]))
    *_, (who, own) = prefix.writers(before)
    first = heads.clean_line(chunk.data[start : min(newline, limit)].partition(b"\r")[0])
    number = int(chunk.first + found.line[i])
    return Block(heads.untorn(first), head, number, lines.of(who, number, parser.most - 1), before=own), who


class _Lines:
    """The lines from some place on, into the chunks to come where need be, each cleaned and given to its writer once for all blocks of a parser."""

    def __init__(self, chunk: Chunk, ahead: Ahead, prefix: heads.Prefix) -> None:
        self._chunk, self._ahead, self._prefix = chunk, ahead, prefix
        self._source: Iterator[tuple[int, bytes]] = iter(())
        self._reached = 0
        self._of: dict[Any, tuple[list[int], list[str]]] = {}

    def of(self, who: Any, after: int, most: int) -> Iterator[tuple[int, str]]:
        """(number, text without launcher prefix, colours and NUL) of the lines of one writer among the *most* lines after line *after*."""
        if after >= self._reached:  # blocks come in order: what lies before is not asked for again
            self._source, self._reached, self._of = self._raw(after), after, {}
        numbers, texts = self._of.setdefault(who, ([], []))
        at = bisect.bisect_right(numbers, after)
        while True:
            while at < len(numbers):
                if numbers[at] > after + most:
                    return
                yield numbers[at], texts[at]
                at += 1
            if self._reached >= after + most or not self._more():
                return

    def _more(self) -> bool:
        before = self._reached
        for number, raw in itertools.islice(self._source, 64):
            text = heads.clean_line(raw)
            for who, own in self._prefix.writers(text):
                numbers, texts = self._of.setdefault(who, ([], []))
                numbers.append(number)
                texts.append(own)
            self._reached = number
        return self._reached > before

    def _raw(self, after: int) -> Iterator[tuple[int, bytes]]:
        index = after - self._chunk.first
        begin = int(self._chunk.newlines[index]) + 1 if index < len(self._chunk.newlines) else len(self._chunk.data)
        for data, start, first in itertools.chain([(self._chunk.data, begin, after + 1)], ((c.data, 0, c.first) for c in self._ahead.coming())):
            at, line = start, first
            while at < len(data):
                end = data.find(b"\n", at)
                end = len(data) if end < 0 else end
                yield line, data[at:end]
                at, line = end + 1, line + 1


def _column(name: str, out: list[Row], skip: Skip) -> pa.Array:
    """One column of a block's rows; what its type cannot hold becomes null and is listed as skipped."""
    dtype = EVENTS.field(name).type
    dtype = dtype.value_type if pa.types.is_dictionary(dtype) else dtype
    values = [row.get(name) for row in out]
    try:
        return pa.array(values, dtype)
    except (pa.ArrowInvalid, OverflowError):
        return pa.array([_held(name, row, dtype, skip) for row in out], dtype)


def _held(name: str, row: Row, dtype: pa.DataType, skip: Skip) -> Any:
    try:
        return pa.scalar(row.get(name), dtype).as_py()
    except (pa.ArrowInvalid, OverflowError):
        skip(Skipped(row["line"], f"{name}: {str(row[name])[:40]} is out of range"))
        return None
