"""Closed forms against the papers' numbers, against the simulation, and as laws."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelog.planning import schedules
from pipelog.planning.schedules import SCHEDULES, bubble, enough, impossible, in_flight, messages, over_ideal, shown
from pipelog.replay.orders import in_flight as counted
from pipelog.replay.orders import program
from pipelog.replay.simulate import Costs, run

P, M = st.integers(1, 8), st.integers(1, 24)


@pytest.mark.parametrize(
    ("name", "p", "m", "v", "idle"),
    [
        ("1f1b", 4, 4, 1, Fraction(3, 7)),
        ("1f1b", 4, 16, 1, Fraction(3, 19)),
        ("gpipe", 4, 4, 1, Fraction(3, 7)),
        ("interleaved", 4, 4, 2, Fraction(3, 11)),
        ("zb-h1", 4, 4, 1, Fraction(3, 15)),  # idle 3 tF beside 4 (tF + tB) = 12 tF
        ("zb-h2", 4, 4, 1, Fraction(0)),
        ("1f1b", 1, 4, 1, Fraction(0)),
    ],
)
def test_the_bubble_by_hand(name: str, p: int, m: int, v: int, idle: Fraction) -> None:
    assert bubble(name, p, m, v) == idle


@given(P, M)
def test_the_formula_holds_and_is_monotone(p: int, m: int) -> None:
    idle = bubble("1f1b", p, m)
    assert idle == Fraction(p - 1, m + p - 1) == bubble("gpipe", p, m)
    assert over_ideal(idle) == Fraction(m + p - 1, m)
    assert bubble("1f1b", p, m + 1) <= idle <= bubble("1f1b", p + 1, m)
    assert bubble("zb-h2", p, m) <= bubble("zb-h1", p, m) <= idle
    assert bubble("interleaved", p, m, 3) <= bubble("interleaved", p, m, 2) <= idle


@given(st.sampled_from(("1f1b", "gpipe", "interleaved")), P, st.integers(1, 4), st.integers(2, 3))
def test_the_simulation_of_equal_stages_gives_the_formula(name: str, p: int, groups: int, chunks: int) -> None:
    m, v = (groups * p, chunks) if name == "interleaved" else (groups, 1)
    line = run(name, Costs(forward=2 * 6 // v, backward=4 * 6 // v), p, m, v)  # type: ignore[arg-type]
    busy = Fraction(m * v * (2 * 6 // v + 4 * 6 // v))
    assert 1 - busy / Fraction(int(line.phase())) == bubble(name, p, m, v)


@given(st.sampled_from(("1f1b", "gpipe", "interleaved")), P, st.integers(1, 6), st.integers(2, 4))
def test_what_is_in_flight_is_what_the_instructions_hold(name: str, p: int, groups: int, chunks: int) -> None:
    m, v = (groups * p, chunks) if name == "interleaved" else (groups, 1)
    if p == 1 and v > 1:
        return  # one device runs all its chunks one after another; nothing to interleave
    for stage in range(p):
        assert float(in_flight(name, stage, p, m, v)) == pytest.approx(counted(name, stage, p, m, v))  # type: ignore[arg-type]


def test_memory_of_interleaving_is_the_papers() -> None:
    """Stage 0 of p = 4 and v = 2 holds p (1 + (p-1)/(p v)) = 5.5 micro-batches; the last (0 + 4 + 1)/2 = 2.5."""
    assert [in_flight("interleaved", s, 4, 8, 2) for s in range(4)] == [Fraction(11, 2), Fraction(9, 2), Fraction(7, 2), Fraction(5, 2)]
    assert in_flight("interleaved", 0, 4, 4, 2) == 4  # never more than there are


@given(st.sampled_from(("1f1b", "gpipe", "interleaved")), st.integers(1, 5), st.integers(1, 3), st.integers(2, 3))
def test_messages_are_those_of_the_programs(name: str, p: int, groups: int, chunks: int) -> None:
    m, v = (groups * p, chunks) if name == "interleaved" else (groups, 1)
    if p == 1:
        assert messages(name, p, m, v) == 0
        return
    sent = sum(kind.startswith("send_") for s in range(p) for kind, _, _ in program(name, s, p, m, v))  # type: ignore[arg-type]
    assert messages(name, p, m, v) == sent


def test_interleaving_asks_for_multiples_of_the_stages() -> None:
    assert impossible("interleaved", 4, 8, 2) is None
    assert impossible("interleaved", 4, 6, 2) == "interleaving needs m in multiples of 4 stages, not 6"
    assert impossible("interleaved", 4, 8, 1) == "interleaving needs 2 chunks a stage or more"
    assert impossible("1f1b", 4, 6) is None


@given(st.integers(2, 64), st.integers(1, 99), st.integers(1, 4))
def test_enough_is_the_smallest_that_is(p: int, cents: int, v: int) -> None:
    limit = cents / 100
    m = enough(p, limit, v)
    name = "interleaved" if v > 1 else "1f1b"
    exact = Fraction(cents, 100)
    assert bubble(name, p, m, v) <= exact + Fraction(1, 10**9)
    assert m == 1 or bubble(name, p, m - 1, v) > exact - Fraction(1, 10**9)


def test_the_rule_s_limit_takes_three_times_the_stages_but_one() -> None:
    assert [enough(p, 0.25) for p in (1, 2, 4, 8)] == [1, 3, 9, 21]


def test_fractions_are_shown_as_the_formula_has_them() -> None:
    assert shown("1f1b", 4, 4) == "3/7 = 42.9 %"
    assert shown("1f1b", 4, 9) == "3/12 = 25.0 %"  # not 1/4
    assert shown("1f1b", 1, 9) == "0 %"


@given(st.sampled_from(sorted(SCHEDULES)), st.integers(-2, 0))
def test_nothing_is_computed_of_no_stages(name: str, none: int) -> None:
    for p, m, v in ((none, 4, 2), (4, none, 2), (4, 4, none)):
        with pytest.raises(ValueError, match="at least 1"):
            schedules.bubble(name, p, m, v)
