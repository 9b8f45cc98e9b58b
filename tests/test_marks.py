"""The scan in several automata finds what one automaton of all marks would find."""

from __future__ import annotations

import numpy as np
import pytest
from ahocorasick_rs import BytesAhoCorasick, Implementation, MatchKind

from pipelog.parsing import BLOCKS, RECORDS, LineParser
from pipelog.reading import marks as scan
from pipelog.reading.marks import _apart, _hits, _marks, find, find_lines, marks
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


def claimed(monkeypatch: pytest.MonkeyPatch, text: bytes, **of: tuple[str, ...]) -> list[tuple[str, int, bytes, bytes]]:
    """(parser, line, what stands before the first mark, from there to the end) of the lines that parsers with these marks claim."""
    table = _marks(tuple(LineParser(key, these, "", once=False, parse=lambda _: []) for key, these in of.items()), _apart)
    monkeypatch.setattr(scan, "line_marks", lambda: table)
    found = find_lines(text, np.flatnonzero(np.frombuffer(text, np.uint8) == 10))
    if found is None:
        return []
    lines, parser, place = found
    pieces = [(text[h:s], text[s:e]) for h, s, e in zip(lines.head.tolist(), lines.start.tolist(), lines.end.tolist(), strict=True)]
    return [(list(of)[p], int(lines.line[i]) + 1, *pieces[i]) for p, i in zip(parser.tolist(), place.tolist(), strict=True)]


def test_a_line_is_given_to_every_parser_that_has_a_mark_on_it(monkeypatch: pytest.MonkeyPatch) -> None:
    text = b"one\n[rank3]: NCCL WARN disk full\nNCCL WARN\nNCCL WARN NCCL WARN\n"
    assert claimed(monkeypatch, text, nccl=("NCCL WARN",), disk=("disk full",)) == [
        ("nccl", 2, b"[rank3]: ", b"NCCL WARN disk full"),
        ("nccl", 3, b"", b"NCCL WARN"),
        ("nccl", 4, b"", b"NCCL WARN NCCL WARN"),
        ("disk", 2, b"[rank3]: ", b"NCCL WARN disk full"),
    ]


def test_what_a_progress_bar_writes_over_counts_as_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    text = b"5%\r 6% NCCL WARN a\r 7%\r\n\rNCCL WARN b\r8% NCCL WARN c"
    assert claimed(monkeypatch, text, nccl=("NCCL WARN",)) == [
        ("nccl", 1, b" 6% ", b"NCCL WARN a"),
        ("nccl", 2, b"", b"NCCL WARN b"),
        ("nccl", 2, b"8% ", b"NCCL WARN c"),
    ]


def test_marks_that_overlap_count_each(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [row[0] for row in claimed(monkeypatch, b"Xid (79)\n", long=("Xid (79",), short=("id (",))] == ["long", "short"]
    assert [row[0] for row in claimed(monkeypatch, b"Xid (79)\n", first=("Xid (",), second=("d (79",))] == ["first", "second"]


def test_marks_of_lines_hide_no_record() -> None:
    text = b"steps: 7 loss: 1.0 iter time (s): 1.0 samples/sec: 1.0 NCCL WARN\n"
    found = find(text, np.array([len(text) - 1]))
    assert found is not None
    assert [text[a:b] for a, b in zip(found.start.tolist(), found.end.tolist(), strict=True)] == [text[:-1]]


def test_no_marks_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    assert claimed(monkeypatch, b"", nccl=("NCCL WARN",)) == []
    assert claimed(monkeypatch, b"nothing\n", nccl=("NCCL WARN",)) == []
    assert claimed(monkeypatch, b"NCCL WARN\n") == []
