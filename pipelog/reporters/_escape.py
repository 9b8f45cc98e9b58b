"""Text of logs is hostile: how it becomes plain text in HTML, in blocks of JSON and in the labels of charts."""

from __future__ import annotations

import html
import json
import re
from typing import Any

from markupsafe import Markup

from pipelog._text import visible


def finalize(value: Any) -> Any:
    """Applied to everything a template prints, before it is escaped."""
    return value if isinstance(value, Markup) or not isinstance(value, str) else visible(value)


def coded(text: str) -> Markup:
    """Text as HTML whose `pieces in backticks` are code."""
    parts = re.split(r"`([^`]+)`", visible(text))
    return Markup("").join(part if n % 2 == 0 else Markup("<code>{}</code>").format(part) for n, part in enumerate(parts))


def label(text: str, most: int = 60) -> str:
    """Text for a chart: one line, no longer than *most*, and nothing that plotly would take for a tag, an entity or a place to fill in."""
    line = " ".join(visible(str(text)).split()).replace("%{", "% {")
    return html.escape(line if len(line) <= most else line[: most - 1] + "…", quote=False)


def json_block(value: Any) -> Markup:
    """JSON for a script element: ASCII only, and nothing in it that could end the element or begin another."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return Markup(text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e"))  # noqa: S704
