"""DeepSpeed's pipeline schedule: instruction order and formulas. No input, no output.

Sources: `deepspeed/runtime/pipe/schedule.py` (TrainSchedule, v0.3.0 - v0.19.5), formats/schedules.md for the closed forms.
Notation: p stages, s stage, m micro-batches of one pipeline replica and optimizer step (DeepSpeed's accumulation steps), v chunks.
DeepSpeed runs 1F1B with a flush (PipeDream-Flush) and nothing else.
"""

from __future__ import annotations

from typing import Literal

Work = Literal["forward", "backward"]


def ideal_bubble(p: int, m: int, v: int = 1) -> float:
    """Share of the pipeline phase that a stage idles with equal stages and free transfers: (p-1)/(v*m+p-1).

    1F1B and GPipe with v = 1, interleaved 1F1B with v chunks a stage. Raises ValueError below one stage, micro-batch or chunk.
    """
    if p < 1 or m < 1 or v < 1:
        raise ValueError(f"p, m and v must be at least 1, not {p}, {m}, {v}")
    return (p - 1) / (v * m + p - 1)


def in_flight(stage: int, p: int, m: int) -> int:
    """Micro-batches whose activations a stage holds at its peak under 1F1B: min(p - s, m)."""
    return min(p - stage, m)


def compute_order(stage: int, p: int, m: int) -> list[tuple[Work, int]]:
    """(work, micro-batch) of a stage in the order of TrainSchedule: F(k) at step 2k+s, B(k) at step 2k+2p-s-1."""
    steps = [(2 * k + stage, "forward", k) for k in range(m)] + [(2 * k + 2 * p - stage - 1, "backward", k) for k in range(m)]
    return [(work, k) for _, work, k in sorted(steps)]  # type: ignore[misc]


def p2p_order(stage: int, p: int, m: int, *, receive_first: bool = True) -> list[tuple[str, int]]:
    """(instruction, micro-batch) of a stage's messages, in order: those of `order`."""
    return [one for one in order(stage, p, m, receive_first=receive_first) if one[0] not in ("forward", "backward")]


def order(stage: int, p: int, m: int, *, receive_first: bool = True) -> list[tuple[str, int]]:
    """(instruction, micro-batch) of a stage's passes and messages, in order.

    Before a forward: SendGrad of the micro-batch before, RecvActivation. Before a backward: RecvGrad, SendActivation of the one
    before. receive_first: the order of v0.8.3 and later; older releases swap the two.
    """
    work = {2 * k + stage: ("forward", k) for k in range(m)} | {2 * k + 2 * p - stage - 1: ("backward", k) for k in range(m)}
    found: list[tuple[str, int]] = []
    for step in range(2 * (m + p - 1)):
        kind, k = work.get(step, ("", -1))
        last_kind, last = work.get(step - 1, ("", -1))
        forward_slot = (step - stage) % 2 == 0
        if forward_slot:
            sends = [("send_grad", last)] if last_kind == "backward" and stage > 0 else []
            receives = [("recv_activation", k)] if kind == "forward" and stage > 0 else []
            found += sends + receives if receive_first else receives + sends
        else:
            receives = [("recv_grad", k)] if kind == "backward" and stage < p - 1 else []
            sends = [("send_activation", last)] if last_kind == "forward" and stage < p - 1 else []
            found += receives + sends if receive_first else sends + receives
        found += [(kind, k)] if kind else []
    return found


def work_at(step: int, stage: int, p: int, m: int) -> tuple[Work, int] | None:
    """What a stage computes at a step of the schedule; at one of wrong parity or out of range nothing."""
    if (step - stage) % 2 == 0:
        k = (step - stage) // 2
        return ("forward", k) if 0 <= k < m else None
    k = (step - 2 * p + stage + 1) // 2
    return ("backward", k) if 0 <= k < m else None
