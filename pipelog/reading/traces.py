"""A torch profiler trace: bytes → slices at event borders → typed structs → rows.

Streaming, in bounded memory: header keys may stand before or after the events, so base time and rank are added at the end. A
damaged event costs itself, a cut file its last event; both are listed with their byte offset.
"""

from __future__ import annotations

import functools
import gc
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelog.events import WORD, Input, Skipped, conform, constant, join
from pipelog.reading import collectives
from pipelog.reading.files import Source, rank_of_name
from pipelog.reading.streams import Stream
from pipelog.tracing import TRACE, AnyEvent, InstantEvent, Slice, TraceEvent

_SLICE = 2 << 20
_LONGEST_EVENT = 64 << 20
_EVENTS_KEY = re.compile(rb'"traceEvents"\s*:\s*\[')
_BARE = re.compile(rb"\s*\[")
_FIRST_KEY = re.compile(rb'\{\s*"[^"\\]{1,40}"\s*:')
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|[{}\[\]]', re.DOTALL)
_DOUBLE_EXACT_US = 2.0**43
"""Below, a double holds microseconds exactly to the nanosecond (its spacing is 2**-10 us or less)."""
_FOLD = {"operator": "cpu_op", "runtime": "cuda_runtime", "memcpy": "gpu_memcpy", "memset": "gpu_memset"}
_MOST_SKIPPED = 100
_DAY_NS = 86_400 * 10**9
_HOST_IN_NAME = re.compile(r"^([A-Za-z0-9][A-Za-z0-9.-]*)_\d+\.\d+\.pt\.trace\.json")
_WORKER_IN_NAME = re.compile(r"(?:^|/)worker(\d+)\.")


class _Device(msgspec.Struct):
    id: Any = None
    name: Any = None
    total_memory: Any = msgspec.field(name="totalGlobalMem", default=None)


class _Header(msgspec.Struct):
    """The top-level keys that are kept; any other is dropped unseen."""

    base: Any = msgspec.field(name="baseTimeNanoseconds", default=None)
    distributed: Any = msgspec.field(name="distributedInfo", default=None)
    devices: list[_Device] | None = msgspec.field(name="deviceProperties", default=None)
    trace_id: Any = None
    host_name: Any = None
    record_shapes: Any = None
    profile_memory: Any = None
    with_stack: Any = None
    cupti_version: Any = None
    cuda_runtime_version: Any = None
    roctracer_version: Any = None
    hip_runtime_version: Any = None


@dataclass(slots=True)
class _State:
    """What is gathered while slices go by."""

    tables: list[pa.Table] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    lost: Counter[str] = field(default_factory=Counter)
    events: int = 0
    exact: bool = False
    truncated: bool = False
    head: bytes = b""
    tail: bytes = b""

    def skip(self, offset: int | None, why: str) -> None:
        if len(self.skipped) < _MOST_SKIPPED:
            self.skipped.append(Skipped(offset, why))
        else:
            self.lost[why] += 1


def is_trace(head: bytes) -> bool:
    """Whether a file that begins with *head* is a Chrome trace: an object with traceEvents, or a bare array of events."""
    start = head.lstrip(b"\xef\xbb\xbf \t\r\n")
    if start.startswith(b"{"):
        return b'"traceEvents"' in start or (b'"schemaVersion"' in start[:2000] and b'"deviceProperties"' in start[:2000])
    return start.startswith(b"[") and re.match(rb'\[\s*\{\s*"', start) is not None and b'"ph"' in start[:4000]


def read_trace(source: Source) -> tuple[pa.Table, Input]:
    """All rows of a trace, and what was skipped. Never raises for what the file holds."""
    stream = Stream(source.path)
    state = _State()
    collecting = gc.isenabled()
    gc.disable()  # millions of short-lived objects without cycles: looking for cycles costs a fifth of the time
    try:
        for offset, body, last in _slices(stream.pieces(), state):
            _take(body, offset, state, last=last)
    finally:
        if collecting:
            gc.enable()
    state.skipped += stream.trouble
    if stream.trouble:
        state.truncated = True
    state.skipped += [Skipped(None, f"{n} more: {why}") for why, n in state.lost.items()]
    header = _header(state)
    table, notes = _finish(state, header, source)
    given = Input(source.shown, "trace", source.bytes, table.num_rows, state.skipped, notes)
    return table, given


