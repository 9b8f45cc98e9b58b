"""Every rule on the cases of fixtures/detectors: some that it must find, some on which it must stay quiet, some that it cannot tell."""

from __future__ import annotations

import math
import tomllib
from typing import Any

import pytest

from pipelog.diagnosis import run_one
from pipelog.findings import DETECTORS, Finding, Status
from tests.conftest import FIXTURES
from tests.given import Given

CORPUS = FIXTURES / "detectors"
FILES = {file.stem: tomllib.loads(file.read_text()) for file in sorted(CORPUS.glob("*.toml"))}
CASES = [pytest.param(rule, case, id=f"{rule}-{name}") for rule, cases in FILES.items() for name, case in cases.items()]
KEYS = ("severity", "confidence", "stages", "ranks", "hosts", "links", "steps", "evidence")


def told(finding: Finding) -> dict[str, Any]:
    """A finding in the words of a case."""
    where = finding.where
    return {
        "severity": finding.severity.value,
        "confidence": finding.confidence.value,
        "stages": list(where.stages),
        "ranks": list(where.ranks),
        "hosts": list(where.hosts),
        "links": [list(pair) for pair in where.links],
        "steps": list(where.steps) if where.steps else [],
        "evidence": [f"{e.file}:{e.line}" if e.line is not None else e.file for e in finding.evidence],
    }


@pytest.mark.parametrize(("rule", "case"), CASES)
def test_rule(rule: str, case: dict[str, Any]) -> None:
    outcome = run_one(DETECTORS[rule], Given(case), case.get("options", {}))  # type: ignore[arg-type]
    if "cannot_tell" in case:
        assert outcome.status is Status.NOT_APPLICABLE, (outcome.status, outcome.reason, [f.title for f in outcome.findings])
        assert case["cannot_tell"] in (outcome.reason or "")
        return
    assert outcome.status is (Status.CLEAR if case.get("quiet") else Status.FOUND), (outcome.reason, [f.title for f in outcome.findings])
    wanted = case.get("finds", [])
    assert len(outcome.findings) == len(wanted), [f.title for f in outcome.findings]
    for finding, want in zip(outcome.findings, wanted, strict=True):
        found = told(finding)
        assert {k: found[k] for k in KEYS if k in want} == {k: want[k] for k in KEYS if k in want}
        for words in want.get("title", []):
            assert words in finding.title
        for words in want.get("advice", []):
            assert any(words in f"{a.action} {a.expected}" for a in finding.advice), finding.advice
        for words in want.get("not_advised", []):
            assert not any(words in f"{a.action} {a.expected}" for a in finding.advice), finding.advice
        if "cost" in want:
            assert finding.cost is not None
            assert want["cost"][0] <= finding.cost <= want["cost"][1]
        assert (finding.id, finding.name) == (rule, DETECTORS[rule].name)
        assert "nan" not in finding.title.replace("nan or inf", "").replace("is nan", "").replace("as nan", "").replace("with nan", "").replace(
            "nan iterations", ""
        ).replace("is nan", "")
        assert finding.cost is None or (math.isfinite(finding.cost) and 0 <= finding.cost <= 1)


@pytest.mark.parametrize("rule", FILES)
def test_a_case_says_one_thing(rule: str) -> None:
    for name, case in FILES[rule].items():
        assert sum(key in case for key in ("finds", "quiet", "cannot_tell")) == 1, name
        assert set(case.get("options", {})) <= set(DETECTORS[rule].options), name
        assert all(set(want) <= {*KEYS, "title", "advice", "not_advised", "cost"} for want in case.get("finds", [])), name


def test_every_rule_has_all_kinds_of_cases() -> None:
    assert set(FILES) == set(DETECTORS), "a rule without its fixtures/detectors/<ID>.toml, or the other way round"
    for rule, cases in FILES.items():
        for kind in ("finds", "quiet", "cannot_tell"):
            assert any(kind in case for case in cases.values()), f"{rule} has no case with {kind!r}"
