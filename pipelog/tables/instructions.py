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
from pipelog.tables import coded, grouped, matching, of_kind, table, where, whole_numbers
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
INSTRUCTION = pd.CategoricalDtype(pd.Index([*_CLASSES.values(), "send", "recv"], dtype=object))
"""The column `instruction`: by name where the trace names it, `send` and `recv` where only the direction of a message is known."""
_CODE = {word: code for code, word in enumerate(INSTRUCTION.categories)}
_ANNOTATION = re.compile(r"(?<![A-Za-z])(" + "|".join(_CLASSES) + r")s?(?![a-z])")
_PROLOGUE_NS = 500_000
"""Python of a pass outside its operators (module hooks, timers, the engine's own bookkeeping): 0.1 - 0.4 ms on the recorded runs."""
_NO_COMPUTE = frozenset({"aten::detach", "detach", "aten::clone", "aten::to", "aten::contiguous", "aten::empty", "aten::copy_", "aten::zero_"})


@dataclass(frozen=True, slots=True)
class HostTrace:
    """The host's rows of one trace, as arrays in order of start. windows: (step, start, end), step -1 where it has no number.

    kind and name are words of few different values, kept as numbers: `kind == "send"` and `kind.isin(…)` cost no string comparison. Where a rank has several files, the windows of its earlier ones stand before the own ones, empty: a window's number is the rank's.
    """

    file: str
    rank: int
    clock: str
    kind: pd.Categorical
    name: pd.Categorical
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

_USED = ["file", "kind", "name", "stream", "clock", "device", "rank", "start_ns", "dur_ns", "line", "peer", "bytes", "launch_ns", "value"]


