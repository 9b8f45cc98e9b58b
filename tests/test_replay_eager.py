"""The simulated step with sends that return at once, against closed forms and a simulation written apart (formats/schedules.md section 4)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelog.replay.simulate import Costs, run
from pipelog.schedule import ideal_bubble
from tests.test_schedule import deepspeed_compute

STAGES = st.integers(1, 7)
MICRO_BATCHES = st.integers(1, 12)
QUICK = settings(deadline=None, max_examples=60)


@st.composite
def durations(draw: st.DrawFn, least: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Forward and backward times (p, m), whole numbers, so that sums are exact."""
    p, m = draw(st.integers(least, 6)), draw(st.integers(1, 8))
    numbers = st.lists(st.integers(1, 50), min_size=p * m, max_size=p * m)
    return tuple(np.array(draw(numbers), float).reshape(p, m) for _ in range(2))  # type: ignore[return-value]


def stages(costs: list[float], m: int) -> tuple[np.ndarray, np.ndarray]:
    """Stages of a given cost, a third of it forward (tB = 2 tF)."""
    cost = np.array(costs)[:, None] * np.ones(m)
    return cost / 3, cost * 2 / 3


def replay(forward: np.ndarray, backward: np.ndarray, *, receive_first: bool = True, **delays: Any) -> np.ndarray:
    _, p, m = (1, *forward.shape[-2:])
    return run("1f1b" if receive_first else "1f1b-send-first", Costs(forward, backward, **delays), p, m, blocking=False).phase()


@QUICK
@given(STAGES, MICRO_BATCHES, st.integers(1, 1000), st.integers(1, 1000), st.booleans())
def test_equal_stages_give_the_formula(p: int, m: int, forward: int, backward: int, receive_first: bool) -> None:
    length = float(replay(np.full((p, m), float(forward)), np.full((p, m), float(backward)), receive_first=receive_first))
    assert length == (m + p - 1) * (forward + backward)
    assert 1 - m * (forward + backward) / length == pytest.approx(ideal_bubble(p, m), abs=1e-12)


@pytest.mark.parametrize(("slow", "length", "idle"), [(None, 11.0, 0.273), (0, 13.5, 0.111), (1, 14.0, 0.429), (3, 15.0, 0.467)])
def test_one_slow_stage_as_simulated(slow: int | None, length: float, idle: float) -> None:
    """formats/schedules.md section 4: p = 4, m = 8, one stage 50 % slower."""
    found = float(replay(*stages([1.5 if s == slow else 1.0 for s in range(4)], 8)))
    assert found == pytest.approx(length, abs=1e-9)
    assert 1 - 8 * (1.5 if slow == 0 else 1.0) / found == pytest.approx(idle, abs=5e-4)


@QUICK
@given(st.lists(st.integers(1, 30), min_size=1, max_size=7), MICRO_BATCHES)
def test_length_lies_between_its_bounds(costs: list[int], m: int) -> None:
    forward, backward = stages([3.0 * c for c in costs], m)
    length = float(replay(forward, backward))
    most = 3.0 * max(costs)
    assert m * most - 1e-6 <= length <= m * most + 3.0 * sum(costs) - most + 1e-6


@QUICK
@given(st.lists(st.integers(1, 20), min_size=1, max_size=6), MICRO_BATCHES)
def test_upper_bound_is_met_where_the_last_stage_is_the_slowest(costs: list[int], m: int) -> None:
    costs = sorted(costs)
    length = float(replay(*stages([3.0 * c for c in costs], m)))
    assert length == pytest.approx(3.0 * (m * costs[-1] + sum(costs) - costs[-1]), rel=1e-12)


def event_simulation(forward: np.ndarray, backward: np.ndarray, activation: np.ndarray, grad: np.ndarray) -> float:
    """1F1B with receives that wait and sends that do not, by relaxing the graph of dependencies until nothing moves.

    Written apart from `replay`: every instruction of `p2p_order` and `compute_order` is a node; it starts when the instruction before it
    on its stage has ended, and a receive when its message has come. The messages of one direction of a link go one after another.
    """
    p, m = forward.shape
    programs = []
    for s in range(p):
        work = {step: (kind, k) for step, kind, k in deepspeed_compute(s, p, m)}
        program: list[tuple[str, int]] = []
        for step in range(2 * (m + p - 1)):
            now, before = work.get(step), work.get(step - 1)
            if (step - s) % 2 == 0:
                program += [("send_grad", before[1])] if before and before[0] == "backward" and s > 0 else []
                program += [("recv_activation", now[1])] if now and s > 0 else []
            else:
                program += [("recv_grad", now[1])] if now and s < p - 1 else []
                program += [("send_activation", before[1])] if before and before[0] == "forward" and s < p - 1 else []
            program += [now] if now else []
        programs.append(program)
    sent: dict[tuple[str, int, int], float] = {}
    begin, end = np.inf, 0.0
    clock, place = [0.0] * p, [0] * p
    moved = True
    while moved:
        moved = False
        for s in range(p):
            while place[s] < len(programs[s]):
                word, k = programs[s][place[s]]
                if word == "recv_activation":
                    came = sent.get(("a", s - 1, k))
                elif word == "recv_grad":
                    came = sent.get(("g", s, k))
                else:
                    came = 0.0
                if came is None:
                    break
                clock[s] = max(clock[s], came)
                if word == "send_activation":
                    sent["a", s, k] = max(clock[s], sent.get(("a", s, k - 1), 0.0)) + activation[s, k]
                elif word == "send_grad":
                    sent["g", s - 1, k] = max(clock[s], sent.get(("g", s - 1, k - 1), 0.0)) + grad[s - 1, k]
                elif word == "forward":
                    begin = min(begin, clock[s])
                    clock[s] += forward[s, k]
                elif word == "backward":
                    clock[s] += backward[s, k]
                    end = max(end, clock[s])
                place[s] += 1
                moved = True
    assert [place[s] for s in range(p)] == [len(program) for program in programs]
    return end - begin


