"""The forms of a comparison by name: the suffix of its file and what makes its text."""

from __future__ import annotations

from collections.abc import Callable

from pipelog.comparing import html, json, markdown, text
from pipelog.comparing.comparison import Comparison

OUTPUTS: dict[str, tuple[str, Callable[[Comparison], str]]] = {
    "text": (".txt", text.render),
    "json": (".json", json.render),
    "md": (".md", markdown.render),
    "html": (".html", html.render),
}


def by_suffix(name: str | None) -> str:
    """The form that the name of a file asks for; text where it asks for none."""
    return next((form for form, (suffix, _) in OUTPUTS.items() if name is not None and name.endswith(suffix)), "text")
