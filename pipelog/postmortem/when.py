"""When the job began, failed and ended, as far as the times of its lines tell."""

from __future__ import annotations

import math

import pyarrow as pa
import pyarrow.compute as pc

from pipelog._text import iso
from pipelog.postmortem.deaths import Death
from pipelog.postmortem.ledger import last_word, untimed
from pipelog.tables import Tables

_FIRST_NS = 366 * 86400 * 10**9
"""Times before 1971 are those of lines whose year is not printed, and which no other line tells."""
_WORK = ("step", "progress", "iteration")


def times(tables: Tables) -> tuple[str | None, str | None, float | None]:
    """First and last time of the logs of the chosen attempt, as ISO 8601, and the seconds between; with Z where the clock is UTC: the one that the steps are printed on.

    Null where steps were printed above the first line, or below the last, that bears a time; the seconds also where one time is all that there is.
    """
    rows = tables["here"]
    kind, clock = rows.column("kind").cast(pa.string()), rows.column("clock").cast(pa.string())
    timed = pc.is_valid(rows.column("start_ns"))
    works = pc.is_in(kind, pa.array(_WORK))
    spoken = {name: pc.fill_null(pc.and_(pc.equal(clock, name), timed), False) for name in ("utc", "log")}
    stepped = {name: pc.any(pc.and_(mask, works)).as_py() for name, mask in spoken.items()}
    order = ("log", "utc") if stepped["log"] and not stepped["utc"] else ("utc", "log")
    for name in order:
        found = rows.column("start_ns").filter(spoken[name])
        if len(found):
            suffix = "Z" if name == "utc" else ""
            low, high = int(pc.min(found).as_py()), int(pc.max(found).as_py())
            above, below = untimed(rows, name)
            if name == "log" and not below:
                high = int(last_word(tables["deaths"][tables["chosen"]], high))
            started, ended = (None if above else iso(low) + suffix), (None if below else iso(high) + suffix)
            return started, ended, round((high - low) / 1e9, 3) if started and ended and high > low else None
    return None, None, None


def failed(death: Death) -> dict[str, str | None]:
    """When an attempt failed: `at`, null where the line that shows it has no time; of one without a year, which no line tells, `at_without_year`; `hung_since`, and `around`."""
    if death.at_ns is not None and death.at_ns < _FIRST_NS:
        return {"at": None, "at_without_year": iso(death.at_ns)[5:19].replace("T", " ")}
    if death.at_ns is not None and death.hang_ns is not None and death.hang_ns < death.at_ns:
        return {"at": iso(death.at_ns), "hung_since": iso(death.hang_ns)}
    return {"at": iso(death.at_ns) if death.at_ns is not None else None, **around(death)}


def around(death: Death) -> dict[str, str]:
    """The times of the lines above and below the first that shows it, in its file, where it has none of its own: `not_before` and `not_after`."""
    if death.at_ns is not None or not death.evidence or not len(death.roles) or "since_ns" not in death.roles:
        return {}
    shown = death.roles[(death.roles["file"] == death.evidence[0].file) & (death.roles["proof"] == death.evidence[0].line)]
    if not len(shown):
        return {}
    since, until = (float(shown[c].iloc[0]) for c in ("since_ns", "until_ns"))
    if since > until:  # the clock was put back, or the lines of several writers are mixed
        return {}
    return {name: iso(int(ns)) for name, ns in (("not_before", since), ("not_after", until)) if math.isfinite(ns) and ns >= _FIRST_NS}
