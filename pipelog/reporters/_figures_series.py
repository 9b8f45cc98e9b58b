"""What changes from step to step: the step time, the loss, its scale, the norm of the gradients."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

from pipelog._text import count, percent, seconds
from pipelog.findings import Status
from pipelog.report import JSON, Report
from pipelog.reporters._figures import AMBER, DARK, INK, MUTED, PAPER, RED, Figure, Key, axis, layout, tone
from pipelog.reporters._numbers import power_of_two, raised, scale, significant
from pipelog.reporters._places import Place, Places

Rows = tuple[tuple[str, ...], ...]
_SOURCES = {
    "deepspeed": "DeepSpeed's 'iter time'",
    "megatron": "Megatron's 'elapsed time per iteration'",
    "neox": "GPT-NeoX's iteration lines",
    "trace": "the profiler's steps",
    "operations": "the table of operations",
}


def step_time(report: Report, places: Places) -> Figure | None:
    """The step time over the steps, with the step from which on it changed."""
    series = report.charts.get("steps")
    if not series:
        return None
    values = series["seconds"]
    unit, scale = ("s", 1.0) if max(values) >= 1 else ("ms", 1000.0)
    drops = places.of("throughput-drop")
    where = _SOURCES.get(series["source"], "the log")
    frame = layout(
        220,
        x=_step_axis(series["step"]),
        y=axis(grid=True, rangemode="tozero", nticks=6),
        above=f"{unit} per step, from {where}",
        shapes=[_change(p) for p in drops if p.finding.where.steps],
        annotations=[_change_label(p) for p in drops if p.finding.where.steps],
    )
    data = [_line(series["step"], [round(v * scale, 3) for v in values], f"step %{{x:,d}}: %{{y:,.4~g}} {unit}")]
    head, rows = _numbers(series["step"], values, "Time", lambda v: seconds(v * 1e9) if v is not None else "")
    return Figure("step-time", "Step time", _step_says(report, places), data, frame, (), head, rows, drops)


def _step_says(report: Report, places: Places) -> tuple[str, ...]:
    said = places.titles("throughput-drop")
    if said:
        return said
    known = report.metrics["step_time_s"]
    if not known["median"]:
        return ("The step times as printed.",)
    high = f", 95 % of them below {seconds(known['p95'] * 1e9)}" if known["p95"] else ""
    text = f"The median over {count(known['n'], 'step')} is {seconds(known['median'] * 1e9)}{high}"
    status = next((o.status for o in report.outcomes if o.name == "throughput-drop"), None)
    judged = "; no lasting change" if status is Status.CLEAR else "; too few to tell a lasting change" if status is Status.NOT_APPLICABLE else ""
    first = " The first interval, which holds warm-up, is left out of it." if known.get("source") not in ("trace", "operations") else ""
    return (f"{text}{judged}.{first}",)


_MOST_ROWS = 120
_STRETCHES = 30


def _numbers(steps: list[int], values: list[float | None], title: str, show: Callable[[float | None], str]) -> tuple[tuple[str, ...], Rows]:
    """Head and rows of the table behind a picture: step by step, or the lowest and highest value of stretches where there are many."""
    if len(steps) <= _MOST_ROWS:
        return ("Step", title), tuple((f"{s:,}", show(v)) for s, v in zip(steps, values, strict=True))
    size = -(-len(steps) // _STRETCHES)
    rows = []
    for at in range(0, len(steps), size):
        some = values[at : at + size]
        known = [v for v in some if v is not None]
        odd = ("" if len(known) == len(some) else "some" if known else "all",) if None in values else ()  # a long series is thinned: no count
        ends = (show(min(known)), show(max(known))) if known else ("", "")
        rows.append((f"{steps[at]:,} to {steps[at : at + size][-1]:,}", *ends, *odd))
    return ("Steps", "Lowest", "Highest", *(("Not a number",) if None in values else ())), tuple(rows)


def _step_axis(steps: list[int]) -> JSON:
    """Whole steps; each of a few is named, where they do not stand too close."""
    apart = min((b - a for a, b in pairwise(steps)), default=1) * 14 > steps[-1] - steps[0]
    few = {"tickvals": steps} if len(steps) <= 12 and apart else {"nticks": 12}
    return axis("step", tickformat=",d", **few)


def _change(place: Place) -> JSON:
    first = place.finding.where.steps[0] if place.finding.where.steps else 0
    return {
        "type": "line",
        "x0": first,
        "x1": first,
        "yref": "paper",
        "y0": 0,
        "y1": 1,
        "line": {"color": tone((place,)), "width": 1.5, "dash": "dash"},
    }


def _change_label(place: Place) -> JSON:
    first = place.finding.where.steps[0] if place.finding.where.steps else 0
    cost = f", {percent(place.finding.cost)} lost" if place.finding.cost else ""
    return {
        "x": first,
        "y": 0.03,
        "yref": "paper",
        "text": f"from step {first:,} on{cost}",
        "showarrow": False,
        "xanchor": "left",
        "yanchor": "bottom",
        "xshift": 6,
        "font": {"size": 12.5, "color": INK},
    }


def _line(steps: list[int], values: list[float | None], hover: str, told: list[str] | None = None) -> JSON:
    """told: the values in words, for the hover text, where its numbers would not read well."""
    few = len(steps) <= 80
    x, y = _apart(steps, values)
    words = dict(zip(steps, told, strict=True)) if told else {}
    return {
        "type": "scatter",
        "mode": "lines+markers" if few else "lines",
        "x": x,
        "y": y,
        "line": {"color": DARK, "width": 1.8},
        "marker": {"color": DARK, "size": 6 if few else 3, "line": {"color": PAPER, "width": 1}},
        "hovertemplate": f"{hover}<extra></extra>",
        **({"customdata": [words.get(s, "") if s is not None else "" for s in x]} if told else {}),
    }


def _apart(steps: list[int], values: list[float | None]) -> tuple[list[int | None], list[float | None]]:
    """The line is broken where many steps are missing: nobody saw what was between."""
    gaps = sorted(b - a for a, b in pairwise(steps))
    usual = gaps[len(gaps) // 2] if gaps else 0
    out_steps: list[int | None] = []
    out_values: list[float | None] = []
    for step, before, value in zip(steps, [None, *steps], values, strict=False):
        if before is not None and step - before > 10 * usual:
            out_steps.append(None)
            out_values.append(None)
        out_steps.append(step)
        out_values.append(value)
    return out_steps, out_values


_NUMBERS = {
    "loss": ("Loss", "loss", ("loss-nan", "loss-spike")),
    "loss_scale": ("Loss scale", "loss scale (logarithmic)", ("loss-scale-collapse",)),
    "grad_norm": ("Gradient norm", "gradient norm", ("loss-nan",)),
}


def numerics(report: Report, places: Places) -> list[Figure]:
    """Loss, loss scale and gradient norm: those that move. A line that never changes is a sentence, see `constants`."""
    series = report.charts.get("loss") or {}
    return [_number(name, series[name], places) for name in _NUMBERS if name in series and not _constant(series[name])]


def constants(report: Report) -> list[str]:
    """A sentence for each series that never changes."""
    series = report.charts.get("loss") or {}
    still = [(name, s) for name, s in series.items() if name in _NUMBERS and _constant(s)]
    return [
        f"{_NUMBERS[name][0]}: {_plain(s['value'][0])} on all {count(len(s['value']), 'line')} that were kept, so there is no picture of it."
        for name, s in still
    ]


def _constant(series: JSON) -> bool:
    return len(set(series["value"])) < 2


def _plain(value: float | None) -> str:
    return "not a number" if value is None else significant(value)


def _number(name: str, series: JSON, places: Places) -> Figure:
    title, unit, rules = _NUMBERS[name]
    named = tuple(p for p in places.of(*rules) if name != "grad_norm" or "norm" in p.finding.title)
    steps, values = series["step"], series["value"]
    finite = [v for v in values if v is not None]
    logarithmic = name == "loss_scale" and bool(finite) and min(finite) > 0
    broken = [s for s, v in zip(steps, values, strict=True) if v is None]
    told = [_told(name, v) for v in values]
    data = [_line(steps, values, f"step %{{x:,d}}: {title.lower()} %{{customdata}}", told)]
    if broken:
        data.append(_crosses(broken, min(finite, default=0.0)))
    frame = layout(
        230,
        x=_step_axis(steps),
        y=axis(grid=True, nticks=6) | (_powers(finite) if logarithmic else {}),
        above=unit,
        shapes=[_span(p) for p in named if p.finding.where.steps],
    )
    legend = [Key(RED, "nan or inf (no value to draw)", shape="cross")] if broken else []
    if any(p.finding.where.steps for p in named):
        legend.append(Key(AMBER, "steps that a finding names", shape="band"))
    head, rows = _numbers(steps, values, title, lambda v: _told(name, v))
    says = tuple(sentence for p in named for sentence in places.titles(p.finding.name))
    return Figure(
        name.replace("_", "-"),
        title,
        tuple(dict.fromkeys(says)) or (_moves(name, title, finite),),
        data,
        frame,
        tuple(legend),
        head,
        rows,
        named,
    )


def _told(name: str, value: float | None) -> str:
    """Four digits that count; a loss scale whole, as the power that it is."""
    return "nan or inf" if value is None else scale(value) if name == "loss_scale" else significant(value)


def _powers(values: list[float]) -> JSON:
    """A logarithmic axis: powers of two as ticks, which loss scales are, else of ten; few enough to be read."""
    base = 2 if all(power_of_two(v) is not None for v in values) else 10
    low, high = math.floor(math.log(min(values), base) + 1e-9), math.ceil(math.log(max(values), base) - 1e-9)
    apart = max(1, math.ceil((high - low) / 6))
    ticks = list(range(low, high + apart, apart))
    return {
        "type": "log",
        "tickmode": "array",
        "tickvals": [float(base) ** n for n in ticks],
        "ticktext": [raised(base, n) for n in ticks],
        "tickfont": {"size": 14, "color": MUTED},
    }


def _crosses(steps: list[int], at: float) -> JSON:
    return {
        "type": "scatter",
        "mode": "markers",
        "x": steps,
        "y": [at] * len(steps),
        "marker": {"symbol": "x-thin", "size": 8, "line": {"width": 2, "color": RED}},
        "hovertemplate": "step %{x:,d}: nan or inf<extra></extra>",
    }


def _span(place: Place) -> JSON:
    first, last = place.finding.where.steps or (0, 0)
    return {
        "type": "rect",
        "x0": first - 0.5,
        "x1": last + 0.5,
        "yref": "paper",
        "y0": 0,
        "y1": 1,
        "fillcolor": tone((place,)),
        "opacity": 0.13,
        "line": {"width": 0},
        "layer": "below",
    }


def _moves(name: str, title: str, values: list[float]) -> str:
    """From where to where, with the range."""
    first, last, low, high = (_told(name, v) for v in (values[0], values[-1], min(values), max(values)))
    return (
        f"{title} goes from {first} to {last}, between {low} and {high}." if {first, last} != {low, high} else f"{title} goes from {first} to {last}."
    )
