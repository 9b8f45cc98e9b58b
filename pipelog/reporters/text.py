"""The terminal's text: verdict, findings with their lines, what to do. Plain when piped; `styled` for a terminal."""

from __future__ import annotations

import io
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from pipelog._text import count, percent
from pipelog.findings import Evidence, Finding, Severity, Status
from pipelog.report import Report
from pipelog.reporters import reporter
from pipelog.reporters._failure import VERDICTS, facts, followed, labels, place, ratio, spent, starts
from pipelog.reporters._pays import lines, replay_line
from pipelog.reporters._places import capital
from pipelog.reporters._words import cut, spoken_of
from pipelog.reporters.verdict import verdict

_TONES = {"ok": "bold green", "warning": "bold yellow", "error": "bold red", "unknown": "bold blue"}
_SEVERITIES = {Severity.ERROR: ("error", "bold red"), Severity.WARNING: ("warning", "yellow"), Severity.INFO: ("info", "blue")}


_EFFICIENCY = ("PL1", "PL2", "PL4")
"""Rules of schedules, balance and communication: of a run that did not come to its end their titles are enough."""
_MOST_REASONS = 3
"""More rules without data are named without their reasons, but where these are all that there is to say."""
_WHOLE = 400
"""Characters of a line that proves how the run ended, which is cut around its words already; lines of findings show figures."""
_MOST = 12
"""More groups of lines, or starts, are in the other reports."""


@reporter("text", suffix=".txt")
def render(report: Report) -> str:
    """Without colours, 100 columns wide."""
    out = io.StringIO()
    styled(report, Console(file=out, width=100, no_color=True, highlight=False, legacy_windows=False, soft_wrap=False, force_terminal=False))
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


def styled(report: Report, console: Console) -> None:
    """Write the report to a console; it adapts to its width and honours NO_COLOR."""
    said = verdict(report)
    head = Text(said.word, style=_TONES[said.tone])
    head.append("  ")
    head.append(printable(said.sentence), style="bold")
    console.print(head)
    console.print(Text(printable(said.facts), style="dim"))
    for note in report.notes:
        console.print(Text(printable(note)))
    if report.failure:
        _ended(report, console)
    for finding in report.findings:
        if report.failure is None or finding.name not in VERDICTS:
            console.print()
            _finding(finding, report, console)
    if report.failure is None:
        _pays(report, console)
    console.print()
    _rest(report, console)


def _ended(report: Report, console: Console) -> None:
    """The verdict of a run that did not come to its end, before everything else."""
    failure = report.failure or {}
    console.print()
    for fact in (*facts(report), *labels(report)):
        _row(fact.name, Text(printable(fact.value), style="" if fact.known else "yellow"), console)
    _list("What to do", [_advised(a) for a in failure["advice"]], console, numbered=True)
    _list("The lines that show it", [_cited(Evidence(e["file"], e.get("line"), e.get("text")), report, _WHOLE) for e in failure["evidence"]], console)
    _list("What followed from it", [Text(printable(f.says)) for f in followed(report)[:_MOST]], console)
    _list("What would tell more", [Text(printable(m)) for m in failure["missing"]], console)
    spent = [Text(line) for line in _time(report)]
    _list("Where the time went", spent, console)


def _row(name: str, value: Text, console: Console) -> None:
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(width=10, no_wrap=True, style="dim")
    grid.add_column(overflow="fold")
    grid.add_row(name, value)
    console.print(grid)


def _list(title: str, lines: list[Text], console: Console, *, numbered: bool = False) -> None:
    if not lines:
        return
    console.print()
    console.print(Text(title, style="bold"))
    for number, line in enumerate(lines, 1):
        grid = Table.grid(padding=0)
        grid.add_column(width=3 if numbered else 2, no_wrap=True)
        grid.add_column(overflow="fold")
        grid.add_row(f"{number}." if numbered else "", line)
        console.print(grid)


def _advised(advice: dict[str, Any]) -> Text:
    line = Text(printable(capital(advice["action"])))
    if advice.get("expected"):
        line.append(f" ({printable(advice['expected'])})", style="dim")
    return line


