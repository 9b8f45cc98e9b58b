"""The series behind the report's pictures, computed once, small enough to travel in report.json. Reporters only draw them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd

from pipelog.tables import Tables
from pipelog.tables.steps import Steps, series

_MOST_POINTS = 1500
_MOST_BARS = 6000


def data(tables: Tables) -> dict[str, Any]:
    """timeline, stages, steps, loss, memory, links: each only where there are data for it."""
    made = {"timeline": _timeline(tables), "stages": _stages(tables), "steps": _steps(tables["steps"]), "loss": _loss(tables), "links": _links(tables)}
    return {name: value for name, value in made.items() if value}


def _timeline(tables: Tables) -> dict[str, Any] | None:
    """One representative step: the recorded one whose bubble is the median, of the first replica that was recorded whole.

    rows: one a rank, with items [instruction, micro-batch, start, duration] in ms from the first forward pass.
    """
    found = tables.get("stage_time")
    if found is None:
        return None
    rows = found[found["complete"]]
    if not len(rows):
        rows = found
    bubble = tables["bubble"].per_step
    step = int(bubble.iloc[(bubble["bubble"] - bubble["bubble"].median()).abs().argmin()]["step"]) if len(bubble) else int(rows["step"].iloc[0])
    rows = rows[rows["step"] == step]
    replica = int(rows["replica"].min()) if len(rows) else 0
    rows = rows[rows["replica"] == replica].drop_duplicates("stage").sort_values("stage")
    if not len(rows):
        return None
    origin = int(rows["start_ns"].min())
    items = tables["instructions"]
    shown = ["forward", "backward", "load_micro_batch", "send", "recv", "send_activation", "recv_activation", "send_grad", "recv_grad", "reduce_grads", "optimizer_step"]
    out = []
    for row in rows.to_dict("records"):
        mine = items[(items["rank"] == row["rank"]) & ((items["step"] == step) | (items["step"] < 0)) & items["instruction"].isin(shown)]
        begin = (mine["start_ns"] - row["shift_ns"] - origin) / 1e6
        length = (mine["end_ns"] - mine["start_ns"]) / 1e6
        out.append(
            {
                "stage": int(row["stage"]),
                "rank": int(row["rank"]),
                "items": [
                    [kind, int(k), round(float(b), 4), round(float(d), 4)]
                    for kind, k, b, d in zip(mine["instruction"], mine["micro_batch"], begin, length, strict=True)
                ],
            }
        )
    bars = sum(len(r["items"]) for r in out)
    if bars > _MOST_BARS:  # the picture shows passes only
        for row in out:
            row["items"] = [i for i in row["items"] if i[0] in ("forward", "backward")]
    phase = rows["phase_ns"].dropna()
    return {"step": step, "replica": replica, "phase_ms": float(phase.iloc[0]) / 1e6 if len(phase) else None, "rows": out}


def _stages(tables: Tables) -> list[dict[str, Any]] | None:
    """Per stage, shares of the pipeline phase: compute, recompute, load, idle; medians over steps and replicas."""
    found = tables.get("bubble_by_stage")
    if found is None or not len(found):
        return None
    rows = found.assign(
        compute=(found["busy_ns"] - found["recompute_ns"]) / found["phase_ns"],
        recompute=found["recompute_ns"] / found["phase_ns"],
        idle=1 - found["busy_ns"] / found["phase_ns"],
    )
    per = rows.groupby("stage")[["compute", "recompute", "idle"]].median().reset_index()
    return [{k: int(v) if k == "stage" else round(float(v), 5) for k, v in r.items()} for r in per.to_dict("records")]


def _steps(steps: Steps) -> dict[str, Any] | None:
    rows = steps.rows.dropna(subset=["dur_ns"])
    if len(rows) < 2:
        return None
    rows = thinned(rows)
    seconds = rows["dur_ns"].to_numpy(dtype=float) / 1e9
    return {"step": rows["step"].astype(int).tolist(), "seconds": [round(s, 6) for s in seconds.tolist()], "source": steps.source}


def _loss(tables: Tables) -> dict[str, Any] | None:
    scalars = tables["scalars"]
    out = {}
    for name in ("loss", "loss_scale", "grad_norm"):
        rows = thinned(series(scalars, name))
        if len(rows) >= 2:
            values = [None if not math.isfinite(v) else float(v) for v in rows["value"].to_numpy(dtype=float)]
            out[name] = {"step": rows["step"].astype(int).tolist(), "value": values}
    return out or None


def _links(tables: Tables) -> list[dict[str, Any]] | None:
    links = tables.get("links")
    if links is None or not len(links):
        return None
    names = ("source", "target", "messages")
    return [
        {n: int(r[n]) for n in names} | {"transfer_ms": round(r["transfer_ns"] / 1e6, 4), "late_ms": round(r["late_ns"] / 1e6, 4), "cost": round(r["cost"], 5)}
        for r in links.to_dict("records")
    ]


def thinned(rows: pd.DataFrame, most: int = _MOST_POINTS) -> pd.DataFrame:
    """At most *most* rows, evenly spaced, the first and the last among them."""
    if len(rows) <= most:
        return rows
    return rows.iloc[np.unique(np.linspace(0, len(rows) - 1, most).astype(int))]
