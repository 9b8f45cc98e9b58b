"""Pipeline instructions read from annotations and frames, or reconstructed from operators, of hand-made traces."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from pipelog.events import Events
from pipelog.tables import Tables
from tests.host_pipeline import Pipeline, simulate, traces
from tests.making import Row, Trace, of_traces, topology_map

BASE = 1_700_000_000_000_000_000
BACKWARD = "autograd::engine::evaluate_function: MulBackward0"


def rows(found: Any, rank: int = 0) -> list[tuple[int, str, int, float, float]]:
    """(step, instruction, micro-batch, begin, end) in µs from the base."""
    mine = found[found["rank"] == rank].sort_values("start_ns", kind="stable")
    return [
        (int(s), w, int(k), (int(a) - BASE) / 1000, (int(b) - BASE) / 1000)
        for s, w, k, a, b in zip(mine["step"], mine["instruction"], mine["micro_batch"], mine["start_ns"], mine["end_ns"], strict=True)
    ]


def of(trace: Trace, *more: Row) -> Any:
    return of_traces([trace], more)["instructions"]


# ---- a two-stage pipeline by hand

STAGE_0 = Trace(0, 2)
STAGE_1 = Trace(1, 2)
for _trace in (STAGE_0, STAGE_1):
    _trace.step(3, 0, 40_000)
# stage 0, one micro-batch: load, F 1000-3000, send at 3010, waits for the gradient until 9000, B 9100-13000, optimizer
STAGE_0.op("aten::randn", 100, 50)
STAGE_0.op("aten::clone", 200, 10, 7)
STAGE_0.op("aten::detach", 215, 5, 7)
STAGE_0.op("aten::clone", 1000, 100, 7)
STAGE_0.op("aten::linear", 1200, 800, 7)
STAGE_0.op("aten::relu", 2000, 1000, 9)
STAGE_0.message("send", 1, 3010, 90)
STAGE_0.message("recv", 1, 3110, 5890)
STAGE_0.op(BACKWARD, 9100, 1900)
STAGE_0.op(BACKWARD, 11_000, 2000)
STAGE_0.add("user_annotation", "Optimizer.step#Adam.step", 20_000, 3000)
STAGE_0.op("aten::addcmul_", 20_100, 2000, 10)
STAGE_0.op("aten::mul", 22_200, 300, 11)
# stage 1: receives until 3100, F 3800-5000 (0.7 ms after it: no prologue), B 5100-8900, sends
STAGE_1.message("recv", 0, 50, 3050)
STAGE_1.op("aten::detach", 3105, 5, 40)
STAGE_1.op("aten::linear", 3800, 700, 40)
STAGE_1.op("aten::nll_loss", 4500, 500, 41)
STAGE_1.op(BACKWARD, 5100, 3800)
STAGE_1.message("send", 0, 8910, 80)


def test_passes_messages_and_micro_batches_of_two_stages() -> None:
    found = of_traces([STAGE_0, STAGE_1], topology_map(2))["instructions"]
    assert set(found["source"]) == {"operators"}
    # the forward pass lasts to the send right after it, the backward pass begins where the receive ended: Python of the pass
    assert rows(found, 0) == [
        (4, "forward", 0, 1000, 3010),
        (4, "send", 0, 3010, 3100),
        (4, "recv", 0, 3110, 9000),
        (4, "backward", 0, 9000, 13_000),
    ]
    # before a forward pass nothing is added; the short gap before the backward pass of the same micro-batch is the backward's
    assert rows(found, 1) == [
        (4, "recv", 0, 50, 3100),
        (4, "forward", 0, 3800, 5000),
        (4, "backward", 0, 5000, 8900),
        (4, "send", 0, 8910, 8990),
    ]


def test_peers_of_messages_are_those_of_their_calls() -> None:
    made = of_traces([STAGE_0, STAGE_1], topology_map(2))["messages"].sort_values("send_ns")
    assert made[["source", "target"]].to_numpy().tolist() == [[0, 1], [1, 0]]
    assert [(int(v) - BASE) / 1000 for v in made["receive_end_ns"]] == [3100, 9000]


def test_stages_from_peers_where_no_log_tells() -> None:
    found = of_traces([STAGE_0, STAGE_1])["stage_time"]
    assert found[["rank", "stage"]].to_numpy().tolist() == [[0, 0], [1, 1]]
    # phase: F0 of stage 0 begins at 1000, its backward ends at 13,000
    assert found["phase_ns"].tolist() == [12_000_000, 12_000_000]
    assert found["busy_ns"].tolist() == [(3010 - 1000 + 13_000 - 9000) * 1000, (8900 - 3800) * 1000]


@pytest.mark.parametrize(
    "line", [Pipeline(p=2, m=4), Pipeline(p=4, m=8, stage_factor={2: 1.5}), Pipeline(p=3, m=2), Pipeline(p=3, m=6, late={(1, 2): 3000.0})]
)
def test_reconstruction_finds_the_passes_that_were_made(line: Pipeline) -> None:
    found = of_traces(traces(line), topology_map(line.p))["instructions"]
    for stage, made in enumerate(simulate(line)):
        for step in (line.first + 1, line.first + 2):
            mine = [r for r in rows(found, stage) if r[0] == step]
            assert [(w[0].upper(), k) for _, w, k, *_ in mine if w in ("forward", "backward")] == [(w, k) for w, k, *_ in made if w in ("F", "B")]
            lengths = [b - a for _, w, _, a, b in mine if w in ("forward", "backward")]
            wanted = [b - a for w, _, a, b in made if w in ("F", "B")]
            assert lengths == pytest.approx(wanted, abs=1.0)


# ---- what names its instructions


def test_annotations_name_instructions() -> None:
    trace = Trace(0, 2)
    trace.step(3, 0, 10_000)
    for at, name in (
        (10, "LoadMicroBatch"),
        (20, "ds::ForwardPass mb=0"),
        (30, "SendActivations"),
        (40, "RecvGrads"),
        (50, "BackwardPass"),
        (60, "ReduceGrads"),
    ):
        trace.add("user_annotation", name, at, 8)
    trace.add("user_annotation", "MyForwardPassage", 70, 8)
    trace.add("user_annotation", "NoForwardPass", 80, 8)
    found = of(trace)
    assert set(found["source"]) == {"annotation"}
    assert [(w, a) for _, w, _, a, _ in rows(found)] == [
        ("load_micro_batch", 10),
        ("forward", 20),
        ("send_activation", 30),
        ("recv_grad", 40),
        ("backward", 50),
        ("reduce_grads", 60),
    ]


def test_frames_of_the_engine_name_instructions() -> None:
    trace = Trace(0, 2)
    trace.step(3, 0, 10_000)
    for k in range(2):
        for at, name in ((10, "_exec_load_micro_batch"), (20, "_exec_forward_pass"), (30, "_exec_send_activations"), (40, "_exec_backward_pass")):
            trace.add("python_function", f"deepspeed/runtime/pipe/engine.py({700 + at}): {name}", 100 * k + at, 8)
    trace.add("python_function", "my/engine.py(3): _exec_forward_pass_mine", 300, 8)
    found = of(trace)
    assert set(found["source"]) == {"stack"}
    assert [(w, k) for _, w, k, *_ in rows(found)] == [
        (w, k) for k in range(2) for w in ("load_micro_batch", "forward", "send_activation", "backward")
    ]


def test_annotations_are_believed_before_frames() -> None:
    trace = Trace(0, 2)
    trace.step(3, 0, 1000)
    for name, at in (("forward", 20), ("backward", 40)):
        trace.add("python_function", f"deepspeed/runtime/pipe/engine.py(1): _exec_{name}_pass", at, 8)
        trace.add("user_annotation", f"{name.title()}Pass", at + 1, 6)
    assert [(w, a) for _, w, _, a, _ in rows(of(trace))] == [("forward", 21), ("backward", 41)]


def test_annotations_of_forward_passes_alone_are_no_source() -> None:
    """An evaluation, or a user's own range that happens to be called so."""
    trace = Trace(0, 2)
    trace.step(3, 0, 1000)
    trace.add("user_annotation", "ForwardPass", 20, 8)
    assert len(of(trace)) == 0


