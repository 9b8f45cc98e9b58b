"""Times of lines that no parser made a row of: the first and the last of a file that begin with one, and those right above errors without a time."""

from __future__ import annotations

import datetime as dt
import itertools
import re
from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelog.events import ZONES_NS, of_rows
from pipelog.parsers._stamps import YEARLESS
from pipelog.reading.heads import Prefix
from pipelog.reading.streams import Chunk
from pipelog.reading.words import worded

HEAD, _TAIL, _ABOVE = 4 << 10, 8 << 10, 2 << 10
"""Bytes that are looked through at the begin and at the end of a file, and above an error."""
_MOST_ERRORS = 16
_SLACK_NS = 60 * 10**9
"""Lines of several writers stand in one file, and their clocks differ a little."""
_SPEAK_NOT = frozenset({"error", "end", "fact", "gpu_use", "device", "memory_capacity", "process"})
"""Kinds of rows that logs of the kernel, of a scheduler or a monitor have, too: those go on before and after the job."""
_RAISED = frozenset({"python-exception", "fatal-python", "nccl-watchdog"})
"""Errors that only a process of the job prints."""

_TIME = r"(?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d)"
_DAY_NAME, _MONTH_NAME = r"(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)", r"(?P<name>Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)"
_LEAD = r"[ \t\[(<|#*=+-]{0,6}(?:NeMo )?(?:(?:[DIWE]|DEBUG|INFO|WARN(?:ING)?|ERROR|CRITICAL|FATAL|TRACE)[\]:)]{0,2}[ \t|:-]{1,3})?[\[(]?"
_LISTED = r"(?!\s+[\d.,]+[KMGTP]?i?B?\s|\s+(?:PRE|DIR)\b|[\s|,;]+\d{4}[-/]\d\d[-/]\d\d)"
"""What is not behind a stamp: the size of a file in a list, or another time in a table."""
_ZONE = r"(?P<zone> ?(?:Z|UTC)\b| ?[+-]\d\d:?\d\d\b)?"
_FORMS = tuple(
    re.compile(_LEAD + form)
    for form in (
        # 2024-03-05 14:10:02,123   2024/03/05 14:10:02   2024-03-05T14:10:02.1Z   2025-10-11-15:09:30 (CANN)   [NeMo I 2024-03-05 14:10:02
        rf"(?P<year>\d{{4}})([-/])(?P<month>\d\d)\2(?P<day>\d\d)[T _-]{_TIME}(?![\d:])(?:[.,](?P<fraction>\d{{1,9}}))?{_ZONE}{_LISTED}",
        # 03/05/2024 14:10:02 - INFO - …, as the examples of transformers set it up
        rf"(?P<month>\d\d)/(?P<day>\d\d)/(?P<year>\d{{4}}) {_TIME}(?= - [A-Z]{{4,8}} - )",
        # Tue Mar  5 14:10:02 UTC 2024   Tue Mar  5 02:10:02 PM CET 2024   [Tue Mar  5 14:10:02 2024]
        rf"{_DAY_NAME} {_MONTH_NAME} {{1,2}}(?P<day>\d\d?) {_TIME} (?:(?P<half>[AP]M) )?(?:[A-Z]{{2,5}} )?(?P<year>\d{{4}})\b",
        # Tue 05 Mar 2024 02:10:02 PM UTC
        rf"{_DAY_NAME} (?P<day>\d\d?) {_MONTH_NAME} (?P<year>\d{{4}}) {_TIME}(?: (?P<half>[AP]M))?",
        # E0305 14:10:02.123456   E305 14:10:02.123 (torch's C++ log has no 0 before the month)
        rf"[IWEF](?P<month>\d{{1,2}}?)(?P<day>\d\d) {_TIME}\.(?P<fraction>\d{{1,9}})",
        # Mar  5 14:10:02
        rf"{_MONTH_NAME} (?P<day>[ \d]\d) {_TIME} ",
    )
)
_CLOCK = re.compile(rb"\d\d:\d\d:\d\d")
_MONTHS = {name: number for number, name in enumerate(["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"], 1)}

Stamp = tuple[int, int, str]
"""Line, ns since the epoch, clock."""


