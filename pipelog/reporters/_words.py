"""Sentences and lists of the HTML report: made from what the report holds, nothing computed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pipelog._text import count, percent, seconds
from pipelog.findings import Advice, Evidence, Severity
from pipelog.report import JSON, Report
from pipelog.reporters._places import Place, Places
from pipelog.reporters.verdict import Verdict


def duration(value: float) -> str:
    """Seconds as a reader wants them: 41 s, 6 min, 1 h 52 min."""
    if value < 120:
        return seconds(value * 1e9)
    minutes = round(value / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def price(report: Report) -> str:
    """What the end cost and how sure its cause is: the second line of facts."""
    run, failure = report.run, report.failure
    parts = []
    if failure:
        parts.append(f"confidence {failure['confidence']}")
        parts.append(f"cause {failure['category']}, shown in the files" if failure["cause_known"] else "the cause does not show in the files")
        if failure.get("at"):
            parts.append(f"at {str(failure['at'])[:19].replace('T', ' ')}")
    if run["lost_steps"] and run["status"] != "completed":
        time = f" ({duration(run['lost_s'])})" if run["lost_s"] else ""
        saved = (
            f" since the checkpoint of step {run['last_checkpoint_step']:,}"
            if run["last_checkpoint_step"] is not None
            else ": no checkpoint was saved"
        )
        parts.append(f"{count(run['lost_steps'], 'step')}{time} lost{saved}")
    return " · ".join(parts)


@dataclass(frozen=True, slots=True)
class Deed:
    """Something to do, what to expect of it, and the finding it comes from (None: the failure)."""

    action: str
    expected: str | None = None
    place: Place | None = None


def deeds(report: Report, places: Places) -> list[Deed]:
    """What to do: the cure of a failure first, then the advice of the findings, errors first, then by cost; each once."""
    found: dict[str, Deed] = {a["action"]: Deed(a["action"], a.get("expected")) for a in (report.failure or {}).get("advice", [])}
    ranked = sorted(places.every, key=lambda p: (p.finding.severity is not Severity.ERROR, -(p.finding.cost or 0.0)))
    for place in ranked:
        for advice in place.finding.advice:
            found.setdefault(advice.action, _deed(advice, place))
    return list(found.values())


def _deed(advice: Advice, place: Place) -> Deed:
    return Deed(advice.action, advice.expected, place)


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the input that shows something, the finding it belongs to, and what stands instead of a text (events of traces have none)."""

    evidence: Evidence
    place: Place | None = None
    instead: str = ""


def proof(report: Report, places: Places, most: int = 6) -> list[Line]:
    """The lines that prove the verdict: those of the failure, else the first of each finding that is more than information."""
    if report.failure and report.failure["evidence"]:
        return [Line(evidence(e)) for e in report.failure["evidence"]][:most]
    out = []
    for place in places.every:
        if place.finding.severity is not Severity.INFO:
            found = place.finding.evidence
            out += [Line(e, place) for e in found if e.text][:2] or [Line(e, place, place.finding.title) for e in found[:1]]
    return out[:most]


def evidence(given: JSON) -> Evidence:
    """Evidence of `failure`, which is plain JSON."""
    return Evidence(given["file"], given.get("line"), given.get("text"))


def where_time_goes(report: Report) -> list[str]:
    """The sentences that stand before the pictures of the step."""
    bubble = report.metrics["bubble"]
    if bubble["measured"] is None:
        if bubble["ideal"] is None or not bubble["ideal"]:
            return []
        return [
            f"Nothing in the files measures the idle time. The schedule alone idles {percent(bubble['ideal'])} of the pipeline phase{_shape(report)}."
        ]
    if bubble["scope"] == "stage":
        stage = bubble["per_stage"][0]["stage"]
        note = f" ({bubble['note']})" if bubble.get("note") else ""
        said = [f"Stage {stage} idles {percent(bubble['measured'])}{_range(bubble)} of the step outside the optimizer{note}."]
    else:
        said = [f"The pipeline idles {percent(bubble['measured'])}{_range(bubble)} of its phase{_parts(report)}."]
    if bubble["ideal"] is not None:
        said.append(f"Equal stages and free messages would idle {percent(bubble['ideal'])} on this schedule{_shape(report)}.")
    return said


def _range(bubble: JSON) -> str:
    low, high = bubble["low"], bubble["high"]
    if low is None or high is None or percent(low) == percent(high):
        return ""
    return f" (between {percent(low)} and {percent(high)})"


_IDLE = (
    ("fill-drain", "fill and drain"),
    ("imbalance-wait", "unequal stages"),
    ("p2p-transfer", "transfers"),
    ("stall", "stalls of a link"),
    ("data", "late data"),
    ("host-gap", "host gaps"),
    ("other", "other"),
)


def _parts(report: Report) -> str:
    known = {p["part"]: float(p["share"]) for p in report.metrics["phase_breakdown"]}
    parts = sorted(((known.get(part, 0.0), words) for part, words in _IDLE), reverse=True)
    return "".join(f"{': ' if i == 0 else ', '}{percent(share)} {words}" for i, (share, words) in enumerate(parts) if share >= 0.005)


def _shape(report: Report) -> str:
    stages, batches = report.topology["pp"], report.config["micro_batches"]
    return f" ({count(stages, 'stage')}, {count(batches, 'micro-batch', 'micro-batches')})" if stages and batches else ""


def collectives_say(report: Report) -> str:
    """What to see in the table of collectives."""
    rows = report.charts.get("collectives") or []
    if not rows:
        return ""
    longest = max(rows, key=lambda r: float(r["wait_ms"]))
    return (
        f"The time once all ranks have come is the network's; the wait for the last rank is not. The longest wait is that of {longest['name']}, "
        f"{seconds(longest['wait_ms'] * 1e6)} a step."
    )


def ticket(report: Report, said: Verdict, todo: list[Deed], lines: list[Line]) -> str:
    """The report in short, as plain text to paste into a ticket."""
    return "\n".join(_ticket(report, said, todo, lines))


def _ticket(report: Report, said: Verdict, todo: list[Deed], lines: list[Line]) -> Iterator[str]:
    yield f"{said.word}: {said.sentence}"
    yield said.facts
    if price(report):
        yield price(report)
    if todo:
        yield "\nWhat to do"
    for number, deed in enumerate(todo[:5], 1):
        yield f"{number}. {deed.action}{f' ({deed.expected})' if deed.expected else ''}"
    if lines:
        yield "\nThe lines that prove it"
    for line in lines:
        at = f":{line.evidence.line}" if line.evidence.line is not None else ""
        yield f"{line.evidence.file}{at}  {(line.evidence.text or '').strip()[:300]}".rstrip()
    yield f"\npipelog {report.pipelog_version}"
