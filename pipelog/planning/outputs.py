"""The forms of a plan by name: the suffix of its file and what makes its text."""

from __future__ import annotations

from collections.abc import Callable

from pipelog.planning import html, json, markdown, text
from pipelog.planning.plan import Plan

OUTPUTS: dict[str, tuple[str, Callable[[Plan], str]]] = {
    "text": (".txt", text.render),
    "json": (".json", json.render),
    "md": (".md", markdown.render),
    "html": (".html", html.render),
}


def by_suffix(name: str | None) -> str:
    """The form that the name of a file asks for; text where it asks for none."""
    return next((form for form, (suffix, _) in OUTPUTS.items() if name is not None and name.endswith(suffix)), "text")
