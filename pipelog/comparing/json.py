"""The comparison as JSON, described by schema/diff-1.json (`pipelog schema --diff`). What is not known is null."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from pipelog._version import __version__
from pipelog.comparing import places
from pipelog.comparing.comparison import Comparison
from pipelog.comparing.findings import Changed
from pipelog.comparing.side import Side
from pipelog.findings import Finding, as_dict

SCHEMA = "pipelog.diff/1"


def render(made: Comparison) -> str:
    """The document, indented."""
    text = json.dumps(document(made), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    return text.encode("utf-8", "replace").decode("utf-8")


def document(made: Comparison) -> dict[str, Any]:
    """All numbers; times in seconds, sizes in bytes, ratios are B over A."""
    said, a, b = made.verdict, made.a, made.b
    return {
        "schema": SCHEMA,
        "pipelog_version": __version__,
        "verdict": {"word": said.word, "tone": said.tone, "sentence": said.sentence},
        "why_not": made.why_not,
        "time": _time(made),
        "reasons": [{"text": r.says, "explains": r.explains} for r in made.reasons],
        "a": _side(a),
        "b": _side(b),
        "parts": [{"part": p.name, "a_s": p.a_s, "b_s": p.b_s} for p in made.parts],
        "findings": [_finding(c) for c in made.findings],
        "settings": [{"name": s.name, "a": s.a, "b": s.b} for s in made.settings],
        "stages": [{"stage": s.stage, "a": asdict(s.a), "b": asdict(s.b)} for s in made.stages],
        "ranks": [asdict(r) for r in made.ranks],
        "links": [asdict(x) for x in made.links],
        "notes": list(made.notes),
    }


def _time(made: Comparison) -> dict[str, Any] | None:
    time = made.time
    if time is None:
        return None
    return {
        "of": "sample" if time.per_sample else "step",
        "ratio": time.ratio,
        "noise": time.noise,
        "difference": "slower" if time.slower else "faster" if time.faster else None,
        "confidence": time.confidence,
        "schedule_ratio": time.schedule,
        "gpu_time_ratio": time.gpus,
    }


def _side(one: Side) -> dict[str, Any]:
    return {
        "name": one.report.name,
        "status": one.report.run["status"],
        "step_s": one.step_s,
        "scatter_s": one.scatter_s,
        "intervals": one.intervals,
        "samples_per_s": one.samples_per_s,
        "sample_s": one.sample_s,
        "gpu_sample_s": one.gpu_sample_s,
        "world_size": one.world,
        "pp": one.pp,
        "dp": one.dp,
        "tp": one.tp,
        "train_batch_size": one.batch,
        "micro_batch_size": one.micro,
        "micro_batches": one.m,
        "bubble": one.bubble,
        "ideal_bubble": one.ideal,
        "compute_s": places.compute_s(one),
        "peak_bytes": max(one.peak_bytes.values(), default=None),
    }


def _finding(changed: Changed) -> dict[str, Any]:
    return {"change": changed.what, "id": changed.shown.id, "name": changed.shown.name, "a": _of(changed.a), "b": _of(changed.b)}


def _of(finding: Finding | None) -> dict[str, Any] | None:
    if finding is None:
        return None
    kept = ("severity", "confidence", "title", "cost", "where", "fingerprint")
    return {name: value for name, value in as_dict(finding).items() if name in kept}
