"""Who had ended before a launcher took its other processes down, where the log stops before it says how."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd
import pyarrow as pa

from pipelog.postmortem.identities import Identities
from pipelog.postmortem.sources import Line, said_of_processes
from pipelog.tables import frame

_FEWEST = 3
"""Processes taken down of which the one that is missing can be told."""


@dataclass(frozen=True, slots=True)
class LeftOver:
    """The rank, the host as far as it is named, the lines of the launcher that take down all others (those of
    the next numbers of processes first), and the one that ties the process left over to its rank.
    """

    rank: int
    host: str | None
    lines: tuple[Line, ...]
    map: Line | None = None


def left_over(placed: pa.Table, who: Identities, work: pd.DataFrame) -> LeftOver | None:
    """The only process of a host that a launcher does not take down with the others, behind the last step; null where the processes are not all known.

    A launcher that is ended itself takes down all of them: one that is not among them had gone before.
    """
    rows = frame(placed, ("process",), ("name", "host", "value", "file", "line"))
    killed = rows[(rows["name"] == "killed") & rows["value"].notna()]
    last = work.dropna(subset=["step"]).groupby("file")["line"].max()
    killed = killed[killed["line"] > killed["file"].map(last).fillna(-1)]
    by_host = who.processes.by_host
    groups = dict(tuple(killed.groupby("host")))
    found = []
    for host, mine in by_host.items():
        taken = killed[killed["host"].isna() | (killed["host"] == host)] if len(by_host) == 1 else groups.get(host, killed.iloc[:0])
        down = {int(pid) for pid in taken["value"]} & set(mine)
        missing = set(mine) - down
        if len(missing) == 1 and len(down) >= _FEWEST:
            pid = missing.pop()
            near = taken.loc[(taken["value"] - pid).abs().sort_values(kind="stable").index]
            lines = tuple((str(f), int(n)) for f, n in zip(near["file"], near["line"], strict=True))
            found.append(LeftOver(mine[pid], host, lines, said_of_processes(placed).of_process(pid, mine[pid])))
    return found[0] if len(found) == 1 else None
