"""What is predicted from costs: by hand on small pipelines, against brute force, and from a measured run."""

from __future__ import annotations

import itertools
import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelog.diagnosis import diagnose
from pipelog.errors import BadReport
from pipelog.planning import costs as module
from pipelog.planning import markdown
from pipelog.planning.costs import Costs, Measured, Memory, best_split, of_layers, phase, split, spread
from pipelog.planning.costs import given as costs_of
from pipelog.planning.from_run import measured, saved
from pipelog.planning.plan import Wanted, plan
from pipelog.reading import read
from pipelog.report import Report
from tests.conftest import FIXTURES

MS = 1e6
TIME = st.integers(1, 50)


def equal(p: int, forward: float = 1.0, backward: float = 2.0) -> Costs:
    return costs_of([(forward, backward)] * p, 0.0, "given")


def test_equal_stages_take_m_plus_p_minus_1_turns() -> None:
    assert phase(equal(4), "1f1b", 8).phase_ns == (8 + 3) * 3
    assert phase(equal(4), "1f1b", 8).mean_bubble == pytest.approx(3 / 11)
    assert phase(equal(4), "gpipe", 8).phase_ns == (8 + 3) * 3
    assert phase(equal(4), "interleaved", 8, 2).phase_ns == 8 * 3 + 3 * 3 / 2


@pytest.mark.parametrize(("slow", "takes", "idle"), [(0, 13.5, 0.111), (1, 14.0, 0.429), (3, 15.0, 0.467)])
def test_one_stage_half_as_slow_again(slow: int, takes: float, idle: float) -> None:
    """p = 4, m = 8, tB = 2 tF, worked out in the literature's unit c = tF + tB: length of the phase, and what stage 0 idles."""
    totals = [(1.5, 3.0) if s == slow else (1.0, 2.0) for s in range(4)]
    found = phase(costs_of(totals, 0.0, "given"), "1f1b", 8)
    assert found.phase_ns / 3 == pytest.approx(takes)
    assert found.bubble[0] == pytest.approx(idle, abs=1e-3)


def test_transfers_come_on_top_and_are_not_amortized() -> None:
    """Two stages, one message each way per micro-batch: 2 m transfers more."""
    for m in (4, 8, 16):
        assert phase(costs_of([(10, 20)] * 2, 1.0, "given"), "1f1b", m).phase_ns == (m + 1) * 30 + 2 * m


@settings(max_examples=25)
@given(st.lists(st.tuples(TIME, TIME), min_size=2, max_size=5), st.integers(0, 20), st.sampled_from(("1f1b", "gpipe")), st.integers(1, 6))
def test_many_micro_batches_are_extrapolated_exactly(totals: list[tuple[int, int]], transfer: int, name: str, more: int) -> None:
    made = costs_of([(float(f), float(b)) for f, b in totals], float(transfer), "given")
    m = 14 * len(totals) + more
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "MOST_NODES", 1)
        few = phase(made, name, m)
        patch.setattr(module, "MOST_NODES", 10**9)
        every = phase(made, name, m)
    assert few.phase_ns == pytest.approx(every.phase_ns)


@settings(max_examples=25)
@given(st.lists(TIME, min_size=2, max_size=5), st.integers(1, 12), st.integers(0, 4))
def test_slower_stages_never_shorten_the_phase(totals: list[int], m: int, which: int) -> None:
    made = costs_of([(float(t), 2.0 * t) for t in totals], 0.0, "given")
    slower = costs_of([((t + 1.0) if s == which % len(totals) else float(t), 2.0 * t) for s, t in enumerate(totals)], 0.0, "given")
    assert phase(made, "1f1b", m).phase_ns <= phase(slower, "1f1b", m).phase_ns
    assert phase(made, "1f1b", m).phase_ns < phase(made, "1f1b", m + 1).phase_ns
    assert m * max(3 * t for t in totals) <= phase(made, "1f1b", m).phase_ns <= m * max(3 * t for t in totals) + sum(3 * t for t in totals)


