"""DeepSpeed's pipeline schedule: instruction order, formulas, replay. No input, no output.

Sources: `deepspeed/runtime/pipe/schedule.py` (TrainSchedule, v0.3.0 - v0.19.5), formats/schedules.md for the closed forms.
Notation: p stages, s stage, m micro-batches of one pipeline replica and optimizer step (DeepSpeed's accumulation steps), v chunks.
DeepSpeed runs 1F1B with a flush (PipeDream-Flush) and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Literal

import numpy as np

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
    """(instruction, micro-batch) of a stage's messages, in order.

    Before a forward: SendGrad of the micro-batch before, RecvActivation. Before a backward: RecvGrad, SendActivation of the one
    before. receive_first: the order of v0.8.3 and later; older releases swap the two.
    """
    work = {2 * k + stage: ("forward", k) for k in range(m)} | {2 * k + 2 * p - stage - 1: ("backward", k) for k in range(m)}
    order: list[tuple[str, int]] = []
    for step in range(2 * (m + p - 1)):
        kind, k = work.get(step, ("", -1))
        last_kind, last = work.get(step - 1, ("", -1))
        forward_slot = (step - stage) % 2 == 0
        if forward_slot:
            sends = [("send_grad", last)] if last_kind == "backward" and stage > 0 else []
            receives = [("recv_activation", k)] if kind == "forward" and stage > 0 else []
            order += sends + receives if receive_first else receives + sends
        else:
            receives = [("recv_grad", k)] if kind == "backward" and stage < p - 1 else []
            sends = [("send_activation", last)] if last_kind == "forward" and stage < p - 1 else []
            order += receives + sends if receive_first else sends + receives
    return order


@dataclass(frozen=True, slots=True)
class Delays:
    """What a replay takes in beside the passes themselves; all in the unit of the passes, zero where not given.

    load (…, p, m): to get the batch, before the forward pass. before_forward, before_backward (…, p, m): idle time of the host before
    a pass. activation, grad (…, p-1, m): transfers over the edge between stage s and s+1, down and up. before_send_activation,
    before_send_grad (…, p-1, m): idle time of the sender right before its call; the sender is held up by it as well.
    """

    load: np.ndarray | float = 0.0
    before_forward: np.ndarray | float = 0.0
    before_backward: np.ndarray | float = 0.0
    activation: np.ndarray | float = 0.0
    grad: np.ndarray | float = 0.0
    before_send_activation: np.ndarray | float = 0.0
    before_send_grad: np.ndarray | float = 0.0


def replay(forward: np.ndarray, backward: np.ndarray, delays: Delays | None = None, *, receive_first: bool = True) -> np.ndarray:
    """Length of the pipeline phase when TrainSchedule runs on given durations.

    forward, backward: (..., p, m); leading axes are independent runs (steps, replicas). Instructions run in DeepSpeed's order: in a
    forward slot SendGrad of the micro-batch before, RecvActivation, LoadMicroBatch, ForwardPass; in a backward slot RecvGrad,
    SendActivation of the micro-batch before, BackwardPass. So an activation leaves only after the gradient of that slot has come
    (receive_first; releases before v0.8.3 send first). Sends do not wait for the receiver. Returns last backward's end minus the first
    forward's start, shape (...). With equal stages and no delays that is (m + p - 1)(tF + tB).
    """
    *lead, p, m = forward.shape
    given = delays or Delays()
    d: dict[str, Any] = {
        f.name: np.broadcast_to(getattr(given, f.name), (*lead, p - 1 if "send" in f.name or f.name in ("activation", "grad") else p, m))
        for f in fields(given)
    }
    free = [np.zeros(lead) for _ in range(p)]
    activation, grad = np.zeros((*lead, p, m)), np.zeros((*lead, p, m))  # when they have arrived
    begin, last = np.full(lead, np.inf), np.zeros(lead)
    work = {(step, s): found for s in range(p) for step in range(2 * (m + p - 1)) if (found := work_at(step, s, p, m))}
    nothing: tuple[str, int] = ("", 0)
    for step in range(2 * (m + p - 1)):
        now = [work.get((step, s), nothing) for s in range(p)]
        before = [work.get((step - 1, s), nothing) for s in range(p)]
        for s in range(1, p):  # SendGrad
            kind, k = before[s]
            if kind == "backward":
                free[s] = free[s] + d["before_send_grad"][..., s - 1, k]
                grad[..., s - 1, k] = free[s] + d["grad"][..., s - 1, k]
        for s in range(p - 1):  # RecvGrad, SendActivation
            got = np.maximum(free[s], grad[..., s, now[s][1]]) if now[s][0] == "backward" else free[s]
            kind, k = before[s]
            if kind == "forward":
                leave = (got if receive_first else free[s]) + d["before_send_activation"][..., s, k]
                activation[..., s + 1, k] = leave + d["activation"][..., s, k]
                got = np.maximum(got, leave)
            free[s] = got
        for s in range(p):  # RecvActivation, LoadMicroBatch, ForwardPass; BackwardPass
            kind, k = now[s]
            if kind == "forward":
                start = np.maximum(free[s], activation[..., s, k]) + d["load"][..., s, k] + d["before_forward"][..., s, k]
                begin = np.minimum(begin, start)
                free[s] = start + forward[..., s, k]
            elif kind == "backward":
                free[s] = free[s] + d["before_backward"][..., s, k] + backward[..., s, k]
                last = np.maximum(last, free[s])
    return np.asarray(last - begin)


def work_at(step: int, stage: int, p: int, m: int) -> tuple[Work, int] | None:
    """What a stage computes at a step of the schedule; at one of wrong parity or out of range nothing."""
    if (step - stage) % 2 == 0:
        k = (step - stage) // 2
        return ("forward", k) if 0 <= k < m else None
    k = (step - 2 * p + stage + 1) // 2
    return ("backward", k) if 0 <= k < m else None
