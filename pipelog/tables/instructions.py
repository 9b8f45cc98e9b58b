"""Pipeline instructions of each rank and step, read or reconstructed from traces."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
import pyarrow as pa

from pipelog.parsers.trace_host import BACKWARD, P2P_CALLS
from pipelog.tables import of_kind, table
from pipelog.tables.device_work import COMPUTE, RECEIVE, SEND, DeviceTrace

COLUMNS = ["file", "rank", "window", "step", "instruction", "micro_batch", "start_ns", "end_ns", "line", "source"]

_CLASSES = {
    "LoadMicroBatch": "load_micro_batch",
    "ForwardPass": "forward",
    "BackwardPass": "backward",
    "SendActivation": "send_activation",
    "RecvActivation": "recv_activation",
    "SendGrad": "send_grad",
    "RecvGrad": "recv_grad",
    "ReduceTiedGrads": "reduce_tied_grads",
    "ReduceGrads": "reduce_grads",
    "OptimizerStep": "optimizer_step",
}
_FRAMES = {
    "_exec_load_micro_batch": "load_micro_batch",
    "_exec_forward_pass": "forward",
    "_exec_backward_pass": "backward",
    "_exec_send_activations": "send_activation",
    "_exec_recv_activations": "recv_activation",
    "_exec_send_grads": "send_grad",
    "_exec_recv_grads": "recv_grad",
    "_exec_reduce_tied_grads": "reduce_tied_grads",
    "_exec_reduce_grads": "reduce_grads",
    "_exec_optimizer_step": "optimizer_step",
}
_ANNOTATION = re.compile(r"(?<![A-Za-z])(" + "|".join(_CLASSES) + r")s?(?![a-z])")
_PROLOGUE_NS = 500_000
"""Python of a pass outside its operators (module hooks, timers, the engine's own bookkeeping): 0.1 - 0.4 ms on the recorded runs."""
_NO_COMPUTE = frozenset({"aten::detach", "detach", "aten::clone", "aten::to", "aten::contiguous", "aten::empty", "aten::copy_", "aten::zero_"})


@dataclass(frozen=True, slots=True)
class HostTrace:
    """The host's rows of one trace, as arrays in order of start. windows: (step, start, end), step -1 where it has no number.

    Where a rank has several files, the windows of its earlier ones stand before the own ones, empty: a window's number is the rank's.
    """

    file: str
    rank: int
    clock: str
    kind: np.ndarray
    name: np.ndarray
    start: np.ndarray
    end: np.ndarray
    line: np.ndarray
    sequence: np.ndarray
    peer: np.ndarray
    size: np.ndarray
    launch: np.ndarray
    main: np.ndarray
    windows: list[tuple[int, int, int]]

    @property
    def sequenced(self) -> bool:
        """Whether its operators carry autograd sequence numbers at all."""
        return bool((self.sequence[self.kind == "cpu_op"] >= 0).any())

    def window_of(self, times: np.ndarray) -> np.ndarray:
        """Index of the window that holds each time, -1 where none does."""
        begins = np.array([w[1] for w in self.windows], np.int64)
        ends = np.array([w[2] for w in self.windows], np.int64)
        place = np.searchsorted(begins, times, side="right") - 1
        return np.where((place >= 0) & (times < ends[np.maximum(place, 0)]), place, -1)


_KINDS = (
    "cpu_op", "send", "recv", "collective", "comm_call", "frame", "annotation", "profiler_step", "optimizer_step", "data_load", "recompute",
)  # fmt: skip


@table("host_traces", needs=("placed",))
def host_traces(placed: pa.Table) -> list[HostTrace]:
    """The host's side of every trace whose rank is known, with its step windows: ProfilerStep, else between optimizer steps, else all.

    A rank may have several files, one a cycle of the profiler's schedule. A copy of a file counts once. A folder may hold two runs: of
    windows of one step on one clock that do not overlap in time the latest counts, since no rank is a whole step ahead of another.
    """
    rows = of_kind(placed, *_KINDS)
    rows = rows.filter(pa.compute.fill_null(pa.compute.equal(rows.column("device").cast(pa.string()), "cpu"), False))
    if not rows.num_rows:
        return []
    arrays = {n: rows.column(n).cast(pa.string()).to_numpy(zero_copy_only=False) for n in ("file", "kind", "name", "stream", "clock")}
    numbers = {
        n: pa.compute.fill_null(rows.column(n).cast(pa.int64()), -1).to_numpy()
        for n in ("rank", "start_ns", "dur_ns", "line", "peer", "bytes", "launch_ns")
    }
    value = pa.compute.fill_null(rows.column("value"), -1.0).to_numpy()
    out = []
    for file in dict.fromkeys(arrays["file"]):
        mine = np.flatnonzero((arrays["file"] == file) & (numbers["rank"] >= 0))
        if not len(mine):
            continue
        mine = mine[np.lexsort((-numbers["dur_ns"][mine], numbers["start_ns"][mine]))]
        kind, thread = arrays["kind"][mine], arrays["stream"][mine]
        start = numbers["start_ns"][mine]
        end = start + numbers["dur_ns"][mine]
        out.append(
            HostTrace(
                file, int(numbers["rank"][mine[0]]), str(arrays["clock"][mine[0]]), kind, arrays["name"][mine], start, end, numbers["line"][mine],
                value[mine], numbers["peer"][mine], numbers["bytes"][mine], numbers["launch_ns"][mine], thread == _main_thread(kind, thread),
                _windows(kind, start, end, value[mine]),
            )
        )  # fmt: skip
    return _apart(out)


def _apart(traces: list[HostTrace]) -> list[HostTrace]:
    """Without copies and windows of an earlier run, and with windows that are numbered over all files of a rank."""
    latest: dict[tuple[str, int], int] = {}
    for trace in traces:
        for step, begin, _ in trace.windows:
            latest[trace.clock, step] = max(begin, latest.get((trace.clock, step), begin))
    kept: dict[str, HostTrace] = {}
    seen: set[tuple[int, ...]] = set()
    before: dict[int, int] = {}
    for trace in sorted(traces, key=lambda t: int(t.start[0])):
        content = (trace.rank, int(trace.start[0]), int(trace.end.max()), len(trace.start))
        own = [w for w in trace.windows if w[0] < 0 or w[2] > latest[trace.clock, w[0]]]
        if content in seen or not own:
            continue
        seen.add(content)
        empty = [(-1, own[0][1], own[0][1])] * before.get(trace.rank, 0)
        before[trace.rank] = len(empty) + len(own)
        kept[trace.file] = replace(trace, windows=[*empty, *own])
    return [kept[t.file] for t in traces if t.file in kept]


def _main_thread(kind: np.ndarray, thread: np.ndarray) -> str:
    """The thread that calls train_batch: the one of ProfilerStep, else of the p2p calls, else the busiest."""
    for wanted in ("profiler_step", "comm_call", "cpu_op"):
        threads, counts = np.unique(thread[kind == wanted].astype(str), return_counts=True)
        if len(threads):
            return str(threads[np.argmax(counts)])
    return ""


def _windows(kind: np.ndarray, start: np.ndarray, end: np.ndarray, value: np.ndarray) -> list[tuple[int, int, int]]:
    marks = np.flatnonzero(kind == "profiler_step")
    if len(marks):  # ProfilerStep#N is DeepSpeed's step N + 1
        return [(int(value[i]) + 1, int(start[i]), int(end[i])) for i in marks]
    first, last = int(start.min()), int(end.max()) + 1
    ends = np.unique(end[kind == "optimizer_step"])
    if len(ends) > 1:
        borders = [first, *(int(e) for e in ends[:-1]), last]
        return [(-1, a, b) for a, b in itertools.pairwise(borders)]
    return [(-1, first, last)]


@table("instructions", needs=("host_traces", "device_traces"))
def instructions(host_traces: list[HostTrace], device_traces: dict[str, DeviceTrace]) -> pd.DataFrame:
    """One row an instruction: file, rank, window, step, instruction, micro_batch, start_ns, end_ns, line, source.

    source, best first: `annotation` (record_function ranges with DeepSpeed's instruction names), `stack` (frames of pipe/engine.py),
    `operators` (reconstructed: forward and backward passes are the runs of operators between messages; see `_from_operators`).
    In a trace with device work a pass is what the device does for it: from the first start to the last end of the kernels that were
    launched in it; messages are the device's too.
    """
    parts = []
    for trace in host_traces:
        for source in (_from_annotations, _from_frames, _from_operators):
            found = source(trace)
            if found is None:
                continue
            device = device_traces.get(trace.file)
            if device is not None and (device.group == COMPUTE).any():
                found = _on_device(found, trace, device)
            if {"forward", "backward"} <= set(found["instruction"]):
                parts.append(found)
                break
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=COLUMNS)


