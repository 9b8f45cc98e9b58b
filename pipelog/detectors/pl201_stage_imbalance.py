"""PL201 stage-imbalance: one stage computes longer than its peers.

What it does: compares the compute time per micro-batch of the stages (from traces, or Megatron's timers of all ranks: forward-compute without
batch-generator, and backward-compute), median over steps; of the replicas of a stage the lower median counts, since one slow replica is a
straggler. The value is max/mean - 1.
Why it matters: at every micro-batch the other stages wait for the slowest.
What to do: move layers off the stage named (partition_method, or the layer list), or make the embedding or the head cheaper; see
whether activation checkpointing runs on some stages only. Layers move whole and between neighbours: where no such split is better, the
finding says so, and the stage's device, its host or a heavy layer is what to look at.
When it is wrong: unequal sequence lengths or mixture-of-experts routing change from step to step; a few recorded steps may not be typical.
Parameters per stage are a hint, never the measure. The costs of single layers are not measured: a split is judged as if the layers of
one stage cost the same.
Thresholds: limit 0.10 (10 % above the mean stage).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from pipelog._text import listed, percent, seconds
from pipelog.findings import Advice, Confidence, Finding, Severity, Where, cite, detector
from pipelog.replay.changes import best_split
from pipelog.replay.cited import cited
from pipelog.replay.what_if import LEAST_GAIN
from pipelog.tables import CannotTell, Tables
from pipelog.tables.compute_time import said_per
from pipelog.tables.topology import Topology


@detector("PL201", "stage-imbalance", needs=("tables", "topology"))
def stage_imbalance(tables: Tables, topology: Topology, *, limit: float = 0.10) -> Iterator[Finding]:
    """One finding: the stages that lie above the limit, which one split of the layers makes heavy."""
    if topology.pp == 1:
        raise CannotTell("one stage: no pipeline")
    balance = tables["balance"]
    if len(balance) < 2:
        raise CannotTell("only one stage was measured: a torch profiler trace of every stage would show the others")
    if topology.pp and len(balance) < topology.pp:
        raise CannotTell(f"{len(balance)} of {topology.pp} stages were measured: a torch profiler trace of every stage would show the others")
    compute_time = tables["compute_time"]
    mean = float(balance["compute_ns"].mean())
    split = tables.get("breakdown")
    over = balance[balance["excess"] > limit]
    if not len(over):
        return
    stages = tuple(int(s) for s in over["stage"])
    mine = compute_time[compute_time["stage"].isin(stages)]
    timed = "source" in mine and bool((mine["source"] == "timers").any())
    yield Finding(
        "PL201",
        "stage-imbalance",
        f"{_said(over, mean, said_per(compute_time))}{_recompute(over.loc[over['compute_ns'].idxmax()], balance)}",
        Severity.WARNING,
        Confidence.MEDIUM if timed and len(set(compute_time["step"])) == 1 else Confidence.HIGH,  # one interval alone holds warm-up
        Where(stages=stages, ranks=tuple(sorted({int(r) for r in mine["rank"]})), steps=(int(mine["step"].min()), int(mine["step"].max()))),
        cite(mine, by="busy_ns", says=_timed if timed else _shows),
        _advice(over, balance, topology, tables, _MEGATRON if timed else _DEEPSPEED),
        cost=split.phase["imbalance-wait"] if split is not None else _wait(balance, compute_time) if timed else None,
    )


_DEEPSPEED = "by partition_method or the layer list"
_MEGATRON = "by the layers of the first and the last stage (--decoder-first-pipeline-num-layers, --decoder-last-pipeline-num-layers) or --pipeline-model-parallel-layout"


def _wait(balance: pd.DataFrame, compute_time: pd.DataFrame) -> float:
    """Share of the step that the steady state would get shorter with equal stages."""
    excess = float(balance["compute_ns"].max() - balance["compute_ns"].mean()) * float(compute_time["micro_batches"].median())
    return min(1.0, excess / float(compute_time["step_ns"].median()))


def _shows(row: Any) -> str:
    return f"step {row.step}: rank {row.rank} (stage {row.stage}) computes for {seconds(row.busy_ns)}; here its longest pass"


def _timed(row: Any) -> str:
    return f"step {row.step}: rank {row.rank} (stage {row.stage}) computes for {seconds(row.busy_ns)} a step (forward-compute and backward-compute)"


def _said(over: pd.DataFrame, mean: float, each: str) -> str:
    if len(over) == 1:
        row = over.iloc[0]
        return f"stage {int(row['stage'])} computes {seconds(row['compute_ns'])} {each}, {percent(row['excess'])} longer than the mean stage ({seconds(mean)})"
    times, more = ([word(v) for v in over[name]] for word, name in ((seconds, "compute_ns"), (percent, "excess")))
    return f"stages {listed(over['stage'].tolist())} compute {listed(times)} {each}, {listed(more)} longer than the mean stage ({seconds(mean)})"


def _recompute(row: pd.Series, balance: pd.DataFrame) -> str:
    """Whether recomputation makes the difference."""
    others = balance[balance["stage"] != row["stage"]]["recompute_ns"].mean()
    extra = row["recompute_ns"] - others
    if extra > 0.5 * (row["compute_ns"] - balance["compute_ns"].mean()):
        return f"; {seconds(row['recompute_ns'])} of it recomputes activations"
    return ""


def _advice(over: pd.DataFrame, balance: pd.DataFrame, topology: Topology, tables: Tables, how: str) -> tuple[Advice, ...]:
    heaviest = int(over.loc[over["compute_ns"].idxmax(), "stage"])
    layers = _layers(topology, balance)
    better, partition = _better(balance, layers), cited(tables, "partition=")
    if layers is None:
        advice = [Advice(f"move work {_towards(heaviest, balance)}, {how}", _expected(balance, tables))]
    elif partition is not None and partition.advised:
        advice = [Advice(f"give the stages {partition.name.removeprefix('partition=')} instead of {_slashed(layers)}", _expected(balance, tables))]
    elif better is not None and cited(tables, "stages equal") is None:
        counts, longest = better
        expected = f"the heaviest stage {seconds(float(balance['compute_ns'].max()))} → {seconds(longest)} {said_per(tables['compute_time'])}, if the layers of a stage cost the same"
        advice = [Advice(f"give the stages {_slashed(counts)} layers instead of {_slashed(layers)}, {how}", expected)]
    else:
        return _no_move_helps(heaviest, layers, found=better is not None)
    if topology.pp and heaviest == topology.pp - 1:
        advice.append(Advice("the last stage holds the output head and the loss: give it fewer blocks"))
    return tuple(advice)


def _layers(topology: Topology, balance: pd.DataFrame) -> np.ndarray | None:
    """List entries of each stage; None where they are not known of all."""
    if not len(topology.stages) or "layers" not in topology.stages:
        return None
    counts = topology.stages.set_index("stage")["layers"].reindex(balance["stage"]).astype("Float64").to_numpy(dtype=float, na_value=np.nan)
    return counts.astype(int) if np.isfinite(counts).all() and (counts >= 1).all() else None


def _better(balance: pd.DataFrame, layers: np.ndarray | None) -> tuple[np.ndarray, float] | None:
    """The contiguous split of whole layers with the lightest heaviest stage, and what that takes, where it saves 2 %; layers of one stage cost the same."""
    if layers is None:
        return None
    compute = balance["compute_ns"].to_numpy(dtype=float)
    each = np.repeat(compute / layers, layers)
    borders = best_split(each, len(layers))
    longest = float(np.add.reduceat(each, borders[:-1]).max())
    return (np.diff(borders), longest) if longest < compute.max() * (1 - LEAST_GAIN) else None


def _no_move_helps(stage: int, layers: np.ndarray, *, found: bool) -> tuple[Advice, ...]:
    """Why the stage has to keep its layers, and what is left to do."""
    if layers[stage] == 1:
        why = f"stage {stage} holds one list entry, which no partition can divide"
    elif found:
        why = f"of {_slashed(layers)} list entries a stage none helps for sure, whether the excess moves with its layers or stays with its stage"
    else:
        why = f"with {int(layers.sum())} list entries on {len(layers)} stages (now {_slashed(layers)}) no other split makes the heaviest stage lighter, if the layers of a stage cost the same"
    return (
        Advice(f"no move of whole layers {'helps' if layers[stage] == 1 else 'is known to help'}: {why}"),
        Advice(
            f"compare device and host of stage {stage} with the others (clocks, other processes); if they are alike, make its heaviest layer cheaper or divide it"
        ),
    )


def _towards(stage: int, balance: pd.DataFrame) -> str:
    """From a stage to its neighbour on the side of the lightest: layers move over every border between."""
    lightest = int(balance.loc[balance["compute_ns"].idxmin(), "stage"])
    step = 1 if lightest > stage else -1
    through = "" if lightest == stage + step else f", and so on over the borders up to stage {lightest}"
    return f"from stage {stage} to stage {stage + step}{through}"


def _slashed(counts: np.ndarray) -> str:
    return "/".join(str(int(n)) for n in counts)


def _expected(balance: pd.DataFrame, tables: Tables) -> str:
    """What equal stages would give at best, and the best known partition: as replayed, else by the ratio of mean and largest stage."""
    equal, partition = cited(tables, "stages equal"), cited(tables, "partition=")
    if equal is None:
        bound = percent(1 - float(balance["compute_ns"].mean()) / float(balance["compute_ns"].max()))
        return f"at best the steady state gets {bound} shorter (all stages equal)"
    best = f"all stages equal, at best: {equal}"
    return f"{partition.name}: {partition}; {best}" if partition is not None and partition.advised else best
