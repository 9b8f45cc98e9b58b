"""What each stage executes, in order, under each schedule. No durations here.

Sources: DeepSpeed's TrainSchedule in both orders (formats of `pipelog.schedule`); GPipe (arXiv 1811.06965); interleaved 1F1B as
Megatron-LM runs it (arXiv 2104.04473, warm-up 2(p-s-1) + (v-1)p); ZB-H1 (arXiv 2401.10241) for reference. A *place* is a model chunk:
chunk c of stage s is place c p + s, so that activations go from each place to the next. Without interleaving a place is a stage.
"""

from __future__ import annotations

from typing import Literal, get_args

from pipelog.schedule import work_at

Schedule = Literal["1f1b", "1f1b-send-first", "gpipe", "interleaved", "zb-h1"]
"""1f1b: as DeepSpeed runs it since v0.8.3; 1f1b-send-first: before."""

Instruction = tuple[str, int, int]
"""(kind, place, micro-batch); for messages place is the edge: from place j to j + 1 for activations, back for gradients."""


def program(schedule: Schedule, stage: int, p: int, m: int, v: int = 1) -> list[Instruction]:
    """All instructions of a stage in order: load, recv_activation, forward, send_activation, recv_grad, recompute, backward, weight, send_grad."""
    _check(schedule, stage, p, m, v)
    if schedule in ("1f1b", "1f1b-send-first"):
        return _deepspeed(stage, p, m, receive_first=schedule == "1f1b")
    return _with_messages(passes(schedule, stage, p, m, v), p * v)


def passes(schedule: Schedule, stage: int, p: int, m: int, v: int = 1) -> list[Instruction]:
    """The forward, backward and weight passes of a stage alone, in order. Raises ValueError where the schedule does not exist for these numbers."""
    _check(schedule, stage, p, m, v)
    if schedule in ("1f1b", "1f1b-send-first"):
        return [one for one in _deepspeed(stage, p, m, receive_first=True) if one[0] in ("forward", "backward", "weight")]
    if schedule == "gpipe":
        return [("forward", stage, k) for k in range(m)] + [(kind, stage, k) for k in range(m) for kind in ("backward", "weight")]
    if schedule == "interleaved":
        return _interleaved(stage, p, m, v)
    return _zero_bubble(stage, p, m)


def _check(schedule: str, stage: int, p: int, m: int, v: int) -> None:
    if schedule not in get_args(Schedule):
        raise ValueError(f"no schedule {schedule!r}")
    if min(p, m, v) < 1 or not 0 <= stage < p:
        raise ValueError(f"p, m and v must be at least 1 and the stage below p, not {p}, {m}, {v}, stage {stage}")
    if v > 1 and schedule != "interleaved":
        raise ValueError(f"{schedule} has one chunk a stage, not {v}")


def in_flight(schedule: Schedule, stage: int, p: int, m: int, v: int = 1) -> float:
    """Micro-batches whose activations a stage holds at its peak, in micro-batches of the whole stage: a chunk counts 1/v.

    Under 1F1B that is min(p - s, m), under GPipe m. Held from the forward pass until nothing needs it: with split passes the weight pass.
    """
    if schedule in ("1f1b", "1f1b-send-first", "gpipe"):
        _check(schedule, stage, p, m, v)
        return float(m if schedule == "gpipe" else min(p - stage, m))
    alive = most = 0
    for kind, _, _ in passes(schedule, stage, p, m, v):
        alive += (kind == "forward") - (kind == "weight")
        most = max(most, alive)
    return most / v


def _deepspeed(stage: int, p: int, m: int, *, receive_first: bool) -> list[Instruction]:
    """TrainSchedule: a forward slot sends the last gradient and receives an activation, a backward slot the reverse."""
    out: list[Instruction] = []
    last: tuple[str, int] | None = None
    for step in range(2 * (m + p - 1)):
        now = work_at(step, stage, p, m)
        kind, k = now or ("", -1)
        if (step - stage) % 2 == 0:
            send = [("send_grad", stage - 1, last[1])] if last and last[0] == "backward" and stage > 0 else []
            receive = [("recv_activation", stage - 1, k)] if kind == "forward" and stage > 0 else []
        else:
            send = [("send_activation", stage, last[1])] if last and last[0] == "forward" and stage < p - 1 else []
            receive = [("recv_grad", stage, k)] if kind == "backward" and stage < p - 1 else []
        # gradients before activations since v0.8.3, whichever of them is sent; before that the other way round
        out += [*send, *receive] if ((step - stage) % 2 == 0) == receive_first else [*receive, *send]
        if kind:
            out += [(word, stage, k) for word in _PARTS[kind]]
        last = now
    return out


_PARTS = {
    "forward": ("load", "before_forward", "forward"),
    "backward": ("before_backward", "recompute", "backward", "weight"),
}


def _with_messages(order: list[Instruction], places: int) -> list[Instruction]:
    """Receive right before a pass, send right after it."""
    out: list[Instruction] = []
    for kind, place, k in order:
        if kind == "forward":
            out += [("recv_activation", place - 1, k)] if place > 0 else []
            out += [(word, place, k) for word in _PARTS["forward"]]
            out += [("send_activation", place, k)] if place < places - 1 else []
        elif kind == "backward":
            out += [("recv_grad", place, k)] if place < places - 1 else []
            out += [(word, place, k) for word in _PARTS["backward"][:-1]]
            out += [("send_grad", place - 1, k)] if place > 0 else []
        else:
            out.append((kind, place, k))
    return out


def _interleaved(stage: int, p: int, m: int, v: int) -> list[Instruction]:
    """Megatron's order: micro-batches in groups of p, each group through all chunks of the stage; then one forward, one backward."""
    if m % p:
        raise ValueError(f"interleaving needs micro-batches in multiples of the stages, not {m} for {p}")
    count = m * v
    order = [(k // (p * v) * p + k % p, k % (p * v) // p) for k in range(count)]
    forwards: list[Instruction] = [("forward", chunk * p + stage, k) for k, chunk in order]
    backwards: list[Instruction] = [("backward", (v - 1 - chunk) * p + stage, k) for k, chunk in order]
    warm_up = min(2 * (p - stage - 1) + (v - 1) * p, count)
    if v == 1:
        warm_up = min(p - stage - 1, count)
    out = forwards[:warm_up]
    for i in range(count - warm_up):
        out += [forwards[warm_up + i], backwards[i], ("weight", *backwards[i][1:])]
    for one in backwards[count - warm_up :]:
        out += [one, ("weight", *one[1:])]
    return out


def _zero_bubble(stage: int, p: int, m: int) -> list[Instruction]:
    """ZB-H1: the forward and input-gradient passes of 1F1B; stage s puts each weight pass off by s micro-batches, so none holds more than p."""
    out: list[Instruction] = []
    for kind, place, k in passes("1f1b", stage, p, m):
        if kind != "weight":
            out.append((kind, place, k))
        elif k >= stage:
            out.append(("weight", place, k - stage))
    return out + [("weight", stage, k) for k in range(max(m - stage, 0), m)]
