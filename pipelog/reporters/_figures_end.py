"""Two pictures of the end of a run that need no script: the ranks from their last steps to their last lines, and where the time of the starts went."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pipelog._text import count, listed
from pipelog.report import JSON, Report
from pipelog.reporters._failure import GAP, PARTS, Start, ratio, starts
from pipelog.reporters._figures import AMBER, AMBER_LIGHT, DARK, INK, MIDDLE, PALE, RED, Key
from pipelog.reporters._numbers import duration, moment

_LEAST_S = 0.01
"""A shorter end is no picture: all lines of it bear, or stand below, the same time."""


@dataclass(frozen=True, slots=True)
class Mark:
    """Something at a place of a lane: how it looks, what it says, and where it is, in per cent of the width."""

    shape: str
    says: str
    at: float


@dataclass(frozen=True, slots=True)
class Bar:
    """A piece of a lane: how it looks, what it says, and where it is, in per cent of the width."""

    shape: str
    says: str
    begin: float
    width: float
    color: str = DARK


@dataclass(frozen=True, slots=True)
class Lane:
    """One row of a picture: its name, what stands under the name, what stands at its end, its pieces, and whether it stands out."""

    name: str
    under: str
    end: str
    bars: tuple[Bar, ...]
    marks: tuple[Mark, ...] = ()
    stands_out: bool = False


@dataclass(frozen=True, slots=True)
class Lanes:
    """A picture: sentences, legend, rows, the times along its axis (per cent, words), and its numbers as a table."""

    says: tuple[str, ...]
    legend: tuple[Key, ...]
    rows: tuple[Lane, ...]
    ticks: tuple[tuple[float, str], ...]
    head: tuple[str, ...]
    table: tuple[tuple[str, ...], ...]


# ---- the ranks in the end


def ends(report: Report) -> Lanes | None:
    """The ranks in the end of the last start; no rows where all lines bear the same time, None where no rank is known."""
    given = report.charts.get("lanes")
    if not given or not report.failure:
        return None
    sure = float(given["length_s"] or 0)
    length = max(sure, float(given.get("drawn_s") or 0)) if sure >= _LEAST_S else sure
    began, hung = set(report.failure["ranks"]), report.run["status"] == "hung"
    rows = tuple(_lane(r, length, began, hung=hung) for r in given["rows"]) if length >= _LEAST_S else ()
    return Lanes(
        tuple(_end_says(given, (sure, length), began, hung=hung)),
        tuple(_end_legend(given, hung=hung)) if rows else (),
        rows,
        tuple(_ticks(length)) if rows else (),
        (
            "Rank",
            "Stage",
            "Host",
            "Last step",
            "Time of its last step",
            "Its last line",
            "Time of its last line",
            "Its first error",
            "Time of its first error",
        ),
        tuple(_end_row(r) for r in given["rows"]),
    )


def _end_says(given: JSON, lengths: tuple[float, float], began: set[int], *, hung: bool) -> Iterator[str]:
    stepped = any(r["step_s"] is not None for r in given["rows"])
    first = "the first of their last steps" if stepped else "the first line of a rank"
    sure, length = lengths
    if length < _LEAST_S:
        yield "The times in these files do not tell which rank fell silent first."
        return
    yield f"From {first} at {moment(given['from'])} to the last line, {duration(sure)}{f' to {duration(length)}' if length > sure else ''} later."
    if began:
        one = len(began) == 1
        yield f"{'Rank' if one else 'Ranks'} {listed(sorted(began))} {('was waited for' if one else 'were waited for') if hung else 'began it'}."
    more = given.get("more")
    if more:
        times = [t for t in (more["first_s"], more["last_s"]) if t is not None]
        low, high = (_after(t) for t in (min(times), max(times))) if times else ("", "")
        when = f"; their last lines stand {f'at {low}' if low == high else f'between {low} and {high}'}" if times else ""
        yield f"{count(more['ranks'], 'more rank')} fell silent later and {'is' if more['ranks'] == 1 else 'are'} not drawn{when}."


def _after(seconds: float) -> str:
    return f"{duration(seconds)}" if seconds >= 0 else f"{duration(-seconds)} before"


def _end_legend(given: JSON, *, hung: bool) -> Iterator[Key]:
    rows = given["rows"]
    yield Key(DARK, "until its last line")
    if any(r["last_until_s"] is not None for r in rows):
        yield Key(MIDDLE, "a line without a time, written before this ended", shape="hatched")
    if any(r["step_s"] is not None for r in rows):
        yield Key(INK, "its last step", shape="tick")
    seen = {r["error_role"] for r in rows if r["error_s"] is not None}
    yield from (Key(color, _WORDS[role, hung], shape=shape) for role, (shape, color) in _MARKS.items() if role in seen)
    if any(r["error_until_s"] is not None for r in rows):
        yield Key(AMBER, "when it may have been, where its line bears no time", shape="thin")


_MARKS = {"initiating": ("cross", RED), "cascade": ("dot", AMBER), "teardown": ("square", MIDDLE)}
_WORDS = {
    ("initiating", False): "the error that began it",
    ("initiating", True): "a timeout that shows the hang",
    ("cascade", False): "an error that followed",
    ("cascade", True): "an error that followed",
    ("teardown", False): "taken down",
    ("teardown", True): "taken down",
}


def _lane(row: JSON, length: float, began: set[int], *, hung: bool) -> Lane:
    where = [f"stage {row['stage']}"] if row["stage"] is not None else []
    where += [row["host"]] if row["host"] else []
    bars, marks = [], []
    last, until = row["last_s"], row["last_until_s"]
    if last is not None and last > 0:
        bars.append(Bar("solid", f"wrote lines until {duration(last)}", 0.0, _share(last, length)))
    if last is not None and until is not None and until > max(0.0, last):
        begin = _share(last, length)
        bars.append(Bar("hatched", "its last line bears no time; it was written before this ended", begin, _share(until, length) - begin, MIDDLE))
    if row["step_s"] is not None:
        marks.append(Mark("tick", f"step {row['step']:,}, at {_after(row['step_s'])}", _share(row["step_s"], length)))
    if row["error_s"] is not None:
        shape, color = _MARKS[row["error_role"]]
        since, by = row["error_s"], row["error_until_s"]
        if by is not None:
            begin = _share(since, length)
            bars.append(Bar("until", "when it may have been: its line bears no time", begin, round(_share(by, length) - begin, 2), color))
        says = f"{_WORDS[row['error_role'], hung]}, at {_between(since, by)}"
        marks.append(Mark(shape, says, _share(since if by is None else by, length)))
    silent = f"last line {_between(last, until)}" if last is not None else "no line of its own"
    return Lane(f"rank {row['rank']}", " · ".join(where), silent, tuple(bars), tuple(marks), row["rank"] in began)


def _share(seconds: float, length: float) -> float:
    return round(min(100.0, max(0.0, 100 * seconds / length)), 2)


def _ticks(length: float) -> Iterator[tuple[float, str]]:
    """Quarters of the length: whole units are for axes that one reads values off."""
    yield 0.0, "0 s"
    yield from ((25.0 * n, duration(length * n / 4)) for n in (1, 2, 3, 4))


def _end_row(row: JSON) -> tuple[str, ...]:
    place = f"{row['file']}:{row['line']}" if row["file"] and row["line"] is not None else ""
    error = f"{row['error_file']}:{row['error_line']}" if row["error_file"] and row["error_line"] is not None else ""
    return (
        str(row["rank"]),
        "" if row["stage"] is None else str(row["stage"]),
        row["host"] or "",
        "" if row["step"] is None else f"{row['step']:,}",
        _between(row["step_s"], None),
        place,
        _between(row["last_s"], row["last_until_s"]),
        error,
        _between(row["error_s"], row["error_until_s"]),
    )


def _between(since: float | None, until: float | None) -> str:
    """12.4 s, or 12.4 s to 14 s where only the lines around it bear a time."""
    if since is None:
        return ""
    return _after(since) if until is None else f"{_after(since)} to {_after(until)}"


# ---- the time of the starts

_COLORS = {
    "productive_s": (DARK, "solid"),
    "lost_s": (AMBER, "hatched"),
    "hang_s": (RED, "solid"),
    "after_s": (RED, "hatched"),
    "other_s": (PALE, "solid"),
}
_UNKNOWN = (AMBER_LIGHT, "dotted")
_MOST_STARTS = 24


def ledger(report: Report) -> Lanes | None:
    """Where the time of the starts went; None where no clock tells it."""
    every = starts(report)
    if not every or not any(s.wall for s in every):
        return None
    longest = max(s.wall or 0.0 for s in every)
    drawn = every if len(every) > 1 or every[0].parts else []  # a bar of nothing but unknown time says no more than the sentence
    if not drawn and report.run["last_step"] is None:
        return None
    shown = drawn[-_MOST_STARTS:]
    says = [ratio(report)] + ([f"Drawn are the last {len(shown)} of {len(every)} starts."] if len(shown) < len(drawn) else [])
    return Lanes(
        tuple(s for s in says if s),
        tuple(_time_legend(shown)),
        tuple(_start(s, longest) for s in shown),
        (),
        (
            "Attempt",
            "Ended",
            "Category",
            "Steps",
            "Wall clock",
            *(words.capitalize() for _, words in _parts(report)),
            f"{GAP[1].capitalize()}, before it",
            *(("Changed since then",) if any(s.changed for s in drawn) else ()),
        ),
        tuple((*_time_row(report, s), *((", ".join(s.changed),) if any(s.changed for s in drawn) else ())) for s in drawn),
    )


def _start(start: Start, longest: float) -> Lane:
    bars, at = [], 0.0
    for part in start.parts:
        width = _share(part.seconds, longest)
        color, shape = _COLORS[part.key]
        bars.append(Bar(shape, f"{part.words}: {duration(part.seconds)}", round(at, 2), round(min(width, 100 - at), 2), color))
        at = min(100.0, at + width)
    rest = _share(start.wall or 0.0, longest) - at
    if not start.whole and rest > 0.5:
        bars.append(Bar(_UNKNOWN[1], "not known what it went into", round(at, 2), round(rest, 2), _UNKNOWN[0]))
    steps = f"steps {start.steps}" if start.steps else "no step"
    return Lane(f"attempt {start.number}: {start.status}", steps, "" if start.wall is None else duration(start.wall), tuple(bars))


def _time_legend(every: list[Start]) -> Iterator[Key]:
    known = {p.key for s in every for p in s.parts}
    for key, words, means in PARTS:
        if key in known:
            color, shape = _COLORS[key]
            yield Key(color, f"{words} ({means})", shape=shape)
    if any(not s.whole and s.wall for s in every):
        yield Key(_UNKNOWN[0], "not known", shape=_UNKNOWN[1])


def _parts(report: Report) -> list[tuple[str, str]]:
    """Key and words of the parts that have a column: that after the last step where a start has one."""
    rows = report.run["ledger"]["attempts"]
    return [(key, words) for key, words, _ in PARTS if key != "after_s" or any(r.get(key) for r in rows)]


def _time_row(report: Report, start: Start) -> tuple[str, ...]:
    given = next(r for r in report.run["ledger"]["attempts"] if r["attempt"] == start.number)
    times = [given.get("wall_s"), *(given.get(key) for key, _ in _parts(report)), given.get("gap_s")]
    return (
        str(start.number),
        start.status,
        start.category,
        start.steps,
        *("" if t is None else duration(t) if t >= 0 else f"−{duration(-t)}" for t in times),
    )
