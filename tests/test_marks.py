"""The scan in several automata finds what one automaton of all marks would find."""

from __future__ import annotations

import numpy as np
from ahocorasick_rs import BytesAhoCorasick, Implementation, MatchKind

from pipelog.parsing import BLOCKS, RECORDS
from pipelog.reading.marks import _hits, find, marks
from tests.conftest import FIXTURES

TEXT = b"\n".join(log.read_bytes() for log in sorted((FIXTURES / "logs").glob("*/*.log"))) + b"\n"


def literals() -> list[bytes]:
    return sorted({mark.encode() for parser in (*RECORDS.values(), *BLOCKS.values()) for mark in (*parser.marks, *getattr(parser, "shadows", ()))})


def test_groups_find_what_one_automaton_finds() -> None:
    table = marks()
    whole = BytesAhoCorasick(literals(), matchkind=MatchKind.LeftmostLongest, implementation=Implementation.DFA)
    expected = [(a, b) for a, b, _ in whole.find_matches_as_indexes(TEXT)]
    literal, start = _hits(table, TEXT)
    assert list(zip(literal.tolist(), start.tolist(), strict=True)) == expected


def test_hits_of_two_groups_that_overlap_leave_the_first() -> None:
    names = literals()
    text = b"".join(names)  # every mark runs into the next one
    literal, start = _hits(marks(), text)
    ends = start + np.array([len(names[i]) for i in literal])
    assert (start[1:] >= ends[:-1]).all()


def test_records_follow_one_another_and_stay_on_their_lines() -> None:
    newlines = np.flatnonzero(np.frombuffer(TEXT, np.uint8) == 10)
    found = find(TEXT, newlines)
    assert found is not None
    assert (found.end[:-1] <= found.start[1:]).all()
    assert (found.head <= found.start).all()
    assert not any(b"\n" in TEXT[a:b] for a, b in zip(found.head.tolist(), found.end.tolist(), strict=True))
