"""The verdict: one line and its details, the same in every output."""

from __future__ import annotations

import re
from dataclasses import dataclass

from pipelog._text import count, digits, listed, percent
from pipelog.findings import Finding, Severity, Status
from pipelog.report import Report
from pipelog.reporters._failure import VERDICTS
from pipelog.reporters._places import capital


@dataclass(frozen=True, slots=True)
class Verdict:
    """word: OK, SLOW, ATTENTION, FAILED, …; tone: ok, warning, error, unknown. sentence, and a line of facts about the run."""

    word: str
    tone: str
    sentence: str
    facts: str


_SLOW = ("high-bubble-ratio", "stage-imbalance", "communication-stall", "straggler-rank", "throughput-drop", "slow-data-loading", "few-micro-batches")
_ENDED = {
    "failed": ("FAILED", "error"),
    "hung": ("HUNG", "error"),
    "cancelled": ("CANCELLED", "warning"),
    "time-limit": ("TIME LIMIT", "warning"),
    "preempted": ("PREEMPTED", "warning"),
}


def verdict(report: Report) -> Verdict:
    """How it ended; then the costliest finding, that nothing was found, or that nothing can be told. SLOW is said where a cause or a change is named."""
    facts = _facts(report)
    loud = [f for f in report.findings if f.severity is not Severity.INFO]
    status = report.run["status"]
    if status in _ENDED or report.failure:
        word, tone = _ENDED.get(status, ("ATTENTION", "warning"))
        again = _offender(report, loud)
        return Verdict(word, tone, _how_it_ended(report) + (f"; {again.title.partition(' (')[0]}" if again else "") + _also(loud, again), facts)
    end = _end(report)
    if loud:
        first = max(loud, key=lambda f: (f.severity is Severity.ERROR, not _bare(f) and not _grown(f, loud), f.cost or 0.0))
        word = "SLOW" if first.name in _SLOW and not _bare(first) else "ATTENTION" if status == "completed" or not end else "INCOMPLETE"
        return Verdict(word, "error" if first.severity is Severity.ERROR else "warning", capital(f"{end}{first.title}"), facts)
    looked = [o for o in report.outcomes if o.status in (Status.CLEAR, Status.FOUND)]
    if not report.metrics["step_time_s"]["n"] and report.metrics["bubble"]["measured"] is None and not report.metrics["devices"]:
        return Verdict("CANNOT TELL", "unknown", _what_is_missing(report), facts)
    ended = "" if status == "completed" or end else ", but the log does not say how the run ended"
    found = capital(f"{end}no problem found by the {count(len(looked), 'rule')} that had data{ended}")
    return Verdict("INCOMPLETE", "unknown", found, facts) if end and status == "incomplete" else Verdict("OK", "ok", found, facts)


def _bare(finding: Finding) -> bool:
    """An idle share of one stage alone, which names neither a cause nor a change."""
    return finding.name == "high-bubble-ratio" and bool(finding.where.stages)


def _grown(finding: Finding, loud: list[Finding]) -> bool:
    """More memory than the place explains, on ranks whose memory grows from step to step: the growth is what is to be mended."""
    growing = {rank for f in loud if f.name == "memory-growth" for rank in f.where.ranks}
    return finding.name == "memory-skew" and bool(growing) and growing >= set(finding.where.ranks)


def _end(report: Report) -> str:
    """Completed, step 24: …; The log stops after step 30, at 06:39:12, and no line says why; … Empty where no log was read.

    Where another start is looked at: Attempt 1 stops before its first step, and no line says why; in attempt 0 …
    """
    run = report.run
    last, when = run["last_step"], run["ended_at"]
    if not any(i["kind"] == "log" for i in report.inputs):
        return ""
    ended = run["attempts"][-1]
    if run["attempt"] != ended["index"]:
        if run["status"] != "incomplete":
            return ""
        after = "before its first step" if ended["last_step"] is None else f"after step {ended['last_step']:,}"
        return f"Attempt {ended['index']} stops {after}, and no line says why; in attempt {run['attempt']}, "
    if run["status"] == "completed":
        return "Completed: " if last is None else f"Completed, step {last:,}: "
    if last is None:
        return ""
    return f"The log stops after step {last:,}{f', at {when[11:19]}' if when else ''}, and no line says why; "


_CLAUSE = re.compile(r"((?:; |, and |: )(?![^()]*\)))")
"""Where a title that has said what happened goes on to say who waited, what is not known, or the numbers."""


