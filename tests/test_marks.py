"""The scan finds every mark wherever it stands, and of the marks of records those that no other hides."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelog.errors import BadPlugin
from pipelog.parsing import LineParser, RecordParser
from pipelog.reading import marks as module
from pipelog.reading.marks import PROGRESS_BAR, RANK_TAG, Hits, _apart, _marks, find, find_lines, marks, scan
from tests.conftest import FIXTURES

TEXT = b"\n".join(log.read_bytes() for log in sorted((FIXTURES / "logs").glob("*/*.log"))) + b"\n"


def everywhere(literals: tuple[bytes, ...], text: bytes) -> list[tuple[int, int, int]]:
    """(start, -end, literal) of every literal at every place, one literal after another."""
    out = []
    for index, literal in enumerate(literals):
        at = text.find(literal)
        while at >= 0:
            out.append((at, -at - len(literal), index))
            at = text.find(literal, at + 1)
    return sorted(out)


def lazy(literals: tuple[bytes, ...], text: bytes) -> list[tuple[int, int]]:
    """(literal, start): leftmost first, the longest of those, and on behind its end."""
    free, out = 0, []
    for start, end, index in everywhere(literals, text):
        if start >= free:
            out.append((index, start))
            free = -end
    return out


def record(*these: str) -> RecordParser:
    return RecordParser("test", these, "", "", "", (), lambda _: [])


def placed(hits: Hits) -> list[tuple[int, int, int]]:
    return list(zip(hits.start.tolist(), (-hits.end).tolist(), hits.literal.tolist(), strict=True))


def test_every_mark_is_found_in_real_logs() -> None:
    assert placed(scan(TEXT)) == everywhere(marks().literals, TEXT)


def test_every_mark_is_found_where_each_runs_into_the_next() -> None:
    text = b"".join(marks().literals)
    assert placed(scan(text)) == everywhere(marks().literals, text)


@given(st.sets(st.text("ab|", min_size=1, max_size=4), min_size=1, max_size=6), st.text("abc|", max_size=60))
def test_of_marks_that_overlap_the_leftmost_and_longest_opens_a_record(names: set[str], letters: str) -> None:
    table = _marks((record(*names),), ())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "marks", lambda: table)
        hits = scan(letters.encode())
    literal, start = _apart(hits)
    own = {name.encode() for name in names}
    hidden = tuple(name if name in own else b"\n" for name in table.literals)  # what is no mark hides none
    assert list(zip(literal.tolist(), start.tolist(), strict=True)) == lazy(hidden, letters.encode())


def test_a_block_says_what_need_not_be_asked() -> None:
    hits = scan(b" 6%|#     | 3/50 [rank3]: steps")
    assert hits.hold(RANK_TAG)
    assert hits.hold(PROGRESS_BAR)
    hits = scan(b" 6% | rank 3 [rank ")
    assert hits.hold(RANK_TAG)
    assert not hits.hold(PROGRESS_BAR)


def test_two_parsers_cannot_claim_one_mark() -> None:
    with pytest.raises(BadPlugin, match="the mark 'a' belongs to test and to test"):
        _marks((record("a"), record("b", "a")), ())


def test_records_follow_one_another_and_stay_on_their_lines() -> None:
    newlines = np.flatnonzero(np.frombuffer(TEXT, np.uint8) == 10)
    found = find(scan(TEXT), TEXT, newlines)
    assert found is not None
    assert (found.end[:-1] <= found.start[1:]).all()
    assert (found.head <= found.start).all()
    assert not any(b"\n" in TEXT[a:b] for a, b in zip(found.head.tolist(), found.end.tolist(), strict=True))


def claimed(monkeypatch: pytest.MonkeyPatch, text: bytes, **of: tuple[str, ...]) -> list[tuple[str, int, bytes, bytes]]:
    """(parser, line, what stands before the first mark, from there to the end) of the lines that parsers with these marks claim."""
    table = _marks((), tuple(LineParser(key, these, "", once=False, parse=lambda _: []) for key, these in of.items()))
    monkeypatch.setattr(module, "marks", lambda: table)
    found = find_lines(scan(text), text, np.flatnonzero(np.frombuffer(text, np.uint8) == 10))
    if found is None:
        return []
    lines, claims = found
    pieces = [(text[h:s], text[s:e]) for h, s, e in zip(lines.head.tolist(), lines.start.tolist(), lines.end.tolist(), strict=True)]
    return [(parser.key, int(lines.line[i]) + 1, *pieces[i]) for parser, mine in claims for i in mine.tolist()]


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
    found = find(scan(text), text, np.array([len(text) - 1]))
    assert found is not None
    assert [text[a:b] for a, b in zip(found.start.tolist(), found.end.tolist(), strict=True)] == [text[:-1]]


def test_no_marks_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    assert claimed(monkeypatch, b"", nccl=("NCCL WARN",)) == []
    assert claimed(monkeypatch, b"nothing\n", nccl=("NCCL WARN",)) == []
    assert claimed(monkeypatch, b"NCCL WARN\n") == []
