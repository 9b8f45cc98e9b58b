"""PL301 memory-skew: one stage or rank holds more memory than its position, its layers and its peers explain.

What it does: compares the peak of each stage with what 1F1B lets one expect (stage s keeps min(p - s, m) micro-batches, the ends
have more parameters), and the peak of each rank with the other ranks of its stage.
Why it matters: the fullest device decides the micro-batch size of all, and fails first.
What to do: find what that rank holds beside model and activations: buffers of its own, caches, a second model, leaked tensors.
When it is wrong: logits of a large vocabulary on the last stage, whose confidence is lower for that; a CPU run reports the whole process,
not tensors.
Thresholds: limit 0.15 of the expected peak and at least mib 256 MiB: on real 16- to 256-GPU jobs the rest is at most 4 % on stage
0 and 8 % on the last.
"""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from pipelog._text import percent, size
from pipelog.findings import Advice, Confidence, Evidence, Finding, Severity, Where, detector
from pipelog.tables import CannotTell
from pipelog.tables.memory import StageMemory
from pipelog.tables.topology import Topology


@detector("PL301", "memory-skew", needs=("stage_memory", "memory", "topology"))
def memory_skew(stage_memory: StageMemory, memory: pd.DataFrame, topology: Topology, *, limit: float = 0.15, mib: float = 256) -> Iterator[Finding]:
    """One finding a stage, or a rank among the replicas of its stage."""
    stages = stage_memory.per_stage
    peaks = memory.dropna(subset=["max_allocated", "stage"])
    top = peaks.loc[peaks.groupby("rank")["max_allocated"].idxmax()]
    top = top.assign(typical=top.groupby("stage")["max_allocated"].transform(lambda v: v.quantile(0.5, interpolation="lower")))
    rest = top["max_allocated"] - top["typical"]
    uneven = top[(rest > limit * top["typical"]) & (rest > mib * 2**20)]
    alone = top.groupby("stage")["rank"].transform("size").eq(1).all()
    if stage_memory.reason is not None and alone:
        raise CannotTell(f"{stage_memory.reason}, and no stage printed the memory of two ranks")
    for row in uneven.to_dict("records"):
        yield _finding((int(row["rank"]),), int(row["stage"]), row["max_allocated"], row["typical"], "the other ranks of its stage", row, topology)
    if stage_memory.reason is not None:
        return
    named = {int(r) for r in uneven["rank"]}
    odd = False
    for row in stages.to_dict("records"):
        over = row["peak_bytes"] - row["expected_bytes"]
        mine = top[(top["stage"] == row["stage"]) & (top["max_allocated"] > row["expected_bytes"] * (1 + limit))]
        ranks = tuple(sorted(int(r) for r in mine["rank"]))
        if over > limit * row["expected_bytes"] and over > mib * 2**20 and not named & set(ranks):
            odd = True
            yield _finding(ranks, int(row["stage"]), row["peak_bytes"], row["expected_bytes"], "its place in the pipeline explains", row, topology)
    if not odd and not named and stages["expected_bytes"].isna().any():
        raise CannotTell(
            "the inner stages are as 1F1B makes them; of the first and the last nothing can be expected, since no line states their parameters"
        )


def _finding(ranks: tuple[int, ...], stage: int, peak: float, expected: float, against: str, row: dict[str, object], topology: Topology) -> Finding:
    who = f"rank {ranks[0]} (stage {stage})" if len(ranks) == 1 else f"stage {stage} ({len(ranks)} ranks)"
    hosts = tuple(sorted({h for r in ranks if (h := topology.host_of(r))}))
    return Finding(
        "PL301",
        "memory-skew",
        f"{who} peaks at {size(peak)}, {size(peak - expected)} ({percent(peak / expected - 1)}) more than {against}",
        Severity.WARNING,
        Confidence.MEDIUM if stage + 1 == topology.pp else Confidence.HIGH,
        Where(ranks=ranks, stages=(stage,), hosts=hosts),
        (Evidence(str(row["file"]), int(row["line"])),),  # type: ignore[call-overload]
        (Advice(f"take a memory snapshot (torch.cuda.memory._record_memory_history) on rank {ranks[0]} and on a peer, and compare"),),
    )
