"""Traces of a pipeline that never ran: DeepSpeed's 1F1B on GPUs with NCCL, from durations that the test chooses.

The timeline is computed by plain simulation here, on its own terms (a list of instructions a stage, blocking receives), not with
pipelog.schedule, so that a test compares two independent computations.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class Pipeline:
    """Durations in microseconds. late: idle time of the sender before it sends an activation over an edge. hosts: offset of each stage's clock."""

    p: int
    m: int
    forward: list[float]
    backward: list[float]
    transfer: float = 40.0
    late: dict[int, float] = field(default_factory=dict)
    hosts: list[tuple[str, float]] | None = None
    steps: int = 2


def instructions(stage: int, p: int, m: int) -> list[tuple[str, int]]:
    """What a stage does, in order, written down from deepspeed/runtime/pipe/schedule.py."""
    out: list[tuple[str, int]] = []
    work: dict[int, tuple[str, int]] = {}
    for k in range(m):
        work[2 * k + stage] = ("F", k)
        work[2 * k + 2 * p - stage - 1] = ("B", k)
    for step in range(2 * (m + p - 1)):
        now, before = work.get(step), work.get(step - 1)
        if (step - stage) % 2 == 0:
            if before and before[0] == "B" and stage > 0:
                out.append(("send_grad", before[1]))
            if now and stage > 0:
                out.append(("recv_activation", now[1]))
        else:
            if now and stage < p - 1:
                out.append(("recv_grad", now[1]))
            if before and before[0] == "F" and stage < p - 1:
                out.append(("send_activation", before[1]))
        if now:
            out.append(now)
    return out


def simulate(line: Pipeline) -> list[list[tuple[str, int, float, float]]]:
    """Per stage (instruction, micro-batch, begin, end) in us; receives end when the message has come."""
    queues = [instructions(s, line.p, line.m) for s in range(line.p)]
    clock = [0.0] * line.p
    sent: dict[tuple[str, int, int], float] = {}
    done: list[list[tuple[str, int, float, float]]] = [[] for _ in range(line.p)]
    while any(queues):
        for s in range(line.p):
            while queues[s]:
                what, k = queues[s][0]
                begin = clock[s]
                if what == "F":
                    end = begin + line.forward[s]
                elif what == "B":
                    end = begin + line.backward[s]
                elif what.startswith("send"):
                    begin += line.late.get(s, 0.0) if what == "send_activation" else 0.0
                    end = begin + 5.0
                    sent[what[5:], s, k] = begin + line.transfer
                else:
                    source = s - 1 if what == "recv_activation" else s + 1
                    if (what[5:], source, k) not in sent:
                        break
                    end = max(begin + 5.0, sent[what[5:], source, k])
                done[s].append((what, k, begin, end))
                clock[s] = end
                queues[s].pop(0)
    return done


def write(line: Pipeline, folder: Path) -> list[Path]:
    """One trace a stage, as Kineto writes them on NVIDIA: operators and calls on the host, kernels with a launch on the device."""
    steps = simulate(line)
    length = max(end for stage in steps for *_, end in stage) + 2000.0
    paths = []
    for stage in range(line.p):
        machine, offset = line.hosts[stage] if line.hosts else ("node-0", 0.0)
        events: list[dict[str, Any]] = []
        correlation = 0
        sequence = 0
        for step in range(line.steps):
            origin = 10_000.0 + step * length + offset
            host = origin - 450
            events.append(_x("user_annotation", f"ProfilerStep#{step + 3}", origin - 500, length - 20, 1))
            for what, _, begin, end in steps[stage]:
                correlation += 1
                at = origin + begin
                host += 30  # the host runs ahead of the device, one instruction after another
                if what in ("F", "B"):
                    name = "aten::linear" if what == "F" else "autograd::engine::evaluate_function: AddmmBackward0"
                    thread = 1 if what == "F" else 2
                    sequence += what == "F"
                    events.append(_x("cpu_op", name, host, 15, thread, {"Sequence number": sequence, "Fwd thread id": 0 if what == "F" else 1}))
                    events.append(_x("cuda_runtime", "cudaLaunchKernel", host + 8, 3, thread, {"correlation": correlation}))
                    if what == "F":  # two operators, so that the sequence number rises within the pass
                        sequence += 1
                        events.append(_x("cpu_op", "aten::add", host + 16, 2, 1, {"Sequence number": sequence, "Fwd thread id": 0}))
                    events.append(_kernel(f"gemm_{what}", at, end - begin, 7, correlation))
                    continue
                sends = what.startswith("send")
                peer = stage + (1 if what in ("send_activation", "recv_grad") else -1)
                events.append(_x("cpu_op", "c10d::send" if sends else "c10d::recv_", host, 8, 1, {"Concrete Inputs": ["", "", str(peer), "0"]}))
                events.append(_x("cuda_runtime", "cudaLaunchKernel", host + 2, 1, 1, {"correlation": correlation}))
                ends = {"Src Rank": stage if sends else peer, "Dst Rank": peer if sends else stage}
                more = {"Collective name": "send" if sends else "recv", "In msg nelems": 4096, "dtype": "BFloat16"} | ends
                events.append(_kernel("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", at, end - begin, 20, correlation, more))
            events.append(_x("user_annotation", "Optimizer.step#FusedAdam.step", host + 100, 300, 1))
        document = {
            "schemaVersion": 1,
            "deviceProperties": [{"id": 0, "name": "NVIDIA H100 80GB HBM3", "totalGlobalMem": 85017755648}],
            "distributedInfo": {"backend": "nccl", "rank": stage, "world_size": line.p},
            "host_name": machine,
            "baseTimeNanoseconds": 1790857026000000000,
            "traceEvents": events,
        }
        path = folder / f"rank{stage}.pt.trace.json"
        path.write_text(json.dumps(document))
        paths.append(path)
    return paths


def _x(category: str, name: str, start: float, length: float, thread: int, args: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"ph": "X", "cat": category, "name": name, "pid": 1, "tid": thread, "ts": round(start, 3), "dur": round(length, 3), "args": args or {}}


def _kernel(name: str, start: float, length: float, stream: int, correlation: int, more: dict[str, Any] | None = None) -> dict[str, Any]:
    args = {"device": 0, "stream": stream, "correlation": correlation} | (more or {})
    return {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": stream, "ts": round(start, 3), "dur": round(length, 3), "args": args}
