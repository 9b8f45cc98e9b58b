"""The hosts of ranks that name none: the only one there is, by the local ranks of those around them, by what clusters call their nodes, by equal blocks."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd
import pyarrow as pa

from pipelog._text import NAMELESS, short_host
from pipelog.tables import frame

_NUMBERED = (
    (re.compile(r"head"), re.compile(r"worker(\d{1,5})"), 0),  # SkyPilot
    (re.compile(r"workerpool0-0"), re.compile(r"workerpool1-(\d{1,5})"), 1),  # Vertex AI
    (re.compile(r"[a-z0-9][a-z0-9.-]*-master-0"), re.compile(r"[a-z0-9][a-z0-9.-]*-worker-(\d{1,5})"), 1),  # Kubeflow's PyTorchJob
    (None, re.compile(r"[a-z0-9][a-z0-9.-]*-worker-(\d{1,5})"), 0),  # the same without a master, DLRover, MPIJob
)
"""The first node's name, that of the others, and what is added to the number in it."""


def with_nodes(ranks: pd.DataFrame, here: pa.Table) -> pd.DataFrame:
    """The ranks with the hosts filled in that follow from those that are known; columns as they are."""
    for fill in (_on_one_host, _by_local_ranks, _by_numbers, _block_by_block):
        if len(ranks) and ranks["host"].isna().any():
            ranks = fill(ranks, here)
    return ranks


def _on_one_host(ranks: pd.DataFrame, here: pa.Table) -> pd.DataFrame:
    """All ranks on the only host that is named, where a rank of the upper half has the same number on its host: hosts have equally many ranks."""
    hosts = set(ranks["host"].dropna())
    if len(hosts) != 1 or ranks["host"].notna().all():
        return ranks
    rows = frame(here, ("end", "place", "process"), ("rank", "host", "label")).dropna()
    local = rows.loc[rows["host"].isin(hosts) & rows["label"].str.fullmatch(r"local \d{1,6}"), ["rank", "label"]].drop_duplicates()
    number = local["label"].str.removeprefix("local ").astype("int64")
    if not len(local) or (number != local["rank"]).any() or 2 * int(number.max()) < len(ranks):
        return ranks
    return ranks.assign(host=ranks["host"].fillna(hosts.pop()))


