"""What a rule says: a finding with its severity, its confidence, its place and the lines that show it."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import pandas as pd

from pipelog.registry import Registry


class Severity(StrEnum):
    """How bad it is if true."""

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"


class Confidence(StrEnum):
    """How sure we are."""

    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"


class Status(StrEnum):
    """What became of a rule."""

    FOUND = "found"
    CLEAR = "clear"
    NOT_APPLICABLE = "not-applicable"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Evidence:
    """A line (1 first), or an event of a trace (0 first). text is fetched once, at the end."""

    file: str
    line: int | None = None
    text: str | None = None


@dataclass(frozen=True, slots=True)
class Where:
    """Of what a finding speaks. ranks are global, links pairs of stages, steps the first and the last one concerned."""

    ranks: tuple[int, ...] = ()
    stages: tuple[int, ...] = ()
    hosts: tuple[str, ...] = ()
    links: tuple[tuple[int, int], ...] = ()
    steps: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Advice:
    """What to do, and what to expect of it."""

    action: str
    expected: str | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """One statement of one rule about one subject. title: one sentence with the number and its unit. cost: share of the time of all steps lost."""

    id: str
    name: str
    title: str
    severity: Severity
    confidence: Confidence
    where: Where = field(default_factory=Where)
    evidence: tuple[Evidence, ...] = ()
    advice: tuple[Advice, ...] = ()
    cost: float | None = None
    role: str | None = None

    @property
    def fingerprint(self) -> str:
        """The same for the same statement about the same place, in any run: no steps, no file names."""
        place = [self.id, self.where.ranks, self.where.stages, self.where.hosts, self.where.links]
        return hashlib.sha256(json.dumps(place).encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Detector:
    """A rule: its id and name, the tables it needs, its thresholds with their defaults, its page and its function."""

    id: str
    name: str
    needs: tuple[str, ...]
    page: str
    options: dict[str, float]
    check: Callable[..., Iterable[Finding]]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one rule, with the reason where it could not speak."""

    id: str
    name: str
    status: Status
    reason: str | None = None
    findings: tuple[Finding, ...] = ()
    options: dict[str, float] = field(default_factory=dict)


DETECTORS: Registry[Detector] = Registry()


def detector(id_: str, name: str, *, needs: tuple[str, ...]) -> Callable[[Callable[..., Iterator[Finding]]], Callable[..., Iterator[Finding]]]:
    """Register a rule. The function takes the tables it needs, then its thresholds as keyword arguments with defaults.

    The docstring of its module is the rule's page. It yields findings; a rule that yields none says "clear", so where the data
    cannot carry an answer it raises CannotTell with what is missing.
    """

    def add(function: Callable[..., Iterator[Finding]]) -> Callable[..., Iterator[Finding]]:
        page = (sys.modules[function.__module__].__doc__ or "").strip()
        DETECTORS.add(id_, Detector(id_, name, needs, page, dict(function.__kwdefaults__ or {}), function))
        return function

    return add


def cite(rows: pd.DataFrame, by: str | None = None, most: int = 3, says: Callable[[Any], str] | None = None) -> tuple[Evidence, ...]:
    """The worst few rows (largest *by*) as evidence; rows have the columns file and line.

    says: row → what it shows, for events of traces, whose own words (a kernel, an op and its length) are not what proves the claim.
    """
    if by is not None:
        rows = rows.sort_values(by, ascending=False, kind="stable")
    out: dict[tuple[str, int | None], Evidence] = {}
    for row in rows.itertuples(index=False):
        if not isinstance(row.file, str):
            continue
        number = None if pd.isna(row.line) else int(row.line)
        if (row.file, number) not in out:
            out[row.file, number] = Evidence(row.file, number, says(row) if says is not None else None)
        if len(out) == most:
            break
    return tuple(out.values())


def as_dict(finding: Finding) -> dict[str, Any]:
    """The finding as report.json has it."""
    return {
        "id": finding.id,
        "name": finding.name,
        "severity": finding.severity.value,
        "confidence": finding.confidence.value,
        "role": finding.role,
        "title": finding.title,
        "cost": finding.cost,
        "where": {
            "ranks": list(finding.where.ranks),
            "stages": list(finding.where.stages),
            "hosts": list(finding.where.hosts),
            "links": [list(pair) for pair in finding.where.links],
            "steps": list(finding.where.steps) if finding.where.steps else [],
        },
        "evidence": [{"file": e.file, "line": e.line, "text": e.text} for e in finding.evidence],
        "advice": [{"action": a.action, "expected": a.expected} for a in finding.advice],
        "fingerprint": finding.fingerprint,
    }
