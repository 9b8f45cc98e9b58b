"""Tables → the report's figures: run, topology, configuration, metrics. No judgement here, and no drawing."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from pipelog import charts
from pipelog._text import count
from pipelog.events import Events
from pipelog.findings import Outcome, Status
from pipelog.postmortem.deaths import Death
from pipelog.postmortem.ledger import effective_ratio
from pipelog.postmortem.when import failed, times
from pipelog.replay import told
from pipelog.report import JSON, Frames, Report
from pipelog.tables import CannotTell, Tables, of_kind
from pipelog.tables.bubble import Bubble
from pipelog.tables.capacity import Capacity
from pipelog.tables.clock import Clocks
from pipelog.tables.config import Config
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
        failure=_failure(tables["ended"]),
        name=name,
        charts=charts.data(tables),
        notes=_notes(tables),
        tables=Frames({k: v for k, v in tables.computed().items() if isinstance(v, pd.DataFrame)}),
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


_MOST_CHANGES = 20
_SHOWN_NOTES = frozenset({"prefixes", "rank_from_name", "lines", "rank", "rank_from", "host", "trace_events", "truncated", "device_name", "vendor"})


def _run(tables: Tables) -> JSON:
    config: Config = tables["config"]
    deaths: list[Death] = tables["deaths"]
    chosen: int = tables["chosen"]
    spans = {int(n): (int(r["first"]), int(r["last"])) for n, r in tables["spans"].iterrows()}
    first, last = spans.get(chosen, (None, None))
    started, ended, length = times(tables)
    saved, lost = (_int(v) for v in tables["losses"].loc[chosen, ["saved", "lost_steps"]])
    facts = tables["facts"]
    changed = _changes(tables)
    step = _median_step(tables["steps"])
    torch = said(facts, ("version.torch",))
    return {
        "status": tables["ended"].status,
        "frameworks": {
            "deepspeed": config.deepspeed,
            "torch": str(torch[0].value) if torch else None,
            "megatron": bool(len(facts[facts["name"].str.startswith("args.")]) and _megatron_printed(tables)) or None,
        },
        "started_at": started,
        "ended_at": ended,
        "duration_s": length,
        "first_step": first,
        "last_step": last,
        "last_checkpoint_step": saved,
        "lost_steps": lost,
        "lost_s": _lost_s(tables, lost, step),
        "attempt": chosen,
        "attempts": [
            {
                "index": e.attempt,
                "status": e.status,
                "first_step": spans.get(e.attempt, (None, None))[0],
                "last_step": spans.get(e.attempt, (None, None))[1],
                "category": e.category,
                "changed": changed.get(e.attempt, [])[:_MOST_CHANGES],
            }
            for e in deaths
        ],
        "ledger": _ledger(tables),
        "read": _read(tables),
    }


def _lost_s(tables: Tables, lost: int | None, step: float | None) -> float | None:
    """The time of the lost steps as the ledger has it, which fits it into the time that there was; else their number times the median."""
    spent = tables["ledger"].loc[tables["chosen"], "lost_s"]
    if lost is None:
        return None
    return round(float(spent), 3) if pd.notna(spent) else round(lost * step, 3) if step is not None else None


def _read(tables: Tables) -> dict[str, int]:
    """How many rows of each kind the chosen attempt has: what was read, whether or not a rule could use it."""
    counts = pa.compute.value_counts(tables["here"].column("kind").cast(pa.string())).to_pylist()
    return {c["values"]: c["counts"] for c in sorted(counts, key=lambda c: str(c["values"]))}


def _changes(tables: Tables) -> dict[int, list[str]]:
    """Attempt → what was changed since the one before."""
    found = tables.get("changes")
    if found is None:
        return {}
    said_ = found["name"] + ": " + found["before"] + " → " + found["after"]
    return {int(attempt): list(mine) for attempt, mine in said_.groupby(found["attempt"])}


def _megatron_printed(tables: Tables) -> bool:
    return bool(len(of_kind(tables["here"], "iteration", "megatron_timer"))) or tables["steps"].source == "megatron"


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
            "why_wide": bubble.why_wide,
            "per_stage": bubble.per_stage,
        },
        "phase_breakdown": [{"part": p, "share": v} for p, v in split.phase.items()] if split is not None else [],
        "step_breakdown": [{"part": p, "share": v} for p, v in split.step.items()] if split is not None else [],
        "replay_error": split.replay_error if split is not None else None,
        "stage_imbalance": _imbalance(tables),
        "memory": _memory(tables, outcomes),
        "devices": [{k: _plain(v) for k, v in row.items()} for row in devices.to_dict("records")],
        "replay": told.figures(tables),
        "what_if": told.changes(tables),
    }


def _step_time(steps: Steps, median: float | None) -> JSON:
    rows = steps.measured()
    single = len(rows) > 0 and bool((rows["steps"].fillna(0) == 1).all())
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
    return {"value": float(worst["excess"]), "slowest_stage": int(worst["stage"]), "source": tables["compute_time"]["source"].iloc[0]}


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
    stated: Capacity | None = tables.get("capacity")
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
        "capacity_bytes": stated.size_bytes if stated is not None else None,
    }


def _failure(death: Death) -> JSON | None:
    """How the last attempt ended, where it did not come to its end and a line says how."""
    if death.status == "completed" or death.category is None:
        return None
    return {
        "category": death.category,
        "cause_known": death.known,
        "confidence": death.confidence.value,
        "title": death.title,
        "ranks": list(death.ranks),
        "stages": list(death.stages),
        "hosts": list(death.hosts),
        **failed(death),
        "step": death.step,
        "phase": death.phase,
        "kind": death.kind,
        "evidence": [{"file": e.file, "line": e.line, "text": e.text} for e in death.evidence],
        "consequences": [dict(c) for c in death.consequences],
        "missing": list(death.missing),
        "advice": [{"action": a.action, "expected": a.expected} for a in death.advice],
    }


def _ledger(tables: Tables) -> JSON | None:
    """Where the time of the attempts went; null for a single one without clocks."""
    found = tables.get("ledger")
    if found is None or found["wall_s"].isna().all() or tables["attempts"].jobs:
        return None
    rows = found.drop(columns=["status", "category"]).to_dict("records")
    return {
        "attempts": [{k: (int(v) if k == "attempt" else _rounded(v)) for k, v in row.items() if k != "after_s" or v > 0} for row in rows],
        "effective_ratio": _rounded(effective_ratio(found)),
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else round(value, 3)


def _notes(tables: Tables) -> list[str]:
    """What a reader should know before the figures; asked for last, since it tells also what failed until then."""
    notes = [n for n in [tables["unread"]] if n]
    attempts = tables["attempts"]
    if attempts.count > 1:
        what = "starts of different jobs" if attempts.jobs else "starts of the job"
        before = "" if attempts.jobs else _ended_before(tables)
        chosen = f"attempt {tables['chosen']} (the first is 0; --attempt shows another)"
        notes.append(f"The files hold {attempts.count} {what}; {before}the figures speak of {chosen}.")
    notes += [n for n in [tables["afterwards"]] if n]
    notes += _without_checkpoint(tables)
    if _warm_up_alone(tables):
        notes.append("One print interval alone was timed, and the first holds warm-up: its times are no claim about the run.")
    clocks = tables["clocks"]
    if clocks.error_ns:
        notes.append(f"Traces of several hosts were put on one clock by their messages; the error is at most {clocks.error_ns / 1e6:.3f} ms.")
    if (matched := tables.get("matched")) is not None and matched.by_order:
        notes.append(
            f"The traces do not say whom {count(matched.by_order, 'message')} went to: matched by the order of DeepSpeed's schedule, which the calls of every rank follow"
            f"{f' in the other steps ({matched.why_not})' if matched.why_not else ''}."
        )
    traces = tables["host_traces"]
    untied = {t.clock for t in traces} - set(clocks.offset_ns)
    if untied:
        notes.append(f"{len(untied)} of the traces' clocks could not be tied to the others, so nothing compares their times{_within(clocks)}.")
    notes += [
        f"pipelog failed on the table {table} ({type(error).__name__}: {error}), and figures that need it are left out: please report it."
        for table, error in tables.faults().items()
    ]
    return notes


def _within(clocks: Clocks) -> str:
    """That replicas on hosts of their own are measured all the same."""
    return " with those of the others; each replica is measured on the clock of its own hosts" if clocks.apart else ""


_MOST_ENDS = 3


def _ended_before(tables: Tables) -> str:
    """How the other starts ended, where they failed: `attempt 0 failed after step 9 (killed); `."""
    deaths: list[Death] = tables["deaths"]
    told: Death = tables["ended"]
    last = {int(n): int(row["last"]) for n, row in tables["spans"].iterrows()}
    words = {"failed": "failed", "hung": "hung", "cancelled": "was cancelled", "time-limit": "met its time limit", "preempted": "was preempted"}
    said_ = [
        f"attempt {d.attempt} {words[d.status]}{f' after step {last[d.attempt]:,}' if d.attempt in last else ''}{f' ({d.category})' if d.category else ''}; "
        for d in deaths
        if d.status in words and d.attempt != told.attempt
    ]
    return "".join(said_[-_MOST_ENDS:])


def _without_checkpoint(tables: Tables) -> list[str]:
    """That a checkpoint was asked for and none was there, which DeepSpeed takes for a beginning: nobody asks for one without hoping to go on."""
    rows = of_kind(tables["here"], "checkpoint").select(["name", "file", "line", "text"]).to_pylist()
    missing = next((r for r in rows if r["name"] == "missing"), None)
    if missing is None or any(r["name"] in ("loaded", "loading") for r in rows):
        return []
    return [
        (
            f"A checkpoint was to be loaded, and there was none ({missing['text']}, {missing['file']}:{missing['line']}): training began anew. "
            "If it was to go on from one, look at the path before anything else."
        )
    ]


def _warm_up_alone(tables: Tables) -> bool:
    """Whether all that times the run is the first printed interval."""
    steps: Steps = tables["steps"]
    bubble: Bubble = tables["bubble"]
    timed = steps.rows.dropna(subset=["dur_ns"])
    return steps.source not in (None, "trace") and len(timed) == 1 and bubble.source != "trace"


def _int(value: Any) -> int | None:
    return None if pd.isna(value) else int(value)


def _float(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(value)


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value
