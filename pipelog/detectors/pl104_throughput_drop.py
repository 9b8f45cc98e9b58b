"""PL104 throughput-drop: the step time changed for good at some step.

What it does: looks for the one step that best splits the step times into two levels (least absolute deviation from the two medians)
and asks that the later level is higher, lasts to the end, and lies outside what the steps scatter by themselves.
Why it matters: a node that throttles, a neighbour that takes the network or a leak slows everything from one moment on.
What to do: see what changed at that step: hosts' clocks and temperatures, other jobs, checkpoints, the data set.
When it is wrong: a planned change (batch-size ramp-up, longer sequences) does the same: where the lines print the global batch or the
length of the sequences, only steps of equal work are compared, or what such work cannot explain; where they do not, it is not seen.
Steps that fp16 skips while it searches its loss scale are shorter, since they have no optimizer step: that is checked, too.
Where no step time is printed, the samples per second of DeepSpeed's throughput lines are looked at, which longer samples lower as well.
Thresholds: limit 0.15 (slower by 15 %), at_least 3 intervals on each side, and as many after that are slow; twice as many samples per second.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd

from pipelog._text import count, percent, seconds
from pipelog.findings import Advice, Confidence, Finding, Severity, Where, cite, detector
from pipelog.tables import CannotTell
from pipelog.tables.steps import Steps, series
from pipelog.tables.work import levels, most_cost, work


@detector("PL104", "throughput-drop", needs=("steps", "scalars"))
def throughput_drop(steps: Steps, scalars: pd.DataFrame, *, limit: float = 0.15, at_least: float = 3) -> Iterator[Finding]:
    """One finding: the change with the largest loss."""
    rows = steps.measured()
    least = int(at_least)
    rated = _rates(scalars) if steps.source is None else rows.iloc[:0]
    if len(rated) >= 4 * least:
        yield from _slower_rate(rated, scalars, limit, 2 * least)
        return
    if steps.source == "trace" or len(rows) < 2 * least:
        printed = len(steps.rows.dropna(subset=["dur_ns"]))
        warm = ", the first of which holds warm-up" if len(rows) < printed else ""
        raise CannotTell(
            f"{count(printed, 'step time was', 'step times were')} printed{warm}; a lasting change needs {2 * least} or more{' besides' if warm else ''}"
        )
    changes = [c for c in _changes(rows, work(scalars, rows["step"]), limit, least) if not _were_skipped(scalars, rows.iloc[: c.until + 1], c.place)]
    if not changes:
        return
    change = max(changes, key=lambda c: c.high / c.low)
    first = int(rows["step"].iloc[change.place - 1]) + 1
    idle = _all_skipped(scalars)
    nothing = "; every step so far was skipped for an overflow, so none of them trained" if idle else ""
    yield Finding(
        "PL104",
        "throughput-drop",
        f"from step {first} on a step takes {seconds(change.high)} instead of {seconds(change.low)} "
        f"({percent(change.high / change.low - 1)} longer), {change.reach}{nothing}",
        Severity.INFO if idle else Severity.WARNING,
        Confidence.HIGH if change.slow >= 2 * least else Confidence.MEDIUM,
        Where(steps=(first, int(rows["step"].iloc[change.until]))),
        cite(rows.iloc[[change.place, change.place - 1]]),
        (
            Advice(
                "compare hosts (clocks, temperature, other jobs) before and after that time; a profiler trace of each rank now shows which stage is slow"
            ),
        ),
        cost=1 - change.low / change.high,
    )


def _rates(scalars: pd.DataFrame) -> pd.DataFrame:
    """Without step times: the samples per second of single steps that DeepSpeed's throughput lines print, as time of a sample (dur_ns); the first left out."""
    printed = series(scalars, "samples_per_s_now")
    value = printed["value"].to_numpy(dtype=float)
    good = printed[np.isfinite(value) & (value > 0)].iloc[1:]
    return good.assign(dur_ns=1e9 / good["value"].to_numpy(dtype=float)).reset_index(drop=True)


