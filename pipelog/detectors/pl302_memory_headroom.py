"""PL302 memory-headroom: a rank is close to the capacity of its device.

What it does: compares the highest reserved memory (else allocated) of each rank with the capacity that an nvidia-smi table or a
trace in the folder states.
Why it matters: a longer sequence, fragmentation or a second process then ends the job with an out-of-memory error.
What to do: activation checkpointing on the fullest stage, a smaller micro-batch (more of them), or fewer layers there.
When it is wrong: reserved memory holds cached blocks that PyTorch could give back; mixed device types in one job.
Thresholds: limit 0.92 of the capacity.
"""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd
import pyarrow as pa

from pipelog._text import percent, size
from pipelog.findings import Advice, Confidence, Evidence, Finding, Severity, Where, detector
from pipelog.tables import CannotTell, frame


@detector("PL302", "memory-headroom", needs=("memory", "placed", "facts"))
def memory_headroom(memory: pd.DataFrame, placed: pa.Table, facts: pd.DataFrame, *, limit: float = 0.92) -> Iterator[Finding]:
    """One finding: the fullest rank, and how many others are above the limit."""
    used = memory.assign(used=memory["max_reserved"].fillna(memory["max_allocated"]) if len(memory) else None).dropna(subset=["used"])
    if not len(used):
        raise CannotTell("no rank printed its memory")
    stated = frame(placed, ("memory_capacity",), ("bytes", "file", "line"))
    devices = facts[facts["name"].str.match(r"device\.\d+\.memory_bytes")] if len(facts) else facts
    if len(stated):
        capacity, where = float(stated["bytes"].max()), stated.iloc[[0]]
    elif len(devices):
        capacity, where = float(devices["value"].max()), devices.iloc[[0]]
    else:
        raise CannotTell("nothing states the capacity of the devices: an nvidia-smi table in the log or a profiler trace would")
    top = used.loc[used.groupby("rank")["used"].idxmax()]
    full = top[(top["used"] > limit * capacity) & (top["used"] <= capacity * 1.02)]
    if not len(full):
        return
    row = full.loc[full["used"].idxmax()]
    others = f", and {len(full) - 1} more ranks are above {percent(limit)}" if len(full) > 1 else ""
    evidence = [Evidence(str(row["file"]), int(row["line"]))]
    if pd.notna(where["line"].iloc[0]):
        evidence.append(Evidence(str(where["file"].iloc[0]), int(where["line"].iloc[0])))
    yield Finding(
        "PL302",
        "memory-headroom",
        f"rank {int(row['rank'])} reserves up to {size(row['used'])} of {size(capacity)} ({percent(row['used'] / capacity)}){others}",
        Severity.WARNING,
        Confidence.MEDIUM,
        Where(ranks=tuple(sorted(int(r) for r in full["rank"])), stages=tuple(sorted({int(s) for s in full["stage"].dropna()}))),
        tuple(evidence),
        (
            Advice(
                "checkpoint activations on the fullest stage, or halve the micro-batch and double the accumulation steps",
                "peak falls, step gets longer",
            ),
        ),
    )