def _on_device(found: pd.DataFrame, trace: HostTrace, device: DeviceTrace) -> pd.DataFrame:
    """Passes and messages in the device's time; what the host does beside them (loads, the optimizer) is left out."""
    passes = found[found["instruction"].isin(["forward", "backward"])]
    first, last = device.extents(passes["start_ns"].to_numpy(), passes["end_ns"].to_numpy())
    passes = passes.assign(start_ns=first, end_ns=last)[first >= 0]
    places = np.flatnonzero(np.isin(device.group, (SEND, RECEIVE)))
    window = trace.window_of(device.launch[places])
    places, window = places[window >= 0], window[window >= 0]
    messages = pd.DataFrame(
        {
            "file": trace.file,
            "rank": trace.rank,
            "window": window,
            "step": [trace.windows[w][0] for w in window],
            "instruction": np.where(device.group[places] == SEND, "send", "recv"),
            "start_ns": device.start[places],
            "end_ns": device.end[places],
            "line": device.line[places],
            "source": passes["source"].iloc[0] if len(passes) else "operators",
        }
    )
    messages["micro_batch"] = messages.groupby(["window", "instruction"]).cumcount()
    return pd.concat([passes[COLUMNS], messages[COLUMNS]], ignore_index=True).sort_values("start_ns", kind="stable")


