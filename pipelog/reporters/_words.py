"""Sentences and lists of the HTML report and of the Markdown: made from what the report holds, nothing computed."""

from __future__ import annotations

from dataclasses import dataclass

from pipelog._text import count, percent, seconds
from pipelog.findings import Advice, Evidence, Severity
from pipelog.report import JSON, Report
from pipelog.reporters._failure import VERDICTS
from pipelog.reporters._places import Place, Places


def cut(text: str, most: int, keep: str = "") -> str:
    """No longer than *most*: what is left out is in the middle, since lines of launchers say at their end what happened; but where *keep* stands there, from it on."""
    if len(text) <= most:
        return text
    head = (most - 3) * 3 // 5
    tail = len(text) - (most - 3 - head)
    at = text.find(keep) if keep else -1
    if at < 0 or at + len(keep) + _FIGURE <= head or at >= tail:
        return f"{text[:head]} … {text[tail:]}"
    room = (most - 6) // 2
    if at - room < _FIGURE:
        return f"{text[: most - 2]} …"
    end = at + most - 6 - room
    return f"{text[:room]} … {text[at:end]} …" if end < len(text) - 2 else f"{text[:room]} … {text[at:]}"


_FIGURE = 24
"""Characters behind a name that hold its figure."""
_SPOKEN_OF = (
    ("gradient norm", ("grad norm", "grad_norm")),
    ("'number of skipped iterations'", ("number of skipped iterations",)),
    ("'number of nan iterations'", ("number of nan iterations",)),
    ("the loss scale", ("loss scale",)),
    ("exchange with stage", ("backward-send-forward-recv",)),
    ("getting the batches", ("batch_input", "batch-generator")),
    ("a step takes", ("elapsed time per iteration", "iter time")),
    ("iter time", ("iter time",)),
)
"""What a title speaks of, and under which names lines have it."""


def spoken_of(title: str, text: str) -> str:
    """The name in a line under which stands the figure that a title speaks of; empty where none is known."""
    names = (name for said, those in _SPOKEN_OF if said in title.lower() for name in those)
    return next((name for name in names if name in text), "")


@dataclass(frozen=True, slots=True)
class Deed:
    """Something to do, what to expect of it, and the finding it comes from (None: the failure)."""

    action: str
    expected: str | None = None
    place: Place | None = None


def deeds(report: Report, places: Places) -> list[Deed]:
    """What to do: the cure of a failure first, then the advice of the findings, errors first, then by cost; each once."""
    found: dict[str, Deed] = {a["action"]: Deed(a["action"], a.get("expected")) for a in (report.failure or {}).get("advice", [])}
    ranked = sorted(
        places.every,
        key=lambda p: (report.failure is not None and not _of_failure(p), p.finding.severity is not Severity.ERROR, -(p.finding.cost or 0.0)),
    )
    for place in ranked:
        for advice in place.finding.advice:
            found.setdefault(advice.action, _deed(advice, place))
    return list(found.values())


_OF_FAILURES = (*VERDICTS, "lost-work", "repeat-offender", "loss-nan", "loss-scale-collapse")


def _of_failure(place: Place) -> bool:
    return place.finding.name in _OF_FAILURES


def elsewhere(deed: Deed) -> bool:
    """Whether it has nothing to do with the end of the run: a matter for another day."""
    return deed.place is not None and not _of_failure(deed.place)


def _deed(advice: Advice, place: Place) -> Deed:
    return Deed(advice.action, advice.expected, place)


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the input that shows something, the finding it belongs to, what stands instead of a text (events of traces have none), and the lines around it."""

    evidence: Evidence
    place: Place | None = None
    instead: str = ""
    around: tuple[tuple[int, str], ...] = ()


def proof(report: Report, places: Places, most: int = 6) -> list[Line]:
    """The lines that prove the verdict: those of the failure, else the first of each finding that is more than information."""
    if report.failure and report.failure["evidence"]:
        return [Line(evidence(e), around=_around(e)) for e in report.failure["evidence"]][:most]
    out: list[Line] = []
    for place in places.every:
        if place.finding.severity is not Severity.INFO:
            found = place.finding.evidence
            shown = {(line.evidence.file, line.evidence.line) for line in out}
            texts = [Line(e, place) for e in found if e.text][:2] or [Line(e, place, place.finding.title) for e in found[:1]]
            out += [line for line in texts if not line.evidence.text or (line.evidence.file, line.evidence.line) not in shown]
    return out[:most]


def _around(given: JSON) -> tuple[tuple[int, str], ...]:
    """Number and text of the lines around one, itself among them; nothing where it stands alone."""
    lines = tuple((int(c["line"]), str(c["text"])) for c in given.get("context") or ())
    return lines if len(lines) > 1 else ()


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
    why = f": {bubble['why_wide']}" if bubble.get("why_wide") else ""
    return f" (between {percent(low)} and {percent(high)}{why})"


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
