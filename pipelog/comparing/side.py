"""One of the two runs: the figures of its report that are compared, each null where the report does not carry it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipelog._text import percent, seconds
from pipelog.report import JSON, Report

PHASE = {
    "compute": "compute",
    "recompute": "recomputation",
    "fill-drain": "fill and drain of the schedule",
    "imbalance-wait": "waiting for unequal stages",
    "p2p-transfer": "transfers",
    "stall": "stalls of a link",
    "data": "late data",
    "host-gap": "host gaps",
    "other": "other idle time of the phase",
}
STEP = {
    "start-skew": "ranks that enter the step late",
    "data": "late data",
    "reduce": "gradient reduction",
    "optimizer": "optimizer",
    "loss-broadcast": "loss broadcast",
    "other": "the rest of the step",
}
"""Parts of report.json in words. Late data inside and before the phase are one part."""

_LEAST_FOR_MAD = 5
_NORMAL = 1.4826
"""Standard deviation over median absolute deviation of normal noise."""
MOST_OFF = 0.15
"""A recorded step that differs more from the usual one does not tell its parts: recording slows a step down."""


@dataclass(frozen=True, slots=True)
class Side:
    """step_s: median. scatter_s: how far the timed intervals differ, by MAD; by their range where there are fewer than five; null for one alone.

    intervals: how many without the warm-up. parts: seconds of a step, mean over stages, summing to step_s; why_no_parts: where null.
    bubble: as measured; ideal: of the schedule with equal stages and free transfers. busy_s: compute of a step by stage, and what it was measured on
    (basis). peak_bytes: by stage.
    """

    label: str
    report: Report
    step_s: float | None
    scatter_s: float | None
    intervals: int
    world: int | None
    pp: int | None
    dp: int | None
    tp: int | None
    batch: int | None
    micro: int | None
    m: int | None
    v: int
    samples_per_s: float | None
    parts: dict[str, float] | None
    why_no_parts: str
    bubble: float | None
    ideal: float | None
    busy_s: dict[int, float]
    basis: str | None
    idle: dict[int, float]
    peak_bytes: dict[int, int]

    @property
    def name(self) -> str:
        """The folder's name, behind the letter that stands for the run."""
        return f"{self.label} ({self.report.name})"

    @property
    def sample_s(self) -> float | None:
        """Time per sample: step over batch."""
        return self.step_s / self.batch if self.step_s and self.batch else None

    @property
    def gpus(self) -> int | None:
        """Ranks of the job, as stated or as the product of its degrees."""
        return self.world or (self.pp * self.dp * self.tp if self.pp and self.dp and self.tp else None)

    @property
    def gpu_sample_s(self) -> float | None:
        """Time of a GPU per sample."""
        return self.sample_s * self.gpus if self.sample_s and self.gpus else None

    @property
    def source(self) -> str | None:
        """Which lines tell the step times."""
        told = self.report.metrics["step_time_s"].get("source")
        return None if told is None else str(told)

    @property
    def warm_up_alone(self) -> bool:
        """Whether the step time is that of the first interval, which holds warm-up."""
        return self.step_s is not None and self.intervals == 0 and self.source not in ("trace", "operations")


def side(label: str, report: Report) -> Side:
    """The figures of *report*. Raises ValueError, KeyError or TypeError where it is damaged."""
    _check(report)
    shape, config, metrics = report.topology, report.config, report.metrics
    step = positive(metrics["step_time_s"]["median"])
    values = _intervals(report.charts.get("steps"))
    bubble = metrics["bubble"]
    stages = {_count(s["stage"], 0): s for s in bubble["per_stage"]}
    parts, why = _parts(report, step)
    return Side(
        label,
        report,
        step,
        _scatter(values),
        len(values),
        _count(shape["world_size"]),
        _count(shape["pp"]),
        _count(shape["dp"]),
        _count(shape["tp"]),
        _count(config["train_batch_size"]),
        _count(config["micro_batch_size"]),
        _count(config["micro_batches"]),
        _count(config.get("virtual_stages")) or 1,
        positive(metrics["samples_per_s"]),
        parts,
        why,
        number(bubble["measured"]),
        number(bubble["ideal"]),
        {n: float(b) for n, s in stages.items() if n is not None and (b := positive(s["busy_s"])) is not None},
        bubble.get("basis"),
        {n: float(b) for n, s in stages.items() if n is not None and (b := number(s["bubble"])) is not None},
        {int(s["stage"]): int(s["peak_bytes"]) for s in metrics["memory"]["per_stage"] if positive(s["peak_bytes"])},
    )


