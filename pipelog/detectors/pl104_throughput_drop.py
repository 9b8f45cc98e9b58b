"""PL104 throughput-drop: the step time changed for good at some step.

What it does: looks for the one step that best splits the step times into two levels (least absolute deviation from the two medians)
and asks that the later level is higher, lasts to the end, and lies outside what the steps scatter by themselves.
Why it matters: a node that throttles, a neighbour that takes the network or a leak slows everything from one moment on.
What to do: see what changed at that step: hosts' clocks and temperatures, other jobs, checkpoints, the data set.
When it is wrong: a planned change (batch-size ramp-up, longer sequences) does the same; the global batch is checked, sequences are not.
Steps that fp16 skips while it searches its loss scale are shorter, since they have no optimizer step: that is checked, too.
Thresholds: limit 0.15 (slower by 15 %), at_least 3 intervals on each side, and as many after that are slow.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd

from pipelog._text import count, percent, seconds
from pipelog.findings import Advice, Confidence, Finding, Severity, Where, cite, detector
from pipelog.tables import CannotTell
from pipelog.tables.steps import Steps, series


@detector("PL104", "throughput-drop", needs=("steps", "scalars"))
def throughput_drop(steps: Steps, scalars: pd.DataFrame, *, limit: float = 0.15, at_least: float = 3) -> Iterator[Finding]:
    """One finding: the change with the largest loss."""
    rows = steps.measured()
    least = int(at_least)
    if steps.source == "trace" or len(rows) < 2 * least:
        printed = len(steps.rows.dropna(subset=["dur_ns"]))
        warm = ", the first of which holds warm-up" if len(rows) < printed else ""
        raise CannotTell(
            f"{count(printed, 'step time was', 'step times were')} printed{warm}; a lasting change needs {2 * least} or more{' besides' if warm else ''}"
        )
    times = rows["dur_ns"].to_numpy(dtype=float)
    place = split(times, least)
    before, after = times[:place], times[place:]
    low, high = float(np.median(before)), float(np.median(after))
    late = int(np.argmax(after > (low + high) / 2))  # intervals between the two levels belong to neither
    if late:
        place, after, high = place + late, after[late:], float(np.median(after[late:]))
    if np.sum(after > (low + high) / 2) < least:
        return
    scatter = max(float(np.median(np.abs(before - low))), float(np.median(np.abs(after - high))))
    if high < low * (1 + limit) or high - low < 4 * scatter:
        return
    if np.mean(after > low * (1 + limit / 2)) < 0.9 or np.mean(before > (low + high) / 2) > 0.2:  # spikes, not a new level
        return
    if _batch_grew(scalars, rows, place, high / low) or _were_skipped(scalars, rows, place):
        return
    first = int(rows["step"].iloc[place - 1]) + 1
    idle = _all_skipped(scalars)
    nothing = "; every step so far was skipped for an overflow, so none of them trained" if idle else ""
    yield Finding(
        "PL104",
        "throughput-drop",
        f"from step {first} on a step takes {seconds(high)} instead of {seconds(low)} ({percent(high / low - 1)} longer), to the end{nothing}",
        Severity.INFO if idle else Severity.WARNING,
        Confidence.HIGH if len(after) >= 2 * least else Confidence.MEDIUM,
        Where(steps=(first, int(rows["step"].iloc[-1]))),
        cite(rows.iloc[[place, place - 1]]),
        (
            Advice(
                "compare hosts (clocks, temperature, other jobs) before and after that time; a profiler trace of each rank now shows which stage is slow"
            ),
        ),
        cost=1 - low / high,
    )


def split(times: np.ndarray, least: int) -> int:
    """Where two levels fit best: least sum of absolute deviations from the two medians, with *least* values on each side."""
    costs = [
        (float(np.abs(times[:k] - np.median(times[:k])).sum() + np.abs(times[k:] - np.median(times[k:])).sum()), k)
        for k in candidates(len(times), least)
    ]
    return min(costs)[1]


def candidates(count: int, least: int, most: int = 400) -> list[int]:
    """Places to try: all of a short series, evenly spaced ones of a long one."""
    places = np.arange(least, count - least + 1)
    if len(places) > most:
        places = places[np.linspace(0, len(places) - 1, most).astype(int)]
    return [int(p) for p in places]


def _batch_grew(scalars: pd.DataFrame, rows: pd.DataFrame, place: int, factor: float) -> bool:
    """Whether the global batch rose with the step time: then the throughput did not drop."""
    batch = series(scalars, "global_batch_size")
    if not len(batch):
        return False
    border = int(rows["step"].iloc[place - 1])
    before, after = batch[batch["step"] <= border]["value"], batch[batch["step"] > border]["value"]
    return bool(len(before) and len(after) and after.median() / before.median() >= factor * 0.95)


def _were_skipped(scalars: pd.DataFrame, rows: pd.DataFrame, place: int) -> bool:
    """Whether a good part of the steps before was skipped for overflows, and fewer after."""
    border = int(rows["step"].iloc[place - 1])
    counted, interval = series(scalars, "skipped_steps"), series(scalars, "skipped_in_interval")
    for skipped in (counted.assign(value=counted["value"].diff().fillna(counted["value"])), interval):
        early, late = skipped[skipped["step"] <= border], skipped[skipped["step"] > border]
        before = float(early["value"].sum()) / border if len(early) else 0.0
        after = float(late["value"].sum()) / max(1, int(rows["step"].iloc[-1]) - border) if len(late) else 0.0
        if before > 0.25 and before > 2 * after:
            return True
    return False


def _all_skipped(scalars: pd.DataFrame) -> bool:
    """Whether fp16 skipped every step: then there is no throughput that could drop."""
    counted, interval, trained = series(scalars, "skipped_steps"), series(scalars, "skipped_in_interval"), series(scalars, "loss")
    if len(counted):
        return bool(counted["value"].iloc[-1] >= counted["step"].iloc[-1])
    whole = interval["step"].diff().fillna(1)
    return bool(len(interval) and (interval["value"] >= whole).all() and not len(trained))