def _how_it_ended(report: Report) -> str:
    failure = report.failure
    if failure is None:
        return {"failed": "The run failed", "hung": "The run hung"}.get(report.run["status"], "The job did not come to its end")
    title, step = capital(failure["title"]), failure["step"]
    if not step or re.search(rf"\bstep {step}\b", title.replace(",", "")):
        return title
    if "; now " in title:  # gpu-b07 fails again: what it did first; now what it did in this attempt
        return f"{title}, after step {step:,}"
    what, *more = _CLAUSE.split(title, maxsplit=1)
    return f"{what} after step {step:,}{''.join(more)}"


def _offender(report: Report, loud: list[Finding]) -> Finding | None:
    """The finding that the host or the rank which began this end began others, too; not where the title says already that it fails again."""
    failure = report.failure or {}
    if "fails again" in failure.get("title", ""):
        return None
    same = (f for f in loud if f.name == "repeat-offender" and (f.where.hosts or f.where.ranks))
    return next((f for f in same if set(f.where.hosts or f.where.ranks) == set(failure.get("hosts" if f.where.hosts else "ranks", ()))), None)


def _also(loud: list[Finding], told: Finding | None) -> str:
    more = [f for f in loud if f.name not in VERDICTS and f is not told]
    return f"; {count(len(more), 'more finding')} below" if more else ""


def _what_is_missing(report: Report) -> str:
    kinds = {i["kind"] for i in report.inputs}
    if not kinds & {"log", "trace", "flight-recorder"}:
        return "No log and no trace in what was given"
    if kinds == {"trace"}:
        return "The traces hold neither device work nor pipeline passes"
    read = report.run.get("read", {})
    told = [count(read[kind], one, many) for kind, (one, many) in _READ.items() if read.get(kind)]
    if told:
        return f"Nothing can be said about time: no step with its time and no trace that shows work was read, but {listed(told)}"
    return "No step line, no timer and no trace that shows work: nothing can be said about time"


_READ = {
    "step": ("step without a time", "steps without a time"),
    "iteration": ("iteration line", None),
    "progress": ("step counter", None),
    "scalar": ("figure of a step", "figures of steps"),
    "timer": ("timer", None),
    "megatron_timer": ("timer of Megatron", "timers of Megatron"),
    "straggler_figure": ("figure of a straggler detector", "figures of a straggler detector"),
    "gpu_score": ("score of a GPU", "scores of GPUs"),
    "comm": ("line of the comms logger", "lines of the comms logger"),
    "comm_summary": ("row of the comms logger's table", "rows of the comms logger's table"),
    "memory": ("figure of memory", "figures of memory"),
    "memory_usage": ("figure of memory use", "figures of memory use"),
    "memory_capacity": ("device with its memory", "devices with their memory"),
    "place": ("place of a rank", "places of ranks"),
    "stage": ("statement about stages", "statements about stages"),
    "checkpoint": ("line about a checkpoint", "lines about checkpoints"),
    "fact": ("statement about the job", "statements about the job"),
    "error": ("line that speaks of an error", "lines that speak of errors"),
}
"""Kinds of rows, in the order in which they tell most of a run's time."""


def _facts(report: Report) -> str:
    """llama-13b · 02:14 → 02:31 · pp 4 x dp 2 x tp 1 · 8 micro-batches · 1.2 s a step · DeepSpeed 0.16.9."""
    run, shape, config, metrics = report.run, report.topology, report.config, report.metrics
    parts = [report.name]
    if run["started_at"] or run["ended_at"]:
        parts.append(_span(run["started_at"], run["ended_at"]))
    known = [f"{n} {shape[n]}" for n in ("pp", "dp", "tp") if shape[n] is not None]
    if known:
        parts.append(" × ".join(known))
    elif shape["world_size"]:
        parts.append(count(shape["world_size"], "rank"))
    if config["micro_batches"]:
        parts.append(count(config["micro_batches"], "micro-batch", "micro-batches"))
    if metrics["step_time_s"]["median"]:
        parts.append(f"{digits(metrics['step_time_s']['median'])} s a step")
    if metrics["bubble"]["measured"] is not None:
        stage = "" if metrics["bubble"]["scope"] == "run" else f" (stage {metrics['bubble']['per_stage'][0]['stage']})"
        parts.append(f"bubble {percent(metrics['bubble']['measured'])}{stage}")
    if run["frameworks"]["deepspeed"]:
        parts.append(f"DeepSpeed {run['frameworks']['deepspeed']}")
    return " · ".join(parts)


def _span(begin: str | None, end: str | None) -> str:
    """2024-01-31 02:14 → 02:31, with the date of the end where it is another; of one that is known alone, `from` or `until`."""
    if begin is None:
        return f"until {end[:16].replace('T', ' ')}" if end else ""
    if end is None:
        return f"from {begin[:16].replace('T', ' ')}"
    return f"{begin[:16].replace('T', ' ')} → {end[11:16] if end[:10] == begin[:10] else end[:16].replace('T', ' ')}"