def _block_by_block(ranks: pd.DataFrame, here: pa.Table) -> pd.DataFrame:
    """Hosts of ranks that say nothing of it: launchers fill equal hosts one after the other, so where the ranks of each host that is named lie in one
    block, and would not with more hosts than are named, the rest of a block is where its others are. A host of the job of which no rank is known has the
    only block that is left.
    """
    hosts = ranks["host"].dropna()
    silent = _without_ranks(here, set(hosts))
    n = hosts.nunique() + len(silent)
    if hosts.nunique() < _FEWEST or len(hosts) == len(ranks) or len(ranks) % n or hosts.isin(NAMELESS).any():
        return ranks
    fits = [many for many in range(n, len(ranks) + 1) if len(ranks) % many == 0 and _one_each(hosts, len(ranks) // many)]
    if fits != [n]:
        return ranks
    length = len(ranks) // n
    of_block = {int(rank) // length: host for rank, host in hosts.items()}
    of_block |= dict(zip((block for block in range(n) if block not in of_block), silent, strict=True))
    rest = pd.Series([of_block.get(int(rank) // length) for rank in ranks.index], index=ranks.index)
    return ranks.assign(host=ranks["host"].where(ranks["host"].notna(), rest))


_FEWEST = 2
"""Hosts with ranks from which on it can be told how many a host has."""
_MISSED = frozenset({"slurm-node-failure", "batch-node-failure"})
"""Rows in which the job's own launcher or scheduler misses one of its nodes."""


def _without_ranks(here: pa.Table, named: set[str]) -> list[str]:
    """The host of the job of which no rank is known, where it is one: its launcher misses it, or a pod was there that is called as the hosts are but for the number."""
    lost = frame(here, ("end",), ("name", "host"))
    lost = set(lost.loc[lost["name"].isin(_MISSED), "host"].dropna())
    forms = {_NUMBER.sub("#", host) for host in named}
    lost |= {node for node, pod in _pods(here).items() if pod not in named and len(forms) == 1 and _NUMBER.sub("#", pod) in forms}
    short = {short_host(host) for host in named}
    found = [host for host in lost if short_host(host) not in short]
    return found if len(found) == 1 else []


_NUMBER = re.compile(r"\d+$")


def _one_each(hosts: pd.Series, length: int) -> bool:
    """Whether each host is in one block of that length, and each block has one host."""
    pairs = {(int(rank) // length, host) for rank, host in hosts.items()}
    return len({block for block, _ in pairs}) == len(pairs) == len({host for _, host in pairs})


def _by_local_ranks(ranks: pd.DataFrame, here: pa.Table) -> pd.DataFrame:
    """Of a node, whose ranks are those from local rank 0 to before the next one, the host that one of them names. Nodes have equally many ranks."""
    rows = frame(here, ("place", "process"), ("rank", "label")).dropna().drop_duplicates()
    rows = rows[rows["label"].str.fullmatch(r"local \d{1,5}")]
    begins = (rows["rank"].astype("int64") - rows["label"].str.removeprefix("local ").astype("int64")).drop_duplicates().sort_values().to_numpy()
    lengths = np.diff(np.append(begins, len(ranks)))
    if len(begins) < 2 or begins[0] != 0 or len(set(lengths)) != 1 or lengths[0] < 1:
        return ranks
    return _one_a_block(ranks, int(lengths[0]))


def _one_a_block(ranks: pd.DataFrame, length: int) -> pd.DataFrame:
    block = pd.Series(ranks["rank"].astype("int64") // length, ranks.index)
    named = ranks["host"].groupby(block).agg(lambda hosts: hosts.dropna().iloc[0] if len(set(hosts.dropna())) == 1 else None)
    return ranks.assign(host=ranks["host"].where(ranks["host"].notna(), block.map(named)))


def _by_numbers(ranks: pd.DataFrame, here: pa.Table) -> pd.DataFrame:
    """Of nodes that are numbered through, each the ranks of its place: launchers fill equal nodes in that order.

    Told where all the hosts that are named are such nodes (or the nodes of pods that are), none of which is missing, and the ranks that name one are
    where they belong: at least one of them behind the first node's, so that nodes that say nothing at all are noticed.
    """
    hosts = {h for h in here.column("host").unique().to_pylist() if isinstance(h, str)} | set(ranks["host"].dropna())
    for names in ({h: h for h in hosts}, _pods(here)):
        if len(names) < 2 or not hosts <= names.keys():
            continue
        for first, others, add in _NUMBERED:
            number = {h: int(m[1]) + add for h, name in names.items() if (m := others.fullmatch(name))}
            number |= {h: 0 for h, name in names.items() if first is not None and first.fullmatch(name)}
            if len(number) == len(names) and sorted(number.values()) == list(range(len(number))) and len(ranks) % len(number) == 0:
                return _numbered(ranks, number)
    return ranks


def _pods(here: pa.Table) -> dict[str, str]:
    """Node → the one pod of the job that was placed on it, as descriptions of pods say."""
    facts = frame(here, ("fact",), ("name", "text", "file", "line"))
    facts = facts[facts["name"].isin(["pod.name", "pod.node"])]
    if not len(facts):
        return {}
    facts = facts.sort_values(["file", "line"], kind="stable")
    pod = facts["text"].where(facts["name"] == "pod.name").groupby(facts["file"]).ffill()
    pairs = pd.DataFrame({"pod": pod, "node": facts["text"]})[facts["name"] == "pod.node"].dropna().drop_duplicates()
    return {} if pairs["pod"].duplicated().any() or pairs["node"].duplicated().any() else dict(zip(pairs["node"], pairs["pod"], strict=True))


def _numbered(ranks: pd.DataFrame, number: dict[str, int]) -> pd.DataFrame:
    length = len(ranks) // len(number)
    known = ranks.dropna(subset=["host"])
    places = known["rank"].astype("int64") // length
    if not len(known) or (places != known["host"].map(number)).any() or places.max() == 0:
        return ranks
    rest = (ranks["rank"].astype("int64") // length).map({place: host for host, place in number.items()})
    return ranks.assign(host=ranks["host"].where(ranks["host"].notna(), rest))
