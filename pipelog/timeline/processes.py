"""The processes of a timeline: each rank with its slices in threads, and how its times come to the common clock."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from pipelog.tables import Tables, of_kind, whole_numbers
from pipelog.tables.clock import Clocks
from pipelog.tables.instructions import HostTrace
from pipelog.timeline.slices import KINDS, into_threads, of_file


@dataclass(slots=True)
class Process:
    """A rank on one clock. slices: rows of COLUMNS in order of time, with tid and the times of that clock.

    offset_ns: what to subtract from them to be on the common clock, None where that is not known; origin_ns: what is drawn as 0.
    """

    pid: int
    rank: int | None
    stage: int | None
    replica: int | None
    tensor: int | None
    clock: str
    files: list[str]
    offset_ns: int | None
    slices: pd.DataFrame
    threads: dict[int, str]
    origin_ns: int = 0
    _starts: dict[str, tuple[list[int], list[int], list[int]]] = field(default_factory=dict)

    def drawn(self, time: int) -> int:
        """A time of its clock as drawn, ns."""
        return time - (self.offset_ns or 0) - self.origin_ns

    def thread_at(self, row: str, start: int, end: int) -> int | None:
        """Thread of the slice of a row that begins and ends there on the common clock, else of the last begun that holds the time between."""
        start, end = start + (self.offset_ns or 0), end + (self.offset_ns or 0)
        if row not in self._starts:
            mine = self.slices[self.slices["row"] == row]
            self._starts[row] = (mine["start_ns"].tolist(), mine["end_ns"].tolist(), mine["tid"].tolist())
        starts, ends, threads = self._starts[row]
        last = bisect_right(starts, start) - 1
        for i in range(last, max(-1, last - 20), -1):
            if (starts[i], ends[i]) == (start, end):
                return threads[i]
        return threads[last] if last >= 0 and ends[last] >= end else None


def processes_of(tables: Tables) -> tuple[list[Process], int]:
    """All ranks with their slices, in the order shown; and the error of the common clock, ns."""
    clocks: Clocks = tables["clocks"]
    hosts: dict[str, HostTrace] = {t.file: t for t in tables["host_traces"]}
    instructions = dict(iter(tables["instructions"].groupby("file")))
    parts: dict[tuple[int | None, str], list[tuple[str, tuple[Any, ...], pd.DataFrame]]] = {}
    for file, place, rows in _files(tables):
        known = place[0] is not None
        if known and file not in hosts and not rows["on_device"].all():
            continue  # a copy, or of an earlier run
        slices = of_file(hosts.get(file), instructions.get(file), rows)
        if len(slices):
            parts.setdefault((place[0] if known else None, place[4] if known else file), []).append((file, place, slices))
    order = sorted(parts, key=lambda k: _order(parts[k][0][1], parts[k][0][0]))
    offsets = dict(clocks.offset_ns)
    every = list(dict.fromkeys(parts[k][0][1][4] for k in sorted(parts, key=lambda k: (k[0] is None, k[0] or 0, k[1]))))
    if not offsets and every:
        offsets = {every[0]: 0}
    most = max((k[0] for k in parts if k[0] is not None), default=-1)
    made: list[Process] = []
    for key in order:
        found = parts[key]
        rank, stage, replica, tensor, clock = found[0][1]
        pid = rank + 1 if rank is not None and not any(p.rank == rank for p in made) else (most := most + 1) + 1
        slices, threads = into_threads(pd.concat([s for *_, s in found], ignore_index=True))
        made.append(Process(pid, rank, stage, replica, tensor, clock, [f for f, *_ in found], offsets.get(clock), slices, threads))
    _set_origins(made)
    return made, clocks.error_ns


def _order(place: tuple[Any, ...], file: str) -> tuple[Any, ...]:
    """Pipeline by pipeline, stage by stage; what is not known comes last."""
    rank, stage, replica, tensor, _ = place
    return tuple((v is None, v or 0) for v in (replica, stage, tensor, rank)), file


def _files(tables: Tables) -> Iterator[tuple[str, tuple[Any, ...], pd.DataFrame]]:
    """Each trace with its (rank, stage, replica, tensor, clock) and its rows of KINDS."""
    rows = of_kind(tables["placed"], *KINDS, "profiler_step")
    traces = {i.path for i in tables["inputs"] if i.kind == "trace"}
    words = {n: rows.column(n).cast(pa.string()).to_numpy(zero_copy_only=False) for n in ("file", "kind", "name", "clock", "device", "stream")}
    numbers = {n: rows.column(n) for n in ("rank", "stage", "replica", "tensor")}
    columns = {n: whole_numbers(rows.column(n)) for n in ("start_ns", "dur_ns", "peer", "bytes", "line")}
    names, codes = np.unique(words["file"].astype(str), return_inverse=True)
    by_file = np.argsort(codes, kind="stable")
    borders = np.searchsorted(codes[by_file], np.arange(len(names) + 1))
    for n, file in enumerate(names):
        mine = by_file[borders[n] : borders[n + 1]]
        if file not in traces or not len(mine):
            continue
        place = tuple(numbers[c][int(mine[0])].as_py() for c in numbers)
        frame = pd.DataFrame({c: v[mine] for c, v in columns.items()} | {c: words[c][mine] for c in ("kind", "name", "stream")})
        frame["on_device"] = [str(d).startswith("gpu") for d in words["device"][mine]]
        frame["end_ns"] = frame["start_ns"] + np.maximum(frame["dur_ns"], 0)
        yield str(file), (*place, str(words["clock"][mine[0]])), frame


def _set_origins(processes: list[Process]) -> None:
    """0 is the first event of the common clock; of a clock that is not tied to it, its own first event."""
    begins: dict[str | None, int] = {}
    for process in processes:
        clock = None if process.offset_ns is not None else process.clock
        begins[clock] = min(begins.get(clock, 1 << 63), process.drawn(int(process.slices["start_ns"].min())))
    for process in processes:
        process.origin_ns = begins[None if process.offset_ns is not None else process.clock]
