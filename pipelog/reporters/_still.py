"""A series as a still picture of the page itself, for readers whose viewer blocks scripts: the same points as the picture that plotly draws."""

from __future__ import annotations

import math
from dataclasses import dataclass

from pipelog.reporters._figures import Figure
from pipelog.reporters._numbers import significant

WIDTH, HEIGHT = 1000.0, 100.0
"""Of the drawing's own units; the page stretches it."""


@dataclass(frozen=True, slots=True)
class Still:
    """lines: points as SVG wants them, one text a piece of the line; broken: where there is no value to draw. unit, ends: in words."""

    lines: tuple[str, ...]
    broken: tuple[float, ...]
    unit: str
    low: str
    high: str
    first: str
    last: str


def still(figure: Figure) -> Still | None:
    """The picture of a line over steps; null for any other."""
    if not figure.data or not str(figure.data[0].get("mode", "")).startswith("lines"):
        return None
    axis = figure.layout["yaxis"]
    place = math.log10 if axis.get("type") == "log" else float
    pieces = _pieces(figure.data[0]["x"], figure.data[0]["y"])
    values = [y for piece in pieces for _, y in piece]
    crosses = [float(x) for t in figure.data[1:] for x in t["x"]]
    steps = [x for piece in pieces for x, _ in piece] + crosses
    if not values:
        return None
    low, high = min(values + ([0.0] if axis.get("rangemode") == "tozero" else [])), max(values)
    wide, tall = (max(steps) - min(steps)) or 1.0, (place(high) - place(low)) or 1.0

    def across(step: float) -> float:
        return round(WIDTH * (step - min(steps)) / wide, 2)

    lines = tuple(" ".join(f"{across(x):g},{HEIGHT * (1 - (place(y) - place(low)) / tall):.2f}" for x, y in piece) for piece in pieces)
    unit = str(figure.layout["title"]["text"])
    return Still(lines, tuple(map(across, crosses)), unit, significant(low), significant(high), f"{min(steps):,.0f}", f"{max(steps):,.0f}")


def _pieces(steps: list[float | None], values: list[float | None]) -> list[list[tuple[float, float]]]:
    """The points of a line, broken where there is none."""
    made: list[list[tuple[float, float]]] = [[]]
    for x, y in zip(steps, values, strict=True):
        if x is None or y is None:
            made.append([])
        else:
            made[-1].append((float(x), float(y)))
    return [piece for piece in made if piece]
