"""PL603 loss-scale-collapse: fp16 skips step after step and its loss scale has nowhere to go.

What it does: counts overflow lines at the floor of the scale (it is to be reduced and cannot), the exception that says so, and the
share of all steps that were skipped.
Why it matters: a skipped step trains nothing; at the floor every step may be skipped while the job looks busy.
What to do: find the first nan (data, learning rate, an unstable layer); use bf16, which has no loss scale.
When it is wrong: the search for the scale at the start of training skips some tens of steps; that alone is normal
and only noted, where nothing but skipped steps was seen.
Thresholds: floor 3 steps at the floor, share 0.25 of at least 100 steps skipped after the search.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd
import pyarrow as pa

from pipelog._text import count, percent, power
from pipelog.findings import Advice, Confidence, Finding, Severity, Where, cite, detector
from pipelog.tables import CannotTell, frame
from pipelog.tables.steps import series
from pipelog.tables.topology import Topology

_ADVICE = (
    Advice("look for the first step with a nan or inf gradient: its data, the learning rate, an unstable layer (attention logits, layer norm)"),
    Advice("train in bf16 if the hardware has it: it needs no loss scale"),
)


@detector("PL603", "loss-scale-collapse", needs=("placed", "scalars", "topology"))
def loss_scale_collapse(placed: pa.Table, scalars: pd.DataFrame, topology: Topology, *, floor: float = 3, share: float = 0.25) -> Iterator[Finding]:
    """One finding."""
    overflow = frame(placed, ("overflow",), ("name", "rank", "value", "step", "text", "file", "line"))
    skipped, scale = series(scalars, "skipped_steps"), series(scalars, "loss_scale")
    if not len(overflow) and not len(skipped) and not len(scale):
        raise CannotTell("no loss scale and no skipped step was printed (bf16 and fp32 have none; DeepSpeed 0.17.6+ hides these lines)")
    stuck = overflow[overflow["name"] == "floor"]
    final = stuck[stuck["text"].fillna("").str.contains("cannot decrease|already at minimum", regex=True)]
    parts = []
    if _steps_at(stuck, topology) >= floor or len(final):
        parts.append(f"the loss scale is at its minimum and is still to be reduced ({count(len(stuck), 'line')})")
    rate, rows = _skipped_share(skipped)
    if rate is not None and rate > share:
        parts.append(f"{percent(rate)} of all steps were skipped")
    fell = _fell(scale)
    if not parts and fell is not None:
        parts.append(f"the loss scale fell from {power(fell[0])} to {power(fell[1])}")
    if not parts:
        yield from _searching(skipped, series(scalars, "skipped_in_interval"), series(scalars, "loss"), scale)
        return
    shown = pd.concat([final, stuck, rows.rename(columns={"value": "count"})]) if len(stuck) else rows if len(rows) else scale.tail(1)
    steps = pd.concat([r["step"].dropna() for r in (stuck, rows)]).astype("int64")
    yield Finding(
        "PL603",
        "loss-scale-collapse",
        "; ".join(parts),
        Severity.WARNING,
        Confidence.HIGH,
        Where(steps=(int(steps.min()), int(steps.max())) if len(steps) else None),
        cite(shown),
        _ADVICE,
    )


def _steps_at(stuck: pd.DataFrame, topology: Topology) -> float:
    """How many steps these lines speak of: some releases print one on every rank, which is named or not."""
    by_rank = stuck.groupby(stuck["rank"].astype("Float64").fillna(-1)).size()
    unnamed = float(by_rank.get(-1.0, 0)) / (topology.world_size or 1)
    return max(unnamed, float(by_rank.drop(-1.0, errors="ignore").max()) if (by_rank.index >= 0).any() else 0.0)


def _searching(counted: pd.DataFrame, interval: pd.DataFrame, loss: pd.DataFrame, scale: pd.DataFrame) -> Iterator[Finding]:
    """Every step so far was skipped: normal while the scale is searched, but nothing is trained yet."""
    if len(counted):
        number, last, rows = counted["value"].iloc[-1], counted["step"].iloc[-1], counted
        whole = number >= last
    else:
        number, last, rows = interval["value"].sum(), interval["step"].max(), interval
        whole = not len(loss) and bool((interval["value"] >= interval["step"].diff().fillna(1)).all())
    if len(rows) < 2 or not whole:
        return
    now = f" (it stands at {power(float(scale['value'].iloc[-1]))})" if len(scale) else ""
    yield Finding(
        "PL603",
        "loss-scale-collapse",
        f"every step so far was skipped ({count(int(number), 'step')}): fp16 still searches its loss scale{now}, and nothing was trained yet",
        Severity.INFO,
        Confidence.HIGH,
        Where(steps=(int(rows["step"].iloc[0]), int(last))),
        cite(rows.iloc[[-1, 0]]),
        (Advice("start with a lower loss scale (fp16.initial_scale_power, --initial-loss-scale) to save these steps; see that the skipping ends"),),
    )


_SEARCH = 70
"""Steps that a search for the scale takes at most: 2**32 halved down to 1, each value tried twice (hysteresis)."""


def _skipped_share(skipped: pd.DataFrame) -> tuple[float | None, pd.DataFrame]:
    """Skipped steps over all steps of the attempt after its search for the scale, from DeepSpeed's own counter."""
    step, value = skipped["step"].to_numpy(dtype=float), skipped["value"].to_numpy(dtype=float)
    searching = int(np.logical_and.accumulate(value >= 0.9 * step).sum()) if len(step) else 0
    if searching and step[searching - 1] > _SEARCH:
        return float(value[-1] / step[-1]), skipped.iloc[[-1]]
    begin = max(0, searching - 1)
    if len(step) < begin + 2 or step[-1] - step[begin] < 100:
        return None, skipped.iloc[:0]
    return float((value[-1] - value[begin]) / (step[-1] - step[begin])), skipped.iloc[[-1]]


def _fell(scale: pd.DataFrame) -> tuple[float, float] | None:
    """A dynamic scale that came down from above 1,024 to 1 or less and stays there. A constant scale of 1 is bf16's."""
    if len(scale) < 3:
        return None
    high, last = float(scale["value"].max()), scale["value"].tail(3)
    return (high, float(last.iloc[-1])) if high >= 1024 and ((last > 0) & (last <= 1)).all() else None
