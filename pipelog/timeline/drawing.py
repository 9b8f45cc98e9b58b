"""Slices, arrows, markers and names as events of Chrome's trace format: (time, place among events of one time, text)."""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from pipelog.findings import Finding
from pipelog.tables import Tables
from pipelog.timeline.processes import Process
from pipelog.timeline.slices import COLUMNS

Say = Callable[[str], str]
"""A text of a trace or a finding as it may stand in the file."""


def _us(ns: int) -> str:
    return f"{ns // 1000}.{ns % 1000:03d}"


def slices(process: Process, say: Say) -> Iterator[tuple[int, int, str]]:
    """(time, place among events of one time, event) of each slice."""
    columns = [process.slices[c].to_numpy() for c in (*COLUMNS, "tid")]
    for row, name, start, end, micro_batch, number, step, source, peer, size, line, tid in zip(*columns, strict=True):
        pairs = (("step", step), ("micro_batch", micro_batch), ("number", number), ("peer", peer), ("bytes", size), ("event", line))
        args = [f'"{key}": {value}' for key, value in pairs if value >= 0] + ([f'"source": "{source}"'] if source else [])
        at = process.drawn(int(start))
        head = f'{{"ph": "X", "pid": {process.pid}, "tid": {tid}, "ts": {_us(at)}, "dur": {_us(int(end - start))}'
        yield at, 0, f'{head}, "cat": "{row}", "name": {json.dumps(say(str(name)))}, "args": {{{", ".join(args)}}}}}'


def arrows(processes: list[Process], messages: pd.DataFrame) -> np.ndarray:
    """Rows of (time, message, 0 sent or 1 received, pid, tid), two for a matched message whose both ends are drawn, in order of time."""
    of = {(p.rank, p.clock): p for p in processes if p.offset_ns is not None}
    names = ("source", "target", "clock", "clock_r", "send_ns", "send_end_ns", "receive_ns", "receive_end_ns")
    made = array("q")
    for number, row in enumerate(zip(*(messages[c].tolist() for c in names), strict=True) if len(messages) else ()):
        source, target, clock, clock_r, send, sent, receive, received = row
        a, b = of.get((source, clock)), of.get((target, clock_r))
        arrives = max(received - 1, receive)  # within the slice, whose end is no part of it
        if a is None or b is None or arrives < send:
            continue
        begin, end = a.thread_at("p2p send", send, sent), b.thread_at("p2p receive", receive, received)
        if begin is not None and end is not None:
            made.extend((send - a.origin_ns, number, 0, a.pid, begin, arrives - b.origin_ns, number, 1, b.pid, end))
    rows = np.array(made, np.int64).reshape(-1, 5)
    return rows[np.lexsort((rows[:, 1], rows[:, 2], rows[:, 0]))]


def flows(arrows: np.ndarray) -> Iterator[tuple[int, int, str]]:
    """Arrows as flow events: they bind to the slices that hold their ends."""
    for time, number, received, pid, tid in arrows.tolist():
        head = f'"cat": "message", "name": "message", "id": {number}, "pid": {pid}, "tid": {tid}, "ts": {_us(time)}'
        yield time, 1, f'{{"ph": "f", "bp": "e", {head}}}' if received else f'{{"ph": "s", {head}}}'


def marker(finding: Finding, pid: int, processes: list[Process], tables: Tables, say: Say) -> tuple[int, int, str]:
    """A finding as a mark over all processes: at the traced event that shows it best, else at its first step, else at the beginning."""
    at = _of_evidence(finding, processes, tables)
    if at is None:
        at = _of_step(finding, processes)
    args = {
        "says": say(finding.title),
        "severity": finding.severity.value,
        "confidence": finding.confidence.value,
        "ranks": list(finding.where.ranks),
        "stages": list(finding.where.stages),
        "steps": list(finding.where.steps or ()),
        "at": "the beginning, since no traced event is its place" if at is None else "the event that shows it",
        "advice": [say(a.action) for a in finding.advice],
    }
    event = {"ph": "i", "s": "g", "cat": "finding", "name": f"{finding.id} {finding.name}", "pid": pid, "tid": 1, "ts": 0, "args": args}
    text = json.dumps(event).replace('"ts": 0', f'"ts": {_us(at or 0)}', 1)
    return at or 0, 2, text


def _of_evidence(finding: Finding, processes: list[Process], tables: Tables) -> int | None:
    """Time of the first cited event of a trace that is drawn."""
    of_file = {f: p for p in processes for f in p.files}
    for evidence in finding.evidence:
        process = of_file.get(evidence.file)
        if process is None or evidence.line is None:
            continue
        rows = tables["placed"]
        here = pa.compute.and_(
            pa.compute.equal(rows.column("file").cast(pa.string()), evidence.file), pa.compute.equal(rows.column("line"), evidence.line)
        )
        starts = rows.filter(pa.compute.fill_null(here, False)).column("start_ns").drop_null().to_pylist()
        if starts:
            return max(0, process.drawn(starts[0]))
    return None


def _of_step(finding: Finding, processes: list[Process]) -> int | None:
    """When the first rank enters the first step concerned."""
    if not finding.where.steps:
        return None
    begins = [
        process.drawn(int(start))
        for process in processes
        if process.offset_ns is not None
        for start in process.slices.loc[(process.slices["row"] == "steps") & (process.slices["step"] == finding.where.steps[0]), "start_ns"]
    ]
    return min(begins, default=None)


def metadata(processes: list[Process], pid: int, say: Say) -> Iterator[str]:
    """Names and order of processes and threads."""
    replicas = {p.replica for p in processes if p.replica is not None}
    for place, process in enumerate(processes):
        named = [f"stage {process.stage}"] if process.stage is not None else []
        named += [f"rank {process.rank}"] if process.rank is not None else [say(f) for f in process.files[:1]]
        named += [f"replica {process.replica}"] if process.replica is not None and len(replicas) > 1 else []
        named += [] if process.offset_ns is not None else ["clock of its own, not aligned"]
        labels = ", ".join(map(say, process.files))
        yield _named("process_name", process.pid, 0, name=" · ".join(named))
        yield _named("process_labels", process.pid, 0, labels=labels)
        yield _named("process_sort_index", process.pid, 0, sort_index=place + 1)
        for tid, name in sorted(process.threads.items()):
            yield _named("thread_name", process.pid, tid, name=say(name))
            yield _named("thread_sort_index", process.pid, tid, sort_index=tid)
    yield _named("process_name", pid, 0, name="findings of pipelog")
    yield _named("process_sort_index", pid, 0, sort_index=0)
    yield _named("thread_name", pid, 1, name="findings")


def _named(what: str, pid: int, tid: int, **args: Any) -> str:
    return json.dumps({"ph": "M", "name": what, "pid": pid, "tid": tid, "ts": 0, "args": args})