@settings(max_examples=60)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=9), st.integers(1, 5))
def test_the_split_is_the_best_of_all(layers: list[int], p: int) -> None:
    if len(layers) < p:
        assert of_layers([float(c) for c in layers], p) is None
        return
    counts = best_split([float(c) for c in layers], p)
    assert sum(counts) == len(layers)
    assert all(n >= 1 for n in counts)

    def heaviest(cuts: tuple[int, ...]) -> int:
        ends = (0, *cuts, len(layers))
        return max(sum(layers[a:b]) for a, b in itertools.pairwise(ends))

    best = min(heaviest(cuts) for cuts in itertools.combinations(range(1, len(layers)), p - 1))
    assert heaviest(tuple(itertools.accumulate(counts))[:-1]) == best


def test_equal_layers_are_split_evenly() -> None:
    assert sorted(best_split([1.0] * 26, 4)) == [6, 6, 7, 7]
    assert best_split([1.0] * 24, 4) == [6, 6, 6, 6]
    assert best_split([1.0, 1.0, 5.0, 1.0, 1.0], 3) == [2, 1, 2]


def test_other_depths_share_the_same_work() -> None:
    """3, 3 and 6 on 2, 2 and 4 layers, 1.5 each: two stages take four layers each. Pairs of four equal stages are put together as they are."""
    made = Costs((1.0, 1.0, 2.0), (2.0, 2.0, 4.0), module.Links.alike(3, 0.5), "given", layers=(2, 2, 4))
    two = spread(made, 2)
    assert two is not None
    assert (two.layers, [two.total_ns(s) for s in range(2)]) == ((4, 4), [6.0, 6.0])
    assert two.links == module.Links.alike(2, 0.5)
    assert spread(made, 3) is made
    assert spread(made, 9) is None  # eight layers
    pairs = spread(costs_of([(1, 2), (1, 2), (2, 4), (1, 2)], 0.0, "given"), 2)
    assert pairs is not None
    assert [pairs.total_ns(s) for s in range(2)] == [6, 9]
    eight = split(equal(4), 8)
    assert eight is not None  # no layers known: equal shares
    assert [eight.total_ns(s) for s in range(8)] == [1.5] * 8


def test_smaller_micro_batches_take_their_share() -> None:
    half = costs_of([(10, 20)] * 2, 4.0, "given").scaled(0.5)
    assert (half.total_ns(0), half.links.activation_ns) == (15, (2.0,))


def test_memory_moves_with_what_is_in_flight() -> None:
    """p = 3, m = 4, 10 bytes of activations a micro-batch of 2 samples: held 3, 2, 1. With one micro-batch of 8 each holds 4 times one."""
    memory = Memory((130, 120, 115), 10.0, 4, 2)
    assert memory.peaks((3, 2, 1), 2) == (130, 120, 115)
    assert memory.peaks((1, 1, 1), 8) == (140, 140, 145)
    assert memory.peaks((3, 2, 1), 1) == (115, 115, 115)  # 115, 110, 110, but never below the lowest that was measured
    assert memory.peaks((4, 4, 4), 2) == (140, 140, 145)


def report(folder: Path) -> dict[str, Any]:
    return json.loads(diagnose(read(folder, jobs=1), name=folder.name).to_json())


@pytest.fixture(scope="module")
def heavy() -> dict[str, Any]:
    return report(FIXTURES / "runs" / "heavy-stage2")


def test_a_run_predicts_its_own_step(heavy: dict[str, Any]) -> None:
    """12 micro-batches on 4 stages; a step takes 0.874 s, the phase 0.860 s, stage 2 computes 64.5 ms a micro-batch (measured.json: 774 ms a step)."""
    run = measured(heavy)
    assert run.why_no_costs is None
    assert run.error is not None
    assert abs(run.error) < 0.02
    assert run.costs is not None
    assert run.costs.total_ns(2) == pytest.approx(64.5 * MS, rel=0.01)
    assert run.costs.layers == (3, 2, 2, 3)
    made = plan(Wanted(measured=run))
    assert made.now is not None
    assert made.now.step_ns == pytest.approx(heavy["metrics"]["step_time_s"]["median"] * 1e9, rel=0.002)
    assert made.now.idle == pytest.approx(heavy["metrics"]["bubble"]["measured"], abs=0.01)
    assert made.now.peak_bytes == tuple(s["peak_bytes"] for s in heavy["metrics"]["memory"]["per_stage"])
    assert made.verdict.word == "SLOW"
    assert [f.name for f in made.findings] == ["stage-imbalance"]  # 3/15 = 20 % is no few-micro-batches


