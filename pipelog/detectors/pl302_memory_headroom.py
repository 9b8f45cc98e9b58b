"""PL302 memory-headroom: a rank is close to the capacity of its device.

What it does: compares the highest reserved memory (else allocated) that each rank prints, see_memory_usage included, with the capacity that a table of the devices, an
out-of-memory error, a library's line about its device or a trace in the folder states, or else the device's own name (A100-SXM4-80GB);
where no rank printed its memory, used and total of the devices in such tables.
Why it matters: a longer sequence, fragmentation or a second process then ends the job with an out-of-memory error.
What to do: activation checkpointing on the fullest stage, a smaller micro-batch (more of them), or fewer layers there.
When it is wrong: reserved memory holds cached blocks that PyTorch could give back; mixed device types in one job; a table may show
another process's memory, and shows one moment: it clears nothing.
Thresholds: limit 0.92 of the capacity.
"""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd
import pyarrow as pa

from pipelog._text import count, percent, size
from pipelog.findings import Advice, Confidence, Evidence, Finding, Severity, Where, cite, detector
from pipelog.tables import CannotTell, frame
from pipelog.tables.capacity import FULL
from pipelog.tables.capacity import capacity as capacity_of


@detector("PL302", "memory-headroom", needs=("memory", "placed", "facts"))
def memory_headroom(memory: pd.DataFrame, placed: pa.Table, facts: pd.DataFrame, *, limit: float = FULL) -> Iterator[Finding]:
    """One finding: the fullest rank, and how many others are above the limit; where no rank tells, the fullest device of a table."""
    printed = [
        memory.assign(used=memory["max_reserved"].fillna(memory["max_allocated"])) if len(memory) else memory.assign(used=None),
        _calls(placed),
    ]
    used = pd.concat([p for p in printed if len(p)] or printed[:1], ignore_index=True).dropna(subset=["used"])
    tables = _tables(placed)
    if not len(used):
        if not len(tables):
            raise CannotTell("no rank printed its memory, and no nvidia-smi or rocm-smi table shows it")
        yield from _of_tables(tables, limit)
        return
    stated = capacity_of(placed, facts)
    capacity, where = stated.largest_bytes, (Evidence(stated.file, stated.line),) if stated.line is not None else ()
    top = used.loc[used.groupby("rank")["used"].idxmax()]
    full = top[(top["used"] > limit * capacity) & (top["used"] <= capacity * 1.02)]
    if not len(full):
        return
    row = full.loc[full["used"].idxmax()]
    others = f", and {count(len(full) - 1, 'more rank is', 'more ranks are')} above {percent(limit)}" if len(full) > 1 else ""
    ranks, stages = tuple(sorted(int(r) for r in full["rank"])), tuple(sorted({int(s) for s in full["stage"].dropna()}))
    yield Finding(
        "PL302",
        "memory-headroom",
        f"rank {int(row['rank'])} {'allocates' if pd.isna(row['max_reserved']) else 'reserves'} up to {size(row['used'])} of {size(capacity)} ({percent(row['used'] / capacity)}){others}",
        Severity.WARNING,
        Confidence.MEDIUM,
        Where(ranks=ranks, stages=stages),
        (Evidence(str(row["file"]), int(row["line"])), *where),
        _ADVICE,
    )


_ADVICE = (
    Advice("checkpoint activations on the fullest stage, or halve the micro-batch and double the accumulation steps", "peak falls, step gets longer"),
)


_ROUNDED = 2**29
"""see_memory_usage prints the reserved peak in whole GiB: it is at least this much less."""


def _calls(placed: pa.Table) -> pd.DataFrame:
    """What see_memory_usage says of reserved memory: rank, stage, max_reserved, used (bytes), file, line."""
    rows = frame(placed, ("memory_usage",), ("name", "rank", "stage", "step", "bytes", "file", "line"))
    rows = rows[rows["name"].isin(["reserved", "max_reserved"]) & rows["step"].isna() & rows["bytes"].notna()]
    used = rows["bytes"].astype("float64") - _ROUNDED * (rows["name"] == "max_reserved")
    return rows.assign(rank=rows["rank"].fillna(0), used=used, max_reserved=used)[["rank", "stage", "max_reserved", "used", "file", "line"]]


def _tables(placed: pa.Table) -> pd.DataFrame:
    """used and capacity (bytes), file and line of each device in tables of nvidia-smi (one row) and rocm-smi (a row each)."""
    rows = frame(placed, ("memory_capacity", "gpu_use"), ("kind", "name", "value", "bytes", "device", "file", "line"))
    whole = rows[(rows["kind"] == "memory_capacity") & rows["value"].notna()]
    whole = whole.assign(used=whole["value"], capacity=whole["bytes"])
    total = rows[(rows["kind"] == "memory_capacity") & rows["device"].notna()].drop_duplicates(["file", "device"])
    used = rows[(rows["kind"] == "gpu_use") & (rows["name"] == "memory_used")]
    pairs = used.merge(total[["file", "device", "bytes"]], on=["file", "device"], suffixes=("", "_all"))
    pairs = pairs.assign(used=pairs["bytes"], capacity=pairs["bytes_all"])
    columns = ["used", "capacity", "file", "line"]
    found = pd.concat([whole[columns], pairs[columns]], ignore_index=True).astype({"used": "float64", "capacity": "float64"})
    return found[(found["capacity"] > 0) & (found["used"] <= found["capacity"])]


def _of_tables(tables: pd.DataFrame, limit: float) -> Iterator[Finding]:
    """Which rank sits on a device, such a table does not tell."""
    share = tables["used"] / tables["capacity"]
    full = tables[share > limit]
    if not len(full):
        raise CannotTell("no rank printed its memory; the nvidia-smi or rocm-smi table shows one moment, at which it was below the limit")
    row = full.loc[share[full.index].idxmax()]
    others = f"; {count(len(full), 'line')} of the table are above {percent(limit)}" if len(full) > 1 else ""
    yield Finding(
        "PL302",
        "memory-headroom",
        f"a device has {size(row['used'])} of {size(row['capacity'])} in use ({percent(row['used'] / row['capacity'])}) when the table is printed{others}",
        Severity.WARNING,
        Confidence.MEDIUM,
        evidence=cite(full.assign(share=share[full.index]), "share"),
        advice=_ADVICE,
    )
