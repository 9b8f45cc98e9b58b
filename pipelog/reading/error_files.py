"""Error files of torchelastic (`attempt_0/3/error.json`, $TORCHELASTIC_ERROR_FILE): the exception of one process, as JSON.

{"message": {"message": "RuntimeError: …", "extraInfo": {"py_callstack": "Traceback (most recent call last): …", "timestamp": "1709652009"}}}
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from pipelog.events import WORD, Input, Skipped, conform, constant, of_rows
from pipelog.parsing import Row
from pipelog.reading.files import Source, rank_of_name
from pipelog.reading.streams import Stream

_LARGEST = 16 << 20
_HEAD = re.compile(rb'\s*\{\s*"message"\s*:\s*(?:\{\s*"(?:message|extraInfo|errorCode|errorTraits)"|")', re.DOTALL)
_TELLING = (b'"extraInfo"', b'"py_callstack"', b'"errorCode"', b'"timestamp"', b'"errorTraits"')
_PLACE = re.compile(r"(?:^|/)attempt_\d+/(\d{1,6})/[^/]*$")
_FRAME = re.compile(r'^ *File "(?P<path>[^"]+)", line (?P<at>\d+), in (?P<function>\S.*)$', re.MULTILINE)
_LIBRARY = re.compile(r"/(?:site|dist)-packages/|/lib(?:64)?/python\d|^<")
_PIPE = re.compile(r"deepspeed/runtime/pipe/engine\.py$")


def is_error_file(head: bytes) -> bool:
    """Whether a file that begins with *head* is such a file."""
    return _HEAD.match(head) is not None and any(word in head for word in _TELLING)


def read_error_file(source: Source) -> tuple[pa.Table, Input]:
    """The exception (kind `error`, name `python-exception`) and the frames that tell where, all on line 1; its time is in UTC.

    The path names the local rank. Never raises for what the file holds.
    """
    given = Input(source.shown, "log", source.bytes)
    stream = Stream(source.path)
    data = b"".join(stream.text(unwrap=False))[:_LARGEST]
    given.skipped += stream.trouble
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        given.skipped.append(Skipped(1, f"broken JSON: {error}"))
        document = None
    place = _PLACE.search(source.shown)
    known: Row = {"line": 1, "group": "1", "value": 0.0, "rank": rank_of_name(source.shown), "label": f"local {place.group(1)}" if place else None}
    rows = [known | row for row in _rows(document)] if isinstance(document, dict) else []
    names = ("kind", "name", "line", "text", "stream", "value", "group", "label", "rank", "start_ns", "clock")
    table = of_rows(rows, names)
    table = conform(table.append_column("file", constant(source.shown, WORD, len(rows))))
    given.events = table.num_rows
    given.notes = {
        "prefixes": [],
        "rank_from_name": rank_of_name(source.shown),
        "lines": data.count(b"\n") + 1,
        "unfinished_line": None,
        "cut_stream": bool(stream.trouble),
    }
    return table, given


def _rows(document: dict[str, Any]) -> Iterator[Row]:
    message = document.get("message")
    inner = message if isinstance(message, dict) else document
    extra = inner.get("extraInfo")
    extra = extra if isinstance(extra, dict) else {}
    text = inner.get("message")
    if not isinstance(text, str) or not text.strip():
        return
    text = text.encode("utf-8", "replace").decode().strip()
    stamp = str(extra.get("timestamp", inner.get("timestamp", "")))
    when: Row = {"start_ns": int(stamp) * 10**9, "clock": "utc"} if re.fullmatch(r"\d{9,10}", stamp) else {}
    yield {"kind": "error", "name": "python-exception", "text": text, **when}
    stack = extra.get("py_callstack", inner.get("py_callstack"))
    yield from _frames(stack.encode("utf-8", "replace").decode() if isinstance(stack, str) else "")


def _frames(stack: str) -> Iterator[Row]:
    """The innermost frame, the innermost outside libraries, the innermost of the pipeline engine's instructions, of the last traceback."""
    last = stack.rpartition("Traceback (most recent call last)")[2]
    frames = [(m["path"], f"{m['path']}:{m['at']} {m['function']}") for m in _FRAME.finditer(last)][::-1]
    for stream, wanted in (("raised", ""), ("own", "own"), ("pipe", "pipe")):
        for path, shown in frames:
            function = shown.rpartition(" ")[2]
            if (
                not wanted
                or (wanted == "own" and not _LIBRARY.search(path))
                or (wanted == "pipe" and _PIPE.search(path) and function.startswith("_exec_"))
            ):
                yield {"kind": "error", "name": "python-frame", "stream": stream, "text": shown}
                break
