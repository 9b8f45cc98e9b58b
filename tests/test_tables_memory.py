"""Memory of ranks and stages beside what 1F1B lets one expect, on the figures of a real 64-GPU job (R09) and on made-up ones."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelog.diagnosis import run_one
from pipelog.findings import DETECTORS, Outcome, Status
from pipelog.tables import CannotTell
from pipelog.tables.memory import StageMemory
from tests.making import Row, fact, tables, topology_map
from tests.telling import read

MIB = 2**20
R09 = [19961.1, 17461.9, 17189.9, 16917.9, 16645.9, 16373.9, 16101.9, 15829.9, 15557.9, *[15446.8] * 6, 18175.4]
"""max allocated of R09's stages after iteration 1, MiB: slope 272.0 a stage, floor from stage 9 on, embedding at both ends."""
R09_PARAMS = [917.8e6, *[805.6e6] * 14, 909.4e6]


def report(rank: int, mib: float, step: int = 1, name: str = "max_allocated", **more: Any) -> Row:
    return {"kind": "memory", "name": name, "rank": rank, "step": step, "bytes": round(mib * MIB), **more}


def job(peaks: list[float], m: int | None, tp: int = 1, params: list[float] | None = None) -> list[Row]:
    """One report of every rank of a pipeline whose stages peak like this."""
    rows = topology_map(len(peaks), 1, tp)
    rows += [] if m is None else [fact("config.micro_batches", m)]
    rows += [report(s * tp + t, peak) for s, peak in enumerate(peaks) for t in range(tp)]
    return rows + [{"kind": "stage", "name": "params", "stage": s, "value": n} for s, n in enumerate(params or [])]


def found(rows: list[Row]) -> StageMemory:
    made: StageMemory = tables(rows)["stage_memory"]
    return made


def expected(made: StageMemory) -> list[float | None]:
    return [None if v != v else round(v / MIB, 1) for v in made.per_stage["expected_bytes"]]  # noqa: PLR0124


def judged(rows: list[Row]) -> Outcome:
    return run_one(DETECTORS["PL301"], tables(rows), {})


def test_the_1f1b_profile_of_a_real_job() -> None:
    """base = 17,461.9 - 15 x 272; stage s holds 16 - s; the floor is the optimizer step's peak; the ends have 112.2 M and 103.8 M parameters more."""
    made = found(job(R09, 256, tp=4, params=R09_PARAMS))
    assert made.slope_bytes == pytest.approx(272 * MIB, rel=1e-6)
    want = [max(15446.8, 17461.9 - 15 * 272 + 272 * (16 - s)) for s in range(16)]
    want[0] += (917.8e6 - 805.6e6) * 16 / MIB
    want[15] += (909.4e6 - 805.6e6) * 16 / MIB
    assert expected(made) == pytest.approx(want, abs=0.1)
    assert expected(made)[9:15] == [15446.8] * 6
    assert made.per_stage["peak_bytes"].tolist() == [round(v * MIB) for v in R09]


def test_a_real_job_is_explained() -> None:
    assert judged(job(R09, 256, tp=4, params=R09_PARAMS)).status is Status.CLEAR


@pytest.mark.parametrize("stage", range(16))
def test_an_injected_ballast_is_found_on_its_stage(stage: int) -> None:
    peaks = [v + (6000 if s == stage else 0) for s, v in enumerate(R09)]
    outcome = judged(job(peaks, 256, tp=4, params=R09_PARAMS))
    assert [f.where.stages for f in outcome.findings] == [(stage,)]
    assert outcome.findings[0].where.ranks == tuple(range(4 * stage, 4 * stage + 4))


def test_a_ballast_on_one_tensor_rank_is_that_rank_s() -> None:
    rows = [{**row, "bytes": row["bytes"] + 4000 * MIB} if row.get("bytes") and row["rank"] == 22 else row for row in job(R09, 256, 4, R09_PARAMS)]
    outcome = judged(rows)
    assert [(f.where.ranks, f.where.stages) for f in outcome.findings] == [((22,), (5,))]


def test_without_parameters_nothing_is_expected_of_the_ends() -> None:
    """Embedding and head lie there, and no line says how large they are."""
    made = found(job(R09, 256, tp=4))
    assert expected(made)[0] is expected(made)[-1] is None
    assert expected(made)[1] == pytest.approx(17461.9, abs=0.1)
    outcome = judged(job(R09, 256, tp=4))
    assert outcome.status is Status.NOT_APPLICABLE
    assert "no line states their parameters" in (outcome.reason or "")