def _slices(pieces: Iterator[bytes], state: _State) -> Iterator[tuple[int, bytearray, bool]]:
    """(byte offset, `[` and whole events, nothing comes after) of the list of events.

    All but the last slice are JSON lists; the last one holds what the file has after its last border. One copy of each byte: at
    hundreds of MB/s every further one shows.
    """
    rest, offset, sign = b"", 0, b""
    begun = False
    for piece in pieces:
        if not begun:
            rest += piece
            match = _BARE.match(rest) if rest.lstrip()[:1] == b"[" else _EVENTS_KEY.search(rest)
            if match is None:
                continue
            state.head = rest[: match.start()] if rest.lstrip()[:1] == b"{" else b""
            rest, offset, begun, piece = rest[match.end() :], match.end(), True, b""  # noqa: PLW2901
        if len(rest) + len(piece) < _SLICE:
            rest += piece
            continue
        data = bytearray(b"[")
        data += rest
        data += piece
        if not sign:
            first = _FIRST_KEY.search(data)
            sign = first.group(0) if first else b"{"
        border = data.rfind(sign)
        end = data.rfind(b"}", 0, max(border, 0)) + 1
        if not end:
            rest += piece
            if len(rest) > _LONGEST_EVENT:
                state.skip(offset, f"an event, or what follows the events, of more than {_LONGEST_EVENT >> 20} MB")
                state.truncated = True
                return
            continue
        rest = bytes(data[border:])
        size = border - 1
        del data[end:]
        data += b"]"
        yield offset, data, False
        offset += size
    if begun:
        yield offset, bytearray(b"[") + rest, True
    else:
        state.skip(None, "no list of events")
        state.truncated = True


def _decoder(*, exact: bool) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(list[AnyEvent], float_hook=Decimal) if exact else msgspec.json.Decoder(list[AnyEvent])


_FAST, _EXACT = _decoder(exact=False), _decoder(exact=True)


def _take(body: bytearray, offset: int, state: _State, *, last: bool) -> None:
    """Decode one slice and keep its rows."""
    decoder = _EXACT if state.exact else _FAST
    try:
        events = decoder.decode(body) if not last else _last(body, decoder, state)
    except (msgspec.MsgspecError, ValueError):  # ValueError: UnicodeDecodeError
        events = _one_by_one(bytes(body[1:] if last else body[1:-1]), offset, decoder, state, last=last)
    if not state.exact and any(isinstance(e, TraceEvent) and type(e.ts) is float and e.ts >= _DOUBLE_EXACT_US for e in events[:200]):
        state.exact = True  # since the epoch and with a fraction: 19 digits, more than a double holds
        _take(body, offset, state, last=last)
        return
    _reduce(events, state)


def _last(body: bytearray, decoder: msgspec.json.Decoder[Any], state: _State) -> list[TraceEvent]:
    """The slice that ends the list: what follows the `]` after its last event is the rest of the header."""
    first = _FIRST_KEY.search(body)
    if first is None or body[1:].lstrip().startswith(b"]"):  # an empty list
        events, end = [], body.find(b"]")
        if end < 0:
            raise ValueError("no event")
        state.tail = bytes(body[end + 1 :])
        return events
    begin = body.rfind(first.group(0))  # the last events may begin with another key: look on from here
    end = _closing(body, begin)
    if end < 0:
        raise ValueError("the list is not closed")
    events = decoder.decode(body[:end].rstrip(b", \r\n\t") + b"]")
    state.tail = bytes(body[end + 1 :])
    return events  # type: ignore[no-any-return]


def _closing(body: bytearray, begin: int) -> int:
    """Where the list of events is closed after *begin*, -1 where it is not."""
    depth = 0
    for token in _TOKEN.finditer(body, begin):
        c = token.group(0)
        depth += (c in (b"{", b"[")) - (c in (b"}", b"]"))
        if depth < 0:
            return token.start() if c == b"]" else -1
    return -1


