"""The traces of a large job, from its event table to what-if: 256 ranks x 50 steps x 64 micro-batches of host events, 8.6 million rows.

python bench/traces.py make FILE [STAGES REPLICAS STEPS MICRO_BATCHES]
python bench/traces.py FILE
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
from replay import durations

import pipelog.replay
import pipelog.tables
from pipelog.events import Events, Input, conform, join
from pipelog.placing import placed
from pipelog.registry import load
from pipelog.replay.simulate import Costs, Timeline, run
from pipelog.tables import Tables

_BEGIN = 1_700_000_000_000_000_000
_CALL_NS = 1_000
"""From the call of a message to the beginning of its wait."""


class Rows:
    """Rows of host traces, gathered kind by kind; every array is one column of the rows of a kind."""

    def __init__(self, stages: int, replicas: int) -> None:
        self.stages, self.replicas = stages, replicas
        self.kinds: list[str] = []
        self.names: list[str] = []
        self.columns: dict[str, list[np.ndarray]] = {n: [] for n in ("code", "rank", "start", "dur", "value", "peer", "launch")}

    def add(self, kind: str, name: str, rank: np.ndarray, start: np.ndarray, end: np.ndarray, **more: np.ndarray) -> None:
        """Rows of one kind and name; value, peer and launch are -1 where they are not given."""
        self.kinds.append(kind)
        self.names.append(name)
        size = start.size
        given = {"code": np.int8(len(self.kinds) - 1), "rank": rank, "start": start, "dur": end - start, "value": -1, "peer": -1, "launch": -1} | more
        for column, values in given.items():
            whole = np.broadcast_to(np.asarray(values, np.int64), start.shape)
            self.columns[column].append(whole.reshape(size).astype(np.int64))

    def table(self) -> pa.Table:
        """The event table: one file a rank, one clock a stage."""
        joined = {name: np.concatenate(parts) for name, parts in self.columns.items()}
        order = np.argsort(joined["rank"], kind="stable")
        joined = {name: values[order] for name, values in joined.items()}
        rank, code, count = joined["rank"].astype(np.int32), joined["code"], len(order)
        line = np.arange(count) - np.searchsorted(rank, rank)
        ranks = self.stages * self.replicas

        def words(codes: np.ndarray, dictionary: list[str]) -> pa.Array:
            return pa.DictionaryArray.from_arrays(pa.array(codes.astype(np.int32)), pa.array(dictionary)).dictionary_encode()

        kinds = list(dict.fromkeys(self.kinds))
        names = list(dict.fromkeys(self.names))
        known = {n: pa.array(joined[n], mask=joined[n] < 0) for n in ("value", "peer", "launch")}
        columns = {
            "kind": words(np.array([kinds.index(k) for k in self.kinds])[code], kinds),
            "name": words(np.array([names.index(n) for n in self.names])[code], names),
            "rank": pa.array(rank),
            "clock": words(rank // self.replicas, [f"host:node-{s}" for s in range(self.stages)]),
            "start_ns": pa.array(joined["start"]),
            "dur_ns": pa.array(joined["dur"]),
            "value": known["value"].cast(pa.float64()),
            "peer": known["peer"].cast(pa.int32()),
            "launch_ns": known["launch"],
            "bytes": pa.array(np.where(joined["peer"] >= 0, 4096, 0), mask=joined["peer"] < 0),
            "device": words(np.zeros(count), ["cpu"]),
            "stream": words(np.zeros(count), ["thread 1"]),
            "file": words(rank, [f"rank{r}.pt.trace.json" for r in range(ranks)]),
            "line": pa.array(line),
        }
        shape = {"topology.pp": self.stages, "topology.dp": self.replicas, "topology.world_size": ranks}
        facts = {"kind": words(np.zeros(len(shape)), ["fact"]), "name": words(np.arange(len(shape)), list(shape))}
        facts |= {
            "value": pa.array(list(shape.values()), pa.float64()),
            "file": words(np.zeros(len(shape)), ["job.log"]),
            "line": pa.array(range(len(shape))),
        }
        return join([conform(pa.table(facts)), conform(pa.table(columns))])


def make(path: Path, p: int, d: int, steps: int, m: int) -> None:
    """Write the event table of a job whose passes vary by 2 %, as `bench/replay.py` has them, recorded by the host alone."""
    cells = durations(p, d, steps, m)
    line = run("1f1b", Costs(cells.forward, cells.backward, load=cells.load, activation=cells.activation, grad=cells.grad), p, m)
    length = int(cells.phase_ns.max() * 1.2)
    random = np.random.default_rng(11)
    shift = random.integers(-(10**8), 10**8, p)  # of the clock of each stage's host
    origin = _BEGIN + (cells.step - 1)[:, None] * length + shift  # (cells, stages)
    rank = cells.rank
    rows = Rows(p, d)
    rows.add(
        "profiler_step", "ProfilerStep", rank, origin - 10**6, origin + length - 10**6, value=np.broadcast_to(cells.step[:, None] - 1, rank.shape)
    )
    _passes(rows, line, origin, rank, cells.step)
    for kind, down in (("activation", True), ("grad", False)):
        _messages(rows, line, origin, rank, kind, down=down)
    over = origin + int(cells.phase_ns.max() * 1.05)  # after the pipeline phase of all replicas
    rows.add("collective", "all_reduce", rank, over, over + 4 * 10**6)
    rows.add("optimizer_step", "Optimizer.step#Adam.step", rank, over + 4 * 10**6, over + 6 * 10**6)
    rows.add("collective", "broadcast", rank, over + 6 * 10**6, over + 7 * 10**6)
    events = Events(rows.table(), [Input("job.log", "log", 1), *(Input(f"rank{r}.pt.trace.json", "trace", 1) for r in range(p * d))])
    placed(events).write(path)  # as `pipelog.read` gives them


def _passes(rows: Rows, line: Timeline, origin: np.ndarray, rank: np.ndarray, step: np.ndarray) -> None:
    start, end = (times.astype(np.int64) + origin[..., None] for times in line.of("forward"))
    m = start.shape[-1]
    number = 2 * (np.arange(m) + m * step[:, None, None])
    half = (start + end) // 2
    rows.add("cpu_op", "aten::linear", rank[..., None], start, half, value=np.broadcast_to(number, start.shape))
    rows.add("cpu_op", "aten::relu", rank[..., None], half, end, value=np.broadcast_to(number + 1, start.shape))
    start, end = (times.astype(np.int64) + origin[..., None] for times in line.of("backward"))
    rows.add("cpu_op", "autograd::engine::evaluate_function: AddmmBackward0", rank[..., None], start, end)


def _messages(rows: Rows, line: Timeline, origin: np.ndarray, rank: np.ndarray, kind: str, *, down: bool) -> None:
    """Both ends of every message: the call, and gloo's wait from it to the end of the transfer."""
    upper, lower = (origin[:, :-1], rank[:, :-1]), (origin[:, 1:], rank[:, 1:])
    for way, (base, own), (_, other) in (
        ("send", *((upper, lower) if down else (lower, upper))),
        ("recv", *((lower, upper) if down else (upper, lower))),
    ):
        start, end = (line.of(name)[i].astype(np.int64) + base[..., None] for i, name in enumerate((f"{way}_{kind}", kind)))
        call = "c10d::send" if way == "send" else "c10d::recv_"
        rows.add("comm_call", call, own[..., None], start, start + _CALL_NS, peer=np.broadcast_to(other[..., None], start.shape))
        rows.add(way, way, own[..., None], start + _CALL_NS, end, peer=np.broadcast_to(other[..., None], start.shape), launch=start)


