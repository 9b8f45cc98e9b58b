"""The plan in the terminal: plain when piped, as wide as the terminal else."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Iterator

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from pipelog.findings import Finding, Severity
from pipelog.planning.document import Section, sections
from pipelog.planning.plan import Plan
from pipelog.reporters.text import printable

_TONES = {"ok": "bold green", "warning": "bold yellow", "error": "bold red", "unknown": "bold blue"}
_GAP = 2
_LEAST_ROOM = 20
"""Columns of a terminal between two cells; below which words are not squeezed into a column."""
_SEVERITIES = {Severity.ERROR: "bold red", Severity.WARNING: "yellow", Severity.INFO: "blue"}


def render(plan: Plan) -> str:
    """Without colours, 100 columns wide."""
    out = io.StringIO()
    styled(plan, Console(file=out, width=100, no_color=True, highlight=False, legacy_windows=False, soft_wrap=False, force_terminal=False))
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


def styled(plan: Plan, console: Console) -> None:
    """Write the plan to a console; it adapts to its width and honours NO_COLOR."""
    said = plan.verdict
    head = Text(said.word, style=_TONES[said.tone])
    head.append("  ")
    head.append(printable(said.sentence), style="bold")
    console.print(head)
    console.print(Text(printable(said.facts), style="dim"))
    first, *rest = sections(plan) or [Section("")]
    if first.title == "What each pipeline sees":
        _section(first, console)
    else:
        rest = [first, *rest]
    for finding in plan.findings:
        console.print()
        _finding(finding, console)
    for section in rest:
        _section(section, console)


def _section(section: Section, console: Console) -> None:
    if not section.title:
        return
    console.print()
    console.print(Text(section.title, style="bold"))
    for text in section.says:
        console.print(Text(printable(text)))
    if not section.rows:
        return
    for line, style in _table(section, console.width):
        console.print(Text(line, style=style), no_wrap=True, overflow="ignore", crop=False)


def _table(section: Section, width: int) -> Iterator[tuple[str, str]]:
    """(line, style). Words in the last column are folded into what is left of the width; below their row where that is too little."""
    cells = [tuple(printable(c) for c in row) for row in (section.head, *section.rows)]
    words = len(section.head) - 1 not in section.numbers
    columns = len(section.head) - words
    widths = [max(len(row[i]) for row in cells) for i in range(columns)]
    used = sum(widths) + _GAP * columns
    room = width - used
    beside = room >= min(_LEAST_ROOM, max(len(row[-1]) for row in cells))
    for n, row in enumerate(cells):
        style = "dim" if n == 0 else "bold" if n - 1 in section.now else ""
        line = (" " * _GAP).join(c.rjust(w) if i in section.numbers else c.ljust(w) for i, (c, w) in enumerate(zip(row, widths, strict=False)))
        folded = textwrap.wrap(row[-1], room if beside else max(20, width - 4)) if words else []
        if beside and folded:
            line += " " * _GAP + folded[0]
            folded = folded[1:]
        yield line.rstrip(), style
        yield from ((" " * (used if beside else 4) + text, style) for text in folded if beside or n)


def _finding(finding: Finding, console: Console) -> None:
    title = Text(printable(finding.title[:1].upper() + finding.title[1:]))
    title.append(f"  [{' '.join(x for x in (finding.id, finding.name) if x)}]", style="dim")
    head = Table.grid(padding=0)
    head.add_column(width=9, no_wrap=True)
    head.add_column(overflow="fold")
    head.add_row(Text(finding.severity.value, style=_SEVERITIES[finding.severity]), title)
    console.print(head)
    if finding.evidence:
        console.print(Padding(Text(", ".join(printable(f"{e.file}:{e.line}") for e in finding.evidence), style="cyan"), (0, 0, 0, 9)))
    for advice in finding.advice:
        line = Text("→ " + printable(advice.action))
        if advice.expected:
            line.append(f" ({printable(advice.expected)})", style="dim")
        console.print(Padding(line, (0, 0, 0, 9)))
