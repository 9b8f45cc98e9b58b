"""The plan as JSON, described by schema/plan-1.json (`pipelog schema --plan`). What is not known is null."""

from __future__ import annotations

import json
import math
from fractions import Fraction
from typing import Any

from pipelog._version import __version__
from pipelog.findings import Finding
from pipelog.planning import schedules
from pipelog.planning.batch import Fit
from pipelog.planning.document import sections
from pipelog.planning.options import Option
from pipelog.planning.plan import Plan

SCHEMA = "pipelog.plan/1"


def render(plan: Plan) -> str:
    """The document, indented."""
    return json.dumps(document(plan), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def document(plan: Plan) -> dict[str, Any]:
    """All numbers of the plan; times in seconds, sizes in bytes, bubbles as exact fraction and as number."""
    said, bench = plan.verdict, plan.bench
    return {
        "schema": SCHEMA,
        "pipelog_version": __version__,
        "name": plan.name,
        "verdict": {"word": said.word, "tone": said.tone, "sentence": said.sentence},
        "batch": {
            "train_batch_size": bench.batch.train,
            "micro_batch_size": bench.batch.micro,
            "micro_batches": bench.batch.m,
            "replicas": bench.batch.replicas,
            "micro_batches_of_all_replicas": bench.batch.global_count or bench.batch.m if bench.batch.m else None,
            "sources": dict(bench.batch.source),
            "problem": bench.batch.problem,
        },
        "shape": {"gpus": bench.mesh.gpus, "stages": bench.mesh.stages, "tp": bench.mesh.tp, "problem": bench.mesh.problem},
        "schedule": bench.schedule,
        "virtual_stages": bench.v,
        "findings": [_finding(f) for f in plan.findings],
        "fits": [_fit(f, o) for f, o in plan.fits],
        "as_configured": _option(plan.now) if plan.now else None,
        "micro_batches": [_option(o) for o in plan.micro_batches],
        "stages": [_option(o) for o in plan.stages],
        "schedules": [_option(o) for o in plan.schedules],
        "grid": _grid(plan),
        "costs": _costs(plan),
        "notes": [text for s in sections(plan) if not s.rows for text in s.says],
        "missing": list(plan.missing),
    }


def _grid(plan: Plan) -> dict[str, Any]:
    """Bubbles over micro-batches (rows) and stages (columns) by schedule, null where it cannot run."""
    ms, ps = plan.grid
    kinds = dict.fromkeys([(plan.bench.schedule, plan.bench.v), *((o.schedule, o.v) for o in plan.schedules)])
    return {
        "micro_batches": ms,
        "stages": ps,
        "schedules": [
            {
                "schedule": name,
                "virtual_stages": v,
                "bubble": [[None if schedules.impossible(name, p, m, v) else float(schedules.bubble(name, p, m, v)) for p in ps] for m in ms],
            }
            for name, v in kinds
        ],
    }


def _finding(f: Finding) -> dict[str, Any]:
    return {
        "id": f.id or None,
        "name": f.name,
        "severity": f.severity.value,
        "confidence": f.confidence.value,
        "title": f.title,
        "evidence": [{"file": e.file, "line": e.line} for e in f.evidence],
        "advice": [{"action": a.action, "expected": a.expected} for a in f.advice],
    }


def _fit(f: Fit, o: Option) -> dict[str, Any]:
    return {"change": f.change, "gpus": f.gpus, **_option(o), "price": f.price}


def _option(o: Option) -> dict[str, Any]:
    return {
        "stages": o.stages,
        "micro_batches": o.m,
        "micro_batch_size": o.micro,
        "train_batch_size": o.train,
        "replicas": o.replicas,
        "schedule": o.schedule,
        "virtual_stages": o.v,
        "runs_in": schedules.SCHEDULES[o.schedule].runs_in,
        "possible": o.why_not is None,
        "why_not": o.why_not,
        "as_configured": o.now,
        "bubble": _fraction(o.bubble),
        "time_over_ideal": _number(float(schedules.over_ideal(o.bubble))),
        "in_flight": [float(h) for h in o.held],
        "messages": o.messages,
        "activations_over_configured": _number(o.activations),
        "predicted": {
            "phase_s": _number(o.phase_ns, 1e9),
            "step_s": _number(o.step_ns, 1e9),
            "samples_per_s": _number(o.samples_per_s),
            "bubble": _number(o.idle),
            "bubble_per_stage": None if o.idle_by_stage is None else [_number(v) for v in o.idle_by_stage],
            "peak_bytes": None if o.peak_bytes is None else list(o.peak_bytes),
        },
        "price": o.price or None,
    }


def _fraction(value: Fraction) -> dict[str, Any]:
    return {"numerator": value.numerator, "denominator": value.denominator, "value": float(value)}


def _costs(plan: Plan) -> dict[str, Any] | None:
    """What predictions rest on; times are null where only their ratios are known."""
    costs, run = plan.bench.costs, plan.wanted.measured
    if costs is None:
        return None
    unit = None if costs.relative else 1e9
    return {
        "basis": costs.basis,
        "relative": costs.relative,
        "compute_per_micro_batch_s": None if unit is None else [_number(costs.total_ns(s), unit) for s in range(costs.stages)],
        "shares": [_number(costs.total_ns(s) / sum(costs.total_ns(k) for k in range(costs.stages))) for s in range(costs.stages)],
        "micro_batch_size": costs.micro_batch,
        "layers": None if costs.layers is None else list(costs.layers),
        "outside_phase_s": _number(costs.rest_ns, 1e9),
        "simulation_error": _number(run.error) if run and run.costs is costs else None,
    }


def _number(value: float | None, unit: float = 1.0) -> float | None:
    return value / unit if value is not None and math.isfinite(value) else None
