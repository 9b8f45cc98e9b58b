"""DeepSpeed's pipeline schedule: instruction order, formulas, replay. No input, no output.

Sources: `deepspeed/runtime/pipe/schedule.py` (TrainSchedule, v0.3.0 - v0.19.5), formats/schedules.md for the closed forms.
Notation: p stages, s stage, m micro-batches of one pipeline replica and optimizer step (DeepSpeed's accumulation steps), v chunks.
DeepSpeed runs 1F1B with a flush (PipeDream-Flush) and nothing else.
"""

from __future__ import annotations

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


def replay(
    forward: np.ndarray,
    backward: np.ndarray,
    *,
    load: np.ndarray | None = None,
    activation_transfer: np.ndarray | None = None,
    grad_transfer: np.ndarray | None = None,
    start: np.ndarray | None = None,
) -> dict[str, np.ndarray]:
    """Run the dependency graph of 1F1B on given durations.

    forward, backward, load: (..., p, m) durations; activation_transfer, grad_transfer: (..., p-1, m) from stage s to s+1, and back.
    start: (..., p) when a stage may begin. Leading axes (steps, replicas) are independent runs. A transfer is ready for the
    receiver at the end of the producer's work plus its duration; stages do their work in TrainSchedule's order.
    Returns end times: "forward" and "backward" (..., p, m), "phase" (...): last backward of any stage minus the first forward's
    start, and "first" (...), the start of the first forward.
    """
    *lead, p, m = forward.shape
    zero = np.zeros(tuple(lead))
    f_end, b_end = np.zeros_like(forward, dtype=float), np.zeros_like(backward, dtype=float)
    free = [start[..., s].astype(float) if start is not None else zero.copy() for s in range(p)]
    first = np.full(tuple(lead), np.inf)
    for step in range(2 * (m + p - 1)):
        for s in range(p):
            work = _work_at(step, s, p, m)
            if work is None:
                continue
            kind, k = work
            if kind == "forward":
                ready = free[s]
                if s > 0:
                    sent = f_end[..., s - 1, k] + (activation_transfer[..., s - 1, k] if activation_transfer is not None else 0)
                    ready = np.maximum(ready, sent)
                if load is not None:
                    ready = ready + load[..., s, k]
                first = np.minimum(first, ready)
                free[s] = f_end[..., s, k] = ready + forward[..., s, k]
            else:
                ready = free[s]
                if s < p - 1:
                    sent = b_end[..., s + 1, k] + (grad_transfer[..., s, k] if grad_transfer is not None else 0)
                    ready = np.maximum(ready, sent)
                free[s] = b_end[..., s, k] = ready + backward[..., s, k]
    return {"forward": f_end, "backward": b_end, "first": first, "phase": b_end.max(axis=(-2, -1)) - first}


def _work_at(step: int, stage: int, p: int, m: int) -> tuple[Any, int] | None:
    if (step - stage) % 2 == 0:
        k = (step - stage) // 2
        return ("forward", k) if 0 <= k < m else None
    k = (step - 2 * p + stage + 1) // 2
    return ("backward", k) if 0 <= k < m else None
