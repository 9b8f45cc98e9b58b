"""Megatron's timers over ranks: compute of each stage and rank, the wait for batches, and what each of them must not be called."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest

from pipelog.detectors.pl101_high_bubble_ratio import high_bubble_ratio
from pipelog.detectors.pl105_slow_data_loading import slow_data_loading
from pipelog.detectors.pl201_stage_imbalance import stage_imbalance
from pipelog.detectors.pl202_straggler_rank import straggler_rank
from pipelog.findings import DETECTORS, Finding
from pipelog.tables import CannotTell, Tables
from tests.telling import read

Times = Callable[[int, int], dict[str, float]]
"""Interval (from 0) and rank → ms of each timer; a timer of 0 is not printed."""

STEP_MS = 1000.0


def header(pp: int, dp: int, tp: int = 1) -> list[str]:
    sizes = f"data-parallel size: {dp}, context-parallel size: 1, tensor-model-parallel size: {tp}, pipeline-model-parallel size: {pp} "
    return [f"using world size: {pp * dp * tp}, {sizes}", "setting number of microbatches to constant 10"]


def iteration(number: int) -> str:
    return (
        f" iteration {number:8d}/    1000 | consumed samples: {number * 20:12d} | elapsed time per iteration (ms): {STEP_MS} | learning rate: 1.500E-04 | "
        "global batch size:    20 | lm loss: 2.913403E+00 | loss scale: 1.0 | number of skipped iterations:   0 | number of nan iterations:   0 |"
    )


def table(world: Iterable[int], of: Callable[[int], dict[str, float]]) -> list[str]:
    """The form of `--timing-log-option all`."""
    names = dict.fromkeys(name for rank in world for name in of(rank))
    lines = ["times across ranks (ms):"]
    for name in names:
        listed = [f"     rank {rank:2d}: {of(rank)[name]:.2f}" for rank in world if of(rank).get(name)]
        lines += [f"  {name}:", *listed] if listed else []
    return lines


def ranges(**pairs: tuple[float, float]) -> list[str]:
    rows = [f"    {(name.replace('_', '-') + ' ').ljust(48, '.')}: ({low:.2f}, {high:.2f})" for name, (low, high) in pairs.items()]
    return ["(min, max) time across ranks (ms):", *rows]


def job(pp: int, dp: int, times: Times, tp: int = 1, intervals: int = 4, prefix: str = "") -> Tables:
    lines = header(pp, dp, tp)
    for i in range(intervals):
        lines += [iteration(10 * (i + 1)), *table(range(pp * dp * tp), lambda rank, i=i: times(i, rank))]
    return read({"train.log": [f"{prefix}{line}" for line in lines]})


def plain(interval: int, rank: int) -> dict[str, float]:
    """Stages alike, the first interval with its warm-up."""
    warm = 3.0 if interval == 0 else 1.0
    return {"forward-compute": warm * (200 + 0.5 * (rank % 3)), "backward-compute": warm * 400.0, "batch-generator": 2.0 if rank < 2 else 0.0}


def found(rule: Any, tables: Tables) -> list[Finding]:
    needs = next(d.needs for d in DETECTORS.values() if d.name == rule.__name__.replace("_", "-"))
    return list(rule(*(tables[name] for name in needs)))


def slower(*ranks: int, by: float = 1.4, begin: int = 0) -> Times:
    return lambda i, rank: {n: t * (by if rank in ranks and i >= begin else 1) for n, t in plain(i, rank).items()}


@pytest.mark.parametrize("prefix", ["", "7: ", "[default7]:", "worker-3: "])
def test_both_replicas_of_a_stage_slow_is_an_imbalance_and_no_straggler(prefix: str) -> None:
    """Of about 600 ms a step on 10 micro-batches stage 2 takes 840: 84 ms against a mean of (3 x 60 + 84) / 4 = 66."""
    tables = job(4, 2, slower(4, 5), prefix=prefix)
    (finding,) = found(stage_imbalance, tables)
    assert (finding.where.stages, finding.where.ranks, finding.where.steps) == ((2,), (4, 5), (20, 40))
    assert "per micro-batch" in finding.title
    assert tables["balance"]["compute_ns"].max() == pytest.approx(84e6, rel=2e-3)
    assert tables["balance"]["excess"].max() == pytest.approx(84 / 66 - 1, abs=3e-3)
    assert finding.cost == pytest.approx((84 - 66) * 10 / STEP_MS, abs=2e-3)
    assert not found(straggler_rank, tables)
    # an iteration line, the head, then the name of each timer with its ranks, of which the backward pass is the second
    backward = {2 + (1 + 1 + 9 + 9 + 3) * i + 2 + 9 + 1 + rank + 1 for i in range(4) for rank in (4, 5)}
    assert {e.line for e in finding.evidence} <= backward


def test_one_replica_of_a_stage_slow_is_a_straggler_and_no_imbalance() -> None:
    tables = job(4, 2, slower(5))
    (finding,) = found(straggler_rank, tables)
    assert (finding.where.ranks, finding.where.stages, finding.where.steps) == ((5,), (2,), (20, 40))
    assert finding.severity.value == "warning"
    assert tables["balance"]["excess"].max() < 0.01
    assert not found(stage_imbalance, tables)


def test_a_straggler_from_some_interval_on() -> None:
    (finding,) = found(straggler_rank, job(2, 2, slower(3, begin=3), intervals=8))
    assert finding.where.steps == (40, 80)
    assert "from step 40 on" in finding.title


def test_late_in_a_long_run_five_intervals_in_a_row_are_enough() -> None:
    assert [f.where.steps for f in found(straggler_rank, job(2, 2, slower(3, begin=25), intervals=30))] == [(260, 300)]
    assert not found(straggler_rank, job(2, 2, slower(3, begin=26), intervals=30))


def test_one_slow_interval_is_no_straggler() -> None:
    assert not found(straggler_rank, job(2, 2, lambda i, rank: slower(3)(i, rank) if i == 4 else plain(i, rank), intervals=8))


def test_a_tensor_parallel_group_is_one_straggler() -> None:
    """Ranks 4 and 5 are replica 0 of stage 1: they wait for each other in every layer."""
    (finding,) = found(straggler_rank, job(2, 2, slower(4, 5), tp=2))
    assert (finding.where.ranks, finding.where.stages) == ((4, 5), (1,))
    assert "which one it is is not told" in finding.title


def test_one_rank_of_a_tensor_parallel_group_alone_is_less_certain() -> None:
    (finding,) = found(straggler_rank, job(2, 2, slower(5), tp=2))
    assert finding.where.ranks == (5,)
    assert finding.confidence.value == "medium"


def test_one_replica_tells_a_slow_stage_and_no_straggler() -> None:
    tables = job(4, 1, slower(2))
    assert [f.where.stages for f in found(stage_imbalance, tables)] == [(2,)]
    with pytest.raises(CannotTell, match="one data-parallel replica"):
        found(straggler_rank, tables)


def waiting(interval: int, rank: int) -> dict[str, float]:
    """The ranks of the first stage wait 250 ms for their batches, which forward-compute holds."""
    times = plain(interval, rank)
    return times | ({"forward-compute": times["forward-compute"] + 250, "batch-generator": 250.0} if rank in (0, 1) else {})


def test_waiting_for_batches_is_slow_loading_and_no_imbalance() -> None:
    tables = job(4, 2, waiting)
    (finding,) = found(slow_data_loading, tables)
    assert finding.where.stages == (0,)
    assert finding.cost == pytest.approx(0.25)
    assert not found(stage_imbalance, tables)
    assert not found(straggler_rank, tables)


def test_smallest_and_largest_over_ranks_tell_slow_loading_but_no_stage() -> None:
    lines = header(4, 2)
    for i in range(4):
        lines += [iteration(10 * (i + 1)), *ranges(forward_compute=(200, 450), backward_compute=(400, 410), batch_generator=(230, 250))]
    tables = read({"train.log": lines})
    (finding,) = found(slow_data_loading, tables)
    assert "takes 250 ms of a step on the slowest rank, 25.0 % of it" in finding.title
    assert "on the fastest of the ranks that load it takes 230 ms" in finding.title
    assert (finding.where.ranks, finding.where.stages) == ((), ())
    for rule in (stage_imbalance, straggler_rank):
        with pytest.raises(CannotTell, match="--timing-log-option all"):
            found(rule, tables)


def test_the_largest_alone_tells_slow_loading_too() -> None:
    lines = header(4, 2)
    for i in range(4):
        lines += [iteration(10 * (i + 1)), "max time across ranks (ms):", f"    {'batch-generator '.ljust(48, '.')}: 250.00"]
    (finding,) = found(slow_data_loading, read({"train.log": lines}))
    assert finding.title.endswith("25.0 % of it")


def test_some_milliseconds_of_loading_are_usual() -> None:
    assert not found(slow_data_loading, job(4, 2, plain))


def test_a_first_interval_alone_does_not_tell_of_loading() -> None:
    with pytest.raises(CannotTell, match="one print interval"):
        found(slow_data_loading, job(4, 2, waiting, intervals=1))


def test_without_micro_batches_compute_is_told_by_the_step() -> None:
    lines = header(2, 2)[:1]
    for i in range(3):
        line = iteration(10 * (i + 1)).replace(" global batch size:    20 |", "")
        lines += [line, *table(range(4), lambda rank, i=i: slower(2, 3)(i, rank))]
    (finding,) = found(stage_imbalance, read({"train.log": lines}))
    assert finding.title.startswith("stage 1 computes 840 ms a step, ")
    assert finding.cost == pytest.approx((840 - 720) / STEP_MS, abs=2e-3)


def test_ranks_without_a_stage_are_told_of_none() -> None:
    lines = [line for i in range(3) for line in (iteration(10 * (i + 1)), *table(range(4), lambda rank, i=i: slower(2, 3)(i, rank)))]
    with pytest.raises(CannotTell, match="which stage a rank is"):
        found(stage_imbalance, read({"train.log": lines}))


def test_a_host_that_prints_for_all_ranks_is_not_theirs() -> None:
    tables = job(4, 2, slower(5), prefix="worker-3: ")
    assert not {tables["topology"].host_of(rank) for rank in range(7)} - {None}


# ---- the bubble


def in_phase(phase_ms: float, times: Times = plain, **more: float) -> Times:
    return lambda i, rank: times(i, rank) | {"forward-backward": phase_ms} | more


def test_equal_stages_idle_as_the_schedule_needs() -> None:
    """4 stages, 10 micro-batches of 60 ms: 13 x 60 ms from the first forward to the last backward pass."""
    bubble = job(4, 2, in_phase(780.0))["bubble"]
    assert (bubble.scope, bubble.source, len(bubble.per_stage)) == ("run", "timers", 4)
    assert bubble.measured == pytest.approx(3 / 13, abs=2e-3)
    assert bubble.ideal == pytest.approx(3 / 13)


def test_the_reduction_of_gradients_is_no_bubble() -> None:
    found = job(4, 2, in_phase(980.0, **{"all-grads-sync": 190.0, "embedding-grads-all-reduce": 10.0}))["bubble"]
    assert found.measured == pytest.approx(3 / 13, abs=2e-3)


def test_a_replica_that_waits_for_the_other_in_the_reduction_does_not_idle_in_the_pipeline() -> None:
    """Rank 5 is of replica 1: its stage takes 840 ms of 1020, the three others 600; replica 0 waits 240 ms for it after its own passes."""
    found = job(4, 2, in_phase(1020.0, slower(5)))["bubble"]
    assert found.measured == pytest.approx((3 * (1 - 600 / 1020) + 1 - 840 / 1020) / 4, abs=3e-3)
    assert found.measured < found.high


def test_waiting_for_batches_is_idle() -> None:
    assert job(4, 2, in_phase(1040.0, waiting))["bubble"].measured == pytest.approx(1 - 600 / 1040, abs=3e-3)


def test_a_stage_that_is_not_timed_leaves_the_bubble_of_the_run_unknown() -> None:
    times = lambda i, rank: {} if rank in (2, 3) else in_phase(780.0)(i, rank)  # noqa: E731
    assert job(4, 2, times)["bubble"].measured is None


def test_a_bubble_that_a_slow_stage_makes_sends_to_that_stage() -> None:
    """13 x 60 ms of the schedule, and 10 x 24 ms of waiting for stage 2."""
    (finding,) = found(high_bubble_ratio, job(4, 2, in_phase(1020.0, slower(4, 5))))
    assert finding.advice[0].action == "see to stage 2 first"
    (finding,) = found(high_bubble_ratio, job(4, 2, in_phase(1020.0, slower(5))))
    assert finding.advice[0].action == "see to rank 5 first"
    (finding,) = found(high_bubble_ratio, job(4, 2, in_phase(1020.0)))
    assert finding.advice[0].action.startswith("record a torch profiler trace")
