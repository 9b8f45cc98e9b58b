"""Files → events: what a file is, its bytes, the scan, heads, traces, the cache."""

from __future__ import annotations

import concurrent.futures
import contextlib
import logging
import multiprocessing
import os
import re
import sys
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from types import ModuleType

import pyarrow as pa
import pyarrow.compute as pc

import pipelog.parsers
from pipelog._text import around, seconds
from pipelog.errors import BadPlugin, BadReport, NoInput
from pipelog.events import Events, Input, Skipped, conform, join
from pipelog.reading import cache, sniff
from pipelog.reading.configs import read_config
from pipelog.reading.error_files import read_error_file
from pipelog.reading.files import Source, sources
from pipelog.reading.flight import read_flight
from pipelog.reading.gpu_tables import read_gpu_table
from pipelog.reading.json_logs import read_json_log
from pipelog.reading.log_dirs import with_ranks_of_folders
from pipelog.reading.logs import read_log
from pipelog.reading.monitors import read_monitor
from pipelog.reading.node_logs import with_hosts
from pipelog.reading.operations import read_operations
from pipelog.reading.own_logs import with_own_hosts
from pipelog.reading.process_tables import read_process_table
from pipelog.reading.stack_dumps import read_stack_dump
from pipelog.reading.traces import read_trace
from pipelog.registry import load

log = logging.getLogger(__name__)

Progress = Callable[[int, int], None]
"""Called with bytes done and bytes in all."""

_READERS: dict[str, Callable[[Source], tuple[pa.Table, Input]]] = {
    "log": read_log,
    "json-log": read_json_log,
    "trace": read_trace,
    "config": read_config,
    "monitor": read_monitor,
    "flight-recorder": read_flight,
    "stack-dump": read_stack_dump,
    "gpu-table": read_gpu_table,
    "process-table": read_process_table,
    "error-file": read_error_file,
    "operations": read_operations,
}
"""By what a file is. Its kind in the report is what the reader says: a table of GPUs or of processes is a `monitor`, one of operations a `trace`, an error file a `log`."""
_WORTH_PROCESSES = 48 << 20
"""Bytes from which on starting processes (about a second for their imports) pays."""


def read(*paths: str | os.PathLike[str], jobs: int | None = None, progress: Progress | None = None, cached: bool = False) -> Events:
    """Read files and folders into one event table.

    jobs: processes to use (None: as many as there are cores, where the files are large). cached: use and fill the cache. Raises
    NoInput where a path does not exist or nothing could be read; what a file holds never raises, it is listed in its input.
    """
    found, refused = sources(paths)
    done: list[Events] = []
    total, finished = sum(s.bytes for s in found), 0
    for source, events in zip(found, _each(found, _workers(found, jobs), cached=cached), strict=True):
        done.append(events)
        finished += source.bytes
        if progress is not None:
            progress(finished, total)
    inputs = [i for e in done for i in e.inputs] + refused
    if not any(i.kind != "ignored" for i in inputs):
        reasons = {s.why for i in inputs for s in i.skipped}
        raise NoInput(f"nothing to read in {', '.join(str(p) for p in paths)}: {'; '.join(sorted(reasons)) or 'no file'}")
    roots = {s.shown: str(s.path) for s in found}
    return Events(with_own_hosts(with_hosts(with_ranks_of_folders(join([e.table for e in done])))), inputs, roots)


def _workers(found: Sequence[Source], jobs: int | None) -> int:
    if len(found) < 2 or sum(s.bytes for s in found) < _WORTH_PROCESSES:
        return 1
    return max(1, min(jobs or len(os.sched_getaffinity(0)), len(found)))


def _each(found: Sequence[Source], workers: int, *, cached: bool) -> Iterator[Events]:
    """The events of each file, in order. Between processes they travel as Arrow files, never as pickled rows."""
    if workers == 1:
        for source in found:
            yield read_one(source, cached=cached)
        return
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory(prefix="pipelog-") as folder, concurrent.futures.ProcessPoolExecutor(workers, mp_context=context) as pool:
        by_size = sorted(range(len(found)), key=lambda i: -found[i].bytes)  # the largest first, so that none is left for the end
        with _without_main():
            futures = {i: pool.submit(_to_file, found[i], f"{folder}/{i}.arrow", cached=cached) for i in by_size}
        for i, source in enumerate(found):
            try:
                yield _from_file(*futures[i].result())
            except BrokenProcessPool:  # a process was killed, most likely for its memory: one file at a time needs less
                yield read_one(source, cached=cached)


