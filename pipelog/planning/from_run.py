"""A measured run → what its micro-batches cost. Reads the figures of report.json, so that a folder and its saved report say the same."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from pipelog._text import listed, percent
from pipelog.errors import BadReport
from pipelog.planning.batch import MOST
from pipelog.planning.batch import MOST_STAGES as MOST_STAGES_AT_ALL
from pipelog.planning.costs import MOST_ERROR, MOST_STAGES, USUAL_BACKWARD, Costs, Links, Measured, Memory, off, phase
from pipelog.report import Report
from pipelog.tables import CannotTell
from pipelog.tables.config import Config
from pipelog.tables.memory import stage_memory
from pipelog.tables.topology import MOST_RANKS, Topology

_MS = 1e6


def measured(document: dict[str, Any]) -> Measured:
    """From the document of report.json; what it does not carry is null, with the reason. Raises BadReport where it is damaged."""
    try:
        return _measured(document)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, ZeroDivisionError, OverflowError) as error:
        raise BadReport(f"not a whole report: {error!r}") from error


def saved(path: str) -> Report | None:
    """The report in a report.json, null where the file is something else or a folder. Raises BadReport where it is damaged."""
    place = Path(path)
    try:
        with place.open("rb") as file:
            if b'"schema": "pipelog.report/' not in file.read(200):
                return None
        return Report.from_json(place.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return None


_SHAPE = {"world_size": MOST_RANKS, "pp": MOST_STAGES_AT_ALL, "dp": MOST_RANKS, "tp": MOST_RANKS}
_SIZES = {"train_batch_size": MOST, "micro_batch_size": MOST, "micro_batches": MOST, "virtual_stages": MOST_STAGES_AT_ALL}


def _counts(given: dict[str, Any], names: dict[str, int], least: int = 1) -> dict[str, int | None]:
    """Whole numbers by name, null where they are not known. Raises ValueError for anything else: the report is damaged."""
    for name, most in names.items():
        value = given.get(name)
        if value is not None and (type(value) is not int or not least <= value <= most):
            raise ValueError(f"{name} is {value!r}")
    return {name: given.get(name) for name in names}


def _measured(document: dict[str, Any]) -> Measured:
    shape, config, metrics = document["topology"], document["config"], document["metrics"]
    known = _counts(shape, _SHAPE)
    sizes = _counts(config, _SIZES) | _counts(config, {"zero_stage": 3, "activation_checkpoint_interval": MOST}, least=0)
    costs: Costs | None = None
    error: float | None = None
    why: str | None = None
    memory: Memory | None = None
    why_memory: str | None = None
    try:
        costs, error = _costs(document)
    except CannotTell as reason:
        why = str(reason)
    try:
        memory = _memory(document)
    except CannotTell as reason:
        why_memory = str(reason)
    return Measured(
        str(document.get("name") or "run"),
        known,
        sizes,
        costs,
        memory,
        why,
        why_memory,
        error,
        tuple(w for w in metrics.get("what_if") or [] if math.isfinite(w["gain"]) and w["step_time_s"] > 0 and str(w["change"])),
    )


def _costs(document: dict[str, Any]) -> tuple[Costs, float]:
    """Busy time of every stage over m, split into passes; transfers of every link. The run's own phase, simulated, has to come out."""
    shape, config, metrics = document["topology"], document["config"], document["metrics"]
    p, m, bubble = shape.get("pp"), config.get("micro_batches"), metrics.get("bubble") or {}
    if not p or p < 2:
        raise CannotTell("the run has no pipeline of several stages" if p else "the run does not tell its number of stages")
    if not m:
        raise CannotTell("the run does not tell its number of micro-batches")
    if p > MOST_STAGES:
        raise CannotTell(f"pipelines of more than {MOST_STAGES} stages are not simulated")
    if config.get("schedule") not in (None, "1f1b"):
        raise CannotTell(f"the run's schedule is {config['schedule']}, not DeepSpeed's 1F1B")
    stages = {int(s["stage"]): s for s in bubble.get("per_stage") or []}
    if bubble.get("source") != "trace" or bubble.get("scope") != "run" or set(stages) != set(range(p)):
        seen = f"only stage {listed(sorted(stages))} was measured" if stages else "no stage's compute was measured"
        raise CannotTell(f"{seen}: a profiler trace of one step on every rank would show what each stage costs")
    slow = [f for f in document.get("findings", []) if f["name"] == "straggler-rank" and f["severity"] != "info"]
    if slow:
        raise CannotTell(f"{slow[0]['title']}: until that is mended, what its replica needs is not what the others need")
    busy = [float(stages[s]["busy_s"]) * 1e9 for s in range(p)]
    if not all(0 < b < math.inf and 0 <= stages[s]["bubble"] < 1 for s, b in enumerate(busy)):
        raise ValueError("per_stage holds no shares and times")
    length = float(np.median([b / (1 - float(stages[s]["bubble"])) for s, b in enumerate(busy)]))
    split = _split(document.get("charts", {}).get("timeline"), p)
    forward = [b / m * f for b, f in zip(busy, split, strict=True)]
    step = (metrics.get("step_time_s") or {}).get("median")
    made = Costs(
        tuple(forward),
        tuple(b / m - f for b, f in zip(busy, forward, strict=True)),
        _links(document.get("charts", {}).get("links") or [], p),
        f"measured in {document.get('name') or 'the run'}",
        config.get("micro_batch_size"),
        max(0.0, step * 1e9 - length) if step else None,
        _layers(shape, p),
    )
    error = phase(made, "1f1b", m).phase_ns / length - 1
    if not math.isfinite(error):
        raise ValueError("links or timeline hold what is no number")
    if abs(error) > MOST_ERROR:
        raise CannotTell(f"{off(error)}, more than {percent(MOST_ERROR)}: {_lost(metrics)}")
    return replace(made, stretch=1 / (1 + error)), error


