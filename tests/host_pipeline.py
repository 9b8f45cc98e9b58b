"""Traces of DeepSpeed's 1F1B on CPU with gloo that never ran, from durations that a test chooses (µs).

The timeline is computed here by running each stage's list of instructions with blocking receives, on its own terms. Sends return at
once. Passes are operators of the main thread, as the profiler records them: forward passes with rising sequence numbers, backward
passes as `autograd::engine::evaluate_function`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.making import Trace

SEND = 5.0
"""How long a call of send takes, µs."""
BETWEEN = 1_000.0
"""From the end of the slowest rank's step to the next step, µs."""


@dataclass
class Pipeline:
    """forward, backward: of each stage and micro-batch. transfer: of a message. slow, late: (source, target) → longer transfer, idle
    time of the sender before its call. load: stage → time to get a batch. before: (stage, "F" or "B") → idle time before passes.
    again: stage → part of its backward passes that computes activations again. skew: stage → how late it begins its step.
    reduce, optimizer, broadcast: after the phase. factor: (replica, stage) → passes longer by it. offset: (stage) → its host's clock.
    """

    p: int = 2
    m: int = 4
    forward: float = 10_000.0
    backward: float = 20_000.0
    stage_factor: dict[int, float] = field(default_factory=dict)
    transfer: float = 10.0
    slow: dict[tuple[int, int], float] = field(default_factory=dict)
    late: dict[tuple[int, int], float] = field(default_factory=dict)
    load: dict[int, float] = field(default_factory=dict)
    before: dict[tuple[int, str], float] = field(default_factory=dict)
    again: dict[int, float] = field(default_factory=dict)
    skew: dict[int, float] = field(default_factory=dict)
    reduce: float = 0.0
    optimizer: float = 0.0
    broadcast: float = 0.0
    replicas: int = 1
    factor: dict[tuple[int, int], float] = field(default_factory=dict)
    offset: dict[int, float] = field(default_factory=dict)
    steps: int = 2
    first: int = 3


Item = tuple[str, int, float, float]
"""(instruction, micro-batch, begin, end)"""


def program(stage: int, p: int, m: int) -> list[tuple[str, int]]:
    """What a stage does, in order (formats/schedules.md section 2, v0.8.3+)."""
    work = {2 * k + stage: ("F", k) for k in range(m)} | {2 * k + 2 * p - stage - 1: ("B", k) for k in range(m)}
    out: list[tuple[str, int]] = []
    for slot in range(2 * (m + p - 1)):
        now, before = work.get(slot), work.get(slot - 1)
        if (slot - stage) % 2 == 0:
            out += [("send_grad", before[1])] if before and stage > 0 else []
            out += [("recv_activation", now[1])] if now and stage > 0 else []
        else:
            out += [("recv_grad", now[1])] if now and stage < p - 1 else []
            out += [("send_activation", before[1])] if before and stage < p - 1 else []
        out += [now] if now else []
    return out


def simulate(line: Pipeline, replica: int = 0) -> list[list[Item]]:
    """The timeline of one step of one replica, by stage. `load` items are part of it; idle time is not."""
    programs = [program(s, line.p, line.m) for s in range(line.p)]
    clock = [line.skew.get(s, 0.0) for s in range(line.p)]
    sent: dict[tuple[str, int, int], float] = {}
    done: list[list[Item]] = [[] for _ in range(line.p)]
    while any(programs):
        for s in range(line.p):
            while programs[s]:
                what, k = programs[s][0]
                at = clock[s]
                longer = line.stage_factor.get(s, 1.0) * line.factor.get((replica, s), 1.0)
                if what == "F" and line.load.get(s):
                    done[s].append(("load", k, at, at + line.load[s]))
                    at += line.load[s]
                if what in ("F", "B"):
                    at += line.before.get((s, what), 0.0)
                    end = at + longer * (line.forward if what == "F" else line.backward) + (line.again.get(s, 0.0) if what == "B" else 0.0)
                elif what.startswith("send"):
                    edge = (s, s + 1) if what == "send_activation" else (s, s - 1)
                    at += line.late.get(edge, 0.0)
                    sent[what[5:], s, k] = at + line.transfer + line.slow.get(edge, 0.0)
                    end = at + SEND
                else:
                    source = s - 1 if what == "recv_activation" else s + 1
                    if (what[5:], source, k) not in sent:
                        break
                    end = max(at + SEND, sent[what[5:], source, k])
                done[s].append((what, k, at, end))
                clock[s] = end
                programs[s].pop(0)
    return done


def phase(steps: list[list[Item]]) -> tuple[float, float]:
    """First forward to last backward."""
    passes = [item for stage in steps for item in stage if item[0] in ("F", "B")]
    return min(i[2] for i in passes), max(i[3] for i in passes)


def busy(steps: list[list[Item]]) -> list[float]:
    """Time in passes, by stage."""
    return [sum(end - begin for what, _, begin, end in stage if what in ("F", "B")) for stage in steps]


def bubble(steps: list[list[Item]]) -> float:
    """Idle share of the phase, mean over stages."""
    begin, end = phase(steps)
    return 1 - sum(busy(steps)) / len(steps) / (end - begin)


def traces(line: Pipeline) -> list[Trace]:
    """One trace a rank (rank = stage x replicas + replica), on the clock of its stage's host."""
    runs = [simulate(line, r) for r in range(line.replicas)]
    drained = [max(run[s][-1][3] for run in runs) for s in range(line.p)]  # the reduction waits for the slowest replica
    ends = [t + line.reduce for t in drained]
    length = max(ends) + line.optimizer + line.broadcast + BETWEEN
    out = []
    for s in range(line.p):
        for r in range(line.replicas):
            host = "node-0" if not line.offset else f"node-{s}"
            trace = Trace(s * line.replicas + r, line.p * line.replicas, host=host)
            number = 0
            for step in range(line.steps):
                origin = 50_000.0 + step * length + line.offset.get(s, 0.0)
                trace.step(line.first + step, origin - 1, length - 2)
                for item in runs[r][s]:
                    number = _record(trace, line, s, r, item, origin, number)
                last = runs[r][s][-1][3]
                if line.reduce:
                    trace.add("user_annotation", "gloo:all_reduce", origin + last, ends[s] - last)
                at = max(ends)
                if line.optimizer:
                    trace.add("user_annotation", "Optimizer.step#Adam.step", origin + at, line.optimizer)
                if line.broadcast:
                    trace.add("user_annotation", "gloo:broadcast", origin + at + line.optimizer, line.broadcast)
            out.append(trace)
    return out


def _record(trace: Trace, line: Pipeline, stage: int, replica: int, item: Item, origin: float, number: int) -> int:
    what, _, begin, end = item
    at, length = origin + begin, end - begin
    if what == "load":  # waiting for data shows nothing; it ends with the copy of the batch
        trace.op("aten::detach", at + length - 2, 2)
    elif what == "F":
        trace.op("aten::linear", at, length / 2, number)
        trace.op("aten::relu", at + length / 2, length / 2, number + 1)
        return number + 2
    elif what == "B":
        trace.op("autograd::engine::evaluate_function: AddmmBackward0", at, length)
        if line.again.get(stage):
            trace.op("aten::linear", at, line.again[stage], number + 1)
    else:
        peer = {"send_activation": stage + 1, "recv_grad": stage + 1, "send_grad": stage - 1, "recv_activation": stage - 1}[what]
        trace.message(what[:4], peer * line.replicas + replica, at, length)
    return number
