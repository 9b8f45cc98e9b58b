"""report.json follows its schema and reads back as the same report."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import jsonschema
import pytest

import pipelog
import pipelog.tables
from pipelog.errors import BadReport
from pipelog.findings import Confidence, Evidence, Finding, Severity, Status, Where
from pipelog.registry import load
from pipelog.report import Report
from pipelog.schema import text
from pipelog.tables import TABLES
from tests.conftest import FIXTURES

RUNS = sorted(p.parent for p in (FIXTURES / "runs").glob("*/truth.json"))


@pytest.fixture(scope="module", params=RUNS, ids=lambda p: p.name)
def report(request: pytest.FixtureRequest) -> Report:
    return pipelog.diagnose(pipelog.read(request.param), name=request.param.name)


def test_document_follows_the_schema(report: Report) -> None:
    validator = jsonschema.Draft202012Validator(json.loads(text()))
    errors = [f"{'/'.join(map(str, e.absolute_path))}: {e.message}" for e in validator.iter_errors(json.loads(report.to_json()))]
    assert not errors


def test_reads_back_as_the_same_document(report: Report) -> None:
    again = Report.from_json(report.to_json())
    assert again.to_dict() == report.to_dict()
    assert again.findings == report.findings


def test_shares_sum_to_one(report: Report) -> None:
    for name in ("phase_breakdown", "step_breakdown"):
        shares = [part["share"] for part in report.metrics[name]]
        assert not shares or sum(shares) == pytest.approx(1)
        assert all(0 <= share <= 1 for share in shares)


def test_every_evidence_names_an_input(report: Report) -> None:
    paths = {i["path"] for i in report.inputs}
    assert {e.file for f in report.findings for e in f.evidence} <= paths


@pytest.mark.parametrize("broken", ["", "[]", "{}", '{"schema": "pipelog.report/1"}', '{"schema": "pipelog.report/2"}', "\0"])
def test_other_documents_are_refused(broken: str) -> None:
    with pytest.raises(BadReport):
        Report.from_json(broken)


def test_fingerprint_leaves_out_steps_and_files() -> None:
    def finding(**where: object) -> Finding:
        return Finding("PL201", "stage-imbalance", "x", Severity.WARNING, Confidence.HIGH, Where(**where))  # type: ignore[arg-type]

    one = finding(stages=(2,), steps=(1, 9))
    assert one.fingerprint == finding(stages=(2,), steps=(3, 4)).fingerprint
    assert one.fingerprint != finding(stages=(1,), steps=(1, 9)).fingerprint
    moved = Finding("PL201", "stage-imbalance", "y", Severity.INFO, Confidence.LOW, Where(stages=(2,)), (Evidence("elsewhere.log", 3),))
    assert moved.fingerprint == one.fingerprint


def test_schema_is_valid_and_described_on_the_command_line() -> None:
    jsonschema.Draft202012Validator.check_schema(json.loads(text()))
    assert (Path(pipelog.__file__).parent / "schema" / "report-1.json").exists()


def test_a_fault_inside_a_table_is_told_once_and_costs_no_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """stage_time fails, and so do the bubble and the balance that need it: one note names the first."""

    def broken(*_: Any) -> NoReturn:
        raise ZeroDivisionError("no stage")

    load(pipelog.tables)
    monkeypatch.setitem(TABLES, "stage_time", replace(TABLES["stage_time"], compute=broken))
    found = pipelog.diagnose(pipelog.read(FIXTURES / "runs" / "heavy-stage2"))
    assert [n for n in found.notes if n.startswith("pipelog failed on the table stage_time (ZeroDivisionError: no stage)")]
    assert sum("pipelog failed" in n for n in found.notes) == 1
    assert next(o.status for o in found.outcomes if o.name == "stage-imbalance") is Status.FAILED


@pytest.mark.parametrize("name", ["report-1.json", "plan-1.json", "diff-1.json"])
def test_every_field_of_a_schema_says_what_it_is(name: str) -> None:
    """Also of those that refer to a definition, which says what the values are, but not what they are of."""

    def bare(part: dict[str, Any], path: str) -> Iterator[str]:
        for key, given in part.get("properties", {}).items():
            if "description" not in given:
                yield f"{path}.{key}"
            yield from bare(given, f"{path}.{key}")
        for key, given in part.get("$defs", {}).items():
            yield from bare(given, key)
        for given in filter(None, [part.get("items"), *part.get("allOf", []), *part.get("oneOf", []), *part.get("anyOf", [])]):
            yield from bare(given, path)

    assert list(bare(json.loads(text(name)), "")) == []
