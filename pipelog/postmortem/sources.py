"""The lines that say who is who: which rank a process is, where a rank runs. What a verdict takes from them, its reader can check."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd
import pyarrow as pa

from pipelog.tables import frame

Line = tuple[str, int]
"""(file, line)"""
_ORDER = ("spawned", "worker", "nccl")
"""Rows that tie a process to a rank, the one that is easiest to read first."""


@dataclass(frozen=True, slots=True)
class Maps:
    """processes: name, rank, value (pid), file, line of the lines that tie a process to a rank; locals: rank, label, file, line of those that place a local rank."""

    processes: pd.DataFrame
    locals: pd.DataFrame

    def of_process(self, pid: int, rank: int) -> Line | None:
        """The line that ties a process to a rank: a launcher's, the rank's own, NCCL's."""
        rows = self.processes
        return _first(rows[(rows["value"] == pid) & (rows["rank"].isna() | (rows["rank"] == rank))])

    def of_local(self, label: str, rank: int) -> Line | None:
        """The line that ties a local rank (`local 3`) to a rank of the job."""
        return _first(self.locals[(self.locals["label"] == label) & (self.locals["rank"] == rank)])


def said_of_processes(placed: pa.Table) -> Maps:
    """The lines of launchers, of ranks and of NCCL."""
    rows = frame(placed, ("place", "process"), ("kind", "name", "rank", "label", "value", "file", "line")).dropna(subset=["file", "line"])
    order = rows["name"].map({name: n for n, name in enumerate(_ORDER)})
    named = rows[(rows["kind"] == "process") & order.notna() & rows["value"].notna()]
    return Maps(named.loc[order[named.index].sort_values(kind="stable").index], rows[rows["label"].notna() & rows["rank"].notna()])


def _first(rows: pd.DataFrame) -> Line | None:
    return (str(rows["file"].iloc[0]), int(rows["line"].iloc[0])) if len(rows) else None
