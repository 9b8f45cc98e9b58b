"""Memory by stage, links between stages, and what devices did."""

from __future__ import annotations

from pipelog._text import percent, seconds, size
from pipelog.report import JSON, Report
from pipelog.reporters._details import tiny
from pipelog.reporters._figures import (
    AMBER,
    DARK,
    INK,
    LIGHT,
    MIDDLE,
    MOST_ROWS,
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
from pipelog.reporters._places import Places, sentence, stages


def memory(report: Report, places: Places) -> Figure | None:
    """Peak memory of each stage beside what its place in 1F1B lets one expect."""
    rows = report.metrics["memory"]["per_stage"]
    if not rows:
        return None
    named = places.of("memory-skew", "memory-headroom")
    hot = stages(places.of("memory-skew"))
    largest = max(max(r["peak_bytes"], r["expected_bytes"] or 0) for r in rows)
    unit, scale = ("GiB", 2**30) if largest >= 2**30 else ("MiB", 2**20)
    ids = [r["stage"] for r in rows]
    peaks = [round(r["peak_bytes"] / scale, 3) for r in rows]
    data = [bars(ids, peaks, [tone(named) if s in hot else DARK for s in ids], hovertemplate=f"stage %{{y}}: peak %{{x:,.2f}} {unit}<extra></extra>")]
    expected = [None if r["expected_bytes"] is None else round(r["expected_bytes"] / scale, 3) for r in rows]
    some = any(e is not None for e in expected)
    if some:
        data.append(ticks(ids, expected, f"stage %{{y}}: expected %{{x:,.2f}} {unit}", len(rows)))
    frame = layout(rows_height(len(rows)), x=axis(f"peak memory, {unit}", rangemode="tozero"), y=stage_axis(ids, hot), bargap=0.35)
    legend = [Key(DARK, "highest peak of a rank of the stage"), *([Key(AMBER, "named by a finding")] if hot else [])]
    if some:
        legend.append(Key(DARK, "what 1F1B lets one expect (from the other stages)", shape="tick"))
    if len(rows) > MOST_ROWS:
        data, frame = upright(data, frame, "stage")
    head = ("Stage", "Peak", "Expected")
    table = tuple((str(r["stage"]), size(r["peak_bytes"]), size(r["expected_bytes"]) if r["expected_bytes"] is not None else "") for r in rows)
    return Figure("memory", "Peak memory by stage", _memory_says(report, places), data, frame, tuple(legend), head, table, named)


def _memory_says(report: Report, places: Places) -> tuple[str, ...]:
    known = report.metrics["memory"]
    said = places.titles("memory-skew", "memory-headroom")
    if places.of("memory-skew"):
        return said
    if known["skew"] is not None:
        how = f"No stage holds more than its place in the pipeline explains: the largest excess is {percent(max(0.0, known['skew']))}."
        return (how, *said)
    why = f" No expectation can be given: {known['reason']}." if known.get("reason") else ""
    return (f"The stages' peaks as printed.{why}", *said)


def links(report: Report, places: Places) -> Figure | None:
    """For each link and direction, the message itself and the idle time of the sender right before it."""
    rows = report.charts.get("links") or []
    if not rows:
        return None
    named = places.of("communication-stall")
    hot = {frozenset(pair) for p in named for pair in p.finding.where.links}
    marked = [frozenset((r["source"], r["target"])) in hot for r in rows]
    at = list(range(len(rows)))
    names = [f"{'▲ ' if m else ''}{r['source']} → {r['target']}" for r, m in zip(rows, marked, strict=True)]
    color = tone(named)
    data = []
    for part, words, shape, plain in (("late_ms", "idle before it", "/", LIGHT), ("transfer_ms", "message", "", DARK)):
        for hot_ones, fill in ((False, plain), (True, color)):
            some = [i for i in at if marked[i] is hot_ones]
            hover = f"%{{text}}: {words} %{{x:.3~g}} ms<extra></extra>"
            trace = bars(some, [rows[i][part] for i in some], fill, text=[names[i] for i in some], textposition="none", hovertemplate=hover)
            data += [trace | {"marker": filled(fill, shape)}] if some else []
    step = -(-len(rows) // 40)
    shown = [i for i in at if i % step == 0 or marked[i]]
    frame = layout(
        rows_height(len(rows)),
        x=axis("median, ms", rangemode="tozero"),
        y=axis(tickvals=shown, ticktext=[names[i] for i in shown], range=[len(rows) - 0.5, -0.5], showline=False, ticklabelstandoff=6),
        barmode="stack",
        bargap=0.35,
    )
    legend = (
        Key(LIGHT, "idle time of the sender right before its send", shape="hatched"),
        Key(DARK, "the message, from both sides ready to received"),
        *([Key(color, "a link that a finding names")] if any(marked) else []),
    )
    if len(rows) > MOST_ROWS:
        data, frame = upright(data, frame, "link")
    head = ("From stage", "To stage", "Messages", "Message (median)", "Idle before it (median)", "Cost, share of the phase")
    table = tuple(
        (
            str(r["source"]),
            str(r["target"]),
            f"{r['messages']:,}",
            _ms(r["transfer_ms"]),
            _ms(r["late_ms"]),
            "not replayed" if r["cost"] is None else tiny(r["cost"]),
        )
        for r in rows
    )
    return Figure("links", "Links between stages", _links_say(rows, places), data, frame, legend, head, table, named)


def _links_say(rows: list[JSON], places: Places) -> tuple[str, ...]:
    said = [sentence(p.finding.title) for p in places.of("communication-stall") if p.finding.where.links]
    if said:
        return tuple(said)
    longest = max(rows, key=lambda r: float(r["transfer_ms"] + r["late_ms"]))
    text = f"No link stands out: with the idle time before it a message takes at most {_ms(longest['transfer_ms'] + longest['late_ms'])}"
    return (f"{text} (median, stage {longest['source']} to {longest['target']}).",)


def _ms(value: float) -> str:
    return seconds(value * 1e6)


_USES = (
    ("busy_us", "busy with anything", DARK),
    ("compute_us", "compute kernels", MIDDLE),
    ("comm_us", "communication kernels", MIDDLE),
    ("comm_compute_overlap_us", "both at once", LIGHT),
    ("memory_us", "copies and fills", LIGHT),
)
_MOST_DEVICES = 4


def devices(report: Report, places: Places) -> list[Figure]:
    """For each of the first few traces of a device, the time it was in use, within the span of the trace."""
    del places
    found = []
    for i, device in enumerate(report.metrics["devices"][:_MOST_DEVICES]):
        used = [(name, words, color) for name, words, color in _USES if device.get(name)]
        if used and device["span_us"]:
            found.append(_device(i, device, used))
    return found


def _device(number: int, device: JSON, used: list[tuple[str, str, str]]) -> Figure:
    span = device["span_us"]
    unit, scale = ("ms", 1e3) if span < 10e6 else ("s", 1e6)
    at = list(range(len(used)))
    values = [round(device[name] / scale, 3) for name, _, _ in used]
    words = [w for _, w, _ in used]
    track = bars(at, [span / scale] * len(used), TRACK, hoverinfo="skip")
    bar = bars(at, values, [c for _, _, c in used], customdata=words, hovertemplate=f"%{{customdata}}: %{{x:,.1f}} {unit}<extra></extra>")
    frame = layout(
        rows_height(len(used)),
        x=axis(f"{unit} of the trace", range=[0, span / scale]),
        y=axis(
            tickvals=at, ticktext=words, range=[len(used) - 0.5, -0.5], showline=False, ticklabelstandoff=6, tickfont={"size": 12.5, "color": INK}
        ),
        barmode="overlay",
        bargap=0.3,
    )
    idle = f"The device was idle {percent(1 - device['busy_us'] / span)} of {seconds(span * 1e3)}."
    comm, both = device.get("comm_us") or 0, device.get("comm_compute_overlap_us") or 0
    hidden = f" {percent(both / comm)} of its communication ran beside compute." if comm else ""
    rank = f"Rank {device['rank']}" if device.get("rank") is not None else f"Trace {number + 1}"
    return Figure(f"device-{number + 1}", f"{rank}: what the device did", (idle + hidden,), [track, bar], frame)
