"""Nodes that are gone: which ranks were on one, and which words about nodes are of the job's at all."""

from __future__ import annotations

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from pipelog.postmortem.kinds import Kind, Role
from pipelog.tables.topology import Topology

_STATES = frozenset({"node-state"})
"""Rows with the state of nodes, of whichever job: tables and logs of a whole cluster."""
_LOST = frozenset({"batch-node-failure", "slurm-node-failure", "mpi-daemon-lost"})
"""Rows in which the job's own launcher or scheduler misses a node."""
_OF_NODES = frozenset({"node-failure", "node-daemon-lost"})


def not_missed(roles: pd.DataFrame) -> None:
    """The state of a node that the job does not miss is benign."""
    states = roles["name"].isin(_STATES)
    if not states.any():
        return
    missed = {short(h) for h in roles.loc[roles["name"].isin(_LOST), "host"] if isinstance(h, str)}
    away = states & ~roles["host"].map(lambda h: isinstance(h, str) and short(h) in missed).astype(bool)
    roles.loc[away, ["role", "why"]] = [Role.BENIGN.value, "the job's launcher does not miss that node"]


def ranks_of_node(kind: Kind, same: pd.DataFrame, topology: Topology) -> tuple[int, ...]:
    """The ranks of the one node that is gone, where it is known of every rank on which node it was."""
    hosts = {short(h) for h in same["host"] if isinstance(h, str)}
    if kind.name not in _OF_NODES or len(hosts) != 1 or not len(topology.ranks) or topology.ranks["host"].isna().any():
        return ()
    host = hosts.pop()
    mine = topology.ranks[topology.ranks["host"].map(short) == host]
    return tuple(sorted(int(r) for r in mine["rank"])) if len(mine) < len(topology.ranks) else ()


def speaking(placed: pa.Table) -> set[str]:
    """The hosts that write lines of their own: what a launcher lists, and how it says that a process ended, is none."""
    kinds, names = (placed.column(c).cast(pa.string()) for c in ("kind", "name"))
    own = pc.invert(pc.or_(pc.equal(kinds, "end"), pc.and_(pc.equal(kinds, "place"), pc.not_equal(names, "introduced"))))
    return {h for h in placed.column("host").filter(own).unique().to_pylist() if isinstance(h, str)}


def short(host: str) -> str:
    """A host's name without its domain, in small letters; an address stays whole."""
    return host.lower() if host.replace(".", "").isdigit() else host.lower().partition(".")[0]
