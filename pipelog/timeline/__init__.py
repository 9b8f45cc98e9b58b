"""One timeline of all traces, as Chrome trace JSON for Perfetto and chrome://tracing: a process a rank, on the aligned clock.

Threads of a process: steps, compute (instructions with their micro-batch where they are known, else unions of kernels or operators), p2p
sends and receives with an arrow from each send to its receive, collectives, copies. Findings are global instant markers. Written event by
event in order of time; times are microseconds with three decimals since the first event, so no nanosecond is lost.
"""

from __future__ import annotations

import contextlib
import gzip
import heapq
import io
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TextIO

import pipelog.replay
import pipelog.tables
from pipelog._text import visible
from pipelog._version import __version__
from pipelog.errors import NoInput
from pipelog.events import Events
from pipelog.redaction import names_of, secrets
from pipelog.registry import load
from pipelog.report import Report
from pipelog.tables import Tables
from pipelog.timeline import drawing
from pipelog.timeline.processes import Process, processes_of

SCHEMA = "pipelog.timeline/1"


@dataclass(frozen=True, slots=True)
class Written:
    """What stands in the file: how many slices, arrows and markers; ranks (None: not known) that are not on the common clock."""

    slices: int
    arrows: int
    markers: int
    processes: int
    apart: tuple[int | None, ...]


def write(events: Events, report: Report, path: str, *, redact: bool = False) -> Written:
    """Write the timeline of the traces among *events*, with the findings of *report*; gzip where the name ends so.

    Secrets are left out of every text; redact: names of hosts, users, paths and addresses are replaced, too (of a report that is not redacted).
    Raises NoInput where there is no trace.
    """
    need_traces(events)
    load(pipelog.tables)
    load(pipelog.replay)
    tables = Tables(events, report.run.get("attempt"))
    processes, error_ns = processes_of(tables)
    if not processes:
        raise NoInput("the traces hold neither steps nor operators nor kernels: nothing to draw a timeline of")
    arrows = drawing.arrows(processes, tables["messages"])
    pid = max(p.pid for p in processes) + 1
    drawn = {str(name) for p in processes for name in p.slices["name"].unique()} if redact else ()
    say = _saying(names_of(report, events, sorted(n for n in drawn if not n.isidentifier())).replaced if redact else str)
    markers = sorted((drawing.marker(f, pid, processes, tables, say) for f in report.findings), key=lambda m: m[0])
    streams = [drawing.slices(p, say) for p in processes] + [drawing.flows(arrows), iter(markers)]
    apart = tuple(p.rank for p in processes if p.offset_ns is None)
    with _opened(path) as file:
        _write(
            file,
            _head(say(report.name), processes, apart, error_ns),
            drawing.metadata(processes, pid, say),
            heapq.merge(*streams, key=lambda e: e[:2]),
        )
    return Written(sum(len(p.slices) for p in processes), len(arrows) // 2, len(markers), len(processes), apart)


def _saying(named: Callable[[str], str]) -> drawing.Say:
    """Every text of the file passes here: without secrets, without what turns a line around or no file can hold; the same words come often."""

    @cache
    def say(text: str) -> str:
        return visible(named(secrets.removed(text)[0]))

    return say


def need_traces(events: Events) -> None:
    """Raise NoInput where there is no trace."""
    if not any(i.kind == "trace" for i in events.inputs):
        raise NoInput("a timeline needs torch profiler traces, and there is none: record one step on every rank")


@contextlib.contextmanager
def _opened(path: str) -> Iterator[TextIO]:
    """The file to write into; the same bytes for the same events, so without a time in gzip's header."""
    with Path(path).open("wb") as raw:
        if not path.endswith(".gz"):
            with _text(raw) as text:
                yield text
            return
        with gzip.GzipFile("", "wb", 6, raw, mtime=0) as packed, _text(packed) as text:
            yield text


def _text(raw: Any) -> TextIO:
    return io.TextIOWrapper(raw, "ascii", newline="\n")


def _write(file: TextIO, head: dict[str, Any], metadata: Iterable[str], events: Iterable[tuple[int, int, str]]) -> None:
    """One event a line."""
    file.write(json.dumps(head)[:-1] + ', "traceEvents": [')
    sign = "\n"
    for text in metadata:
        file.write(sign + text)
        sign = ",\n"
    for _, _, text in events:
        file.write(sign + text)
        sign = ",\n"
    file.write("\n]}\n")


def _head(name: str, processes: list[Process], apart: tuple[int | None, ...], error_ns: int) -> dict[str, Any]:
    aligned = [p for p in processes if p.offset_ns is not None]
    told = {"version": __version__, "run": name, "clock_error_ns": error_ns, "not_aligned": list(apart)}
    if aligned:
        told["first_event_ns"] = aligned[0].origin_ns
    return {"schema": SCHEMA, "displayTimeUnit": "ms", "otherData": told}
