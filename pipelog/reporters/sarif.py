"""SARIF 2.1.0, for CI and code scanners: one result a finding, at the line that shows it, with the rule's page as its help.

Nothing in it depends on the clock, on the order of the files or on where the job's folder lies: addresses are relative to it (`JOB`),
and `partialFingerprints` are those of report.json, so that a finding is known again in the next run. What a line of a log says is text
here and nowhere a link or a place to fill in.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from typing import Any
from urllib.parse import quote

import pipelog.detectors
from pipelog._text import visible
from pipelog.findings import DETECTORS, Evidence, Finding, Outcome, Severity, Status
from pipelog.registry import load
from pipelog.report import JSON, Report
from pipelog.reporters import reporter
from pipelog.reporters._failure import VERDICTS
from pipelog.reporters._places import sentence
from pipelog.reporters._words import cut
from pipelog.reporters.verdict import verdict

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
FINGERPRINT = "pipelogFinding/v1"
_LEVELS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "note"}
_BASE = "JOB"
_NUMBERED = ("trace", "flight-recorder", "operations")
"""Kinds of files whose events are cited by number: they have no lines."""
_LONGEST = 1000
"""Characters of a line of a log, which may have ten million."""


@reporter("sarif", suffix=".sarif")
def render(report: Report) -> str:
    """One log with one run."""
    load(pipelog.detectors)
    return json.dumps({"$schema": SCHEMA, "version": "2.1.0", "runs": [_run(report)]}, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _run(report: Report) -> JSON:
    said = verdict(report)
    return {
        "tool": {
            "driver": {
                "name": "pipelog",
                "version": report.pipelog_version,
                "rules": [_rule(o) for o in report.outcomes],
            }
        },
        "automationDetails": {"id": f"pipelog/{visible(report.name)}/"},
        "originalUriBaseIds": {_BASE: {"description": {"text": "the folder that was analyzed"}}},
        "columnKind": "unicodeCodePoints",
        "invocations": [{"executionSuccessful": True, "toolExecutionNotifications": _notifications(report)}],
        "artifacts": [_artifact(i) for i in report.inputs if i["kind"] != "ignored"],
        "results": _results(report),
        "properties": {
            "verdict": said.word,
            "sentence": visible(said.sentence),
            "status": report.run["status"],
            "notes": [visible(n) for n in report.notes],
            "failure": _failure(report.failure) if report.failure else None,
        },
    }


def _rule(outcome: Outcome) -> JSON:
    """The rule with its page, and what became of it here: a clear one and one that had no data do not look the same."""
    known = DETECTORS.get(outcome.id)
    page = known.page if known else f"{outcome.id} {outcome.name}: no page of this rule is installed."
    says = page.splitlines()[0].partition(": ")[2]
    return {
        "id": outcome.id,
        "name": outcome.name,
        "shortDescription": {"text": _inert(says)},
        "fullDescription": {"text": _inert(_passage(page, "What it does:") or says)},
        "help": {"text": _inert(page), "markdown": _markdown(page)},
        "properties": {
            "status": outcome.status.value,
            "reason": visible(outcome.reason) if outcome.reason else None,
            "options": {k: _finite(v) for k, v in outcome.options.items()},
        },
    }


_HEADING = re.compile(r"^(What it does:|Why it matters:|What to do:|When it is wrong:|Thresholds:)", re.MULTILINE)
_BOLD = r"\n**\1**"


def _passage(page: str, heading: str) -> str:
    """What stands under a heading of the page, in one line."""
    parts = _HEADING.split(page)
    found = dict(zip(parts[1::2], parts[2::2], strict=False))
    return " ".join(found.get(heading, "").split())


def _markdown(page: str) -> str:
    """The page with its headings in bold, each a paragraph of its own."""
    first, _, rest = page.partition("\n")
    return f"**{first}**\n\n{_HEADING.sub(_BOLD, rest).strip()}".strip()


def _notifications(report: Report) -> list[JSON]:
    """Rules that could not look, with what is missing; and those that failed, which is pipelog's fault."""
    levels = {Status.NOT_APPLICABLE: "note", Status.FAILED: "error"}
    return [
        {
            "level": levels[o.status],
            "message": {
                "text": _inert(f"{o.name} {'failed' if o.status is Status.FAILED else 'could not look'}: {o.reason or 'no reason is known'}")
            },
            "associatedRule": {"id": o.id, "index": n},
        }
        for n, o in enumerate(report.outcomes)
        if o.status in levels
    ]


