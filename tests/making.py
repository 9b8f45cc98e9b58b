"""What tests build their inputs with: event tables from rows, synthetic torch traces as JSON text."""

from __future__ import annotations

import gzip
import json
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

import pipelog.detectors
import pipelog.parsers
import pipelog.postmortem
import pipelog.replay
import pipelog.tables
from pipelog.events import EVENTS, Events, Input, conform
from pipelog.reading.files import Source
from pipelog.reading.traces import read_trace
from pipelog.registry import load
from pipelog.tables import Tables

for package in (pipelog.tables, pipelog.replay, pipelog.postmortem, pipelog.parsers, pipelog.detectors):
    load(package)

MS = 1_000_000
LOG = "train.log"
Row = dict[str, Any]


# ---- event tables


def table(rows: Iterable[Row]) -> pa.Table:
    """Rows as the event table; a row says what it has, `file` is train.log and `line` its place among the rows where it does not."""
    full = [{"file": LOG, "line": number, **row} for number, row in enumerate(rows, 1)]
    columns = {}
    for column in EVENTS:
        if any(column.name in row for row in full):
            dtype = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
            columns[column.name] = pa.array([row.get(column.name) for row in full], dtype)
    return conform(pa.table(columns) if columns else pa.table({"line": pa.array([], pa.int64())}))


def inputs_of(events: pa.Table) -> list[Input]:
    """One input a file, its kind by the ending of its name."""
    files = [f for f in dict.fromkeys(events.column("file").to_pylist()) if f is not None]
    kinds = {".log": "log", ".txt": "log", ".json": "config", ".gz": "trace"}
    return [Input(f, kinds[Path(f).suffix], 1) for f in files]


def events(rows: Iterable[Row], inputs: list[Input] | None = None) -> Events:
    """An `Events` of rows."""
    made = table(rows)
    return Events(made, inputs_of(made) if inputs is None else inputs)


def tables(rows: Iterable[Row], inputs: list[Input] | None = None, attempt: int | None = None) -> Tables:
    """The derived tables over rows."""
    return Tables(events(rows, inputs), attempt)


def fact(name: str, value: Any, **more: Any) -> Row:
    """A fact; numbers and truth values go to `value` too, as parsers write them."""
    number = float(value) if isinstance(value, int | float) else None
    return {"kind": "fact", "name": name, "value": number, "text": str(value).lower() if isinstance(value, bool) else str(value), **more}


def topology_map(pp: int, dp: int = 1, tp: int = 1, **more: Any) -> list[Row]:
    """The line `Using topology: {ProcessCoord(pipe=0, data=0): 0, …}`: its facts and one place a rank."""
    facts = [fact("topology.pp", pp, **more), fact("topology.dp", dp, **more), fact("topology.world_size", pp * dp * tp, **more)]
    places = [
        {"kind": "place", "name": "topology", "rank": (s * dp + d) * tp + t, "stage": s, "replica": d, "tensor": t, **more}
        for s in range(pp)
        for d in range(dp)
        for t in range(tp)
    ]
    return [*facts, *places]


def step(number: int, seconds: float | None = None, name: str = "deepspeed", **more: Any) -> Row:
    """A step line."""
    return {"kind": "step", "name": name, "step": number, "dur_ns": None if seconds is None else round(seconds * 1e9), **more}


def scalar(name: str, number: int | None, value: float, **more: Any) -> Row:
    """A number printed for a step."""
    return {"kind": "scalar", "name": name, "step": number, "value": value, **more}


def timer(name: str, ms: float, **more: Any) -> Row:
    """A DeepSpeed timer, as printed."""
    return {"kind": "timer", "name": name, "dur_ns": round(ms * MS), **more}


# ---- traces


class Trace:
    """One rank's trace as a profiler writes it. Times in µs, relative to `base`."""

    def __init__(
        self, rank: int | None = 0, world: int | None = None, *, host: str | None = "node-0", base: int | None = 1_700_000_000_000_000_000
    ) -> None:
        self.header: dict[str, Any] = {"schemaVersion": 1}
        info = {key: value for key, value in (("backend", "gloo"), ("rank", rank), ("world_size", world)) if value is not None}
        if rank is not None or world is not None:
            self.header["distributedInfo"] = info
        if host is not None:
            self.header["host_name"] = host
        if base is not None:
            self.header["baseTimeNanoseconds"] = base
        self.events: list[dict[str, Any]] = []

    def add(self, cat: str, name: str, ts: float, dur: float, *, tid: Any = 1, pid: Any = 100, **args: Any) -> None:
        """A complete event."""
        event = {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur}
        self.events.append(event | ({"args": args} if args else {}))

    def step(self, number: int, ts: float, dur: float, **more: Any) -> None:
        """ProfilerStep#N."""
        self.add("user_annotation", f"ProfilerStep#{number}", ts, dur, **more)

    def op(self, name: str, ts: float, dur: float, sequence: int | None = None, **more: Any) -> None:
        """An operator of the host, with its autograd sequence number."""
        self.add("cpu_op", name, ts, dur, **({} if sequence is None else {"Sequence number": sequence, "Fwd thread id": 0}), **more)

    def message(self, what: str, peer: int, ts: float, dur: float, *, size: int = 4, **more: Any) -> None:
        """`c10d::send` or `c10d::recv_` and gloo's wait for it, as the process group of torch records them."""
        shape = {"Input Dims": [[[size]], [], [], []], "Concrete Inputs": ["", "", str(peer), "0"]}
        self.add("cpu_op", "c10d::send" if what == "send" else "c10d::recv_", ts, min(dur, 2), **shape, **more)
        self.add("user_annotation", f"gloo:{what}", ts + 1, dur - 1, **{"Input Dims": [[size]], "Input type": ["float"]}, **more)

    def kernel(self, name: str, ts: float, dur: float, *, stream: int = 7, device: int = 0, cat: str = "kernel", **args: Any) -> None:
        """Device work."""
        self.add(cat, name, ts, dur, pid=device, tid=stream, device=device, stream=stream, **args)

    def text(self, **header: Any) -> str:
        """The file."""
        return json.dumps({**self.header, **header, "traceEvents": self.events})


def write(folder: Path, files: Mapping[str, Trace | str | bytes]) -> Path:
    """Files below *folder*, gzip where the name says so; returns the folder."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        data = content.text().encode() if isinstance(content, Trace) else content.encode() if isinstance(content, str) else content
        path.write_bytes(gzip.compress(data) if name.endswith(".gz") and data[:2] != b"\x1f\x8b" else data)
    return folder


def read_bytes(data: bytes | str | Trace, name: str = "rank0.json") -> tuple[pa.Table, Input]:
    """What the trace reader makes of a file with this content."""
    raw = data.text().encode() if isinstance(data, Trace) else data.encode() if isinstance(data, str) else data
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / Path(name).name
        path.write_bytes(raw)
        return read_trace(Source(path, name, len(raw), 0))


def of_traces(traces: Mapping[str, Trace] | Iterable[Trace], rows: Iterable[Row] = (), attempt: int | None = None) -> Tables:
    """The derived tables over synthetic traces (named traces/rankN.json where only listed) and rows of a log."""
    named = traces if isinstance(traces, Mapping) else {f"traces/rank{i}.json": t for i, t in enumerate(traces)}
    read = [read_bytes(trace, name) for name, trace in named.items()]
    made = table(rows)
    whole = pa.concat_tables([made, *(t for t, _ in read)]).unify_dictionaries().combine_chunks()
    return Tables(Events(whole, [*inputs_of(made), *(i for _, i in read)]), attempt)
