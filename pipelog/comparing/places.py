"""The two runs stage by stage, rank by rank, link by link; only where the places are the same ones."""

from __future__ import annotations

from dataclasses import dataclass

from pipelog.comparing.because import busy
from pipelog.comparing.side import Side, number
from pipelog.report import JSON


@dataclass(frozen=True, slots=True)
class OfStage:
    """A stage in one run: compute of a micro-batch, idle share, peak; null where not known."""

    compute_s: float | None
    idle: float | None
    peak_bytes: int | None


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage in both runs."""

    stage: int
    a: OfStage
    b: OfStage


@dataclass(frozen=True, slots=True)
class Rank:
    """Compute of a micro-batch of a rank, whose stage and replica are the same in both."""

    rank: int
    stage: int
    replica: int
    a_s: float
    b_s: float


@dataclass(frozen=True, slots=True)
class Link:
    """A message from stage to stage: its transfer, and how long the sender is idle right before."""

    source: int
    target: int
    a_transfer_s: float
    b_transfer_s: float
    a_late_s: float
    b_late_s: float


def compute_s(one: Side) -> float | None:
    """Effective compute time of a step: mean over the stages that were measured."""
    return sum(one.busy_s.values()) / len(one.busy_s) if one.busy_s else None


def slowest_s(one: Side) -> float | None:
    """Compute of a micro-batch on the slowest stage that was measured."""
    return max(one.busy_s.values()) / one.m if one.busy_s and one.m else None


def stages(a: Side, b: Side) -> tuple[Stage, ...]:
    """Nothing where the numbers of stages differ."""
    if a.pp is None or a.pp != b.pp:
        return ()
    both = busy(a, b)
    numbers = sorted(both.keys() | (a.peak_bytes.keys() & b.peak_bytes.keys()))
    same = a.basis == b.basis
    return tuple(
        Stage(
            n,
            OfStage(both[n][0] if n in both else None, a.idle.get(n) if same else None, a.peak_bytes.get(n)),
            OfStage(both[n][1] if n in both else None, b.idle.get(n) if same else None, b.peak_bytes.get(n)),
        )
        for n in numbers
    )


def ranks(a: Side, b: Side) -> tuple[Rank, ...]:
    """Ranks that compute the same stage of the same replica in both, those that changed most first."""
    if (a.pp, a.dp, a.tp) != (b.pp, b.dp, b.tp) or a.basis != b.basis:
        return ()
    left, right = ({_numbers(r, "rank", "stage", "replica"): number(r["compute_ms"]) for r in s.report.charts.get("peers") or []} for s in (a, b))
    made = [Rank(key[0], key[1], key[2], x / 1e3, y / 1e3) for key in left.keys() & right.keys() if (x := left[key]) and (y := right[key])]
    return tuple(sorted(made, key=lambda r: (-abs(r.b_s / r.a_s - 1), r.rank)))


def links(a: Side, b: Side) -> tuple[Link, ...]:
    """Links whose messages were recorded in both."""
    if a.pp != b.pp:
        return ()
    left, right = ({_numbers(x, "source", "target"): x for x in s.report.charts.get("links") or []} for s in (a, b))
    return tuple(
        Link(*key, *((number(x[key][name]) or 0.0) / 1e3 for name in ("transfer_ms", "late_ms") for x in (left, right)))
        for key in sorted(left.keys() & right.keys())
    )


def _numbers(row: JSON, *names: str) -> tuple[int, ...]:
    wrong = [n for n in names if type(row[n]) is not int or row[n] < 0]
    if wrong:
        raise ValueError(f"{wrong[0]} is no number of a place")
    return tuple(row[n] for n in names)