def test_a_plan_advises_what_the_report_of_its_run_advises(heavy: dict[str, Any]) -> None:
    """The two never contradict each other: the partition is the report's, and so is what recomputation costs."""
    told = {w["change"]: w for w in heavy["metrics"]["what_if"]}
    partition = next(change for change, w in told.items() if change.startswith("partition=") and w["advised"])
    made = plan(Wanted(measured=measured(heavy)))
    assert made.findings[0].advice[0].action == f"give the stages {partition.removeprefix('partition=')}"
    for m, micro in ((24, 2), (48, 2), (24, 1)):
        change = f"micro_batches={m}" + ("" if micro == 2 else f", micro_batch_size={micro}")
        row = next(o for o in made.micro_batches if (o.m, o.micro) == (m, micro))
        assert (row.step_ns or 0) / 1e9 == pytest.approx(told[change]["step_time_s"], rel=0.03)
    for name, change in (("gpipe", "schedule=gpipe"), ("interleaved", "schedule=interleaved, v=2")):
        row = next(o for o in made.schedules if o.schedule == name)
        assert (row.step_ns or 0) / 1e9 == pytest.approx(told[change]["step_time_s"], rel=0.03)


def test_more_micro_batches_do_not_mend_unequal_stages(heavy: dict[str, Any]) -> None:
    """Stage 2 is the clock: with m = 48 it works nearly all the time, and the others wait for it 56 % of theirs: 1 - 28.7/64.5."""
    rows = {(o.m, o.micro): o for o in plan(Wanted(measured=measured(heavy))).micro_batches}
    large = rows[48, 2]
    assert large.idle_by_stage is not None
    assert large.idle_by_stage[2] < 0.05
    assert large.idle_by_stage[0] == pytest.approx(1 - 28.9 / 64.5, abs=0.03)


def test_what_does_not_fit_in_the_device_is_said_so(heavy: dict[str, Any]) -> None:
    """The highest peak fills 91.9 % of a device of this size, just below the 92 % that count; one micro-batch of 24 samples needs more."""
    document = json.loads(json.dumps(heavy))
    peaks = [s["peak_bytes"] for s in document["metrics"]["memory"]["per_stage"]]
    document["metrics"]["memory"]["capacity_bytes"] = round(max(peaks) / 0.919)
    made = plan(Wanted(measured=measured(document)))
    rows = [[cell.strip(" *") for cell in line.split("|")] for line in markdown.render(made).splitlines() if line.startswith("| ")]
    told = {row[1]: any("does not fit in 4" in cell for cell in row) for row in rows if row[1:4] in (["1", "24", "24"], ["12", "2", "24"])}
    assert told == {"1": True, "12": False}
    assert "does not fit in 4" not in markdown.render(plan(Wanted(measured=measured(heavy))))


def test_no_step_is_predicted_for_another_number_of_replicas(heavy: dict[str, Any]) -> None:
    """What more replicas take to reduce their gradients was not measured."""
    made = plan(Wanted(measured=measured(heavy), gpus=8))
    assert made.now is not None
    assert (made.now.replicas, made.now.m) == (2, 6)
    assert made.now.step_ns is None
    assert made.now.phase_ns is not None
    assert made.now.peak_bytes is None  # whether ZeRO spreads the optimizer over the replicas is not known of this run
    assert {o.stages: o.step_ns is None for o in plan(Wanted(measured=measured(heavy))).stages} == {1: True, 2: True, 4: False}


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("slow-dataloader", "costs of stages do not hold its data (3"),
        ("R01", "only stage 3 was measured"),
        ("truncated-midline", "only stage 0 was measured"),
        ("eval-and-save", "no stage's compute was measured"),
    ],
)
def test_what_a_run_does_not_carry_is_not_predicted(name: str, why: str) -> None:
    run = measured(report(FIXTURES / "runs" / name))
    assert run.costs is None
    assert why in (run.why_no_costs or "")
    made = plan(Wanted(measured=run))
    assert any(why in text for text in made.missing)
    assert all(o.phase_ns is None for o in (*made.micro_batches, *made.stages, *made.schedules))


