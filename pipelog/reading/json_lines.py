r"""Logs whose lines are JSON objects: Docker's json-file driver, log collectors, structured loggers. Their text, as a launcher would have written it.

    {"log":"steps: 10 loss: 8.9\n","stream":"stdout","time":"2024-03-05T14:10:02.101Z"}
    {"timestamp": "2024-03-05T14:10:02.101Z", "level": "ERROR", "rank": 2, "message": "step failed", "exc_info": "Traceback (most recent call last):\n …"}

Time, host, pod and rank of a record become the prefix of each of its lines (`2024-03-05T14:10:02.101Z node-1: [rank2]: step failed`), which is read as
that of any other log. A record gives one line, and as many more as its text or its traceback has; a line that is no such record stays as it is.
"""

from __future__ import annotations

import datetime as dt
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

_TEXTS = ("log", "message", "msg", "event", "body", "textPayload")
_TIMES = ("time", "timestamp", "@timestamp", "ts", "asctime", "datetime", "created")
_LEVELS = ("level", "levelname", "severity", "log_level", "lvl", "stream")
_TRACEBACKS = ("exc_info", "exc_text", "exception", "traceback", "stack_trace", "stacktrace", "stack", "error.stack_trace")
_RANKS = ("rank", "global_rank", "world_rank")
_HOSTS = ("hostname", "host", "node", "nodename")
_AXES = {
    "stage": ("stage", "stage_id", "pp_rank", "pipe_rank", "pipeline_rank", "pipeline_parallel_rank", "pp_stage", "pipeline_stage"),
    "dp_rank": ("dp_rank", "data_rank", "data_parallel_rank"),
    "tp_rank": ("tp_rank", "tensor_rank", "tensor_parallel_rank", "mp_rank"),
}
"""Keys for the place of a rank; `pp`, `dp` and `tp` alone are mostly how many there are."""
_SAMPLE = 400
_MOST_RANKS = 1 << 20
_ISO = re.compile(r"(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d:\d\d)(?:[.,](\d+))?\s*(Z|[+-]\d\d:?\d\d)?$")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*$")
_ERRORS = frozenset({"error", "critical", "fatal", "panic", "alert", "emergency"})
_SAYS_SO = re.compile(r"(?i)error|critical|fatal|exception|traceback|panic")
Record = dict[str, Any]
Note = Callable[[int, str], None]
"""Told of each line how many it gave, and what it is: record, other, or more of the line before."""


@dataclass(frozen=True, slots=True)
class Form:
    """What the records of one file have: the key of the rank, null where few have one (a LoRA rank is no rank); whether a text ends where its line does."""

    rank: str | None
    local: str | None
    host: str | None
    ended: bool


def form(head: bytes) -> Form | None:
    """How the log that begins with *head* is written, None where its lines are not mostly such records."""
    if b"{" not in head[:4096]:
        return None
    lines = [line for line in head.split(b"\n", _SAMPLE)[:_SAMPLE] if line.strip()]
    if len(lines) > 1 and not head.endswith(b"\n") and head.count(b"\n") < _SAMPLE:
        lines = lines if _record(lines[-1]) is not None else lines[:-1]
    found = [record for line in lines if (record := _record(line)) is not None]
    if len(found) < max(1, 0.5 * len(lines)) or (len(found) == 1 and not any(key in found[0] for key in _LEVELS)):
        return None
    has = Counter(key for record in found for key in (*_RANKS, "local_rank", *_HOSTS) if _field(record, key) is not None)
    often = [key for key, count in has.items() if 2 * count >= len(found)]
    texts = [t for record in found if isinstance(t := record.get("log"), str)]
    return Form(
        rank=next((key for key in _RANKS if key in often), None),
        local="local_rank" if "local_rank" in often else None,
        host=next((key for key in _HOSTS if key in often), None),
        ended=bool(texts) and sum(t.endswith("\n") for t in texts) >= 0.5 * len(texts),
    )


def unwrapped(pieces: Iterator[bytes], written: Form, *, flat: bool = False, note: Note | None = None) -> Iterator[bytes]:
    """The text of such a log. flat: one line a record, its first and its last."""
    held = b""
    parts: dict[str, str] = {}
    placed: set[str] = set()
    for piece in pieces:
        *lines, held = (held + piece).split(b"\n")
        out = [_lines_of(line, written, parts, placed, flat=flat, note=note) + "\n" for line in lines]
        yield "".join(out).encode("utf-8", "replace")
    if held:
        yield _lines_of(held, written, parts, placed, flat=flat, note=note).encode("utf-8", "replace")
    for text in parts.values():
        if note is not None:
            note(1, "more")
        yield ("\n" + text).encode("utf-8", "replace")


def _lines_of(line: bytes, written: Form, parts: dict[str, str], placed: set[str], *, flat: bool, note: Note | None) -> str:
    record = _record(line)
    if record is None:
        out = [line.decode("utf-8", "replace")]
    else:
        text = _text(record) or ""
        if written.ended and isinstance(record.get("log"), str):  # Docker cuts lines at 16 KiB
            stream = str(record.get("stream"))
            text = parts.pop(stream, "") + text
            if not text.endswith("\n") and len(text) < 1 << 20:
                parts[stream], text = text, ""
        texts = text.rstrip("\r\n").split("\n")
        trace = _traceback(record)
        texts += trace.rstrip().split("\n") if trace and trace.strip() not in text else []
        if flat:
            texts = [texts[0], *(["… " + texts[-1].strip()] if len(texts) > 1 else [])]
            out = [_head(record, written) + " ".join(texts)]
        else:
            if _level(record) in _ERRORS and len(texts) == 1 and texts[0] and not _SAYS_SO.search(texts[0]):
                texts.append(f"ERROR: {texts[0]}")
            if (place := _place(record, written)) and place not in placed:
                placed.add(place)
                texts.append(place)
            head = _head(record, written)
            out = [head + t for t in texts]
    if note is not None:
        note(len(out), "record" if record is not None or not line.strip() else "other")
    return "\n".join(out)


