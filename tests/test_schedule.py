"""Instruction order and replay against the tables and closed forms of DeepSpeed's TrainSchedule (formats/schedules.md sections 2 and 4)."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelog.schedule import compute_order, ideal_bubble, in_flight, p2p_order

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
