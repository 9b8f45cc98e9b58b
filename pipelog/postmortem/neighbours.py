"""Who waits for whom along a pipeline, which rank a local rank on a host is, and who left before the others."""

from __future__ import annotations

import pandas as pd
import pyarrow as pa

from pipelog.tables import frame
from pipelog.tables.topology import Topology

_TOWARDS = {"_exec_send_activations": 1, "_exec_recv_grads": 1, "_exec_recv_activations": -1, "_exec_send_grads": -1}
"""Which way a rank looks for its partner: stage s sends activations to s + 1 and gets gradients from it (engine.py, p2p.py)."""


def towards(topology: Topology, rank: int, engine: str) -> int | None:
    """The rank that *rank* waits for in a frame of the pipeline engine (`_exec_recv_grads`, also inside a longer text); null where it is no p2p."""
    way = next((way for name, way in _TOWARDS.items() if name in engine), None)
    return None if way is None else neighbour(topology, rank, way)


def neighbour(topology: Topology, rank: int, way: int) -> int | None:
    """The rank of the next (way 1) or the previous stage in the same replica and tensor-parallel place."""
    ranks = topology.ranks.set_index("rank") if len(topology.ranks) else topology.ranks
    if rank not in ranks.index or pd.isna(ranks.at[rank, "stage"]):
        return None
    me = ranks.loc[rank]
    pp = topology.pp or int(ranks["stage"].max()) + 1
    stage = (int(me["stage"]) + way) % pp
    same = ranks[ranks["stage"] == stage]
    for column in ("replica", "tensor"):
        if not pd.isna(me[column]):
            same = same[same[column] == me[column]]
    return int(same.index[0]) if len(same) == 1 else None


def local_ranks(placed: pa.Table) -> dict[tuple[str | None, str], int]:
    """(host, `local 3`) → rank, as launchers told it: when they started it, or when it had failed on a host that they name."""
    places = frame(placed, ("place", "process", "end"), ("kind", "rank", "host", "label"))
    places = places[(places["kind"] != "end") | places["host"].notna()].dropna(subset=["rank", "label"])
    found: dict[tuple[str | None, str], set[int]] = {}
    for host, label, rank in zip(places["host"], places["label"], places["rank"], strict=True):
        found.setdefault((host if isinstance(host, str) else None, str(label)), set()).add(int(rank))
    return {key: ranks.pop() for key, ranks in found.items() if len(ranks) == 1}


def left_before(placed: pa.Table, waits: pd.DataFrame) -> dict[int, tuple[str, int]]:
    """Rank → (file, line) of the launcher's word that its process exited successfully, above the first of *waits* or before its time."""
    local = local_ranks(placed)
    rows = frame(placed, ("end", "process"), ("name", "rank", "host", "label", "value", "start_ns", "file", "line"))
    rows = rows[rows["name"].isin(["spawned", "exit-success"]) & rows["value"].notna()]
    first = waits.groupby("file")["line"].min()
    begin = waits["at_ns"].min()
    pids: dict[tuple[str | None, int], int] = {}
    alone = len(set(rows.loc[rows["name"] == "spawned", "host"].dropna())) <= 1
    left: dict[int, tuple[str, int]] = {}
    for row in rows.itertuples(index=False):
        host = row.host if isinstance(row.host, str) else None
        if row.name == "spawned":
            known = row.rank if not pd.isna(row.rank) else local.get((host, row.label))
            if known is not None:
                pids[None if alone else host, int(row.value)] = int(known)
            continue
        rank = row.rank if not pd.isna(row.rank) else pids.get((None if alone else host, int(row.value)))
        above = row.file in first.index and row.line < first[row.file]
        early = not pd.isna(begin) and not pd.isna(row.start_ns) and row.start_ns < begin and row.file not in first.index
        if rank is not None and (above or early):
            left[int(rank)] = (str(row.file), int(row.line))
    return left
