"""Compute of stages against each other, of ranks against their peers, and the exact unions of device work."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.host_pipeline import Pipeline, traces
from tests.making import Trace, of_traces, topology_map


def of(line: Pipeline, keep: set[int] | None = None) -> Any:
    made = {f"traces/rank{i}.json": t for i, t in enumerate(traces(line)) if keep is None or i in keep}
    return of_traces(made, topology_map(line.p, line.replicas))


# ---- balance of stages


@given(st.lists(st.integers(5, 30), min_size=2, max_size=4))
@settings(max_examples=10, deadline=None)
def test_excess_is_over_the_mean_stage(factors: list[int]) -> None:
    found = of(Pipeline(p=len(factors), m=2, stage_factor={s: f / 10 for s, f in enumerate(factors)}, steps=1))["balance"]
    mean = sum(factors) / len(factors)
    assert found["compute_ns"].tolist() == pytest.approx([f * 3e6 for f in factors], abs=30_000)
    assert found["excess"].tolist() == pytest.approx([f / mean - 1 for f in factors], abs=5e-3)
    assert found["excess"].max() == pytest.approx(max(factors) / mean - 1, abs=5e-3)


def test_one_slow_replica_of_two_is_no_imbalance() -> None:
    """The lower median of a stage's replicas: the slow one is a straggler."""
    found = of(Pipeline(p=2, m=4, replicas=2, factor={(1, 0): 3.0}))["balance"]
    assert found["excess"].tolist() == pytest.approx([0, 0], abs=2e-3)


def test_both_replicas_of_a_stage_slow_is_an_imbalance() -> None:
    found = of(Pipeline(p=2, m=4, replicas=2, factor={(0, 1): 3.0, (1, 1): 3.2}))["balance"]
    assert found["excess"].tolist() == pytest.approx([1 / 2 - 1, 3 / 2 - 1], abs=2e-3)


def test_one_odd_step_of_three_moves_nothing() -> None:
    """Median over steps: the first one holds warm-up."""
    lines = [Pipeline(p=2, m=2, stage_factor={1: f}, steps=1, first=10 * i) for i, f in enumerate((5.0, 1.0, 1.0))]
    made = {}
    for i, line in enumerate(lines):
        for r, trace in enumerate(traces(line)):
            trace.header["baseTimeNanoseconds"] += i * 10**10
            made[f"traces/rank{r}.{i}.json"] = trace
    assert of_traces(made, topology_map(2))["balance"]["excess"].tolist() == pytest.approx([0, 0], abs=2e-3)


# ---- peers


def test_ranks_are_held_against_the_lower_median_of_their_stage() -> None:
    found = of(Pipeline(p=2, m=4, replicas=3, factor={(1, 0): 2.0, (2, 0): 1.1}))["peers"]
    of_rank = found.groupby("rank")["ratio"].median()
    assert of_rank.to_dict() == pytest.approx({0: 1 / 1.1, 1: 2 / 1.1, 2: 1.0, 3: 1.0, 4: 1.0, 5: 1.0}, abs=2e-3)


def test_two_replicas_are_held_against_the_faster() -> None:
    found = of(Pipeline(p=2, m=4, replicas=2, factor={(1, 0): 1.5}))["peers"]
    assert found.groupby("rank")["ratio"].median().to_dict() == pytest.approx({0: 1.0, 1: 1.5, 2: 1.0, 3: 1.0}, abs=2e-3)


def test_one_replica_has_no_peers() -> None:
    assert len(of(Pipeline(p=4, m=4))["peers"]) == 0


def test_a_stage_recorded_on_one_replica_has_no_peers() -> None:
    assert set(of(Pipeline(p=2, m=4, replicas=2), keep={0, 1, 2})["peers"]["rank"]) == {0, 1}


# ---- devices


def device(*kernels: tuple[str, str, float, float, int], number: int = 0) -> Trace:
    """A trace of (category, name, start, duration, stream)."""
    trace = Trace(0, 2)
    for cat, name, ts, dur, stream in kernels:
        trace.kernel(name, ts, dur, stream=stream, device=number, cat=cat)
    return trace


ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def test_unions_of_device_work_by_hand() -> None:
    """Two overlapping kernels, a collective half under one of them, a copy, a fill of no length; µs with fractions stay exact."""
    trace = device(
        ("kernel", "gemm", 100.0, 50.0, 7),
        ("kernel", "add", 120.0, 40.25, 7),
        ("kernel", ALL_REDUCE, 150.0, 30.0, 20),
        ("gpu_memcpy", "Memcpy HtoD", 200.0, 10.0, 7),
        ("gpu_memset", "Memset", 205.0, 0.001, 7),
    )
    trace.step(3, 50, 300)
    trace.add("cuda_sync", "Stream Sync", 100, 500, pid=0, tid=7, stream=7)
    trace.add("gpu_user_annotation", "nccl:all_reduce", 100, 500, pid=0, tid=20)
    (row,) = of_traces([trace])["devices"].to_dict("records")
    assert (row["rank"], row["kernels"], row["steps"]) == (0, 3, 1)
    want = {"span_us": 110.0, "busy_us": 80.0 + 10.0, "compute_us": 60.25, "comm_us": 30.0, "memory_us": 10.0, "comm_compute_overlap_us": 10.25}
    assert {name: row[name] for name in want} == want


def test_each_device_and_file_has_its_own_row() -> None:
    first = device(("kernel", "gemm", 0, 10, 7))
    first.kernel("gemm", 0, 30, device=1)
    second = device(("kernel", "gemm", 5, 20, 7))
    second.header["deviceProperties"] = [{"id": 0, "name": "NVIDIA H100"}]
    found = of_traces([first, second])["devices"]
    assert found[["file", "device", "busy_us"]].to_numpy().tolist() == [
        ["traces/rank0.json", "gpu 0", 10.0],
        ["traces/rank0.json", "gpu 1", 30.0],
        ["traces/rank1.json", "NVIDIA H100", 20.0],
    ]


def test_no_device_work_has_no_row() -> None:
    trace = Trace(0, 1)
    trace.op("aten::add", 0, 10)
    assert len(of_traces([trace])["devices"]) == 0
