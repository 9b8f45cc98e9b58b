"""Why one run is slower: which parts of the step grew, on which stage or link; else what a rule found in one of them alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pipelog._text import count, listed, percent, seconds
from pipelog.comparing.findings import Changed
from pipelog.comparing.side import Side
from pipelog.comparing.time import LEAST, Change
from pipelog.comparing.words import signed
from pipelog.findings import Finding


@dataclass(frozen=True, slots=True)
class Reason:
    """A sentence, and whether it explains the difference or only says why nothing does."""

    says: str
    explains: bool


@dataclass(frozen=True, slots=True)
class Part:
    """Seconds of a part of the step in each run: of a step, or of a sample where the batches differ."""

    name: str
    a_s: float
    b_s: float

    @property
    def more_s(self) -> float:
        """What B needs more."""
        return self.b_s - self.a_s


_LEAST_PART = 0.2
"""A part that makes less of the difference is not its reason."""
_LEAST_STAGE = 0.05
_MOST = 2
_SLOW = ("stage-imbalance", "communication-stall", "straggler-rank", "slow-data-loading")
"""Rules whose finding takes time from a step; a bubble is what these make."""
_LINKS = ("stalls of a link", "transfers")
_STAGES = ("waiting for unequal stages", "compute", "recomputation")


def parts(a: Side, b: Side) -> tuple[Part, ...]:
    """Parts of the step of both, the ones that changed most first; nothing where one is not known. A step's where the batches are the same, else a sample's."""
    if a.parts is None or b.parts is None:
        return ()
    by = (a.batch, b.batch) if a.batch and b.batch and a.batch != b.batch else (1, 1)
    names = dict.fromkeys([*a.parts, *b.parts])
    made = [Part(n, a.parts.get(n, 0.0) / by[0], b.parts.get(n, 0.0) / by[1]) for n in names]
    return tuple(sorted((p for p in made if p.a_s or p.b_s), key=lambda p: -abs(p.more_s)))


def reasons(a: Side, b: Side, time: Change, found: tuple[Changed, ...]) -> tuple[Reason, ...]:
    """The reasons of a difference, strongest first; where nothing explains it, one that says why."""
    if not (time.faster or time.slower):
        return ()
    made = [*_of_parts(a, b, time, found), *_of_steps(time, found), *_of_findings(time, found), *_of_schedule(a, b, time)]
    made += [*_of_one_stage(a, b, time), *_one_sided(time, found)]
    if not any(r.explains for r in made):
        made = [*made, Reason(_why_no_parts(a, b), explains=False)]
    return tuple(made)


def _of_parts(a: Side, b: Side, time: Change, found: tuple[Changed, ...]) -> Iterator[Reason]:
    every = parts(a, b)
    total = sum(p.more_s for p in every)
    if not every or total == 0 or (total > 0) != time.slower:
        return
    loud = [p for p in every if p.more_s / total >= _LEAST_PART][:_MOST]
    if not loud:
        yield Reason("no single part of the step makes a fifth of the difference", explains=True)
        return
    per = " a sample" if time.per_sample else ""
    places = [_where(p.name, a, b, found, slower=time.slower) for p in loud]
    said = [
        f"{signed(p.more_s)}{per} {p.name}{place if place not in places[:n] else ''}" for n, (p, place) in enumerate(zip(loud, places, strict=True))
    ]
    covered = sum(p.more_s for p in loud) / total
    against = [f"{signed(p.more_s)}{per} {p.name}" for p in every if p.more_s / total <= -_LEAST_PART][:_MOST]
    most = "most of it" if covered > 0.5 else "the largest part"
    less = f", against {' and '.join(against)}" if against else ""
    yield Reason(f"{most} is {' and '.join(said)}{less}", explains=True)


def _where(name: str, a: Side, b: Side, found: tuple[Changed, ...], *, slower: bool) -> str:
    """The stage or link behind a part."""
    if name in _STAGES:
        return _stage(a, b, slower=slower)
    worse = [f for c in found if (f := c.b if slower else c.a) is not None]
    if name in _LINKS:
        links = next((f.where.links for f in worse if f.where.links), ())
        return f" (between stages {' and '.join(f'{x} and {y}' for x, y in links)})" if links else ""
    late = next((f for f in worse if f.name == "slow-data-loading"), None) if name == "late data" else None
    if late and late.where.stages:
        return f" (stage {listed(late.where.stages)})"
    return ""


def _stage(a: Side, b: Side, *, slower: bool) -> str:
    """The stage whose compute of a micro-batch changed most in the direction of the difference."""
    both = busy(a, b) if a.micro == b.micro else {}
    changes = [(y / x - 1, n, x, y) for n, (x, y) in both.items()]
    ratio, n, x, y = max(changes, key=lambda c: c[0] if slower else -c[0], default=(0.0, 0, 0.0, 0.0))
    if abs(ratio) < _LEAST_STAGE or (ratio > 0) != slower:
        return ""
    return f" (stage {n} computes {seconds(y * 1e9)} a micro-batch instead of {seconds(x * 1e9)})"


def busy(a: Side, b: Side) -> dict[int, tuple[float, float]]:
    """Compute of a micro-batch in seconds by stage, of the stages that both tell; nothing where they were measured otherwise, or the stages are other ones."""
    if a.basis != b.basis or a.pp != b.pp or not a.m or not b.m:
        return {}
    return {n: (a.busy_s[n] / a.m, b.busy_s[n] / b.m) for n in sorted(a.busy_s.keys() & b.busy_s.keys())}


def _of_steps(time: Change, found: tuple[Changed, ...]) -> Iterator[Reason]:
    """A step time that changed for good in the slower run alone."""
    for finding in _only(found, slower=time.slower):
        if finding.name == "throughput-drop":
            yield Reason(f"in {'B' if time.slower else 'A'} alone, {finding.title}", explains=True)


def _of_findings(time: Change, found: tuple[Changed, ...]) -> Iterator[Reason]:
    """What a rule found in the slower run alone, where the other was looked at, too."""
    for finding in _only(found, slower=time.slower):
        if finding.cost and finding.name in _SLOW:
            where = "new in B" if time.slower else "gone in B"
            yield Reason(f"{where}: {finding.title} (costs {percent(finding.cost)} of the time)", explains=True)


def _of_schedule(a: Side, b: Side, time: Change) -> Iterator[Reason]:
    """Another number of micro-batches fills and drains the pipeline more or less often for a sample."""
    if time.schedule is None or a.m == b.m or (time.schedule - 1) / (time.ratio - 1) < _LEAST_PART:
        return
    more = f"{percent(abs(time.schedule - 1))} {'more' if time.schedule > 1 else 'less'}"
    yield Reason(f"{b.m} micro-batches instead of {a.m} alone make {more} for a sample: the pipeline fills and drains once a step", explains=True)


def _one_sided(time: Change, found: tuple[Changed, ...]) -> Iterator[Reason]:
    """What one run shows and the other has no data to tell: no reason, but where to look."""
    slow, other = ("B", "A") if time.slower else ("A", "B")
    for c in found:
        if c.what == f"only {slow} could tell" and c.shown.name in _SLOW and c.shown.severity != "info":
            yield Reason(f"of {slow} alone it is known: {c.shown.title}; {other} has no data to tell whether it was so there, too", explains=False)


def _only(found: tuple[Changed, ...], *, slower: bool) -> list[Finding]:
    return [f for c in found if c.what == ("gained" if slower else "gone") and (f := c.shown).severity != "info"]


def _of_one_stage(a: Side, b: Side, time: Change) -> Iterator[Reason]:
    """What timers of rank 0 tell: whether its own stage computes longer."""
    both = busy(a, b)
    if len(both) != 1 or (a.pp or 1) < 2 or a.micro != b.micro:
        return
    ((n, (x, y)),) = both.items()
    if abs(y / x - 1) <= min(_LEAST_STAGE, max(LEAST, _LEAST_PART * abs(time.ratio - 1))):
        other = "; the difference lies in other stages, messages or work outside the pipeline" if a.m == b.m else ""
        yield Reason(f"stage {n}, the only one measured, computes as long as before ({seconds(y * 1e9)} a micro-batch){other}", explains=False)
    else:
        yield Reason(
            f"stage {n}, the only one measured of {count(a.pp or 1, 'stage')}, computes {seconds(y * 1e9)} a micro-batch instead of {seconds(x * 1e9)}",
            explains=False,
        )


def _why_no_parts(a: Side, b: Side) -> str:
    missing = [f"in {s.label} {s.why_no_parts}" for s in (a, b) if s.parts is None]
    return "; ".join(missing) or "the parts of the step that were recorded do not show it"