def _time(report: Report) -> list[str]:
    """The ratio, and of several starts one line each."""
    every = starts(report)
    said = [ratio(report)] if ratio(report) else []
    if len(every) > 1:
        said += [printable(f"attempt {s.number}: {spent(s)}") for s in every[-_MOST:]]
    elif every and every[0].parts:
        said.append(spent(every[0]))
    return said


def _finding(finding: Finding, report: Report, console: Console) -> None:
    word, style = _SEVERITIES[finding.severity]
    title = Text(printable(capital(finding.title)))
    title.append(f"  [{finding.id} {finding.name}, confidence {finding.confidence.value}{_cost(finding)}]", style="dim")
    head = Table.grid(padding=0)
    head.add_column(width=8, no_wrap=True)
    head.add_column(overflow="fold")
    head.add_row(Text(word, style=style), title)
    console.print(head)
    if report.failure is not None and (finding.severity is Severity.INFO or finding.id[:3] in _EFFICIENCY):
        return  # a matter for another day: the page has its lines
    for evidence in finding.evidence:
        console.print(Padding(_cited(evidence, report, title=finding.title), (0, 0, 0, 8)), no_wrap=False)
    for advice in finding.advice:
        line = Text("→ " + printable(advice.action))
        if advice.expected:
            line.append(f" ({printable(advice.expected)})", style="dim")
        console.print(Padding(line, (0, 0, 0, 8)))


def _pays(report: Report, console: Console) -> None:
    """The best changes that the replay predicts, and how far it is believed; nothing where there is none."""
    best, error = lines(report), replay_line(report)
    if best or error:
        console.print()
        console.print(Text("What would pay, each by itself" if best else "Replay", style="bold"))
    for line in best:
        console.print(Padding(Text(f"→ {printable(line)}"), (0, 0, 0, 2)))
    if error:
        console.print(Padding(Text(printable(error), style="dim"), (0, 0, 0, 2)))


def _cited(evidence: Evidence, report: Report, most: int = 200, title: str = "") -> Text:
    line = Text(printable(place(evidence, report)), style="cyan")
    if evidence.text:
        line.append("  ")
        text = printable(evidence.text).strip()
        line.append(cut(text, most, spoken_of(title, text)), style="dim")
    return line


def _cost(finding: Finding) -> str:
    return f", cost {percent(finding.cost)}" if finding.cost else ""


def _rest(report: Report, console: Console) -> None:
    clear = [o for o in report.outcomes if o.status is Status.CLEAR]
    blind = [o for o in report.outcomes if o.status is Status.NOT_APPLICABLE]
    failed = [o for o in report.outcomes if o.status is Status.FAILED]
    console.print(Text(f"Looked at and clear: {', '.join(o.name for o in clear) or 'nothing'}", style="dim"))
    told = blind if len(blind) <= _MOST_REASONS or verdict(report).word == "CANNOT TELL" else []
    if blind and not told:
        names = f"Not looked at, for want of data ({len(blind)}): {', '.join(o.name for o in blind)}; the HTML report says what each would need"
        console.print(Text(names, style="dim"))
    elif told:
        console.print(Text("Not looked at, for want of data:", style="dim"))
    for outcome in told:
        console.print(Padding(Text(f"{outcome.name}: {printable(outcome.reason or '')}", style="dim"), (0, 0, 0, 2)))
    for outcome in failed:
        console.print(Text(f"Failed (a fault of pipelog): {outcome.name}: {printable(outcome.reason or '')}", style="red"))
    console.print(Text(_inputs(report), style="dim"))


def _inputs(report: Report) -> str:
    read = [i for i in report.inputs if i["kind"] != "ignored"]
    left = len(report.inputs) - len(read)
    skipped = sum(len(i["skipped"]) for i in read)
    parts = [f"Read {count(len(read), 'file')}, {sum(i['events'] for i in read):,} events"]
    if left:
        parts.append(f"{count(left, 'file')} ignored")
    if skipped:
        parts.append(f"{count(skipped, 'place')} skipped (listed in the report)")
    return "; ".join(parts)


def printable(text: Any) -> str:
    """Text of logs is hostile: without control characters a terminal would obey."""
    return "".join(c if c.isprintable() else " " for c in str(text))