def _lost(metrics: dict[str, Any]) -> str:
    """The parts of the phase that the simulation does not hold."""
    parts = {p["part"]: p["share"] for p in metrics.get("phase_breakdown") or []}
    loud = [f"{name} ({percent(parts[name])} of the phase)" for name in ("data", "stall", "host-gap", "other") if parts.get(name, 0) > 0.02]
    return f"costs of stages do not hold its {' and '.join(loud)}" if loud else "its micro-batches differ too much from each other"


def _split(timeline: dict[str, Any] | None, p: int) -> list[float]:
    """Forward's share of a micro-batch's passes on each stage, from the timeline's passes; one third where they are not drawn."""
    usual = 1 / (1 + USUAL_BACKWARD)
    out = [usual] * p
    for row in (timeline or {}).get("rows", []):
        items = row.get("items") or []
        forward, backward = (float(np.median(d)) if (d := [i[3] for i in items if i[0] == kind]) else 0.0 for kind in ("forward", "backward"))
        if forward > 0 and backward > 0 and 0 <= row["stage"] < p:
            out[row["stage"]] = forward / (forward + backward)
    return out


def _links(links: list[dict[str, Any]], p: int) -> Links:
    """Transfer and idle time before it, down and up, by edge, ns; zero where no message was matched."""
    by_edge = {(int(x["source"]), int(x["target"])): x for x in links}

    def column(key: str, *, down: bool) -> tuple[float, ...]:
        edges = [(s, s + 1) if down else (s + 1, s) for s in range(p - 1)]
        return tuple(float(by_edge[e][key]) * _MS if e in by_edge else 0.0 for e in edges)

    return Links(*(column(key, down=down) for key in ("transfer_ms", "late_ms") for down in (True, False)))


def _layers(shape: dict[str, Any], p: int) -> tuple[int, ...] | None:
    counts = {s["stage"]: s["layers"][1] - s["layers"][0] for s in shape.get("stages") or [] if s.get("layers")}
    if set(counts) != set(range(p)) or any(type(n) is not int or n < 0 for n in counts.values()):
        return None
    return tuple(counts[s] for s in range(p))


def _memory(document: dict[str, Any]) -> Memory:
    """Activations of one micro-batch by the report's own rule: the median difference of neighbouring inner stages."""
    shape, config = document["topology"], document["config"]
    rows = (document["metrics"].get("memory") or {}).get("per_stage") or []
    p, m, micro = shape.get("pp"), config.get("micro_batches"), config.get("micro_batch_size")
    if not rows:
        raise CannotTell("the run shows no memory by stage")
    if not (p and m and micro and len(rows) == p):
        raise CannotTell("the run does not tell its stages, micro-batches and their size, or not the memory of every stage")
    if not all(type(r["peak_bytes"]) is int and r["peak_bytes"] > 0 for r in rows):
        raise ValueError("peak_bytes are no bytes")
    numbers = list(range(p))
    frame = pd.DataFrame(
        {"rank": numbers, "stage": [r["stage"] for r in rows], "max_allocated": [r["peak_bytes"] for r in rows], "file": "report.json", "line": 1}
    )
    params = pd.DataFrame({"stage": numbers, "params": pd.Series([_params(shape, s) for s in numbers], dtype="Int64")})
    found = stage_memory(frame, Topology(pp=p, stages=params), Config(micro_batches=m))
    if not found.slope_bytes:
        raise CannotTell(found.reason or "the peaks of neighbouring stages do not differ by activations: something else sets them")
    capacity = document["metrics"]["memory"].get("capacity_bytes")
    if capacity is not None and not (type(capacity) is int and capacity > 0):
        raise ValueError("capacity_bytes are no bytes")
    peaks = tuple(int(b) for b in found.per_stage["peak_bytes"])
    return Memory(peaks, found.slope_bytes, m, micro, config.get("zero_stage") != 0, capacity)


def _params(shape: dict[str, Any], stage: int) -> int | None:
    return next((s.get("params") for s in shape.get("stages") or [] if s["stage"] == stage), None)
