"""Tables → the report's figures: run, topology, configuration, metrics. No judgement here, and no drawing."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from pipelog import charts
from pipelog.events import Events
from pipelog.findings import Outcome, Status
from pipelog.report import JSON, Report
from pipelog.tables import CannotTell, Tables, of_kind
from pipelog.tables.bubble import Bubble
from pipelog.tables.config import Config
from pipelog.tables.ending import Ending
from pipelog.tables.steps import Steps, series
from pipelog.tables.topology import Said, Topology, said


def report(events: Events, tables: Tables, outcomes: tuple[Outcome, ...], name: str) -> Report:
    """Put the report together from the tables and what the rules found."""
    run = _run(tables)
    return Report(
        inputs=[_input(i) for i in events.inputs],
        run=run,
        topology=_topology(tables["topology"]),
        config=_config(tables["config"]),
        metrics=_metrics(tables, outcomes),
        outcomes=outcomes,
        failure=_failure(tables["endings"][-1], run),
        name=name,
        charts=charts.data(tables),
        notes=_notes(tables),
        tables={k: v for k, v in tables.computed().items() if isinstance(v, pd.DataFrame)},
    )


def _input(given: Any) -> JSON:
    return {
        "path": given.path,
        "kind": given.kind,
        "bytes": given.bytes,
        "events": given.events,
        "skipped": [{"line": s.line, "why": s.why} for s in given.skipped],
        "notes": {k: v for k, v in given.notes.items() if v not in (None, [], False) and k in _SHOWN_NOTES},
    }


_SHOWN_NOTES = frozenset({"prefixes", "rank_from_name", "lines", "rank", "rank_from", "host", "trace_events", "truncated", "device_name", "vendor"})


def _run(tables: Tables) -> JSON:
    config: Config = tables["config"]
    endings: list[Ending] = tables["endings"]
    chosen: int = tables["chosen"]
    checkpoints: pd.DataFrame = tables["checkpoints"]
    spans = _spans(tables)
    first, last = spans.get(chosen, (None, None))
    started, ended, length = _times(tables)
    saved = _last_checkpoint(checkpoints, chosen)
    lost = _lost_steps(tables, chosen, endings[-1], first, last, saved)
    facts = tables["facts"]
    step = _median_step(tables["steps"])
    torch = said(facts, ("version.torch",))
    return {
        "status": endings[-1].status,
        "frameworks": {
            "deepspeed": config.deepspeed,
            "torch": str(torch[0].value) if torch else None,
            "megatron": bool(len(facts[facts["name"].str.startswith("args.")]) and _has(tables, "megatron")) or None,
        },
        "started_at": started,
        "ended_at": ended,
        "duration_s": length,
        "first_step": first,
        "last_step": last,
        "last_checkpoint_step": saved,
        "lost_steps": lost,
        "lost_s": round(lost * step, 3) if lost is not None and step is not None else None,
        "attempts": [
            {
                "index": e.attempt,
                "status": e.status,
                "first_step": spans.get(e.attempt, (None, None))[0],
                "last_step": spans.get(e.attempt, (None, None))[1],
                "category": e.category,
            }
            for e in endings
        ],
    }


def _has(tables: Tables, source: str) -> bool:
    return bool(len(of_kind(tables["here"], "iteration", "megatron_timer"))) or tables["steps"].source == source


def _spans(tables: Tables) -> dict[int, tuple[int, int]]:
    """First and last step of each attempt, as printed; from traces where no line was."""
    rows = of_kind(tables["rows"], "step", "iteration").select(["attempt", "step", "steps", "dur_ns"]).to_pandas()
    rows = rows.dropna(subset=["attempt", "step"])
    printed = tables["config"].steps_per_print or 1
    out = {}
    for attempt, mine in rows.groupby("attempt"):
        steps = np.unique(mine["step"].to_numpy(dtype=np.int64))
        gap = int(np.diff(steps).min()) if len(steps) > 1 else min(printed, int(steps[0]))
        out[int(attempt)] = (max(1, int(steps[0]) - gap + 1), int(steps[-1]))
    chosen, steps_table = tables["chosen"], tables["steps"]
    if chosen not in out and steps_table.source == "trace":
        numbers = steps_table.rows["step"]
        out[chosen] = (int(numbers.min()), int(numbers.max()))
    return out


def _times(tables: Tables) -> tuple[str | None, str | None, float | None]:
    """First and last time of the logs of the chosen attempt, as ISO 8601; with Z where the clock is UTC."""
    rows = tables["here"]
    clock = rows.column("clock").cast(pa.string())
    for name, suffix in (("utc", "Z"), ("log", "")):
        mask = pa.compute.and_(pa.compute.equal(clock, name), pa.compute.is_valid(rows.column("start_ns")))
        times = rows.column("start_ns").filter(pa.compute.fill_null(mask, False))
        if len(times):
            low, high = int(pa.compute.min(times).as_py()), int(pa.compute.max(times).as_py())
            return _iso(low) + suffix, _iso(high) + suffix, round((high - low) / 1e9, 3)
    return None, None, None


def _iso(ns: int) -> str:
    return datetime.fromtimestamp(ns / 1e9, UTC).replace(tzinfo=None).isoformat(timespec="milliseconds")


def _last_checkpoint(checkpoints: pd.DataFrame, attempt: int) -> int | None:
    """The last complete one up to this attempt: an earlier start's checkpoint is still there."""
    mine = checkpoints[checkpoints["attempt"].fillna(0) <= attempt]
    return int(mine["step"].iloc[-1]) if len(mine) else None