def _named(trace: HostTrace, kind: str, meaning: Callable[[str], str | None], source: str) -> pd.DataFrame | None:
    """Rows of instructions that the trace names: those of a kind whose name *meaning* knows, micro-batches counted by kind within the step."""
    places = np.flatnonzero(trace.kind == kind)
    codes, names = pd.factorize(trace.name[places])  # names are few, rows are many
    words = [meaning(str(name)) for name in names]
    known = np.array([word is not None for word in words], bool)[codes] if len(names) else np.zeros(0, bool)
    window = trace.window_of(trace.start[places])
    known &= window >= 0
    places, codes, window = places[known], codes[known], window[known]
    instruction = np.array(words, object)[codes] if len(names) else np.zeros(0, object)
    if not {"forward", "backward"} <= set(pd.unique(instruction)):
        return None
    rows = pd.DataFrame(
        {
            "file": trace.file,
            "rank": trace.rank,
            "window": window,
            "step": _steps(trace, window),
            "instruction": instruction,
            "micro_batch": _counted(window, pd.factorize(instruction)[0]),
            "start_ns": trace.start[places],
            "end_ns": trace.end[places],
            "line": trace.line[places],
            "source": source,
        }
    )
    return rows[COLUMNS]


def _steps(trace: HostTrace, window: np.ndarray) -> np.ndarray:
    """Number of the step of each window, -1 where it has none."""
    return np.asarray(np.array([w[0] for w in trace.windows], np.int64)[window])