# ---- what is no pass


def test_work_of_the_optimizer_is_no_pass() -> None:
    found = rows(of_traces([STAGE_0, STAGE_1])["instructions"], 0)
    assert max(end for *_, end in found) == 13_000


def test_operators_without_gradients_are_no_forward_pass() -> None:
    """A load that computes (tokenizing on the fly), an evaluation under no_grad: the sequence number stands still."""
    trace = Trace(0, 2)
    trace.step(3, 0, 10_000)
    for at in (100, 200):
        trace.op("aten::mul", at, 50, 5)
    trace.message("send", 1, 300, 10)
    trace.op("aten::linear", 1000, 100, 5)
    trace.op("aten::relu", 1100, 100, 6)
    trace.message("send", 1, 1200, 10)
    trace.op(BACKWARD, 2000, 100)
    assert [(w, a) for _, w, _, a, _ in rows(of(trace)) if w in ("forward", "backward")] == [("forward", 1000), ("backward", 2000)]


def test_a_trace_without_messages_has_no_instructions() -> None:
    """One stage, or data parallel training: operators alone cannot be cut into micro-batches."""
    trace = Trace(0, 1)
    trace.step(3, 0, 1000)
    trace.op("aten::linear", 10, 5, 1)
    trace.op("aten::relu", 20, 5, 2)
    trace.op(BACKWARD, 30, 5)
    assert len(of(trace)) == 0


