"""Where time goes: the parts of the pipeline phase and of the step, the shares of each stage, ranks beside their peers."""

from __future__ import annotations

from pipelog._text import digits, percent
from pipelog.findings import Severity
from pipelog.report import JSON, Report
from pipelog.reporters._escape import label
from pipelog.reporters._figures import (
    AMBER,
    DARK,
    LIGHT,
    MIDDLE,
    MOST_ROWS,
    PALE,
    PAPER,
    TRACK,
    Figure,
    Key,
    axis,
    bars,
    filled,
    layout,
    rows_height,
    stage_axis,
    ticks,
    tone,
    upright,
)
from pipelog.reporters._places import Places, stages

_PHASE: dict[str, tuple[str, str, str, tuple[str, ...]]] = {
    "compute": ("compute", "forward and backward passes", DARK, ()),
    "recompute": ("recompute", "forward passes done again, for activation checkpointing", MIDDLE, ()),
    "fill-drain": ("fill and drain", "the schedule: stages wait for the first and after the last micro-batch", PALE, ("few-micro-batches",)),
    "imbalance-wait": ("unequal stages", "waiting for stages that compute longer", LIGHT, ("stage-imbalance", "straggler-rank")),
    "p2p-transfer": ("transfers", "messages between stages, both sides ready", LIGHT, ()),
    "stall": ("stalls of a link", "messages, and idle time before them, far beyond the usual", LIGHT, ("communication-stall",)),
    "data": ("late data", "waiting for the batch", LIGHT, ("slow-data-loading",)),
    "host-gap": ("host gaps", "idle time between instructions: Python, launches, locks", LIGHT, ()),
    "other": ("other", "what the replay of the schedule does not explain", TRACK, ()),
}
_STEP: dict[str, tuple[str, str, str, tuple[str, ...]]] = {
    "start-skew": ("start skew", "from the first rank that begins to the first forward pass", LIGHT, ()),
    "pipeline": ("pipeline phase", "first forward to last backward pass", DARK, ()),
    "data": ("data", "waiting for the batch", LIGHT, ("slow-data-loading",)),
    "reduce": ("gradient reduction", "between the replicas, after the phase", MIDDLE, ("straggler-rank",)),
    "optimizer": ("optimizer", "the optimizer step", PALE, ()),
    "loss-broadcast": ("loss broadcast", "the loss of the last stage goes to all ranks", LIGHT, ()),
    "other": ("other", "the rest of the step", TRACK, ()),
}
_PATTERNS = {"p2p-transfer": "/", "stall": "\\", "data": "x", "host-gap": ".", "start-skew": "/", "loss-broadcast": ".", "recompute": "/"}
_SHAPES = {"/": "hatched", "\\": "hatched-back", "x": "crossed", ".": "dotted"}
_LEAST = 0.0005


def phase(report: Report, places: Places) -> Figure | None:
    """The pipeline phase of all stages, split into its parts."""
    parts = report.metrics["phase_breakdown"]
    says = ("Compute is what the pipeline is for; everything to the right of it is a price, and where it is amber a finding says why.",)
    return _split("phase", "What the pipeline phase is made of", says, "% of stages × pipeline phase", parts, _PHASE, places)


def step(report: Report, places: Places) -> Figure | None:
    """The step, split into what comes before the pipeline phase, the phase and what comes after it."""
    parts = sorted(report.metrics["step_breakdown"], key=lambda p: list(_STEP).index(p["part"]) if p["part"] in _STEP else len(_STEP))
    outside = [p for p in parts if p["part"] != "pipeline"]
    if not outside:
        return None
    largest = max(outside, key=lambda p: float(p["share"]))
    name = _STEP[largest["part"]][0] if largest["part"] in _STEP else str(largest["part"])
    says = (f"Outside the pipeline phase the largest part is {name}, {percent(largest['share'])} of the step.",)
    return _split("step", "What the whole step is made of", says, "% of the step", parts, _STEP, places)


def _split(
    id_: str,
    title: str,
    says: tuple[str, ...],
    unit: str,
    parts: list[JSON],
    known: dict[str, tuple[str, str, str, tuple[str, ...]]],
    places: Places,
) -> Figure | None:
    """One bar of parts that sum to 100 %; the legend holds the values and what they mean."""
    shown = [p for p in parts if p["share"] >= _LEAST]
    if not shown:
        return None
    data, keys = [], []
    for part in shown:
        name, means, color, rules = known.get(part["part"], (label(part["part"]), "", TRACK, ()))
        related = tuple(p for p in places.of(*rules) if p.finding.severity is not Severity.INFO)
        color = tone(related) if related else color
        shape = _PATTERNS.get(part["part"], "")
        mark = filled(color, shape) | {"line": {"width": 1, "color": PAPER}}
        data.append(
            {
                "type": "bar",
                "orientation": "h",
                "name": name,
                "y": [0],
                "x": [round(part["share"] * 100, 3)],
                "marker": mark,
                "hovertemplate": f"{name}: %{{x:.1f}} %<extra></extra>",
            }
        )
        keys.append(Key(color, name, percent(part["share"]), means, related, _SHAPES.get(shape, "solid")))
    frame = layout(
        104,
        above=unit,
        x=axis(range=[0, 100], tickvals=[0, 20, 40, 60, 80, 100]),
        y=axis(showticklabels=False, range=[-0.5, 0.5], showline=False),
        barmode="stack",
        bargap=0,
    )
    return Figure(id_, title, says, data, frame, tuple(keys))