def _lost_steps(tables: Tables, attempt: int, ending: Ending, first: int | None, last: int | None, saved: int | None) -> int | None:
    """Steps after the last checkpoint; all of the attempt where it is known to have written none."""
    if ending.status == "completed" or last is None:
        return None
    if saved is not None:
        return max(0, last - saved)
    every = said(tables["facts"], ("args.save_interval",))
    if every and isinstance(every[0].value, float) and first is not None and every[0].value > last:
        return last - first + 1
    del attempt
    return None


def _median_step(steps: Steps) -> float | None:
    """Median step time over the steps, s: every interval counts as often as it has steps."""
    rows = steps.measured()
    if not len(rows):
        return None
    weights = rows["steps"].astype("Float64").fillna(1).to_numpy(dtype=float)
    return float(weighted_quantile(rows["dur_ns"].to_numpy(dtype=float), weights, 0.5)) / 1e9


def weighted_quantile(values: np.ndarray, weights: np.ndarray, q: float) -> float:
    """The value below which a share *q* of the weight lies; the middle of two where it falls between them."""
    order = np.argsort(values, kind="stable")
    values, weights = values[order], weights[order]
    reach = np.cumsum(weights) / weights.sum()
    place = int(np.searchsorted(reach, q - 1e-12))
    if place + 1 < len(values) and math.isclose(float(reach[place]), q, abs_tol=1e-9):
        return float(values[place] + values[place + 1]) / 2
    return float(values[min(place, len(values) - 1)])


def _topology(topology: Topology) -> JSON:
    ranks = topology.ranks
    stages = topology.stages
    return {
        "world_size": topology.world_size,
        "pp": topology.pp,
        "dp": topology.dp,
        "tp": topology.tp,
        "ranks": [
            {
                "rank": int(r["rank"]),
                "stage": _int(r["stage"]),
                "dp": _int(r["replica"]),
                "tp": _int(r["tensor"]),
                "host": r["host"] if isinstance(r["host"], str) else None,
            }
            for r in ranks.to_dict("records")
        ],
        "stages": [
            {
                "stage": int(s["stage"]),
                "layers": [int(s["first_layer"]), int(s["first_layer"]) + int(s["layers"])]
                if pd.notna(s["first_layer"]) and pd.notna(s["layers"])
                else None,
                "params": _int(s["params"]),
            }
            for s in stages.to_dict("records")
        ],
        "partition_method": topology.partition_method,
        "sources": {k: _source(v) for k, v in topology.said.items()},
    }


def _config(config: Config) -> JSON:
    return {
        "train_batch_size": config.train_batch_size,
        "micro_batch_size": config.micro_batch_size,
        "micro_batches": config.micro_batches,
        "zero_stage": config.zero_stage,
        "precision": config.precision,
        "activation_checkpoint_interval": config.activation_checkpoint_interval,
        "schedule": config.schedule,
        "virtual_stages": config.virtual_stages,
        "steps_per_print": config.steps_per_print,
        "wall_clock_breakdown": config.wall_clock_breakdown,
        "sources": {k: _source(v) for k, v in config.said.items()},
    }


def _source(value: Said) -> JSON:
    return {"file": value.file, "line": value.line, "source": value.source}


def _metrics(tables: Tables, outcomes: tuple[Outcome, ...]) -> JSON:
    steps: Steps = tables["steps"]
    median = _median_step(steps)
    bubble: Bubble = tables["bubble"]
    split = tables.get("breakdown")
    devices: pd.DataFrame = tables["devices"]
    return {
        "step_time_s": _step_time(steps, median),
        "samples_per_s": _samples_per_s(tables, median),
        "bubble": {
            "ideal": _float(bubble.ideal),
            "measured": _float(bubble.measured),
            "source": bubble.source,
            "low": _float(bubble.low),
            "high": _float(bubble.high),
            "scope": bubble.scope,
            "basis": bubble.basis,
            "note": bubble.note,
            "per_stage": bubble.per_stage,
        },
        "phase_breakdown": [{"part": p, "share": v} for p, v in split.phase.items()] if split is not None else [],
        "step_breakdown": [{"part": p, "share": v} for p, v in split.step.items()] if split is not None else [],
        "replay_error": split.replay_error if split is not None else None,
        "stage_imbalance": _imbalance(tables),
        "memory": _memory(tables, outcomes),
        "devices": [{k: _plain(v) for k, v in row.items()} for row in devices.to_dict("records")],
        "what_if": [],
    }


