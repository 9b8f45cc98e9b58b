"""Pipeline instructions of each rank and step, read or reconstructed from traces."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from pipelog.parsers.trace_host import BACKWARD, P2P_CALLS
from pipelog.tables import coded, counted, matching, narrow, table, whole_numbers
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
    rows = placed.select(_USED)
    if not rows.num_rows:
        return []
    files = coded(rows.column("file")).codes
    borders = np.concatenate(([0], np.flatnonzero(np.diff(files)) + 1, [len(files)]))
    if len(np.unique(files[borders[:-1]])) < len(borders) - 1:  # the reader puts one file after another, a table of others may not
        rows = rows.take(pa.array(np.argsort(files, kind="stable")))
        borders = np.concatenate(([0], np.cumsum(np.unique(files, return_counts=True)[1])))
    wanted = np.asarray(coded(rows.column("kind")).isin(_KINDS)) & np.asarray(coded(rows.column("device")) == "cpu")
    found = (_of_file(rows.slice(a, b - a), np.flatnonzero(wanted[a:b])) for a, b in itertools.pairwise(borders.tolist()))
    return _apart([trace for trace in found if trace is not None])


def _of_file(rows: pa.Table, places: np.ndarray) -> HostTrace | None:
    """The rows of one file at *places*; null where none of them has a rank."""
    if not len(places):
        return None
    rank = whole_numbers(rows.column("rank"))[places]
    places, rank = places[rank >= 0], rank[rank >= 0]
    if not len(places):
        return None
    start, length = (whole_numbers(rows.column(n))[places] for n in ("start_ns", "dur_ns"))
    order = _by_start(start, length)
    places, start, end = places[order], start[order], (start + length)[order]
    kind, name, thread, clock = (_words(rows.column(n), places) for n in ("kind", "name", "stream", "clock"))
    line, peer, size, launch = (narrow(whole_numbers(rows.column(n))[places]) for n in ("line", "peer", "bytes", "launch_ns"))
    value = narrow(pa.compute.fill_null(rows.column("value"), -1.0).to_numpy()[places].astype(np.int64))
    main, windows = _on_main(kind, thread), _windows(kind, start, end, value)
    told = str(clock[0]) if isinstance(clock[0], str) else "None"
    file = rows.column("file")[0].as_py()
    whole = HostTrace(file, int(rank[order[0]]), told, kind, name, start, end, line, value, peer, size, launch, main, windows)
    return _without_calls(whole)


def _by_start(start: np.ndarray, length: np.ndarray) -> np.ndarray:
    """The order of start, the longest first of those that start together: what holds others comes before them."""
    order = np.argsort(start, kind="stable")
    same = start[order[1:]] == start[order[:-1]]
    alike = np.flatnonzero(np.concatenate((same, [False])) | np.concatenate(([False], same)))
    among = order[alike]
    order[alike] = among[np.lexsort((-length[among], start[among]))]
    return order


def _words(column: pa.ChunkedArray, places: np.ndarray) -> pd.Categorical:
    """The words at *places*, with those alone that occur there: a job has many files, and each few of all the words."""
    whole = column.unify_dictionaries().combine_chunks() if column.num_chunks > 1 else column.chunk(0)
    whole = whole.chunk(0) if isinstance(whole, pa.ChunkedArray) else whole
    codes = pa.compute.fill_null(whole.indices, -1).to_numpy(zero_copy_only=False)[places]
    seen = np.zeros(len(whole.dictionary) + 1, bool)
    seen[codes] = True
    used = np.flatnonzero(seen[:-1])
    number = np.full(len(seen), -1, np.int32)
    number[used] = np.arange(len(used))
    return pd.Categorical.from_codes(number[codes], pd.Index(whole.dictionary.take(pa.array(used)).to_pylist(), dtype=object))


def _without_calls(trace: HostTrace) -> HostTrace:
    """Without the calls of messages where their waits were recorded too (gloo): these are the messages, and know the peer."""
    calls = _calls(trace)
    if not calls.any() or not (trace.kind.isin(("send", "recv")) & trace.main).any():
        return trace
    columns = ("kind", "name", "start", "end", "line", "sequence", "peer", "size", "launch", "main")
    return replace(trace, **{name: getattr(trace, name)[~calls] for name in columns})


def _calls(trace: HostTrace) -> np.ndarray:
    """Which rows are calls of c10d's send and receive."""
    return np.asarray(np.asarray(trace.kind == "comm_call") & matching(trace.name, P2P_CALLS.__contains__))


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
    pieces: list[Found] = []
    small: list[Found] = []
    files: list[str] = []
    for trace in host_traces:
        found = _read(trace, device_traces.get(trace.file))
        if found is None:
            continue
        small.append(found | {"file": np.full(len(found["line"]), len(files), np.int32)})
        files.append(trace.file)
        if sum(len(part["line"]) for part in small) >= _PIECE:
            pieces, small = [*pieces, _joined(small)], []
    pieces += [_joined(small)] if small else []
    if not pieces:
        return pd.DataFrame(columns=COLUMNS)
    whole: dict[str, Any] = _joined(pieces)
    whole["file"] = pd.Categorical.from_codes(whole["file"], pd.Index(files, dtype=object))  # words once, however many rows there are
    for name, dtype in (("instruction", INSTRUCTION), ("source", _SOURCE)):
        whole[name] = pd.Categorical.from_codes(whole[name], dtype=dtype)
    return pd.DataFrame(whole, copy=False)


