"""The tables at the end of the page: inputs, configuration, topology, attempts, ranks, thresholds; and the words it explains."""

from __future__ import annotations

import re
from typing import Any

from pipelog._text import count, percent, seconds, size
from pipelog.findings import DETECTORS, Status
from pipelog.report import JSON, Report
from pipelog.reporters._numbers import parameters

Rows = list[tuple[str, ...]]

_CONFIG = {
    "train_batch_size": "Global batch, samples",
    "micro_batch_size": "Micro-batch, samples",
    "micro_batches": "Micro-batches a step (gradient accumulation)",
    "zero_stage": "ZeRO stage",
    "precision": "Precision",
    "activation_checkpoint_interval": "Activation checkpoint interval, layers",
    "schedule": "Schedule",
    "virtual_stages": "Virtual stages a rank",
    "steps_per_print": "Steps between printed lines",
    "wall_clock_breakdown": "wall_clock_breakdown",
}
_TOPOLOGY = {
    "world_size": "Ranks",
    "pp": "Pipeline stages (pp)",
    "dp": "Data-parallel replicas (dp)",
    "tp": "Tensor-parallel ranks (tp)",
    "partition_method": "Partition method",
}


def config(report: Report) -> Rows:
    """What was configured: name, value, where it is stated."""
    known = [(words, report.config.get(key), report.config.get("sources", {}).get(key)) for key, words in _CONFIG.items()]
    versions = [
        (f"{_NAMES.get(k, k)} version", v, report.config.get("sources", {}).get(k)) for k, v in report.run["frameworks"].items() if isinstance(v, str)
    ]
    return [(words, _value(value), _stated(source)) for words, value, source in (*known, *versions) if value is not None]


_NAMES = {"deepspeed": "DeepSpeed", "torch": "PyTorch", "megatron": "Megatron"}


def topology(report: Report) -> Rows:
    """How the ranks are laid out: name, value, where it is stated."""
    sources = report.topology.get("sources", {})
    return [
        (words, _value(report.topology.get(key)), _stated(sources.get(key)))
        for key, words in _TOPOLOGY.items()
        if report.topology.get(key) is not None
    ]


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _stated(source: JSON | None) -> str:
    """file:line, else how it follows."""
    if not source:
        return ""
    if source["file"] is None:
        return str(source["source"] or "")
    return f"{source['file']}:{source['line']}" if source["line"] is not None else str(source["file"])


def stages(report: Report) -> Rows:
    """The partition: stage, layers, parameters; only where something is known of it."""
    rows = report.topology["stages"]
    if not any(s["layers"] or s["params"] for s in rows):
        return []
    counted = any(s["params"] for s in rows)
    return [(str(s["stage"]), _layers(s["layers"]), *([parameters(s["params"]) if s["params"] else ""] if counted else [])) for s in rows]


def _layers(pair: list[int] | None) -> str:
    return f"{pair[0]} to {pair[1] - 1} ({count(pair[1] - pair[0], 'layer')})" if pair and pair[1] > pair[0] else ""


def ranks(report: Report) -> Rows:
    """Rank, stage, replica, tensor-parallel index, host; only where a place is known."""
    rows = report.topology["ranks"]
    if not any(r["stage"] is not None or r["host"] for r in rows):
        return []
    return [(str(r["rank"]), _known(r["stage"]), _known(r["dp"]), _known(r["tp"]), r["host"] or "") for r in rows]


def _known(value: int | None) -> str:
    return "" if value is None else str(value)


def attempts(report: Report) -> Rows:
    """The starts of the job, where there are several."""
    rows = report.run["attempts"]
    if len(rows) < 2:
        return []
    return [(str(a["index"] + 1), a["status"], _known(a["first_step"]), _known(a["last_step"]), a["category"] or "") for a in rows]


def inputs(report: Report) -> list[JSON]:
    """The files: path, kind, size, events, what is known of them, and the places that could not be read."""
    return [
        {
            "path": i["path"],
            "kind": i["kind"],
            "size": size(i["bytes"]) if i["bytes"] is not None else "",
            "events": f"{i['events']:,}" if i["kind"] != "ignored" else "",
            "about": _about(i),
            "skipped": [] if i["kind"] == "ignored" else i["skipped"],
        }
        for i in report.inputs
    ]


def _about(given: JSON) -> str:
    """Notes on a file in words; for an ignored one the reason."""
    if given["kind"] == "ignored":
        return "; ".join(s["why"] for s in given["skipped"])
    notes = given.get("notes") or {}
    parts = []
    if "lines" in notes:
        parts.append(count(notes["lines"], "line"))
    if "trace_events" in notes:
        parts.append(f"{notes['trace_events']:,} events in the trace")
    if "rank" in notes:
        parts.append(f"rank {notes['rank']}" + (f" (from {notes['rank_from']})" if notes.get("rank_from") else ""))
    if notes.get("truncated"):
        parts.append("ends in the middle")
    parts += [str(notes[k]) for k in ("device_name", "vendor", "host") if notes.get(k)]
    if notes.get("prefixes"):
        parts.append(f"line prefixes: {_joined(notes['prefixes'])}")
    return ", ".join(parts)


