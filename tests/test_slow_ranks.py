"""Ranks that are slower in some steps than in others, by hand: 20 ms a micro-batch and 300 ms a step, eight micro-batches, longer by what the slow rank adds."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest

from pipelog.detectors import pl202_straggler_rank
from pipelog.events import EVENTS, Events
from pipelog.findings import Finding, Severity
from pipelog.tables import CannotTell, Tables
from pipelog.tables.balance import since
from pipelog.tables.slow_ranks import Slow, slow_over
from pipelog.tables.topology import Topology
from tests.host_pipeline import Pipeline, traces
from tests.making import of_traces, topology_map
from tests.telling import read
from tests.test_rank_timers import STEP_MS, header, iteration, table

Times = Callable[[int, int, int], float]
"""(stage, replica, step) → ms per micro-batch."""


def job(times: Times, *, pp: int = 3, dp: int = 1, tp: int = 1, steps: int = 40, moves: float = 0.0) -> Tables:
    """moves: by how much every rank's time goes up and down around its own, in turn (a sawtooth of five)."""
    rows = []
    for step in range(1, steps + 1):
        wave = 1 + moves * (step % 5 - 2) / 2
        each = {(s, r): times(s, r, step) * wave for s in range(pp) for r in range(dp)}
        length = 300 + 8 * max(0.0, max(each.values()) - 20 * wave)
        for (s, r), ms in each.items():
            for t in range(tp):
                place = {"step": step, "stage": s, "replica": r, "rank": (s * dp + r) * tp + t, "file": "r.json", "line": step}
                rows.append(place | {"busy_ns": 8e6 * ms, "micro_batches": 8, "step_ns": 1e6 * length, "per": "micro-batch", "source": "trace"})
    size = pp * dp * tp
    ranks = pd.DataFrame({"rank": range(size), "stage": np.arange(size) // (dp * tp), "replica": np.arange(size) // tp % dp, "host": None})
    shared = {
        "compute_time": pd.DataFrame(rows),
        "topology": Topology(size, pp, dp, tp, ranks=ranks),
        "straggler_reports": pd.DataFrame(columns=["source"]),
    }
    return Tables(Events(EVENTS.empty_table(), []), None, shared)


def slow(times: Times, **more: float) -> list[Slow]:
    return slow_over(job(times, **more)["own_pace"], 0.10)  # type: ignore[arg-type]


def found(times: Times, **more: float) -> list[Finding]:
    tables = job(times, **more)  # type: ignore[arg-type]
    return list(pl202_straggler_rank.straggler_rank(tables, tables["topology"]))


def one(stage: int, replica: int, ms: float, steps: range | tuple[int, ...]) -> Times:
    return lambda s, r, step: ms if (s, r) == (stage, replica) and step in steps else 20.0


def test_slow_from_a_step_on_with_one_replica() -> None:
    """28 against 20 ms from step 31 on: 8 x 8 = 64 ms of 364 ms, 17.6 %."""
    (finding,) = found(one(1, 0, 28.0, range(31, 41)))
    assert finding.title == (
        "rank 1 (stage 1, replica 0) computes 40.0 % longer from step 31 on than before: 28.0 ms per micro-batch against 20.0 ms, while the others keep their pace; "
        "whether the device or the work of its stage changed, one replica does not tell"
    )
    assert finding.where.steps == (31, 40)
    assert finding.severity is Severity.WARNING
    assert finding.cost == pytest.approx(64 / 364)


@pytest.mark.parametrize("first", [4, 20, 36])
def test_the_step_of_the_change_is_found_early_and_late(first: int) -> None:
    (told,) = slow(one(2, 0, 30.0, range(first, 41)), moves=0.3)
    assert (told.pattern, int(told.rows["step"].iloc[0]), told.ranks) == ("since", first, (2,))


def test_of_two_replicas_the_peers_tell_it_first_with_the_step() -> None:
    (finding,) = found(one(1, 1, 28.0, range(31, 41)), dp=2)
    assert (
        finding.title == "rank 3 (stage 1, replica 1) computes 40.0 % longer than its peers from step 31 on: 28.0 ms per micro-batch against 20.0 ms"
    )


def test_a_step_that_is_as_before_does_not_hide_the_change() -> None:
    """One of twenty steps after it: it is still slow from step 21 on."""
    times = one(1, 1, 28.0, tuple(n for n in range(21, 41) if n != 33))
    (finding,) = found(times, dp=2)
    assert finding.where.steps == (21, 40)
    assert since(np.array([False] * 20 + [True] * 12 + [False] + [True] * 7)) == 20


def test_single_steps_that_come_back() -> None:
    """Twice as long in three of 40 steps: 160 ms each; 3 x 160 of 40 x 300 + 3 x 160 ms, 3.8 %."""
    (finding,) = found(one(0, 0, 40.0, (9, 22, 31)))
    assert (
        "computes 100 % longer in 3 of 40 measured steps (9, 22 and 31): it comes back, and does not last: 40.0 ms per micro-batch against 20.0 ms"
        in finding.title
    )
    assert finding.severity is Severity.INFO
    assert finding.cost == pytest.approx(480 / 12480)
    assert "nothing is to be exchanged" in finding.advice[0].action


def test_a_regular_distance_is_told() -> None:
    (told,) = slow(one(0, 0, 40.0, (10, 20, 30, 40)))
    assert (told.pattern, told.every) == ("recurring", 10)
    (finding,) = found(one(0, 0, 60.0, (10, 20, 30, 40)))
    assert "(10, 20, 30 and 40, every 10 steps)" in finding.title
    assert finding.severity is Severity.WARNING  # 320 ms four times: 9.6 %


def test_one_step_alone_is_a_one_off() -> None:
    (finding,) = found(one(2, 0, 60.0, (17,)))
    assert "computes 200 % longer in step 17 alone, of 40 measured steps: a one-off" in finding.title
    assert finding.severity is Severity.INFO


def test_a_period_that_ended() -> None:
    (finding,) = found(one(1, 0, 30.0, range(12, 20)))
    assert "computes 50.0 % longer from step 12 to step 19 than before and after" in finding.title
    assert finding.where.steps == (12, 19)


def test_a_pace_that_creeps() -> None:
    """From 20.3 to 32 ms in even steps of 0.3: the medians of the last ten and the first ten are 30.65 and 21.65 ms, 41.6 %."""
    (finding,) = found(lambda s, _r, step: 20.0 + 0.3 * step if s == 1 else 20.0)
    assert "computes longer and longer: 41.6 % more in the last 10 measured steps than in the first: " in finding.title


def test_the_ranks_of_a_tensor_group_are_one() -> None:
    (finding,) = found(one(1, 0, 28.0, range(31, 41)), tp=2)
    assert finding.where.ranks == (2, 3)
    assert "which one it is is not told" in finding.title


@pytest.mark.parametrize(
    ("times", "more"),
    [
        pytest.param(lambda _s, _r, step: 20.0 if step < 25 else 30.0, {}, id="all-ranks-change"),
        pytest.param(lambda _s, _r, step: 40.0 if step in (9, 22, 31) else 20.0, {}, id="all-ranks-now-and-then"),
        pytest.param(lambda s, _r, step: 30.0 if s == 1 and step > 25 else 20.0, {"dp": 2}, id="a-stage-on-all-replicas"),
        pytest.param(lambda _s, r, step: 40.0 if r == 1 and step in (9, 22, 31) else 20.0, {"dp": 2}, id="a-replica-with-longer-sequences"),
        pytest.param(one(1, 0, 90.0, range(1, 3)), {}, id="warm-up"),
        pytest.param(one(1, 0, 30.0, range(1, 21)), {}, id="faster-from-a-step-on"),
        pytest.param(one(1, 0, 21.5, range(20, 41)), {}, id="less-than-the-limit"),
        pytest.param(one(1, 0, 20.0, range(1)), {"moves": 0.5}, id="all-go-up-and-down"),
        pytest.param(lambda s, _r, step: 60.0 if step % 13 == 3 * s + 1 else 20.0, {"pp": 4}, id="every-rank-has-its-hiccups"),
        pytest.param(one(1, 0, 30.0, range(5, 8)), {"steps": 7}, id="too-few-steps"),
        pytest.param(one(1, 0, 60.0, (40,)), {}, id="the-last-step-which-may-be-a-beginning"),
        pytest.param(one(1, 0, 30.0, range(37, 41)), {}, id="the-last-four-of-forty"),
    ],
)
def test_not_told(times: Times, more: dict[str, int]) -> None:
    assert slow(times, **more) == []


def test_with_one_replica_a_rank_that_keeps_its_pace_is_not_cleared() -> None:
    """It may be slow from the start."""
    with pytest.raises(CannotTell, match="one data-parallel replica"):
        found(lambda _s, _r, _step: 20.0)


def test_from_traces_of_many_steps() -> None:
    """Twelve cycles of the profiler; stage 1 takes half as long again from the eighth on."""
    made = {}
    for i in range(12):
        line = Pipeline(p=3, m=4, steps=1, first=10 * i, stage_factor={1: 1.5} if i >= 7 else {})
        for r, trace in enumerate(traces(line)):
            trace.header["baseTimeNanoseconds"] += i * 10**10
            made[f"traces/rank{r}.{i:02}.json"] = trace
    (told,) = slow_over(of_traces(made, topology_map(3))["own_pace"], 0.10)
    assert (told.pattern, told.ranks, told.rows["step"].tolist()) == ("since", (1,), [71, 81, 91, 101, 111])


def test_from_the_timers_of_a_log() -> None:
    """Megatron's timers of four stages, 14 intervals of ten steps; rank 2 needs 15 ms instead of 10 a micro-batch each way from step 101 on: 2 x 10 x 5 ms of 1,100."""
    lines = header(4, 1)
    for i in range(14):
        slow_now = i >= 10
        lines.append(iteration(10 * (i + 1)).replace(str(STEP_MS), str(STEP_MS + 100 * slow_now)))
        lines += table(range(4), lambda rank, n=slow_now: dict.fromkeys(("forward-compute", "backward-compute"), 150.0 if n and rank == 2 else 100.0))
    tables = read({"train.log": lines})
    with pytest.raises(CannotTell):  # four intervals are too few to be sure
        list(pl202_straggler_rank.straggler_rank(tables, tables["topology"]))
    for i in range(14, 16):
        lines.append(iteration(10 * (i + 1)).replace(str(STEP_MS), str(STEP_MS + 100)))
        lines += table(range(4), lambda rank: dict.fromkeys(("forward-compute", "backward-compute"), 150.0 if rank == 2 else 100.0))
    tables = read({"train.log": lines})
    (finding,) = pl202_straggler_rank.straggler_rank(tables, tables["topology"])
    assert "rank 2 (stage 2, replica 0) computes 50.0 % longer from step 110 on than before: 30.0 ms per micro-batch against 20.0 ms" in finding.title
    assert finding.cost == pytest.approx(100 / 1100)
