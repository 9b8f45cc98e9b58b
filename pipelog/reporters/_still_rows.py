"""Bars as a still picture of the page itself, for readers whose viewer blocks scripts: the same bars as in the picture that plotly draws."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import repeat
from typing import Any

from pipelog.reporters._figures import INK, LINE, Figure
from pipelog.reporters._numbers import significant

WIDTH, HEIGHT = 1000.0, 20.0
"""Of a row, in the drawing's own units; the page stretches it."""
_SHADES = 8
"""A heat map's values are drawn in so many shades: one path of a row holds all cells of one."""


@dataclass(frozen=True, slots=True)
class Shape:
    """All pieces of one colour in a row. path: lines along the row's middle, as SVG wants them, as thick as the bars are high; a thickness of 0
    is a tick across the row. shade: how much of the colour shows, 1 for all.
    """

    color: str
    path: str
    thick: float
    shade: float = 1.0


@dataclass(frozen=True, slots=True)
class StillRow:
    """One row: its name, empty where rows are too many to name each, and what is drawn in it, the last on top."""

    name: str
    shapes: tuple[Shape, ...]


@dataclass(frozen=True, slots=True)
class StillRows:
    """Rows from top to bottom over one axis from low to high, whose unit is given in words."""

    rows: tuple[StillRow, ...]
    low: str
    high: str
    unit: str


@dataclass(frozen=True, slots=True)
class _Piece:
    row: float
    begin: float
    length: float
    color: str
    shade: float
    thick: float


def still_rows(figure: Figure) -> StillRows | None:
    """The picture of bars, standing or lying, or of a heat map; null for any other."""
    kind = figure.data[0].get("type") if figure.data else None
    if kind not in ("bar", "heatmap"):
        return None
    standing = kind == "bar" and figure.data[0].get("orientation") != "h"
    ids, values = ("x", "y") if standing else ("y", "x")
    pieces = [p for trace in _stacked(figure, ids, values) for p in trace] if kind == "bar" else list(_cells(figure.data[0]))
    marks = [(row, at) for t in figure.data if t.get("mode") == "markers" for row, at in zip(t[ids], t[values], strict=True) if at is not None]
    axis, names = figure.layout[f"{values}axis"], figure.layout[f"{ids}axis"]
    ends = [p.begin + p.length for p in pieces] + [at for _, at in marks]
    if not ends:
        return None
    low, high = axis.get("range") or (min([0.0, *(p.begin for p in pieces)]), max(ends))
    scale = WIDTH / ((high - low) or 1.0)
    shapes = _shapes(pieces, low, scale)
    through = [(row, s["x0"], LINE) for s in figure.layout.get("shapes", ()) if s["type"] == "line" and s["yref"] == "paper" for row in shapes]
    for row, at, color in (*through, *((row, at, INK) for row, at in marks)):
        shapes[row].append(Shape(color, f"M{_n((at - low) * scale)},0V{HEIGHT:g}", 0.0))
    called = dict(zip(names.get("tickvals", ()), names.get("ticktext", ()), strict=True))
    rows = tuple(StillRow(str(called.get(row, "")), tuple(shapes[row])) for row in sorted(shapes))
    title = (axis.get("title") or figure.layout.get("title") or {}).get("text", "")
    return StillRows(rows, significant(low), significant(high), str(title))


def _stacked(figure: Figure, ids: str, values: str) -> Iterator[list[_Piece]]:
    """The bars of each trace: on top of those before it where they are stacked, from their own beginning otherwise."""
    reached: dict[float, float] = defaultdict(float)
    stack = figure.layout.get("barmode") == "stack"
    for trace in figure.data:
        if trace.get("type") != "bar":
            continue
        marker, wide = trace["marker"], min(1.0, trace.get("width", 1.0) / 0.72)
        colors = marker["color"] if isinstance(marker["color"], list) else repeat(marker["color"])
        shade = 0.55 if "pattern" in marker else 1.0
        begins = trace.get("base") or repeat(None)
        made = []
        for row, length, begin, color in zip(trace[ids], trace[values], begins, colors, strict=False):
            if length is not None:
                start = begin if begin is not None else reached[row] if stack else 0.0
                made.append(_Piece(row, float(start), float(length), color, shade, wide))
                reached[row] += length
        yield made


def _cells(trace: Mapping[str, Any]) -> Iterator[_Piece]:
    """Cells of one shade that lie side by side are one piece. The palest colour of the scale is the row's ground."""
    ground, color = (c for _, c in trace["colorscale"])
    width, first = trace["dx"], trace["x0"] - trace["dx"] / 2
    for row, values in zip(trace["y"], trace["z"], strict=True):
        yield _Piece(row, first, width * len(values), ground, 1.0, 1.0)
        begin = 0
        shades = [round((v or 0.0) * _SHADES) for v in values]
        for i in range(1, len(shades) + 1):
            if i == len(shades) or shades[i] != shades[begin]:
                if shades[begin]:
                    yield _Piece(row, first + width * begin, width * (i - begin), color, shades[begin] / _SHADES, 1.0)
                begin = i


def _shapes(pieces: list[_Piece], low: float, scale: float) -> dict[float, list[Shape]]:
    """One path for each row, colour, shade and thickness, in the order in which they first come."""
    paths: dict[float, dict[tuple[str, float, float], list[str]]] = defaultdict(lambda: defaultdict(list))
    for p in pieces:
        begin, end = (min(max((at - low) * scale, 0.0), WIDTH) for at in (p.begin, p.begin + p.length))
        of_row = paths[p.row]  # also a row without a bar is a row
        if end > begin:
            of_row[p.color, p.shade, p.thick].append(f"M{_n(begin)},{HEIGHT / 2:g}H{_n(end)}")
    return {
        row: [Shape(color, "".join(lines), thick * HEIGHT, shade) for (color, shade, thick), lines in some.items()] for row, some in paths.items()
    }


def _n(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")
