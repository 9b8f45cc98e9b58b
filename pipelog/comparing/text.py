"""The comparison in the terminal: plain when piped, as wide as the terminal else."""

from __future__ import annotations

from rich.console import Console

from pipelog.comparing.comparison import Comparison
from pipelog.comparing.document import sections
from pipelog.planning.text import piped, section, verdict


def render(made: Comparison) -> str:
    """Without colours, 100 columns wide."""
    return piped(lambda console: styled(made, console))


def styled(made: Comparison, console: Console) -> None:
    """Write the comparison to a console; it adapts to its width and honours NO_COLOR."""
    said = made.verdict
    verdict(said.word, said.sentence, said.tone, said.facts, console)
    for each in sections(made):
        section(each, console)