def _check(report: Report) -> None:
    """Texts are texts, and places numbers."""
    failure = report.failure or {"title": ""}
    texts = [report.name, report.pipelog_version, report.run["status"], failure["title"], *(f.title for f in report.findings)]
    texts += [t for f in report.findings for t in (f.name, *f.where.hosts)]
    wrong = [t for t in texts if not isinstance(t, str)]
    places = [n for f in report.findings for n in (*f.where.ranks, *f.where.stages, *(s for pair in f.where.links for s in pair))]
    wrong += [n for n in places if type(n) is not int]
    if wrong:
        raise ValueError(f"{str(wrong[0])[:40]!r} is out of place")
    for finding in report.findings:
        number(finding.cost)


def number(value: Any) -> float | None:
    """A finite number or null; raises ValueError for anything else, since the report is damaged then."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{str(value)[:40]!r} is no number")
    return float(value)


def positive(value: Any) -> float | None:
    """A number above zero or null."""
    known = number(value)
    if known is not None and known <= 0:
        raise ValueError(f"{known:g} is not above zero")
    return known


def _count(value: Any, least: int = 1) -> int | None:
    if value is not None and (type(value) is not int or value < least):
        raise ValueError(f"{str(value)[:40]!r} is no count")
    return value


def _intervals(chart: JSON | None) -> list[float]:
    """Mean step times of the printed intervals, without the first, which holds warm-up, and without what a long series kept for standing out."""
    if not chart:
        return []
    extreme = frozenset(s for s in chart.get("extremes") or () if type(s) is int)
    timed = zip(chart.get("step") or [None] * len(chart["seconds"]), chart["seconds"], strict=False)
    values = [v for step, s in timed if step not in extreme and (v := positive(s)) is not None]
    return values[1:] if len(values) > 1 and chart.get("source") not in ("trace", "operations") else values


def _scatter(values: list[float]) -> float | None:
    if len(values) < 2:
        return None
    if len(values) < _LEAST_FOR_MAD:
        return max(values) - min(values)
    middle = float(np.median(values))
    return _NORMAL * float(np.median(np.abs(np.array(values) - middle)))


def _parts(report: Report, step: float | None) -> tuple[dict[str, float] | None, str]:
    """Seconds of each part of the usual step, or why they are not known."""
    metrics = report.metrics
    phase, whole = _shares(metrics["phase_breakdown"]), _shares(metrics["step_breakdown"])
    inside = whole.get("pipeline")
    if not phase or not inside or step is None:
        return None, "no trace of all stages tells the parts of its step"
    recorded = _recorded(report, inside)
    if recorded is not None and abs(recorded / step - 1) > MOST_OFF:
        return None, f"its recorded step took {seconds(recorded * 1e9)}, {percent(abs(recorded / step - 1))} off the usual {seconds(step * 1e9)}"
    out: dict[str, float] = {}
    for shares, names, scale in ((phase, PHASE, step * inside), (whole, STEP, step)):
        for part, share in shares.items():
            if part != "pipeline":
                name = names.get(part, names["other"])
                out[name] = out.get(name, 0.0) + share * scale
    return out, ""


def _shares(given: list[JSON]) -> dict[str, float]:
    return {str(p["part"]): share for p in given if (share := number(p["share"])) is not None}


def _recorded(report: Report, inside: float) -> float | None:
    """Length of the recorded step: the phase that busy times and bubbles of the stages tell, over its share of the step."""
    rows = report.metrics["bubble"]["per_stage"]
    lengths = [busy / (1 - idle) for s in rows if (busy := number(s["busy_s"])) and (idle := number(s["bubble"])) is not None and idle < 1]
    return float(np.median(lengths)) / inside if lengths and report.metrics["bubble"].get("source") == "trace" else None
