"""Unions, overlaps and outermost intervals against brute force over small integers."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelog.parsers.trace_host import outermost
from pipelog.replay.breakdown import _within
from pipelog.tables import by_ranks, frame, merged, narrow, overlap_ns, union_ns
from tests.making import table

INTERVALS = st.lists(st.tuples(st.integers(-30, 30), st.integers(0, 12)), max_size=12)
Pairs = list[tuple[int, int]]


def arrays(pairs: Pairs) -> tuple[np.ndarray, np.ndarray]:
    """(start, end) of (start, length)."""
    start = np.array([a for a, _ in pairs], np.int64)
    return start, start + np.array([n for _, n in pairs], np.int64)


def cells(pairs: Pairs) -> set[int]:
    """The unit cells that the intervals cover."""
    return {x for a, n in pairs for x in range(a, a + n)}


@given(INTERVALS)
def test_union_counts_each_moment_once(pairs: Pairs) -> None:
    assert union_ns(*arrays(pairs)) == len(cells(pairs))


@given(INTERVALS, st.randoms())
def test_union_does_not_depend_on_the_order(pairs: Pairs, random: object) -> None:
    mixed = list(pairs)
    random.shuffle(mixed)  # type: ignore[attr-defined]
    assert union_ns(*arrays(mixed)) == union_ns(*arrays(pairs))


@given(INTERVALS, INTERVALS)
def test_overlap_is_what_both_cover(a: Pairs, b: Pairs) -> None:
    assert overlap_ns(arrays(a), arrays(b)) == len(cells(a) & cells(b))


@given(INTERVALS)
def test_merged_is_the_same_set_in_pieces_that_do_not_touch(pairs: Pairs) -> None:
    start, end = merged(*arrays(pairs))
    pieces = list(zip(start.tolist(), end.tolist(), strict=True))
    assert {x for a, b in pieces for x in range(a, b)} == cells(pairs)
    assert all(b < c for (_, b), (c, _) in zip(pieces, pieces[1:], strict=False))  # noqa: RUF007


def test_union_at_the_size_of_epoch_nanoseconds() -> None:
    base = 1_790_857_026_123_456_789
    start = np.array([base, base + 1, base + 10], np.int64)
    assert union_ns(start, start + np.array([3, 1, 1], np.int64)) == 4


def brute_outermost(pairs: list[tuple[int, int, int]]) -> list[int]:
    """Places of the intervals that lie in no other one of their thread; of equal ones the first."""
    kept = []
    for i, (thread, a, n) in enumerate(pairs):
        inside = False
        for j, (other, b, k) in enumerate(pairs):
            if i == j or other != thread or not (b <= a and a + n <= b + k):
                continue
            if (b, k) != (a, n) or j < i:
                inside = True
        if not inside:
            kept.append(i)
    return kept


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(-20, 20), st.integers(0, 9)), max_size=14))
def test_outermost_against_brute_force(pairs: list[tuple[int, int, int]]) -> None:
    thread, start, length = (np.array([p[i] for p in pairs], np.int64) for i in range(3))
    found = outermost(thread, start, length).tolist()
    wanted = brute_outermost(pairs)
    # of equal intervals any may stand for the others
    assert sorted(pairs[i] for i in found) == sorted(pairs[i] for i in wanted)
    assert [pairs[i][:2] for i in found] == sorted(pairs[i][:2] for i in found)


def test_frame_keeps_integers_exact_and_words_as_strings() -> None:
    big = 2**62 + 1
    found = frame(
        table([{"kind": "step", "name": "a", "start_ns": big}, {"kind": "other", "name": "x"}, {"kind": "step", "step": 3}]),
        ("step",),
        ("name", "start_ns", "step", "file"),
    )
    assert found["start_ns"].tolist()[0] == big
    assert found["start_ns"].isna().tolist() == [False, True]
    assert found["name"].tolist() == ["a", None]
    assert found["step"].isna().tolist() == [True, False]
    assert found["file"].tolist() == ["train.log", "train.log"]


@pytest.mark.parametrize("kinds", [(), ("nothing",)])
def test_frame_of_kinds_that_do_not_occur_is_empty(kinds: tuple[str, ...]) -> None:
    assert len(frame(table([{"kind": "step"}]), kinds, ("name", "step"))) == 0


@given(INTERVALS, st.lists(st.tuples(st.integers(0, 6), st.integers(1, 9)), max_size=5))
def test_time_within_spans_against_unit_cells(pairs: Pairs, steps: Pairs) -> None:
    """Spans one after another, each *gap* after the last: the union of the intervals inside each."""
    spans: list[tuple[int, int]] = []
    for gap, length in steps:
        begin = (spans[-1][1] if spans else -25) + gap
        spans.append((begin, begin + length))
    begin, end = (np.array([span[i] for span in spans], np.int64) for i in (0, 1))
    found = _within(begin, end, *arrays(pairs))
    assert found.tolist() == [len(cells(pairs) & set(range(a, b))) for a, b in spans]


def test_pieces_hold_whole_ranks_in_order() -> None:
    rows = pd.DataFrame({"rank": [2, 0, 2, 1, 0, 0], "line": range(6)})
    assert [(p["rank"].tolist(), p["line"].tolist()) for p in by_ranks(rows, most=2)] == [([0, 0, 0], [1, 4, 5]), ([1, 2, 2], [3, 0, 2])]
    assert [len(p) for p in by_ranks(rows, most=100)] == [6]
    assert not list(by_ranks(rows.iloc[:0]))


def test_numbers_are_narrowed_only_where_they_fit() -> None:
    assert narrow(np.array([-(2**31), 2**31 - 1])).dtype == np.int32
    assert narrow(np.array([2**31])).dtype == np.int64
    assert narrow(np.array([], np.int64)).dtype == np.int32