@table("host_traces", needs=("placed",))
def host_traces(placed: pa.Table) -> list[HostTrace]:
    """The host's side of every trace whose rank is known, with its step windows: ProfilerStep, else between optimizer steps, else all.

    A rank may have several files, one a cycle of the profiler's schedule. A copy of a file counts once. A folder may hold two runs: of
    windows of one step on one clock that do not overlap in time the latest counts, since no rank is a whole step ahead of another.
    """
    rows = of_kind(placed.select(_USED), *_KINDS)
    rows = where(rows, np.asarray(coded(rows.column("device")) == "cpu"))
    if not rows.num_rows:
        return []
    words = {n: coded(rows.column(n)) for n in ("file", "kind", "name", "stream", "clock")}
    numbers = {n: whole_numbers(rows.column(n)) for n in ("rank", "start_ns", "dur_ns", "line", "peer", "bytes", "launch_ns")}
    value = pa.compute.fill_null(rows.column("value"), -1.0).to_numpy()
    known = np.flatnonzero(numbers["rank"] >= 0)
    out = []
    for mine in grouped(words["file"].codes, known, (-numbers["dur_ns"], numbers["start_ns"])):
        kind, thread = words["kind"][mine], words["stream"][mine]
        start = numbers["start_ns"][mine]
        end = start + numbers["dur_ns"][mine]
        clock = words["clock"][mine[0]]
        out.append(
            HostTrace(
                str(words["file"][mine[0]]), int(numbers["rank"][mine[0]]), clock if isinstance(clock, str) else "None", kind, words["name"][mine],
                start, end, numbers["line"][mine], value[mine], numbers["peer"][mine], numbers["bytes"][mine], numbers["launch_ns"][mine],
                _on_main(kind, thread), _windows(kind, start, end, value[mine]),
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


def _on_main(kind: pd.Categorical, thread: pd.Categorical) -> np.ndarray:
    """What the thread did that calls train_batch: the one of ProfilerStep, else of the p2p calls, else the busiest."""
    for wanted in ("profiler_step", "comm_call", "cpu_op"):
        threads = thread.codes[np.asarray(kind == wanted) & (thread.codes >= 0)]
        if len(threads):
            return np.asarray(thread.codes == np.argmax(np.bincount(threads)))
    return np.zeros(len(thread), bool)


def _windows(kind: pd.Categorical, start: np.ndarray, end: np.ndarray, value: np.ndarray) -> list[tuple[int, int, int]]:
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
    parts, sources = [], []
    for trace in host_traces:
        for source, read in (("annotation", _from_annotations), ("stack", _from_frames), ("operators", _from_operators)):
            found = read(trace)
            if found is None:
                continue
            device = device_traces.get(trace.file)
            if device is not None and (device.group == COMPUTE).any():
                found = _on_device(found, trace, device)
            if {"forward", "backward"} <= set(found["instruction"].unique()):
                parts.append((trace.file, found))
                sources.append(source)
                break
    if not parts:
        return pd.DataFrame(columns=COLUMNS)
    of = np.repeat(np.arange(len(parts)), [len(found) for _, found in parts])
    files = pd.Categorical.from_codes(of, pd.Index([file for file, _ in parts], dtype=object))  # words once, however many rows there are
    return pd.concat([found for _, found in parts], ignore_index=True).assign(file=files, source=pd.Categorical(sources)[of])[COLUMNS]


def _on_device(found: pd.DataFrame, trace: HostTrace, device: DeviceTrace) -> pd.DataFrame:
    """Passes and messages in the device's time; what the host does beside them (loads, the optimizer) is left out."""
    passes = found[found["instruction"].isin(("forward", "backward"))]
    first, last = device.extents(passes["start_ns"].to_numpy(), passes["end_ns"].to_numpy())
    passes = passes.assign(start_ns=first, end_ns=last)[first >= 0]
    places = np.flatnonzero(np.isin(device.group, (SEND, RECEIVE)))
    window = trace.window_of(device.launch[places])
    places, window = places[window >= 0], window[window >= 0]
    ways = np.where(device.group[places] == SEND, _CODE["send"], _CODE["recv"]).astype(np.int8)
    messages = pd.DataFrame(
        {
            "window": window,
            "instruction": pd.Categorical.from_codes(ways, dtype=INSTRUCTION),
            "start_ns": device.start[places],
            "end_ns": device.end[places],
            "line": device.line[places],
        }
    )
    return pd.concat([passes, _finished(messages, trace)], ignore_index=True).sort_values("start_ns", kind="stable")


def _named(trace: HostTrace, kind: str, meaning: Callable[[str], str | None]) -> pd.DataFrame | None:
    """Rows of instructions that the trace names: those of a kind whose name *meaning* knows, micro-batches counted by kind within the step."""
    places = np.flatnonzero(trace.kind == kind)
    names = trace.name[places].remove_unused_categories()  # few, where rows are many
    code = np.array([_CODE.get(meaning(str(name)) or "", -1) for name in names.categories], np.int8)
    codes = np.append(code, -1)[names.codes]  # the last for those without a name
    window = trace.window_of(trace.start[places])
    known = (codes >= 0) & (window >= 0)
    places, codes, window = places[known], codes[known], window[known]
    if not {_CODE["forward"], _CODE["backward"]} <= set(codes.tolist()):
        return None
    rows = pd.DataFrame(
        {
            "window": window,
            "instruction": pd.Categorical.from_codes(codes, dtype=INSTRUCTION),
            "start_ns": trace.start[places],
            "end_ns": trace.end[places],
            "line": trace.line[places],
        }
    )
    return _finished(rows, trace)


def _finished(rows: pd.DataFrame, trace: HostTrace) -> pd.DataFrame:
    """With rank, step (-1 where it has no number) and micro_batch, which is counted by instruction within the step."""
    window = rows["window"].to_numpy()
    step = np.array([w[0] for w in trace.windows], np.int64)[window]
    return rows.assign(rank=trace.rank, step=step, micro_batch=_counted(window, rows["instruction"].cat.codes.to_numpy()))


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
    return _named(trace, "annotation", _annotated)


def _from_frames(trace: HostTrace) -> pd.DataFrame | None:
    return _named(trace, "frame", _FRAMES.get)


def _from_operators(trace: HostTrace) -> pd.DataFrame | None:
    """Reconstruct passes from the operators of the main thread and the backward ones of autograd's.

    Messages cut them into stretches. A backward pass is a run of `autograd::engine::evaluate_function`. What else a stretch
    holds is a forward pass if it makes gradients (its autograd sequence number rises): it begins after the last `detach` before
    the first such operator, since DeepSpeed ends a receive and a load with one, and ends with the last operator.
    What lies between the end of the work before and the beginning of a forward pass of a stage that loads data is its load.
    """
    cpu = np.asarray(trace.kind == "cpu_op")
    backwards = cpu & matching(trace.name, lambda name: name.startswith(BACKWARD))
    calls = np.asarray(trace.kind == "comm_call") & matching(trace.name, P2P_CALLS.__contains__)
    waits = trace.kind.isin(("send", "recv"))
    use = (trace.main & (cpu | waits | trace.kind.isin(("comm_call", "optimizer_step")))) | backwards  # autograd has a thread of its own
    if (waits & trace.main).any():
        use &= ~calls  # gloo: the wait is the message; on a device the call is all that the host sees of it
    elif not calls.any():
        return None
    places = np.flatnonzero(use)
    window = trace.window_of(trace.start[places])
    places, window = places[window >= 0], window[window >= 0]
    group = np.where(~cpu[places], 0, np.where(backwards[places], 2, 1))
    group[_in_optimizer(trace, places)] = 0
    edges = np.flatnonzero(np.concatenate(([True], (group[1:] != group[:-1]) | (window[1:] != window[:-1]) | (group[1:] == 0)))[: len(group)])
    if not len(edges):
        return None
    first = np.where(group[edges] == 2, edges, _forward_begins(trace, places, group, edges))
    ends = np.maximum.reduceat(trace.end[places], edges)
    run = np.flatnonzero((group[edges] > 0) & (first >= 0))
    at = places[first[run]]
    sent = places[waits[places]]
    begun = np.where(trace.launch[sent] > 0, trace.launch[sent], trace.start[sent])
    passes = np.where(group[edges[run]] == 2, _CODE["backward"], _CODE["forward"])
    ways = np.where(np.asarray(trace.kind[sent] == "send"), _CODE["send"], _CODE["recv"])
    found = pd.DataFrame(
        {
            "window": np.concatenate((window[edges[run]], window[waits[places]])),
            "instruction": pd.Categorical.from_codes(np.concatenate((passes, ways)).astype(np.int8), dtype=INSTRUCTION),
            "start_ns": np.concatenate((trace.start[at], begun)),
            "end_ns": np.concatenate((ends[run], trace.end[sent])),
            "line": np.concatenate((trace.line[at], trace.line[sent])),
        }
    ).sort_values("start_ns", kind="stable")
    if not {_CODE["forward"], _CODE["backward"]} <= set(passes.tolist()):
        return None
    _with_prologue(found)
    return _finished(found, trace)


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


def _forward_begins(trace: HostTrace, places: np.ndarray, group: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """For each run of operators from one of *edges* to the next, where in *places* the forward pass begins; -1 where the run is none."""
    numbers, count = np.arange(len(places)), len(places)
    sequence = trace.sequence[places]
    last = np.append(edges[1:], count) - 1  # of each run
    after = np.append(sequence[1:], -1.0)
    beyond = np.append(last[:-1] + 1, count - 1)
    goes_on = (last + 1 < count) & (group[beyond] == 1) & (sequence[beyond] >= 0)
    after[last] = np.where(goes_on, sequence[beyond], sequence[last])
    works = (sequence >= 0) & (after > sequence)
    if not trace.sequenced:  # no sequence numbers in this trace: the first operator that computes
        works = ~matching(trace.name, _NO_COMPUTE.__contains__)[places]
    first = np.minimum.reduceat(np.where(works & (group == 1), numbers, count), edges)
    detached = np.maximum.accumulate(np.where(matching(trace.name, {"aten::detach", "detach"}.__contains__)[places], numbers, -1))
    before = np.where(first > 0, detached[np.minimum(np.maximum(first - 1, 0), count - 1)], -1)
    return np.where(first <= last, np.maximum(before + 1, edges), -1)
