"""The simulated step against the laws of pipeline schedules (formats/schedules.md sections 2, 4 and 5), exactly."""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelog import schedule as formulas
from pipelog.replay.dag import dag
from pipelog.replay.orders import passes, program
from pipelog.replay.simulate import KINDS, Costs, Timeline, phases, run, schedule_graph, simulate

QUICK = settings(deadline=None, max_examples=50)
STAGES = st.integers(1, 6)
MICRO_BATCHES = st.integers(1, 9)
LENGTHS = st.integers(1, 50)
FLUSHED = ("1f1b", "1f1b-send-first", "gpipe")
"""Schedules whose bubble is (p-1)/(m+p-1)."""


def numbers(draw: st.DrawFn, rows: int, m: int, least: int = 1) -> np.ndarray:
    return np.array(draw(st.lists(st.integers(least, 50), min_size=rows * m, max_size=rows * m)), np.int64).reshape(rows, m)


@st.composite
def measured(draw: st.DrawFn) -> tuple[int, int, Costs]:
    """A pipeline of unequal whole-numbered durations, with transfers and delays."""
    p, m = draw(st.integers(1, 5)), draw(st.integers(1, 7))
    at_places = {name: numbers(draw, p, m, least) for name, least in (("forward", 1), ("backward", 1), ("load", 0), ("recompute", 0))}
    return p, m, Costs(**at_places, **{name: numbers(draw, p - 1, m, 0) for name in ("activation", "grad", "send_activation", "send_grad")})


def bubble(line: Timeline, stage: int = 0) -> Fraction:
    return 1 - Fraction(int(line.busy()[stage]), int(line.phase()))


# ---- formulas


@QUICK
@given(st.sampled_from(FLUSHED), STAGES, MICRO_BATCHES, LENGTHS, LENGTHS, st.booleans(), st.data())
def test_equal_stages_and_free_transfers_give_the_formula_exactly(
    schedule: str, p: int, m: int, forward: int, backward: int, blocking: bool, data: st.DataObject
) -> None:
    line = run(schedule, Costs(forward, backward), p, m, blocking=blocking)
    assert int(line.phase()) == (m + p - 1) * (forward + backward)
    assert bubble(line, data.draw(st.integers(0, p - 1))) == Fraction(p - 1, m + p - 1)


@QUICK
@given(st.integers(2, 5), st.integers(1, 4), st.integers(1, 4), LENGTHS, LENGTHS)
def test_interleaving_divides_the_bubble_by_its_chunks(p: int, groups: int, v: int, forward: int, backward: int) -> None:
    m = p * groups
    line = run("interleaved", Costs(forward, backward), p, m, v)
    assert bubble(line) == Fraction(p - 1, v * m + p - 1)
    assert int(line.phase()) - m * v * (forward + backward) == (p - 1) * (forward + backward)


@QUICK
@given(st.integers(2, 6), st.integers(0, 6), LENGTHS, LENGTHS, LENGTHS)
def test_zero_bubble_leaves_what_its_paper_says(p: int, more: int, forward: int, backward: int, weight: int) -> None:
    """(p-1)(tF + tBi - tW) where a weight pass is no longer than the other two: then it fits into the gaps of 1F1B."""
    weight = min(weight, forward, backward)
    m = p + more
    line = run("zb-h1", Costs(forward, backward, weight=weight), p, m)
    assert int(line.phase()) - m * (forward + backward + weight) == (p - 1) * (forward + backward - weight)


@pytest.mark.parametrize("schedule", ["1f1b", "1f1b-send-first"])
@pytest.mark.parametrize(("p", "m"), [(2, 4), (2, 9), (3, 3), (3, 8), (4, 8), (4, 12), (6, 6), (8, 20)])
def test_blocking_transfers_cost_four_a_micro_batch(schedule: str, p: int, m: int) -> None:
    """formats/schedules.md section 4: (4m + 2(p - 4)) tc for p >= 3 and m >= p, 2m tc for two stages, in either order."""
    line = run(schedule, Costs(10, 20, activation=1, grad=1), p, m)
    assert int(line.phase()) - (m + p - 1) * 30 == (2 * m if p == 2 else 4 * m + 2 * (p - 4))


