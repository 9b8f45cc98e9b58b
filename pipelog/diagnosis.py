"""The whole flow on one screen: events → tables → detectors → report."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pipelog.detectors
import pipelog.postmortem
import pipelog.postmortem.kinds
import pipelog.replay
import pipelog.tables
from pipelog import summary
from pipelog._text import count
from pipelog.errors import BadOption
from pipelog.events import Events
from pipelog.findings import DETECTORS, Detector, Evidence, Finding, Outcome, Severity, Status
from pipelog.postmortem.kinds import KINDS
from pipelog.reading import cite
from pipelog.redaction import redacted, secrets, without_secrets
from pipelog.registry import load
from pipelog.report import Report
from pipelog.tables import CannotTell, Tables
from pipelog.tables.folders import of_newest

log = logging.getLogger(__name__)

_AROUND = 3
"""Lines shown before and after a line that proves a failure."""


def diagnose(
    events: Events, *, attempt: int | None = None, options: Mapping[str, float] | None = None, name: str = "run", redact: bool = False
) -> Report:
    """Say what the events show. attempt: which start of the job (None: the last that trained); options: thresholds, {"PL201.limit": 0.3}.

    Where the files are of different jobs, it speaks of the newest alone, and a note says so. Secrets in the cited lines are removed; redact: names of hosts, users, paths and addresses are replaced, too.
    Raises BadOption for a threshold or an attempt that does not exist.
    """
    load(pipelog.tables)
    load(pipelog.replay)
    load(pipelog.postmortem)
    load(pipelog.postmortem.kinds)
    load(pipelog.detectors)
    chosen = thresholds(options or {})
    events, apart = of_newest(events)
    tables = Tables(events, attempt, events.told)
    if attempt is not None and not 0 <= attempt < (starts := tables["attempts"].count):
        last = f" to --attempt {starts - 1}" if starts > 1 else ""
        raise BadOption(f"attempt {attempt} does not exist: the files hold {count(starts, 'start')}, --attempt 0{last}")
    outcomes = tuple(run_one(d, tables, chosen.get(d.id, {})) for d in sorted(DETECTORS.values(), key=lambda d: d.id))
    report = summary.report(events, tables, _quiet_where_ended(outcomes, tables), name)
    report.notes[:0] = apart
    report = _with_texts(report, events)
    return redacted(report, events) if redact else without_secrets(report)


def thresholds(options: Mapping[str, float]) -> dict[str, dict[str, float]]:
    """{"PL201.limit": 0.3} → {"PL201": {"limit": 0.3}}; raises BadOption for one that no rule has."""
    chosen: dict[str, dict[str, float]] = {}
    for key, value in options.items():
        rule, _, option = key.partition(".")
        known = DETECTORS.get(rule) or next((d for d in DETECTORS.values() if d.name == rule), None)
        if known is None:
            raise BadOption(f"no rule {rule!r}: `pipelog rules` lists them")
        if option not in known.options:
            raise BadOption(f"{known.id} has no option {option!r}: it has {', '.join(known.options) or 'none'}")
        chosen.setdefault(known.id, {})[option] = value
    return chosen


def run_one(rule: Detector, tables: Tables, options: dict[str, float]) -> Outcome:
    """Run one rule. This is the only place where a broad except is right."""
    used = rule.options | options
    try:
        findings = tuple(rule.check(*(tables[name] for name in rule.needs), **options))
    except CannotTell as reason:
        return Outcome(rule.id, rule.name, Status.NOT_APPLICABLE, str(reason), options=used)
    except Exception as error:
        log.debug("%s failed", rule.id, exc_info=True)  # one broken rule must not cost the user the other findings
        return Outcome(rule.id, rule.name, Status.FAILED, f"{type(error).__name__}: {error}", options=used)
    return Outcome(rule.id, rule.name, Status.FOUND if findings else Status.CLEAR, None, findings, used)


def _quiet_where_ended(outcomes: tuple[Outcome, ...], tables: Tables) -> tuple[Outcome, ...]:
    """A cancelled, preempted or time-limited run has no error-level finding (contract)."""
    if tables["deaths"][-1].status not in ("cancelled", "preempted", "time-limit"):
        return outcomes
    lower = {Severity.ERROR: Severity.WARNING}
    return tuple(replace(o, findings=tuple(replace(f, severity=lower.get(f.severity, f.severity)) for f in o.findings)) for o in outcomes)


def _with_texts(report: Report, events: Events) -> Report:
    """Fetch the cited lines once."""
    wanted = {(e.file, e.line) for f in report.findings for e in f.evidence if e.line is not None}
    shown = [e for e in report.failure["evidence"] if e["line"] is not None] if report.failure else []
    wanted |= {(e["file"], n) for e in shown for n in range(max(1, e["line"] - _AROUND), e["line"] + _AROUND + 1)}
    folded = report.failure["consequences"] if report.failure else []
    wanted |= {(c["file"], c["line"]) for c in folded}
    meant = KINDS.get(report.failure["kind"] or "") if report.failure else None
    texts = cite(events, wanted, proof=meant.pattern if meant else None, secret=lambda text: secrets.removed(text)[1] > 0)
    kinds = {i.path: i.kind for i in events.inputs}

    def filled(finding: Finding) -> Finding:
        return replace(finding, evidence=tuple(_told(e, texts) for e in finding.evidence))

    report.outcomes = tuple(replace(o, findings=tuple(filled(f) for f in o.findings)) for o in report.outcomes)
    for e in shown:
        around = range(max(1, e["line"] - _AROUND), e["line"] + _AROUND + 1)
        e["text"] = texts.get((e["file"], e["line"]), e.get("text"))
        e["context"] = [{"line": n, "text": texts[e["file"], n]} for n in around if (e["file"], n) in texts] if kinds.get(e["file"]) == "log" else []
    for c in folded:
        c["text"] = texts.get((c["file"], c["line"]))
    return report


def _told(evidence: Evidence, texts: dict[tuple[str, int], str]) -> Evidence:
    if evidence.line is None or evidence.text is not None:
        return evidence
    return replace(evidence, text=texts.get((evidence.file, evidence.line)))


def explain(rule: str) -> Detector:
    """The rule with this id or name; raises BadOption where there is none."""
    load(pipelog.detectors)
    found: Any = DETECTORS.get(rule.upper()) or next((d for d in DETECTORS.values() if d.name == rule), None)
    if found is None:
        raise BadOption(f"no rule {rule!r}: `pipelog rules` lists them")
    return found  # type: ignore[no-any-return]
