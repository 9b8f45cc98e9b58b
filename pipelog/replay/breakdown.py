"""Where the pipeline phase and the step go: shares that sum to 1, from the replay of the schedule on measured durations."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from pipelog.replay.measured import Order
from pipelog.replay.simulate import Costs, phases
from pipelog.tables import table
from pipelog.tables.durations import Durations
from pipelog.tables.instructions import HostTrace
from pipelog.tables.stage_time import union_by


@dataclass(frozen=True, slots=True)
class Breakdown:
    """phase: part → share of stages x pipeline phase; step: part → share of the step. Both sum to 1. replay_error: of the full replay.

    per_step: step, replica and the parts in ns of stage time, for charts.
    """

    phase: dict[str, float]
    step: dict[str, float]
    replay_error: float | None
    per_step: pd.DataFrame = field(default_factory=pd.DataFrame)


PARTS = ("compute", "recompute", "fill-drain", "imbalance-wait", "p2p-transfer", "stall", "data", "host-gap", "other")


@table("breakdown", needs=("durations", "replay_order", "stage_time", "host_traces"))
def breakdown(durations: list[Durations], replay_order: Order, stage_time: pd.DataFrame, host_traces: list[HostTrace]) -> Breakdown:
    """Split stages x phase into parts (design/product.md), by replaying 1F1B with one cause after another taken in:

    compute, recompute: measured busy time. fill-drain: p (p-1) c with c the mean compute of a stage and micro-batch, what equal
    stages need. imbalance-wait: what the replay with the measured passes and free, immediate transfers adds. p2p-transfer: what
    transfers add up to three times the usual one; stall: what transfers and idle time before sends add beyond. data: what loads
    add. host-gap: what the usual idle time before sends and passes adds. The difference to the measured phase is `other`.
    """
    per_step = pd.concat([_of_cells(cells, replay_order) for cells in durations], ignore_index=True)
    per_step = per_step.sort_values(["step", "replica"], kind="stable").reset_index(drop=True)
    totals = per_step[list(PARTS)].clip(lower=0).sum()
    phase = {part: float(totals[part] / totals.sum()) for part in PARTS}
    errors = per_step["replayed_ns"] / per_step["phase_ns"] - 1
    return Breakdown(phase, _of_step(stage_time, host_traces), float(errors.abs().median()), per_step)


def usual(*times: np.ndarray) -> np.ndarray:
    """The typical value of transfers or gaps of each replica and step, (cells, 1, 1): their median over all edges and both directions."""
    return np.asarray(np.median(np.concatenate(times, axis=1), axis=(1, 2), keepdims=True))


def _split(times: np.ndarray, typical: np.ndarray) -> np.ndarray:
    """*times* without what lies far beyond the typical value: more than three times it and a millisecond over it."""
    return np.where((times > 3 * typical) & (times > typical + 1e6), typical, times)


def _of_cells(cells: Durations, order: Order) -> pd.DataFrame:
    """The parts of each step and replica, ns of stage time."""
    _, p, m = cells.forward.shape
    busy, again = (cells.forward + cells.backward).sum(axis=(1, 2)), cells.recompute.sum(axis=1)
    transfers = usual(cells.activation, cells.grad)
    gaps = usual(cells.before_send_activation, cells.before_send_grad)
    late_activation, late_grad = (np.where(g > _split(g, gaps), g, 0.0) for g in (cells.before_send_activation, cells.before_send_grad))

    def phase(**delays: np.ndarray) -> np.ndarray:
        return phases(order.schedule, Costs(cells.forward, cells.backward, **delays), p, m, blocking=order.blocking)

    moved = {"activation": _split(cells.activation, transfers), "grad": _split(cells.grad, transfers)}
    stalled = {"activation": cells.activation, "grad": cells.grad, "send_activation": late_activation, "send_grad": late_grad}
    loaded = stalled | {"load": cells.load}
    full = loaded | {"send_activation": cells.before_send_activation, "send_grad": cells.before_send_grad}
    full |= {"before_forward": cells.before_forward, "before_backward": cells.before_backward}
    lengths = [phase(), phase(**moved), phase(**stalled), phase(**loaded), phase(**full)]
    fill = (p - 1) * busy / m
    parts = {"compute": busy - again, "recompute": again, "fill-drain": fill, "imbalance-wait": p * lengths[0] - busy - fill}
    parts |= {name: p * (b - a) for name, a, b in zip(("p2p-transfer", "stall", "data", "host-gap"), lengths, lengths[1:], strict=False)}
    parts["other"] = p * (cells.phase_ns - lengths[-1])
    excess = np.zeros(len(cells.step))  # where the replay overshoots the measured phase, the later causes shrink
    for part in ("other", "host-gap", "data", "stall", "p2p-transfer", "imbalance-wait", "fill-drain"):
        left = parts[part] + excess
        parts[part], excess = np.maximum(left, 0.0), np.minimum(left, 0.0)
    return pd.DataFrame(parts | {"step": cells.step, "replica": cells.replica, "phase_ns": cells.phase_ns, "replayed_ns": lengths[-1]})


def _of_step(stage_time: pd.DataFrame, host_traces: list[HostTrace]) -> dict[str, float]:
    """Shares of the step: what comes before the pipeline phase, the phase, and what comes after it.

    Each as the mean over the ranks of a replica, over the longest step of its ranks; then the mean over replicas and the median over
    steps. Collectives are counted outside the phase only, on whatever thread they wait.
    """
    whole = stage_time[stage_time["complete"]].reset_index(drop=True)
    if not len(whole):
        return {}
    whole = whole.join(_after(whole, {t.file: t for t in host_traces}))
    cells = whole.groupby(["step", "replica"])
    begin, length = cells["step_start_ns"].min(), (cells["step_end_ns"].max() - cells["step_start_ns"].min()).astype(float)
    shares = pd.DataFrame({"start-skew": cells["phase_start_ns"].first() - begin, "pipeline": cells["phase_ns"].first()})
    shares = shares.join(cells[list(_AFTER)].mean()).div(length, axis=0)
    shares["other"] = (1 - shares.sum(axis=1)).clip(lower=0)
    typical = shares.groupby("step").mean().median().clip(lower=0)
    return {str(part): float(value / typical.sum()) for part, value in typical.items()}


_AFTER = ("reduce", "optimizer", "loss-broadcast")


def _after(whole: pd.DataFrame, traces: dict[str, HostTrace]) -> pd.DataFrame:
    """Time in ns of each row, after the phase, in reductions, in the optimizer and in the broadcast of the loss; each a union, none counted twice."""
    begin = (whole["phase_start_ns"] + whole["phase_ns"].astype(np.int64) + whole["shift_ns"]).to_numpy(np.int64)
    end = (whole["step_end_ns"] + whole["shift_ns"]).to_numpy(np.int64)
    out = pd.DataFrame(0.0, index=whole.index, columns=list(_AFTER))
    for file, rows in whole.groupby("file", sort=False, observed=True).indices.items():
        trace = traces.get(str(file))
        if trace is None:
            continue
        rows = rows[np.argsort(begin[rows], kind="stable")]  # noqa: PLW2901
        so_far, reached = np.zeros(0, np.int64), np.zeros(len(rows), np.int64)
        for part, places in _parts_after(trace).items():
            so_far = np.concatenate((so_far, places))
            more = _within(begin[rows], end[rows], trace.start[so_far], trace.end[so_far])
            out.loc[rows, part] = (more - reached).astype(float)
            reached = more
    return out


def _parts_after(trace: HostTrace) -> dict[str, np.ndarray]:
    """Where the optimizer, reductions and the broadcast of the loss stand in a trace, in the order in which they are counted."""
    collective, broadcast = np.asarray(trace.kind == "collective"), np.asarray(trace.name == "broadcast")
    masks = {"optimizer": np.asarray(trace.kind == "optimizer_step"), "reduce": collective & ~broadcast, "loss-broadcast": collective & broadcast}
    return {part: np.flatnonzero(mask) for part, mask in masks.items()}


def _within(begin: np.ndarray, end: np.ndarray, start: np.ndarray, stop: np.ndarray) -> np.ndarray:
    """Length of the union of the intervals (start, stop) inside each span (begin, end), ns; spans in order, none over another."""
    first = np.searchsorted(np.maximum.accumulate(end), start, side="right")
    count = np.maximum(np.searchsorted(begin, stop, side="left") - first, 0)
    which = np.repeat(np.arange(len(start)), count)
    span = np.arange(len(which)) - np.repeat(np.cumsum(count) - count, count) + np.repeat(first, count)
    low, high = np.maximum(start[which], begin[span]), np.minimum(stop[which], end[span])
    order = np.lexsort((low, span))
    inside = (high > low)[order]
    out = np.zeros(len(begin), np.int64)
    if len(order):
        lengths = union_by(span[order], low[order], high[order], inside)
        out[: len(lengths)] = lengths
    return out