def _joined(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{k} {v}" for k, v in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def devices(report: Report) -> Rows:
    """One row a trace with device work: times as unions, which overlap each other."""
    return [
        (
            d["file"],
            _known(d["rank"]),
            d["device"] or "",
            _steps(d["steps"]),
            *(
                seconds(d[k] * 1e3) if d.get(k) is not None else ""
                for k in ("span_us", "busy_us", "compute_us", "comm_us", "comm_compute_overlap_us", "memory_us")
            ),
            f"{d['kernels']:,}",
        )
        for d in report.metrics["devices"]
    ]


def _steps(value: int | None) -> str:
    return "" if value is None else f"{value:,}"


def collectives(report: Report) -> Rows:
    """One row a kind of collective."""
    return [
        (c["name"], str(c["ranks"]), seconds(c["own_ms"] * 1e6), tiny(c["share"]), seconds(c["wait_ms"] * 1e6))
        for c in report.charts.get("collectives") or []
    ]


def tiny(share: float) -> str:
    """A share in per cent that never reads as nothing where there is something."""
    return "under 0.1 %" if 0 < share < 0.0005 else percent(share)


def thresholds(report: Report) -> Rows:
    """Every rule that has thresholds, with those that were used."""
    return [(o.id, o.name, used(o.options)) for o in report.outcomes if o.options]


def used(options: dict[str, float]) -> str:
    """The thresholds that were used, as in "limit 0.1, spike 1.5"."""
    return ", ".join(f"{k} {v:g}" for k, v in options.items())


def outcomes(report: Report, status: Status) -> Rows:
    """Id, name and reason of the rules that came to this."""
    return [(o.id, o.name, o.reason or "") for o in report.outcomes if o.status is status]


_HEADING = re.compile(r"^(What it does|Why it matters|What to do|When it is wrong|Thresholds): ", re.MULTILINE)


def page(rule: str) -> dict[str, str]:
    """The page of a rule by its headings; nothing where the rule is not known here."""
    known = DETECTORS.get(rule)
    if known is None:
        return {}
    parts = _HEADING.split(known.page)
    return {head: " ".join(text.split()) for head, text in zip(parts[1::2], parts[2::2], strict=True)}


GLOSSARY = (
    ("1F1B", "The usual schedule: after the fill, each stage alternates one forward and one backward pass."),
    ("activation", "What a stage's forward pass leaves in memory until its backward pass, and sends to the next stage."),
    ("activation checkpointing", "Activations are dropped and computed again in the backward pass (recompute): less memory, more time."),
    ("attempt", "One start of the job. A log may hold several."),
    ("bubble", "The share of stages × pipeline phase in which a stage runs no pass: idle / pipeline phase."),
    ("collective", "A message among a group of ranks: all-reduce, broadcast and the like."),
    ("confidence", "How sure pipelog is of a finding. Severity says how bad it is if it is true."),
    ("cost", "The share of the step time that goes where the problem goes, as far as it is known."),
    (
        "critical path",
        "The chain of instructions and messages that decides how long a step is: any other could be longer without harm, by its slack.",
    ),
    ("data-parallel replica", "One whole pipeline. All replicas meet in the reduction of the gradients."),
    ("fill and drain", "Stages wait for the first micro-batch and after the last one. More micro-batches make this part smaller."),
    ("finding", "One statement of one rule about one subject."),
    ("gradient accumulation", "In a pipeline: the number of micro-batches in a step."),
    ("host gap", "Time between two instructions of a rank in which nothing runs: Python, launches, locks."),
    ("link", "The connection between two neighbouring stages."),
    ("loss scale", "The factor that keeps fp16 gradients from vanishing. It falls whenever they overflow, and the step is skipped."),
    ("micro-batch", "The piece of a batch that goes through the pipeline at once."),
    ("p2p", "A message from one rank to one other: activations to the next stage, gradients to the one before."),
    ("pipeline phase", "From the first forward pass to the last backward pass of a step."),
    ("rank", "One process, counted over the whole job."),
    ("replay", "The schedule computed again from measured durations, with one cause taken in after another."),
    ("S", "How much longer a step takes than it would if every operation took the ideal time of its kind: replayed / ideal."),
    ("stage", "The consecutive layers that one rank (or one tensor-parallel group) holds."),
    ("step", "One optimizer step: all micro-batches, the reduction and the update."),
    ("straggler", "A rank slower than those that do the same work."),
    ("union", "Time in which at least one of several things ran; what overlaps counts once."),
)
