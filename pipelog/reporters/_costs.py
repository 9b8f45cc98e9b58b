"""What each stage, link and kind of instruction costs, and the critical path: `metrics.replay` in words."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from pipelog._text import digits, percent, seconds
from pipelog.replay.measured import LIMIT
from pipelog.report import JSON, Report

_LEAST = 0.01
"""Smaller costs than a hundredth are folded."""
_MOST = 10
_MOST_ON_PATH = 4

_KINDS = {
    "forward": "forward passes",
    "backward": "backward passes",
    "recompute": "recomputation",
    "activation": "activation transfers",
    "grad": "gradient transfers",
    "load": "loading of batches",
    "host-gap": "host gaps",
    "late-send": "late sends",
    "before_forward": "host gaps before forward passes",
    "before_backward": "host gaps before backward passes",
    "send_activation": "sends of activations",
    "recv_activation": "receives of activations",
    "send_grad": "sends of gradients",
    "recv_grad": "receives of gradients",
}


@dataclass(frozen=True, slots=True)
class Costs:
    """says: S in a sentence; rows, smaller: what, cost, slowdown; path: the critical path in a sentence, empty where it is not known."""

    says: str
    rows: tuple[tuple[str, str, str], ...]
    smaller: tuple[tuple[str, str, str], ...]
    path: str


def costs(report: Report) -> Costs | None:
    """None where nothing was replayed."""
    replay = report.metrics.get("replay")
    if not replay:
        return None
    effects = sorted(replay["effects"], key=lambda e: -float(e["cost"]))
    large = [e for e in effects if e["cost"] >= _LEAST][:_MOST]
    return Costs(
        _slowdown(replay, some=bool(large)),
        tuple(_row(e) for e in large),
        tuple(_row(e) for e in effects if e not in large),
        _path(replay),
    )


def _slowdown(replay: JSON, *, some: bool) -> str:
    doubt = f"With care: this replay is {percent(replay['error'])} off what was recorded. " if (replay.get("error") or 0.0) > LIMIT else ""
    what = "pipeline phase" if replay["source"] == "trace" else "step"
    said = (
        f"{doubt}S = {digits(replay['slowdown'])}: the replayed {what} takes {seconds(replay['replayed_s'] * 1e9)}, and "
        f"{seconds(replay['ideal_s'] * 1e9)} if every operation took the ideal time of its kind. "
    )
    if some:
        return (
            said
            + f"Cost: the share of the {what} that goes if this alone is ideal; slowdown: S if this alone is as measured. They overlap and do not add up."
        )
    return said + "No stage, link or kind of instruction costs 1 % of it by itself."


def _row(effect: JSON) -> tuple[str, str, str]:
    return _name(effect), percent(effect["cost"]).replace("-", "\N{MINUS SIGN}"), digits(effect["slowdown"])


def _name(effect: JSON) -> str:
    """stage 2, link 1-2, backward passes, replica 1, rank 7 (stage 3, replica 1)."""
    of = effect["of"]
    if of == "link":
        return f"link {_ends(effect['link'])}"
    if of == "kind":
        return _kind(effect["kind"])
    if of == "worker":
        place = f"stage {effect['stage']}, replica {effect['replica']}"
        return f"rank {effect['rank']} ({place})" if effect.get("rank") is not None else place
    return f"{of} {effect.get(of)}"


def _kind(name: object) -> str:
    return _KINDS.get(str(name), str(name))


def _ends(link: list[int]) -> str:
    return f"{link[0]}\N{EN DASH}{link[1]}"


def _path(replay: JSON) -> str:
    """Where the critical path lies, and what is on it."""
    on = replay.get("critical") or []
    if not on:
        return ""
    stages: dict[int, float] = defaultdict(float)
    for part in on:
        if part.get("stage") is not None:
            stages[part["stage"]] += part["share"]
    first = ""
    if stages:
        most = max(stages, key=lambda s: stages[s])
        first = f" lies on stage {most} for {percent(stages[most])} of its length"
    of = "of the middle recorded step" if replay["source"] == "trace" else "of the steps"
    parts = [f"{percent(p['share'])} {_kind(p['instruction'])} of {_place(p)}" for p in on[:_MOST_ON_PATH]]
    return f"The critical path {of}{first}. The largest parts: {', '.join(parts)}."


def _place(part: JSON) -> str:
    return f"stage {part['stage']}" if part.get("stage") is not None else f"link {_ends(part['link'])}" if part.get("link") else "the run"