Found = dict[str, np.ndarray]
"""Instructions of a trace: the columns of `instructions`, words as their codes."""
_PIECE = 1 << 19
_SOURCE = pd.CategoricalDtype(pd.Index(["annotation", "stack", "operators"], dtype=object))


def _read(trace: HostTrace, device: DeviceTrace | None) -> Found | None:
    """The instructions of one trace from the best source that shows passes both ways."""
    for code, read in enumerate((_from_annotations, _from_frames, _from_operators)):
        found = read(trace)
        if found is None:
            continue
        if device is not None and (device.group == COMPUTE).any():
            found = _on_device(found, trace, device)
        if _both_ways(found["instruction"]):
            return found | {"source": np.full(len(found["line"]), code, np.int8)}
    return None


def _both_ways(codes: np.ndarray) -> bool:
    return bool((codes == _CODE["forward"]).any() and (codes == _CODE["backward"]).any())


def _joined(parts: list[Found]) -> Found:
    """The parts one after another, column after column, each of which leaves its part: no two copies of the whole are held."""
    return {name: np.concatenate([found.pop(name) for found in parts]) for name in COLUMNS}


def _on_device(found: Found, trace: HostTrace, device: DeviceTrace) -> Found:
    """Passes and messages in the device's time; what the host does beside them (loads, the optimizer) is left out."""
    work = np.isin(found["instruction"], (_CODE["forward"], _CODE["backward"]))
    passes = {name: values[work] for name, values in found.items()}
    first, last = device.extents(passes["start_ns"], passes["end_ns"])
    passes = {name: values[first >= 0] for name, values in (passes | {"start_ns": first, "end_ns": last}).items()}
    places = np.flatnonzero(np.isin(device.group, (SEND, RECEIVE)))
    window = trace.window_of(device.launch[places])
    places, window = places[window >= 0], window[window >= 0]
    ways = np.where(device.group[places] == SEND, _CODE["send"], _CODE["recv"]).astype(np.int8)
    times = {"start_ns": device.start[places], "end_ns": device.end[places], "line": device.line[places]}
    messages = _finished({"window": window, "instruction": ways} | times, trace)
    both = {name: np.concatenate((values, messages[name])) for name, values in passes.items()}
    order = np.argsort(both["start_ns"], kind="stable")
    return {name: values[order] for name, values in both.items()}