def _counted(window: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """How many rows of the same window and kind stand before each row."""
    key = window.astype(np.int64) * (int(codes.max(initial=0)) + 1) + codes
    order = np.argsort(key, kind="stable")
    ordered = key[order]
    first = np.flatnonzero(np.concatenate(([True], np.diff(ordered) != 0))) if len(key) else np.zeros(0, np.int64)
    out = np.empty(len(key), np.int64)
    out[order] = np.arange(len(key)) - np.repeat(first, np.diff(np.append(first, len(key))))
    return out


def _annotated(name: str) -> str | None:
    found = _ANNOTATION.search(name)
    return _CLASSES[found.group(1)] if found else None


def _from_annotations(trace: HostTrace) -> pd.DataFrame | None:
    return _named(trace, "annotation", _annotated, "annotation")


def _from_frames(trace: HostTrace) -> pd.DataFrame | None:
    return _named(trace, "frame", _FRAMES.get, "stack")


def _from_operators(trace: HostTrace) -> pd.DataFrame | None:
    """Reconstruct passes from the operators of the main thread and the backward ones of autograd's.

    Messages cut them into stretches. A backward pass is a run of `autograd::engine::evaluate_function`. What else a stretch
    holds is a forward pass if it makes gradients (its autograd sequence number rises): it begins after the last `detach` before
    the first such operator, since DeepSpeed ends a receive and a load with one, and ends with the last operator.
    What lies between the end of the work before and the beginning of a forward pass of a stage that loads data is its load.
    """
    backwards = (trace.kind == "cpu_op") & np.fromiter((str(n).startswith(BACKWARD) for n in trace.name), bool, len(trace.name))
    calls = (trace.kind == "comm_call") & np.isin(trace.name, tuple(P2P_CALLS))
    waits = np.isin(trace.kind, ("send", "recv"))
    use = (
        trace.main & np.isin(trace.kind, ("cpu_op", "send", "recv", "comm_call", "optimizer_step"))
    ) | backwards  # autograd has a thread of its own
    if (waits & trace.main).any():
        use &= ~calls  # gloo: the wait is the message; on a device the call is all that the host sees of it
    elif not calls.any():
        return None
    places = np.flatnonzero(use)
    window = trace.window_of(trace.start[places])
    places, window = places[window >= 0], window[window >= 0]
    backward = backwards[places]
    operator = trace.kind[places] == "cpu_op"
    group = np.where(~operator, 0, np.where(backward, 2, 1))
    inside = _in_optimizer(trace, places)
    group[inside] = 0
    edges = np.flatnonzero(np.concatenate(([True], (group[1:] != group[:-1]) | (window[1:] != window[:-1]) | (group[1:] == 0))))
    rows: list[tuple[int, str, int, int, int]] = []
    for begin, end in zip(edges, [*edges[1:], len(places)], strict=True):
        kind = group[begin]
        if kind == 0:
            continue
        run = places[begin:end]
        if kind == 2:
            rows.append((int(window[begin]), "backward", int(trace.start[run[0]]), int(trace.end[run].max()), int(trace.line[run[0]])))
            continue
        following = trace.sequence[places[end]] if end < len(places) and group[end] == 1 else -1.0
        first = _forward_begins(trace, run, following)
        if first is not None:
            rows.append((int(window[begin]), "forward", int(trace.start[run[first]]), int(trace.end[run].max()), int(trace.line[run[first]])))
    messages = places[np.isin(trace.kind[places], ("send", "recv"))]
    for i in messages:
        begin = trace.launch[i] if trace.launch[i] > 0 else trace.start[i]
        rows.append((int(trace.window_of(trace.start[i : i + 1])[0]), str(trace.kind[i]), int(begin), int(trace.end[i]), int(trace.line[i])))
    found = pd.DataFrame(rows, columns=["window", "instruction", "start_ns", "end_ns", "line"]).sort_values("start_ns", kind="stable")
    if not {"forward", "backward"} <= set(found["instruction"]):
        return None
    _with_prologue(found)
    found = found.assign(file=trace.file, rank=trace.rank, source="operators", step=[trace.windows[w][0] for w in found["window"]])
    found["micro_batch"] = found.groupby(["window", "instruction"]).cumcount()
    return found[COLUMNS]


def _with_prologue(found: pd.DataFrame) -> None:
    """Stretch forward passes to the message after them and backward passes to what comes before, over short gaps."""
    kind = found["instruction"].to_numpy()
    window = found["window"].to_numpy()
    start, end = found["start_ns"].to_numpy().copy(), found["end_ns"].to_numpy().copy()
    same = window[1:] == window[:-1]
    gap = start[1:] - end[:-1]
    short = same & (gap > 0) & (gap <= _PROLOGUE_NS)
    stretch = short & (kind[:-1] == "forward") & (kind[1:] != "backward")
    end[:-1][stretch] = start[1:][stretch]
    early = short & (kind[1:] == "backward")
    start[1:][early] = end[:-1][early]
    found["start_ns"], found["end_ns"] = start, end


def _in_optimizer(trace: HostTrace, places: np.ndarray) -> np.ndarray:
    """Which operators lie in an optimizer step."""
    marks = np.flatnonzero(trace.kind == "optimizer_step")
    if not len(marks):
        return np.zeros(len(places), bool)
    begins, ends = trace.start[marks], trace.end[marks]
    at = np.searchsorted(begins, trace.start[places], side="right") - 1
    return np.asarray((at >= 0) & (trace.start[places] < ends[np.maximum(at, 0)]))


def _forward_begins(trace: HostTrace, run: np.ndarray, following: float) -> int | None:
    """Place in *run* where the forward pass begins, None where the run is no forward pass."""
    sequence = trace.sequence[run]
    after = np.append(sequence[1:], following if following >= 0 else sequence[-1])
    rises = np.flatnonzero((sequence >= 0) & (after > sequence))
    names = trace.name[run]
    if len(rises):
        first = int(rises[0])
    elif not trace.sequenced:  # no sequence numbers in this trace: the first operator that computes
        computing = [i for i, n in enumerate(names) if str(n) not in _NO_COMPUTE]
        if not computing:
            return None
        first = computing[0]
    else:
        return None
    detached = [i for i in range(first) if str(names[i]) in ("aten::detach", "detach")]
    return detached[-1] + 1 if detached else 0
