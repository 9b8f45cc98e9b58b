"""Recorded steps as costs of a replay: what is believed, what each part costs, and what other settings give, against a simulation written apart."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pipelog.replay
from pipelog.registry import load
from pipelog.replay import told
from pipelog.replay.changes import best_split, halved, interleaved, merged, resized, split, typical
from pipelog.replay.measured import Measured, follows_schedule, replay_check
from pipelog.replay.simulate import Costs, run
from pipelog.replay.what_if import WhatIf
from pipelog.tables import CannotTell
from pipelog.tables.durations import Durations
from pipelog.tables.steps import Steps
from tests.host_pipeline import Pipeline, phase, simulate, traces
from tests.making import Row, fact, of_traces, step, topology_map

load(pipelog.replay)


def of(line: Pipeline, *rows: Row) -> Any:
    made = {f"traces/rank{i}.json": t for i, t in enumerate(traces(line))}
    return of_traces(made, [*topology_map(line.p, line.replicas), *rows])


def length(line: Pipeline) -> float:
    """Pipeline phase of the slowest replica, ns."""
    return max(end - begin for begin, end in (phase(simulate(line, r)) for r in range(line.replicas))) * 1e3


def named(found: list[WhatIf], name: str) -> WhatIf:
    return next(w for w in found if w.change.name == name)


PLAIN: dict[str, Any] = {"p": 4, "m": 8}
NOTHING = Steps(pd.DataFrame(columns=["step", "steps", "dur_ns"]), None, None, pd.DataFrame())


# ---- measured, and believed


def test_recorded_steps_replay_to_their_own_length() -> None:
    line = Pipeline(**PLAIN, stage_factor={1: 1.5}, slow={(2, 3): 2000.0}, load={0: 700.0}, steps=3)
    tables = of(line)
    found, check = tables["measured"], tables["replay_check"]
    assert (found.p, found.m, found.steps.tolist(), found.ranks.tolist()) == (4, 8, [4, 5, 6], [[0, 1, 2, 3]])
    assert found.phases(found.costs) == pytest.approx(found.phase_ns, rel=6e-3)
    assert found.phase_ns == pytest.approx(np.full((3, 1), length(line)), rel=1e-3)
    assert (check.halves, len(check.predicted), check.believed) == ("steps", 3, True)
    assert check.error < 6e-3


@pytest.mark.parametrize(("version", "order"), [("0.8.2", "1f1b-send-first"), ("0.8.3", "1f1b"), (None, "1f1b")])
def test_order_of_instructions_follows_the_version(version: str | None, order: str) -> None:
    assert of(Pipeline(p=2, m=2), *([fact("version.deepspeed", version)] if version else []))["measured"].schedule == order


def test_recomputation_is_taken_out_of_the_backward_passes() -> None:
    found = of(Pipeline(p=2, m=4, again={1: 5000.0}))["measured"].costs
    assert np.asarray(found.recompute)[0, 0].sum(axis=1) == pytest.approx([0, 4 * 5000e3])
    assert (np.asarray(found.recompute) + found.backward).sum(axis=-1)[0, 0] == pytest.approx([4 * 20_000e3, 4 * 25_000e3], rel=1e-3)


def test_another_order_of_passes_is_not_replayed() -> None:
    """GPipe: all forward passes, then all backward passes. Under 1F1B stage 0 of 2 would run F0 F1 B0 F2 …, stage 1 would alternate."""
    order = [("forward", k) for k in range(4)] + [("backward", k) for k in range(4)]
    recorded = pd.DataFrame([{"rank": r, "window": 0, "step": 1, "instruction": word, "micro_batch": k} for r in (0, 1) for word, k in order])
    ones = np.ones((1, 2, 4))
    edges = [np.ones((1, 1, 4))] * 4
    cells = Durations(np.array([1]), np.array([0]), np.array([1.0]), np.array([[0, 1]]), np.zeros((1, 2)), *[ones] * 5, *edges)
    with pytest.raises(CannotTell, match="forward pass 2 of stage 0 in step 1"):
        follows_schedule(cells, recorded)
    recorded["instruction"] = [{"F": "forward", "B": "backward"}[c] for c in "FFBFBFBB" + "FBFBFBFB"]
    follows_schedule(cells, recorded)


def made(forward: np.ndarray, step_ns: float | None = None) -> Measured:
    """Recorded steps of the given forward passes (steps, p, m); backward passes take twice as long."""
    costs = Costs(forward[:, None], 2 * forward[:, None])
    _, p, m = forward.shape
    phases = run("1f1b", costs, p, m).phase()
    lengths = np.full(len(forward), step_ns) if step_ns else phases.max(axis=1)
    return Measured("1f1b", True, p, m, np.arange(1, len(forward) + 1), np.array([0]), costs, phases, lengths, np.arange(p)[None])


def test_steps_that_do_not_predict_each_other_are_not_believed() -> None:
    factors = np.array([1.0, 1.5, 1.0, 1.5])[:, None, None]
    check = replay_check(made(factors * np.full((4, 2, 4), 1e6)), NOTHING)
    assert sorted(check.predicted) == pytest.approx([1 / 3, 1 / 3, 0.5, 0.5])
    assert (check.own, check.believed) == (pytest.approx(0), False)
    assert "half of the 4 recorded steps" in str(check.reason)


def test_half_of_the_micro_batches_of_one_step_predict_it() -> None:
    uneven = np.tile([1e6, 1.6e6], 4) * np.ones((1, 1, 1))
    check = replay_check(made(np.broadcast_to(uneven, (1, 1, 8)).copy()), NOTHING)
    assert check.predicted == pytest.approx((1 - 1 / 1.3, 1.6 / 1.3 - 1))
    assert check.halves == "micro-batches"
    assert not check.believed
    assert replay_check(made(np.full((1, 2, 8), 1e6)), NOTHING).believed


@pytest.mark.parametrize(("printed", "believed"), [(9.0e6, True), (8.0e6, False), (12.0e6, False), (9.9e6, True)])
def test_a_recording_that_changed_the_steps_is_not_carried_over(printed: float, believed: bool) -> None:
    """The recorded step, number 1, takes 10 ms; the log prints others. 15 % either way is the limit."""
    rows = pd.DataFrame({"step": [1, 10, 20], "steps": [1, 5, 5], "dur_ns": [99e6, printed, printed]})
    check = replay_check(made(np.full((1, 2, 4), 1e5), step_ns=10e6), Steps(rows, "deepspeed", None, rows))
    assert check.printed_ns == printed
    assert check.recording == pytest.approx(10e6 / printed - 1)
    assert check.believed is believed


# ---- what each part costs


def test_alike_stages_and_free_links_have_no_slowdown() -> None:
    (found,) = of(Pipeline(**PLAIN))["slowdowns"]
    assert found.slowdown == pytest.approx(1, abs=3e-3)
    assert found.effects["cost"].abs().max() < 3e-3
    assert found.last_stage is None or abs(found.last_stage) < 1


CAUSES: dict[str, tuple[dict[str, Any], str, dict[str, Any]]] = {
    "heavy stage": ({"stage_factor": {2: 2.0}}, "stage", {"stage": 2}),
    "slow link": ({"slow": {(1, 2): 8000.0}}, "link", {"stage": 1, "target": 2}),
    "late sends upwards": ({"late": {(3, 2): 8000.0}}, "link", {"stage": 2, "target": 3}),
    "late batches": ({"load": {0: 9000.0}}, "kind", {"kind": "load"}),
    "a slow worker": ({"replicas": 2, "factor": {(1, 0): 2.0}}, "worker", {"stage": 0, "replica": 1}),
}


@pytest.mark.parametrize(("changed", "of_", "where"), CAUSES.values(), ids=CAUSES)
def test_the_cause_has_the_largest_cost_of_its_class(changed: dict[str, Any], of_: str, where: dict[str, Any]) -> None:
    line = Pipeline(**PLAIN, **changed)
    (found,) = of(line)["slowdowns"]
    mine = found.effects[found.effects["of"] == of_].sort_values("cost")
    assert {k: mine.iloc[-1][k] for k in where} == where
    assert mine.iloc[-1]["cost"] > 0.09
    assert found.slowdown > 1.1


def test_a_cause_costs_what_the_step_is_shorter_without_it() -> None:
    """The idealised link is as the others; S counts against a pipeline without it."""
    line, plain = Pipeline(**PLAIN, slow={(1, 2): 8000.0}), Pipeline(**PLAIN)
    (found,) = of(line)["slowdowns"]
    assert found.slowdown == pytest.approx(length(line) / length(plain), rel=3e-3)
    link = found.effects[(found.effects["of"] == "link") & (found.effects["stage"] == 1)].iloc[0]
    assert link["cost"] == pytest.approx(1 - length(plain) / length(line), abs=3e-3)


def test_the_table_of_instructions_has_one_critical_path() -> None:
    line = Pipeline(**PLAIN, stage_factor={2: 2.0}, slow={(0, 1): 500.0})
    rows = of(line)["replay"]
    on = rows[rows["critical"]]
    assert (on["slack_ns"] == 0).all()
    assert (on["end_ns"] - on["start_ns"]).sum() == pytest.approx(rows["end_ns"].max(), abs=100)
    assert rows.groupby("instruction").size()[["forward", "backward", "activation", "grad"]].tolist() == [32, 32, 24, 24]
    assert on.groupby("stage").apply(lambda r: (r["end_ns"] - r["start_ns"]).sum(), include_groups=False).idxmax() == 2
    assert set(rows.loc[rows["instruction"] == "grad", "stage"]) == {1, 2, 3}


# ---- what if


def changed_(line: Pipeline, **more: Any) -> Pipeline:
    return replace(line, **more)


PREDICTIONS: dict[str, tuple[dict[str, Any], str, Callable[[Pipeline], Pipeline]]] = {
    "twice the micro-batches": ({"stage_factor": {1: 1.3}}, "micro_batches=16", lambda line: changed_(line, m=16)),
    "four times, slow link": ({"slow": {(1, 2): 3000.0}}, "micro_batches=32", lambda line: changed_(line, m=32)),
    "equal stages": ({"stage_factor": {1: 1.4, 3: 0.6}}, "stages equal", lambda line: changed_(line, stage_factor={})),
    "heavy stage healed": ({"stage_factor": {2: 1.8}}, "stage 2 as the others", lambda line: changed_(line, stage_factor={})),
    "link healed": ({"slow": {(1, 2): 9000.0}}, "link 1-2 as the others", lambda line: changed_(line, slow={})),
    "late sends healed": ({"late": {(2, 3): 9000.0}}, "link 2-3 as the others", lambda line: changed_(line, late={})),
    "batches in time": ({"load": {0: 8000.0}}, "batches ready in time", lambda line: changed_(line, load={})),
    "no recomputation": ({"again": {0: 6000.0, 1: 6000.0}}, "checkpointing=off (stages 0, 1)", lambda line: changed_(line, again={})),
    "all recompute": ({}, "checkpointing=on (all stages)", lambda line: changed_(line, again=dict.fromkeys(range(4), 10_000.0))),
    "smaller micro-batches": (
        {}, "micro_batches=16, micro_batch_size=1", lambda line: changed_(line, m=16, forward=line.forward / 2, backward=line.backward / 2),
    ),
    "larger micro-batches": (
        {}, "micro_batches=4, micro_batch_size=4", lambda line: changed_(line, m=4, forward=line.forward * 2, backward=line.backward * 2),
    ),
    "half the stages": (
        {"stage_factor": {0: 1.5}}, "stages=2",
        lambda line: changed_(line, p=2, m=4, forward=line.forward * 2, backward=line.backward * 2, stage_factor={0: 1.25}),
    ),
    "replica healed": ({"replicas": 2, "factor": {(1, 2): 1.8}}, "replicas equal", lambda line: changed_(line, factor={})),
}  # fmt: skip


@pytest.mark.parametrize(("given_", "name", "becomes"), PREDICTIONS.values(), ids=PREDICTIONS)
def test_prediction_is_what_the_changed_pipeline_takes(given_: dict[str, Any], name: str, becomes: Callable[[Pipeline], Pipeline]) -> None:
    line = Pipeline(**PLAIN, **given_)
    found = of(line, fact("config.train_micro_batch_size_per_gpu", 2))["what_if"]
    now, then = found[0], named(found, name)
    outside = now.step_ns - length(line)
    outside -= line.load.get(0, 0.0) * 1e3 if name == "batches ready in time" else 0  # of the first batch, before the phase begins
    after = becomes(line)
    assert then.step_ns - outside == pytest.approx(length(after), rel=0.01)
    assert then.gain == pytest.approx(1 - then.step_ns / then.change.samples / now.step_ns)


def test_more_samples_are_no_gain_by_themselves() -> None:
    """Twice the micro-batches take nearly twice as long: the gain is per sample, the bubble (p-1)/(m+p-1)."""
    found = of(Pipeline(**PLAIN))["what_if"]
    then = named(found, "micro_batches=16")
    assert then.step_ns > 1.6 * found[0].step_ns
    assert then.change.samples == 2
    assert 0 < then.gain < 0.2
    assert (found[0].bubble, then.bubble) == (pytest.approx(3 / 11, abs=2e-3), pytest.approx(3 / 19, abs=2e-3))
    assert "global batch" in str(then.change.price)


def test_pitfalls_are_built_in() -> None:
    rows = [fact("config.train_micro_batch_size_per_gpu", 2)]
    found = of(Pipeline(**PLAIN, replicas=2, again=dict.fromkeys(range(4), 4000.0)), *rows)["what_if"]
    advised = {w.change.name for w in found if w.advised}
    assert not any(n.startswith(("stages=", "checkpointing", "schedule", "stages equal")) for n in advised)
    larger = named(found, "micro_batches=4, micro_batch_size=4")
    assert larger.gain < 0
    assert larger.bubble > found[0].bubble
    assert not larger.advised
    assert "larger bubble" in str(larger.change.price)
    assert all(w.change.kind == "reference" for w in found if w.change.name.startswith("schedule"))
    gains = [w.gain for w in found[1:]]
    assert gains == sorted(gains, reverse=True)


def test_other_schedules_hold_what_they_hold() -> None:
    found = of(Pipeline(**PLAIN))["what_if"]
    held = {w.change.name: w.in_flight for w in found if w.change.name.startswith("schedule") or w.change.name == "now"}
    assert held == {
        "now": (4, 3, 2, 1),
        "schedule=gpipe": (8, 8, 8, 8),
        "schedule=interleaved, v=2": (5.5, 4.5, 3.5, 2.5),
        "schedule=zero-bubble (ZB-H1)": (4, 4, 4, 4),
    }
    assert named(found, "schedule=zero-bubble (ZB-H1)").bubble < named(found, "schedule=interleaved, v=2").bubble < found[0].bubble


def test_memory_follows_what_a_stage_holds() -> None:
    """Peaks of 8, 7, 6, 5 GiB at 4, 3, 2, 1 micro-batches in flight: 1 GiB each. GPipe holds 8 of them everywhere, twice the size counts double."""
    peaks = [
        {"kind": "memory", "name": "max_allocated", "rank": r, "stage": r, "step": 2, "bytes": (8 - r) * 2**30, "line": 60 + r} for r in range(4)
    ]
    found = of(Pipeline(**PLAIN), fact("config.train_micro_batch_size_per_gpu", 2), *peaks)["what_if"]
    gib = {w.change.name: None if w.peak_bytes is None else [b / 2**30 for b in w.peak_bytes] for w in found}
    assert gib["now"] == gib["micro_batches=16"] == [8, 7, 6, 5]
    assert gib["schedule=gpipe"] == [12, 12, 12, 12]
    assert gib["micro_batches=4, micro_batch_size=4"] == [12, 10, 8, 6]
    assert gib["micro_batches=16, micro_batch_size=1"] == [6, 5.5, 5, 4.5]
    assert gib["stages=2"] is gib["checkpointing=on (all stages)"] is None
    assert named(of(Pipeline(**PLAIN))["what_if"], "now").peak_bytes is None


def layers(counts: list[int]) -> list[Row]:
    return [{"kind": "stage", "name": "layers", "stage": s, "value": float(n), "file": "train.log", "line": 90 + s} for s, n in enumerate(counts)]


def test_partition_moves_layers_off_the_heavy_stage() -> None:
    """4 stages of 3 layers, the last with a head worth 3 more: under either reading it gives layers away."""
    found = of(Pipeline(**PLAIN, stage_factor={3: 2.0}), *layers([3, 3, 3, 3]))["what_if"]
    (then,) = [w for w in found if w.change.name.startswith("partition")]
    counts = [int(n) for n in then.change.name.removeprefix("partition=").removesuffix(" layers").split("/")]
    assert sum(counts) == 12
    assert counts[3] < 3
    assert 0.05 < then.gain < named(found, "stages equal").gain
    assert not [w for w in of(Pipeline(**PLAIN), *layers([3, 3, 3, 3]))["what_if"] if w.change.name.startswith("partition")]


def test_where_the_log_prints_other_steps_times_are_in_proportion_to_those() -> None:
    line = Pipeline(**PLAIN, steps=1)
    recorded = of(line)["measured"].step_ns[0]
    slower = [step(n, recorded / 1.1e9, steps=1) for n in (3, 6, 7, 8)]
    found = of(line, *slower)["what_if"]
    assert found[0].step_ns == pytest.approx(recorded / 1.1, rel=1e-3)
    assert named(found, "micro_batches=16").gain == pytest.approx(named(of(line)["what_if"], "micro_batches=16").gain, abs=1e-3)


def test_without_belief_there_is_no_what_if() -> None:
    line = Pipeline(**PLAIN, steps=1)
    recorded = of(line)["measured"].step_ns[0]
    tables = of(line, *(step(n, recorded / 1.5e9, steps=1) for n in (3, 6, 7, 8)))
    with pytest.raises(CannotTell, match="too far apart"):
        tables["what_if"]
    assert told.changes(tables) == []
    assert told.figures(tables)["believed"] is False  # type: ignore[index]


def test_without_traces_of_all_stages_nothing_is_told() -> None:
    tables = of_traces({"traces/rank0.json": traces(Pipeline(p=2, m=2))[0]}, topology_map(2))
    assert told.figures(tables) is None
    with pytest.raises(CannotTell):
        tables["slowdowns"]


# ---- changes of durations

COSTS = st.tuples(st.integers(1, 3), st.integers(1, 4)).flatmap(
    lambda shape: st.lists(st.integers(1, 20), min_size=2 * shape[0] * shape[1], max_size=2 * shape[0] * shape[1]).map(
        lambda values: np.array(values, float).reshape(1, 2 * shape[0], shape[1])
    )
)


@given(COSTS)
@settings(max_examples=30)
def test_changes_keep_the_work(forward: np.ndarray) -> None:
    costs = Costs(forward, 2 * forward, activation=np.ones((1, forward.shape[1] - 1, forward.shape[2])))
    total = forward.sum(axis=(1, 2))
    for other, count in (
        (merged(costs), forward.shape[1] // 2),
        (halved(costs), 2 * forward.shape[1]),
        (interleaved(costs, 3), 3 * forward.shape[1]),
    ):
        assert np.asarray(other.forward).sum(axis=(1, 2)) == pytest.approx(total)
        assert np.asarray(other.forward).shape[1] == count
        assert np.asarray(other.activation).shape[1] == count - 1
    assert np.asarray(resized(costs, 0.5).forward).sum() == pytest.approx(total.sum() / 2)
    assert np.asarray(resized(costs, 0.5).activation).sum() == np.asarray(costs.activation).sum()


def test_typical_durations_keep_what_a_stage_needs() -> None:
    costs = Costs(np.array([1.0, 3.0, 2.0, 6.0]).reshape(1, 1, 2, 2), 1.0)
    assert np.asarray(typical(costs).forward).ravel().tolist() == [2.0, 4.0]
    assert np.asarray(split(typical(costs), np.array([[0.5, 0.25], [0.5, 0.75]])).forward).ravel().tolist() == [2.0, 4.0]


@given(st.lists(st.integers(1, 30), min_size=1, max_size=9), st.data())
@settings(max_examples=60)
def test_best_split_is_the_best_of_all(weights: list[int], data: st.DataObject) -> None:
    parts = data.draw(st.integers(1, len(weights)))
    borders = best_split(np.array(weights, float), parts)
    assert borders[0] == 0
    assert borders[-1] == len(weights)
    assert (np.diff(borders) > 0).all()
    assert len(borders) == parts + 1

    def heaviest(at: tuple[int, ...]) -> int:
        return max(sum(weights[a:b]) for a, b in itertools.pairwise(at))

    best = min(heaviest((0, *inner, len(weights))) for inner in itertools.combinations(range(1, len(weights)), parts - 1))
    assert heaviest(tuple(borders.tolist())) == best
