"""A torch profiler trace: the list of events → families → rows, and at the end what needs the whole file.

Streaming, in bounded memory: header keys may stand before or after the events, so base time and rank are added at the end.
"""

from __future__ import annotations

import functools
import gc
import re
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelog.events import WORD, Input, Skipped, conform, constant, join
from pipelog.reading import collectives
from pipelog.reading.files import Source, rank_of_name
from pipelog.reading.streams import Stream
from pipelog.reading.trace_header import Header, header
from pipelog.reading.trace_list import EventList
from pipelog.tracing import TRACE, InstantEvent, Slice, TraceEvent

_FOLD = {"operator": "cpu_op", "runtime": "cuda_runtime", "memcpy": "gpu_memcpy", "memset": "gpu_memset"}
_DAY_NS = 86_400 * 10**9
_HOST_IN_NAME = re.compile(r"^([A-Za-z0-9][A-Za-z0-9.-]*)_\d+\.\d+\.pt\.trace\.json")
_WORKER_IN_NAME = re.compile(r"(?:^|/)worker(\d+)\.")


def is_trace(head: bytes) -> bool:
    """Whether a file that begins with *head* is a Chrome trace: an object with traceEvents, or a bare array of events."""
    start = head.lstrip(b"\xef\xbb\xbf \t\r\n")
    if start.startswith(b"{"):
        return b'"traceEvents"' in start or (b'"schemaVersion"' in start[:2000] and b'"deviceProperties"' in start[:2000])
    return start.startswith(b"[") and re.match(rb'\[\s*\{\s*"', start) is not None and b'"ph"' in start[:4000]


def read_trace(source: Source) -> tuple[pa.Table, Input]:
    """All rows of a trace, and what was skipped. Never raises for what the file holds."""
    stream, listed = Stream(source.path), EventList()
    tables: list[pa.Table] = []
    count = 0
    collecting = gc.isenabled()
    gc.disable()  # millions of short-lived objects without cycles: looking for cycles costs a fifth of the time
    try:
        for events in listed.read(stream.pieces()):
            tables += _reduce(events, count)
            count += len(events)
    finally:
        if collecting:
            gc.enable()
    listed.truncated |= bool(stream.trouble)
    skipped = [*listed.skipped, *stream.trouble, *(Skipped(None, f"{n} more: {why}") for why, n in listed.lost.items())]
    known = header(listed.head, listed.tail)
    table, notes = _finish(tables, known, source, skipped)
    notes |= {"trace_events": count, "truncated": listed.truncated}
    return table, Input(source.shown, "trace", source.bytes, table.num_rows, skipped, notes)


def _reduce(events: list[Any], first: int) -> list[pa.Table]:
    """Sort the events of a slice into families: the rows these give. first: number of the first event in the file."""
    groups: dict[str, tuple[list[TraceEvent], list[int]]] = {}
    sinks: dict[Any, tuple[Any, Any] | None] = {}  # category of complete events → where they go; None: nowhere
    instants: list[tuple[int, Any]] = []
    for place, event in enumerate(events, first):
        kind = type(event)
        if kind is TraceEvent:
            try:
                sink = sinks[event.cat]
            except (KeyError, TypeError):
                sink = sinks[event.cat if isinstance(event.cat, str) else None] = _sink("X", event.cat, groups)
            if sink is not None:
                sink[0](event)
                sink[1](place)
        elif kind is InstantEvent:
            instants.append((place, event))
    for place, event in instants:
        sink = _sink("i", event.cat or "cpu_instant_event", groups)  # [memory] of 2021 has no category
        if sink is not None:
            sink[0](event)
            sink[1](place)
    tables = []
    for key, (members, places) in groups.items():
        rows = TRACE[key].reduce(Slice(members, np.array(places, np.int64)))
        if rows is not None and rows.num_rows:
            tables.append(rows)
    return tables


def _sink(phase: str, category: Any, groups: dict[str, tuple[list[TraceEvent], list[int]]]) -> tuple[Any, Any] | None:
    """Where events of a category go: the appenders of its family's lists."""
    folded = str(category or "").lower()
    key = _families().get((phase, _FOLD.get(folded, folded)))
    if key is None:
        return None
    members, places = groups.setdefault(key, ([], []))
    return members.append, places.append


@functools.cache
def _families() -> dict[tuple[str, str], str]:
    """(phase, category in today's spelling) → family."""
    return {(p.phase, c): key for key, p in TRACE.items() for c in p.categories}


