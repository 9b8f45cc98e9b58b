"""The scan: where, in a block of text, which parser's record begins and ends.

The marks of all parsers are one Hyperscan database, which finds them also where they overlap, at 2 GB/s as long as there are none; everything
after it is NumPy on positions.
"""

from __future__ import annotations

import functools
import threading
from dataclasses import dataclass

import hyperscan
import numpy as np
import pyarrow as pa

from pipelog import parsers as package
from pipelog.errors import BadPlugin
from pipelog.parsing import BLOCKS, LINES, RECORDS, BlockParser, LineParser, RecordParser
from pipelog.registry import load

_SHADOW, _NONE = -1, -2
_NOWHERE = np.iinfo(np.int64).max
RANK_TAG, PROGRESS_BAR = b"[rank", b"%|"
"""No marks, but of a block without them less has to be asked; the scan tells it for less than a search of its own."""


@dataclass(frozen=True, slots=True)
class Marks:
    """The database, and for each of its literals: the index of the parser of records or blocks and of the parser of lines that it belongs to (-1 for
    a shadow, -2 for none), whether it is a word, and how many bytes it has.
    """

    database: hyperscan.Database
    literals: tuple[bytes, ...]
    records: tuple[RecordParser | BlockParser, ...]
    lines: tuple[LineParser, ...]
    record_of: np.ndarray
    line_of: np.ndarray
    wordy: np.ndarray
    sizes: np.ndarray


@dataclass(frozen=True, slots=True)
class Hits:
    """All marks in one block of text, also those that overlap: which, and where as byte offsets; leftmost first, of those that begin at one place the longest."""

    marks: Marks
    literal: np.ndarray
    start: np.ndarray
    end: np.ndarray

    def hold(self, literal: bytes) -> bool:
        """Whether *literal*, which is one of the database's, stands somewhere."""
        return bool((self.literal == self.marks.literals.index(literal)).any())


@functools.cache
def marks() -> Marks:
    """The marks of all parsers. Raises BadPlugin where two parsers of records, or two of lines, claim one."""
    load(package)
    return _marks((*RECORDS.values(), *BLOCKS.values()), tuple(LINES.values()))


def _marks(records: tuple[RecordParser | BlockParser, ...], lines: tuple[LineParser, ...]) -> Marks:
    record_of, line_of = _owners(records), _owners(lines)
    for parser in records:
        for shadow in getattr(parser, "shadows", ()):
            record_of.setdefault(shadow.encode(), _SHADOW)
    literals = sorted({*record_of, *line_of, RANK_TAG, PROGRESS_BAR})
    database = hyperscan.Database()
    database.compile(literals, ids=range(len(literals)), elements=len(literals), flags=[0] * len(literals), literal=True)
    return Marks(
        database,
        tuple(literals),
        records,
        lines,
        np.array([record_of.get(literal, _NONE) for literal in literals], np.int64),
        np.array([line_of.get(literal, _NONE) for literal in literals], np.int64),
        np.array([literal[:1].isalpha() for literal in literals], bool),
        np.array([len(literal) for literal in literals], np.int64),
    )


def _owners(parsers: tuple[RecordParser | BlockParser | LineParser, ...]) -> dict[bytes, int]:
    owner: dict[bytes, int] = {}
    for index, parser in enumerate(parsers):
        for mark in parser.marks:
            if owner.setdefault(mark.encode(), index) != index:
                raise BadPlugin(
                    f"the mark {mark!r} belongs to {parsers[owner[mark.encode()]].key} and to {parser.key}: only one parser of its sort may claim it"
                )
    return owner


_SCRATCH = threading.Lock()
"""A database has room for one scan at a time."""


def scan(data: bytes) -> Hits:
    """Every mark in *data*."""
    table = marks()
    found: list[int] = []
    put = found.append  # one number per mark: what this callback does is most of the time of a scan

    def note(literal: int, _start: int, end: int, _flags: int, _context: object) -> None:
        put(end << 16 | literal)

    with _SCRATCH:
        table.database.scan(data, match_event_handler=note)
    hits = np.fromiter(found, np.int64, len(found))
    literal, end = hits & 0xFFFF, hits >> 16
    start = end - table.sizes[literal]
    order = np.lexsort((-end, start))
    return Hits(table, literal[order], start[order], end[order])


@dataclass(frozen=True, slots=True)
class Found:
    """Records of one block of text, in order. All positions are byte offsets into the block.

    parser: index into `Marks.records`. head..start: what stands before; start..end: the record. line: 0 first.
    opener: index of the first record on the same line.
    """

    parser: np.ndarray
    head: np.ndarray
    start: np.ndarray
    end: np.ndarray
    line: np.ndarray
    line_start: np.ndarray
    opener: np.ndarray

    def of(self, some: np.ndarray) -> Found:
        """These records alone, each the first of its line."""
        return Found(
            self.parser[some], self.head[some], self.start[some], self.end[some], self.line[some], self.line_start[some], np.arange(len(some))
        )