def _record(line: bytes) -> Record | None:
    """The object of a line, None where it is none or no record of a log: it has a text, and a time, a level or Docker's stream beside it."""
    line = line.strip()
    if line[:1] != b"{" or line[-1:] != b"}":
        return None
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict):
        return None
    record = found["record"] | {"text": found["text"]} if isinstance(found.get("record"), dict) and isinstance(found.get("text"), str) else found
    known = _text(record) is not None and any(key in record for key in (*_TIMES, *_LEVELS))
    return record if known else None


def _text(record: Record) -> str | None:
    """The text of a record; loguru's has its traceback in it."""
    return next((t for key in ("text", *_TEXTS) if isinstance(t := record.get(key), str) and (key != "text" or "elapsed" in record)), None)


def _field(record: Record, key: str) -> Any:
    """A number or name of a record, or of what a logger was given beside the text."""
    for place in (record, record.get("extra"), record.get("kubernetes")):
        value = place.get(key) if isinstance(place, dict) else None
        if isinstance(value, str | int) and not isinstance(value, bool):
            return value
    return None


def _head(record: Record, written: Form) -> str:
    """What `kubectl logs --timestamps --prefix`, pdsh and torch would have put before the lines."""
    parts = [_time(record)]
    pod = _field(record, "pod_name")
    if isinstance(pod, str) and _NAME.match(pod):
        parts.append(f"[pod/{pod}/-] ")
    elif written.host and isinstance(host := _field(record, written.host), str) and _NAME.match(host):
        parts.append(f"{host}: ")
    if (rank := _number(record, written.rank)) is not None:
        parts.append(f"[rank{rank}]: ")
    elif (local := _number(record, written.local)) is not None:
        parts.append(f"[default{local}]:")
    return "".join(parts)


def _number(record: Record, key: str | None) -> int | None:
    value = str(_field(record, key)) if key else ""
    return int(value) if value.isascii() and value.isdecimal() and len(value) < 8 and int(value) < _MOST_RANKS else None


def _place(record: Record, written: Form) -> str:
    """A rank and its place in the mesh as a line of its own, as a process would introduce itself; empty where the record does not tell both."""
    rank = _number(record, written.rank)
    told = [(axis, next((n for key in keys if (n := _number(record, key)) is not None), None)) for axis, keys in _AXES.items()]
    axes = [f"{axis}={number}" for axis, number in told if number is not None]
    host = _field(record, written.host) if written.host else None
    on = [f"host={host}"] if isinstance(host, str) and _NAME.match(host) else []
    return " ".join([f"rank={rank}", *on, *axes]) if rank is not None and axes else ""


def _level(record: Record) -> str:
    level = next((record[key] for key in _LEVELS if key in record), "")
    level = level.get("name", "") if isinstance(level, dict) else level
    return level.lower() if isinstance(level, str) else ""


def _time(record: Record) -> str:
    """The time as a prefix: in UTC where the record says so or counts seconds since 1970, else as a local one."""
    for key in _TIMES:
        value = record.get(key)
        if isinstance(value, dict):  # loguru: {"repr": "…", "timestamp": 1709647802.1}
            value = value.get("timestamp")
        if isinstance(value, int | float) and not isinstance(value, bool) and 1e9 < value < 1e19:
            while value > 1e11:  # ms, µs or ns
                value /= 1000
            return f"{dt.datetime.fromtimestamp(value, dt.UTC):%Y-%m-%dT%H:%M:%S.%f}Z "
        if isinstance(value, str) and (m := _ISO.match(value)):
            day, clock, part, zone = m.groups()
            if zone:
                return f"{day}T{clock}{'.' + part[:9] if part else ''}{zone} "
            return f"{day} {clock}{',' + part[:6] if part else ''} "
    return ""


def _traceback(record: Record) -> str:
    """The traceback of a record: text, lines, or frames one by one as structlog writes them."""
    for key in _TRACEBACKS:
        found = record.get(key)
        if isinstance(found, str) and found.strip():
            return found
        if isinstance(found, list) and found and all(isinstance(part, str) for part in found):
            return "".join(part if part.endswith("\n") else part + "\n" for part in found)
        if isinstance(found, list) and found and isinstance(found[0], dict):
            return "\n".join(_framed(part) for part in reversed(found) if isinstance(part, dict))
        if isinstance(found, dict):
            inner = next((v for k in ("traceback", "stacktrace", "stack", "stack_trace") if isinstance(v := found.get(k), str) and v.strip()), None)
            if inner is not None:
                return inner
    return ""


def _framed(raised: Record) -> str:
    frames = [f for f in raised.get("frames") or () if isinstance(f, dict)] if isinstance(raised.get("frames"), list) else []
    lines = [f'  File "{f.get("filename", "?")}", line {f.get("lineno", 0)}, in {f.get("name", "?")}' for f in frames]
    return "\n".join(["Traceback (most recent call last):", *lines, f"{raised.get('exc_type', 'Exception')}: {raised.get('exc_value', '')}"])