def _finish(tables: list[pa.Table], known: Header, source: Source, skipped: list[Skipped]) -> tuple[pa.Table, dict[str, Any]]:
    info = known.distributed if isinstance(known.distributed, dict) else {}
    table = pa.concat_tables(tables, promote_options="permissive").unify_dictionaries() if tables else pa.table({"kind": words_none()})
    tables.clear()  # of a large trace every copy shows
    table = collectives.resolve(table)
    own = table.column("own_rank").drop_null() if "own_rank" in table.column_names else pa.array([], pa.int64())
    ranks = set(own.to_pylist())
    rank, rank_from = _rank(info, source.shown, ranks)
    base = known.base if type(known.base) is int and 0 <= known.base < 2**62 else 0  # `true` is an int to Python, and no time
    table, odd = _absolute(table, base)
    if odd:
        skipped.append(Skipped(None, f"{odd} events at impossible times (more than a day from the others)"))
    host, clock = _clock(known, source.shown)
    n = table.num_rows
    table = table.append_column("rank", pa.repeat(pa.scalar(rank, pa.int32()), n)).append_column("file", constant(source.shown, WORD, n))
    table = table.append_column("clock", constant(clock, WORD, n)).append_column("host", constant(host, WORD, n))
    facts = _facts(info, known, source, rank, host)
    table = join([conform(table), facts])
    notes = {
        "rank": rank,
        "rank_from": rank_from,
        "host": host,
        "trace_id": str(known.trace_id) if known.trace_id else None,
        "device_name": next((d.name for d in known.devices or [] if isinstance(d.name, str) and d.name), None),
        "devices_memory_bytes": max((d.total_memory for d in known.devices or [] if isinstance(d.total_memory, int)), default=None),
        "with_stack": bool(known.with_stack),
        "record_shapes": bool(known.record_shapes),
        "vendor": "amd" if known.roctracer_version or known.hip_runtime_version else "nvidia" if known.cupti_version else None,
    }
    return table, notes


def words_none() -> pa.Array:
    """An empty column of words."""
    return pa.array([], pa.string()).dictionary_encode()


def _rank(info: dict[str, Any], shown: str, ranks: set[int]) -> tuple[int | None, str | None]:
    """The ladder of torch-traces.md section 8: header, name of the file, the collectives' own word, nothing."""
    stated = info.get("rank")
    if type(stated) is int and 0 <= stated < 2**31:
        return stated, "distributedInfo"
    named = rank_of_name(shown)
    if named is None and (worker := _WORKER_IN_NAME.search(shown)):
        named = int(worker.group(1))
    if named is not None:
        return named, "file name"
    if len(ranks) == 1:
        return int(next(iter(ranks))), "record_param_comms"
    return None, None


def _clock(header: Header, shown: str) -> tuple[str | None, str]:
    """The host, and whose clock the times are on: a host's traces share one; without a host every file is alone."""
    name = header.host_name if isinstance(header.host_name, str) and header.host_name else None
    if name is None and (match := _HOST_IN_NAME.match(shown.rpartition("/")[2])):
        name = match.group(1)
    return name, f"host:{name}" if name else f"trace:{shown}"


def _absolute(table: pa.Table, base: int) -> tuple[pa.Table, int]:
    """Add the base; drop events that lie a day or more from the middle of the others (ts 0, ts far in the past)."""
    if "start_ns" not in table.column_names or not table.num_rows:
        return table, 0
    start = table.column("start_ns").to_numpy()
    near = np.abs(start - np.median(start)) < _DAY_NS
    odd = int((~near).sum())
    if odd:
        table = table.filter(pa.array(near))
    for name in ("start_ns", "launch_ns"):
        if name in table.column_names:
            place = table.column_names.index(name)
            table = table.set_column(place, name, pc.add(table.column(name), pa.scalar(base, pa.int64())))
    return table, odd


def _facts(info: dict[str, Any], header: Header, source: Source, rank: int | None, host: str | None) -> pa.Table:
    rows: list[tuple[str, float | None, str]] = []
    world = info.get("world_size")
    if isinstance(world, int) and world > 0:
        rows.append(("topology.world_size", float(world), str(world)))
    groups = info.get("pg_config")
    groups = [groups] if isinstance(groups, dict) else groups if isinstance(groups, list) else []
    for group in groups:
        if isinstance(group, dict) and isinstance(group.get("ranks"), list):
            members = ",".join(str(r) for r in group["ranks"])
            rows.append((f"group.{group.get('pg_name')}", float(len(group["ranks"])), f"{group.get('pg_desc')}:{members}"))
    if isinstance(info.get("backend"), str):
        rows.append(("backend", None, info["backend"]))
    rows += [
        (f"device.{device.id}.memory_bytes", float(device.total_memory), device.name)
        for device in header.devices or []
        if isinstance(device.total_memory, int) and device.total_memory > 0 and isinstance(device.name, str)
    ]
    n = len(rows)
    table = pa.table(
        {
            "kind": constant("fact", WORD, n),
            "name": pa.array([r[0] for r in rows], pa.string()),
            "value": pa.array([r[1] for r in rows], pa.float64()),
            "text": pa.array([r[2] for r in rows], pa.large_string()),
            "rank": pa.repeat(pa.scalar(rank, pa.int32()), n),
            "host": constant(host, WORD, n),
            "file": constant(source.shown, WORD, n),
            "line": pa.nulls(n, pa.int64()),
        }
    )
    return conform(table)
