"""The host's side of a trace: launches, operators, annotations, frames of the pipeline engine, memory.

Only what tables need is kept: of operators the outermost of each thread, of Python frames those of DeepSpeed's pipeline engine, of
launches the start by correlation, which the reader folds into `launch_ns`.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from pipelog.events import WORD, constant
from pipelog.tracing import Slice, TraceArgs, integers, message_bytes, trace_events, words

LAUNCHES = ("cuda_runtime", "cuda_driver", "xpu_runtime", "xpu_driver", "mtia_runtime", "privateuse1_runtime", "privateuse1_driver")
P2P_CALLS = {"c10d::send": "send", "c10d::recv_": "recv", "c10d::recv_any_source_": "recv"}
BACKWARD = "autograd::engine::evaluate_function"
_STEP = re.compile(r"ProfilerStep\s*#\s*(\d{1,9})(?!\d)")
_FRAME = re.compile(r"(?:pipe/engine\.py\(\d+\): )(_exec_\w+|train_batch|eval_batch)$")
_GLOO = re.compile(r"(?:gloo|mpi|ucc):(\w+)")


@trace_events("launches", categories=LAUNCHES)
def launches(found: Slice) -> pa.Table:
    """When a device event was launched, by correlation. Not rows of the table: the reader folds them into `launch_ns`."""
    correlation = integers([a.correlation for a in found.args()])
    return pa.table({"kind": constant("_launch", WORD, len(found.events)), "correlation": correlation, "start_ns": pa.array(found.ts_ns())}).filter(
        pa.compute.greater(correlation, 0)
    )


@trace_events("operators", categories=("cpu_op",))
def operators(found: Slice) -> pa.Table:
    """Outermost operators of each thread, steps and optimizer ranges (which old files have among the operators), calls of collectives."""
    special = {n for n in {e.name for e in found.events} if isinstance(n, str) and (n.startswith(("c10d::", "record_param")) or "#" in n)}
    calls: list[int] = []
    ranges: list[int] = []
    for i in [i for i, e in enumerate(found.events) if e.name in special] if special else ():
        (ranges if "#" in str(found.events[i].name) else calls).append(i)
    tables = [_calls(found.where(calls))] if calls else []
    marked = _ranges(found.where(ranges)) if ranges else None
    if marked is not None:
        tables.append(marked)
    taken = set(calls) | ({i for i in ranges if int(found.index[i]) in set(marked["line"].to_pylist())} if marked is not None else set())
    if taken:
        found = found.where([i for i in range(len(found.events)) if i not in taken])
    starts, durations = found.ts_ns(), found.dur_ns()
    thread = _thread_numbers(found)
    keep = outermost(thread, starts, durations)
    again = _recompute(found, thread, starts, durations, keep)
    if again is not None:
        tables.append(again)
    kept = found.where(keep.tolist())
    tables.append(
        pa.table(
            {
                "kind": constant("cpu_op", WORD, len(keep)),
                "name": kept.names(),
                "device": constant("cpu", WORD, len(keep)),
                "stream": kept.threads(),
                "start_ns": pa.array(starts[keep]),
                "dur_ns": pa.array(durations[keep]),
                "line": pa.array(kept.index),
                "value": integers([a.sequence for a in kept.args()]).cast(pa.float64(), safe=False),
            }
        )
    )
    return pa.concat_tables(tables, promote_options="default")


@trace_events("annotations", categories=("user_annotation",))
def host_annotations(found: Slice) -> pa.Table | None:
    """record_function ranges: steps, optimizer, data loading, gloo's waits, and whatever users add."""
    return _ranges(found, keep_others=True)


@trace_events("frames", categories=("python_function",))
def frames(found: Slice) -> pa.Table | None:
    """Frames of PipelineEngine: `deepspeed/runtime/pipe/engine.py(713): _exec_forward_pass`."""
    matches = [(i, m.group(1)) for i, e in enumerate(found.events) if isinstance(e.name, str) and (m := _FRAME.search(e.name))]
    return _host(found.where([i for i, _ in matches]), ["frame"] * len(matches), [name for _, name in matches]) if matches else None


