"""Memory of each rank, and what the 1F1B schedule lets one expect of each stage."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pandas as pd
import pyarrow as pa

from pipelog.schedule import in_flight
from pipelog.tables import CannotTell, frame, table
from pipelog.tables.config import Config
from pipelog.tables.topology import Topology

_FIGURES = ["allocated", "max_allocated", "reserved", "max_reserved"]
_CALLS = 5
"""Steps after which a place was called: fewer show no course."""
BYTES_PER_PARAMETER = 16
"""Mixed precision with Adam: 2 (weight) + 2 (gradient) + 4 (master) + 8 (moments); design/product.md."""


@table("memory", needs=("placed",))
def memory(placed: pa.Table) -> pd.DataFrame:
    """Memory reports: rank, stage, step, allocated, max_allocated, reserved, max_reserved (bytes), file, line; one row a report.

    max_… are peaks since the start of training. The form without a rank is printed by rank 0, but for what any rank may print (stream `one-rank`). Of `memory_usage` those that name
    their step (the throughput line's and memory_status', which reset no peak), else see_memory_usage's of rank 0 that are called at one place after the
    steps: each the peak since the call before. They count where there is no other report: rank 0's peak of a later step is not held against what
    other ranks reported before.
    """
    rows = frame(placed, ("memory", "memory_usage"), ("kind", "name", "rank", "stage", "step", "bytes", "device", "stream", "file", "line", "text"))
    rows = rows[rows["rank"].notna() | (rows["stream"] != "one-rank")]
    rows = rows[rows["device"].isna() & rows["name"].isin(_FIGURES)]
    reports = rows["kind"] == "memory"
    rows = rows[reports] if reports.any() else rows[rows["step"].notna()] if rows["step"].notna().any() else _called_after_steps(rows, placed)
    if not len(rows):
        return pd.DataFrame(columns=["rank", "stage", "step", *_FIGURES, "file", "line"])
    rows["rank"] = rows["rank"].fillna(0)
    rows["step"] = rows["step"].fillna(-1)
    wide = rows.pivot_table(index=["rank", "step"], columns="name", values="bytes", aggfunc="max")
    where = rows.groupby(["rank", "step"])[["stage", "file", "line"]].first()
    out = wide.join(where).reset_index()
    out["step"] = out["step"].replace(-1, pd.NA)
    for name in _FIGURES:
        if name not in out:
            out[name] = np.nan
    return out


def _called_after_steps(rows: pd.DataFrame, placed: pa.Table) -> pd.DataFrame:
    """Of calls of see_memory_usage those of one place in one file, which say the same but for numbers, with the step printed above each.

    The place that is called most often, and after at least _CALLS different steps: the calls while a model is built are at as many places.
    """
    called = rows[rows["text"].notna() & (rows["rank"].isna() | (rows["rank"] == 0))]
    steps = frame(placed, ("step",), ("step", "file", "line")).dropna().astype({"file": object, "line": "int64", "step": "int64"})
    if not len(called) or not len(steps):
        return rows.iloc[:0]
    called = called.assign(_place=called["text"].str.replace(r"\d+", "#", regex=True)).drop(columns="step")
    called = called.astype({"file": object, "line": "int64"}).sort_values("line")
    called = pd.merge_asof(called, steps.sort_values("line"), on="line", by="file").dropna(subset=["step"])
    many = called.groupby(["file", "_place"])["step"].nunique().sort_values(ascending=False, kind="stable")
    if not len(many) or many.iloc[0] < _CALLS:
        return rows.iloc[:0]
    file, place = many.index[0]
    return called[(called["file"] == file) & (called["_place"] == place)].drop(columns="_place")


@dataclass(frozen=True, slots=True)
class StageMemory:
    """per_stage: stage, peak_bytes, expected_bytes (null where it cannot be told), rank and file, line of the peak.

    slope_bytes: activations of one micro-batch as fitted from neighbours, null below five stages. reason: why nothing is expected.
    """

    per_stage: pd.DataFrame
    slope_bytes: float | None = None
    reason: str | None = None
    notes: list[str] = field(default_factory=list)


@table("stage_memory", needs=("memory", "topology", "config"))
def stage_memory(memory: pd.DataFrame, topology: Topology, config: Config) -> StageMemory:
    """Peak of each stage beside its 1F1B expectation.

    expected(s) = max(floor, base + a * min(p - s, m)) over the inner stages, with a the median difference of neighbouring inner
    stages per micro-batch held, plus 16 bytes for each parameter above the median stage's (design/product.md). With four stages a is
    the smaller of the differences of stage 0 and 1 and of 1 and 2: 1F1B makes both, a leak on one stage only one. base is the lower
    median of what the inner stages leave, so that one heavy stage does not move it; floor is the lowest inner peak: where the optimizer
    step needs more than the activations, the stages are equal. Of the ends, which hold embedding and head, nothing is expected where no
    line states their parameters.
    """
    peaks = memory.dropna(subset=["max_allocated", "stage"])
    p, m = topology.pp, config.micro_batches
    if not len(peaks) and len(memory.dropna(subset=["max_allocated"])):
        raise CannotTell("memory was printed, but the stage of its ranks is not known: the topology line or the stage lines would tell")
    if not len(peaks):
        raise CannotTell("no rank printed its memory: Megatron's memory report, see_memory_usage on every rank or a profiler trace would show it")
    top = peaks.loc[peaks.groupby("rank")["max_allocated"].idxmax()]
    best = top.loc[top.groupby("stage")["max_allocated"].idxmax()].sort_values("stage")
    table_ = pd.DataFrame(
        {
            "stage": best["stage"].astype("int64").to_numpy(),
            "peak_bytes": best["max_allocated"].astype("int64").to_numpy(),
            "expected_bytes": np.nan,
            "rank": best["rank"].astype("int64").to_numpy(),
            "file": best["file"].to_numpy(),
            "line": best["line"].astype("int64").to_numpy(),
        }
    )
    if not p or p < 4:
        return StageMemory(table_, reason="below four stages there are no two inner stages to compare")
    if len(table_) < p:
        return StageMemory(table_, reason=f"{len(table_)} of {p} stages printed their memory")
    if not m:
        return StageMemory(table_, reason="the number of micro-batches is not known, so neither is how many of them a stage holds")
    params = topology.stages.set_index("stage")["params"].reindex(table_["stage"]).astype("Float64").to_numpy(dtype=float, na_value=np.nan)
    known = bool(np.isfinite(params).all())
    extra = np.maximum(params - np.median(params), 0) * BYTES_PER_PARAMETER if known else np.zeros(p)
    held = np.array([in_flight(s, p, m) for s in range(p)])
    peak = table_["peak_bytes"].to_numpy(dtype=float) - extra
    slope = _slope(peak[1:-1], held[1:-1]) if p >= 5 else min(_slope(peak[0:2], held[0:2]), _slope(peak[1:3], held[1:3]))
    inner = peak[1:-1]
    base = float(np.sort(inner - slope * held[1:-1])[(len(inner) - 1) // 2])
    expected = np.maximum(float(inner.min()), base + slope * held) + extra
    if not known:
        expected[[0, -1]] = np.nan
    table_["expected_bytes"] = expected
    return StageMemory(table_, slope_bytes=slope or None)


def _slope(peak: np.ndarray, held: np.ndarray) -> float:
    """Bytes that one more micro-batch costs: median over neighbours that differ in what they hold."""
    fewer = held[:-1] - held[1:]
    steps = (peak[:-1] - peak[1:])[fewer > 0] / fewer[fewer > 0]
    return max(0.0, float(np.median(steps))) if len(steps) else 0.0
