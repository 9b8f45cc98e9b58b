"""Files of stacks, made to see where a job hangs: `py-spy dump` (text and JSON), faulthandler, gdb.

    Process 4312: /usr/bin/python -u train.py --local_rank=1 --deepspeed
    Python v3.10.12 (/usr/bin/python3.10)

    Thread 4312 (idle): "MainThread"
        wait (threading.py:320)

Several processes may stand in one file, behind prefixes of pdsh or srun, with lines like `==== rank 3 ====` between them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from pipelog.events import WORD, Input, Skipped, conform, constant, of_rows
from pipelog.parsers._stacks import MOST_FRAMES, Stack, frame_of, process_of, said_of, stack_of
from pipelog.parsing import Row
from pipelog.reading import heads
from pipelog.reading.files import Source, rank_of_name
from pipelog.reading.streams import Stream

_LARGEST = 256 << 20
_SHARE = 0.6
"""Of the lines of a file that must belong to stacks: a log that ends with a few is a log."""
_JSON = re.compile(rb'\s*\[\s*\{[^\]]{0,4000}"(?:os_thread_id|owns_gil|thread_name)"', re.DOTALL)

_NAME = re.compile(rb'"name"\s*:')
"""One a frame, where the values of local variables were not dumped."""

_BEGINS = re.compile(rb"Thread (?:0x[0-9A-Fa-f]+|\d+) \(|(?:Current thread|Thread|Stack)[^\n]{0,120} ?\(most recent call first\)")
"""The head of a stack by one of the tools."""


def is_stack_dump(head: bytes) -> bool:
    """Whether a file that begins with *head* holds stacks and little else."""
    if _JSON.match(head) and b'"frames"' in head:
        return True
    if not _BEGINS.search(head):  # C++ backtraces in logs are (most recent call first), too
        return False
    prefix = heads.prefix(head)
    lines = [heads.clean_line(raw) for raw in head.split(b"\n")]
    own = [text[prefix.writer(text)[1] :] for text in lines if text.strip()]
    stacks = sum(stack_of(0, text) is not None for text in own)
    inside = sum(frame_of(text) is not None or process_of(text) is not None or text.startswith(("Python v", "        ")) for text in own)
    return stacks > 0 and inside > 0 and stacks + inside >= _SHARE * len(own)


def read_stack_dump(source: Source) -> tuple[pa.Table, Input]:
    """One row a thread: kind `stack`, name (its state), text (frames, innermost first), value (pid). Never raises for what the file holds."""
    given = Input(source.shown, "stack-dump", source.bytes)
    stream = Stream(source.path)
    data = bytearray()
    for piece in stream.text():
        data += piece
        if len(data) > _LARGEST:
            given.skipped.append(Skipped(None, f"only the first {_LARGEST >> 20} MiB were read"))
            break
    text = bytes(data[:_LARGEST])
    given.skipped += stream.trouble
    rows = list(_of_json(text, given)) if text.lstrip()[:1] == b"[" and _JSON.match(text) else list(_of_text(text))
    rank = rank_of_name(source.shown)
    names = ("kind", "name", "line", "text", "stream", "value", "label", "host", "rank", "group")
    table = of_rows(rows, names)
    if rank is not None:
        table = table.set_column(names.index("rank"), "rank", pa.compute.coalesce(table["rank"], pa.scalar(rank, pa.int32())))
    table = conform(table.append_column("file", constant(source.shown, WORD, len(rows))))
    given.events = table.num_rows
    given.notes = {"rank_from_name": rank}
    return table, given


@dataclass(slots=True)
class _Writer:
    """What is known of the process whose stacks one writer gives, and the stack that is being read."""

    known: Row = field(default_factory=dict)
    stack: Stack | None = None

    def ended(self) -> Iterator[Row]:
        """The row of the stack, where it has frames."""
        if self.stack is not None and self.stack.frames:
            yield self.known | self.stack.row()
        self.stack = None


def _of_text(data: bytes) -> Iterator[Row]:
    prefix = heads.prefix(data[: 256 << 10])
    writers: dict[Any, _Writer] = {}
    for number, raw in enumerate(data.split(b"\n"), 1):
        line = heads.clean_line(raw)
        who, end = prefix.writer(line)
        writer = writers.setdefault(who, _Writer())
        yield from _line(writer, number, line[end:], _where(prefix, line))
    for writer in writers.values():
        yield from writer.ended()


def _line(writer: _Writer, number: int, text: str, where: Row) -> Iterator[Row]:
    if (begun := stack_of(number, text)) is not None:
        yield from writer.ended()
        writer.stack = begun
    elif (process := process_of(text)) is not None:
        yield from writer.ended()
        writer.known = {name: value for name, value in writer.known.items() if name == "rank"} | where | process
    elif writer.stack is not None and (frame := frame_of(text)) is not None:
        if len(writer.stack.frames) < MOST_FRAMES:
            writer.stack.add(number, frame)
    elif text.strip() and not text.startswith(("        ", "Python v")):  # arguments and locals are indented further
        yield from writer.ended()
        if said := said_of(text):
            writer.known = where | said


def _where(prefix: heads.Prefix, line: str) -> Row:
    """Columns host and label as the launcher's prefix says."""
    match = re.match(prefix.expression, line)
    groups = match.groupdict() if match else {}
    row: Row = {}
    if groups.get("host"):
        row["host"] = groups["host"]
    for name, word in (("local", "local"), ("task", "task")):
        if groups.get(name):
            row["label"] = f"{word} {groups[name]}"
    if groups.get("rank"):
        row["rank"] = int(groups["rank"])
    return row


def _of_json(data: bytes, given: Input) -> Iterator[Row]:
    """`py-spy dump --json`: a list of threads; line is that of the first frame's name, and of the thread's place in the list where other things have names, too."""
    try:
        threads = json.loads(data)
    except (ValueError, RecursionError) as error:
        given.skipped.append(Skipped(None, f"broken JSON: {error}"))
        return
    begin, named = 0, _lines_of_names(data, threads if isinstance(threads, list) else [])
    for index, thread in enumerate(threads if isinstance(threads, list) else []):
        frames = thread.get("frames") if isinstance(thread, dict) else None
        if not isinstance(frames, list):
            continue
        numbers = named[begin : begin + len(frames)] or [index + 1] * len(frames)
        begin += len(frames)
        state = ("active" if thread.get("active") else "idle") + ("+gil" if thread.get("owns_gil") else "")
        pid = thread.get("pid")
        shown = [
            f"{f.get('short_filename') or f.get('filename')}:{f.get('line')} {f.get('name')}" for f in frames[:MOST_FRAMES] if isinstance(f, dict)
        ]
        stack = Stack(
            numbers[0] if numbers else index + 1,
            state,
            str(thread.get("thread_name") or thread.get("thread_id")),
            pid if isinstance(pid, int) and 0 < pid < 2**53 else None,
            shown,
            numbers[: len(shown)],
        )
        info = thread.get("process_info")
        command = str(info.get("command_line")) if isinstance(info, dict) else ""
        if shown:
            yield (process_of(f"Process {pid}: {command}") or {}) | stack.row()


def _lines_of_names(data: bytes, threads: list[Any]) -> list[int]:
    """The line of each frame's name in the file; empty where other things have names, too: the values of variables."""
    out, line, at = [], 1, 0
    for found in _NAME.finditer(data):
        line, at = line + data.count(b"\n", at, found.start()), found.start()
        out.append(line)
    frames = [thread.get("frames") for thread in threads if isinstance(thread, dict)]
    return out if len(out) == sum(len(f) for f in frames if isinstance(f, list)) else []
