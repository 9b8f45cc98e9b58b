"""What somebody saw of a job that was still there: the output of `ps` on its hosts, and of `squeue`, with the time at which it was.

    # 2026-08-01 09:40
    dgx-05$ ps -eo pid,stat,wchan:20,etime,cmd | grep train
        PID STAT WCHAN                    ELAPSED CMD
       1549 DNl  nfs_start_io_read     1-21:40:00 /opt/conda/bin/python -u train.py --local_rank=0 --deepspeed

    $ date; squeue -j 90312 -o "%i %j %T %M %R"
    Sat Aug 12 22:14:47 CST 2023
    JOBID NAME STATE TIME NODELIST(REASON)
    90312 pp-llama RUNNING 7:14:31 gpu[311-312,318]

Several may stand in one file. The time is that of the last line above that holds one; without it a table tells no more than that the processes were there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

import pyarrow as pa

from pipelog.events import WORD, Input, conform, constant, of_rows
from pipelog.parsers._stacks import process_of
from pipelog.parsers._stamps import ctime_ns, iso_ns
from pipelog.parsing import Row
from pipelog.reading import heads
from pipelog.reading.files import Source
from pipelog.reading.streams import Stream

_LARGEST = 4 << 20
_BEFORE = 10
"""Lines that may stand above the first table: dates, commands."""
_SHARE = 0.6
"""Of the lines of a file that must belong to tables, dates and commands: a log that quotes one is a log."""
_PS = re.compile(r"^\s*(?=.*\bPID\b)(?:[A-Z%+]+\s+)*?(?:STAT|S)\s(?:.*\s)?(?:CMD|COMMAND)\s*$")
_SQUEUE = re.compile(r"^\s*JOBID\s(?=.*\bTIME\b)(?:.*\s)?(?:ST|STATE)\s.*\S\s*$")
_ISO = re.compile(r"(?<![\d.])(?P<day>\d{4}[-/]\d\d[-/]\d\d)[T ](?P<time>\d\d:\d\d(?::\d\d)?)(?![\d:])")
_DATE = re.compile(
    r"\b(?P<day>[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d) (?P<time>\d\d:\d\d:\d\d)(?: (?P<half>[AP]M))?(?: [A-Z]{2,5}| [+-]\d\d)? (?P<year>\d{4})\b"
)
_PROMPT = re.compile(r"^\s*(?:\[?[\w.-]+@)?(?P<host>[A-Za-z][\w.-]*)[^\s#$>]*(?: [^\s#$>]*)?[#$>] *(?:sudo )?ps\b")
_SSH = re.compile(r"\bssh (?:-\S+ )*(?:[\w.-]+@)?(?P<host>[A-Za-z][\w.-]*) .*\bps\b")
_ELAPSED = re.compile(r"^(?:(?P<days>\d{1,4})-)?(?:(?P<h>\d{1,3}):)?(?P<m>\d{1,2}):(?P<s>\d\d)$")
_RUNNING = frozenset({"R", "RUNNING"})


@dataclass(slots=True)
class _Read:
    """What is known where a line stands: the columns of the table that it may belong to, whether that is one of processes, host and time."""

    columns: list[str] = field(default_factory=list)
    processes: bool = True
    host: str | None = None
    at_ns: int | None = None
    known: int = 0
    lines: int = 0


def is_process_table(head: bytes) -> bool:
    """Whether a file that begins with *head* holds such tables and little else."""
    lines = [heads.clean_line(raw) for raw in head.split(b"\n", _BEFORE)[:_BEFORE]]
    if not any(_PS.match(line) or _SQUEUE.match(line) for line in lines):
        return False
    read = _Read()
    for _ in _rows(head, read):
        pass
    return read.known >= _SHARE * read.lines


def read_process_table(source: Source) -> tuple[pa.Table, Input]:
    """One row a process (kind `process_state`, name: its state) or job (`job_state`). Never raises for what the file holds."""
    stream = Stream(source.path)
    data = bytearray()
    for piece in stream.text():
        data += piece
        if len(data) > _LARGEST:
            break
    rows = list(_rows(bytes(data[:_LARGEST]), _Read()))
    names = ("kind", "name", "line", "text", "value", "label", "host", "rank", "group", "start_ns", "clock", "dur_ns")
    table = conform(of_rows(rows, names).append_column("file", constant(source.shown, WORD, len(rows))))
    return table, Input(source.shown, "monitor", source.bytes, events=table.num_rows, skipped=list(stream.trouble))


def _rows(data: bytes, read: _Read) -> Iterator[Row]:
    for number, raw in enumerate(data.split(b"\n"), 1):
        line = heads.clean_line(raw)
        if not line.strip():
            continue
        read.lines += 1
        if _PS.match(line) or _SQUEUE.match(line):
            read.columns, read.processes, read.known = line.split(), _PS.match(line) is not None, read.known + 1
        elif (row := _row(read, line)) is not None:
            read.known += 1
            yield row | {"line": number} | ({} if read.at_ns is None else {"start_ns": read.at_ns, "clock": "log"})
        elif (at := _time(line)) is not None or re.match(r"^\S*(?: \S*)?[#$>] ?", line):
            read.known += 1
            read.at_ns = read.at_ns if at is None else at
            if host := _PROMPT.match(line) or _SSH.search(line):
                read.host, read.columns = host["host"], []


def _row(read: _Read, line: str) -> Row | None:
    """A process with its state, or a job that runs; null where the line is none of the table."""
    cells = dict(zip(read.columns, line.split(None, max(len(read.columns) - 1, 0)), strict=False))
    if not cells or len(cells) < len(read.columns):
        return None
    if not read.processes:
        ran = _elapsed(cells["TIME"])
        if (cells.get("STATE") or cells.get("ST")) not in _RUNNING or ran is None:
            return None
        return {"kind": "job_state", "name": "running", "group": cells["JOBID"], "dur_ns": ran, "text": line.strip()}
    state, pid = cells.get("STAT") or cells.get("S") or "", cells["PID"]
    if not pid.isdecimal() or len(pid) > 10 or not re.match(r"^[DRSTtXZI][A-Za-z<+]*$", state):
        return None
    row: Row = {"kind": "process_state", "name": state[0], "text": cells.get("WCHAN", "")}
    if (lives := _elapsed(cells.get("ELAPSED", ""))) is not None:
        row["dur_ns"] = lives
    row |= process_of(f"Process {pid}: {cells.get('CMD') or cells.get('COMMAND') or '-'}") or {}
    return row if read.host is None else row | {"host": read.host}


def _elapsed(word: str) -> int | None:
    """Nanoseconds of `1-21:40:00`, `7:14:31`, `12:05`."""
    found = _ELAPSED.match(word)
    if found is None:
        return None
    n = {name: int(value or 0) for name, value in found.groupdict().items()}
    return (((n["days"] * 24 + n["h"]) * 60 + n["m"]) * 60 + n["s"]) * 10**9


def _time(line: str) -> int | None:
    if found := _ISO.search(line):
        time = found["time"] if found["time"].count(":") > 1 else f"{found['time']}:00"
        return iso_ns(pa.array([f"{found['day']} {time}"]))[0].as_py()  # type: ignore[no-any-return]
    if found := _DATE.search(line):
        hour = int(found["time"][:2])
        if found["half"]:
            hour = hour % 12 + 12 * (found["half"] == "PM")
        return ctime_ns(pa.array([f"{found['day']} {hour:02}{found['time'][2:]} {found['year']}"]))[0].as_py()  # type: ignore[no-any-return]
    return None