@trace_events("allocations", categories=("cpu_instant_event",), phase="i")
def allocations(found: Slice) -> pa.Table | None:
    """The allocator's totals: of each device the highest of the slice. Files of 2021 carry no totals and give none."""
    best: dict[tuple[str, str], tuple[int, int]] = {}
    for i, event in enumerate(found.events):
        args: Any = event.args  # instant events carry InstantArgs
        if event.name != "[memory]" or args is None or not isinstance(args.total_allocated, int):
            continue
        device = "cpu" if args.device_type == 0 else f"gpu {args.device_id}"
        for name, total in (("allocated", args.total_allocated), ("reserved", args.total_reserved)):
            if isinstance(total, int) and total > best.get((device, name), (-1, 0))[0]:
                best[device, name] = (total, i)
    if not best:
        return None
    kept = found.where([i for _, i in best.values()])
    rows = _host(kept, ["memory"] * len(best), [name for _, name in best])
    rows = rows.set_column(rows.schema.get_field_index("device"), "device", words([device for device, _ in best]))
    return rows.append_column("bytes", pa.array([total for total, _ in best.values()], pa.int64()))


def outermost(thread: np.ndarray, start: np.ndarray, duration: np.ndarray) -> np.ndarray:
    """Places of the intervals that lie in no other interval of the same thread, in order of thread and start."""
    if not len(start):
        return np.zeros(0, np.int64)
    order = np.lexsort((-duration, start, thread))
    end = (start + duration)[order] - start.min()
    end += thread[order].astype(np.int64) * (int(end.max()) + 1)  # so that the running maximum begins anew at every thread
    before = np.concatenate(([-1], np.maximum.accumulate(end)[:-1]))
    return np.asarray(order[end > before])


def _thread_numbers(found: Slice) -> np.ndarray:
    """A number for the thread of each event."""
    threads = [e.tid for e in found.events]
    if threads.count(threads[0] if threads else None) == len(threads):
        return np.zeros(len(threads), np.int64)
    return np.asarray(words([str(t) for t in threads]).indices, np.int64)


def _recompute(found: Slice, thread: np.ndarray, start: np.ndarray, duration: np.ndarray, outer: np.ndarray) -> pa.Table | None:
    """Forward work inside a backward operator: activation checkpointing computes a segment again.

    Operators below `autograd::engine::evaluate_function` run without gradients and carry no sequence number; those of a
    recomputed forward do, and their forward thread is 0. One row per backward operator: from the first to the last of them.
    """
    args = found.args()
    forward = np.fromiter((a.sequence is not None and a.forward_thread in (0, None) for a in args), bool, len(args))
    forward[outer] = False
    nested = np.flatnonzero(forward)
    if not len(nested):
        return None
    # the outermost operators are in order of thread and start: the last one that begins before holds the nested one
    key = thread[outer].astype(np.int64) * (int(start.max() - start.min()) + 2) + (start[outer] - start.min())
    wanted = thread[nested].astype(np.int64) * (int(start.max() - start.min()) + 2) + (start[nested] - start.min())
    parent = outer[np.searchsorted(key, wanted, side="right") - 1]
    backward = np.fromiter((str(found.events[i].name).startswith(BACKWARD) for i in parent), bool, len(parent))
    nested, parent = nested[backward], parent[backward]
    if not len(nested):
        return None
    parents, group = np.unique(parent, return_inverse=True)
    first, last = np.full(len(parents), np.iinfo(np.int64).max), np.zeros(len(parents), np.int64)
    np.minimum.at(first, group, start[nested])
    np.maximum.at(last, group, start[nested] + duration[nested])
    rows = _host(found.where(parents.tolist()), ["recompute"] * len(parents), ["recompute"] * len(parents))
    for name, values in (("start_ns", first), ("dur_ns", last - first)):
        rows = rows.set_column(rows.schema.get_field_index(name), name, pa.array(values))
    return rows


