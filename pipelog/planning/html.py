"""The plan as a page: one file that needs nothing else, in the style of the report's."""

from __future__ import annotations

from pipelog._version import __version__
from pipelog.planning.document import SEEN, sections
from pipelog.planning.plan import Plan
from pipelog.reporters.html import environment


def render(plan: Plan) -> str:
    """The whole page; no script runs in it, and it asks the network for nothing."""
    said = plan.verdict
    every = sections(plan)
    seen = next((s for s in every if s.title == SEEN), None)
    return (
        environment()
        .get_template("plan.html.jinja")
        .render(said=said, name=plan.name, findings=plan.findings, seen=seen, sections=[s for s in every if s is not seen], version=__version__)
    )
