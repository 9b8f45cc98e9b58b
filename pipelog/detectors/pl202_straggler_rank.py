"""PL202 straggler-rank: one rank is slower than the peers that do the same work.

What it does: compares the compute time per micro-batch of the ranks of one stage across data-parallel replicas, step by step, with the
lower median of them; a rank that stays above the limit from some step on is named, with that step.
Why it matters: all replicas meet in the gradient reduction, so the slowest rank sets the step time of the whole job.
What to do: look at that GPU and its host: clocks, temperature, ECC counters, other processes, a slow PCIe link; exchange it.
When it is wrong: replicas with longer sequences in these steps; two replicas only tell that they differ, the slower one is named. One slow
step among others is no straggler; where one step alone was recorded, it may be a hiccup: the confidence is lower, and below three times the
limit it is info.
Thresholds: limit 0.10 (10 % above its peers).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd

from pipelog._text import percent, seconds
from pipelog.findings import Advice, Confidence, Finding, Severity, Where, cite, detector
from pipelog.replay.cited import at_best
from pipelog.tables import CannotTell, Tables
from pipelog.tables.balance import stragglers
from pipelog.tables.topology import Topology


@detector("PL202", "straggler-rank", needs=("tables", "topology"))
def straggler_rank(tables: Tables, topology: Topology, *, limit: float = 0.10) -> Iterator[Finding]:
    """One finding a rank."""
    if topology.dp == 1:
        raise CannotTell("one data-parallel replica: no two ranks do the same work")
    peers: pd.DataFrame = tables["peers"]
    if not len(peers):
        raise CannotTell("no stage was recorded on two replicas: profiler traces of all ranks would show whether one is slower")
    for straggler in stragglers(peers, tables["stage_time"], limit):
        rank, stage, late = straggler.rank, straggler.stage, straggler.steps
        ratio = float(late["ratio"].median())
        since = "" if straggler.from_start else f" from step {int(late['step'].iloc[0])} on"
        yield Finding(
            "PL202",
            "straggler-rank",
            f"rank {rank} (stage {stage}, replica {int(late['replica'].iloc[0])}) computes {percent(ratio - 1)} longer than its peers{since}: "
            f"{seconds(float(late['compute_ns'].median()))} per micro-batch against {seconds(float(late['peer_ns'].median()))}",
            Severity.WARNING if straggler.certain else Severity.INFO,
            Confidence.HIGH if len(late) > 1 else Confidence.MEDIUM,
            Where(ranks=(rank,), stages=(stage,), hosts=_host(topology, rank), steps=(int(late["step"].iloc[0]), int(late["step"].iloc[-1]))),
            cite(late, by="ratio", says=_shows),
            (
                Advice(
                    f"check the device and host of rank {rank} (clocks, temperature, ECC, other processes) and exchange it if it stays slow",
                    at_best(tables, "replicas equal") if straggler.from_start else None,  # what is replayed is the middle of the steps
                ),
            ),
            cost=straggler.lost,
        )


def _shows(row: Any) -> str:
    return f"step {row.step}: rank {row.rank} computes {seconds(row.compute_ns)} per micro-batch, its peers {seconds(row.peer_ns)}; here its longest pass"


def _host(topology: Topology, rank: int) -> tuple[str, ...]:
    host = topology.host_of(rank)
    return (host,) if host else ()
