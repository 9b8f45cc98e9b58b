"""Ranks that compute longer in some steps than in others: from a step on, more and more, for a while, or now and then."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd

from pipelog.tables import table
from pipelog.tables.balance import since

_LEAST_STEPS = 8
"""Fewer measured steps tell no hiccup from a habit."""
_LEAST_SIDE = 3
"""So many steps have to stand on each side of a change, and in a period."""
_LEAST_END = 5
"""So many steps to the end are no hiccup."""
_LEAST_CREEP = 24
"""Measured steps from which on a pace may be said to creep."""
_STRAY = 0.1
"""Share of steps on either side of a change that may be as those of the other side."""
_SCATTER = 5
"""A slow step lies outside so many (normal) standard deviations of the scatter of all units, or of its own where that is wider."""
_ONE_STEP = 3
"""A single step has to be so many times the limit above the usual pace, as where one step alone was recorded."""
_SELDOM = 1 / 3
"""What comes back in more of the steps than this is scatter, or a pace of its own."""
_LEAST_LOST = 0.02
"""Steps that cost less of the time are no news, as of a straggler."""
_LOUD_NEIGHBOURS = 3
"""Where more than one of so many units is slow now and then, it is the machine or the data, not a rank."""

Pattern = Literal["since", "creeping", "period", "recurring", "single"]


@dataclass(frozen=True, slots=True)
class Slow:
    """Steps in which the ranks of one stage and replica (one, or a tensor-parallel group) compute longer than they use to, while others do not.

    rows: the slow steps, as in `own_pace` (`creeping`: the last quarter, against the first). pattern: `since` a step to the end, `creeping` up all
    along, a `period` that ended, `recurring` single steps, or one or two `single` ones. seen: measured steps. every: steps from one occurrence
    to the next where that is always the same, else null. lost: share of the time of the measured steps that goes there, at most what these
    steps took longer (`since`, `creeping`: of the slow steps' time).
    """

    ranks: tuple[int, ...]
    stage: int
    replica: int
    pattern: Pattern
    rows: pd.DataFrame
    seen: int
    every: int | None
    lost: float


@table("own_pace", needs=("compute_time",))
def own_pace(compute_time: pd.DataFrame) -> pd.DataFrame:
    """Compute of each stage and replica against what it takes usually: stage, replica, step, ranks, compute_ns (per micro-batch, the slowest rank of a
    tensor-parallel group), usual_ns, ratio, own, micro_batches, step_ns, file, line; of those with eight steps or more.

    usual_ns: the median of its own steps (of the lower side of a lasting change, where there is one) times what the others take in that step
    over their own, their lower median: the more of the same stage in other replicas and of the other stages of its replica, so that neither longer
    sequences of a replica nor a change of all ranks of a stage are taken for a slow rank. own: over its own usual time alone.
    """
    columns = ["stage", "replica", "step", "ranks", "compute_ns", "usual_ns", "ratio", "own", "micro_batches", "step_ns", "file", "line"]
    rows = compute_time.assign(compute_ns=compute_time["busy_ns"] / compute_time["micro_batches"]).sort_values(
        "compute_ns", ascending=False, kind="stable"
    )
    units = rows.groupby(["stage", "replica", "step"])
    each = units[["compute_ns", "micro_batches", "step_ns", "file", "line"]].first()
    each["ranks"] = units["rank"].agg(lambda ranks: tuple(sorted(map(int, ranks))))
    pace = each.pivot_table(index=["stage", "replica"], columns="step", values="compute_ns")
    pace = pace[pace.notna().sum(axis=1) >= _LEAST_STEPS]
    if len(pace) < 2:
        return pd.DataFrame(columns=columns)
    times = pace.to_numpy(float)
    own = times / np.array([[_before(row[np.isfinite(row)])] for row in times])
    usual, level = np.full(times.shape, np.nan), np.full(len(pace), np.nan)
    for i, unit in enumerate(pace.index):
        groups = [_lower_median(own[mask]) for mask in _others(pace.index, unit) if mask.any()]
        if not groups:
            continue
        shared = np.fmax.reduce(groups)
        known = np.isfinite(times[i] / shared)
        level[i] = _before((times[i] / shared)[known]) if known.sum() >= _LEAST_STEPS else np.nan
        usual[i] = shared * level[i]
    out = each[each.index.droplevel("step").isin(pace.index)].reset_index()
    row = pace.index.get_indexer(pd.MultiIndex.from_frame(out[["stage", "replica"]]))
    out["usual_ns"] = usual[row, pace.columns.get_indexer(out["step"])]
    out = out.assign(ratio=out["compute_ns"] / out["usual_ns"], own=out["compute_ns"] / level[row]).dropna(subset=["ratio"])
    return out[columns].sort_values(["stage", "replica", "step"], kind="stable").reset_index(drop=True)


def _lower_median(values: np.ndarray) -> np.ndarray:
    """Over the first axis, of those that are known."""
    if np.isfinite(values).all():
        place = (len(values) - 1) // 2
        return np.asarray(np.partition(values, place, axis=0)[place])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a step that none of them was measured in
        return np.asarray(np.nanquantile(values, 0.5, axis=0, method="lower"))


def _others(units: pd.MultiIndex, unit: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """Which units do the same work (its stage in other replicas), and which get the same data (the other stages of its replica)."""
    stage, replica = (units.get_level_values(n).to_numpy() for n in ("stage", "replica"))
    return (stage == unit[0]) & (replica != unit[1]), (replica == unit[1]) & (stage != unit[0])


def _before(level: np.ndarray) -> float:
    """The usual level: the median, or that of the lower side where one change splits the steps into two levels."""
    count = len(level)
    if count < 2 * _LEAST_SIDE:
        return float(np.median(level))
    tame = np.clip(level, *np.quantile(level, (_STRAY / 2, 1 - _STRAY / 2)))  # single steps far out are no level
    k = np.arange(_LEAST_SIDE, count - _LEAST_SIDE + 1)
    left = np.cumsum(tame)[k - 1]
    place = int(k[np.argmax(left**2 / k + (tame.sum() - left) ** 2 / (count - k))])  # the least squares of two levels
    sides = level[:place], level[place:]
    scatter = max(float(np.median(np.abs(side - np.median(side)))) for side in sides)
    low, high = sorted(float(np.median(side)) for side in sides)
    return low if high - low > _SCATTER * scatter else float(np.median(level))


def slow_over(own_pace: pd.DataFrame, limit: float) -> list[Slow]:
    """Units that are more than *limit* above their usual pace in some steps.

    Those of a single step or of now and then count only where most units have none: else the whole machine has hiccups.
    """
    units = [mine for _, mine in own_pace.groupby(["stage", "replica"])]
    shared = _scatter(own_pace["ratio"].to_numpy(float))
    found = [slow for mine in units if (slow := _of_unit(mine, limit, shared)) is not None]
    fleeting = [slow for slow in found if slow.pattern in ("recurring", "single")]
    if len(fleeting) > max(1, len(units) // _LOUD_NEIGHBOURS):
        found = [slow for slow in found if slow.pattern not in ("recurring", "single")]
    return sorted((slow for slow in found if slow.lost > _LEAST_LOST), key=lambda slow: -slow.lost)


def _scatter(ratio: np.ndarray) -> float:
    """A normal standard deviation by the median deviation of what lies below the usual pace: slow steps do not widen that side."""
    return 1.4826 * float(np.median(1 - ratio[ratio <= 1])) if (ratio <= 1).any() else 0.0


def _of_unit(mine: pd.DataFrame, limit: float, scatter: float) -> Slow | None:
    ratio = mine["ratio"].to_numpy(float)
    least = max(limit, _SCATTER * scatter)
    slow = ratio > 1 + max(least, _SCATTER * _scatter(ratio))
    if (creeping := _creeping(mine, ratio, least)) is not None:
        return creeping
    if not slow.any():
        return None
    place, runs = since(slow), list(_runs(slow))
    at_first = runs[0][0] == 0 and runs[0][1] < len(slow)  # of the first steps: warm-up
    if len(slow) - place >= _LEAST_END and place >= _LEAST_SIDE and _apart(ratio[:place], ratio[place:], limit):
        return _slow(mine, slow & (np.arange(len(slow)) >= place), "since", None, limit)
    if at_first:
        slow[: runs[0][1]] = False
        runs = runs[1:]
    if not runs or slow.mean() > 0.5:
        return None
    seldom, far = slow.mean() <= _SELDOM, bool((ratio[slow] > 1 + _ONE_STEP * limit).all())
    if runs[-1][1] == len(slow) and (runs[-1][1] - runs[-1][0] > 1 or len(runs) < _LEAST_SIDE):
        return None  # at the end nothing tells yet whether it lasts
    longest = max(runs, key=lambda run: run[1] - run[0])
    if longest[1] - longest[0] >= _LEAST_SIDE and longest[1] - longest[0] >= (1 - _STRAY) * slow.sum():
        inside = (np.arange(len(slow)) >= longest[0]) & (np.arange(len(slow)) < longest[1])
        return _slow(mine, inside, "period", None, limit)
    if len(runs) < _LEAST_SIDE:
        return _slow(mine, slow, "single", None, limit) if slow.sum() < _LEAST_SIDE and far else None
    gaps = np.unique(np.diff(mine["step"].to_numpy(np.int64)[[run[0] for run in runs]]))
    return _slow(mine, slow, "recurring", int(gaps[0]) if len(gaps) == 1 else None, limit) if seldom else None


def _apart(before: np.ndarray, after: np.ndarray, limit: float) -> bool:
    """Whether nearly all steps after a change lie well above nearly all before it."""
    return float(np.quantile(after, _STRAY)) > float(np.quantile(before, 1 - _STRAY)) * (1 + limit / 2)


def _creeping(mine: pd.DataFrame, ratio: np.ndarray, limit: float) -> Slow | None:
    """Where the pace rises in the first half of the steps and goes on rising in the second, by more than *limit* from the first quarter to the last."""
    half, quarter = len(ratio) // 2, len(ratio) // 4
    if len(ratio) < _LEAST_CREEP or min(_rises(ratio[:half]), _rises(ratio[-half:])) < _CLEARLY:
        return None
    first = float(np.median(ratio[:quarter]))
    if float(np.median(ratio[-quarter:])) < first * (1 + limit):
        return None
    against = mine.assign(usual_ns=mine["usual_ns"] * first, ratio=ratio / first, own=mine["own"] / first)
    return _slow(against, np.arange(len(ratio)) >= len(ratio) - quarter, "creeping", None, limit)


_CLEARLY = 0.6
"""Rank correlation of pace and step in each half: a change at one step has none in either."""


def _rises(values: np.ndarray) -> float:
    """Rank correlation (Spearman) of values with their place."""
    ranks = pd.Series(values).rank().to_numpy()
    return float(np.corrcoef(ranks, np.arange(len(values)))[0, 1]) if ranks.std() > 0 else 0.0


def _runs(slow: np.ndarray) -> Iterator[tuple[int, int]]:
    """(first, one after the last) of each unbroken run of slow steps."""
    edges = np.flatnonzero(np.diff(np.concatenate(([0], slow.astype(np.int8), [0]))))
    yield from zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)


def _slow(mine: pd.DataFrame, slow: np.ndarray, pattern: Pattern, every: int | None, limit: float) -> Slow | None:
    rows = mine[slow]
    if rows["own"].median() < 1 + limit:  # the others were faster then, it was not slower
        return None
    length = mine["step_ns"].to_numpy(float)
    excess = ((rows["compute_ns"] - rows["usual_ns"]) * rows["micro_batches"]).to_numpy(float)
    rest = ~slow if pattern != "creeping" else ~slow & (np.arange(len(slow)) < slow.sum())
    lost = np.minimum(excess, np.maximum(length[slow] - np.median(length[rest]), 0)).sum()
    over = length[slow].sum() if pattern in ("since", "creeping") else length.sum()
    first = rows.iloc[0]
    return Slow(tuple(first["ranks"]), int(first["stage"]), int(first["replica"]), pattern, rows, len(mine), every, float(lost / over))
