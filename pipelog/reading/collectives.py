"""The end of reading a trace: launches folded into their kernels, and what each communication kernel did.

Kind of a communication kernel, first that answers (torch-traces.md section 10): its own `Collective name`; the annotation that
encloses it on its stream; record_param_comms through the External id; the annotation or call on the host that encloses its launch;
its name, as a hint. `SendRecv` in a name is not point-to-point by itself: all-to-all is made of sends and receives.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
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


@dataclass(slots=True)
class _File:
    """Rows of a whole file with their words as codes: strings of millions of rows would cost hundreds of MB."""

    table: pa.Table
    kinds: list[str]
    kind: np.ndarray
    names: list[str]
    name: np.ndarray
    start: np.ndarray
    duration: np.ndarray

    @staticmethod
    def of(table: pa.Table) -> _File:
        """With one dictionary a column."""
        kind, name = (_encoded(table, column) for column in ("kind", "name"))
        return _File(table, kind[0], kind[1], name[0], name[1], table.column("start_ns").to_numpy(), table.column("dur_ns").fill_null(0).to_numpy())

    def rows(self, *kinds: str) -> np.ndarray:
        """Places of the rows of these kinds."""
        return np.flatnonzero(np.isin(self.kind, [i for i, k in enumerate(self.kinds) if k in kinds]))

    def name_of(self, row: int) -> str:
        """The name of one row."""
        code = int(self.name[row])
        return self.names[code] if code >= 0 else ""


def _encoded(table: pa.Table, column: str) -> tuple[list[str], np.ndarray]:
    array = table.column(column)
    array = (array if pa.types.is_dictionary(array.type) else array.dictionary_encode()).combine_chunks()
    array = array.chunk(0) if isinstance(array, pa.ChunkedArray) else array
    return array.dictionary.to_pylist(), pc.fill_null(array.indices, -1).to_numpy()


def resolve(table: pa.Table) -> pa.Table:
    """Rows of a whole file: launches, device annotations and nested operators go; communication kernels get kind and name."""
    if "start_ns" not in table.column_names:
        return table
    file = _File.of(table)
    table = _launch_times(file)
    file.table = table
    communication = file.rows("communication")
    if len(communication):
        table = file.table = _communication(file, communication)
    table = file.table = _p2p_peers(file)
    keep = np.ones(table.num_rows, bool)
    keep[file.rows("_launch", "_device_annotation")] = False
    _outermost_only(file, keep)
    dropped = ("operation", "external", "correlation")
    return table.drop_columns([n for n in dropped if n in table.column_names]).filter(pa.array(keep))


def _launch_times(file: _File) -> pa.Table:
    """launch_ns of every device event, from the launch with the same correlation."""
    table, launched = file.table, file.rows("_launch")
    if "correlation" not in table.column_names or not len(launched):
        return table
    correlation = pc.fill_null(table.column("correlation"), 0).to_numpy()
    order = launched[np.argsort(correlation[launched], kind="stable")]
    keys, starts = correlation[order], file.start[order]
    device = correlation > 0
    device[launched] = False
    place = np.minimum(np.searchsorted(keys, correlation), len(keys) - 1)
    return table.append_column("launch_ns", pa.array(starts[place], mask=~(device & (keys[place] == correlation))))


def _communication(file: _File, rows: np.ndarray) -> pa.Table:
    """Give the communication kernels their kind (collective, send, recv, p2p), name, group, peer and size."""
    table = file.table
    operation = _own_word(table, rows)
    _by_annotation(file, rows, operation)
    calls = _by_call(file, rows, operation)
    _by_launch(file, rows, operation)
    exchanges = any("all_to_all" in str(n).lower() for n in file.names)
    words = [o or _hint(file.name_of(row)) for o, row in zip(operation, rows.tolist(), strict=True)]
    words = ["all_to_all" if w == "sendrecv" and exchanges else w for w in words]
    for column, codes, known, new in (("kind", file.kind, file.kinds, [_p2p_kind(w) for w in words]), ("name", file.name, file.names, words)):
        place = {word: i for i, word in enumerate(known)}
        for word in new:
            if word not in place:
                place[word] = len(known)
                known.append(word)
        codes = codes.copy()  # noqa: PLW2901
        codes[rows] = [place[w] for w in new]
        setattr(file, column, codes)
        array = pa.DictionaryArray.from_arrays(pa.array(codes.astype(np.int32), mask=codes < 0), pa.array(known, pa.string()))
        table = table.set_column(table.column_names.index(column), column, array)
    return _fill(table, calls)


def _own_word(table: pa.Table, rows: np.ndarray) -> list[str | None]:
    if "operation" not in table.column_names:
        return [None] * len(rows)
    own = table.column("operation").combine_chunks().cast(pa.string()).take(pa.array(rows)).to_pylist()
    return [_canonical(o) for o in own]


def _by_annotation(file: _File, rows: np.ndarray, operation: list[str | None]) -> None:
    """From the projected annotation that encloses the kernel on the same device and stream."""
    marks = file.rows("_device_annotation")
    if not len(marks) or all(operation):
        return
    place = _places(file.table)
    for where in np.unique(place[rows]):
        mine = marks[place[marks] == where]
        mine = mine[np.argsort(file.start[mine], kind="stable")]
        wanted = {i: int(file.start[row]) for i, row in enumerate(rows.tolist()) if operation[i] is None and place[row] == where}
        _enclosing(file, mine, wanted, operation)


def _by_launch(file: _File, rows: np.ndarray, operation: list[str | None]) -> None:
    """From the annotation of the host that encloses the launch."""
    if "launch_ns" not in file.table.column_names or all(operation):
        return
    launch = file.table.column("launch_ns").take(pa.array(rows)).to_pylist()
    telling = [i for i, n in enumerate(file.names) if n and _ANNOTATED.match(n)]
    marks = file.rows("annotation")
    marks = marks[np.isin(file.name[marks], telling)]
    marks = marks[np.argsort(file.start[marks], kind="stable")]
    _enclosing(file, marks, {i: at for i, at in enumerate(launch) if operation[i] is None and at is not None}, operation)


def _enclosing(file: _File, marks: np.ndarray, wanted: dict[int, int], operation: list[str | None]) -> None:
    """For each wanted time the latest mark that holds it, among the last few that began before."""
    begins = file.start[marks]
    for i, at in wanted.items():
        last = int(np.searchsorted(begins, at, side="right"))
        for mark in marks[max(0, last - 4) : last][::-1].tolist():
            if file.start[mark] + file.duration[mark] >= at and (match := _ANNOTATED.match(file.name_of(mark))):
                operation[i] = _canonical(match.group(1))
                break


def _by_call(file: _File, rows: np.ndarray, operation: list[str | None]) -> dict[int, int]:
    """Row of a kernel → row of the record_param_comms with its External id; fills in operations not yet known."""
    table = file.table
    if "external" not in table.column_names or "own_rank" not in table.column_names:
        return {}
    external = pc.fill_null(table.column("external"), -1).to_numpy()
    made = file.rows("comm_call")
    own = table.column("operation").take(pa.array(made)).cast(pa.string()).to_pylist()
    calls = {int(external[row]): (row, word) for row, word in zip(made.tolist(), own, strict=True) if external[row] >= 0 and word}
    linked: dict[int, int] = {}
    for i, row in enumerate(rows.tolist()):
        call = calls.get(int(external[row]))
        if call is not None:
            linked[row] = call[0]
            operation[i] = operation[i] or _canonical(call[1])
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


def _p2p_peers(file: _File) -> pa.Table:
    """Peers of the host's sends and receives (gloo): the k-th wait of a thread belongs to its k-th call."""
    table = file.table
    named = {call: file.names.index(call) for call in P2P_CALLS if call in file.names}
    if "peer" not in table.column_names or not named:
        return table
    calls = file.rows("comm_call")
    source, launched = np.arange(table.num_rows), np.full(table.num_rows, -1)
    thread = _encoded(table, "stream")[1]
    devices, device = _encoded(table, "device")
    for call, code in named.items():
        waits = file.rows(P2P_CALLS[call])
        waits = waits[np.isin(device[waits], [i for i, d in enumerate(devices) if d == "cpu"])]
        made = calls[file.name[calls] == code]
        for one in np.unique(thread[waits]):
            w, c = waits[thread[waits] == one], made[thread[made] == one]
            w, c = w[np.argsort(file.start[w], kind="stable")], c[np.argsort(file.start[c], kind="stable")]
            before = np.searchsorted(file.start[c], file.start[w], side="right") - 1  # the call begins before its wait
            good = before >= 0
            if len(np.unique(before[good])) == good.sum():
                source[w[good]] = c[before[good]]
                launched[w[good]] = file.start[c[before[good]]]
    table = table.set_column(table.column_names.index("peer"), "peer", table.column("peer").take(pa.array(source)))
    launch = pa.array(launched, mask=launched < 0)
    if "launch_ns" in table.column_names:
        return table.set_column(table.column_names.index("launch_ns"), "launch_ns", pc.coalesce(table.column("launch_ns"), launch))
    return table.append_column("launch_ns", launch)


def _outermost_only(file: _File, keep: np.ndarray) -> None:
    """Take out of *keep* the operators that lie inside one of another slice of the file."""
    rows = file.rows("cpu_op")
    if not len(rows):
        return
    outer = outermost(_encoded(file.table, "stream")[1][rows], file.start[rows], file.duration[rows])
    keep[rows] = False
    keep[rows[outer]] = True


def _places(table: pa.Table) -> np.ndarray:
    """A number for each (device, stream)."""
    codes = []
    for name in ("device", "stream"):
        encoded = table.column(name).combine_chunks().cast(pa.string()).dictionary_encode()
        codes.append(pc.fill_null(encoded.indices, -1).to_numpy().astype(np.int64))
    return np.asarray(codes[0] * (int(codes[1].max()) + 2) + codes[1])


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
