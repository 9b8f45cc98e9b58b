"""What the replay says, as the report's figures: `metrics.replay` and `metrics.what_if`, with a sentence for each change."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from pipelog._text import percent, seconds
from pipelog.replay.measured import Measured, ReplayCheck
from pipelog.replay.slowdown import Slowdown
from pipelog.replay.what_if import WhatIf
from pipelog.tables import Tables

JSON = dict[str, Any]

_MOST_EFFECTS = 40
_LEAST_EFFECT = 1e-3
"""Smaller effects than a thousandth of the step, either way, are left out."""


def figures(tables: Tables) -> JSON | None:
    """`metrics.replay`; null where neither traces of all stages nor a table of operations were given."""
    found: list[Slowdown] | None = tables.get("slowdowns")
    if not found:
        return None
    measured: Measured | None = tables.get("measured") if found[0].source == "trace" else None
    first, *others = (_slowdown(s, measured) for s in found)
    check: ReplayCheck | None = tables.get("replay_check") if measured is not None else None
    return first | _check(check) | {"critical": _critical(tables, found[0]), "others": others}


def changes(tables: Tables) -> list[JSON]:
    """`metrics.what_if`: the present setting first, then the changes by predicted gain; empty where the replay is not believed."""
    found: list[WhatIf] = tables.get("what_if") or []
    return [_change(one, found[0]) for one in found]


def _slowdown(found: Slowdown, measured: Measured | None) -> JSON:
    return {
        "source": found.source,
        "file": found.file,
        "steps": found.steps,
        "schedule": measured.schedule if measured is not None else None,
        "observed_s": found.observed_ns / 1e9,
        "replayed_s": found.replayed_ns / 1e9,
        "ideal_s": found.ideal_ns / 1e9,
        "slowdown": found.slowdown,
        "error": found.error,
        "effects": _effects(found.effects, measured),
        "mitigated": {
            "last_stage": found.last_stage,
            "slowest_workers": found.slowest_workers,
            "workers": [{"replica": r, "stage": s} for r, s in found.workers],
        },
    }


def _effects(effects: pd.DataFrame, measured: Measured | None) -> list[JSON]:
    """The classes with the largest effects; kinds, stages and links always, of replicas and workers those that matter."""
    size = effects["cost"].abs()
    kept = effects[size >= _LEAST_EFFECT].assign(size=size).sort_values("size", ascending=False, kind="stable").head(_MOST_EFFECTS)
    return [_effect(row, measured) for row in kept.to_dict("records")]


def _effect(row: JSON, measured: Measured | None) -> JSON:
    of = row["of"]
    out = {"of": of, "stage": None, "replica": None, "rank": None, "kind": None, "link": None, "slowdown": row["slowdown"], "cost": row["cost"]}
    if of == "link":
        return out | {"link": [int(row["stage"]), int(row["target"])]}
    if of == "kind":
        return out | {"kind": row["kind"]}
    out |= {name: int(row[name]) for name in ("stage", "replica") if row[name] >= 0}
    if of == "worker" and measured is not None:
        at = int(np.flatnonzero(measured.replicas == row["replica"])[0])
        out["rank"] = int(measured.ranks[at, int(row["stage"])])
    return out


def _check(check: ReplayCheck | None) -> JSON:
    if check is None:
        return {"predicted_error": None, "printed_step_s": None, "recording": None, "believed": None, "reason": None}
    errors = np.array(check.predicted)
    return {
        "predicted_error": {"median": float(np.median(errors)), "p90": float(np.quantile(errors, 0.9)), "n": len(errors), "halves": check.halves},
        "printed_step_s": check.printed_ns / 1e9 if check.printed_ns is not None else None,
        "recording": check.recording,
        "believed": check.believed,
        "reason": check.reason,
    }


def _critical(tables: Tables, found: Slowdown) -> list[JSON]:
    """Shares of the critical path, by stage (or link) and instruction, the largest first: of the middle recorded step, or of all steps."""
    shares = found.critical
    if found.source == "trace":
        rows: pd.DataFrame | None = tables.get("replay")
        if rows is None or not rows["critical"].any():
            return []
        on = rows[rows["critical"]]
        time = (on["end_ns"] - on["start_ns"]).groupby([on["stage"], on["target"].fillna(-1), on["instruction"]]).sum()
        shares = (time / time.sum()).rename("share").reset_index()
    shares = shares[shares["share"] >= _LEAST_EFFECT].sort_values("share", ascending=False, kind="stable").head(_MOST_EFFECTS)
    return [
        {
            "stage": int(r["stage"]) if r["target"] < 0 else None,
            "link": None if r["target"] < 0 else [int(r["stage"]), int(r["target"])],
            "instruction": str(r["instruction"]),
            "share": float(r["share"]),
        }
        for r in shares.to_dict("records")
    ]


def _change(found: WhatIf, now: WhatIf) -> JSON:
    change = found.change
    return {
        "change": change.name,
        "step_time_s": found.step_ns / 1e9,
        "gain": found.gain,
        "basis": "replay",
        "kind": change.kind,
        "advised": found.advised,
        "setting": change.setting,
        "samples": change.samples,
        "bubble": found.bubble,
        "compute_s": found.compute_ns / 1e9,
        "in_flight": list(found.in_flight),
        "peak_bytes": list(found.peak_bytes) if found.peak_bytes is not None else None,
        "capacity_bytes": found.room.capacity_bytes,
        "left_bytes": found.room.left_bytes,
        "fits": found.room.fits,
        "memory": str(found.room) or None,
        "messages": found.messages,
        "price": change.price,
        "text": _sentence(found, now),
    }


def _sentence(found: WhatIf, now: WhatIf) -> str:
    """One sentence: the number, the price, the setting."""
    change = found.change
    if change.kind == "now":
        return (
            f"now: {seconds(found.step_ns)} a step, of which a stage computes {seconds(found.compute_ns)} on average; bubble {percent(found.bubble)}"
        )
    more = f" for {change.samples:g} times the samples" if change.samples != 1 else ""
    way = f"{percent(abs(found.gain))} {'less' if found.gain >= 0 else 'more'} time per sample"
    text = f"{change.name}: {seconds(found.step_ns)} a step instead of {seconds(now.step_ns)}{more}, {way}; bubble {percent(found.bubble)} instead of {percent(now.bubble)}"
    text += f". Price: {change.price}" if change.price and change.kind != "bound" else f" ({change.price})" if change.price else ""
    return f"{text}. Memory: {found.room}" if found.room.more and change.kind in ("advice", "memory") else text