def test_without_the_number_of_micro_batches_nothing_is_expected() -> None:
    made = found(job(R09, None, params=R09_PARAMS))
    assert made.reason is not None
    assert "number of micro-batches" in made.reason
    assert expected(made) == [None] * 16


def test_an_inner_stage_with_more_parameters_is_explained_by_them() -> None:
    """Stage 5 has half as many layers more: 400 M parameters of 16 bytes."""
    params = [1.2e9 if s == 5 else 0.8e9 for s in range(8)]
    peaks = [20_000.0 + 300 * (8 - s) + (0.4e9 * 16 / MIB if s == 5 else 0) for s in range(8)]
    assert expected(found(job(peaks, 16, params=params))) == pytest.approx([*peaks[:-1], peaks[-2]], abs=0.11)
    assert judged(job(peaks, 16, params=params)).status is Status.CLEAR


@settings(max_examples=40, deadline=None)
@given(st.integers(5, 12), st.integers(1, 24), st.integers(0, 500), st.integers(1000, 9000))
def test_a_pipeline_as_1f1b_makes_it_is_met_exactly(p: int, m: int, slope: int, base: int) -> None:
    """Peaks of base + slope x min(p - s, m): the expectation is the peak itself, wherever the schedule fills."""
    peaks = [float(base + slope * min(p - s, m)) for s in range(p)]
    made = found(job(peaks, m, params=[1e6] * p))
    floor = peaks[p - 2]  # the last stage may hold less than the inner ones; the floor is the lowest inner stage's
    assert expected(made) == pytest.approx([max(v, floor) for v in peaks], abs=0.11)


def test_one_heavy_inner_stage_moves_the_expectation_of_no_other() -> None:
    peaks = [1000.0 + 100 * (8 - s) for s in range(8)]
    plain = expected(found(job(peaks, 16, params=[1e6] * 8)))
    heavy = expected(found(job([v + (3000 if s == 3 else 0) for s, v in enumerate(peaks)], 16, params=[1e6] * 8)))
    assert heavy == pytest.approx(plain, abs=60)


FOUR = [22_000.0, 19_000.0, 16_000.0, 13_000.0]
"""Four stages of 10 GB and 3 GB a micro-batch: 4, 3, 2 and 1 of them."""


def four(*extra: float) -> list[Row]:
    return job([v + e for v, e in zip(FOUR, extra, strict=True)], 8, params=[1e9] * 4)


def test_four_stages_as_1f1b_makes_them_are_explained() -> None:
    """Each stage holds one micro-batch less than the one before: 37 % more on stage 0 than on stage 2 is no skew."""
    made = found(four(0, 0, 0, 0))
    assert made.slope_bytes == pytest.approx(3000 * MIB)
    assert expected(made) == pytest.approx([22_000, 19_000, 16_000, 16_000])
    assert judged(four(0, 0, 0, 0)).status is Status.CLEAR


@pytest.mark.parametrize(("stage", "mib"), [(0, 4000), (3, 7000)])
def test_a_ballast_on_an_end_of_four_stages_is_found(stage: int, mib: float) -> None:
    extra = [0.0] * 4
    extra[stage] = mib
    assert [f.where.stages for f in judged(four(*extra)).findings] == [(stage,)]


def test_a_leak_on_an_inner_one_of_four_stages_is_found() -> None:
    """Stages of the same size but for stage 1: the difference of 1 and 2 could be a micro-batch's, that of 0 and 1 could not."""
    rows = job([16_000.0, 20_000.0, 16_000.0, 16_000.0], 8, params=[1e9] * 4)
    assert found(rows).slope_bytes is None
    assert [f.where.stages for f in judged(rows).findings] == [(1,)]


@pytest.mark.parametrize("p", [1, 2, 3])
def test_below_four_stages_nothing_is_expected(p: int) -> None:
    made = found(job([9000.0] + [1000.0] * (p - 1), 8))
    assert made.reason is not None
    assert "below four stages" in made.reason
    assert expected(made) == [None] * p


def test_stages_that_printed_nothing_leave_nothing_to_expect() -> None:
    rows = [row for row in job(R09, 256) if row.get("rank") != 5 or row["kind"] != "memory"]
    made = found(rows)
    assert made.reason == "15 of 16 stages printed their memory"


def test_no_report_at_all_says_what_would_show_it() -> None:
    with pytest.raises(CannotTell, match="no rank printed its memory"):
        found(topology_map(4))