def _one_by_one(body: bytes, offset: int, decoder: msgspec.json.Decoder[Any], state: _State, *, last: bool) -> list[TraceEvent]:
    """The slow way, for a slice that is damaged: each event by itself, mended where it can be, else skipped with its place."""
    first = _FIRST_KEY.search(body)
    if first is None:
        if body.strip(b" \r\n\t]},"):
            state.skip(offset, "no event")
        return []
    borders = [m.start() for m in re.finditer(re.escape(first.group(0)), body)] + [len(body)]
    events: list[TraceEvent] = []
    for begin, end in zip(borders, borders[1:], strict=False):
        piece = body[begin:end]
        final = last and end == len(body)
        if final:
            size = _object_end(piece)
            if size < 0:
                state.truncated = True
                state.skip(offset + begin, f"the file ends in the middle of an event: {len(piece)} bytes lost")
                break
            after = piece[size:].lstrip(b", \r\n\t")
            if after.startswith(b"]"):
                state.tail = after[1:]
            else:
                state.truncated = True
                state.skip(offset + begin + size, "the list of events is not closed: the file was cut")
            piece = piece[:size]
        got = _mend(piece.rstrip(b", \r\n\t"), decoder)
        if got is None:
            state.skip(offset + begin, f"an event that is no JSON: {piece[:60].decode('utf-8', 'replace')!r}")
            got = [TraceEvent()]  # keeps the numbers of the events after it right
        events += got
    return events


def _object_end(piece: bytes) -> int:
    """Length of the object that *piece* begins with, -1 where it does not end."""
    depth = 0
    for token in _TOKEN.finditer(piece):
        c = token.group(0)
        depth += (c in (b"{", b"[")) - (c in (b"}", b"]"))
        if depth == 0:
            return token.end()
    return -1


def _mend(piece: bytes, decoder: msgspec.json.Decoder[Any]) -> list[TraceEvent] | None:
    """Decode one event; faults known from real writers are mended (torch-traces.md section 13)."""
    for attempt in (lambda p: p, _mend_text, _mend_values, _mend_quotes):
        piece = attempt(piece)
        try:
            return decoder.decode(b"[%b]" % piece)
        except (msgspec.MsgspecError, ValueError):
            continue
    return None


def _mend_text(piece: bytes) -> bytes:
    """Bytes that are not UTF-8, control bytes, lone backslashes (Windows paths)."""
    text = piece.decode("utf-8", "replace").encode()
    text = re.sub(rb"[\x00-\x1f]", b" ", text)
    return re.sub(rb'\\(?!["\\/bfnrtu])|\\u(?![0-9a-fA-F]{4})', rb"\\\\", text)


def _mend_values(piece: bytes) -> bytes:
    """inf, nan, N/A as a value; a missing quote; a comma followed by nothing."""
    piece = re.sub(rb'(:\s*)"?(?:-?inf|-?nan|-?Infinity|NaN|N/A)"?(\s*[,}\]])', rb"\1null\2", piece)
    piece = re.sub(rb'([{,]\s*)(\w+)"(\s*:)', rb'\1"\2"\3', piece)
    return re.sub(rb",(\s*[}\]])", rb"\1", piece)


def _mend_quotes(piece: bytes) -> bytes:
    """Quotes inside the name: everything up to the key that follows it is the name."""

    def escape(match: re.Match[bytes]) -> bytes:
        inner = re.sub(rb'(?<!\\)"', rb'\\"', match.group(2))
        return match.group(1) + inner + match.group(3)

    return re.sub(rb'("name"\s*:\s*")(.*?)("\s*,\s*"(?:ph|cat|pid|tid|ts|dur|args|id|s|bp)"\s*:|"\s*})', escape, piece, count=1, flags=re.DOTALL)


def _reduce(events: list[TraceEvent], state: _State) -> None:
    """Sort the events of a slice into families and keep the rows these give."""
    groups: dict[str, tuple[list[TraceEvent], list[int]]] = {}
    sinks: dict[Any, tuple[Any, Any] | None] = {}  # category of complete events → where they go; None: nowhere
    instants: list[tuple[int, Any]] = []
    for place, event in enumerate(events, state.events):
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
    state.events += len(events)
    for key, (members, places) in groups.items():
        rows = TRACE[key].reduce(Slice(members, np.array(places, np.int64)))
        if rows is not None and rows.num_rows:
            state.tables.append(rows)


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


