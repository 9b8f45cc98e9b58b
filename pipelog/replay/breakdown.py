"""Where the pipeline phase and the step go: shares that sum to 1, from the replay of the schedule on measured durations."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from pipelog.replay.measured import Order
from pipelog.replay.simulate import Costs, run
from pipelog.tables import table, union_ns
from pipelog.tables.durations import Durations
from pipelog.tables.instructions import HostTrace


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
        return run(order.schedule, Costs(cells.forward, cells.backward, **delays), p, m, blocking=order.blocking).phase()

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
    whole = stage_time[stage_time["complete"]]
    ends = {t.file: _ends(t) for t in host_traces}
    rows = []
    for (step, replica), mine in whole.groupby(["step", "replica"]):
        begin, end = int(mine["step_start_ns"].min()), int(mine["step_end_ns"].max())
        first, length = int(mine["phase_start_ns"].iloc[0]), float(end - begin)
        after = [
            _after(ends.get(str(r["file"]), _NO_ENDS), first + int(r["phase_ns"]) + int(r["shift_ns"]), int(r["step_end_ns"]) + int(r["shift_ns"]))
            for r in mine.to_dict("records")
        ]
        share = {"start-skew": (first - begin) / length, "pipeline": float(mine["phase_ns"].iloc[0]) / length}
        share |= {part: float(np.mean([a[part] for a in after])) / length for part in ("reduce", "optimizer", "loss-broadcast")}
        share["other"] = max(0.0, 1 - sum(share.values()))
        rows.append({"step": step, "replica": replica} | share)
    if not rows:
        return {}
    shares = pd.DataFrame(rows).drop(columns="replica").groupby("step").mean().median().clip(lower=0)
    return {str(part): float(value / shares.sum()) for part, value in shares.items()}


_Ends = dict[str, tuple[np.ndarray, np.ndarray]]
_NO_ENDS: _Ends = {}


def _ends(trace: HostTrace) -> _Ends:
    """Start and end of what comes after the phase: the optimizer, reductions, the broadcast of the loss."""
    collective, broadcast = np.asarray(trace.kind == "collective"), np.asarray(trace.name == "broadcast")
    masks = {"optimizer": np.asarray(trace.kind == "optimizer_step"), "reduce": collective & ~broadcast, "loss-broadcast": collective & broadcast}
    return {part: (trace.start[mask], trace.end[mask]) for part, mask in masks.items()}


def _after(ends: _Ends, begin: int, end: int) -> dict[str, float]:
    """Time in ns, after the phase, in the optimizer, in reductions and in the broadcast of the loss; each a union, none counted twice."""
    out = dict.fromkeys(("optimizer", "reduce", "loss-broadcast"), 0.0)
    so_far, length = (np.zeros(0, np.int64), np.zeros(0, np.int64)), 0
    for part, (start, stop) in ends.items():
        inside = (stop > begin) & (start < end)
        so_far = tuple(np.concatenate(pair) for pair in zip(so_far, (np.maximum(start[inside], begin), np.minimum(stop[inside], end)), strict=True))  # type: ignore[assignment]
        reached = union_ns(*so_far)
        out[part], length = float(reached - length), reached
    return out
