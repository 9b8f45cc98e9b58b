"""The host of what a node's own log says, where the log is one of several, one a node (or one a process), and its lines name no host.

Three things tell that a log is a node's own: DeepSpeed's launcher states in it which of the listed nodes it is (`node_rank=2`); its name holds the name
of a host (`launch_dgx-c.log`, `sm-h1/train.log`); or each process has a log of its own, whose names part them into nodes (`out.x3100c0s1b0n0.45568`).
"""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import PurePosixPath

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from pipelog._text import NAMELESS, short_host
from pipelog.reading.node_logs import filled, pods

_SPOKEN = ("error", "end", "process", "stack", "place", "device")
_OF_ALL = frozenset({"topology", "rank-line", "megatron-parameters", "launcher"})
"""Places that one process prints of many, or without a word of where it is itself."""
_SUFFIX = re.compile(r"(?i)(?:\.(?:txt|log|out|err|csv|jsonl?|gz|zst))+$")
_MOST_FILES = 1 << 12


def with_own_hosts(table: pa.Table) -> pa.Table:
    """The event table with the host filled in for errors, ends, processes, stacks, places and devices of nodes' own logs."""
    files = [f for f in table.column("file").unique().to_pylist() if f]
    if not 1 < len(files) <= _MOST_FILES:
        return table
    kinds = table.column("kind").cast(pa.string())
    wanted = pc.or_(pc.is_in(kinds, pa.array(_SPOKEN)), pc.equal(table.column("name").cast(pa.string()), "launch.node_rank"))
    if not pc.any(wanted).as_py():
        return table
    rows = _distinct(table.filter(wanted), ("kind", "name", "file", "host", "rank", "label"))
    numbers = _distinct(table.filter(pc.equal(table.column("name").cast(pa.string()), "launch.node_rank")), ("file", "value"))
    found = _of_processes(rows) | _by_pod(table, files) | _by_name(rows, files) | _by_number(rows, numbers)
    found = {file: host for file, host in found.items() if host not in NAMELESS}
    return filled(table, "host", found, pc.and_(pc.is_in(kinds, pa.array(_SPOKEN)), _not_of_all(table)))


def _distinct(table: pa.Table, columns: tuple[str, ...]) -> pd.DataFrame:
    """The different rows: of a folder full of errors few."""
    found = table.select(columns).group_by(list(columns), use_threads=False).aggregate([]).to_pandas()
    words = [c for c in columns if c not in ("rank", "value")]
    return found.assign(**{c: found[c].astype(object).where(found[c].notna(), None) for c in words})


def _not_of_all(table: pa.Table) -> pa.ChunkedArray:
    return pc.invert(pc.fill_null(pc.is_in(table.column("name").cast(pa.string()), pa.array(sorted(_OF_ALL))), False))


def _by_number(rows: pd.DataFrame, numbers: pd.DataFrame) -> dict[str, str]:
    """File → host, as DeepSpeed's launcher counts the nodes that it lists in the same file."""
    numbers = numbers[~numbers["file"].duplicated(keep=False)]
    if len(numbers) < 2:
        return {}
    listed = rows[(rows["kind"] == "place") & (rows["name"] == "launcher") & rows["host"].notna()]
    found = {}
    for file, number in zip(numbers["file"], numbers["value"], strict=True):
        hosts = listed[listed["file"] == file].sort_values("rank", kind="stable")["host"].drop_duplicates().to_list()
        if 0 <= int(number) < len(hosts):
            found[file] = hosts[int(number)]
    return found if len(set(found.values())) == len(found) else {}


def _by_name(rows: pd.DataFrame, files: list[str]) -> dict[str, str]:
    """File → host, where names of at least two logs hold one known host each, not all the same, and nothing in them is of another host.

    A table of devices is always that of one host.
    """
    places = rows[(rows["kind"] == "place") & rows["host"].notna()]
    known = {short_host(h): h for h in rows["host"].dropna() if h not in NAMELESS}
    if len(known) < 2:
        return {}
    word = re.compile(r"(?<![A-Za-z0-9])(" + "|".join(re.escape(h) for h in sorted(known, key=len, reverse=True)) + r")(?![A-Za-z0-9])")
    found = {}
    for file in files:
        named = set(word.findall(_SUFFIX.sub("", file).lower()))
        if len(named) == 1:
            found[file] = known[named.pop()]
    of_rank = dict(zip(places["rank"], places["host"], strict=True))
    spoken = rows[(rows["kind"] != "place") | (rows["name"] == "introduced")]
    for file, mine in spoken[spoken["file"].isin(found)].groupby("file"):
        others = set(mine["host"].dropna()) | {of_rank[r] for r in mine["rank"].dropna() if r in of_rank and isinstance(of_rank[r], str)}
        if {short_host(h) for h in others} - {short_host(found[str(file)])}:
            del found[str(file)]
    # one of several logs, or a table of one host's devices
    return found if len(set(found.values())) > 1 else {file: found[file] for file in found.keys() & set(rows.loc[rows["kind"] == "device", "file"])}


def _by_pod(table: pa.Table, files: list[str]) -> dict[str, str]:
    """File → node of the pod whose name is the end of the log's name, where several pods are described."""
    nodes = {pod.name: pod.node for pod in pods(table) if pod.node is not None}
    if len(set(nodes.values())) < 2:
        return {}
    word = re.compile(r"(?<![A-Za-z0-9.-])(?:\w+-)??(" + "|".join(re.escape(name) for name in sorted(nodes, key=len, reverse=True)) + ")")
    stems = {file: _SUFFIX.sub("", PurePosixPath(file).name) for file in files}
    return {file: nodes[match[1]] for file, stem in stems.items() if (match := word.fullmatch(stem))}


def _of_processes(rows: pd.DataFrame) -> dict[str, str]:
    """File → the word of its name that says the node, where each process has a file and says in it its rank and its local rank.

    A word parts the files into nodes where the files that share it have the local ranks 0, 1, … once each, of ranks that follow one another.
    """
    said = rows[(rows["name"] == "discovery") & rows["rank"].notna() & rows["label"].notna()][["file", "rank", "label"]].drop_duplicates()
    if len(said) < 2 or said["file"].duplicated().any() or said["rank"].duplicated().any():
        return {}
    words = {file: re.split(r"[._/]", PurePosixPath(file).name) for file in said["file"]}
    if len({len(w) for w in words.values()}) != 1:
        return {}
    said = said.assign(local=said["label"].str.removeprefix("local ").astype(int), rank=said["rank"].astype(int))
    for place in range(len(next(iter(words.values())))):
        nodes: dict[str, list[tuple[int, int]]] = defaultdict(list)
        for file, rank, local in zip(said["file"], said["rank"], said["local"], strict=True):
            nodes[words[file][place]].append((rank, local))
        pairs = [np.array(sorted(found)) for found in nodes.values()]
        if len(nodes) > 1 and all(len(p) > 1 and (p[:, 1] == np.arange(len(p))).all() and (np.diff(p[:, 0]) == 1).all() for p in pairs):
            return {file: words[file][place] for file in said["file"]}
    return {}
