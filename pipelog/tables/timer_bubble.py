"""The bubble of stage 0 from DeepSpeed's rank-0 timers, and how far they can be trusted."""

from __future__ import annotations

import numpy as np
import pandas as pd

from pipelog._text import percent
from pipelog.tables import CannotTell, table
from pipelog.tables.bubble import Bubble
from pipelog.tables.topology import Topology

_LATE = 0.02
"""Share of a step from which on batch_input counts as late data: a batch that is ready takes 0.1 to 0.9 % in the real runs, a late one 8 % and more."""
_UNTIMED = 0.05
"""Share of a step that no timer holds, from which on it can be work inside the passes; 0.6 to 4 % in runs of one replica that do nothing but train."""
_FEW = 4
"""Intervals after the first, below which there are no quartiles: of three, one may hold a single long step (a stall, a trace being written)."""
_APART = 0.01
"""Intervals that differ by less are alike."""
_WARM = 0.10
"""A first interval whose passes take longer than later ones by more tells of warm-up alone; by up to 9 % in the real runs on CPU, which need none."""
WIDE = 0.03
"""Bounds further apart than this need a reason."""


@table("timer_bubble", needs=("timers", "topology"))
def timer_bubble(timers: pd.DataFrame, topology: Topology) -> Bubble:
    """From DeepSpeed's rank-0 timers, of stage 0 alone (design/product.md):

    low = 1 - compute / (compute + p2p + batch_input), high = 1 - compute / iter time, measured = 1 - compute / (iter time - step);
    compute = forward + backward. measured is the median over the printed intervals without the first, which holds warm-up; low is the lower
    quartile of theirs and high the upper, so that intervals that differ give wide bounds. Fewer than four give the smallest low, of the first as well where
    it is no warm-up, and the largest high. Where an evaluation adds its messages to the timers low comes out above measured: then it bounds it from above.
    `_certainly_idle` says where low is less than that.
    """
    shares = _shares(timers, topology)
    used = shares.iloc[1:] if len(timers) > 1 else shares
    used = used[used["good"]]
    if not len(used):
        raise CannotTell("the forward and backward timers of rank 0 are all zero")
    measured = float(used["measured"].median())
    low, high = float(used["low"].quantile(0.25)), float(used["high"].quantile(0.75))
    told = used
    if len(used) < _FEW:
        told = shares[shares["good"] & (shares["compute"] <= (1 + _WARM) * used["compute"].median())]
        low = float(told["low"].min()) if low - told["low"].min() > _APART else low
        high = float(used["high"].max()) if used["high"].max() - high > _APART else high
    low, high = min(low, measured), max(high, float(used["low"].median()), measured)
    witness = used.loc[used["high"].idxmax()]
    return Bubble(
        measured=measured,
        low=low,
        high=high,
        source="timers",
        basis="timer",
        scope="stage",
        per_stage=[{"stage": 0, "bubble": measured, "busy_s": float(used["compute"].median()) / 1e9}],
        where=[(str(witness["file"]), int(witness["line"]))],
        note="rank 0 alone prints timers: this is the idle share of stage 0, not of the pipeline",
        why_wide=_why_wide(told, used) if high - low > WIDE else None,
        intervals=len(timers),
    )


def _shares(timers: pd.DataFrame, topology: Topology) -> pd.DataFrame:
    """Of each printed interval: compute (ns a step), low, high, measured, and the shares of a step that load, the optimizer and nothing that is timed take; good: whether they tell anything."""
    pair = next((p for p in (("fwd_ns", "bwd_ns"), ("fwd_microstep_ns", "bwd_microstep_ns")) if set(p) <= set(timers.columns)), None)
    if pair is None or not (topology.pp or 0) > 1:
        raise CannotTell("no forward and backward timers of a pipeline: wall_clock_breakdown (up to DeepSpeed 0.18.2) prints those of rank 0")
    compute = timers[pair[0]].fillna(0) + timers[pair[1]].fillna(0)

    def of(*names: str) -> pd.Series:
        return sum((timers[f"{n}_ns"].fillna(0) for n in names if f"{n}_ns" in timers), start=pd.Series(0.0, index=timers.index))

    whole, step, load = timers["iter_ns"], of("step") if "step_ns" in timers else of("step_microstep"), of("batch_input")
    p2p = of("pipe_send_output", "pipe_recv_grad", "pipe_recv_input", "pipe_send_grad")
    untimed = (whole - step - compute - p2p - load) / whole
    return timers[["file", "line"]].assign(
        good=(compute > 0) & (whole > step),
        compute=compute,
        low=_certainly_idle(compute, p2p, load, whole - step, untimed),
        high=1 - compute / whole,
        measured=1 - compute / (whole - step),
        load=load / whole,
        step=step / whole,
        untimed=untimed,
    )


def _certainly_idle(compute: pd.Series, p2p: pd.Series, load: pd.Series, rest: pd.Series, untimed: pd.Series) -> pd.Series:
    """low of each interval: what is idle for certain.

    Late batches (from 2 % of a step) are left out: of the first, which comes before the first pass and so before the phase, the timer does not tell the
    share. Where 5 % of a step or more, or anything in the only interval there is, is timed by nothing, it may be work that the passes hold beside their
    timers (memory_breakdown, hooks): then idle is only what the timers say is waiting, of all that the step holds beside the optimizer (*rest*). The first
    of several holds warm-up that nothing times.
    """
    load = load.where(load < _LATE * rest, 0.0)
    low = 1 - compute / (compute + p2p + load)
    trusted = untimed <= _UNTIMED if len(low) > 1 else untimed <= 0
    trusted |= (np.arange(len(low)) == 0) & (len(low) > 1)
    return low.where(trusted, ((p2p + load) / rest).clip(upper=low))


def _why_wide(told: pd.DataFrame, used: pd.DataFrame) -> str:
    """What holds the bounds apart: intervals that differ, late batches, time that nothing timed, messages of an evaluation, the optimizer."""
    load, step, untimed = (float(used[name].median()) for name in ("load", "step", "untimed"))
    spread = float(max(told["low"].max() - told["low"].min(), used["high"].max() - used["high"].min()))
    first = ", the first of all among them" if len(told) > len(used) else ""
    parts = {
        f"the {len(told)} printed intervals differ{first} ({percent(told['low'].min())} to {percent(used['high'].max())} idle)": spread,
        f"{percent(load)} of a step is late data, and how much of that comes before the first pass is not told": load if load >= _LATE else 0.0,
        f"no timer holds {percent(untimed)} of a step: reduction of gradients, waiting for another replica, or work inside the passes": untimed,
        f"the timers hold {percent(-untimed)} more than the steps, such as the messages of an evaluation": -untimed,
        f"the optimizer takes {percent(step)}": step,
    }
    most = max(parts.values())
    return "; ".join(part for part, share in parts.items() if share >= min(_APART, most))
