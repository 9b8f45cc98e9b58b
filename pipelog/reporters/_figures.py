"""What the pictures of the HTML report have in common: their form, their colours, their axes. plotly figures are plain dicts here."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from pipelog.findings import Severity
from pipelog.report import JSON
from pipelog.reporters._places import Place

INK, MUTED, LINE, GRID, PAPER, TRACK, SOOT = "#1b2129", "#57616d", "#b9c2cb", "#e4e8ec", "#ffffff", "#edf0f3", "#11161b"
DARK, MIDDLE, LIGHT, PALE = "#3f566d", "#7f96ac", "#aebccb", "#d3dce4"
AMBER, AMBER_LIGHT, RED = "#c9770f", "#eebd76", "#c8372d"
AT_NIGHT = {
    INK: "#e6eaee",
    MUTED: "#a1acb8",
    LINE: "#4a5561",
    GRID: "#2a323b",
    PAPER: "#14181d",
    TRACK: "#222930",
    DARK: "#a9bed2",
    MIDDLE: "#7089a1",
    LIGHT: "#526577",
    PALE: "#38444f",
    AMBER: "#e79a35",
    AMBER_LIGHT: "#7f5018",
    RED: "#f0776c",
}
"""Each colour of a figure in dark mode; soot stays as it is, for writing on amber. Slate says what is measured; amber and red mark what a finding of that severity names."""

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"


@dataclass(frozen=True, slots=True)
class Key:
    """One entry of a legend: colour and pattern of its swatch, its words, its value, what it means, findings that explain it."""

    color: str
    name: str
    value: str = ""
    means: str = ""
    places: tuple[Place, ...] = ()
    shape: str = "solid"


@dataclass(frozen=True, slots=True)
class Figure:
    """A picture and its words: what to see in it, its legend, its numbers as a table, the findings that it shows."""

    id: str
    title: str
    says: tuple[str, ...]
    data: list[JSON]
    layout: JSON
    legend: tuple[Key, ...] = ()
    head: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    places: tuple[Place, ...] = ()

    @property
    def height(self) -> int:
        """In CSS pixels, kept free before the picture is drawn."""
        return int(self.layout["height"])

    @property
    def picture(self) -> JSON:
        """The plotly figure."""
        return {"data": self.data, "layout": self.layout}


def layout(height: int, *, x: JSON, y: JSON, above: str = "", **more: Any) -> JSON:
    """A plain frame. above: the unit of the vertical axis, written over it, where it can be read without turning the head."""
    top = 30 if above else 6
    title = {
        "text": above,
        "x": 0,
        "xref": "container",
        "xanchor": "left",
        "y": 1,
        "yref": "container",
        "yanchor": "top",
        "pad": {"t": 4},
        "font": {"size": 12.5, "color": MUTED},
    }
    return {
        "height": height,
        "margin": {"l": 4, "r": 12, "t": top, "b": 8, "pad": 0},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": FONT, "size": 12.5, "color": INK},
        "showlegend": False,
        "dragmode": False,
        "hovermode": "closest",
        "hoverlabel": {"bgcolor": PAPER, "bordercolor": LINE, "font": {"family": FONT, "size": 12.5, "color": INK}},
        "xaxis": x,
        "yaxis": y,
        **({"title": title} if above else {}),
        **more,
    }


def axis(title: str = "", *, grid: bool = False, **more: Any) -> JSON:
    """An axis with its unit in the title, a grid only where values are read off it."""
    return {
        **({"title": {"text": title, "font": {"size": 12.5, "color": MUTED}, "standoff": 10}} if title else {}),
        "tickfont": {"size": 12, "color": MUTED},
        "showgrid": grid,
        "gridcolor": GRID,
        "zeroline": False,
        "showline": not grid,
        "linecolor": LINE,
        "ticks": "",
        "automargin": True,
        "separatethousands": True,
        "fixedrange": True,
        **more,
    }


def stage_axis(stages: Sequence[int], marked: Iterable[int] = ()) -> JSON:
    """Stages as rows, stage 0 on top; those that a finding names carry a sign."""
    some = set(marked)
    step = -(-len(stages) // 32)
    shown = [s for i, s in enumerate(stages) if i % step == 0 or s in some]
    return axis(
        tickvals=shown,
        ticktext=[f"▲ stage {s}" if s in some else f"stage {s}" for s in shown],
        tickfont={"size": 12.5, "color": INK},
        range=[max(stages) + 0.5, min(stages) - 0.5],
        showline=False,
        ticklabelstandoff=6,
    )


def tone(places: Iterable[Place]) -> str:
    """The colour that marks what these findings name."""
    return RED if any(p.finding.severity is Severity.ERROR for p in places) else AMBER


def filled(color: str | list[str], shape: str = "") -> JSON:
    """A marker of this colour, with lines or dots of the paper's colour over it where a shape is given; plotly cannot do both bar by bar."""
    plain: JSON = {"color": color, "line": {"width": 0}}
    return plain | (
        {"pattern": {"shape": shape, "bgcolor": color, "fgcolor": PAPER, "fgopacity": 0.85, "size": 6, "solidity": 0.22}} if shape else {}
    )


def bars(ids: Sequence[int | str], values: Sequence[float | None], color: str | list[str], **more: Any) -> JSON:
    """A trace of horizontal bars, one a row."""
    return {"type": "bar", "orientation": "h", "y": list(ids), "x": list(values), "marker": filled(color), **more}


def rows_height(rows: int, extra: int = 56) -> int:
    """A fitting height for so many rows of bars."""
    return extra + rows * (34 if rows <= 8 else 24 if rows <= 20 else 15)


def ticks(at: Sequence[int], values: Sequence[float | None], hover: str, rows: int) -> JSON:
    """A tick across each bar: what one would expect."""
    return {
        "type": "scatter",
        "mode": "markers",
        "x": list(values),
        "y": list(at),
        "marker": {"symbol": "line-ns", "size": 24 if rows <= 8 else 15 if rows <= 20 else 9, "line": {"width": 2.5, "color": INK}},
        "hovertemplate": f"{hover}<extra></extra>",
    }


def upright(data: list[JSON], frame: JSON, named: str) -> tuple[list[JSON], JSON]:
    """Rows as columns, where there are too many to stand below each other. named: what a row is, the axis' title then."""
    turned = [_turned(trace) for trace in data]
    rows, values = frame["yaxis"], frame["xaxis"]
    title = values.pop("title", None)
    every = list(zip(rows["tickvals"], rows["ticktext"], strict=True))
    shown = [(v, t) for i, (v, t) in enumerate(every) if t.startswith("▲") or i % -(-len(every) // 16) == 0]
    rows |= axis(
        named, showgrid=False, tickvals=[v for v, _ in shown], ticktext=[t.replace(f"{named} ", "") for _, t in shown], range=rows["range"][::-1]
    )
    values |= {"showgrid": True, "showline": False, "nticks": 6}
    above = layout(270, x=rows, y=values, above=title["text"] if title else "")
    return turned, frame | above


def _turned(trace: JSON) -> JSON:
    out = trace | {"x": trace["y"], "y": trace["x"]}
    if "orientation" in out:
        out["orientation"] = "v"
    if trace.get("mode") == "markers":
        out["marker"] = trace["marker"] | {"symbol": "line-ew"}
    swapped = {"%{x": "%{y", "%{y": "%{x"}
    out["hovertemplate"] = re.sub(r"%\{[xy]", lambda m: swapped[m[0]], trace.get("hovertemplate", ""))
    return out


MOST_ROWS = 24
"""More rows than this stand upright."""