def _slower_rate(rated: pd.DataFrame, scalars: pd.DataFrame, limit: float, least: int) -> Iterator[Finding]:
    """A lasting fall of the samples per second; they are those of the steps that are printed alone, so twice as many are asked for."""
    changes = list(_changes(rated, work(scalars, rated["step"]), limit, least))
    if not changes:
        return
    change = max(changes, key=lambda c: c.high / c.low)
    first, last = int(rated["step"].iloc[change.place - 1]) + 1, int(rated["step"].iloc[change.until])
    yield Finding(
        "PL104",
        "throughput-drop",
        f"from step {first} on {1e9 / change.high:.3g} samples/s are made instead of {1e9 / change.low:.3g} "
        f"({percent(change.high / change.low - 1)} longer for each), {change.reach}",
        Severity.WARNING,
        Confidence.MEDIUM,
        Where(steps=(first, last)),
        cite(rated.iloc[[change.place, change.place - 1]]),
        (Advice("see whether the samples got longer at that step; else compare hosts (clocks, temperature, other jobs) before and after that time"),),
        cost=1 - change.low / change.high,
    )


@dataclass(frozen=True, slots=True)
class _Change:
    """A lasting change of the step time: row of the first slow interval and of the last seen, how many are slow, medians (ns) before and after."""

    place: int
    until: int
    slow: int
    low: float
    high: float
    reach: str


def _changes(rows: pd.DataFrame, done: pd.DataFrame, limit: float, least: int) -> Iterator[_Change]:
    """Of steps of equal work the change of their time; of others also what is left of it when their work is taken out."""
    times, level, cost = rows["dur_ns"].to_numpy(dtype=float), levels(done), most_cost(done)
    last = len(times) - 1
    for number in range(level.max() + 1):
        mine = np.flatnonzero(level == number)
        found = _change(times[mine], limit, least)
        if not found:
            continue
        place, slow, low, high = found
        begin, end = int(mine[0]), int(mine[-1])
        # a step of other work may take any time; that of the level behind is at least no shorter for its work than this one became
        if end < last and np.median(times[level == number + 1] / cost[level == number + 1]) * cost[end] < low * (1 + limit / 2):
            continue
        yield _Change(begin + place, end, slow, low, high, "to the end" if end == last else "to the end of the steps of equal work")
    # less work makes a step no shorter for certain (fill and drain, fixed costs), so the bound never falls
    if level.max() and (found := _change(times / np.maximum.accumulate(cost), limit, least)):
        place, slow = found[:2]
        low, high = float(np.median(times[:place])), float(np.median(times[place:]))
        grew = max(1.0, float(np.median(cost[place:]) / np.median(cost[:place])))
        if high > low * grew * (1 + limit):
            yield _Change(place, last, slow, low, high, "to the end, more than its batch and its sequences explain")


def _change(times: np.ndarray, limit: float, least: int) -> tuple[int, int, float, float] | None:
    """Where the times rise for good: index of the first high one, how many are high, the two levels."""
    if len(times) < 2 * least:
        return None
    place = split(times, least)
    before, after = times[:place], times[place:]
    low, high = float(np.median(before)), float(np.median(after))
    late = int(np.argmax(after > (low + high) / 2))  # intervals between the two levels belong to neither
    if late:
        place, after, high = place + late, after[late:], float(np.median(after[late:]))
    if np.sum(after > (low + high) / 2) < least:
        return None
    scatter = max(float(np.median(np.abs(before - low))), float(np.median(np.abs(after - high))))
    if high < low * (1 + limit) or high - low < 4 * scatter:
        return None
    if np.mean(after > low * (1 + limit / 2)) < 0.9 or np.mean(before > (low + high) / 2) > 0.2:  # spikes, not a new level
        return None
    return place, len(after), low, high


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