@pytest.mark.parametrize(("schedule", "in_send", "in_receive"), [("1f1b-send-first", 3 * 20, 3 * 10), ("1f1b", 0, 3 * 30)])
def test_where_stage_0_waits_changed_with_v0_8_3(schedule: str, in_send: int, in_receive: int) -> None:
    """formats/schedules.md section 6: p = 4, tF = 10, tB = 20; before, sends hold (p-1) tB and receives (p-1) tF, since then receives hold all."""
    line = run(schedule, Costs(10, 20), 4, 8)
    ends = {name: line.of(name)[1][0] for name in ("activation", "grad")}
    calls = {name: line.of(name)[0][0] for name in ("send_activation", "recv_grad")}
    assert int((ends["activation"] - calls["send_activation"]).sum()) == in_send
    assert int((ends["grad"] - calls["recv_grad"]).sum()) == in_receive


@pytest.mark.parametrize(("slow", "length"), [(None, 33), (0, 40.5), (1, 42), (3, 45)])
def test_one_slow_stage_as_simulated_elsewhere(slow: int | None, length: float) -> None:
    """formats/schedules.md section 4: p = 4, m = 8, tB = 2 tF, one stage 50 % slower, in units of a third of c."""
    cost = np.array([3.0 if s == slow else 2.0 for s in range(4)])[:, None] * 0.5
    assert float(run("1f1b", Costs(cost, 2 * cost), 4, 8).phase()) == length


# ---- laws


@QUICK
@given(measured(), st.sampled_from(("forward", "backward", "load", "recompute", "activation", "grad", "send_grad")), st.integers(1, 60), st.data())
def test_no_instruction_ends_earlier_where_one_takes_longer(given_: tuple[int, int, Costs], name: str, amount: int, data: st.DataObject) -> None:
    p, m, costs = given_
    old = getattr(costs, name)
    if not old.size:
        return
    new = old.copy()
    new[data.draw(st.integers(0, len(old) - 1)), data.draw(st.integers(0, m - 1))] += amount
    fields = {k: getattr(costs, k) for k in KINDS}
    graph = schedule_graph("1f1b", p, m)
    before, after = simulate(graph, costs), simulate(graph, Costs(**fields | {name: new}))
    assert (after.end >= before.end).all()
    assert after.end.max() <= before.end.max() + amount


@QUICK
@given(st.integers(1, 6), MICRO_BATCHES, LENGTHS, LENGTHS)
def test_gpipe_takes_as_long_as_1f1b_but_holds_all_micro_batches(p: int, m: int, forward: int, backward: int) -> None:
    one, other = (run(s, Costs(forward, backward), p, m) for s in ("gpipe", "1f1b"))
    assert int(one.phase()) == int(other.phase())
    assert one.graph.in_flight().tolist() == [m] * p
    assert other.graph.in_flight().tolist() == [formulas.in_flight(s, p, m) for s in range(p)]
    for graph in (one.graph, other.graph):
        orders = [passes(graph.schedule, s, p, m) for s in range(p)]
        alive = [np.cumsum([(kind == "forward") - (kind == "weight") for kind, _, _ in order]) for order in orders]
        assert graph.in_flight().tolist() == [held.max() for held in alive]


@QUICK
@given(measured(), st.booleans())
def test_work_is_conserved_and_no_stage_does_two_things_at_once(given_: tuple[int, int, Costs], blocking: bool) -> None:
    p, m, costs = given_
    line = run("1f1b", costs, p, m, blocking=blocking)
    assert line.busy().tolist() == (costs.forward + costs.backward + costs.recompute).sum(axis=1).tolist()
    calls = np.isin(line.graph.kind, [KINDS.index(k) for k in ("activation", "grad")])
    for s in range(p):
        mine = np.flatnonzero((line.graph.stage == s) & ~calls)
        order = mine[np.argsort(line.start[mine], kind="stable")]
        spans = sorted((int(line.start[i]), int(line.end[i])) for i in order)
        assert all(a[1] <= b[0] for a, b in itertools.pairwise(spans))


@QUICK
@given(measured(), st.sampled_from(("1f1b", "1f1b-send-first", "gpipe")), st.booleans())
def test_every_instruction_waits_for_what_it_needs(given_: tuple[int, int, Costs], schedule: str, blocking: bool) -> None:
    p, m, costs = given_
    line = run(schedule, costs, p, m, blocking=blocking)
    (forward, made), (backward, done) = line.of("forward"), line.of("backward")
    assert (forward[1:] >= made[:-1] + costs.activation).all()
    assert (backward[:-1] >= done[1:] + costs.grad).all()
    assert (backward >= made).all()


