"""The plan as Markdown, with tables: for a ticket or a pull request on GitHub."""

from __future__ import annotations

import re
from collections.abc import Iterator

from pipelog._text import visible
from pipelog.planning.document import Section, sections
from pipelog.planning.plan import Plan

MARK = "<!-- pipelog plan -->"
_SIGNS = re.compile(r"([\\*_\[\]<>|#~`])")


def render(plan: Plan) -> str:
    """The whole text."""
    return "\n".join(_lines(plan)) + "\n"


def _lines(plan: Plan) -> Iterator[str]:
    said = plan.verdict
    yield MARK
    yield f"## {said.word}: {plain(said.sentence)}"
    yield ""
    yield plain(said.facts)
    if plan.findings:
        yield ""
    for finding in plan.findings:
        where = ", ".join(f"{e.file}:{e.line}" for e in finding.evidence)
        name = " ".join(x for x in (finding.id, finding.name) if x)
        yield f"- **{finding.severity.value}** {plain(finding.title)} ({name}{f', {plain(where)}' if where else ''})"
        for advice in finding.advice:
            yield f"  - {plain(advice.action)}{f' ({plain(advice.expected)})' if advice.expected else ''}"
    for each in sections(plan):
        yield from section(each)


def section(given: Section) -> Iterator[str]:
    """Its title, its sentences and its table."""
    yield ""
    yield f"### {plain(given.title)}"
    yield ""
    yield from (f"{_coded(text)}  " if given.rows else f"- {_coded(text)}" for text in given.says)
    if not given.rows:
        return
    if given.says:
        yield ""
    yield _row(given.head)
    yield f"|{'|'.join('---:' if n in given.numbers else '---' for n in range(len(given.head)))}|"
    for n, row in enumerate(given.rows):
        yield _row(tuple(f"**{cell}**" if cell and n in given.now else cell for cell in map(plain, row)), escape=False)


def _row(cells: tuple[str, ...], *, escape: bool = True) -> str:
    return f"| {' | '.join(plain(c) if escape else c for c in cells)} |"


def plain(text: str) -> str:
    """Text that Markdown shows as it is, in one line."""
    return _SIGNS.sub(r"\\\1", " ".join(visible(text).split()))


def _coded(text: str) -> str:
    """Text whose `pieces in backticks` stay code."""
    parts = re.split(r"`([^`]+)`", " ".join(visible(text).split()))
    return "".join(f"`{part}`" if n % 2 else _SIGNS.sub(r"\\\1", part) for n, part in enumerate(parts))
