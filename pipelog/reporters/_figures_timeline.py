"""The timeline of one step: stage × time, pass by pass, or as busy shares where there are too many passes to draw."""

from __future__ import annotations

from typing import Any

from pipelog._text import count, digits, percent, seconds
from pipelog.report import JSON, Report
from pipelog.reporters._figures import (
    AMBER,
    AMBER_LIGHT,
    DARK,
    INK,
    LIGHT,
    LINE,
    MIDDLE,
    PALE,
    PAPER,
    SOOT,
    TRACK,
    Figure,
    Key,
    axis,
    filled,
    layout,
    stage_axis,
)
from pipelog.reporters._places import Place, Places, stages

_SLOW = ("stage-imbalance", "straggler-rank")
_LATE = ("slow-data-loading",)
_STALLED = ("communication-stall",)
_KINDS = {
    "forward": ("forward pass", "forward"),
    "backward": ("backward pass", "backward"),
    "load_micro_batch": ("load", "load a micro-batch"),
    "late_send": ("late", "idle before a late send"),
    "send": ("message", "send"),
    "send_activation": ("message", "send activations"),
    "send_grad": ("message", "send gradients"),
    "recv": ("message", "receive"),
    "recv_activation": ("message", "receive activations"),
    "recv_grad": ("message", "receive gradients"),
    "reduce_grads": ("reduce", "reduce gradients"),
    "optimizer_step": ("optimizer", "optimizer step"),
}
_LOOK: dict[str, tuple[str, float, str, str]] = {
    "message": (PALE, 0.24, "message (in a send or receive call, waiting included)", ""),
    "forward pass": (MIDDLE, 0.72, "forward pass", ""),
    "backward pass": (DARK, 0.72, "backward pass", ""),
    "load": (LIGHT, 0.46, "load a micro-batch", "/"),
    "late": (LIGHT, 0.46, "idle right before a late send", "\\"),
    "reduce": (LIGHT, 0.46, "reduce gradients", "x"),
    "optimizer": (LIGHT, 0.46, "optimizer step", "."),
}
_AMBER = {"forward pass": AMBER_LIGHT, "backward pass": AMBER, "load": AMBER, "late": AMBER}
_WRITING = {MIDDLE: SOOT, DARK: PAPER, AMBER_LIGHT: INK, AMBER: SOOT}
_LABELLED = 700
"""Up to so many bars the passes carry the number of their micro-batch, where all of a kind are wide enough for it."""
_NARROWEST = 1 / 58


def timeline(report: Report, places: Places) -> Figure | None:
    """The Gantt chart of the representative step."""
    step = report.charts.get("timeline")
    if not step or not step["rows"]:
        return None
    marked = stages(places.of(*_SLOW, *_LATE))
    binned = "bin_ms" in step
    unit, scale = ("s", 1000.0) if (step["phase_ms"] or 0) >= 10_000 else ("ms", 1.0)
    data = _bins(step, scale) if binned else _passes(step, places, scale, unit)
    ids = [row["stage"] for row in step["rows"]]
    frame = layout(
        64 + len(ids) * (44 if len(ids) <= 6 else 30 if len(ids) <= 16 else 11),
        x=axis(f"{unit} from the first forward pass", range=_reach(step, scale), nticks=12),
        y=stage_axis(ids, marked),
        barmode="overlay",
        bargap=0.1,
        shapes=_phase_lines(step, scale),
        uniformtext={"minsize": 9, "mode": "hide"},
    )
    return Figure(
        "timeline",
        f"One step, stage by stage (step {step['step']:,}{_replica(report, step)})",
        _says(report, step, places),
        data,
        frame,
        _legend(data, binned=binned),
        ("Stage", "Rank", "Passes", "First pass begins", "Last pass ends"),
        tuple(_row(row) for row in step["rows"]) if not binned else (),
        places.of(*_SLOW, *_LATE, *_STALLED),
    )


def _replica(report: Report, step: JSON) -> str:
    return f", replica {step['replica']}" if (report.topology.get("dp") or 1) > 1 else ""


def _passes(step: JSON, places: Places, scale: float, unit: str) -> list[JSON]:
    """One trace a kind; in amber the passes of stages and ranks that are slow, and the loads of those whose data are late."""
    slow, late = _ranks(step, places.of(*_SLOW)), _ranks(step, places.of(*_LATE))
    linked = {s for p in places.of(*_STALLED) for pair in p.finding.where.links for s in pair}
    stalled = {row["rank"] for row in step["rows"] if row["stage"] in linked}
    least = (step["phase_ms"] or 0.0) / scale * _NARROWEST if sum(len(row["items"]) for row in step["rows"]) <= _LABELLED else None
    found: dict[tuple[str, bool], list[tuple[int, str, int, float, float]]] = {}
    for row in step["rows"]:
        for kind, micro_batch, begin, length in row["items"]:
            if kind in _KINDS:
                group, words = _KINDS[kind]
                hot = row["rank"] in {"load": late, "late": stalled}.get(group, slow) and group in _AMBER
                found.setdefault((group, hot), []).append((row["stage"], words, micro_batch, begin / scale, length / scale))
    order = [(group, hot) for group in _LOOK for hot in (False, True)]
    return [_trace(key, found[key], unit, least) for key in order if key in found]


def _ranks(step: JSON, named: tuple[Place, ...]) -> set[int]:
    """The ranks of the picture that these findings speak of: those they name, else all of the stages they name."""
    found = {r for p in named for r in p.finding.where.ranks}
    of_stages = stages(p for p in named if not p.finding.where.ranks)
    return {row["rank"] for row in step["rows"] if row["rank"] in found or row["stage"] in of_stages}


