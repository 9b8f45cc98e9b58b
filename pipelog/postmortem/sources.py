"""The lines that say who is who: which rank a process is, where a rank runs. What a verdict takes from them, its reader can check."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd
import pyarrow as pa

from pipelog._text import short_host
from pipelog.events import Input
from pipelog.findings import Evidence
from pipelog.postmortem.identities import XID_OF, bus_of
from pipelog.tables import frame
from pipelog.tables.topology import Topology

_MOST = 2
"""Such lines that are shown."""
Line = tuple[str, int]
"""(file, line)"""
_PLACES = frozenset({"launcher", "discovery", "introduced", "agent", "worker", "nccl"})
"""Rows that tie a rank to a host."""
_OF_HOSTS = frozenset(
    {"host", "pod", "stern", "syslog", "compose", "stream", "mpi", "ray", "determined", "sagemaker", "skypilot", "vertex", "gcloud", "ranked"}
)
"""Prefixes that name the host, or the pod, on every line."""
_ORDER = ("spawned", "worker", "nccl")
"""Rows that tie a process to a rank, the one that is easiest to read first."""


@dataclass(frozen=True, slots=True)
class Maps:
    """processes: name, rank, value (pid), text (bus address), file, line of the lines that tie a process to a rank; locals: rank, label, file, line of those that
    place a local rank.
    """

    processes: pd.DataFrame
    locals: pd.DataFrame

    def of(self, by: str, rank: int, text: str = "") -> Line | None:
        """The line that ties what a rank follows from (see the table of errors) to it; a bus address also by the process that *text* names beside it."""
        what, _, key = by.partition(" ")
        if what == "process":
            return self.of_process(int(key), rank)
        if what == "bus":
            named = XID_OF.search(text)
            return self.of_bus(key, rank) or (self.of_process(int(named[1]), rank) if named else None)
        return self.of_local(by, rank) if what == "local" and key != str(rank) else None  # of the first host the numbers are the same

    def of_process(self, pid: int, rank: int) -> Line | None:
        """The line that ties a process to a rank: a launcher's, the rank's own, NCCL's."""
        rows = self.processes
        return _first(rows[(rows["value"] == pid) & (rows["rank"].isna() | (rows["rank"] == rank))])

    def of_bus(self, address: str, rank: int) -> Line | None:
        """The line in which NCCL names the device of a rank."""
        rows = self.processes[(self.processes["rank"] == rank) & self.processes["text"].notna()]
        return _first(rows[rows["text"].map(bus_of) == bus_of(address)])

    def of_local(self, label: str, rank: int) -> Line | None:
        """The line that ties a local rank (`local 3`) to a rank of the job."""
        return _plainest(self.locals[(self.locals["label"] == label) & (self.locals["rank"] == rank)])


def told_by(
    evidence: tuple[Evidence, ...],
    ranks: tuple[int, ...],
    hosts: tuple[str, ...],
    roles: pd.DataFrame,
    inputs: list[Input],
    here: pa.Table,
    placed: pa.Table,
    topology: Topology,
) -> tuple[Evidence, ...]:
    """The lines from which it follows whose the lines of *evidence* are: those that tie a process, a device or a local rank to its rank, and a rank to its host."""
    shown = [(e.file, e.line) for e in evidence if e.line is not None]
    rows = roles[pd.Series(list(zip(roles["file"], roles["proof"], strict=True)), roles.index).isin(shown) & roles["rank"].isin(ranks)]
    own = rows.loc[rows["by"] == "", "rank"]
    rows = rows[(rows["by"] != "") & ~(rows["by"].str.startswith("local") & rows["rank"].isin(own))]  # a launcher repeats what the rank says itself
    lines: list[Line | None] = []
    if len(rows):
        maps = said_of_processes(placed)
        lines = [maps.of(by, int(rank), text) for by, rank, text in zip(rows["by"], rows["rank"], rows["text"], strict=True)]
    if ranks and len(hosts) == 1 and len(set(topology.ranks["host"].dropna())) > 1 and not _named(evidence, hosts[0], roles, inputs):
        lines.append(_of_host(here, hosts[0], ranks))
    return tuple(Evidence(*line) for line in dict.fromkeys(lines) if line is not None and line not in shown)[:_MOST]


def _named(evidence: tuple[Evidence, ...], host: str, roles: pd.DataFrame, inputs: list[Input]) -> bool:
    """Whether a line of *evidence* names the host itself, by its prefix, its words or its file."""
    files, short = {e.file for e in evidence}, short_host(host)
    texts = roles.loc[roles["file"].isin(files) & roles["proof"].isin([e.line for e in evidence]), "text"]
    prefixes = {name for i in inputs if i.path in files for name in i.notes.get("prefixes", ())}
    return bool(prefixes & _OF_HOSTS) or any(short in word for word in (*files, *texts))


def _of_host(here: pa.Table, host: str, ranks: tuple[int, ...]) -> Line | None:
    """The line that says where the first of these ranks runs."""
    rows = frame(here, ("place", "process"), ("name", "rank", "host", "file", "line")).dropna(subset=["host", "file", "line"])
    rows = rows[rows["name"].isin(_PLACES) & rows["rank"].isin(ranks)]
    return _plainest(rows[rows["host"].map(short_host) == short_host(host)])


def said_of_processes(placed: pa.Table) -> Maps:
    """The lines of launchers, of ranks and of NCCL."""
    rows = frame(placed, ("place", "process"), ("kind", "name", "rank", "label", "value", "text", "file", "line")).dropna(subset=["file", "line"])
    order = rows["name"].map({name: n for n, name in enumerate(_ORDER)})
    named = rows[(rows["kind"] == "process") & order.notna() & rows["value"].notna()]
    return Maps(named.loc[order[named.index].sort_values(kind="stable").index], rows[rows["label"].notna() & rows["rank"].notna()])


def _first(rows: pd.DataFrame) -> Line | None:
    return (str(rows["file"].iloc[0]), int(rows["line"].iloc[0])) if len(rows) else None


def _plainest(rows: pd.DataFrame) -> Line | None:
    """A rank's own word before a launcher's, whose last one is the plainest: its command has the hosts encoded."""
    own = rows[rows["name"] != "launcher"]
    return _first(own if len(own) else rows.iloc[::-1])