def find(hits: Hits, data: bytes, newlines: np.ndarray) -> Found | None:
    """All records of *data*, whole lines that end at *newlines*; None where there is none."""
    literal, start = _apart(hits)
    if not len(start):
        return None
    parser = hits.marks.record_of[literal]
    buffer = np.frombuffer(data, np.uint8)
    # `global_step=7` and `total_steps: 9` hold marks that begin no record: a mark that is a word must begin one
    before = np.where(start > 0, buffer[np.maximum(start - 1, 0)], 32)
    inside = hits.marks.wordy[literal] & (((before | 32) - 97 < 26) | (before == 95))
    keep = (parser >= 0) & ~inside
    if not keep.any():
        return None
    parser, start = parser[keep], start[keep]
    line = np.searchsorted(newlines, start)
    ends = np.append(newlines, len(data))
    line_start = np.concatenate(([0], newlines + 1))[line]
    end, head = ends[line].copy(), line_start.copy()
    opener = np.maximum.accumulate(np.where(np.concatenate(([True], line[1:] != line[:-1])), np.arange(len(line)), 0))
    if b"\r" in data:  # a progress bar writes over its line: what follows \r begins anew
        returns = np.append(np.flatnonzero(buffer == 13), len(data))
        after = np.searchsorted(returns, start)
        end = np.minimum(end, returns[after])
        head = np.where(after > 0, np.maximum(head, returns[np.maximum(after - 1, 0)] + 1), head)
    end[:-1] = np.minimum(end[:-1], start[1:])
    head[1:] = np.maximum(head[1:], start[:-1])
    return Found(parser, head, start, end, line, line_start, opener)


def find_lines(hits: Hits, data: bytes, newlines: np.ndarray) -> tuple[Found, list[tuple[LineParser, np.ndarray]]] | None:
    """The lines that parsers of whole lines want, and for each such parser, in order, which of them.

    start is the first mark on a line (of parsers that want each line, if there is one), end the end of the line; what a progress bar wrote over counts as a line of its own.
    """
    parser = hits.marks.line_of[hits.literal]
    mine = parser >= 0
    if not mine.any():
        return None
    parser, start = parser[mine], hits.start[mine]
    borders = np.union1d(newlines, np.flatnonzero(np.frombuffer(data, np.uint8) == 13)) if b"\r" in data else newlines
    piece = np.searchsorted(borders, start)
    fresh = np.concatenate(([True], piece[1:] != piece[:-1]))  # they come in order
    pieces, opening, which = piece[fresh], np.flatnonzero(fresh), np.cumsum(fresh) - 1
    claims = []
    for index in np.flatnonzero(np.bincount(parser)).tolist():
        mine = which[parser == index]
        claims.append((hits.marks.lines[index], mine[np.diff(mine, prepend=-1) > 0]))  # each line once
    begins = np.array([parser.once for parser in hits.marks.lines])[parser]  # what is said once has marks that stand in heads: they cut none
    others = np.minimum.reduceat(np.where(begins, _NOWHERE, start), opening)
    start = np.where(others < _NOWHERE, others, start[opening])
    line = np.searchsorted(newlines, start)
    head = np.concatenate(([0], borders + 1))[pieces]
    line_start = np.concatenate(([0], newlines + 1))[line]
    lines = Found(np.full(len(pieces), -1), head, start, np.append(borders, len(data))[pieces], line, line_start, np.arange(len(pieces)))
    return lines, claims


def _apart(hits: Hits) -> tuple[np.ndarray, np.ndarray]:
    """(literal, start) of the marks of records, none inside another: the leftmost first, of those that begin at one place the longest."""
    mine = hits.marks.record_of[hits.literal] > _NONE
    literal, start, end = hits.literal[mine], hits.start[mine], hits.end[mine]
    kept = np.concatenate(([True], start[1:] >= np.maximum.accumulate(end)[:-1]))[: len(start)]  # behind all that come before it
    free = 0
    for i in np.flatnonzero(~kept).tolist():  # which hang together with the one before, and are few
        free = int(end[i - 1]) if kept[i - 1] else free
        if start[i] >= free:
            kept[i] = True
    return literal[kept], start[kept]


def cut(data: bytes, begin: np.ndarray, end: np.ndarray) -> pa.Array:
    """The pieces begin..end of *data*, which follow one another and do not overlap, as an array of bytes, without a copy.

    The array holds the pieces at its even places and what lies between them at the odd ones.
    """
    offsets = np.empty(2 * len(begin) + 1, np.int32)
    offsets[0:-1:2], offsets[1::2], offsets[-1] = begin, end, end[-1]
    return pa.Array.from_buffers(pa.binary(), 2 * len(begin), [None, pa.py_buffer(offsets), pa.py_buffer(data)])