def _header(state: _State) -> _Header:
    head, tail = state.head.strip(), state.tail.strip()
    begin = (head if head.startswith(b"{") else b"{") + (b"" if head.endswith((b",", b"{")) or not head else b",") + b'"traceEvents":[]'
    for end in (tail or b"}", b"}"):
        try:
            return msgspec.json.decode(begin + end, type=_Header)
        except (msgspec.MsgspecError, ValueError):
            continue
    return _loose_header(head + tail)


def _loose_header(text: bytes) -> _Header:
    """The few scalars that matter, of a header that is no JSON (log lines with quotes in it)."""
    header = _Header()
    if base := re.search(rb'"baseTimeNanoseconds"\s*:\s*(\d{1,19})', text):
        header.base = int(base.group(1))
    if host := re.search(rb'"host_name"\s*:\s*"([^"\\]{1,200})"', text):
        header.host_name = host.group(1).decode("utf-8", "replace")
    info = {}
    for key in (b"rank", b"world_size"):
        if found := re.search(rb'"distributedInfo"\s*:\s*\{[^{}\[\]]*"' + key + rb'"\s*:\s*(\d{1,9})', text):
            info[key.decode()] = int(found.group(1))
    header.distributed = info or None
    return header


def _finish(state: _State, header: _Header, source: Source) -> tuple[pa.Table, dict[str, Any]]:
    info = header.distributed if isinstance(header.distributed, dict) else {}
    table = pa.concat_tables(state.tables, promote_options="permissive").unify_dictionaries() if state.tables else pa.table({"kind": words_none()})
    state.tables.clear()  # of a large trace every copy shows
    table = collectives.resolve(table)
    own = table.column("own_rank").drop_null() if "own_rank" in table.column_names else pa.array([], pa.int64())
    ranks = set(own.to_pylist())
    rank, rank_from = _rank(info, source.shown, ranks)
    base = header.base if isinstance(header.base, int) else 0
    table, odd = _absolute(table, base)
    if odd:
        state.skipped.append(Skipped(None, f"{odd} events at impossible times (more than a day from the others)"))
    host, clock = _clock(header, source.shown)
    n = table.num_rows
    table = table.append_column("rank", pa.repeat(pa.scalar(rank, pa.int32()), n)).append_column("file", constant(source.shown, WORD, n))
    table = table.append_column("clock", constant(clock, WORD, n)).append_column("host", constant(host, WORD, n))
    facts = _facts(info, header, source, rank, host)
    table = join([conform(table), facts])
    notes = {
        "rank": rank,
        "rank_from": rank_from,
        "host": host,
        "trace_id": str(header.trace_id) if header.trace_id else None,
        "trace_events": state.events,
        "truncated": state.truncated,
        "device_name": next((d.name for d in header.devices or [] if isinstance(d.name, str) and d.name), None),
        "devices_memory_bytes": max((d.total_memory for d in header.devices or [] if isinstance(d.total_memory, int)), default=None),
        "with_stack": bool(header.with_stack),
        "record_shapes": bool(header.record_shapes),
        "vendor": "amd" if header.roctracer_version or header.hip_runtime_version else "nvidia" if header.cupti_version else None,
    }
    return table, notes


def words_none() -> pa.Array:
    """An empty column of words."""
    return pa.array([], pa.string()).dictionary_encode()


def _rank(info: dict[str, Any], shown: str, ranks: set[int]) -> tuple[int | None, str | None]:
    """The ladder of torch-traces.md section 8: header, name of the file, the collectives' own word, nothing."""
    stated = info.get("rank")
    if isinstance(stated, int) and 0 <= stated < 2**31:
        return stated, "distributedInfo"
    named = rank_of_name(shown)
    if named is None and (worker := _WORKER_IN_NAME.search(shown)):
        named = int(worker.group(1))
    if named is not None:
        return named, "file name"
    if len(ranks) == 1:
        return int(next(iter(ranks))), "record_param_comms"
    return None, None


def _clock(header: _Header, shown: str) -> tuple[str | None, str]:
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


def _facts(info: dict[str, Any], header: _Header, source: Source, rank: int | None, host: str | None) -> pa.Table:
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
    for device in header.devices or []:
        if isinstance(device.total_memory, int) and device.total_memory > 0 and isinstance(device.name, str):
            rows.append((f"device.{device.id}.memory_bytes", float(device.total_memory), device.name))
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
