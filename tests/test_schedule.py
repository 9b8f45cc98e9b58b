"""Instruction order and replay against the tables and closed forms of DeepSpeed's TrainSchedule (formats/schedules.md sections 2 and 4)."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelog.schedule import Delays, compute_order, ideal_bubble, in_flight, p2p_order, replay

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


# ---- formulas


@pytest.mark.parametrize(
    ("p", "m", "v", "share"),
    [(4, 4, 1, 3 / 7), (8, 32, 1, 7 / 39), (4, 12, 1, 0.2), (1, 5, 1, 0.0), (4, 1, 1, 0.75), (4, 8, 2, 3 / 19), (2, 4, 1, 0.2)],
)
def test_ideal_bubble(p: int, m: int, v: int, share: float) -> None:
    assert ideal_bubble(p, m, v) == pytest.approx(share, abs=1e-15)


@pytest.mark.parametrize("wrong", [(0, 1, 1), (1, 0, 1), (1, 1, 0), (-2, 4, 1)])
def test_ideal_bubble_refuses_what_is_no_pipeline(wrong: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        ideal_bubble(*wrong)


@given(STAGES, MICRO_BATCHES, st.data())
def test_in_flight_is_what_the_order_of_passes_holds_at_its_peak(p: int, m: int, data: st.DataObject) -> None:
    stage = data.draw(st.integers(0, p - 1))
    alive = np.cumsum([1 if work == "forward" else -1 for work, _ in compute_order(stage, p, m)])
    assert alive.max() == in_flight(stage, p, m) == min(p - stage, m)
    assert alive[-1] == 0


# ---- order

PRINTED = {  # formats/schedules.md section 2: p = 4, m = 4
    0: "F0 F1 F2 F3 B0 B1 B2 B3",
    1: "F0 F1 F2 B0 F3 B1 B2 B3",
    2: "F0 F1 B0 F2 B1 F3 B2 B3",
    3: "F0 B0 F1 B1 F2 B2 F3 B3",
}


@pytest.mark.parametrize("stage", PRINTED)
def test_compute_order_of_the_printed_example(stage: int) -> None:
    assert " ".join(f"{work[0].upper()}{k}" for work, k in compute_order(stage, 4, 4)) == PRINTED[stage]


def deepspeed_compute(stage: int, p: int, m: int) -> list[tuple[int, str, int]]:
    """(step, work, micro-batch) by the four integer formulas of TrainSchedule._step_to_micro_batch."""
    out = []
    for step in range(2 * (m + p - 1)):
        even_step, even_stage = step % 2 == 0, stage % 2 == 0
        if even_step and even_stage:
            work, k = "forward", step // 2 - stage // 2
        elif not even_step and not even_stage:
            work, k = "forward", (step - 1) // 2 - stage // 2
        elif even_step:
            work, k = "backward", step // 2 - p + (stage + 1) // 2
        else:
            work, k = "backward", (step - 1) // 2 - p + 1 + stage // 2
        if 0 <= k < m:
            out.append((step, work, k))
    return out


@given(STAGES, MICRO_BATCHES, st.data())
def test_compute_order_follows_deepspeeds_integer_formulas(p: int, m: int, data: st.DataObject) -> None:
    stage = data.draw(st.integers(0, p - 1))
    assert compute_order(stage, p, m) == [(work, k) for _, work, k in deepspeed_compute(stage, p, m)]


SENDS = {"send_activation": "recv_activation", "send_grad": "recv_grad"}


@pytest.mark.parametrize(
    ("stage", "receive_first", "order"),
    [
        # stage 0 of 2, m = 2: steps 0:F0 2:F1 3:B0 5:B1; before v0.8.3 a send precedes the receive of its slot
        (0, True, "send_activation0 recv_grad0 send_activation1 recv_grad1"),
        (0, False, "send_activation0 send_activation1 recv_grad0 recv_grad1"),
        # stage 1 of 2: steps 1:F0 2:B0 3:F1 4:B1
        (1, True, "recv_activation0 send_grad0 recv_activation1 send_grad1"),
        (1, False, "recv_activation0 recv_activation1 send_grad0 send_grad1"),
    ],
)
def test_messages_of_two_stages_by_hand(stage: int, receive_first: bool, order: str) -> None:
    assert " ".join(f"{word}{k}" for word, k in p2p_order(stage, 2, 2, receive_first=receive_first)) == order


@given(STAGES, MICRO_BATCHES, st.booleans(), st.data())
def test_messages_match_their_other_end(p: int, m: int, receive_first: bool, data: st.DataObject) -> None:
    """What one stage sends down, the next receives in the same order; ends have one neighbour, a single stage has none."""
    orders = [p2p_order(s, p, m, receive_first=receive_first) for s in range(p)]
    stage = data.draw(st.integers(0, p - 1))
    count = m * ((stage > 0) + (stage < p - 1))
    assert sum(word.startswith("send") for word, _ in orders[stage]) == count
    assert sum(word.startswith("recv") for word, _ in orders[stage]) == count
    if stage < p - 1:
        for above, below in (("send_activation", "recv_activation"), ("recv_grad", "send_grad")):
            here = [k for word, k in orders[stage] if word == above]
            there = [k for word, k in orders[stage + 1] if word == below]
            assert here == there == list(range(m))


@given(STAGES, MICRO_BATCHES, st.booleans(), st.data())
def test_messages_stand_where_the_schedule_issues_them(p: int, m: int, receive_first: bool, data: st.DataObject) -> None:
    """A receive in the slot of its pass, a send in the slot after its pass; in a slot of both, as the release orders them."""
    stage = data.draw(st.integers(0, p - 1))
    work = {(kind, k): step for step, kind, k in deepspeed_compute(stage, p, m)}
    slot = {"recv_activation": ("forward", 0), "recv_grad": ("backward", 0), "send_activation": ("forward", 1), "send_grad": ("backward", 1)}
    placed = [(work[slot[word][0], k] + slot[word][1], word) for word, k in p2p_order(stage, p, m, receive_first=receive_first)]
    steps = [step for step, _ in placed]
    assert steps == sorted(steps)
    for (a, first), (b, second) in itertools.pairwise(placed):
        if a == b:  # forward slots: SendGrad, RecvActivation since v0.8.3; backward slots: RecvGrad, SendActivation
            assert (first, second) in ({("send_grad", "recv_activation"), ("recv_grad", "send_activation")} if receive_first else
                                       {("recv_activation", "send_grad"), ("send_activation", "recv_grad")})  # fmt: skip


# ---- replay


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
    on its stage has ended, and a receive when its message has come.
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
                    sent["a", s, k] = clock[s] + activation[s, k]
                elif word == "send_grad":
                    sent["g", s - 1, k] = clock[s] + grad[s - 1, k]
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
    assert float(replay(forward, backward, Delays(activation=activation, grad=grad))) == event_simulation(forward, backward, activation, grad)


DELAYS = ("load", "before_forward", "before_backward", "activation", "grad", "before_send_activation", "before_send_grad")


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
    late = float(replay(forward, backward, Delays(**{name: delay}), receive_first=receive_first))
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
    whole = replay(forward * factors, backward * factors, Delays(grad=grad * factors, load=2.0))
    assert whole.shape == (2, 3)
    for i in range(2):
        for j in range(3):
            factor = factors[i, j, 0, 0]
            alone = replay(forward * factor, backward * factor, Delays(grad=grad * factor, load=2.0))
            assert whole[i, j] == float(alone)


@QUICK
@given(durations(least=2), st.integers(1, 60))
def test_a_slow_link_costs_at_most_four_transfers_a_micro_batch(passes: tuple[np.ndarray, np.ndarray], cost: int) -> None:
    """The longest chain of dependencies holds one transfer a slot, two in the 2 m - 2 slots where gradients go up and activations down."""
    forward, backward = passes
    p, m = forward.shape
    plain = float(replay(forward, backward))
    late = float(replay(forward, backward, Delays(activation=float(cost), grad=float(cost))))
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
    assert float(replay(forward, backward, Delays(load=load))) == 18 - 1