def stamp(text: str) -> tuple[int, str] | None:
    """(ns, clock) of the time that *text* begins with: clock `utc` where it states a zone, `log-yearless` (in the year 1970) where no year stands."""
    for form in _FORMS:
        if found := form.match(text):
            return _time(found.groupdict())
    return None


def _time(parts: dict[str, str | None]) -> tuple[int, str] | None:
    number = {k: int(v) for k, v in parts.items() if v and k in ("year", "month", "day", "hour", "minute", "second")}
    number.setdefault("month", _MONTHS.get(parts.get("name") or "", 0))
    if half := parts.get("half"):
        number["hour"] = number["hour"] % 12 + 12 * (half == "PM")
    clock = "log" if "year" in number else YEARLESS
    number.setdefault("year", 1970)
    try:
        at = dt.datetime(**number, tzinfo=dt.UTC)
    except ValueError:
        return None
    ns = int(at.timestamp()) * 10**9 + int((parts.get("fraction") or "0").ljust(9, "0"))
    if zone := (parts.get("zone") or "").strip():
        clock, away = "utc", zone.replace(":", "")
        if away[0] in "+-":
            ns -= (1 if away[0] == "+" else -1) * (int(away[1:3]) * 60 + int(away[3:5])) * 60 * 10**9
    return ns, clock


def rows(head: bytes, last: Chunk, table: pa.Table, of_line: Prefix) -> pa.Table:
    """Rows of kind `stamp` that tell more than those of *table*, the other rows of the file. head: its first bytes; last: its last lines.

    `first` and `last`: where lines with a time stand above the first or below the last that a row has; `above`: the next above an error
    without one. Only times that stand in order with those around them count: what is quoted of something older does not.
    """
    known = _known(table)
    if known is None:
        return of_rows([], _COLUMNS)
    lines, times, clock = known
    upper, lower = (int(lines[0]), int(lines[-1])) if len(lines) else (None, 0)
    first = [s for s in _stamps(1, head[: None if upper is None else _end_of(head, upper)], of_line) if upper is None or s[0] < upper]
    final = [s for s in _closing(last, lower, of_line) if s[0] > lower]
    near = [s for line in _without_time(table) if (s := _above(last, line, of_line))]
    found = _one_clock([*first, *final, *near], times, clock)
    keep = {s[0]: s[1] for s in found if _in_order(s, lines, times)}
    above, below = ([s[0] for s in some if s[0] in keep] for some in (first, final))
    wanted: dict[int, str] = {s[0]: "above" for s in near if s[0] in keep}
    if above and _grows([keep[n] for n in above]) and (upper is None or times[0] - keep[above[0]] < ZONES_NS):
        wanted[above[0]] = "first"
    if below and _grows([keep[n] for n in below]):
        wanted[below[-1]] = "last"
    made = [{"kind": "stamp", "name": name, "line": n, "start_ns": keep[n], "clock": found[0][2]} for n, name in sorted(wanted.items())]
    return of_rows(made, _COLUMNS)


_COLUMNS = ("kind", "name", "line", "start_ns", "clock")


def _known(table: pa.Table) -> tuple[np.ndarray, np.ndarray, str | None] | None:
    """(lines, times, clock) of the rows with a time, in order; None where no process of the job speaks, or on several clocks."""
    kinds, names = (set(table.column(c).unique().cast(pa.string()).to_pylist()) for c in ("kind", "name"))
    if not (kinds - _SPEAK_NOT or names & _RAISED):
        return None
    timed = pc.and_(pc.invert(worded(table.column("kind"), pc.equal, "error")), pc.is_valid(table.column("start_ns")))
    found: tuple[np.ndarray, np.ndarray, str | None] = (np.zeros(0, np.int64), np.zeros(0, np.int64), None)
    for clock in ("log", "utc"):
        mine = pc.and_(timed, worded(table.column("clock"), pc.equal, clock))
        mine = pc.and_(mine, pc.is_valid(table.column("line")))
        if not pc.any(mine).as_py():
            continue
        if found[2] is not None:
            return None
        lines, times = (table.column(c).filter(mine).to_numpy() for c in ("line", "start_ns"))
        order = np.argsort(lines, kind="stable")
        found = lines[order], times[order], clock
    return found


def _without_time(table: pa.Table) -> list[int]:
    """Lines of the last errors that have none."""
    mine = pc.and_(worded(table.column("kind"), pc.equal, "error"), pc.is_null(table.column("start_ns")))
    return [int(n) for n in np.unique(table.column("line").filter(mine).drop_null().to_numpy())[-_MOST_ERRORS:]]


