"""Figures of a run as text; empty where they are not known."""

from __future__ import annotations

from pipelog._text import percent, seconds
from pipelog.comparing.side import Side


def step(one: Side) -> str:
    """The median step."""
    return time(one.step_s)


def per_sample(one: Side) -> str:
    """Time per sample."""
    return time(one.sample_s)


def time(value: float | None) -> str:
    """Seconds with a fitting unit."""
    return seconds(value * 1e9) if value is not None else ""


def signed(value: float) -> str:
    """Seconds with their sign."""
    return f"{'+' if value > 0 else '-' if value < 0 else ''}{seconds(abs(value) * 1e9)}"


def relative(a: float | None, b: float | None) -> str:
    """Change from *a* to *b*: +12.5 %."""
    return f"{b / a - 1:+.1%}".replace("%", " %") if a and b is not None else ""


def share(value: float | None) -> str:
    """A share as per cent."""
    return percent(value) if value is not None else ""
