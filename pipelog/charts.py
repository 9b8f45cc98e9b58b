"""The series behind the report's pictures, computed once, small enough to travel in report.json. Reporters only draw them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

from pipelog._text import iso
from pipelog.tables import Tables, merged
from pipelog.tables.steps import Steps, series

_MOST_POINTS = 1500
_MOST_BARS = 6000
_MOST_BINS = 400
_MOST_PEERS = 64
_MOST_LANES = 24
_LEAST_LATE_NS = 1_000_000
_LEAST_LOAD_NS = 2_000_000
"""A shorter wait for the batch is not drawn: it is the usual gap before a pass."""


def data(tables: Tables) -> dict[str, Any]:
    """timeline, stages, peers, steps, loss, links, collectives, lanes: each only where there are data for it."""
    made = {
        "timeline": _timeline(tables),
        "stages": _stages(tables),
        "peers": _peers(tables),
        "steps": _steps(tables["steps"]),
        "loss": _loss(tables),
        "links": _links(tables),
        "collectives": _collectives(tables),
        "lanes": _lanes(tables),
    }
    return {name: value for name, value in made.items() if value}


_SHOWN = (
    "forward",
    "backward",
    "load_micro_batch",
    "send",
    "recv",
    "send_activation",
    "recv_activation",
    "send_grad",
    "recv_grad",
    "reduce_grads",
    "optimizer_step",
)


def _timeline(tables: Tables) -> dict[str, Any] | None:
    """One representative step: the recorded one whose bubble is the median, of the slowest replica that was recorded whole.

    rows: one a stage, with items [instruction, micro-batch, start, duration] in ms from the first forward pass; of a schedule too long
    to be drawn pass by pass, busy shares of equal bins of bin_ms from 0 on instead.
    """
    found = tables.get("stage_time")
    if found is None:
        return None
    whole = found[found["complete"]]
    rows = whole if len(whole) else found
    bubble = tables["bubble"].per_step
    step = int(bubble.iloc[(bubble["bubble"] - bubble["bubble"].median()).abs().argmin()]["step"]) if len(bubble) else int(rows["step"].iloc[0])
    rows = rows[rows["step"] == step]
    if not len(rows):
        return None
    slowest = rows["phase_ns"].idxmax() if rows["phase_ns"].notna().any() else rows.index[0]
    replica = int(rows.loc[slowest, "replica"])
    rows = rows[rows["replica"] == replica].drop_duplicates("stage").sort_values("stage")
    phase = rows["phase_ns"].dropna()
    head = {"step": step, "replica": replica, "phase_ms": float(phase.iloc[0]) / 1e6 if len(phase) else None}
    made = _bars(_with_loads(tables["instructions"], tables["passes"]), rows, step)
    if "bin_ms" not in made:
        _add_late_sends(made["rows"], tables["messages"], step, int(rows["start_ns"].min()))
    return head | made


def _add_late_sends(rows: list[dict[str, Any]], messages: pd.DataFrame, step: int, origin: int) -> None:
    """Add to each row, as `late_send`, idle times of the sender right before a call that lie far beyond the usual."""
    if not len(messages):
        return
    usual = float(messages["gap_ns"].median())
    late = messages[(messages["step"] == step) & (messages["gap_ns"] > 3 * usual) & (messages["gap_ns"] > usual + _LEAST_LATE_NS)]
    for row in rows:
        mine = late[late["source"] == row["rank"]]
        row["items"] += [
            ["late_send", -1, round((send - gap - origin) / 1e6, 4), round(gap / 1e6, 4)]
            for send, gap in zip(mine["send_ns"], mine["gap_ns"], strict=True)
        ]


def _with_loads(instructions: pd.DataFrame, passes: pd.DataFrame) -> pd.DataFrame:
    """The instructions, and where the trace does not name the loads, the time to get the batch before each forward pass that had any."""
    if (instructions["instruction"] == "load_micro_batch").any():
        return instructions
    keys = ["rank", "window", "step", "micro_batch"]
    forward = instructions[instructions["instruction"] == "forward"]
    late = forward.merge(passes[(passes["instruction"] == "forward") & (passes["load_ns"] > _LEAST_LOAD_NS)][[*keys, "load_ns"]], on=keys)
    late = late.assign(instruction="load_micro_batch", end_ns=late["start_ns"], start_ns=late["start_ns"] - late["load_ns"])
    return pd.concat([instructions, late[instructions.columns]], ignore_index=True)


def _bars(instructions: pd.DataFrame, rows: pd.DataFrame, step: int) -> dict[str, Any]:
    """The rows of the timeline: every instruction where the picture can hold them, else the passes, else busy shares."""
    origin = int(rows["start_ns"].min())
    of_step = instructions[(instructions["step"] == step) | (instructions["step"] < 0)]
    of_rank = dict(iter(of_step[of_step["instruction"].isin(_SHOWN)].groupby("rank")))
    parts = [(row, of_rank.get(row["rank"], of_step.iloc[:0]), int(row["shift_ns"]) + origin) for row in rows.to_dict("records")]
    if sum(len(mine) for _, mine, _ in parts) > _MOST_BARS:
        parts = [(row, mine[mine["instruction"].isin(("forward", "backward"))], shift) for row, mine, shift in parts]
    if sum(len(mine) for _, mine, _ in parts) > _MOST_BARS:
        return _bins(parts, float(rows["end_ns"].max() - origin))
    return {"rows": [{"stage": int(row["stage"]), "rank": int(row["rank"]), "items": _items(mine, shift)} for row, mine, shift in parts]}


def _items(mine: pd.DataFrame, shift: int) -> list[list[Any]]:
    begin = (mine["start_ns"] - shift) / 1e6
    length = (mine["end_ns"] - mine["start_ns"]) / 1e6
    return [
        [kind, int(k), round(float(b), 4), round(float(d), 4)]
        for kind, k, b, d in zip(mine["instruction"], mine["micro_batch"], begin, length, strict=True)
    ]


def _bins(parts: list[tuple[dict[str, Any], pd.DataFrame, int]], length: float) -> dict[str, Any]:
    """The share of each of _MOST_BINS equal parts of the phase (ns) in which a stage is in a pass."""
    edges = np.linspace(0.0, length, _MOST_BINS + 1)
    rows = []
    for row, mine, shift in parts:
        start, end = merged(mine["start_ns"].to_numpy(dtype=np.int64) - shift, mine["end_ns"].to_numpy(dtype=np.int64) - shift)
        done = np.concatenate(([0], np.cumsum(end - start)))
        times, busy = np.column_stack((start, end)).ravel(), np.column_stack((done[:-1], done[1:])).ravel()
        share = np.diff(np.interp(edges, times, busy)) / np.diff(edges) if len(times) else np.zeros(_MOST_BINS)
        rows.append({"stage": int(row["stage"]), "rank": int(row["rank"]), "busy": [round(float(v), 3) for v in share]})
    return {"bin_ms": length / _MOST_BINS / 1e6, "rows": rows}


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


def _peers(tables: Tables) -> list[dict[str, Any]] | None:
    """Compute per micro-batch of each rank whose stage was recorded on several replicas, medians over steps."""
    found = tables.get("peers")
    if found is None or not 0 < found["rank"].nunique() <= _MOST_PEERS or (tables["compute_time"]["per"] != "micro-batch").any():
        return None
    per = found.groupby(["stage", "replica", "rank"])[["compute_ns", "peer_ns"]].median().reset_index()
    return [
        {n: int(r[n]) for n in ("stage", "replica", "rank")}
        | {"compute_ms": round(r["compute_ns"] / 1e6, 4), "peer_ms": round(r["peer_ns"] / 1e6, 4)}
        for r in per.to_dict("records")
    ]


def _steps(steps: Steps) -> dict[str, Any] | None:
    rows = steps.rows.dropna(subset=["dur_ns"])
    if len(rows) < 2:
        return None
    rows = thinned(rows, "dur_ns")
    seconds = rows["dur_ns"].to_numpy(dtype=float) / 1e9
    extremes = {"extremes": rows.loc[rows["extreme"], "step"].astype(int).tolist()} if rows["extreme"].any() else {}
    return {"step": rows["step"].astype(int).tolist(), "seconds": [round(s, 6) for s in seconds.tolist()], "source": steps.source, **extremes}


def _loss(tables: Tables) -> dict[str, Any] | None:
    scalars = tables["scalars"]
    out = {}
    for name in ("loss", "loss_scale", "grad_norm"):
        rows = thinned(series(scalars, name), "value")
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
        {n: int(r[n]) for n in names}
        | {
            "transfer_ms": round(r["transfer_ns"] / 1e6, 4),
            "late_ms": round(r["late_ns"] / 1e6, 4),
            "cost": round(r["cost"], 5) if pd.notna(r["cost"]) else None,
        }
        for r in links.to_dict("records")
    ]


def _collectives(tables: Tables) -> list[dict[str, Any]] | None:
    """Per kind of collective, medians over steps: what it takes once all have come, the wait for the last, its share of the step."""
    found = tables.get("collectives")
    if found is None or not len(found):
        return None
    per = found.groupby("name").agg(ranks=("ranks", "max"), own_ns=("own_ns", "median"), wait_ns=("wait_ns", "median"), share=("share", "median"))
    return [
        {
            "name": str(r["name"]),
            "ranks": int(r["ranks"]),
            "own_ms": round(r["own_ns"] / 1e6, 4),
            "wait_ms": round(r["wait_ns"] / 1e6, 4),
            "share": round(float(r["share"]), 5),
        }
        for r in per.reset_index().to_dict("records")
    ]


_WIDEST = 3
"""So many times its length a picture grows for lines that bear no time: further on they would hide the others."""


def _lanes(tables: Tables) -> dict[str, Any] | None:
    """The ranks in the end of the last attempt, from the first of their last steps (else of their lines) to the last of their lines.

    from, to: ISO 8601, local time; length_s between them; drawn_s: to the latest time that a line without a time may have, where that is not far behind. rows: rank, stage, host, step; step_s, last_s and the error's error_s in s after `from` (before it negative);
    file and line of the last line, error_file, error_line and error_role. A line without a time stands at the one above it, and last_until_s or
    error_until_s is the one below. Of more ranks
    than _MOST_LANES those that began it and those that fell silent first; `more` counts the others: ranks, and first_s and last_s of their last lines.
    """
    found = tables.get("lanes")
    if found is None or len(found) < 2:
        return None
    times = found[["step_ns", "last_ns", "error_ns"]].astype("Float64")
    lines = found[["first_ns", "error_ns"]].astype("Float64")
    begin = found["step_ns"].min() if found["step_ns"].notna().any() else lines.min().min()
    end = times.max().max()
    if pd.isna(begin) or pd.isna(end):
        return None
    began = set(tables["deaths"][-1].ranks)
    ranked = found.assign(_other=~found["rank"].isin(began), _last=found["last_ns"].fillna(found["error_ns"])).sort_values(
        ["_other", "_last", "rank"]
    )
    shown, rest = ranked.head(_MOST_LANES).sort_values("rank"), ranked.iloc[_MOST_LANES:]
    since = _since(int(begin))
    bounds = found[["last_until_ns", "error_until_ns"]].astype("Float64").max().max()
    wide = not pd.isna(bounds) and end < bounds <= end + _WIDEST * (end - begin)
    made: dict[str, Any] = {
        "from": iso(int(begin)),
        "to": iso(int(end)),
        "length_s": since(end),
        "drawn_s": since(bounds if wide else end),
        "rows": [_lane(r, since) for r in shown.to_dict("records")],
    }
    if len(rest):
        made["more"] = {"ranks": len(rest), "first_s": since(rest["_last"].min()), "last_s": since(rest["_last"].max())}
    return made


def _since(begin: int) -> Callable[[Any], float | None]:
    return lambda ns: None if pd.isna(ns) else round((int(ns) - begin) / 1e9, 3)


def _lane(row: dict[str, Any], since: Callable[[Any], float | None]) -> dict[str, Any]:
    words = ("host", "file", "error_file", "error_role")
    numbers = ("rank", "stage", "step", "line", "error_line")
    times = {f"{n}_s": since(row[f"{n}_ns"]) for n in ("step", "last", "last_until", "error", "error_until")}
    told = {n: None if pd.isna(row[n]) else row[n] for n in words} | {n: None if pd.isna(row[n]) else int(row[n]) for n in numbers}
    return told | times


def thinned(rows: pd.DataFrame, of: str, most: int = _MOST_POINTS) -> pd.DataFrame:
    """At most *most* rows: half of them evenly spaced, the first and the last among them, and of each stretch what stands out.

    That is its lowest and its highest value of the column *of*, and its first that is no number. extreme (bool): kept for that alone, so
    that who wants the usual scatter can leave it out.
    """
    if len(rows) <= most:
        return rows.assign(extreme=False)
    values = rows[of].to_numpy(dtype=float)
    even = np.unique(np.linspace(0, len(rows) - 1, most // 2).astype(int))
    out: set[int] = set()
    for stretch in np.array_split(np.arange(len(rows)), max(1, most // 6)):
        finite = stretch[np.isfinite(values[stretch])]
        out |= {int(finite[pick(values[finite])]) for pick in (np.argmin, np.argmax) if len(finite)}
        out |= {int(i) for i in stretch[~np.isfinite(values[stretch])][:1]}
    kept = np.union1d(even, np.array(sorted(out), dtype=int))
    return rows.iloc[kept].assign(extreme=~np.isin(kept, even))
