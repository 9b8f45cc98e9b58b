"""Tables of operations: read, replayed, and what each part costs, against the figures of the tool that the traces come with."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pipelog
import pipelog.replay
from pipelog.registry import load
from pipelog.replay.operations import Operations
from pipelog.replay.slowdown import mitigated, of_operations
from pipelog.tables import CannotTell, Tables
from tests.conftest import FIXTURES

load(pipelog.replay)

SET = FIXTURES / "straggler"
EXPECTED = json.loads((SET / "expected.json").read_text())["ST"]


def jobs(path: Path) -> list[Operations]:
    return Tables(pipelog.read(path, jobs=1))["operations"]  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def job() -> Operations:
    (found,) = jobs(SET)
    return found


# ---- the real job


def test_every_row_is_read() -> None:
    events = pipelog.read(SET / "trace-ST.parquet", jobs=1)
    (file,) = events.inputs
    assert (file.kind, file.events, file.skipped) == ("trace", 6784 + 1, [])
    rows = (
        events.table.select(["name", "stage", "replica", "rank", "step", "micro_batch", "start_ns", "dur_ns", "value", "line"])
        .slice(0, 1)
        .to_pylist()
    )
    first = {"name": "backward-compute", "stage": 0, "replica": 0, "rank": 0, "step": 23, "micro_batch": 0, "value": 0.0, "line": 0}
    assert rows[0] | first == rows[0]
    assert rows[0]["start_ns"] == pytest.approx(0.848672e9, abs=1e3)
    assert rows[0]["dur_ns"] == pytest.approx(0.138680e9, abs=1e3)


def test_step_length_as_recorded_and_replayed(job: Operations) -> None:
    assert job.observed().mean() / 1e9 == pytest.approx(EXPECTED["T_observed_s"], rel=1e-6)
    assert job.length(job.own).mean() / 1e9 == pytest.approx(EXPECTED["T_s"], rel=0.002)
    assert (len(job.steps), job.dropped, len(job.name)) == (32, 0, 6784 // 32)


def test_slowdown_is_the_reference_s(job: Operations) -> None:
    found = of_operations(job)
    assert found.slowdown == pytest.approx(EXPECTED["S"], rel=0.002)
    assert found.ideal_ns / 1e9 == pytest.approx(EXPECTED["T_ideal_s"], rel=0.002)
    assert found.error == pytest.approx(1 - EXPECTED["T_s"] / EXPECTED["T_observed_s"], abs=0.002)
    assert found.last_stage == pytest.approx(EXPECTED["M_S"], abs=0.02)
    assert found.slowest_workers == pytest.approx(EXPECTED["M_W"], abs=0.005)
    assert found.workers == ((1, 3),)


@pytest.mark.parametrize(("of", "key"), [("kind", "S_t"), ("stage", "S_stage"), ("replica", "S_dp_rank")])
def test_slowdown_of_each_part_is_the_reference(job: Operations, of: str, key: str) -> None:
    effects = of_operations(job).effects
    mine = effects[effects["of"] == of].astype({of: str}).set_index(of)["slowdown"]
    assert set(mine.index) == set(EXPECTED[key])
    for part, value in EXPECTED[key].items():
        assert mine[part] == pytest.approx(value, rel=0.002), part


def test_the_last_stage_is_the_cause(job: Operations) -> None:
    effects = of_operations(job).effects
    assert effects[effects["of"] == "stage"].sort_values("cost")["stage"].iloc[-1] == 3


def test_the_report_says_what_the_source_says() -> None:
    """Stage 3 is the cause; no worker is. 2.2144 s is the mean step, the median lies beside it; busy and phase by hand from the rows of step 23."""
    report = pipelog.diagnose(pipelog.read(SET, jobs=1))
    found = {f.name: f for f in report.findings}
    assert found["stage-imbalance"].where.stages == (3,)
    assert "straggler-rank" not in found
    assert (report.topology["pp"], report.topology["tp"], report.config["micro_batches"]) == (4, None, 4)
    assert report.metrics["step_time_s"]["median"] == pytest.approx(2.2144, rel=0.005)
    assert report.metrics["replay"]["slowdown"] == pytest.approx(EXPECTED["S"], rel=0.002)
    assert report.metrics["replay"]["file"] == "trace-ST.parquet"
    assert report.metrics["what_if"] == []
    critical = report.metrics["replay"]["critical"]
    assert sum(c["share"] for c in critical) == pytest.approx(1, abs=0.02)
    assert (critical[0]["stage"], critical[0]["instruction"]) == (3, "backward-compute")
    worker = next(e for e in report.metrics["replay"]["effects"] if e["of"] == "worker")
    assert (worker["stage"], worker["replica"]) == (3, 1)
    assert worker["slowdown"] == pytest.approx(EXPECTED["M_W_parts"]["tadd"] / EXPECTED["T_ideal_s"], rel=0.002)
    raw = pq.read_table(SET / "trace-ST.parquet").to_pandas()
    raw = raw[raw["optype"].isin(["forward-compute", "backward-compute"])].astype({"start_ts": float, "duration": float})
    phase = raw.groupby(["step", "dp_rank"]).apply(lambda r: (r["start_ts"] + r["duration"]).max() - r["start_ts"].min(), include_groups=False)
    busy = raw.groupby(["step", "dp_rank"])["duration"].sum() / 4
    assert report.metrics["bubble"]["measured"] == pytest.approx((1 - busy / phase).groupby("step").mean().median(), abs=1e-4)


# ---- made ones


def table(rows: list[tuple[int, int, int, str, float, float, int]]) -> pa.Table:
    return pa.Table.from_pandas(pd.DataFrame(rows, columns=["step", "stage", "dp_rank", "optype", "start_ts", "duration", "seq_id"]))


def two_stages(forward: float = 1.0, backward: float = 2.0, step: int = 1) -> list[tuple[int, int, int, str, float, float, int]]:
    """One micro-batch through two stages, messages of a quarter of a second: the receiver waits from the beginning of the step."""
    f, b, w = forward, backward, 0.25
    return [
        (step, 0, 0, "forward-compute", 0.0, f, 0),
        (step, 0, 0, "forward-send", f, w, 0),
        (step, 1, 0, "forward-recv", 0.0, f + w, 0),
        (step, 1, 0, "forward-compute", f + w, f, 0),
        (step, 1, 0, "backward-compute", 2 * f + w, b, 0),
        (step, 1, 0, "backward-send", 2 * f + b + w, w, 0),
        (step, 0, 0, "backward-recv", f + w, f + b + w, 0),
        (step, 0, 0, "backward-compute", 2 * f + b + 2 * w, b, 0),
    ]


def test_waiting_is_left_out_of_what_a_message_takes(tmp_path: Path) -> None:
    pq.write_table(table(two_stages()), tmp_path / "ops.parquet")
    (made,) = jobs(tmp_path)
    own = dict(zip(zip(made.name, made.stage, strict=True), made.own[:, 0], strict=True))
    for message in (("forward-send", 0), ("forward-recv", 1), ("backward-send", 1), ("backward-recv", 0)):
        assert own[message] == 250_000_000
    assert made.length(made.own).tolist() == made.observed().tolist() == [2 * 1e9 + 4 * 1e9 + 0.5e9]


@given(st.integers(1, 8), st.integers(1, 8), st.integers(1, 3))
@settings(max_examples=20)
def test_alike_operations_have_no_slowdown(tmp_path_factory: pytest.TempPathFactory, forward: int, backward: int, steps: int) -> None:
    path = tmp_path_factory.mktemp("ops")
    pq.write_table(table([row for step in range(steps) for row in two_stages(forward / 4, backward / 4, step)]), path / "ops.parquet")
    (made,) = jobs(path)
    found = of_operations(made)
    assert found.slowdown == pytest.approx(1)
    assert found.effects["cost"].abs().max() == pytest.approx(0)
    assert found.last_stage is None


def test_a_stage_twice_as_slow_by_hand(tmp_path: Path) -> None:
    """Stage 1 computes 6 instead of 3: T = 1 + 2 + 6 + messages; ideal 4.5 a stage; alone as measured it costs nothing more than T."""
    rows = [
        (1, 0, 0, "forward-compute", 0.0, 1.0, 0), (1, 1, 0, "forward-compute", 1.0, 2.0, 0),
        (1, 1, 0, "backward-compute", 3.0, 4.0, 0), (1, 0, 0, "backward-compute", 7.0, 2.0, 0),
        (1, 0, 0, "forward-send", 1.0, 0.0, 0), (1, 1, 0, "forward-recv", 0.0, 1.0, 0),
        (1, 1, 0, "backward-send", 7.0, 0.0, 0), (1, 0, 0, "backward-recv", 1.0, 6.0, 0),
    ]  # fmt: skip
    pq.write_table(table(rows), tmp_path / "ops.parquet")
    found = of_operations(jobs(tmp_path)[0])
    assert (found.replayed_ns, found.ideal_ns) == (9e9, 9e9)  # one micro-batch: everything is in one chain
    stage = found.effects[found.effects["of"] == "stage"].set_index("stage")
    assert stage.loc[1, "slowdown"] == pytest.approx((1.5 + 3 + 6) / 9)
    assert stage.loc[1, "cost"] == pytest.approx(1 - 7.5 / 9)


def test_steps_with_other_operations_are_left_out(tmp_path: Path) -> None:
    rows = [*two_stages(), *two_stages(step=2), *two_stages(step=3)[:-1]]
    pq.write_table(table(rows), tmp_path / "ops.parquet")
    (made,) = jobs(tmp_path)
    assert (made.steps.tolist(), made.dropped) == ([1, 2], 1)


def test_rows_without_a_time_are_listed_and_words_are_no_numbers(tmp_path: Path) -> None:
    rows = two_stages()
    rows[0] = (*rows[0][:5], float("nan"), 0)
    rows[3] = (*rows[3][:5], -1.0, 0)
    pq.write_table(table(rows), tmp_path / "ops.parquet")
    (file,) = pipelog.read(tmp_path, jobs=1).inputs
    assert (file.events, [s.why for s in file.skipped]) == (6 + 1, ["2 rows without a step, a place or a time"])
    words = table(two_stages()).set_column(4, "start_ts", pa.array(["soon"] * 8))
    pq.write_table(words, tmp_path / "ops.parquet")
    (file,) = pipelog.read(tmp_path, jobs=1).inputs
    assert file.events == 0
    assert "cannot be decoded" in file.skipped[0].why


def test_steps_and_stages_are_those_of_the_rows(tmp_path: Path) -> None:
    """Two steps of 6.5 s; forward 1 s and backward 2 s a stage, so half a bubble and more."""
    pq.write_table(table([*two_stages(), *two_stages(step=4)]), tmp_path / "ops.parquet")
    tables = Tables(pipelog.read(tmp_path, jobs=1))
    rows = tables["stage_time"]
    assert rows[["step", "stage", "busy_ns", "forward_ns", "micro_batches", "complete"]].values.tolist() == [
        [step, stage, 3_000_000_000, 1_000_000_000, 1, True] for step in (1, 4) for stage in (0, 1)
    ]
    assert set(rows["phase_ns"]) == {6_500_000_000}
    steps = tables["steps"]
    assert (steps.source, steps.rows["step"].tolist(), set(steps.rows["dur_ns"])) == ("operations", [1, 4], {6_500_000_000})
    assert tables["config"].micro_batches == 1


def test_tables_of_two_jobs_are_told_apart(tmp_path: Path) -> None:
    for name in ("a", "b"):
        pq.write_table(table(two_stages()), tmp_path / f"{name}.parquet")
    tables = Tables(pipelog.read(tmp_path, jobs=1))
    assert [j.file for j in tables["operations"]] == ["a.parquet", "b.parquet"]
    with pytest.raises(CannotTell, match="2 tables of operations"):
        tables["operation_time"]


def test_without_such_a_table_nothing_is_told() -> None:
    with pytest.raises(CannotTell, match="no table of operations"):
        Tables(pipelog.read(FIXTURES / "runs" / "R01", jobs=1))["operations"]


def test_other_parquet_files_are_no_operations(tmp_path: Path) -> None:
    pq.write_table(pa.table({"step": [1], "loss": [2.0]}), tmp_path / "x.parquet")
    (tmp_path / "train.log").write_text("steps: 1 loss: 2.0 iter time (s): 1.0 samples/sec: 8.0\n")
    kinds = {i.path: i.kind for i in pipelog.read(tmp_path, jobs=1).inputs}
    assert kinds == {"x.parquet": "ignored", "train.log": "log"}


def test_mitigation_needs_a_slowdown() -> None:
    assert mitigated(10.0, 9.0, 8.0) == pytest.approx(0.5)
    assert mitigated(8.0, 8.0, 8.0) is None
    assert np.isfinite(mitigated(10.0, 7.0, 8.0) or np.nan)
