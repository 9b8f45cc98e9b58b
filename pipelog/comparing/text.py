"""The comparison in the terminal: plain when piped, as wide as the terminal else."""

from __future__ import annotations

import io

from rich.console import Console
from rich.text import Text

from pipelog.comparing.comparison import Comparison
from pipelog.comparing.document import sections
from pipelog.planning.text import lines, section, wrapped

_TONES = {"ok": "bold green", "warning": "bold yellow", "error": "bold red", "unknown": "bold blue"}


def render(made: Comparison) -> str:
    """Without colours, 100 columns wide."""
    out = io.StringIO()
    styled(made, Console(file=out, width=100, no_color=True, highlight=False, legacy_windows=False, soft_wrap=False, force_terminal=False))
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


def styled(made: Comparison, console: Console) -> None:
    """Write the comparison to a console; it adapts to its width and honours NO_COLOR."""
    said = made.verdict
    head = wrapped(f"{said.word}  {said.sentence}", console.width)
    first = Text(said.word, style=_TONES[said.tone])
    first.append(head[0].removeprefix(said.word), style="bold")
    console.print(first)
    lines(head[1:], console, style="bold")
    for fact in said.facts:
        lines(wrapped(fact, console.width), console, style="dim")
    for each in sections(made):
        section(each, console)
