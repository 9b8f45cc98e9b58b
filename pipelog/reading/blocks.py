"""Records over several lines: a block parser gets the lines of the same writer, across interleaved ranks and chunk borders."""

from __future__ import annotations

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
    for n, i, limit in _few(parser, found, which, skip):
        if not keep[n]:
            continue
        known = {k: columns[k][i].as_py() for k in _KNOWN}
        block, who = _block(parser, chunk, found, i, limit, heads_of[n], ahead, prefix)
        if parser.whole:
            if block.line <= taken.get((parser.key, who), 0):
                continue
            block.note = functools.partial(taken.__setitem__, (parser.key, who))
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


def _block(parser: BlockParser, chunk: Chunk, found: Found, i: int, limit: int, head: str, ahead: Ahead, prefix: heads.Prefix) -> tuple[Block, Any]:
    start = int(found.start[i])
    newline = chunk.data.find(b"\n", start)
    newline = len(chunk.data) if newline < 0 else newline
    writer = prefix.writer(chunk.data[int(found.line_start[i]) : start].decode("utf-8", "replace"))[0]
    first = heads.clean_line(chunk.data[start : min(newline, limit)].partition(b"\r")[0])
    number = int(chunk.first + found.line[i])
    rest = _lines(chunk, newline + 1, number + 1, ahead, parser.most - 1)
    own = ((n, text[end:]) for n, text, (who, end) in ((n, t, prefix.writer(t)) for n, t in rest) if who == writer)
    return Block(first, head, number, own), writer


def _lines(chunk: Chunk, begin: int, number: int, ahead: Ahead, most: int) -> Iterator[tuple[int, str]]:
    """Up to *most* lines from *begin* on, into the chunks to come where need be; colours and NUL removed."""
    given = 0
    for data, start, first in itertools.chain([(chunk.data, begin, number)], ((c.data, 0, c.first) for c in ahead.coming())):
        at, line = start, first
        while at < len(data) and given < most:
            end = data.find(b"\n", at)
            end = len(data) if end < 0 else end
            yield line, heads.clean_line(data[at:end])
            at, line, given = end + 1, line + 1, given + 1
        if given >= most:
            return


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
