"""Findings with their anchors on the page, so that charts, advice and lines can point to them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from pipelog.findings import Finding
from pipelog.report import Report


@dataclass(frozen=True, slots=True)
class Place:
    """A finding and its anchor: PL201-1 is the first finding of PL201."""

    anchor: str
    finding: Finding

    @property
    def first(self) -> bool:
        """Whether it is the first of its rule."""
        return self.anchor.endswith("-1")


@dataclass(frozen=True, slots=True)
class Places:
    """All findings of a report in the order of the page."""

    every: tuple[Place, ...]

    def of(self, *names: str) -> tuple[Place, ...]:
        """Those of the rules with these names."""
        return tuple(p for p in self.every if p.finding.name in names)

    def titles(self, *names: str) -> tuple[str, ...]:
        """What the rules with these names say, as sentences."""
        return tuple(sentence(p.finding.title) for p in self.of(*names))


def placed(report: Report) -> Places:
    """The findings of *report*, numbered within their rules."""
    seen: Counter[str] = Counter()
    out = []
    for finding in report.findings:
        seen[finding.id] += 1
        out.append(Place(f"{finding.id}-{seen[finding.id]}", finding))
    return Places(tuple(out))


def stages(places: Iterable[Place]) -> set[int]:
    """The stages that these findings speak of."""
    return {s for p in places for s in p.finding.where.stages}


def sentence(text: str) -> str:
    """With a capital and a full stop, and no number parted from its unit."""
    whole = kept(text)
    return f"{capital(whole)}{'' if whole.endswith(('.', '!', '?')) else '.'}" if whole else ""


_NAME = re.compile(r"[^\s]*[\d_./`=][^\s]|(?:py-spy|nvidia-smi|rocm-smi|dmesg|sacct|srun|kubectl|torchrun|ssh)\b")


def capital(text: str) -> str:
    """With a capital, but for names that begin a sentence: hosts, commands, variables (`gpu-b07`, `py-spy`, `train_batch`)."""
    return text if _NAME.match(text) else f"{text[:1].upper()}{text[1:]}"


_NUMBER = re.compile(r"(\d) (?=(?:[mµn]?s|[KMGT]?i?B|min|h)\b|%)")

_COUNTED = re.compile(r"\b([Ss]tep|[Rr]ank|[Ss]tage|[Ss]tart) (?=\d)")


def kept(text: str) -> str:
    """*text* whose numbers stay on the line of their units, and of what they count."""
    return _COUNTED.sub("\\1\N{NO-BREAK SPACE}", _NUMBER.sub("\\1\N{NO-BREAK SPACE}", text))