@QUICK
@given(measured())
def test_slack_and_critical_path(given_: tuple[int, int, Costs]) -> None:
    """The critical path has no slack and its durations sum to the step; using up one instruction's slack keeps the step, one more lengthens it."""
    p, m, costs = given_
    line = run("1f1b", costs, p, m)
    on, slack = line.critical(), line.slack()
    assert (slack >= 0).all()
    assert (slack[on] == 0).all()
    assert line.durations[on].sum() == line.end.max()
    for i in np.flatnonzero(line.durations > 0)[:5]:
        later = line.durations.copy()
        later[i] += slack[i]
        assert line.graph.dag.run(later)[1].max() == line.end.max()
        later[i] += 1
        assert line.graph.dag.run(later)[1].max() == line.end.max() + 1


@QUICK
@given(measured(), st.integers(2, 4))
def test_steps_and_replicas_are_independent(given_: tuple[int, int, Costs], copies: int) -> None:
    p, m, costs = given_
    factors = np.arange(1, copies + 1)[:, None, None]
    many = run("1f1b", Costs(**{k: np.asarray(getattr(costs, k)) * factors for k in KINDS}), p, m)
    assert many.phase().tolist() == [int(run("1f1b", costs, p, m).phase()) * (i + 1) for i in range(copies)]
    assert many.critical().shape == many.end.shape == (len(many.graph.kind), copies)


def test_many_steps_are_simulated_in_pieces_and_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(5)
    costs = Costs(random.integers(5, 20, (7, 2, 3, 4)), 20, activation=random.integers(0, 9, (7, 1, 2, 4)), grad=random.integers(0, 9, (2, 4)))
    whole = run("1f1b", costs, 3, 4).phase()
    monkeypatch.setattr("pipelog.replay.simulate._AT_ONCE", 1)
    assert (phases("1f1b", costs, 3, 4) == whole).all()
    assert phases("1f1b", Costs(10, 20), 3, 4) == 6 * 30


# ---- orders


@pytest.mark.parametrize("receive_first", [True, False])
@pytest.mark.parametrize(("p", "m"), [(1, 3), (2, 5), (4, 4), (5, 3)])
def test_messages_of_deepspeed_stand_as_its_schedule_has_them(p: int, m: int, receive_first: bool) -> None:
    for s in range(p):
        mine = program("1f1b" if receive_first else "1f1b-send-first", s, p, m)
        sent = [(word, k) for word, _, k in mine if word.startswith(("send_", "recv_"))]
        assert sent == formulas.p2p_order(s, p, m, receive_first=receive_first)
        assert [(word, k) for word, _, k in mine if word in ("forward", "backward")] == formulas.compute_order(s, p, m)


@pytest.mark.parametrize(("p", "v", "s"), [(4, 2, 0), (4, 2, 3), (4, 4, 1), (8, 2, 2)])
def test_interleaved_in_flight_follows_its_formula(p: int, v: int, s: int) -> None:
    """formats/schedules.md section 5: (2(p-s-1) + (v-1)p + 1) / v for enough micro-batches."""
    held = schedule_graph("interleaved", p, 4 * p, v).in_flight()[s]
    assert held == pytest.approx((2 * (p - s - 1) + (v - 1) * p + 1) / v)


def test_interleaved_order_of_two_stages_by_hand() -> None:
    """p = 2, v = 2, m = 2: stage 1 warms up with (v-1)p = 2 chunk forwards, then one forward, one backward; places 1 and 3 are its chunks."""
    order = [(kind[0], place, k) for kind, place, k in passes("interleaved", 1, 2, 2, 2) if kind != "weight"]
    assert order == [("f", 1, 0), ("f", 1, 1), ("f", 3, 0), ("b", 3, 0), ("f", 3, 1), ("b", 3, 1), ("b", 1, 0), ("b", 1, 1)]


def test_what_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match="multiples of the stages"):
        schedule_graph("interleaved", 4, 6, 2)
    with pytest.raises(ValueError, match="one chunk a stage"):
        schedule_graph("1f1b", 4, 6, 2)
    with pytest.raises(ValueError, match="at least 1"):
        schedule_graph("1f1b", 4, 0)
    with pytest.raises(ValueError, match="no schedule"):
        schedule_graph("chimera", 4, 4)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="wait for each other"):
        dag(2, np.array([0, 1]), np.array([1, 0]))
    with pytest.raises(ValueError, match="has no load"):
        simulate(schedule_graph("1f1b", 2, 2, kinds=frozenset()), Costs(1, 1, load=1))
