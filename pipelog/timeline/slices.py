"""The slices of one trace: steps, instructions or unions of what computes, messages, collectives, copies; each on a thread."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from pipelog.tables import merged
from pipelog.tables.instructions import HostTrace

_THREADS = ("steps", "compute", "p2p send", "p2p receive", "p2p", "collectives", "copies")
"""Names of threads in the order shown; work that overlaps without lying inside other work goes to a further one (`compute 2`)."""
_ROW = {
    "forward": "compute", "backward": "compute", "load_micro_batch": "compute", "send": "p2p send", "send_activation": "p2p send", "send_grad": "p2p send",
    "recv": "p2p receive", "recv_activation": "p2p receive", "recv_grad": "p2p receive", "p2p": "p2p", "reduce_grads": "collectives",
    "reduce_tied_grads": "collectives", "collective": "collectives", "optimizer_step": "steps",
}  # fmt: skip
KINDS = ("kernel", "memcpy", "memset", "collective", "send", "recv", "p2p", "cpu_op", "optimizer_step")
_MOST_LANES = 1000
COLUMNS = ["row", "name", "start_ns", "end_ns", "micro_batch", "number", "step", "source", "peer", "bytes", "line"]


def of_file(host: HostTrace | None, instructions: pd.DataFrame | None, rows: pd.DataFrame) -> pd.DataFrame:
    """The slices of one trace: instructions where they are known, else unions of what computes and messages as recorded."""
    on_device = bool(rows["on_device"].any())
    work = rows[rows["on_device"] == on_device]
    parts = [_steps(host), _collectives(work)]
    if instructions is not None and len(instructions):
        parts.append(_instructions(instructions))
    else:
        parts.append(_union(work, ("kernel",), "compute", "kernels") if on_device else _union(work, ("cpu_op",), "compute", "operators"))
        parts.append(_as_recorded(work, ("send", "recv", "p2p")))
    if instructions is None or not (instructions["instruction"] == "optimizer_step").any():
        parts.append(_as_recorded(rows[~rows["on_device"]], ("optimizer_step",)))
    if on_device:
        parts.append(_union(work, ("memcpy", "memset"), "copies", "copies"))
    kept = [p for p in parts if len(p)]
    return pd.concat(kept, ignore_index=True) if kept else frame({})


def frame(columns: dict[str, Any]) -> pd.DataFrame:
    """Slices; what a column lacks is -1 or empty."""
    length = len(columns["start_ns"]) if columns else 0
    made = {c: columns.get(c, np.full(length, "" if c in ("row", "name", "source") else -1)) for c in COLUMNS}
    return pd.DataFrame({c: pd.Series(v, dtype=object if c in ("row", "name", "source") else np.int64) for c, v in made.items()})


def _steps(host: HostTrace | None) -> pd.DataFrame:
    """The step windows of a rank, as far as they have a length."""
    windows = [w for w in host.windows if w[2] > w[1]] if host else []
    names = [f"step {w[0]}" if w[0] >= 0 else f"window {n}" for n, w in enumerate(windows)]
    begins, ends = [w[1] for w in windows], [w[2] for w in windows]
    return frame({"row": ["steps"] * len(windows), "name": names, "start_ns": begins, "end_ns": ends, "step": [w[0] for w in windows]})


def _instructions(found: pd.DataFrame) -> pd.DataFrame:
    """Instructions; of plain sends and receives, which go both ways, the count in their step is no micro-batch."""
    kind, count = found["instruction"].to_numpy(), found["micro_batch"].to_numpy(dtype=np.int64)
    plain = np.isin(kind, ("send", "recv"))
    counted = ~plain & ~np.isin(kind, ("optimizer_step", "reduce_grads", "reduce_tied_grads"))
    return frame(
        {
            "row": [_ROW.get(k, "compute") for k in kind],
            "name": [f"{k} {n}" if c else str(k) for k, n, c in zip(kind, count, counted, strict=True)],
            "micro_batch": np.where(counted, count, -1),
            "number": np.where(plain, count, -1),
            **{c: found[c].to_numpy() for c in ("start_ns", "end_ns", "step", "source", "line")},
        }
    )


def _as_recorded(work: pd.DataFrame, kinds: tuple[str, ...]) -> pd.DataFrame:
    rows = work[work["kind"].isin(kinds)]
    return frame(
        {"row": [_ROW[k] for k in rows["kind"]], "name": rows["kind"].to_numpy(), **{c: rows[c].to_numpy() for c in ("start_ns", "end_ns", "peer", "bytes", "line")}}
    )  # fmt: skip


def _collectives(work: pd.DataFrame) -> pd.DataFrame:
    made = _as_recorded(work, ("collective",))
    made["name"] = [n if isinstance(n, str) else "collective" for n in work[work["kind"] == "collective"]["name"]]
    return made


def _union(work: pd.DataFrame, kinds: tuple[str, ...], row: str, name: str) -> pd.DataFrame:
    """The time in which at least one of such rows went on."""
    rows = work[work["kind"].isin(kinds)]
    start, end = merged(rows["start_ns"].to_numpy(), rows["end_ns"].to_numpy())
    return frame({"row": [row] * len(start), "name": [name] * len(start), "start_ns": start, "end_ns": end})


def into_threads(rows: pd.DataFrame) -> tuple[pd.DataFrame, dict[int, str]]:
    """The slices in order of time, each with a thread (tid), and the names of the threads.

    In a thread slices follow one another or lie inside one another: viewers draw nothing else.
    """
    ends = np.maximum(rows["end_ns"], rows["start_ns"])
    rows = rows.assign(end_ns=ends).iloc[np.lexsort((-ends.to_numpy(), rows["start_ns"].to_numpy()))].reset_index(drop=True)
    lanes: dict[str, list[list[int]]] = {}
    threads: list[int] = []
    names: dict[int, str] = {}
    for row, start, end in zip(rows["row"], rows["start_ns"], rows["end_ns"], strict=True):
        mine = lanes.setdefault(row, [])
        lane = next((n for n, open_ in enumerate(mine) if _fits(open_, start, end)), len(mine))
        if lane == len(mine):
            mine.append([])
        mine[lane].append(end)
        threads.append(1 + _THREADS.index(row) * _MOST_LANES + lane)
        names[threads[-1]] = row if lane == 0 else f"{row} {lane + 1}"
    return rows.assign(tid=threads), names


def _fits(open_: list[int], start: int, end: int) -> bool:
    """Whether a slice can stand in a thread whose slices that may still go on end at *open_*, the innermost last."""
    while open_ and open_[-1] <= start:
        open_.pop()
    return not open_ or end <= open_[-1]
