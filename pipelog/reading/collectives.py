"""The end of reading a trace: launches folded into their kernels, and what each communication kernel did.

Kind of a communication kernel, first that answers (torch-traces.md section 10): its own `Collective name`; the annotation that
encloses it on its stream; record_param_comms through the External id; the annotation or call on the host that encloses its launch;
its name, as a hint. `SendRecv` in a name is not point-to-point by itself: all-to-all is made of sends and receives.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelog.parsers.trace_host import P2P_CALLS, outermost

_ANNOTATED = re.compile(r"^(?:nccl|xccl|hccl|oneccl_bindings_for_pytorch|ucc|mpi|gloo):+(\w+)")
_FROM_NAME = (  # (part of the kernel's name, operation): a hint only
    ("allreduce", "all_reduce"),
    ("all_reduce", "all_reduce"),
    ("allgather", "all_gather"),
    ("reducescatter", "reduce_scatter"),
    ("broadcast", "broadcast"),
    ("alltoall", "all_to_all"),
    ("sendrecv", "sendrecv"),
    ("send", "send"),
    ("receive", "recv"),
    ("reduce", "reduce"),
)


def resolve(table: pa.Table) -> pa.Table:
    """Rows of a whole file: launches, device annotations and nested operators go; communication kernels get kind and name."""
    if "start_ns" not in table.column_names:
        return table
    kind = table.column("kind").combine_chunks().cast(pa.string())
    table = table.set_column(table.column_names.index("kind"), "kind", kind)
    table = _launch_times(table)
    kind = table.column("kind")
    if pc.any(pc.equal(kind, "communication")).as_py():
        table = _communication(table)
    table = _p2p_peers(table)
    keep = pc.invert(pc.is_in(table.column("kind"), pa.array(["_launch", "_device_annotation"]))).to_numpy(zero_copy_only=False).copy()
    _outermost_only(table, keep)
    dropped = ("operation", "external", "correlation")
    return table.drop_columns([n for n in dropped if n in table.column_names]).filter(pa.array(keep))


def _launch_times(table: pa.Table) -> pa.Table:
    """launch_ns of every device event, from the launch with the same correlation."""
    if "correlation" not in table.column_names:
        return table
    launched = table.filter(pc.equal(table.column("kind"), "_launch"))
    if not launched.num_rows:
        return table
    keys = launched.column("correlation").to_numpy()
    order = np.argsort(keys, kind="stable")
    keys, starts = keys[order], launched.column("start_ns").to_numpy()[order]
    device = pc.and_(pc.is_valid(table.column("correlation")), pc.not_equal(table.column("kind"), "_launch")).to_numpy()
    wanted = pc.fill_null(table.column("correlation"), 0).to_numpy()
    place = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    hit = device & (wanted > 0) & (keys[place] == wanted)
    return table.append_column("launch_ns", pa.array(starts[place], mask=~hit))


def _communication(table: pa.Table) -> pa.Table:
    """Give the communication kernels their kind (collective, send, recv, p2p), name, group, peer and size."""
    kind = table.column("kind").to_numpy(zero_copy_only=False)
    rows = np.flatnonzero(kind == "communication")
    names = table.column("name").combine_chunks().cast(pa.string()).to_numpy(zero_copy_only=False).astype(object)
    start = table.column("start_ns").to_numpy()
    operation = _own_word(table, rows)
    undecided = np.array([o is None for o in operation])
    if undecided.any():
        _by_annotation(table, kind, names, start, rows, operation)
    calls = _by_call(table, kind, rows, operation)
    _by_launch(table, kind, names, start, rows, operation)
    exchanges = any(isinstance(n, str) and "all_to_all" in n.lower() for n in names[kind != "kernel"])
    new_kind, new_name = kind.copy(), names.copy()
    for i, row in enumerate(rows):
        word = operation[i] or _hint(names[row])
        if word == "sendrecv" and exchanges:
            word = "all_to_all"
        new_kind[row], new_name[row] = _p2p_kind(word), word
    table = table.set_column(table.column_names.index("kind"), "kind", pa.array(new_kind, pa.string()))
    table = table.set_column(table.column_names.index("name"), "name", pa.array(new_name, pa.string()).dictionary_encode())
    return _fill(table, calls)


def _own_word(table: pa.Table, rows: np.ndarray) -> list[str | None]:
    if "operation" not in table.column_names:
        return [None] * len(rows)
    own = table.column("operation").combine_chunks().cast(pa.string()).take(pa.array(rows)).to_pylist()
    return [_canonical(o) for o in own]


def _by_annotation(table: pa.Table, kind: np.ndarray, names: np.ndarray, start: np.ndarray, rows: np.ndarray, operation: list[str | None]) -> None:
    """From the projected annotation that encloses the kernel on the same device and stream."""
    marks = np.flatnonzero(kind == "_device_annotation")
    if not len(marks):
        return
    place = _places(table)
    duration = table.column("dur_ns").to_numpy()
    for where in np.unique(place[rows]):
        mine = marks[place[marks] == where]
        mine = mine[np.argsort(start[mine], kind="stable")]
        wanted = [i for i in range(len(rows)) if operation[i] is None and place[rows[i]] == where]
        _enclosing(mine, start, duration, names, {i: int(start[rows[i]]) for i in wanted}, operation)


def _by_launch(table: pa.Table, kind: np.ndarray, names: np.ndarray, start: np.ndarray, rows: np.ndarray, operation: list[str | None]) -> None:
    """From the annotation of the host that encloses the launch."""
    if "launch_ns" not in table.column_names or all(operation):
        return
    launch = table.column("launch_ns").take(pa.array(rows)).to_pylist()
    marks = np.flatnonzero(kind == "annotation")
    marks = marks[np.array([_ANNOTATED.match(str(n)) is not None for n in names[marks]], bool)]
    marks = marks[np.argsort(start[marks], kind="stable")]
    wanted = {i: at for i, at in enumerate(launch) if operation[i] is None and at is not None}
    _enclosing(marks, start, table.column("dur_ns").to_numpy(), names, wanted, operation)


def _enclosing(
    marks: np.ndarray, start: np.ndarray, duration: np.ndarray, names: np.ndarray, wanted: dict[int, int], operation: list[str | None]
) -> None:
    """For each wanted time the latest mark that holds it, among the last few that began before."""
    begins = start[marks]
    for i, at in wanted.items():
        last = int(np.searchsorted(begins, at, side="right"))
        for mark in marks[max(0, last - 4) : last][::-1]:
            if start[mark] + duration[mark] >= at and (match := _ANNOTATED.match(str(names[mark]))):
                operation[i] = _canonical(match.group(1))
                break


def _by_call(table: pa.Table, kind: np.ndarray, rows: np.ndarray, operation: list[str | None]) -> dict[int, int]:
    """row of a kernel → row of the record_param_comms with its External id; fills in operations not yet known."""
    if "external" not in table.column_names or "own_rank" not in table.column_names:
        return {}
    external = pc.fill_null(table.column("external"), -1).to_numpy()
    own = table.column("operation").combine_chunks().cast(pa.string()).to_numpy(zero_copy_only=False)
    calls = {int(external[i]): int(i) for i in np.flatnonzero(kind == "comm_call") if external[i] >= 0 and own[i]}
    linked: dict[int, int] = {}
    for i, row in enumerate(rows.tolist()):
        call = calls.get(int(external[row]))
        if call is not None:
            linked[row] = call
            operation[i] = operation[i] or _canonical(own[call])
    return linked


def _fill(table: pa.Table, calls: dict[int, int]) -> pa.Table:
    """Group, peer and size of kernels whose call tells them."""
    for name in ("group", "peer", "bytes"):
        if name not in table.column_names or not calls:
            continue
        values = table.column(name).combine_chunks()
        values = values.cast(pa.string()) if pa.types.is_dictionary(values.type) else values
        source = np.arange(table.num_rows)
        null = pc.is_null(values).to_numpy(zero_copy_only=False)
        for row, call in calls.items():
            if null[row]:
                source[row] = call
        table = table.set_column(table.column_names.index(name), name, values.take(pa.array(source)))
    return table


def _p2p_peers(table: pa.Table) -> pa.Table:
    """Peers of the host's sends and receives (gloo): the k-th wait of a thread belongs to its k-th call."""
    calls = pc.is_in(table.column("name").cast(pa.string()), pa.array(list(P2P_CALLS)))
    if "peer" not in table.column_names or not pc.any(calls).as_py():
        return table
    kind = table.column("kind").to_numpy(zero_copy_only=False)
    names = table.column("name").combine_chunks().cast(pa.string()).to_numpy(zero_copy_only=False)
    start = table.column("start_ns").to_numpy()
    device = table.column("device").combine_chunks().cast(pa.string()).to_numpy(zero_copy_only=False)
    thread = table.column("stream").combine_chunks().cast(pa.string()).to_numpy(zero_copy_only=False)
    source, launched = np.arange(table.num_rows), np.full(table.num_rows, -1)
    for call, operation in P2P_CALLS.items():
        waits = np.flatnonzero((kind == operation) & (device == "cpu"))
        made = np.flatnonzero((kind == "comm_call") & (names == call))
        for one in np.unique(thread[waits]):
            w, c = waits[thread[waits] == one], made[thread[made] == one]
            w, c = w[np.argsort(start[w], kind="stable")], c[np.argsort(start[c], kind="stable")]
            before = np.searchsorted(start[c], start[w], side="right") - 1  # the call begins before its wait
            good = before >= 0
            if len(np.unique(before[good])) == good.sum():
                source[w[good]] = c[before[good]]
                launched[w[good]] = start[c[before[good]]]
    table = table.set_column(table.column_names.index("peer"), "peer", table.column("peer").take(pa.array(source)))
    launch = pa.array(launched, mask=launched < 0)
    if "launch_ns" in table.column_names:
        return table.set_column(table.column_names.index("launch_ns"), "launch_ns", pc.coalesce(table.column("launch_ns"), launch))
    return table.append_column("launch_ns", launch)


