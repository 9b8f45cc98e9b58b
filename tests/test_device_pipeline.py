"""A pipeline on GPUs: passes, bubble, imbalance, links and clocks from device work, against a simulation of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

import pipelog
from pipelog.report import Report
from tests.fake_pipeline import Pipeline, simulate, write


def diagnosed(line: Pipeline, folder: Path) -> Report:
    write(line, folder)
    return pipelog.diagnose(pipelog.read(folder))


def true_bubble(line: Pipeline) -> tuple[float, list[float]]:
    """Idle share of the phase: mean over stages, and of each stage."""
    steps = simulate(line)
    passes = [[(b, e) for what, _, b, e in stage if what in ("F", "B")] for stage in steps]
    phase = max(e for stage in passes for _, e in stage) - min(b for stage in passes for b, _ in stage)
    idle = [1 - sum(e - b for b, e in stage) / phase for stage in passes]
    return sum(idle) / len(idle), idle


def found(report: Report, name: str) -> list[pipelog.Finding]:
    return [f for f in report.findings if f.name == name and f.severity is not pipelog.Severity.INFO]


def test_equal_stages(tmp_path: Path) -> None:
    line = Pipeline(4, 8, [2000.0] * 4, [4000.0] * 4)
    report = diagnosed(line, tmp_path)
    mean, each = true_bubble(line)
    bubble = report.metrics["bubble"]
    assert (report.topology["pp"], report.config["micro_batches"]) == (4, 8)
    assert bubble["measured"] == pytest.approx(mean, abs=1e-4)
    assert [s["bubble"] for s in bubble["per_stage"]] == pytest.approx(each, abs=1e-4)
    assert bubble["ideal"] == pytest.approx(3 / 11)
    assert report.metrics["stage_imbalance"]["value"] == pytest.approx(0, abs=1e-6)
    assert not found(report, "stage-imbalance")
    assert not found(report, "communication-stall")
    assert not found(report, "slow-data-loading")


def test_heavy_stage(tmp_path: Path) -> None:
    line = Pipeline(4, 8, [2000.0, 2000.0, 3200.0, 2000.0], [4000.0, 4000.0, 6400.0, 4000.0])
    report = diagnosed(line, tmp_path)
    assert report.metrics["bubble"]["measured"] == pytest.approx(true_bubble(line)[0], abs=1e-4)
    assert report.metrics["stage_imbalance"]["value"] == pytest.approx(9600 / ((3 * 6000 + 9600) / 4) - 1, abs=1e-6)
    assert [f.where.stages for f in found(report, "stage-imbalance")] == [(2,)]
    assert not found(report, "communication-stall")


@pytest.mark.parametrize("edge", [0, 1, 2])
def test_late_sends_are_charged_to_their_link(tmp_path: Path, edge: int) -> None:
    line = Pipeline(4, 8, [2000.0] * 4, [4000.0] * 4, late={edge: 1500.0})
    report = diagnosed(line, tmp_path)
    assert [f.where.links for f in found(report, "communication-stall")] == [((edge, edge + 1),)]
    assert not found(report, "stage-imbalance")
    parts = {p["part"]: p["share"] for p in report.metrics["phase_breakdown"]}
    assert parts["stall"] > 0.05
    assert parts["other"] < 0.03


def test_hosts_with_clocks_of_their_own(tmp_path: Path) -> None:
    """Two hosts whose clocks differ by 5 ms: the messages tie them, so the phase and the bubble come out as on one clock."""
    line = Pipeline(4, 8, [2000.0] * 4, [4000.0] * 4, hosts=[("node-0", 0.0), ("node-0", 0.0), ("node-1", 5000.0), ("node-1", 5000.0)])
    report = diagnosed(line, tmp_path)
    assert report.metrics["bubble"]["scope"] == "run"
    assert report.metrics["bubble"]["measured"] == pytest.approx(true_bubble(line)[0], abs=0.01)
    assert not found(report, "communication-stall")
    assert any("one clock" in note for note in report.notes)


def test_one_stage_alone_claims_nothing_about_others(tmp_path: Path) -> None:
    line = Pipeline(4, 8, [2000.0] * 4, [4000.0] * 4)
    for path in write(line, tmp_path)[1:]:
        path.unlink()
    (tmp_path / "train.log").write_text("Using topology: {" + ", ".join(f"ProcessCoord(pipe={s}, data=0): {s}" for s in range(4)) + "}\n")
    report = pipelog.diagnose(pipelog.read(tmp_path))
    bubble = report.metrics["bubble"]
    assert bubble["scope"] == "stage"
    assert [s["stage"] for s in bubble["per_stage"]] == [0]
    assert bubble["measured"] == pytest.approx(true_bubble(line)[1][0], abs=0.01)
    assert report.metrics["stage_imbalance"]["value"] is None
    assert not [f for f in report.findings if set(f.where.stages) - {0} or f.where.links]