def _named(trace: HostTrace, kind: str, meaning: Callable[[str], str | None]) -> Found | None:
    """Rows of instructions that the trace names: those of a kind whose name *meaning* knows, micro-batches counted by kind within the step."""
    places = np.flatnonzero(trace.kind == kind)
    names = trace.name[places].remove_unused_categories()  # few, where rows are many
    code = np.array([_CODE.get(meaning(str(name)) or "", -1) for name in names.categories], np.int8)
    codes = np.append(code, -1)[names.codes]  # the last for those without a name
    window = trace.window_of(trace.start[places])
    known = (codes >= 0) & (window >= 0)
    places, codes, window = places[known], codes[known], window[known]
    if not _both_ways(codes):
        return None
    times = {"start_ns": trace.start[places], "end_ns": trace.end[places], "line": trace.line[places]}
    return _finished({"window": window, "instruction": codes} | times, trace)


def _finished(rows: Found, trace: HostTrace) -> Found:
    """With rank, step (-1 where it has no number) and micro_batch, which is counted by instruction within the step."""
    window = rows["window"]
    step = narrow(np.array([w[0] for w in trace.windows], np.int64))[window]
    told = {"rank": np.full(len(window), trace.rank, np.int32), "step": step, "micro_batch": narrow(counted(window, rows["instruction"]))}
    return rows | {name: narrow(rows[name]) for name in ("window", "line")} | told


def _annotated(name: str) -> str | None:
    found = _ANNOTATION.search(name)
    return _CLASSES[found.group(1)] if found else None


def _from_annotations(trace: HostTrace) -> Found | None:
    return _named(trace, "annotation", _annotated)


def _from_frames(trace: HostTrace) -> Found | None:
    return _named(trace, "frame", _FRAMES.get)


def _from_operators(trace: HostTrace) -> Found | None:
    """Reconstruct passes from the operators of the main thread and the backward ones of autograd's.

    Messages cut them into stretches. A backward pass is a run of `autograd::engine::evaluate_function`. What else a stretch
    holds is a forward pass if it makes gradients (its autograd sequence number rises): it begins after the last `detach` before
    the first such operator, since DeepSpeed ends a receive and a load with one, and ends with the last operator.
    What lies between the end of the work before and the beginning of a forward pass of a stage that loads data is its load.
    """
    cpu = np.asarray(trace.kind == "cpu_op")
    backwards = cpu & matching(trace.name, lambda name: name.startswith(BACKWARD))
    calls = _calls(trace)
    waits = trace.kind.isin(("send", "recv"))
    use = (trace.main & (cpu | waits | trace.kind.isin(("comm_call", "optimizer_step")))) | backwards  # autograd has a thread of its own
    if (waits & trace.main).any():
        use &= ~calls  # gloo: the wait is the message (see `_without_calls`); on a device the call is all that the host sees of it
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
    if not _both_ways(passes):
        return None
    found = {
        "window": np.concatenate((window[edges[run]], window[waits[places]])),
        "instruction": np.concatenate((passes, ways)).astype(np.int8),
        "start_ns": np.concatenate((trace.start[at], begun)),
        "end_ns": np.concatenate((ends[run], trace.end[sent])),
        "line": np.concatenate((trace.line[at], trace.line[sent])),
    }
    order = np.argsort(found["start_ns"], kind="stable")
    return _finished(_with_prologue({name: values[order] for name, values in found.items()}), trace)


def _with_prologue(found: Found) -> Found:
    """Forward passes stretched to the message after them and backward passes to what comes before, over short gaps."""
    kind, window = found["instruction"], found["window"]
    start, end = found["start_ns"].copy(), found["end_ns"].copy()
    same = window[1:] == window[:-1]
    gap = start[1:] - end[:-1]
    short = same & (gap > 0) & (gap <= _PROLOGUE_NS)
    stretch = short & (kind[:-1] == _CODE["forward"]) & (kind[1:] != _CODE["backward"])
    end[:-1][stretch] = start[1:][stretch]
    early = short & (kind[1:] == _CODE["backward"])
    start[1:][early] = end[:-1][early]
    return found | {"start_ns": start, "end_ns": end}


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
    after = np.append(sequence[1:], -1)
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