def _trace(key: tuple[str, bool], items: list[tuple[int, str, int, float, float]], unit: str, least: float | None) -> JSON:
    """least: the shortest pass that can hold the number of its micro-batch; None where there are too many to try."""
    group, hot = key
    color, width, name, shape = _LOOK[group]
    passes = group in ("forward pass", "backward pass")
    trace: dict[str, Any] = {
        "type": "bar",
        "orientation": "h",
        "name": f"{name}, named by a finding" if hot else name,
        "y": [i[0] for i in items],
        "base": [round(i[3], 4) for i in items],
        "x": [round(i[4], 4) for i in items],
        "width": width,
        "customdata": [[i[1], f", micro-batch {i[2]}" if i[2] >= 0 else ""] for i in items],
        "marker": filled(_AMBER[group] if hot else color, shape) | {"line": {"width": 0.6 if passes and least is not None else 0, "color": PAPER}},
        "hovertemplate": f"stage %{{y}}: %{{customdata[0]}}%{{customdata[1]}}<br>%{{x:.2f}} {unit}, from %{{base:.1f}} {unit} on<extra></extra>",
    }
    if passes and least is not None and min(trace["x"]) >= least:
        trace |= {"text": [str(i[2]) if i[2] >= 0 else "" for i in items], "textposition": "inside", "insidetextanchor": "middle", "textangle": 0}
        trace["insidetextfont"] = {"size": 11, "color": _WRITING[trace["marker"]["color"]]}
    return trace


def _bins(step: JSON, scale: float) -> list[JSON]:
    width = step["bin_ms"] / scale
    return [
        {
            "type": "heatmap",
            "z": [row["busy"] for row in step["rows"]],
            "y": [row["stage"] for row in step["rows"]],
            "x0": width / 2,
            "dx": width,
            "zmin": 0,
            "zmax": 1,
            "ygap": 1,
            "colorscale": [[0, TRACK], [1, DARK]],
            "showscale": False,
            "hovertemplate": "stage %{y}: %{z:.0%} busy at %{x:,.0f}<extra></extra>",
        }
    ]


def _reach(step: JSON, scale: float) -> list[float]:
    """From just before the phase to the end of the last instruction: what ranks wait for before the step is another matter."""
    phase = step["phase_ms"] or 0.0
    if "bin_ms" in step:
        return [0, step["bin_ms"] * len(step["rows"][0]["busy"]) / scale]
    ends = [b + d for row in step["rows"] for _, _, b, d in row["items"]] or [phase]
    length = max(phase, min(max(ends), phase * 1.15)) if phase else max(ends)
    starts = [b for row in step["rows"] for _, _, b, _ in row["items"]] or [0.0]
    return [max(min(starts), -0.04 * length) / scale, length * 1.005 / scale]


def _phase_lines(step: JSON, scale: float) -> list[JSON]:
    if not step["phase_ms"]:
        return []
    line = {"type": "line", "yref": "paper", "y0": 0, "y1": 1, "line": {"color": LINE, "width": 1, "dash": "dot"}}
    return [line | {"x0": at, "x1": at} for at in (0, step["phase_ms"] / scale)]


def _legend(data: list[JSON], *, binned: bool) -> tuple[Key, ...]:
    if binned:
        return (Key(DARK, "busy with forward and backward passes"), Key(TRACK, "idle"))
    keys = [Key(t["marker"]["color"], t["name"], shape=_shape(t)) for t in data]
    order = sorted(keys, key=lambda k: k.name.startswith(("message", "load", "reduce", "optimizer", "idle")))
    return (*order, Key(PAPER, "idle", shape="empty"))


def _shape(trace: JSON) -> str:
    lines = trace["marker"].get("pattern")
    return (
        "thin"
        if trace["width"] < 0.3
        else {"/": "hatched", "\\": "hatched-back", "x": "crossed", ".": "dotted"}[lines["shape"]]
        if lines
        else "solid"
    )


def _says(report: Report, step: JSON, places: Places) -> tuple[str, ...]:
    shares = report.charts.get("stages") or []
    length = f" The pipeline phase (between the vertical lines) takes {seconds(step['phase_ms'] * 1e6)}." if step["phase_ms"] else ""
    gaps = "Dark is busy, pale is idle." if "bin_ms" in step else "A row's gaps, and its thin bars, are idle time."
    out = [f"{gaps}{length}"]
    if len(shares) > 1:
        most, least = max(shares, key=lambda s: float(s["idle"])), min(shares, key=lambda s: float(s["idle"]))
        if most["idle"] - least["idle"] > 0.05:
            out.append(
                f"Stage {least['stage']} has the fewest gaps ({percent(least['idle'])} idle), stage {most['stage']} the most ({percent(most['idle'])})."
            )
        else:
            out.append(f"All stages idle about alike, {percent(least['idle'])} to {percent(most['idle'])}.")
    late = sorted(stages(places.of(*_LATE)))
    if late:
        out.append(f"Look at the hatched time before the forward passes of stage {' and stage '.join(map(str, late))}: there the batch is awaited.")
    links = [pair for p in places.of("communication-stall") for pair in p.finding.where.links]
    out += [f"Look at the messages between stage {a} and stage {b}, and at the hatched time before them." for a, b in links[:2]]
    return tuple(out)


def _row(row: JSON) -> tuple[str, ...]:
    passes = [i for i in row["items"] if i[0] in ("forward", "backward")]
    if not passes:
        return (str(row["stage"]), str(row["rank"]), "0", "", "")
    first, last = min(i[2] for i in passes), max(i[2] + i[3] for i in passes)
    return (str(row["stage"]), str(row["rank"]), count(len(passes), "pass", "passes"), f"{digits(first)} ms", f"{digits(last)} ms")
