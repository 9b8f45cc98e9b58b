"""A verdict does not depend on how a log was collected: the labelled failures in other prefixes, files, orders, names, dates and wordings.

Each pair of a case and a variation is chosen so that every variation is seen once and every case several times; `tools/sweep_variations.py` tries
all pairs.
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import pipelog.detectors
import tests.wordings  # noqa: F401 - it registers its variations
from pipelog.findings import DETECTORS
from pipelog.registry import load as load_all
from tests.cases import Case, deviations, diagnosed, load
from tests.conftest import FIXTURES
from tests.variations import VARIATIONS, vary

_LEFT_TO_THE_SWEEP = ("beginner's log missing",)
_ALIKE = re.compile(r"(OOM of torch|watchdog of torch|warnings of NCCL|cause: OOM|cause:|split:|torchrun|srun|container|kubectl).*")
"""Variations of one kind, of which every fourth is tried here."""
_OF_FAILURES = ("PL001", "PL103", "PL5", "PL6")
CASES = sorted(p.parent for p in (FIXTURES / "cases").glob("*/truth.json"))


@functools.cache
def case_of(name: str) -> Case:
    return load(FIXTURES / "cases" / name)


def pairs() -> list[tuple[str, str]]:
    """(case, variation): for each variation the case that was used least so far among those that it changes."""
    used = dict.fromkeys((c.name for c in CASES), 0)
    seen: Counter[str] = Counter()
    out = []
    for name in VARIATIONS:
        alike = _ALIKE.match(name)
        seen[alike.group(1) if alike else name] += 1
        if name in _LEFT_TO_THE_SWEEP or (alike and seen[alike.group(1)] % 4 != 1):
            continue
        order = sorted(used, key=lambda case: (used[case], case))
        case = next((c for c in order if vary(case_of(c), name) is not None), None)
        if case is not None:
            used[case] += 1
            out.append((case, name))
    return out


@pytest.fixture(scope="module", autouse=True)
def _rules_of_failures() -> Iterator[None]:
    """The other rules cost half of the time."""
    load_all(pipelog.detectors)
    others = {i: DETECTORS.pop(i) for i in list(DETECTORS) if not i.startswith(_OF_FAILURES)}
    yield
    DETECTORS.update(others)


@pytest.mark.parametrize("name", [c.name for c in CASES])
def test_the_verdict_is_right(name: str, tmp_path: Path) -> None:
    assert deviations(case_of(name), diagnosed(case_of(name), tmp_path)) == []


@pytest.mark.parametrize(("name", "how"), pairs())
def test_the_verdict_stays(name: str, how: str, tmp_path: Path) -> None:
    changed = vary(case_of(name), how)
    assert changed is not None
    assert deviations(changed, diagnosed(changed, tmp_path)) == []
