"""PL201 stage-imbalance: one stage computes longer than its peers.

What it does: compares the compute time per micro-batch of the stages, median over steps; of the replicas of a stage the lower median
counts, since one slow replica is a straggler. The value is max/mean - 1.
Why it matters: at every micro-batch the other stages wait for the slowest.
What to do: move layers off the stage named (partition_method, or the layer list), or make the embedding or the head cheaper; see
whether activation checkpointing runs on some stages only.
When it is wrong: unequal sequence lengths or mixture-of-experts routing change from step to step; a few recorded steps may not be typical.
Parameters per stage are a hint, never the measure.
Thresholds: limit 0.10 (10 % above the mean stage).
"""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from pipelog._text import percent, seconds
from pipelog.findings import Advice, Confidence, Finding, Severity, Where, cite, detector
from pipelog.replay.cited import cited
from pipelog.tables import CannotTell, Tables
from pipelog.tables.topology import Topology


@detector("PL201", "stage-imbalance", needs=("tables", "topology"))
def stage_imbalance(tables: Tables, topology: Topology, *, limit: float = 0.10) -> Iterator[Finding]:
    """One finding a stage that lies above the limit."""
    if topology.pp == 1:
        raise CannotTell("one stage: no pipeline")
    balance = tables["balance"]
    if len(balance) < 2:
        raise CannotTell("only one stage was measured: a torch profiler trace of every stage would show the others")
    if topology.pp and len(balance) < topology.pp:
        raise CannotTell(f"{len(balance)} of {topology.pp} stages were measured: a torch profiler trace of every stage would show the others")
    stage_time = tables["stage_time"]
    mean = float(balance["compute_ns"].mean())
    split = tables.get("breakdown")
    over = balance[balance["excess"] > limit]
    for row in over.to_dict("records"):
        stage = int(row["stage"])
        mine = stage_time[stage_time["stage"] == stage]
        again = _recompute(row, balance)
        yield Finding(
            "PL201",
            "stage-imbalance",
            f"stage {stage} computes {seconds(row['compute_ns'])} per micro-batch, {percent(row['excess'])} longer than the mean stage ({seconds(mean)}){again}",
            Severity.WARNING,
            Confidence.HIGH,
            Where(stages=(stage,), ranks=tuple(sorted({int(r) for r in mine["rank"]})), steps=(int(mine["step"].min()), int(mine["step"].max()))),
            cite(mine, by="busy_ns"),
            _advice(row, balance, topology, tables),
            cost=split.phase["imbalance-wait"] * row["excess"] / float(over["excess"].sum()) if split is not None else None,
        )


def _recompute(row: dict[str, float], balance: pd.DataFrame) -> str:
    """Whether recomputation makes the difference."""
    others = balance[balance["stage"] != row["stage"]]["recompute_ns"].mean()
    extra = row["recompute_ns"] - others
    if extra > 0.5 * (row["compute_ns"] - balance["compute_ns"].mean()):
        return f"; {seconds(row['recompute_ns'])} of it recomputes activations"
    return ""


def _advice(row: dict[str, float], balance: pd.DataFrame, topology: Topology, tables: Tables) -> tuple[Advice, ...]:
    stage = int(row["stage"])
    lightest = int(balance.loc[balance["compute_ns"].idxmin(), "stage"])
    expected = _expected(balance, tables)
    layers = topology.stages.set_index("stage")["layers"] if len(topology.stages) else None
    known = layers is not None and stage in layers.index and pd.notna(layers[stage])
    have = f" ({int(layers[stage])} list entries)" if known else ""  # type: ignore[index]
    advice = [Advice(f"move work from stage {stage}{have} towards stage {lightest}, by partition_method or the layer list", expected)]
    if topology.pp and stage == topology.pp - 1:
        advice.append(Advice("the last stage holds the output head and the loss: give it fewer blocks"))
    return tuple(advice)


def _expected(balance: pd.DataFrame, tables: Tables) -> str:
    """What equal stages would give at best, and the best known partition: as replayed, else by the ratio of mean and largest stage."""
    equal, partition = cited(tables, "stages equal"), cited(tables, "partition=")
    if equal is None:
        bound = percent(1 - float(balance["compute_ns"].mean()) / float(balance["compute_ns"].max()))
        return f"at best the steady state gets {bound} shorter (all stages equal)"
    best = f"all stages equal, at best: {equal}"
    return f"{partition.name}: {partition}; {best}" if partition is not None and partition.advised else best