def _end_of(data: bytes, line: int) -> int:
    """Where a line of *data* ends, the first being line 1."""
    end = 0
    for _ in range(line):
        end = data.find(b"\n", end) + 1
        if not end:
            return len(data)
    return end


def _closing(chunk: Chunk, lower: int, of_line: Prefix) -> list[Stamp]:
    """The times of the last lines of a file, those below line *lower*."""
    skip = lower - chunk.first
    begin = max(len(chunk.data) - _TAIL, int(chunk.newlines[skip]) + 1 if 0 <= skip < len(chunk.newlines) else 0)
    number = chunk.first + int(np.searchsorted(chunk.newlines, begin))
    found = _stamps(number, chunk.data[begin:], of_line)
    return found if not begin or chunk.data[begin - 1 : begin] == b"\n" else [s for s in found if s[0] > number]


def _above(chunk: Chunk, line: int, of_line: Prefix) -> Stamp | None:
    """The next time above a line, if it is not far."""
    place = line - chunk.first
    if not 0 < place <= len(chunk.newlines):
        return None
    end = int(chunk.newlines[place - 1])
    lines = chunk.data[max(0, end - _ABOVE) : end].split(b"\n")
    whole = lines if end <= _ABOVE else lines[1:]
    return next((s for n, raw in enumerate(reversed(whole), 1) for s in _stamps(line - n, raw, of_line)), None)


def _stamps(number: int, data: bytes, of_line: Prefix) -> list[Stamp]:
    """The times of lines that begin with one. number: of the first of them."""
    return list(_each(number, data.split(b"\n"), of_line)) if _CLOCK.search(data) else []


def _each(number: int, lines: Iterable[bytes], of_line: Prefix) -> Iterator[Stamp]:
    pattern = re.compile(of_line.expression)
    for at, raw in enumerate(lines, number):
        text = raw[raw.rstrip(b"\r").rfind(b"\r") + 1 :][:400]
        if not _CLOCK.search(text):
            continue
        line = text.decode("utf-8", "replace")
        match = pattern.match(line)
        named = match.groupdict() if match else {}
        if utc := named.get("utc"):
            told = stamp(f"{utc}{named.get('offset') or 'Z'}")
        elif own := named.get("local_time") or named.get("yearless"):
            told = stamp(f"{own} ")
        else:
            told = stamp(line[match.end() :] if match else line)
        if told is not None:
            yield at, *told


def _one_clock(found: list[Stamp], times: np.ndarray, clock: str | None) -> list[Stamp]:
    """*found*, those without a year in the year of the others: nothing where some are in UTC and some are not, or where no year stands."""
    clocks = {s[2] for s in found if s[2] != YEARLESS} | ({clock} if clock else set())
    if len(clocks) != 1:
        return []
    near = int(times[0]) if len(times) else next(s[1] for s in found if s[2] != YEARLESS)
    mine = clocks.pop()
    if mine == "utc":
        return [s for s in found if s[2] == "utc"]
    return [(line, ns if of == mine else _in_year(ns, near), mine) for line, ns, of in found]


def _in_year(ns: int, near: int) -> int:
    """A time of the year 1970 in the year that puts it next to *near*."""
    begin = dt.datetime.fromtimestamp(ns // 10**9, dt.UTC)
    year = dt.datetime.fromtimestamp(near // 10**9, dt.UTC).year
    made = [begin.replace(year=y) for y in (year - 1, year, year + 1) if not (begin.month == 2 and begin.day == 29 and y % 4)]
    return min((int(m.timestamp()) * 10**9 + ns % 10**9 for m in made), key=lambda m: abs(m - near), default=ns)


def _in_order(found: Stamp, lines: np.ndarray, times: np.ndarray) -> bool:
    """Whether a time lies between those of the rows above and below it."""
    spot = int(np.searchsorted(lines, found[0], side="right"))
    after = spot == 0 or found[1] >= times[spot - 1] - _SLACK_NS
    return after and (spot == len(lines) or found[1] <= times[spot] + _SLACK_NS)


def _grows(times: list[int]) -> bool:
    return all(b >= a - _SLACK_NS for a, b in itertools.pairwise(times))