def test_the_peak_of_a_stage_is_that_of_its_fullest_rank_over_all_reports() -> None:
    rows = [*topology_map(4, 2), report(0, 100, step=1), report(0, 300, step=2), report(1, 200, step=1), *(report(r, 50) for r in range(2, 8))]
    made = found(rows)
    row = made.per_stage.iloc[0]
    assert (row["peak_bytes"], row["rank"]) == (300 * MIB, 0)
    assert (row["file"], row["line"]) == ("train.log", len(topology_map(4, 2)) + 2)


def test_the_report_without_a_rank_is_rank_0_s() -> None:
    rows = [*topology_map(2), {k: v for k, v in report(0, 100).items() if k != "rank"}]
    assert tables(rows)["memory"][["rank", "max_allocated"]].to_numpy().tolist() == [[0, 100 * MIB]]


def test_one_row_a_report_with_its_four_figures() -> None:
    names = ("allocated", "max_allocated", "reserved", "max_reserved")
    rows = [*topology_map(2), *(report(1, 10.0 + i, name=n, file="train.log", line=50) for i, n in enumerate(names))]
    row = tables(rows)["memory"].iloc[0]
    assert [row[n] for n in names] == [(10 + i) * MIB for i in range(4)]
    assert (row["rank"], row["stage"], row["step"], row["line"]) == (1, 1, 1, 50)


def test_memory_of_a_trace_s_devices_is_no_report() -> None:
    """`[memory]` events of a profiler trace show the allocator of some steps, not the peak since the start."""
    rows = [*topology_map(2), report(0, 10.0), report(1, 99.0, device="gpu 1")]
    assert tables(rows)["memory"]["rank"].tolist() == [0]


def usage(step: int | None, mib: float, **more: Any) -> Row:
    return {"kind": "memory_usage", "name": "max_allocated", "step": step, "bytes": round(mib * MIB), "text": "throughput", **more}


def test_throughput_lines_are_reports_of_rank_0() -> None:
    """See_memory_usage names no step and resets its peak at every call."""
    made = tables([usage(10, 900), usage(20, 1000), usage(None, 5000)])["memory"]
    assert made[["rank", "step", "max_allocated"]].to_numpy().tolist() == [[0, 10, 900 * MIB], [0, 20, 1000 * MIB]]


def test_a_later_throughput_line_is_not_held_against_reports_of_other_ranks() -> None:
    made = tables([report(0, 1000), report(1, 1000), usage(500, 9000)])["memory"]
    assert made["max_allocated"].tolist() == [1000 * MIB, 1000 * MIB]


def test_a_line_that_any_rank_may_print_is_not_rank_0_s() -> None:
    made = tables(
        [report(5, 900, name="max_reserved", stream="one-rank"), {**report(0, 1000, name="max_reserved", stream="one-rank"), "rank": None}]
    )["memory"]
    assert made[["rank", "max_reserved"]].to_numpy().tolist() == [[5, 900 * MIB]]


def called(step: int, text: str, gib: float) -> list[str]:
    """see_memory_usage as rank 0 prints it below the line of a step."""
    stamp = "[2025-03-18 10:01:13,036] [INFO]"
    return [
        f"{stamp} [logging.py:128:log_dist] [Rank 0] steps: {step} loss: 9.1 iter time (s): 1.0 samples/sec: 4.0",
        f"{stamp} [utils.py:781:see_memory_usage] {text}",
        f"{stamp} [utils.py:782:see_memory_usage] MA 20.00 GB         Max_MA {gib:.2f} GB         CA 38.76 GB         Max_CA 38 GB ",
        f"{stamp} [utils.py:789:see_memory_usage] CPU Virtual Memory:  used = 210.59 GB, percent = 20.9%",
    ]


def test_calls_at_one_place_after_the_steps_are_reports_of_rank_0() -> None:
    lines = [line for i in range(6) for line in called(20 * (i + 1), f"after step {20 * (i + 1)}", 30 + i)]
    found = read({"train.log": lines})["memory"]
    assert found["rank"].tolist() == [0] * 6
    assert found["step"].tolist() == [20, 40, 60, 80, 100, 120]
    assert found["max_allocated"].tolist() == [(30 + i) * 2**30 for i in range(6)]


def test_calls_at_many_places_are_no_course() -> None:
    lines = [line for i in range(6) for line in called(20 * (i + 1), ("before forward", "after backward", "after the optimizer")[i % 3], 30 + i)]
    assert not len(read({"train.log": lines})["memory"])