def shares(report: Report, places: Places) -> Figure | None:
    """Compute, recompute and idle time of each stage, as shares of the pipeline phase."""
    rows = report.charts.get("stages") or []
    if len(rows) < 2:
        return None
    named = places.of("stage-imbalance", "straggler-rank")
    marked = stages(named)
    ids = [r["stage"] for r in rows]
    again = any(r["recompute"] >= _LEAST for r in rows)
    data = [_share(rows, "compute", [tone(named) if r["stage"] in marked else DARK for r in rows])]
    if again:
        data.append(_share(rows, "recompute", MIDDLE) | {"marker": filled(MIDDLE, "/")})
    data.append(_share(rows, "idle", TRACK))
    legend = [Key(DARK, "compute"), *([Key(MIDDLE, "recompute", shape="hatched")] if again else []), Key(TRACK, "idle")]
    if marked:
        legend.insert(1, Key(AMBER, "compute of a stage that a finding names"))
    frame = layout(
        rows_height(len(rows)),
        x=axis("% of the pipeline phase", range=[0, 100], tickvals=[0, 20, 40, 60, 80, 100]),
        y=stage_axis(ids, marked),
        barmode="stack",
        bargap=0.3,
    )
    if len(rows) > MOST_ROWS:
        data, frame = upright(data, frame, "stage")
    table = tuple((str(r["stage"]), percent(r["compute"]), percent(r["recompute"]), percent(r["idle"])) for r in rows)
    return Figure(
        "stages",
        "What each stage does with the phase",
        _shares_say(rows),
        data,
        frame,
        tuple(legend),
        ("Stage", "Compute", "Recompute", "Idle"),
        table,
        named,
    )


def _share(rows: list[JSON], name: str, color: str | list[str]) -> JSON:
    values = [round(r[name] * 100, 2) for r in rows]
    return bars([r["stage"] for r in rows], values, color, name=name, hovertemplate=f"stage %{{y}}: {name} %{{x:.1f}} %<extra></extra>")


def _shares_say(rows: list[JSON]) -> tuple[str, ...]:
    busy = max(rows, key=lambda r: float(r["compute"] + r["recompute"]))
    idle = max(rows, key=lambda r: float(r["idle"]))
    if idle["idle"] - busy["idle"] <= 0.05:
        return (f"The stages are alike: {percent(busy['idle'])} to {percent(idle['idle'])} idle.",)
    return (
        f"Stage {busy['stage']} works {percent(busy['compute'] + busy['recompute'])} of the phase and sets the pace; stage {idle['stage']} idles {percent(idle['idle'])} of it.",
    )


def peers(report: Report, places: Places) -> Figure | None:
    """Compute per micro-batch of ranks that do the same work, beside the lower median of their peers."""
    rows = report.charts.get("peers") or []
    if len(rows) < 2:
        return None
    named = places.of("straggler-rank")
    slow = {r for p in named for r in p.finding.where.ranks}
    names = [f"{'▲ ' if r['rank'] in slow else ''}rank {r['rank']} (stage {r['stage']}, replica {r['replica']})" for r in rows]
    at = list(range(len(rows)))
    data = [
        bars(
            at,
            [r["compute_ms"] for r in rows],
            [tone(named) if r["rank"] in slow else DARK for r in rows],
            text=names,
            textposition="none",
            hovertemplate="%{text}: %{x:.1f} ms<extra></extra>",
        ),
        ticks(at, [r["peer_ms"] for r in rows], "peers: %{x:.1f} ms", len(rows)),
    ]
    frame = layout(
        rows_height(len(rows)),
        x=axis("compute per micro-batch, ms", rangemode="tozero"),
        y=axis(tickvals=at, ticktext=names, range=[len(rows) - 0.5, -0.5], showline=False, ticklabelstandoff=6),
        bargap=0.35,
    )
    legend = (
        Key(DARK, "measured"),
        *([Key(AMBER, "named by a finding")] if slow else []),
        Key(DARK, "lower median of the ranks of that stage", shape="tick"),
    )
    if len(rows) > MOST_ROWS:
        data, frame = upright(data, frame, "rank")
    says = places.titles("straggler-rank") or (
        "Ranks that do the same work take about the same time: no one holds the others up in the gradient reduction.",
    )
    table = tuple((str(r["rank"]), str(r["stage"]), str(r["replica"]), f"{digits(r['compute_ms'])} ms", f"{digits(r['peer_ms'])} ms") for r in rows)
    return Figure(
        "peers",
        "Ranks that do the same work",
        says,
        data,
        frame,
        legend,
        ("Rank", "Stage", "Replica", "Compute per micro-batch", "Peers"),
        table,
        named,
    )