def test_what_lies_outside_every_step_is_left_out() -> None:
    trace = Trace(0, 2)
    trace.step(3, 1000, 1000)
    for at in (100, 1100):
        trace.op("aten::linear", at, 5, at)
        trace.op("aten::relu", at + 5, 5, at + 1)
        trace.message("send", 1, at + 20, 5)
        trace.op(BACKWARD, at + 600, 5)
    assert [(w, a) for _, w, _, a, _ in rows(of(trace)) if w == "forward"] == [("forward", 1100)]


def test_the_main_thread_is_that_of_the_steps() -> None:
    """A data loader's thread is busier than the one that trains."""
    trace = Trace(0, 2)
    trace.step(3, 0, 10_000)
    trace.op("aten::linear", 1000, 5, 1)
    trace.op("aten::relu", 1005, 5, 2)
    trace.message("send", 1, 1020, 5)
    trace.op(BACKWARD, 2000, 5)
    for at in range(0, 9000, 10):
        trace.op("aten::stack", at, 3, at, tid=77)
        trace.op("aten::to", at + 4, 3, at + 1, tid=77)
    assert [(w, a) for _, w, _, a, _ in rows(of(trace))] == [("forward", 1000), ("send", 1020), ("backward", 2000)]


# ---- windows


def windows(trace: Trace) -> list[tuple[int, float, float]]:
    made = of_traces([trace])["host_traces"][0].windows
    return [(n, (a - BASE) / 1000, (b - BASE) / 1000) for n, a, b in made]


def test_profiler_steps_are_the_windows_and_count_from_one() -> None:
    trace = Trace(0, 1)
    trace.step(0, 0, 100)
    trace.step(1, 110, 90)
    assert windows(trace) == [(1, 0, 100), (2, 110, 200)]


def test_without_profiler_steps_the_optimizer_s_ends_divide_the_trace() -> None:
    trace = Trace(0, 1)
    trace.op("aten::add", 0, 10)
    for at in (100, 200, 300):
        trace.add("user_annotation", "Optimizer.step#SGD.step", at, 10)
    trace.op("aten::add", 400, 10)
    assert [(n, a) for n, a, _ in windows(trace)] == [(-1, 0), (-1, 110), (-1, 210)]
    assert windows(trace)[-1][2] == pytest.approx(410, abs=0.01)


def test_without_both_the_whole_trace_is_one_window() -> None:
    trace = Trace(0, 1)
    trace.op("aten::add", 5, 10)
    trace.op("aten::add", 90, 10)
    assert [(n, a) for n, a, _ in windows(trace)] == [(-1, 5)]


def test_traces_without_a_rank_are_no_host_trace() -> None:
    trace = Trace(None)
    trace.op("aten::add", 5, 10)
    assert of_traces({"traces/some.json": trace})["host_traces"] == []


# ---- recomputation


def test_recomputation_is_part_of_the_backward_pass() -> None:
    line = Pipeline(p=2, m=4, again={1: 3000.0})
    found = of_traces(traces(line), topology_map(2))["stage_time"]
    of_stage = found.groupby("stage")[["recompute_ns", "backward_ns"]].first()
    assert of_stage["recompute_ns"].tolist() == [0, 4 * 3_000_000]
    assert of_stage["backward_ns"].tolist() == [4 * 20_000_000, 4 * 23_000_000]


# ---- several files of one rank