def _step_time(steps: Steps, median: float | None) -> JSON:
    rows = steps.measured()
    single = len(rows) > 0 and steps.source != "megatron" and bool((rows["steps"].fillna(0) == 1).all())
    single = single or (len(rows) > 0 and bool((rows["steps"].fillna(0) == 1).all()))
    values = rows["dur_ns"].to_numpy(dtype=float) / 1e9
    return {
        "median": median,
        "p95": float(np.quantile(values, 0.95)) if single and len(values) >= 5 else None,
        "n": int(rows["steps"].fillna(1).sum()) if len(rows) else 0,
        "source": steps.source,
    }


def _samples_per_s(tables: Tables, median: float | None) -> float | None:
    """Global batch over the median step time; the printed figure where the batch or the time is not known."""
    config: Config = tables["config"]
    if config.train_batch_size and median:
        return config.train_batch_size / median
    scalars = tables["scalars"]
    printed = series(scalars, "samples_per_s")["value"]
    if not len(printed):
        printed = scalars[scalars["name"] == "samples_per_s"]["value"]
    if not len(printed):
        return None
    return _float(float(printed.iloc[1:].median() if len(printed) > 1 else printed.iloc[0]))


def _imbalance(tables: Tables) -> JSON:
    balance, topology = tables.get("balance"), tables["topology"]
    if balance is None or topology.pp is None or topology.pp < 2 or len(balance) < topology.pp:
        return {"value": None, "slowest_stage": None, "source": None}
    worst = balance.loc[balance["excess"].idxmax()]
    return {"value": float(worst["excess"]), "slowest_stage": int(worst["stage"]), "source": "trace"}


def _memory(tables: Tables, outcomes: tuple[Outcome, ...]) -> JSON:
    try:
        found = tables["stage_memory"]
    except CannotTell:
        return {"skew": None, "per_stage": [], "verdict": None}
    rows = found.per_stage
    known = rows.dropna(subset=["expected_bytes"])
    skew = float((known["peak_bytes"] / known["expected_bytes"] - 1).max()) if len(known) else None
    status = next((o.status for o in outcomes if o.name == "memory-skew"), None)
    verdict = {Status.FOUND: "unexplained", Status.CLEAR: "explained"}.get(status) if status else None
    return {
        "skew": skew,
        "per_stage": [
            {
                "stage": int(r["stage"]),
                "peak_bytes": int(r["peak_bytes"]),
                "expected_bytes": int(r["expected_bytes"]) if pd.notna(r["expected_bytes"]) else None,
            }
            for r in rows.to_dict("records")
        ],
        "verdict": verdict,
        "reason": found.reason,
    }


_FAILURE_TITLES = {
    "scheduler.time-limit": "the scheduler ended the job at its time limit",
    "scheduler.preempted": "the scheduler preempted the job",
    "scheduler.cancelled": "the job was cancelled from outside",
    "hardware.node": "the scheduler lost a node",
}


def _failure(ending: Ending, run: JSON) -> JSON | None:
    """What ended the run otherwise than by finishing, as far as a scheduler, launcher or traceback says so plainly."""
    if ending.status in ("completed", "incomplete") or ending.file is None:
        return None
    category = ending.category or "unknown"
    return {
        "category": category,
        "cause_known": ending.category is not None,
        "confidence": "high" if ending.category else "low",
        "title": _FAILURE_TITLES.get(category, "the run failed"),
        "ranks": [],
        "stages": [],
        "hosts": list(ending.hosts),
        "at": _iso(ending.at_ns) if ending.at_ns is not None else None,
        "step": run["last_step"],
        "evidence": [{"file": ending.file, "line": ending.line, "text": ending.text}],
        "consequences": [],
        "missing": []
        if ending.category
        else ["who failed first and why is not analyzed by this version; the line named is where the end shows first"],
        "advice": [],
    }


def _notes(tables: Tables) -> list[str]:
    """What a reader should know before the figures."""
    notes = []
    attempts = tables["attempts"]
    if attempts.count > 1:
        notes.append(f"The files hold {attempts.count} starts of the job; the figures speak of start {tables['chosen'] + 1}.")
    clocks = tables["clocks"]
    if clocks.error_ns:
        notes.append(f"Traces of several hosts were put on one clock by their messages; the error is at most {clocks.error_ns / 1e6:.3f} ms.")
    traces = tables["host_traces"]
    untied = {t.clock for t in traces} - set(clocks.offset_ns)
    if untied:
        notes.append(f"{len(untied)} of the traces' clocks could not be tied to the others, so nothing compares their times.")
    return notes


def _int(value: Any) -> int | None:
    return None if pd.isna(value) else int(value)


def _float(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(value)


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value
