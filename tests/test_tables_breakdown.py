"""Where the phase and the step go: each injected delay lands in its part, at its size, and shares sum to 1. Links and collectives too."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelog.replay.breakdown import PARTS
from pipelog.tables import CannotTell
from tests.host_pipeline import Pipeline, phase, simulate, traces
from tests.making import Row, Trace, fact, of_traces, topology_map


def of(line: Pipeline, *rows: Row, keep: set[int] | None = None) -> Any:
    made = {f"traces/rank{i}.json": t for i, t in enumerate(traces(line)) if keep is None or i in keep}
    return of_traces(made, [*topology_map(line.p, line.replicas), *rows])


def length(line: Pipeline) -> float:
    begin, end = phase(simulate(line))
    return end - begin


PLAIN: dict[str, Any] = {"p": 4, "m": 8}
DELAYS = {
    "unequal stages": ({"stage_factor": {2: 1.4}}, "imbalance-wait"),
    "slow link": ({"slow": {(1, 2): 8000.0}}, "stall"),
    "slow link upwards": ({"slow": {(2, 1): 8000.0}}, "stall"),
    "late sends": ({"late": {(1, 2): 8000.0}}, "stall"),
    "late sends upwards": ({"late": {(3, 2): 8000.0}}, "stall"),
    "slow network everywhere": ({"transfer": 3000.0}, "p2p-transfer"),
    "late batches": ({"load": {0: 6000.0}}, "data"),
    "late batches on the last stage": ({"load": {3: 6000.0}}, "data"),
    "idle before forward passes": ({"before": {(1, "F"): 3000.0}}, "host-gap"),
    "idle before backward passes": ({"before": {(2, "B"): 3000.0}}, "host-gap"),
}


@pytest.mark.parametrize(("changed", "part"), DELAYS.values(), ids=DELAYS)
def test_a_delay_lands_in_its_part_at_its_size(changed: dict[str, Any], part: str) -> None:
    """What it adds to the phase is known from the simulation with and without it; the other parts stay what they were."""
    line, plain = Pipeline(**PLAIN, **changed), Pipeline(**PLAIN)
    found = of(line)["breakdown"]
    added = length(line) - length(plain)
    if part == "imbalance-wait":  # more work is no waiting: mean compute and the fill of equal stages grow with it
        mean = 30_000 * (3 + 1.4) / 4
        added = length(line) - (8 + 3) * mean
    assert found.phase[part] == pytest.approx(added / length(line), abs=3e-3)
    others = {p: v for p, v in found.phase.items() if p not in (part, "compute", "fill-drain")}
    assert all(v < 3e-3 for v in others.values()), others
    assert found.replay_error == pytest.approx(0, abs=2e-3)


def test_equal_stages_spend_the_rest_in_fill_and_drain() -> None:
    found = of(Pipeline(**PLAIN))["breakdown"].phase
    assert found["compute"] == pytest.approx(8 / 11, abs=1e-3)
    assert found["fill-drain"] == pytest.approx(3 / 11, abs=1e-3)


def test_recomputation_is_shown_apart_from_compute() -> None:
    line = Pipeline(p=2, m=4, again={0: 5000.0, 1: 5000.0})
    found = of(line)["breakdown"].phase
    assert found["recompute"] == pytest.approx(4 * 5000 / length(line), abs=1e-3)
    assert found["compute"] == pytest.approx(4 * 30_000 / length(line), abs=1e-3)
    assert found["imbalance-wait"] < 1e-3


@given(
    st.integers(2, 4),
    st.integers(1, 5),
    st.dictionaries(st.integers(0, 3), st.sampled_from([0.5, 1.3, 2.0]), max_size=2),
    st.dictionaries(st.sampled_from([(0, 1), (1, 0), (1, 2), (2, 3), (3, 2)]), st.sampled_from([900.0, 7000.0]), max_size=2),
    st.dictionaries(st.integers(0, 3), st.sampled_from([800.0, 9000.0]), max_size=2),
)
@settings(max_examples=15, deadline=None)
def test_shares_sum_to_one_and_none_is_negative(
    p: int, m: int, factors: dict[int, float], late: dict[tuple[int, int], float], load: dict[int, float]
) -> None:
    found = of(Pipeline(p=p, m=m, stage_factor=factors, late=late, slow=late, load=load, reduce=300.0, optimizer=900.0, broadcast=100.0, steps=1))[
        "breakdown"
    ]
    assert set(found.phase) == set(PARTS)
    for shares in (found.phase, found.step):
        assert sum(shares.values()) == pytest.approx(1)
        assert all(0 <= v <= 1 for v in shares.values())


def test_parts_of_the_step_by_hand() -> None:
    """Equal stages of 150 ms phase; the reduction 6 ms, the optimizer 30, the broadcast 9, then a pause of 1 ms to the next step."""
    line = Pipeline(p=2, m=4, skew={0: 20_000.0, 1: 20_000.0}, reduce=6000.0, optimizer=30_000.0, broadcast=9000.0)
    found = of(line)["breakdown"].step
    whole = 20_000 + length(line) + 6000 + 30_000 + 9000 + 1000
    # stage 1 drains one backward pass before stage 0: its reduction lies within the phase, and the mean over the two is half of one
    want = {"start-skew": 20_000, "pipeline": length(line), "reduce": 3000, "optimizer": 30_000, "loss-broadcast": 9000, "other": 1000 + 3000}
    for part, time in want.items():
        assert found[part] == pytest.approx(time / whole, abs=2e-3), part


def test_a_replica_that_waits_for_another_loses_it_to_the_reduction() -> None:
    """Replica 1 is slow throughout: 40 ms a backward pass. Each stage reduces once its slow rank has drained, stage 1 40 ms before stage 0."""
    line = Pipeline(p=2, m=4, replicas=2, factor={(1, 0): 2.0, (1, 1): 2.0}, reduce=1000.0)
    found = of(line)["breakdown"].step
    (_, fast), (_, slow) = (phase(simulate(line, r)) for r in (0, 1))
    whole = slow + 1000 + 1000
    of_fast = ((slow + 1000 - fast) + (slow - 40_000 + 1000 - fast)) / 2
    of_slow = (1000 + 0) / 2
    assert found["pipeline"] == pytest.approx((fast + slow) / 2 / whole, abs=1e-3)
    assert found["reduce"] == pytest.approx((of_fast + of_slow) / 2 / whole, abs=1e-3)


def test_stages_that_were_not_all_recorded_give_no_breakdown() -> None:
    with pytest.raises(CannotTell, match="not all stages"):
        of(Pipeline(p=4, m=4), keep={0, 1, 3})["breakdown"]


def test_stages_with_different_counts_of_passes_give_no_breakdown() -> None:
    """A trace that was cut: stage 1 shows three passes of four."""
    made = traces(Pipeline(p=2, m=4, steps=1))
    cut = [e for e in made[1].events if e["cat"] == "cpu_op" and "autograd" in e["name"]][-1]
    made[1].events = [e for e in made[1].events if e["ts"] < cut["ts"]]
    with pytest.raises(CannotTell, match="same number of micro-batches"):
        of_traces(made, topology_map(2))["durations"]


def test_releases_that_send_first_are_replayed_so() -> None:
    """Before v0.8.3 an activation left before the gradient was waited for: on traces of such a release the new order would not fit."""
    line = Pipeline(p=3, m=5, transfer=4000.0)
    new, old = (of(line, fact("version.deepspeed", v))["breakdown"].replay_error for v in ("0.8.3", "0.8.2"))
    assert new == pytest.approx(0, abs=1e-3)
    assert old > 0.01


# ---- links


def links(line: Pipeline) -> dict[tuple[int, int], dict[str, float]]:
    return {(int(r["source"]), int(r["target"])): r for r in of(line)["links"].to_dict("records")}


def test_links_of_equal_transfers_cost_nothing() -> None:
    found = links(Pipeline(**PLAIN))
    assert set(found) == {(0, 1), (1, 0), (1, 2), (2, 1), (2, 3), (3, 2)}
    assert all(row["cost"] == pytest.approx(0, abs=1e-4) for row in found.values())
    assert {row["messages"] for row in found.values()} == {2 * 8}
    # 10 us, less what the receiver was late itself
    assert all(row["transfer_ns"] <= 10_000 for row in found.values())


@pytest.mark.parametrize("edge", [(0, 1), (1, 0), (1, 2), (3, 2)])
@pytest.mark.parametrize("how", ["slow", "late"])
def test_a_bad_link_costs_what_it_adds_to_the_phase(edge: tuple[int, int], how: str) -> None:
    line = Pipeline(**PLAIN, **{how: {edge: 9000.0}})
    found = links(line)
    assert found[edge]["cost"] == pytest.approx(1 - length(Pipeline(**PLAIN)) / length(line), abs=2e-3)
    assert found[edge]["late_ns" if how == "late" else "transfer_ns"] == pytest.approx(9_000_000, rel=0.01)
    assert max(row["cost"] for other, row in found.items() if other != edge) < 1e-3


def test_a_slow_stage_is_no_slow_link() -> None:
    assert max(row["cost"] for row in links(Pipeline(**PLAIN, stage_factor={2: 2.5})).values()) < 1e-3


def test_two_stages_have_one_link_in_two_directions() -> None:
    found = links(Pipeline(p=2, m=6, late={(0, 1): 9000.0}))
    assert set(found) == {(0, 1), (1, 0)}
    assert found[0, 1]["cost"] > 0.1
    assert found[1, 0]["cost"] < 1e-3


# ---- collectives


def test_what_a_collective_takes_is_the_shortest_of_its_ranks() -> None:
    """Rank 1 comes 300 us late: the others wait for it; 40 us is what the collective takes."""
    made = [Trace(r, 3) for r in range(3)]
    for r, trace in enumerate(made):
        trace.step(3, 0, 1000)
        begin = 500 if r == 1 else 200
        trace.add("user_annotation", "gloo:all_reduce", begin, 540 - begin)
        trace.add("user_annotation", "gloo:broadcast", 700, 20)
    found = of_traces(made)["collectives"].set_index("name")
    assert found.loc["all_reduce", ["step", "ranks", "own_ns", "wait_ns"]].tolist() == [4, 3, 40_000, 300_000]
    assert found.loc["all_reduce", "share"] == pytest.approx(0.04)
    assert found.loc["broadcast", ["own_ns", "wait_ns"]].tolist() == [20_000, 0]


def test_a_collective_of_one_recorded_rank_shows_nothing() -> None:
    """Its duration is waiting and transfer in one."""
    trace = Trace(0, 8)
    trace.step(3, 0, 1000)
    trace.add("user_annotation", "gloo:all_reduce", 100, 800)
    assert len(of_traces([trace])["collectives"]) == 0


def test_no_collective_at_all_cannot_tell() -> None:
    trace = Trace(0, 8)
    trace.step(3, 0, 1000)
    with pytest.raises(CannotTell, match="no trace shows collectives"):
        of_traces([trace])["collectives"]