def _artifact(given: JSON) -> JSON:
    return {"location": _address(given["path"]), "length": given["bytes"], "properties": {"kind": given["kind"]}}


def _results(report: Report) -> list[JSON]:
    index = {o.id: n for n, o in enumerate(report.outcomes)}
    traces = {i["path"] for i in report.inputs if i["kind"] in _NUMBERED}
    seen: Counter[str] = Counter()
    out = []
    for finding in report.findings:
        seen[finding.fingerprint] += 1
        out.append(_result(finding, index[finding.id], seen[finding.fingerprint], traces, report))
    return out


def _result(finding: Finding, rule: int, nth: int, traces: set[str], report: Report) -> JSON:
    """nth: of the findings with the same fingerprint, which speak of other steps of the same place."""
    failure = report.failure if finding.name in VERDICTS else None
    advice = "".join(f"\n{sentence(a.action)}{f' {sentence(a.expected)}' if a.expected else ''}" for a in finding.advice)
    lines = [_location(e, traces) for e in finding.evidence]
    after = [
        _location(Evidence(c["file"], c.get("line"), c.get("text")), traces, "followed from it") for c in (failure or {}).get("consequences", [])
    ]
    made: JSON = {
        "ruleId": finding.id,
        "ruleIndex": rule,
        "level": _LEVELS[finding.severity],
        "message": {"text": _inert((sentence(finding.title) + advice).replace("\N{NO-BREAK SPACE}", " "))},
        "locations": lines[:1],
        "partialFingerprints": {FINGERPRINT: finding.fingerprint if nth == 1 else f"{finding.fingerprint}:{nth}"},
        "properties": _properties(finding) | ({"failure": _failure(failure)} if failure else {}),
    }
    others = [location | {"id": n} for n, location in enumerate([*lines[1:], *after], 1)]
    return made | ({"relatedLocations": others} if others else {})


def _properties(finding: Finding) -> JSON:
    """What SARIF has no field for. cost: share of the time of all steps."""
    where = finding.where
    return {
        "confidence": finding.confidence.value,
        "role": finding.role,
        "cost": _finite(finding.cost),
        "ranks": list(where.ranks),
        "stages": list(where.stages),
        "hosts": [visible(h) for h in where.hosts],
        "links": [list(pair) for pair in where.links],
        "steps": list(where.steps) if where.steps else [],
    }


def _failure(failure: JSON) -> JSON:
    """The verdict's labels; its lines are the result's locations."""
    names = ("category", "cause_known", "confidence", "title", "ranks", "stages", "hosts", "at", "step", "missing")
    return {name: _shown(failure.get(name)) for name in names}


def _shown(value: Any) -> Any:
    if isinstance(value, str):
        return visible(value)
    return [_shown(v) for v in value] if isinstance(value, list) else _finite(value)


def _location(evidence: Evidence, traces: set[str], says: str = "") -> JSON:
    """A line of a text. An event of a trace has a number but no line: it is said in words."""
    at: JSON = {"artifactLocation": _address(evidence.file)}
    words = [says] if says else []
    text = visible(cut(evidence.text, _LONGEST)) if evidence.text else None
    if evidence.file not in traces and evidence.line is not None and evidence.line > 0:
        at["region"] = {"startLine": evidence.line} | ({"snippet": {"text": text}} if text else {})
    else:
        words += [f"event {evidence.line:,}"] if evidence.line is not None else []
        words += [text] if text else []
    return {"physicalLocation": at} | ({"message": {"text": _inert(": ".join(words))}} if words else {})


def _address(path: str) -> JSON:
    """Relative to the folder that was analyzed; a name of a file may hold anything."""
    plain = path.encode("utf-8", "surrogateescape" if not re.search("[\ud800-\udc7f\udd00-\udfff]", path) else "replace")
    return {"uri": quote(plain.lstrip(b"/"), safe=b"/"), "uriBaseId": _BASE}


def _inert(text: str) -> str:
    """Plain text of a message: nothing in it is a link, or a place where a viewer fills something in."""
    return re.sub(r"\{(\d+)\}", r"{{\1}}", re.sub(r"\](?=\()", "] ", visible(text)))


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