def _ranges(found: Slice, *, keep_others: bool = False) -> pa.Table | None:
    kinds: list[str] = []
    names: list[str] = []
    values: list[int | None] = []
    keep: list[int] = []
    for i, event in enumerate(found.events):
        name = event.name if isinstance(event.name, str) else str(event.name)
        kind, shown, value = _range_kind(name)
        if kind == "annotation" and not keep_others:
            continue
        keep.append(i)
        kinds.append(kind)
        names.append(shown)
        values.append(value)
    if not keep:
        return None
    rows = _host(found.where(keep), kinds, names)
    sizes = [
        _dims_bytes(e.args) if k in ("send", "recv", "collective") else None for k, e in zip(kinds, (found.events[i] for i in keep), strict=True)
    ]
    return rows.append_column("value", pa.array(values, pa.float64())).append_column("bytes", pa.array(sizes, pa.int64()))


def _range_kind(name: str) -> tuple[str, str, int | None]:
    if step := _STEP.match(name):
        return "profiler_step", "ProfilerStep", int(step.group(1))
    if name.startswith("Optimizer.step#"):
        return "optimizer_step", name, None
    if name.startswith("enumerate(DataLoader)#"):
        return "data_load", name, None
    if gloo := _GLOO.match(name):
        operation = gloo.group(1)
        return (operation if operation in ("send", "recv") else "collective"), operation, None
    return "annotation", name, None


def _calls(found: Slice) -> pa.Table:
    """Calls of collectives and p2p (`c10d::send`, `record_param_comms`): who the peer is, which group, how many bytes."""
    args = found.args()
    rows = _host(found, ["comm_call"] * len(args), [e.name for e in found.events])
    peers = [_peer(str(e.name), a) for e, a in zip(found.events, args, strict=True)]
    sizes = [message_bytes(a.elements, a.dtype) if a.elements is not None else _dims_bytes(a) for a in args]
    return (
        rows.append_column("peer", pa.array(peers, pa.int32()))
        .append_column("bytes", pa.array(sizes, pa.int64()))
        .append_column("group", words([a.group for a in args]))
        .append_column("operation", words([a.collective for a in args]))
        .append_column("own_rank", integers([a.rank for a in args]))
        .append_column("external", integers([a.external if a.external is not None else a.external_old for a in args]))
    )


def _peer(name: str, args: TraceArgs) -> int | None:
    """`c10d::send(tensors, group, dst, tag)`: the third input. record_param_comms: Src Rank and Dst Rank."""
    if name in P2P_CALLS:
        inputs = _decode(args.inputs)
        text = inputs[2] if isinstance(inputs, list) and len(inputs) > 2 else None
        return int(text) if isinstance(text, str) and text.isdecimal() and len(text) < 9 else None
    operation = str(args.collective or "").lower()
    value = args.target if "send" in operation else args.source if "recv" in operation else None
    return value if isinstance(value, int) and 0 <= value < 2**31 else None


def _dims_bytes(args: TraceArgs | None) -> int | None:
    """Bytes of the tensor(s) of a call, from Input Dims and Input type; null where the trace has no shapes or types."""
    if args is None:
        return None
    dims, types = _decode(args.dims), _decode(args.types)
    if not isinstance(dims, list) or not dims or not isinstance(types, list) or not types:
        return None
    first, dtype = dims[0], types[0]
    if not isinstance(first, list) or not isinstance(dtype, str) or dtype == "TensorList":
        return None
    count = 1
    for n in first:
        if not isinstance(n, int):
            return None
        count *= n
    return message_bytes(count, dtype)


def _decode(raw: msgspec.Raw) -> Any:
    if not raw:
        return None
    try:
        return msgspec.json.decode(raw)
    except msgspec.DecodeError:
        return None


def _host(found: Slice, kinds: list[str], names: list[Any]) -> pa.Table:
    return pa.table(
        {
            "kind": words(kinds),
            "name": words(names),
            "device": constant("cpu", WORD, len(kinds)),
            "stream": found.threads(),
            "start_ns": pa.array(found.ts_ns()),
            "dur_ns": pa.array(found.dur_ns()),
            "line": pa.array(found.index),
        }
    )
