"""The forms of a comparison by name: the suffix of its file and what makes its text."""

from __future__ import annotations

from collections.abc import Callable

from pipelog.comparing import html, json, markdown, text
from pipelog.comparing.comparison import Comparison
from pipelog.planning.outputs import by_suffix

__all__ = ["OUTPUTS", "by_suffix"]

OUTPUTS: dict[str, tuple[str, Callable[[Comparison], str]]] = {
    "text": (".txt", text.render),
    "json": (".json", json.render),
    "md": (".md", markdown.render),
    "html": (".html", html.render),
}
