"""The ranks of processes of which torchrun's own folders say the number within the node only: `titan-n1/none_8xq2/attempt_0/6/stderr.log`.

A node's processes have ranks that follow one another, and hosts have equally many: one process that names its rank (`[rank11]: …` in the folder of local
rank 3) tells those of all that have a folder beside its own.
"""

from __future__ import annotations

import re
from collections import defaultdict

import pyarrow as pa
import pyarrow.compute as pc

from pipelog.reading.node_logs import filled

_FOLDER = re.compile(r"(?:^|(?P<node>.*)/)(?P<run>[^/]+)/attempt_\d+/(?P<local>\d{1,4})/[^/]+$")
_NAME = re.compile(r"(?=.*[A-Za-z])[A-Za-z0-9][\w.-]*$")
_MOST_FILES = 1 << 14
_SPOKEN = ("error", "end", "process", "stack", "place")


def with_ranks_of_folders(table: pa.Table) -> pa.Table:
    """The event table with the rank of rows in such folders, and the host of what they tell where a folder above is named for it."""
    files = [f for f in table.column("file").unique().to_pylist() if f]
    found = {file: m for file in files if (m := _FOLDER.match(file))} if len(files) <= _MOST_FILES else {}
    first = _first_ranks(table, found) if found else {}
    if not first:
        return table
    ranks = {file: first[run] + int(m["local"]) for file, m in found.items() if (run := _run(m)) in first}
    table = filled(table, "rank", ranks, pc.not_equal(table.column("kind").cast(pa.string()), "fact"))
    hosts = _hosts({m["node"] or "" for m in found.values()}, first)
    named = {file: hosts[node] for file, m in found.items() if (node := m["node"] or "") in hosts}
    return filled(table, "host", named, pc.is_in(table.column("kind").cast(pa.string()), pa.array(_SPOKEN)))


def _run(m: re.Match[str]) -> tuple[str, str]:
    """The folder that an agent has made for its processes."""
    return m["node"] or "", m["run"]


def _first_ranks(table: pa.Table, found: dict[str, re.Match[str]]) -> dict[tuple[str, str], int]:
    """An agent's folder → rank of its first process, where all of its processes that name their ranks agree; empty where one agent's do not."""
    rows = table.filter(
        pc.and_(pc.is_in(table.column("file").cast(pa.string()), pa.array(list(found), pa.string())), pc.is_valid(table.column("rank")))
    )
    said: dict[tuple[str, str], set[int]] = defaultdict(set)
    for row in rows.select(["file", "rank"]).group_by(["file", "rank"]).aggregate([]).to_pylist():
        said[_run(found[row["file"]])].add(row["rank"] - int(found[row["file"]]["local"]))
    many = max(int(m["local"]) for m in found.values()) + 1
    good = all(len(begins) == 1 and min(begins) >= 0 and min(begins) % many == 0 for begins in said.values())
    return {run: min(begins) for run, begins in said.items()} if good else {}


def _hosts(nodes: set[str], first: dict[tuple[str, str], int]) -> dict[str, str]:
    """Folder of a node → the one part of its path in which the nodes differ, where they differ in their first rank as well: runs of one node do not."""
    parts = {node: node.split("/") for node in nodes}
    begins = {node: {begin for (other, _), begin in first.items() if other == node} for node in nodes}
    known = [min(b) for b in begins.values() if len(b) == 1]
    if (
        len(nodes) < 2
        or len({len(p) for p in parts.values()}) != 1
        or len(set(known)) != len(known)
        or not any(known)
        or any(len(b) > 1 for b in begins.values())
    ):
        return {}
    differ = [place for place, column in enumerate(zip(*parts.values(), strict=True)) if len(set(column)) > 1]
    if len(differ) != 1 or not all(_NAME.match(p[differ[0]]) for p in parts.values()):
        return {}
    return {node: p[differ[0]] for node, p in parts.items()}
