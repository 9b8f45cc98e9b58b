"""The report in short as Markdown, to paste into a ticket: verdict, what to do, the lines, what followed, where the time went. Under 60 lines.

GitHub and Jira both show it: headings, lists, fenced lines; no table, no HTML but for the comment that it begins with, by which pipelog
knows its own report among the files of a job.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from pipelog._text import count, percent, visible
from pipelog.findings import Evidence, Finding, Severity, Status
from pipelog.report import Report
from pipelog.reporters import reporter
from pipelog.reporters._failure import VERDICTS, facts, followed, labels, place, ratio, spent, starts
from pipelog.reporters._pays import lines, replay_line
from pipelog.reporters._places import placed, sentence
from pipelog.reporters._words import cut, deeds, elsewhere, proof
from pipelog.reporters.verdict import verdict

MARK = "<!-- pipelog report -->"


@reporter("md", suffix=".md")
def render(report: Report) -> str:
    """The whole text."""
    return "\n".join(_lines(report)) + "\n"


def _lines(report: Report) -> Iterator[str]:
    said = verdict(report)
    yield MARK
    yield f"## {said.word}: {words(sentence(said.sentence))}"
    yield ""
    yield words(said.facts)
    for note in dict.fromkeys([*report.notes[:3], *(report.notes[-1:] if report.redaction else [])]):
        yield words(note)
    known = (*facts(report), *labels(report))
    if known:
        yield ""
        yield from (f"- **{f.name}:** {words(f.value)}" for f in known)
    places = placed(report)
    todo = deeds(report, places)
    mine = todo if report.failure is None else [d for d in todo if not elsewhere(d)]
    yield from _section("What to do", [f"{n}. {_deed(d.action, d.expected)}" for n, d in enumerate(mine[:4], 1)])
    yield from _section("The lines that show it", _fenced([_cited(line.evidence, line.instead, report) for line in proof(report, places, 4)]))
    groups = followed(report)
    yield from _section("What followed from it", _most([f"- {words(g.says)}" for g in groups], 3))
    yield from _section("What would tell more", [f"- {words(sentence(m))}" for m in (report.failure or {}).get("missing", [])[:3]])
    yield from _section("Where the time went", _time(report))
    said_above = (*VERDICTS, "lost-work") if report.failure else ()
    others = [f for f in report.findings if f.severity is not Severity.INFO and f.name not in said_above]
    yield from _section("Other findings" if report.failure else "Findings", _most([_finding(f) for f in others], 3))
    yield from _pays(report)
    yield ""
    yield _end(report)


def _section(title: str, lines: list[str]) -> Iterator[str]:
    if lines:
        yield ""
        yield f"**{title}**"
        yield ""
        yield from lines


def _deed(action: str, expected: str | None) -> str:
    return words(sentence(action)) + (f" {words(sentence(expected))}" if expected else "")


def _fenced(lines: list[str]) -> list[str]:
    """Lines of logs as they are, in a fence longer than any inside."""
    if not lines:
        return []
    inside = max((len(m) for line in lines for m in re.findall("`+", line)), default=0)
    fence = "`" * max(3, inside + 1)
    return [fence, *lines, fence]


def _cited(evidence: Evidence, instead: str, report: Report) -> str:
    return " ".join(visible(f"{place(evidence, report)}  {cut((evidence.text or instead).strip(), 400)}").split("\n")).rstrip()


def _time(report: Report) -> list[str]:
    every = starts(report)
    lines = [words(ratio(report))] if ratio(report) else []
    if len(every) > 1:
        lines += ["", *(f"- attempt {s.number}: {words(spent(s))}" for s in every[-3:])]
    elif every and every[0].parts and report.failure:
        lines += ["", f"- {words(spent(every[0]))}"]
    return lines


def _finding(finding: Finding) -> str:
    cost = f", costs {percent(finding.cost)} of the time" if finding.cost else ""
    return f"- {finding.severity.value} {finding.id} {words(finding.title)} (confidence {finding.confidence.value}{cost})"


def _pays(report: Report) -> Iterator[str]:
    """The best changes, and how far the replay is believed; nothing for a run that has other worries."""
    if report.failure is None:
        best, error = lines(report), replay_line(report)
        said = [f"- {words(sentence(line))}" for line in (*(f"→ {line}" for line in best), error) if line]
        yield from _section("What would pay, each by itself" if best else "Replay", said)


def _most(lines: list[str], most: int) -> list[str]:
    return lines if len(lines) <= most else [*lines[:most], f"- and {len(lines) - most} more"]


def _end(report: Report) -> str:
    blind = [o for o in report.outcomes if o.status is Status.NOT_APPLICABLE]
    looked = [o for o in report.outcomes if o.status in (Status.CLEAR, Status.FOUND)]
    return f"pipelog {report.pipelog_version}: {count(len(looked), 'rule')} had data, {len(blind)} had none."


_ACTIVE = re.compile(r"[\\`*<~]|(?<!\w)_|_(?!\w)|\](?=[(\[:])|^(?=[#>+-] )|^(?=\d+[.)] )|!(?=\[)")


def words(text: str) -> str:
    """Text that may come from a log, in one line, with nothing in it that Markdown acts on or that calls somebody by name.

    Code in backticks stays code where the backticks pair; what stands in it needs no escape.
    """
    line = " ".join(visible(text).split())
    parts = re.split(r"(`[^`]+`)", line)
    out = [p if p.startswith("`") and p.endswith("`") and len(p) > 2 else _ACTIVE.sub(lambda m: f"\\{m[0]}", p) for p in parts]
    return re.sub(r"(?<!\w)@(?=\w)", "@\N{WORD JOINER}", "".join(out))
