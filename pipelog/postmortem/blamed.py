"""The one host that many others can no longer reach: those who complain name its address, and are none of those who began it."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd
import pyarrow as pa

from pipelog._text import listed, short_host
from pipelog.postmortem.kinds import Kind, Role
from pipelog.tables import frame
from pipelog.tables.topology import Topology

_PEER = r"(?:from peer|[Cc]onnect to) \[?(?P<peer>[\w.:-]*\w)\]?<\d+>"
"""`Got completion from peer 10.20.0.6<45008>`, `socketStartConnect: Connect to 172.17.0.1<5021> failed`"""
_SAYS = {
    "ib-retry-exceeded": ("is no longer reached over InfiniBand", 2),
    "own-interface": ("gives the others an address that leads nowhere from there, of a container bridge or the like", 1),
    "transport": ("could not be connected to", 2),
}
"""What is said of such a host, and from how many hosts the complaints must come: one host that cannot reach another may be at fault itself."""


@dataclass(frozen=True, slots=True)
class Blamed:
    """address: as the others name it; host: null where nobody says whose it is; stages: of its ranks, where it is one. lines: one of each complaining host first."""

    address: str
    host: str | None
    stages: tuple[int, ...]
    title: str
    lines: tuple[int, ...]


def blamed_of(roles: pd.DataFrame, kind: Kind, placed: pa.Table, topology: Topology) -> Blamed | None:
    """The host that all lines of a kind name, where none of them comes from itself; None where they name several, or too few hosts complain."""
    if kind.name not in _SAYS:
        return None
    rows = roles[(roles["error"] == kind.name) & (roles["role"] != Role.BENIGN.value)]
    peers = rows["text"].str.extract(_PEER)["peer"].dropna()
    said = rows.loc[peers.index]
    hosts = {h for h in said["host"] if isinstance(h, str)}
    says, least = _SAYS[kind.name]
    if not len(peers) or len(hosts) < least:
        return None
    known = _addresses(placed)
    named = {host for address in set(peers) for host in known.get(address, {address})}
    address = str(peers.iloc[0])
    found = next(iter(named)) if len(named) == 1 else None
    if found is None or short_host(found) in {short_host(h) for h in hosts}:
        return None
    place = topology.ranks[topology.ranks["host"].map(lambda h: isinstance(h, str) and short_host(h) == short_host(found)).astype(bool)]
    ranks = tuple(int(r) for r in place["rank"])
    stages = {int(s) for s in place["stage"].dropna()}
    host = str(place["host"].iloc[0]) if len(place) else found if found != address else None
    if host is None and least < 2:
        return None
    who = sorted(set(said["rank"].dropna().astype(int)))
    told = f"rank{'s' if len(who) > 1 else ''} {listed(who)} on " if who else ""
    first = list(said.drop_duplicates("host").index)
    lines = (*first, *(place for place in said.index if place not in first))
    stage = f", stage {min(stages)}" if len(stages) == 1 else ""
    whom = host or f"The host at {address}"
    inside = f" (ranks {listed(ranks)}{stage})" if ranks else ""
    title = f"{whom}{inside} {says}: {told}{listed(sorted(hosts))} name {'its address ' if host else ''}{address}"
    return Blamed(address, host, tuple(stages) if len(stages) == 1 else (), title, lines)


def _addresses(placed: pa.Table) -> dict[str, set[str]]:
    """Address → the hosts that have it: a bridge of containers has the same one everywhere. Of a host's several names that count which the job uses."""
    facts = frame(placed, ("fact",), ("name", "host", "text")).query("name == 'host.address'").dropna(subset=["host", "text"])
    out: dict[str, set[str]] = {}
    hosts = {h for h in frame(placed, ("place", "process", "error", "end"), ("host",))["host"] if isinstance(h, str)}
    for host, address in zip(facts["host"], facts["text"], strict=True):
        out.setdefault(str(address), set()).add(str(host))
    return {address: names & hosts or _one(names) for address, names in out.items()}


def _one(names: set[str]) -> set[str]:
    """The shortest where all others only add to it: `node-2`, `node-2-ib`, `node-2.cluster`."""
    shortest = min(names, key=len)
    return {shortest} if all(name.startswith(shortest) for name in names) else names
