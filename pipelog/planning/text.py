"""The plan in the terminal: plain when piped, as wide as the terminal else."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Callable, Iterable, Iterator

from rich.console import Console
from rich.text import Text

from pipelog.findings import Finding, Severity
from pipelog.planning.document import SEEN, Section, sections
from pipelog.planning.plan import Plan
from pipelog.reporters._places import kept
from pipelog.reporters.text import printable

_TONES = {"ok": "bold green", "warning": "bold yellow", "error": "bold red", "unknown": "bold blue"}
_GAP = 2
_INDENT = 9
_BULLET = 2
_LEAST_ROOM = 20
"""Columns of a terminal between two cells; below which words are not squeezed into a column."""
_SEVERITIES = {Severity.ERROR: "bold red", Severity.WARNING: "yellow", Severity.INFO: "blue"}


def render(plan: Plan) -> str:
    """Without colours, 100 columns wide."""
    return piped(lambda console: styled(plan, console))


def piped(write: Callable[[Console], None]) -> str:
    """What is written to a console without colours, 100 columns wide."""
    out = io.StringIO()
    write(Console(file=out, width=100, no_color=True, highlight=False, legacy_windows=False, soft_wrap=False, force_terminal=False))
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


def styled(plan: Plan, console: Console) -> None:
    """Write the plan to a console; it adapts to its width and honours NO_COLOR."""
    said = plan.verdict
    verdict(said.word, said.sentence, said.tone, [said.facts], console)
    first, *rest = sections(plan) or [Section("")]
    if first.title == SEEN:
        section(first, console, listed=False)
    else:
        rest = [first, *rest]
    for finding in plan.findings:
        console.print()
        _finding(finding, console)
    for each in rest:
        section(each, console)


def verdict(word: str, sentence: str, tone: str, facts: Iterable[str], console: Console) -> None:
    """The first lines: the word in its tone, the sentence, and the facts below."""
    head = wrapped(f"{word}  {sentence}", console.width)
    first = Text(word, style=_TONES[tone])
    first.append(head[0].removeprefix(word), style="bold")
    console.print(first)
    lines(head[1:], console, style="bold")
    for fact in facts:
        lines(wrapped(fact, console.width), console, style="dim")


def section(given: Section, console: Console, *, listed: bool = True) -> None:
    """Its title, its sentences and its table."""
    if not given.title:
        return
    console.print()
    console.print(Text(given.title, style="bold"))
    for text in given.says:
        folded = wrapped(text, console.width - _BULLET if listed and not given.rows else console.width)
        if listed and not given.rows:
            folded = [f"{' ' * _BULLET if n else '- '}{line}" for n, line in enumerate(folded)]
        lines(folded, console)
    if not given.rows:
        return
    for line, style in _table(given, console.width):
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
    width = console.width - _INDENT
    name = f"  [{' '.join(x for x in (finding.id, finding.name) if x)}]"
    title = wrapped(finding.title[:1].upper() + finding.title[1:] + name, width)
    head = Text(finding.severity.value.ljust(_INDENT), style=_SEVERITIES[finding.severity])
    head.append(title[0], style="none")
    console.print(head)
    lines(title[1:], console, indent=_INDENT)
    if finding.evidence:
        lines(wrapped(", ".join(f"{e.file}:{e.line}" for e in finding.evidence), width), console, style="cyan", indent=_INDENT)
    for advice in finding.advice:
        lines(wrapped(f"→ {advice.action}{f' ({advice.expected})' if advice.expected else ''}", width), console, indent=_INDENT)


def lines(folded: list[str], console: Console, *, style: str = "", indent: int = 0) -> None:
    """Lines that `wrapped` made, as they are."""
    for line in folded:
        console.print(Text(" " * indent + line, style=style), no_wrap=True, overflow="ignore", crop=False)


def wrapped(text: str, width: int) -> list[str]:
    """Lines of at most *width*; a number and its unit stay together."""
    folded = textwrap.wrap(kept(printable(text)), max(20, width), break_on_hyphens=False)
    return [line.replace("\N{NO-BREAK SPACE}", " ") for line in folded] or [""]