def _outermost_only(table: pa.Table, keep: np.ndarray) -> None:
    """Take out of *keep* the operators that lie inside one of another slice of the file."""
    rows = np.flatnonzero(pc.equal(table.column("kind"), "cpu_op").to_numpy(zero_copy_only=False))
    if not len(rows):
        return
    place = pa.array(rows)
    thread = table.column("stream").take(place).combine_chunks().indices.to_numpy()
    outer = outermost(thread, table.column("start_ns").take(place).to_numpy(), table.column("dur_ns").take(place).to_numpy())
    keep[rows] = False
    keep[rows[outer]] = True


def _places(table: pa.Table) -> np.ndarray:
    """A number for each (device, stream)."""
    codes = []
    for name in ("device", "stream"):
        encoded = table.column(name).combine_chunks().cast(pa.string()).dictionary_encode()
        codes.append(pc.fill_null(encoded.indices, -1).to_numpy().astype(np.int64))
    return codes[0] * (int(codes[1].max()) + 2) + codes[1]


def _canonical(word: Any) -> str | None:
    """`allreduce`, `_allgather_base`, `reduce_scatter_tensor_coalesced` → all_reduce, all_gather, reduce_scatter."""
    if not isinstance(word, str) or not word:
        return None
    plain = word.lower().strip("_").replace("_base", "").replace("_into_tensor", "").replace("_tensor", "").removesuffix("_coalesced")
    squeezed = plain.replace("_", "").removesuffix("v").removesuffix("single")
    for short, long in (
        ("allreduce", "all_reduce"),
        ("allgather", "all_gather"),
        ("reducescatter", "reduce_scatter"),
        ("alltoall", "all_to_all"),
        ("broadcast", "broadcast"),
        ("barrier", "barrier"),
    ):
        if squeezed.startswith(short):
            return long
    return plain


def _hint(name: Any) -> str:
    lowered = str(name).lower()
    return next((word for part, word in _FROM_NAME if part in lowered), "unknown")


def _p2p_kind(word: str) -> str:
    if word in ("send", "isend"):
        return "send"
    if word in ("recv", "irecv", "recv_any_source"):
        return "recv"
    return "p2p" if word in ("coalesced", "sendrecv") else "collective"