@QUICK
@given(durations(), st.data())
def test_replay_agrees_with_a_simulation_written_apart(passes: tuple[np.ndarray, np.ndarray], data: st.DataObject) -> None:
    forward, backward = passes
    p, m = forward.shape
    size = (p - 1) * m
    activation, grad = (np.array(data.draw(st.lists(st.integers(0, 40), min_size=size, max_size=size)), float).reshape(p - 1, m) for _ in range(2))
    assert float(replay(forward, backward, activation=activation, grad=grad)) == event_simulation(forward, backward, activation, grad)


DELAYS = ("load", "before_forward", "before_backward", "activation", "grad", "send_activation", "send_grad")


@QUICK
@given(durations(), st.sampled_from(DELAYS), st.integers(1, 80), st.booleans(), st.data())
def test_no_delay_shortens_the_phase_but_by_the_late_start(
    passes: tuple[np.ndarray, np.ndarray], name: str, amount: int, receive_first: bool, data: st.DataObject
) -> None:
    """The phase begins with the first forward pass: what comes before that one (its own load) is not part of it."""
    forward, backward = passes
    p, m = forward.shape
    shape = (p - 1, m) if name in ("activation", "grad") or "send" in name else (p, m)
    if not shape[0]:
        return
    delay = np.zeros(shape)
    place = data.draw(st.integers(0, shape[0] - 1)), data.draw(st.integers(0, m - 1))
    delay[place] = amount
    plain = float(replay(forward, backward, receive_first=receive_first))
    late = float(replay(forward, backward, **{name: delay}, receive_first=receive_first))
    assert late >= plain - (amount if name in ("load", "before_forward") and place == (0, 0) else 0)
    assert late <= plain + amount


@QUICK
@given(durations(), st.sampled_from(["forward", "backward"]), st.integers(1, 80), st.data())
def test_a_longer_pass_never_shortens_the_phase(passes: tuple[np.ndarray, np.ndarray], which: str, amount: int, data: st.DataObject) -> None:
    forward, backward = passes
    p, m = forward.shape
    plain = float(replay(forward, backward))
    longer = (forward if which == "forward" else backward).copy()
    longer[data.draw(st.integers(0, p - 1)), data.draw(st.integers(0, m - 1))] += amount
    late = float(replay(longer, backward) if which == "forward" else replay(forward, longer))
    assert plain <= late <= plain + amount


@QUICK
@given(durations(), st.integers(2, 9))
def test_replay_scales_with_its_durations(passes: tuple[np.ndarray, np.ndarray], factor: int) -> None:
    forward, backward = passes
    assert float(replay(forward * factor, backward * factor)) == factor * float(replay(forward, backward))


@QUICK
@given(durations(), st.data())
def test_leading_axes_are_runs_of_their_own(passes: tuple[np.ndarray, np.ndarray], data: st.DataObject) -> None:
    forward, backward = passes
    p, m = forward.shape
    factors = np.array(data.draw(st.lists(st.integers(1, 9), min_size=6, max_size=6)), float).reshape(2, 3, 1, 1)
    grad = np.arange((p - 1) * m, dtype=float).reshape(p - 1, m)
    whole = replay(forward * factors, backward * factors, grad=grad * factors, load=2.0)
    assert whole.shape == (2, 3)
    for i in range(2):
        for j in range(3):
            factor = factors[i, j, 0, 0]
            alone = replay(forward * factor, backward * factor, grad=grad * factor, load=2.0)
            assert whole[i, j] == float(alone)


@QUICK
@given(durations(least=2), st.integers(1, 60))
def test_a_slow_link_costs_at_most_four_transfers_a_micro_batch(passes: tuple[np.ndarray, np.ndarray], cost: int) -> None:
    """The longest chain of dependencies holds one transfer a slot, two in the 2 m - 2 slots where gradients go up and activations down."""
    forward, backward = passes
    p, m = forward.shape
    plain = float(replay(forward, backward))
    late = float(replay(forward, backward, activation=float(cost), grad=float(cost)))
    assert plain <= late <= plain + (2 * m + 2 * p - 3 + 2 * m - 2) * cost


def test_late_batches_of_two_stages_by_hand() -> None:
    """Passes of 1 and 2, m = 4, a load of 1 before every forward pass of stage 0; an activation leaves after the gradient of its slot.

    stage 0: F0 1-2, F1 3-4, waits for gradient 0 (5), B0 5-7, F2 8-9, B1 9-11, F3 12-13, B2 13-15, waits for gradient 3 (16), B3 16-18
    stage 1: F0 2-3, B0 3-5, F1 5-6, B1 6-8, F2 9-10, B2 10-12, F3 13-14, B3 14-16
    """
    forward, backward = np.ones((2, 4)), np.full((2, 4), 2.0)
    load = np.zeros((2, 4))
    load[0] = 1.0
    assert float(replay(forward, backward)) == 5 * 3
    assert float(replay(forward, backward, load=load)) == 18 - 1
