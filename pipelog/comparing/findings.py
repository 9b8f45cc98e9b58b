"""Findings gained, gone, worse, better; and those that only one run could have, since the other has no data for the rule."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pipelog.findings import Finding, Severity, Status
from pipelog.report import Report

_RANK = {Severity.INFO: 0, Severity.WARNING: 1, Severity.ERROR: 2}
_LEAST_COST = 0.02
"""A cost that changed by a smaller share of the time is the same."""
ORDER = ("gained", "worse", "gone", "better", "only B could tell", "only A could tell", "same")


@dataclass(frozen=True, slots=True)
class Changed:
    """One of ORDER, and the finding of each run, null where there is none."""

    what: str
    a: Finding | None
    b: Finding | None

    @property
    def shown(self) -> Finding:
        """That of B, else that of A."""
        found = self.b or self.a
        assert found is not None
        return found


def changed(a: Report, b: Report) -> tuple[Changed, ...]:
    """All findings of both, matched by rule and place; hosts and steps are other ones in every run."""
    return tuple(sorted(_matched(a, b), key=lambda c: (ORDER.index(c.what), -_RANK[c.shown.severity], -(c.shown.cost or 0.0), c.shown.id)))


def _matched(a: Report, b: Report) -> Iterator[Changed]:
    left: dict[tuple[object, ...], list[Finding]] = {}
    for finding in a.findings:
        left.setdefault(_place(finding), []).append(finding)
    for finding in b.findings:
        before = left.get(_place(finding))
        if before:
            yield _both(before.pop(0), finding)
        else:
            yield Changed("gained" if _looked(a, finding.id) else "only B could tell", None, finding)
    for rest in left.values():
        for finding in rest:
            yield Changed("gone" if _looked(b, finding.id) else "only A could tell", finding, None)


def _place(finding: Finding) -> tuple[object, ...]:
    return finding.id, finding.where.ranks, finding.where.stages, finding.where.links


def _both(a: Finding, b: Finding) -> Changed:
    grade = _RANK[b.severity] - _RANK[a.severity]
    more = (b.cost or 0.0) - (a.cost or 0.0) if a.cost is not None and b.cost is not None else 0.0
    if grade == 0 and abs(more) < _LEAST_COST:
        return Changed("same", a, b)
    return Changed("worse" if grade > 0 or (grade == 0 and more > 0) else "better", a, b)


def _looked(report: Report, rule: str) -> bool:
    """Whether the rule had data."""
    return any(o.id == rule and o.status in (Status.CLEAR, Status.FOUND) for o in report.outcomes)
