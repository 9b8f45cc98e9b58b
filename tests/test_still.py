"""The pictures for viewers that block scripts: they hold the numbers of those that move, read back from the drawing."""

from __future__ import annotations

import re
from collections import defaultdict

import pytest

from pipelog.reporters._figures import DARK, INK, LINE, TRACK, Figure, layout
from pipelog.reporters._still import still
from pipelog.reporters._still_rows import StillRow, still_rows
from tests.test_html import RUNS, drawn, large, report


@pytest.mark.parametrize("run", RUNS)
def test_lines_hold_the_points_of_those_that_move(run: str) -> None:
    """Read back from the drawing: every point, on its axis, and a mark for each value that is none."""
    for figure in drawn(report(run)):
        made = still(figure)
        if made is None:
            assert figure.id not in ("step-time", "loss", "grad-norm") or not any(v is not None for v in figure.data[0]["y"])
            continue
        points = [tuple(map(float, p.split(","))) for line in made.lines for p in line.split()]
        x, y = ([v for v in figure.data[0][k] if v is not None] for k in ("x", "y"))
        assert len(points) == len(y)
        assert len(made.broken) == sum(len(t["x"]) for t in figure.data[1:])
        assert min(points, key=lambda p: p[1])[1] == 0
        assert points[y.index(max(y))][1] == 0
        assert max(p[1] for p in points) <= 100
        if figure.layout["yaxis"].get("rangemode") == "tozero":
            assert points[0][1] == pytest.approx(100 * (1 - y[0] / max(y)), abs=0.01)
        if len(points) > 1 and not made.broken:
            assert (points[0][0], points[-1][0]) == (0, 1000)
            assert points[1][0] == pytest.approx(1000 * (x[1] - x[0]) / (x[-1] - x[0]), abs=0.01)


@pytest.mark.parametrize("run", RUNS)
def test_there_is_one_for_every_picture_with_a_value(run: str) -> None:
    for figure in drawn(report(run)):
        empty = not any(v is not None for trace in figure.data for axis in ("x", "z") for v in trace.get(axis, ()))
        assert (still(figure) is not None) != (still_rows(figure) is not None) or empty, figure.id


def lengths(row: StillRow) -> dict[str, list[tuple[float, float]]]:
    """Colour → begin and end of each bar, in thousandths of the axis."""
    found: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for shape in row.shapes:
        if shape.thick:
            found[shape.color] += [(float(a), float(b)) for a, b in re.findall(r"M([\d.]+),10H([\d.]+)", shape.path)]
    return found


@pytest.mark.parametrize("run", ["heavy-stage2", "comm-stall-link-1-2", "R08"])
def test_bars_are_as_long_as_their_numbers(run: str) -> None:
    """Of each row all bars together: the drawing, stretched back to its axis, and the values of plotly's traces."""
    seen = 0
    for figure in drawn(report(run)):
        made = still_rows(figure)
        if made is None:
            continue
        given: dict[float, float] = defaultdict(float)
        low, high = figure.layout["xaxis"].get("range") or (0.0, None)
        for trace in (t for t in figure.data if t["type"] == "bar"):
            for i, (row, value) in enumerate(zip(trace["y"], trace["x"], strict=True)):
                begin = trace["base"][i] if "base" in trace else low
                given[row] += max(0.0, min(begin + value, high or begin + value) - max(begin, low))
        high = high or max(*given.values(), *(x for t in figure.data if t.get("mode") == "markers" for x in t["x"] if x is not None), 0.0)
        for row, name in zip(made.rows, sorted(given), strict=True):
            assert sum(b - a for some in lengths(row).values() for a, b in some) == pytest.approx(1000 * given[name] / (high - low), abs=0.5)
            seen += 1
    assert seen > 10


def test_stacked_bars_stand_behind_each_other_and_ticks_where_they_belong() -> None:
    """By hand: 30 then 60 of 120 on row 0, 40 alone on row 1, what is expected at 90; a phase line at 12."""
    bar = {"type": "bar", "orientation": "h", "marker": {"color": DARK}}
    data = [
        bar | {"y": [0, 1], "x": [30, 40]},
        bar | {"y": [0, 1], "x": [60, None], "marker": {"color": TRACK, "pattern": {"shape": "/"}}},
        {"type": "scatter", "mode": "markers", "y": [0, 1], "x": [90, None]},
    ]
    line = {"type": "line", "yref": "paper", "x0": 12, "x1": 12}
    axes = {"x": {"range": [0, 120], "title": {"text": "ms"}}, "y": {"tickvals": [0, 1], "ticktext": ["stage 0", "stage 1"]}}
    made = still_rows(Figure("f", "F", (), data, layout(100, **axes, barmode="stack", shapes=[line])))
    assert made is not None
    assert [row.name for row in made.rows] == ["stage 0", "stage 1"]
    assert (made.low, made.high, made.unit) == ("0", "120", "ms")
    assert lengths(made.rows[0]) == {DARK: [(0, 250)], TRACK: [(250, 750)]}
    assert lengths(made.rows[1]) == {DARK: [(0, pytest.approx(333.33))]}
    assert [(s.color, s.path) for s in made.rows[0].shapes if not s.thick] == [(LINE, "M100,0V20"), (INK, "M750,0V20")]
    assert [(s.color, s.path) for s in made.rows[1].shapes if not s.thick] == [(LINE, "M100,0V20")]
    assert {s.color: s.shade < 1 for s in made.rows[0].shapes if s.thick} == {DARK: False, TRACK: True}


def test_rows_that_stand_upright_lie_here() -> None:
    bar = {"type": "bar", "orientation": "v", "x": [0, 1], "y": [5.0, 10.0], "marker": {"color": [DARK, TRACK]}}
    made = still_rows(Figure("f", "F", (), [bar], layout(100, x={"tickvals": [1], "ticktext": ["1"]}, y={}, above="GiB")))
    assert made is not None
    assert [(row.name, dict(lengths(row))) for row in made.rows] == [("", {DARK: [(0, 500)]}), ("1", {TRACK: [(0, 1000)]})]
    assert (made.high, made.unit) == ("10", "GiB")


def test_many_stages_are_shades() -> None:
    """Each cell of the heat map in the nearest of eight shades; all rows there, few named."""
    figure = next(f for f in drawn(large(64)) if f.id == "timeline")
    made = still_rows(figure)
    assert made is not None
    (trace,) = figure.data
    assert trace["type"] == "heatmap"
    assert len(made.rows) == 64
    for row, values in zip(made.rows, trace["z"], strict=True):
        drawn_area = sum((b - a) * s.shade for s in row.shapes if s.color == DARK for a, b in [*lengths(StillRow("", (s,)))[DARK]])
        assert drawn_area == pytest.approx(1000 * sum(values) / len(values), abs=1000 / 16)
    assert 1 < sum(1 for row in made.rows if row.name) <= 33