@contextlib.contextmanager
def _without_main() -> Iterator[None]:
    """While processes are started, `__main__` is empty: each would else run the user's script again, up to its own call of `read`."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def _to_file(source: Source, path: str, *, cached: bool) -> tuple[str, list[Input]]:
    events = read_one(source, cached=cached)
    with pa.OSFile(path, "wb") as sink, pa.ipc.new_stream(sink, events.table.schema) as writer:  # a file could not change its words between chunks
        writer.write_table(events.table)
    return path, events.inputs


def _from_file(path: str, inputs: list[Input]) -> Events:
    with pa.memory_map(path) as mapped:
        table = pa.ipc.open_stream(mapped).read_all()
    Path(path).unlink()  # the mapping keeps the data
    return Events(table, inputs)


def read_one(source: Source, *, cached: bool = False) -> Events:
    """The events of one file. Never raises for what it holds or for missing permissions."""
    place = cache.place(source) if cached else None
    if place is not None and (kept := cache.load(place)) is not None:
        return kept
    try:
        kind, why = sniff.kind(source)
        events = _read(source, kind, why)
    except BadPlugin:  # no fault of the file
        raise
    except OSError as error:
        return _ignored(source, f"it could not be read: {error.strerror or error}")
    except Exception as error:  # one file must not cost the user the rest of the folder
        log.debug("%s", source.shown, exc_info=True)
        return _ignored(source, f"pipelog failed on it ({type(error).__name__}: {error}): please report this")
    if place is not None and kind in ("log", "json-log", "trace"):
        cache.keep(place, events)
    return events


def _read(source: Source, kind: str, why: str | None) -> Events:
    if kind == "events":
        try:
            return _whole_table(source)
        except BadReport as error:
            kind, why = "ignored", f"ignored, because it is {error}"
    if kind == "ignored":
        return _ignored(source, why or "its kind is not known")
    load(pipelog.parsers)
    table, given = _READERS[kind](source)
    return Events(table, [given])


def _whole_table(source: Source) -> Events:
    """An event table that pipelog wrote: its inputs come with it."""
    events = Events.read(source.path)
    return Events(events.table, [Input(source.shown, "events", source.bytes, events.table.num_rows), *events.inputs])


def _ignored(source: Source, why: str) -> Events:
    why = why if why.startswith("ignored") else f"ignored, because {why}"  # sniff says it in full
    return Events(_nothing(), [Input(source.shown, "ignored", source.bytes, skipped=[Skipped(None, why)])])


def _nothing() -> pa.Table:
    return conform(pa.table({"line": pa.array([], pa.int64())}))


def cite(
    events: Events,
    wanted: Iterable[tuple[str, int]],
    most: int = 400,
    proof: re.Pattern[str] | None = None,
    secret: Callable[[str], bool] = lambda _: False,
) -> dict[tuple[str, int], str]:
    """The text of lines (file as shown, number), cut to *most* characters around *proof*, else around what was read from it.

    What cannot be read again is left out. An event of a trace has no text: its name, length and stream are told instead. secret:
    whether a text holds one, which a cut could part from the name that gives it away: nothing of it is shown then.
    """
    from pipelog.reading.lines import texts  # noqa: PLC0415  (only reports cite)

    def cut(line: str, words: str) -> str:
        before = line[: max(line.find(words), 0)] if len(line) > most else ""
        return around(line, words, most, lead=0 if secret(before) else None)

    by_file: dict[str, dict[int, str]] = {}
    for file, line in wanted:
        by_file.setdefault(file, {})[line] = ""
    for file, line, words in _read_there(events.table, by_file, proof):
        if line in by_file[file]:
            by_file[file][line] = words
    kinds = {i.path: i.kind for i in events.inputs}
    out: dict[tuple[str, int], str] = {}
    for file, lines in by_file.items():
        if kinds.get(file) in ("log", "config", "monitor", "stack-dump") and (path := events.roots.get(file)):
            out |= {(file, number): text for number, text in texts(Path(path), lines, cut).items()}
        elif kinds.get(file) == "trace":
            out |= {(file, number): text[:most] for number, text in _traced(events.table, file, lines).items()}
    return out


_SURELY = 48
"""So many characters of a text stand as they are in its line: further on it may be joined of several."""


def _read_there(table: pa.Table, wanted: Mapping[str, Collection[int]], proof: re.Pattern[str] | None) -> Iterator[tuple[str, int, str]]:
    """(file, line, the words that matter) of what was read from these lines of these files, errors last: they matter most."""
    names = table.column("file").combine_chunks()
    names = names.chunk(0) if isinstance(names, pa.ChunkedArray) else names
    codes = [code for code, name in enumerate(names.dictionary.to_pylist()) if name in wanted]
    lines = pa.array(sorted({line for some in wanted.values() for line in some}), pa.int64())
    mine = pc.and_(pc.is_in(names.indices, pa.array(codes, names.indices.type)), pc.is_valid(table.column("text")))
    rows = table.select(["kind", "file", "line", "text"]).filter(pc.and_(mine, pc.is_in(table.column("line"), lines))).to_pylist()
    for row in sorted(rows, key=lambda r: bool(r["kind"] == "error")):
        text = row["text"].lstrip()
        found = proof.search(text) if proof is not None else None
        yield row["file"], row["line"], text[found.start() if found else 0 :].split("\n", 1)[0][:_SURELY]


def _traced(table: pa.Table, file: str, places: Collection[int]) -> dict[int, str]:
    """Events of a trace by their place, in words."""
    names = ("name", "dur_ns", "device", "stream", "line")
    mine = table.select(["file", *names]).filter((pc.field("file") == file) & pc.field("line").isin(pa.array(sorted(places), pa.int64())))
    out = {}
    for row in mine.select(names).to_pylist():
        where = " ".join(w for w in (row["device"], row["stream"]) if w)
        length = "" if row["dur_ns"] is None else f", {seconds(row['dur_ns'])}"
        out[row["line"]] = f"{row['name']}{length}{f' on {where}' if where else ''}"
    return out