def test_a_straggler_is_mended_before_anything_is_predicted() -> None:
    run = measured(report(FIXTURES / "runs" / "dp2-pp2-slow-replica"))
    assert run.costs is None
    assert "until that is mended" in (run.why_no_costs or "")


def test_activations_of_a_micro_batch_are_the_report_s(heavy: dict[str, Any]) -> None:
    """R01, 16 GPUs: inner stages of one replica differ by 133 MiB, the smaller of the two differences."""
    run = measured(report(FIXTURES / "runs" / "R01"))
    peaks = {s["stage"]: s["peak_bytes"] for s in report(FIXTURES / "runs" / "R01")["metrics"]["memory"]["per_stage"]}
    assert run.memory is not None
    assert run.memory.activation_bytes == peaks[1] - peaks[2]
    assert measured(heavy).memory is not None


def test_a_saved_report_says_what_its_folder_says(heavy: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    file.write_text(Report.from_json(json.dumps(heavy)).to_json())
    found = saved(str(file))
    assert found is not None
    assert measured(found.to_dict()) == measured(heavy)
    assert saved(str(tmp_path)) is None
    (tmp_path / "other.json").write_text("{}")
    assert saved(str(tmp_path / "other.json")) is None


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("metrics", "bubble", "per_stage"), [{"stage": s} for s in range(4)]),
        (("metrics", "bubble", "per_stage"), 5),
        (("metrics", "step_time_s"), "soon"),
        (("metrics", "memory", "per_stage"), [{"stage": s} for s in range(4)]),
        (("config",), []),
        (("topology", "stages"), [1, 2]),
        (("topology", "pp"), "4"),
        (("topology", "pp"), True),
        (("topology", "pp"), 0),
        (("topology", "world_size"), 1 << 40),
        (("config", "train_batch_size"), 24.5),
        (("config", "micro_batches"), -1),
        (("metrics", "what_if"), [{"change": "partition=1/2"}]),
        (("metrics", "what_if"), ["partition"]),
        (("metrics", "bubble", "per_stage"), [{"stage": s, "busy_s": float("nan"), "bubble": 0.5} for s in range(4)]),
        (("metrics", "memory", "per_stage"), [{"stage": s, "peak_bytes": 0.5} for s in range(4)]),
        (("metrics", "memory", "capacity_bytes"), -1),
        (("charts", "links"), [{"source": 0, "target": 1, "transfer_ms": float("nan"), "late_ms": 0.0}]),
        (("charts", "links"), [{"source": 0, "target": 1}]),
        (("charts", "timeline"), {"rows": [{"stage": 0, "items": [["forward"]]}]}),
    ],
)
def test_a_damaged_report_is_one_line(heavy: dict[str, Any], place: tuple[str, ...], value: object) -> None:
    document = json.loads(json.dumps(heavy))
    inner = document
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    with pytest.raises(BadReport, match="not a whole report"):
        measured(document)


def test_interleaving_is_simulated_whole_or_not_at_all() -> None:
    made = plan(Wanted(m=700, stage_costs_ns=((1e6, 2e6),) * 4))
    assert {o.schedule: o.phase_ns is None for o in made.schedules} == {
        "1f1b": False,
        "gpipe": False,
        "interleaved": False,
        "zb-h1": True,
        "zb-h2": True,
    }
    many = plan(Wanted(m=800, stage_costs_ns=((1e6, 2e6),) * 4))
    assert [o.phase_ns is None for o in many.schedules[:3]] == [False, False, True]


def test_an_interleaved_run_is_planned_as_such() -> None:
    """Megatron-LM's own pipeline: 16 stages of 2 chunks idle 15/(2 m + 15)."""
    run = Measured(
        "x", {"world_size": 16, "pp": 16, "dp": 1, "tp": 1}, {"train_batch_size": 64, "micro_batches": 32, "virtual_stages": 2}, None, None
    )
    made = plan(Wanted(measured=run))
    assert made.now is not None
    assert (made.now.schedule, made.now.v, made.now.bubble) == ("interleaved", 2, Fraction(15, 79))
    assert [o.schedule for o in made.schedules if o.now] == ["interleaved"]
