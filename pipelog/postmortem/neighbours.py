"""Who waits for whom along a pipeline, and who left before the others."""

from __future__ import annotations

import pandas as pd
import pyarrow as pa

from pipelog.postmortem.identities import Identities
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
    stage = topology.stage_of(rank)
    if stage is None:
        return None
    pp = topology.pp or int(topology.ranks["stage"].max()) + 1
    others = {column: place for column in ("replica", "tensor") if (place := topology.place_of(rank, column)) is not None}
    return topology.rank_at(stage=(stage + way) % pp, **others)


def left_before(placed: pa.Table, waits: pd.DataFrame, who: Identities) -> dict[int, tuple[str, int]]:
    """Rank → (file, line) of the launcher's word that its process exited successfully, above the first of *waits* or before its time."""
    rows = frame(placed, ("end",), ("name", "rank", "host", "value", "start_ns", "file", "line"))
    rows = rows[(rows["name"] == "exit-success") & rows["value"].notna()]
    first = waits.groupby("file")["line"].min()
    begin = waits["at_ns"].min()
    left: dict[int, tuple[str, int]] = {}
    for row in rows.itertuples(index=False):
        rank = who.of_process(row.host if isinstance(row.host, str) else None, int(row.value)) if pd.isna(row.rank) else int(row.rank)
        above = row.file in first.index and row.line < first[row.file]
        early = not pd.isna(begin) and not pd.isna(row.start_ns) and row.start_ns < begin and row.file not in first.index
        if rank is not None and (above or early):
            left[rank] = (str(row.file), int(row.line))
    return left
