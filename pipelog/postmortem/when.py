"""When the job began and ended, as far as the times of its lines tell."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from pipelog._text import iso
from pipelog.postmortem.ledger import last_word, untimed
from pipelog.tables import Tables

_WORK = ("step", "progress", "iteration")


def times(tables: Tables) -> tuple[str | None, str | None, float | None]:
    """First and last time of the logs of the chosen attempt, as ISO 8601, and the seconds between; with Z where the clock is UTC: the one that the steps are printed on.

    Null where steps were printed above the first line, or below the last, that bears a time.
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
            return started, ended, round((high - low) / 1e9, 3) if started and ended else None
    return None, None, None