def measure(path: str) -> dict[str, float]:
    """Seconds from the event table to what-if, and by how much the memory of the process grew at most, MB."""
    for package in (pipelog.tables, pipelog.replay):
        load(package)
    events = Events.read(path)
    pa.default_memory_pool().release_unused()
    before = _memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the highest memory is counted anew from here
    begin = time.perf_counter()
    tables = Tables(events)
    for name in ("clocks", "bubble", "breakdown", "balance", "peers", "links", "slowdowns", "replay", "what_if"):
        tables[name]
    seconds = time.perf_counter() - begin
    size, rows, messages = events.table.nbytes / 1e6, events.table.num_rows, len(tables["messages"])
    return {"seconds": seconds, "rows": rows, "messages": messages, "table_mb": size, "above_mb": _memory("VmHWM") - before}


def _memory(name: str) -> float:
    """A figure of this process in /proc/self/status, MB."""
    line = next(text for text in Path("/proc/self/status").read_text().splitlines() if text.startswith(name))
    return int(line.split()[1]) * 1024 / 1e6


if __name__ == "__main__":
    if sys.argv[1] == "make":
        make(Path(sys.argv[2]), *map(int, sys.argv[3:] or (16, 16, 50, 64)))
    else:
        print(json.dumps(measure(sys.argv[1])))
