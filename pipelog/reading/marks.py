"""The scan: where, in a block of text, which parser's record begins and ends.

The marks of all parsers go into a few Aho-Corasick automata; everything after them is NumPy on positions.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from ahocorasick_rs import BytesAhoCorasick, Implementation, MatchKind

from pipelog import parsers as package
from pipelog.parsing import BLOCKS, LINES, RECORDS, BlockParser, LineParser, RecordParser
from pipelog.registry import load

Parser = RecordParser | BlockParser | LineParser

_TOGETHER = 64
"""Literals in one automaton: up to so many are first searched with SIMD (Teddy), so that three automata take two thirds of the time of one."""


@dataclass(frozen=True, slots=True)
class Marks:
    """Automata, and for each of their literals, in order, the index of the parser it belongs to, -1 for a shadow."""

    automata: tuple[BytesAhoCorasick, ...]
    firsts: tuple[int, ...]
    parsers: tuple[Parser, ...]
    owner: np.ndarray
    wordy: np.ndarray


@functools.cache
def marks() -> Marks:
    """The marks of all parsers of records and blocks. A literal belongs to one parser; raises ValueError where two claim it."""
    load(package)
    return _marks((*RECORDS.values(), *BLOCKS.values()))


@functools.cache
def line_marks() -> Marks:
    """The marks of all parsers of whole lines: searched for themselves, so that they hide no record."""
    load(package)
    return _marks(tuple(LINES.values()), _apart)


def _in_turn(literals: list[bytes]) -> list[list[bytes]]:
    """As few groups as may be searched for together."""
    some = max(1, -(-len(literals) // max(1, -(-len(literals) // _TOGETHER))))
    return [literals[i : i + some] for i in range(0, len(literals), some)]


def _apart(literals: list[bytes]) -> list[list[bytes]]:
    """Groups in which no literal can hide another: `rror: ` is in `error: pyxis: `, and `: Permission denied` ends as `Permission denied (` begins."""
    groups: list[list[bytes]] = [[] for _ in range(-(-len(literals) // _TOGETHER))]
    for literal in literals:
        free = (g for g in groups if len(g) < _TOGETHER and not any(_overlap(literal, other) for other in g))
        group = min(free, key=len, default=None)
        if group is None:
            groups.append(group := [])
        group.append(literal)
    return groups


def _overlap(one: bytes, other: bytes) -> bool:
    """Whether both may stand at once where they share more than one byte: one in the other, or the end of one in the beginning of the other."""
    short = min(len(one), len(other))
    return one in other or other in one or any(one[-n:] == other[:n] or other[-n:] == one[:n] for n in range(2, short))


def _marks(parsers: tuple[Parser, ...], grouped: Callable[[list[bytes]], list[list[bytes]]] = _in_turn) -> Marks:
    owner: dict[bytes, int] = {}
    for index, parser in enumerate(parsers):
        for mark in parser.marks:
            if owner.setdefault(mark.encode(), index) != index:
                raise ValueError(f"the mark {mark!r} belongs to {parsers[owner[mark.encode()]].key} and to {parser.key}")
    for parser in parsers:
        for shadow in getattr(parser, "shadows", ()):
            owner.setdefault(shadow.encode(), -1)
    groups = grouped(sorted(owner))
    literals = list(itertools.chain.from_iterable(groups))
    firsts = tuple(itertools.accumulate(map(len, groups), initial=0))[: len(groups)]
    automata = tuple(BytesAhoCorasick(group, matchkind=MatchKind.LeftmostLongest, implementation=Implementation.DFA) for group in groups)
    wordy = np.array([literal[:1].isalpha() for literal in literals], bool)
    return Marks(automata, firsts, parsers, np.array([owner[literal] for literal in literals], np.int32), wordy)


@dataclass(frozen=True, slots=True)
class Found:
    """Records of one block of text, in order. All positions are byte offsets into the block.

    parser: index into `Marks.parsers`. head..start: what stands before; start..end: the record. line: 0 first.
    opener: index of the first record on the same line.
    """

    parser: np.ndarray
    head: np.ndarray
    start: np.ndarray
    end: np.ndarray
    line: np.ndarray
    line_start: np.ndarray
    opener: np.ndarray


def find(data: bytes, newlines: np.ndarray) -> Found | None:
    """All records of *data*, whole lines that end at *newlines*; None where there is none."""
    table = marks()
    literal, start = _hits(table, data)
    if not len(start):
        return None
    parser = table.owner[literal]
    buffer = np.frombuffer(data, np.uint8)
    # `global_step=7` and `total_steps: 9` hold marks that begin no record: a mark that is a word must begin one
    before = np.where(start > 0, buffer[np.maximum(start - 1, 0)], 32)
    inside = table.wordy[literal] & (((before | 32) - 97 < 26) | (before == 95))
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


def find_lines(data: bytes, newlines: np.ndarray) -> tuple[Found, np.ndarray, np.ndarray] | None:
    """The lines that parsers of whole lines want, and the pairs of parser and line: (lines, parser, index of the line).

    start is the first mark on a line, end the end of the line; what a progress bar wrote over counts as a line of its own.
    """
    table = line_marks()
    parts = []
    for automaton, first in zip(table.automata, table.firsts, strict=True):
        hits = automaton.find_matches_as_indexes(data)
        part = np.fromiter(itertools.chain.from_iterable(hits), np.int64, 3 * len(hits)).reshape(-1, 3)
        part[:, 0] += first
        parts.append(part)
    found = np.concatenate(parts) if parts else np.zeros((0, 3), np.int64)
    if not len(found):
        return None
    found = found[np.argsort(found[:, 1], kind="stable")]
    literal, start = found[:, 0], found[:, 1]
    borders = np.union1d(newlines, np.flatnonzero(np.frombuffer(data, np.uint8) == 13)) if b"\r" in data else newlines
    piece = np.searchsorted(borders, start)
    pieces, opening, which = np.unique(piece, return_index=True, return_inverse=True)
    claims = np.unique(table.owner[literal].astype(np.int64) * len(pieces) + which)  # each pair once
    start = start[opening]
    line = np.searchsorted(newlines, start)
    head = np.concatenate(([0], borders + 1))[pieces]
    line_start = np.concatenate(([0], newlines + 1))[line]
    lines = Found(np.full(len(pieces), -1), head, start, np.append(borders, len(data))[pieces], line, line_start, np.arange(len(pieces)))
    return lines, claims // len(pieces), claims % len(pieces)


def _hits(table: Marks, data: bytes) -> tuple[np.ndarray, np.ndarray]:
    """Which literals stand where: leftmost first, of those that begin at one place the longest, none inside another."""
    parts = []
    for automaton, first in zip(table.automata, table.firsts, strict=True):
        hits = automaton.find_matches_as_indexes(data)
        part = np.fromiter(itertools.chain.from_iterable(hits), np.int64, 3 * len(hits)).reshape(-1, 3)
        part[:, 0] += first
        parts.append(part)
    found = np.concatenate(parts)
    found = found[np.lexsort((-found[:, 2], found[:, 1]))]
    literal, start, end = found.T
    reached = np.maximum.accumulate(end)
    if (start[1:] < reached[:-1]).any():  # hits of two automata overlap, which is rare
        free, keep = 0, []
        for index, (begin, stop) in enumerate(zip(start.tolist(), end.tolist(), strict=True)):
            if begin >= free:
                keep.append(index)
                free = stop
        return literal[keep], start[keep]
    return literal, start


def cut(data: bytes, begin: np.ndarray, end: np.ndarray) -> pa.Array:
    """The pieces begin..end of *data*, which follow one another and do not overlap, as an array of bytes, without a copy.

    The array holds the pieces at its even places and what lies between them at the odd ones.
    """
    offsets = np.empty(2 * len(begin) + 1, np.int32)
    offsets[0:-1:2], offsets[1::2], offsets[-1] = begin, end, end[-1]
    return pa.Array.from_buffers(pa.binary(), 2 * len(begin), [None, pa.py_buffer(offsets), pa.py_buffer(data)])
