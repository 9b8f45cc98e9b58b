"""Nodes that are gone: which ranks were on one, and which words about nodes are of the job's at all."""

from __future__ import annotations

import re
from pathlib import PurePosixPath

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from pipelog._text import short_host
from pipelog.postmortem.kinds import Kind, Role
from pipelog.tables import frame
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
    missed = {short_host(h) for h in roles.loc[roles["name"].isin(_LOST), "host"] if isinstance(h, str)}
    away = states & ~roles["host"].map(lambda h: isinstance(h, str) and short_host(h) in missed).astype(bool)
    roles.loc[away, ["role", "why"]] = [Role.BENIGN.value, "the job's launcher does not miss that node"]


def ranks_of_node(kind: Kind, same: pd.DataFrame, topology: Topology) -> tuple[int, ...]:
    """The ranks of the one node that is gone, or from which a pod was, where it is known of every rank on which node it was."""
    hosts = {short_host(h) for h in same["host"] if isinstance(h, str)}
    of_node = kind.name in _OF_NODES or (same["name"] == "k8s-evicted").all()
    if not of_node or len(hosts) != 1 or not len(topology.ranks) or topology.ranks["host"].isna().any():
        return ()
    host = hosts.pop()
    mine = topology.ranks[topology.ranks["host"].map(short_host) == host]
    return tuple(sorted(int(r) for r in mine["rank"])) if len(mine) < len(topology.ranks) else ()


_JOINED = r"\b(?P<came>\d{1,6})/(?P<all>\d{1,6}) clients joined"
_SUFFIX = re.compile(r"(?i)(?:\.(?:txt|log|out|err))+$")
_NO_HOST = re.compile(
    r"(?i)(?:node|rank|worker|host|task|proc(?:ess)?|machine|log|logs|out|output|std\w*|err|run|train|attempt|job|slurm|part)?[-_.]?\d*"
)


def not_joined(same: pd.DataFrame, placed: pa.Table) -> tuple[tuple[str, ...], str]:
    """The hosts that did not come to the store, and that so many of all did: where there is one log a node, named after its host, and exactly as
    many of these as did not come say nothing of trouble while all others do.
    """
    counts = same["text"].str.extract(_JOINED).dropna().astype(int).drop_duplicates()
    if len(counts) != 1 or counts["came"].iloc[0] >= counts["all"].iloc[0]:
        return (), ""
    came, total = (int(counts[name].iloc[0]) for name in ("came", "all"))
    files = {f: _SUFFIX.sub("", PurePosixPath(f).name) for f in placed.column("file").unique().to_pylist() if f}
    forms = {_form(files[f]) for f in same["file"] if f in files}
    logs = {f: stem for f, stem in files.items() if _form(stem) in forms}
    failed = frame(placed, ("error", "end"), ("name", "file"))
    failed = failed[failed["name"] != "python-frame"]
    silent = sorted(stem for f, stem in logs.items() if f not in set(failed["file"]))
    named = len(set(logs.values())) == len(logs) == total and not any(_NO_HOST.fullmatch(stem) for stem in logs.values())
    return (tuple(silent), f"{came} of {total} nodes joined") if len(forms) == 1 and named and len(silent) == total - came else ((), "")


def _form(stem: str) -> str:
    return re.sub(r"\d+", "#", stem)


def speaking(placed: pa.Table) -> set[str]:
    """The hosts that write lines of their own: what a launcher lists, and how it says that a process ended, is none."""
    kinds, names = (placed.column(c).cast(pa.string()) for c in ("kind", "name"))
    own = pc.invert(pc.or_(pc.equal(kinds, "end"), pc.and_(pc.equal(kinds, "place"), pc.not_equal(names, "introduced"))))
    return {h for h in placed.column("host").filter(own).unique().to_pylist() if isinstance(h, str)}
