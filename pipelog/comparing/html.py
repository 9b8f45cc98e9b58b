"""The comparison as a page: one file that needs nothing else, in the style of the report's."""

from __future__ import annotations

from pipelog._version import __version__
from pipelog.comparing.comparison import Comparison
from pipelog.comparing.document import PARTS, sections
from pipelog.comparing.steps_between import between
from pipelog.reporters.html import environment


def render(made: Comparison) -> str:
    """The whole page; no script runs in it, and it asks the network for nothing."""
    names = f"{made.a.report.name} and {made.b.report.name}"
    pictures = {PARTS: between(made)}
    return (
        environment()
        .get_template("diff.html.jinja")
        .render(said=made.verdict, name=names, sections=sections(made), pictures=pictures, version=__version__)
    )