def later(made: list[Trace], seconds: float) -> list[Trace]:
    """The same traces, recorded *seconds* later."""
    for trace in made:
        trace.header["baseTimeNanoseconds"] += round(seconds * 1e9)
    return made


def files(*runs: list[Trace]) -> dict[str, Trace]:
    return {f"traces/rank{r}.{n}.json": trace for n, run in enumerate(runs) for r, trace in enumerate(run)}


@pytest.mark.parametrize("numbered", [True, False])
def test_a_file_for_each_cycle_of_the_profiler_adds_steps(numbered: bool) -> None:
    """schedule(repeat=2): steps 4 and 5 in the first files, 14 and 15 in the second ones; without step numbers windows count on."""
    first, second = traces(Pipeline(p=2, m=4, optimizer=500.0)), later(traces(Pipeline(p=2, m=4, first=13, optimizer=500.0)), 10)
    if not numbered:
        for trace in (*first, *second):
            trace.events = [e for e in trace.events if not e["name"].startswith("ProfilerStep")]
    found = of_traces(files(first, second), topology_map(2))
    times = found["stage_time"]
    assert times["step"].unique().tolist() == ([4, 5, 14, 15] if numbered else [0, 1, 2, 3])
    assert times["micro_batches"].tolist() == [4] * 8
    assert times["complete"].all()
    assert found["bubble"].measured == pytest.approx(0.2, abs=2e-3)
    assert len(found["breakdown"].per_step) == 4
    assert len(found["messages"]) == 4 * 2 * 4


def test_a_copy_of_a_trace_counts_once() -> None:
    """rank0.json and rank0.json.gz, or the folder was gathered twice."""
    made = of_traces(files(traces(Pipeline(p=2, m=4)), traces(Pipeline(p=2, m=4))), topology_map(2))
    assert made["stage_time"]["step"].tolist() == [4, 4, 5, 5]
    assert len(made["messages"]) == 2 * 2 * 4
    assert made.get("peers") is None or len(made["peers"]) == 0


def test_the_same_steps_of_an_earlier_run_are_left_out() -> None:
    """Two runs traced into one folder: phases from one run's first pass to the other's last would be hours long."""
    old, new = traces(Pipeline(p=2, m=4, stage_factor={1: 3.0})), later(traces(Pipeline(p=2, m=4)), 3000)
    found = of_traces(files(old, new), topology_map(2))
    assert found["stage_time"]["file"].unique().tolist() == ["traces/rank0.1.json", "traces/rank1.1.json"]
    assert found["bubble"].measured == pytest.approx(0.2, abs=2e-3)


def test_a_rank_of_which_only_an_earlier_run_was_traced_is_not_mixed_in() -> None:
    old, new = traces(Pipeline(p=2, m=4)), later(traces(Pipeline(p=2, m=4)), 3000)
    found = of_traces({"traces/rank0.json": new[0], "traces/rank1.json": old[1]}, topology_map(2))
    assert found["stage_time"]["rank"].unique().tolist() == [0]
    assert not found["stage_time"]["complete"].any()


def test_rows_of_files_that_are_mixed_up_give_the_same() -> None:
    """The reader puts one file after another; a table that was made elsewhere may not."""
    given = of_traces(traces(Pipeline(p=2, m=3)), topology_map(2))
    mixed = given["events"].take(pa.array(np.random.default_rng(3).permutation(given["events"].num_rows)))
    found = Tables(Events(mixed, given["inputs"]))
    columns = ["file", "start_ns", "end_ns", "instruction", "step", "micro_batch", "line"]
    wanted = given["instructions"].sort_values(["file", "start_ns", "line"])[columns].astype(str).to_numpy().tolist()
    assert found["instructions"].astype({"file": str}).sort_values(["file", "start_ns", "line"])[columns].astype(str).to_numpy().tolist() == wanted
    assert len(wanted) == 2 * 2 * 4 * 3  # steps, stages, (two passes, two messages), micro-batches


def test_many_traces_are_put_together_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = of_traces(traces(Pipeline(p=3, m=2)), topology_map(3))["instructions"]
    monkeypatch.setattr("pipelog.tables.instructions._PIECE", 5)
    found = of_traces(traces(Pipeline(p=3, m=2)), topology_map(3))["instructions"]
    assert found.astype(str).to_numpy().tolist() == wanted.astype(str).to_numpy().tolist()
