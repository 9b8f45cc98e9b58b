"""The comparison as Markdown, with tables: for a ticket or a pull request on GitHub."""

from __future__ import annotations

from collections.abc import Iterator

from pipelog.comparing.comparison import Comparison
from pipelog.comparing.document import sections
from pipelog.planning.markdown import plain, section

MARK = "<!-- pipelog diff -->"


def render(made: Comparison) -> str:
    """The whole text."""
    return "\n".join(_lines(made)) + "\n"


def _lines(made: Comparison) -> Iterator[str]:
    said = made.verdict
    yield MARK
    yield f"## {said.word}: {plain(said.sentence)}"
    yield ""
    yield from (f"- {plain(fact)}" for fact in said.facts)
    for each in sections(made):
        yield from section(each)
