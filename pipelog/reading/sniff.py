"""What a file is, told by its content, never by its name."""

from __future__ import annotations

import re

from pipelog.reading.configs import is_config
from pipelog.reading.error_files import is_error_file
from pipelog.reading.files import Source
from pipelog.reading.flight import is_flight
from pipelog.reading.gpu_tables import is_gpu_table
from pipelog.reading.monitors import is_monitor
from pipelog.reading.operations import is_operations
from pipelog.reading.process_tables import is_process_table
from pipelog.reading.stack_dumps import is_stack_dump
from pipelog.reading.streams import Stream
from pipelog.reading.traces import is_trace

_HEAD = 256 << 10
_BINARY = {
    b"\x89PNG": "a picture",
    b"\xff\xd8\xff": "a picture",
    b"%PDF": "a PDF document",
    b"PK\x03\x04": "a zip archive: a checkpoint or a wheel; if logs are in it, unpack them",
    b"7z\xbc\xaf": "a 7-zip archive: unpack it",
    b"Rar!": "a rar archive: unpack it",
    b"\x7fELF": "a program",
    b"SQLite format 3": "a database",
}


_OWN = re.compile(
    rb"""<!--\ pipelog\ (?:report|plan|diff)\ -->        # Markdown
    |\{\s*"schema":\s*"pipelog\.(?:report|plan|diff|timeline)/ # JSON
    |\{\s*"\$schema":\s*"[^"]{,200}",\s*"version":\s*"2\.1\.0",\s*"runs":\s*\[\s*\{\s*"tool":\s*\{\s*"driver":\s*\{\s*"name":\s*"pipelog" # SARIF
    |<!doctype\ html>(?:(?!</head>).){,20000}?<meta\ name="generator"\ content="pipelog\b
    |(?:OK|SLOW|ATTENTION|FAILED|HUNG|CANCELLED|TIME\ LIMIT|PREEMPTED|CANNOT\ TELL)\ \ \S.*?^Looked\ at\ and\ clear:\    # what the terminal shows
    |(?:DOES\ NOT\ FIT|SLOW|FITS|CANNOT\ TELL)\ \ \S.*?^What\ each\ pipeline\ sees$
    |(?:FASTER|SLOWER|NO\ DIFFERENCE|BIGGER\ BATCH|MORE\ GPUS|CANNOT\ TELL)\ \ \S.*?^Side\ by\ side$
    """,
    re.DOTALL | re.MULTILINE | re.VERBOSE,
)
"""What `analyze` itself writes: it cites the lines of errors, which must not be read as if they were new ones."""


def kind(source: Source) -> tuple[str, str | None]:
    """(key of its reader, or events, or ignored; the reason where ignored). Raises OSError where it cannot be read."""
    head, wrapped = _head(source)
    if not head:
        return "ignored", "ignored, because it is empty"
    if wrapped:
        return "json-log", None
    if head[:4] == b"PAR1":
        if is_operations(source.path):
            return "operations", None
        return (
            ("events", None)
            if source.named
            else ("ignored", "ignored, because it is a table that stands beside the files: give it by name to read it")
        )
    for magic, what in _BINARY.items():
        if head.startswith(magic):
            return "ignored", f"ignored, because it is {what}"
    if head[257:262] == b"ustar":
        return "ignored", "ignored, because it is a tar archive: unpack it"
    if is_flight(head):
        return "flight-recorder", None
    if head[:1] == b"\x80":
        return "ignored", "ignored, because it is a pickle of something else, and pickles can run code"
    text = head.lstrip(b"\xef\xbb\xbf \t\r\n")
    if _OWN.match(text):
        return "ignored", "ignored, because it is a report of pipelog"
    if text[:1] in (b"{", b"["):
        if is_trace(head):
            return "trace", None
        if is_config(head):
            return "config", None
        if is_error_file(head):
            return "error-file", None
        if is_stack_dump(head):
            return "stack-dump", None
        if _whole_json(text):
            return "ignored", "ignored, because it is JSON, but neither a trace nor a DeepSpeed configuration"
    if text[:15].lower().startswith((b"<!doctype html", b"<html")):
        return "ignored", "ignored, because it is an HTML page"
    if text.startswith(b"#!"):
        return "ignored", "ignored, because it is a script"
    if is_monitor(head):
        return "monitor", None
    if is_gpu_table(head):
        return "gpu-table", None
    if is_process_table(head):
        return "process-table", None
    if _binary(head):
        return "ignored", f"ignored, because it is {'a TensorBoard event file (its CSV twin is read)' if 'tfevents' in source.shown else 'binary'}"
    return ("stack-dump" if is_stack_dump(head) else "log"), None


def _head(source: Source) -> tuple[bytes, bool]:
    """The begin of a file's text, and whether it stands in JSON objects, one a line."""
    stream, out = Stream(source.path), b""
    for piece in stream.text():
        out += piece
        if len(out) >= _HEAD:
            break
    return out[:_HEAD], stream.wrapped


def _whole_json(text: bytes) -> bool:
    """Whether it looks like a JSON document and not like a log that begins with a bracket (`[2024-03-05 …`)."""
    second = text[1:].lstrip()[:1]
    return (text[:1] == b"{" and second in (b'"', b"}")) or (text[:1] == b"[" and second in (b"{", b"[", b'"', b"]"))


def _binary(head: bytes) -> bool:
    """Many control bytes other than those that logs hold: tab, newline, carriage return, escape, NUL (a hole of a file system)."""
    sample = head[: 64 << 10].replace(b"\0", b"")
    if not sample:
        return True
    control = sum(sample.count(bytes([c])) for c in (*range(1, 8), *range(14, 27), *range(28, 32), 127))
    try:
        sample.decode()
        broken = 0
    except UnicodeDecodeError:
        broken = sample.decode("utf-8", "replace").count("\ufffd")
    zeros = head.count(b"\0")
    return control > 0.02 * len(sample) or (broken > 0.1 * len(sample)) or (zeros > 0.3 * len(head) and b"\n" not in sample)
