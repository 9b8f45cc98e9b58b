"""Every log under fixtures/logs gives exactly its golden rows; no text at all makes a parser raise."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pipelog.parsing import Records
from pipelog.reading.files import Source
from pipelog.reading.logs import read_log
from tests.conftest import FIXTURES, ROOT

LOGS = sorted((FIXTURES / "logs").glob("*/*.log"))


def golden_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a log, without nulls and the file name, in order of line, kind and name."""
    table, given = read_log(Source(path, path.name, path.stat().st_size, 0))
    rows = [{k: v for k, v in row.items() if v is not None and k != "file"} for row in table.to_pylist()]
    rows.sort(key=lambda r: (r["line"], r["kind"], r["name"], r.get("rank", -1), str(r)))
    return rows + [{"skipped": s.line, "why": s.why} for s in given.skipped]


@pytest.mark.parametrize("log", LOGS, ids=lambda p: f"{p.parent.name}-{p.stem}")
def test_log_gives_its_golden_rows(log: Path, *, update: bool) -> None:
    golden = log.with_suffix(".events.jsonl")
    lines = [json.dumps(row, ensure_ascii=False) for row in golden_rows(log)]  # as text, since a NaN equals no NaN
    assert update or golden.exists(), "no golden rows yet: run this test with --update, and look at what it writes"
    if update:
        golden.write_text("".join(f"{line}\n" for line in lines))
    assert lines == golden.read_text().splitlines()


def test_docs_events_has_every_kind_of_row_and_every_name_of_an_error() -> None:
    written = [json.loads(line) for log in LOGS for line in log.with_suffix(".events.jsonl").read_text().splitlines()]
    known = set(re.findall(r"`([^`]+)`", (ROOT / "docs" / "events.md").read_text()))
    wanted = {r["kind"] for r in written if "kind" in r} | {
        r["name"] for r in written if r.get("kind") in ("error", "overflow", "checkpoint", "start")
    }
    assert not wanted - known, "docs/events.md lacks their rows"


def test_a_column_that_the_event_table_has_not_is_a_fault_of_the_parser() -> None:
    """It would be dropped unseen."""
    with pytest.raises(TypeError, match="no column setp"):
        Records({}, {"line": pa.array([1]), "rank": pa.array([None], pa.int32())}).rows("step", "own", setp=pa.array([7]))
