"""The trace reader against figures computed without it, and against every malformation that real writers are known for."""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import pipelog
from pipelog.events import EVENTS, Input
from pipelog.reading.files import Source
from pipelog.reading.traces import is_trace, read_trace
from pipelog.report import Report
from pipelog.tables import Tables, of_kind, union_ns
from tests.conftest import FIXTURES
from tests.making import Trace, read_bytes, write

TRACES = FIXTURES / "traces"
EXPECTED: dict[str, Any] = json.loads((TRACES / "expected.json").read_text())
FILES: dict[str, Any] = EXPECTED["traces"]
PIPELINES: dict[str, Any] = EXPECTED["pipelines"]
STEPS = [(folder, name) for folder, run in PIPELINES.items() for name in run["ranks"]]


def read(name: str) -> tuple[pa.Table, Input]:
    path = TRACES / name
    return read_trace(Source(path, name, path.stat().st_size, 0))


def raw(name: str) -> bytes:
    data = (TRACES / name).read_bytes()
    return gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data


# ---- independent figures

FIGURES = ("span_us", "busy_us", "compute_us", "comm_us", "memory_us", "comm_compute_overlap_us")


@pytest.mark.parametrize("name", FILES)
def test_device_figures_are_the_reference_s(name: str) -> None:
    """Unions over integer nanoseconds, computed independently; exact to a nanosecond. HTA's figures differ by up to 17 %."""
    table, given_input = read(name)
    devices = Tables(pipelog.Events(table, [given_input]))["devices"]
    want = FILES[name]["gpu"]
    assert given_input.notes["trace_events"] == FILES[name]["event_count"]
    assert given_input.skipped == []
    assert table.schema.equals(EVENTS)
    if want is None:
        assert len(devices) == 0
        return
    (row,) = devices.to_dict("records")
    for figure in FIGURES:
        assert row[figure] == pytest.approx(want[figure], abs=0.0011), figure
    assert row["kernels"] == want["kernel_count"]
    assert row["steps"] == len(FILES[name]["profiler_steps"])


@pytest.mark.parametrize("name", [n for n, entry in FILES.items() if entry["profiler_steps"]])
def test_step_windows_are_the_reference_s(name: str) -> None:
    rows = of_kind(read(name)[0], "profiler_step").to_pylist()
    base = json.loads(raw(name)).get("baseTimeNanoseconds", 0) if name.startswith(("hta", "tracelens")) else 0
    found = {f"ProfilerStep#{int(r['value'])}": (r["start_ns"] - base, r["dur_ns"]) for r in rows}
    want = {n: (round(s["start_us"] * 1000), round(s["dur_us"] * 1000)) for n, s in FILES[name]["profiler_steps"].items()}
    assert found.keys() == want.keys()
    for step, times in want.items():
        assert found[step] == pytest.approx(times, abs=1)


@pytest.mark.parametrize(("folder", "name"), STEPS)
def test_messages_and_windows_of_a_cpu_pipeline(folder: str, name: str) -> None:
    """Counts and unions of gloo's sends and receives, of collectives, of the main thread's operators, and the window of every step."""
    table, given_input = read(f"{folder}/{name}")
    want = PIPELINES[folder]["ranks"][name]
    base = json.loads(raw(f"{folder}/{name}"))["baseTimeNanoseconds"]
    trace = Tables(pipelog.Events(table, [given_input]))["host_traces"][0]
    assert trace.rank == given_input.notes["rank"] == want["rank"]
    assert [f"ProfilerStep#{number - 1}" for number, *_ in trace.windows] == list(want["steps"])
    for (_, begin, end), step in zip(trace.windows, want["steps"].values(), strict=True):
        assert begin - base == pytest.approx(round(step["start_us"] * 1000), abs=1)
        assert end - begin == pytest.approx(round(step["dur_us"] * 1000), abs=1)
        inside = (trace.start >= begin) & (trace.start < end)

        def union(mask: np.ndarray, inside: np.ndarray = inside, begin: int = begin, end: int = end) -> float:
            use = mask & inside
            return union_ns(np.maximum(trace.start[use], begin), np.minimum(trace.end[use], end)) / 1000

        for word in ("send", "recv"):
            assert int((inside & (trace.kind == word)).sum()) == step[f"{word}_count"]
            assert union(trace.kind == word) == pytest.approx(step[f"{word}_us"], abs=0.0011)
        assert union(trace.kind == "collective") == pytest.approx(step["collective_us"], abs=0.0011)
        assert union(trace.main & (trace.kind == "cpu_op")) == pytest.approx(step["main_thread_compute_us"], rel=0.005)


@pytest.mark.parametrize(("folder", "count"), [("deepspeed-cpu-pp4", [8, 16, 16, 8]), ("deepspeed-cpu-pp2-stack", [4, 4])])
def test_a_message_goes_to_the_neighbouring_stage(folder: str, count: list[int]) -> None:
    """m messages a step and direction over each edge: peers of calls, found for every wait, and every one matched across ranks."""
    made = Tables(pipelog.read(TRACES / folder))
    for trace in made["host_traces"]:
        peers = trace.peer[trace.kind.isin(("send", "recv")) & (trace.window_of(trace.start) >= 0)]
        assert set(peers.tolist()) == {r for r in (trace.rank - 1, trace.rank + 1) if 0 <= r < len(count)}
    messages = made["messages"]
    per = messages.groupby(["step", "source", "target"]).size()
    assert set(per) == {count[0]}
    assert len(per) == 3 * 2 * (len(count) - 1)


def test_instructions_of_python_frames() -> None:
    """Counts and total times of `_exec_…` frames inside each step."""
    folder = "deepspeed-cpu-pp2-stack"
    found = Tables(pipelog.read(TRACES / folder))["instructions"]
    assert set(found["source"]) == {"stack"}
    words = {"_exec_forward_pass": "forward", "_exec_backward_pass": "backward", "_exec_load_micro_batch": "load_micro_batch"}
    words |= {"_exec_send_activations": "send_activation", "_exec_recv_activations": "recv_activation", "_exec_send_grads": "send_grad"}
    words |= {"_exec_recv_grads": "recv_grad", "_exec_reduce_grads": "reduce_grads", "_exec_optimizer_step": "optimizer_step"}
    for name, steps in PIPELINES[folder]["instructions"].items():
        for step, frames in steps.items():
            mine = found[found["file"].str.endswith(name) & (found["step"] == int(step.rpartition("#")[2]) + 1)]
            for frame, want in frames.items():
                if frame in words:
                    rows = mine[mine["instruction"] == words[frame]]
                    assert len(rows) == want["count"], (name, step, frame)
                    total = (rows["end_ns"] - rows["start_ns"]).sum() / 1000
                    assert total == pytest.approx(want["total_us"], abs=0.01), (name, step, frame)


def test_operators_alone_give_the_passes_that_frames_show() -> None:
    """The reconstruction from operators against the frames of the same trace: same passes, same order, same extents but for their Python."""
    made = Tables(pipelog.read(TRACES / "deepspeed-cpu-pp2-stack"))
    shown = made["instructions"]
    from pipelog.tables.instructions import _CODE, _from_operators  # noqa: PLC0415

    for trace in made["host_traces"]:
        made_of = _from_operators(trace)
        assert made_of is not None
        built = pd.DataFrame(made_of)
        for word in ("forward", "backward"):
            frames = shown[(shown["rank"] == trace.rank) & (shown["instruction"] == word)].sort_values("start_ns")
            rows = built[built["instruction"] == _CODE[word]].sort_values("start_ns")
            assert len(rows) > 0
            assert list(zip(rows["step"], rows["micro_batch"], strict=True)) == list(zip(frames["step"], frames["micro_batch"], strict=True))
            # what lies between the frame's edge and its operators is Python of the engine: below 0.2 ms, with stacks on
            for edge in ("start_ns", "end_ns"):
                assert np.abs(rows[edge].to_numpy() - frames[edge].to_numpy()).max() < 200_000


@pytest.mark.parametrize("folder", PIPELINES)
def test_profiler_step_k_is_the_step_that_the_log_calls_k_plus_1(folder: str) -> None:
    """`steps: 4 … iter time (s): 0.142` and ProfilerStep#3 of rank 0: the printed time is that of train_batch, the window a little longer."""
    made = Tables(pipelog.read(TRACES / folder))
    printed = {int(r["step"]): r["dur_ns"] / 1e9 for r in made["steps"].rows.to_dict("records")}
    rank0 = next(t for t in made["host_traces"] if t.rank == 0)
    assert [n for n, *_ in rank0.windows] == [3, 4, 5]
    for number, begin, end in rank0.windows:
        assert printed[number] == pytest.approx((end - begin) / 1e9, abs=0.001)
    assert made["steps"].source == "deepspeed"


# ---- point-to-point told from collectives


@pytest.mark.parametrize(
    ("name", "want"),
    [
        ("hta/control.json.gz", {("collective", "all_to_all"): 42, ("collective", "all_reduce"): 18}),
        ("hta/sampled_rank-0.json.gz", {("collective", "all_to_all"): 4, ("collective", "all_reduce"): 4, ("collective", "all_gather"): 2}),
        ("hta/sampled_rank-1.json.gz", {("collective", "all_to_all"): 4, ("collective", "all_reduce"): 4, ("collective", "all_gather"): 2}),
    ],
)
def test_sendrecv_kernels_are_told_by_their_calls(name: str, want: dict[tuple[str, str], int]) -> None:
    """Every one of these kernels but the AllReduce ones is called SendRecv; none is point-to-point."""
    rows = [r for r in of_kind(read(name)[0], "collective", "send", "recv", "p2p").to_pylist() if r["device"] != "cpu"]
    assert Counter((r["kind"], r["name"]) for r in rows) == want


def test_collectives_with_their_own_arguments() -> None:
    """hta/nccl_data: AllReduce and Broadcast kernels carry group and counts themselves."""
    rows = [r for r in of_kind(read("hta/nccl_data.json.gz")[0], "collective", "send", "recv", "p2p").to_pylist() if r["device"] != "cpu"]
    assert {r["name"] for r in rows} == {"all_reduce", "broadcast"}
    assert len(rows) == FILES["hta/nccl_data.json.gz"]["gpu"]["comm_kernel_count"]
    document = json.loads(raw("hta/nccl_data.json.gz"))
    elements = {"Float": 4, "Long": 8, "Byte": 1, "BFloat16": 2, "Half": 2, "Int": 4, "Double": 8, "Bool": 1}
    for row in rows:
        args = document["traceEvents"][row["line"]]["args"]
        assert row["bytes"] == args["In msg nelems"] * elements[args["dtype"]]
        assert row["group"] == args["Process Group Name"]


def sendrecv(annotation: str | None = None, *, exchange: bool = False, **args: Any) -> list[tuple[str, str, int | None, int | None]]:
    """What becomes of one SendRecv kernel with this around it."""
    trace = Trace(0, 4)
    trace.kernel("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", 100, 50, stream=20, **args)
    if annotation:
        trace.kernel(annotation, 90, 80, stream=20, cat="gpu_user_annotation")
    if exchange:
        trace.add("cpu_op", "nccl:all_to_all", 0, 5)
    rows = [r for r in read_bytes(trace)[0].to_pylist() if r["kind"] in ("collective", "send", "recv", "p2p")]
    return [(r["kind"], r["name"], r["peer"], r["bytes"]) for r in rows]


@pytest.mark.parametrize(
    ("around", "want"),
    [
        ({"Collective name": "send", "Src Rank": 0, "Dst Rank": 3, "In msg nelems": 8, "dtype": "BFloat16"}, ("send", "send", 3, 16)),
        ({"Collective name": "recv", "Src Rank": 2, "Dst Rank": 0, "In msg nelems": 8, "dtype": "Float"}, ("recv", "recv", 2, 32)),
        ({"Collective name": "all_to_allv", "In msg nelems": 8, "dtype": "Float"}, ("collective", "all_to_all", None, 32)),
        ({"annotation": "nccl:send 0->1"}, ("send", "send", None, None)),
        ({"annotation": "nccl:recv 0<-1"}, ("recv", "recv", None, None)),
        ({"annotation": "nccl:coalesced"}, ("p2p", "coalesced", None, None)),
        ({"annotation": "nccl:all_to_all"}, ("collective", "all_to_all", None, None)),
        ({"annotation": "nccl:_all_gather_base"}, ("collective", "all_gather", None, None)),
        ({"exchange": True}, ("collective", "all_to_all", None, None)),
        ({}, ("p2p", "sendrecv", None, None)),
    ],
)
def test_a_sendrecv_kernel_by_what_stands_around_it(around: dict[str, Any], want: tuple[str, str, int | None, int | None]) -> None:
    annotation, exchange = around.get("annotation"), around.get("exchange", False)
    assert sendrecv(annotation, exchange=exchange, **{k: v for k, v in around.items() if " " in k or k == "dtype"}) == [want]


@pytest.mark.parametrize(
    "name",
    [
        "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "void rcclGenericKernel<1, false>(ncclDevKernelArgsStorage<4096ul>)",
        "ncclSymkDevKernel_AllReduce_RSxLD_AGxST_sum_bf16",
        "multimem_all_reduce_kernel<c10::BFloat16>",
        "void vllm::cross_device_reduce_1stage<half, 2>",
        "hcom_allReduce__123",
        "oneccl_allreduce_ring",
        "void deep_ep::intranode::dispatch",
        "nvshmemi_transfer_rma",
    ],
)
def test_communication_is_known_anywhere_in_a_name(name: str) -> None:
    trace = Trace(0, 2)
    trace.kernel(name, 0, 10)
    trace.kernel("sm90_xmma_gemm_bf16", 0, 10)
    kinds = Counter(r["kind"] for r in read_bytes(trace)[0].to_pylist() if r["device"] == "gpu 0")
    assert kinds["kernel"] == 1
    assert sum(kinds.values()) == 2


# ---- whose trace it is


@pytest.mark.parametrize(
    ("info", "name", "want"),
    [
        ({"rank": 3, "world_size": 8}, "rank-7.json", (3, "distributedInfo")),
        (None, "rank-7.Jul_15_10_52_41.1074.pt.trace.json", (7, "file name")),
        (None, "traces/rank12_trace.json", (12, "file name")),
        (None, "x-rank[5].123.pt.trace.json", (5, "file name")),
        (None, "worker3.1623143089861.pt.trace.json", (3, "file name")),
        ({"backend": "nccl"}, "node-1_4711.1796000083241174510.pt.trace.json", (None, None)),
        ({"rank": -1}, "plain.json", (None, None)),
        ({"rank": "2"}, "plain.json", (None, None)),
        (None, "frank2.json", (None, None)),
    ],
)
def test_the_ladder_of_ranks(info: dict[str, Any] | None, name: str, want: tuple[int | None, str | None]) -> None:
    trace = Trace(None)
    trace.op("aten::add", 0, 10)
    if info is not None:
        trace.header["distributedInfo"] = info
    table, given_input = read_bytes(trace, name)
    assert (given_input.notes["rank"], given_input.notes["rank_from"]) == want
    assert set(table.column("rank").to_pylist()) == {want[0]}


def test_the_rank_that_collectives_name_themselves() -> None:
    trace = Trace(None)
    for ts in (0, 20):
        trace.add("cpu_op", "record_param_comms", ts, 10, **{"Collective name": "allreduce", "Rank": 6, "In msg nelems": 4, "dtype": "Float"})
    notes = read_bytes(trace, "plain.json")[1].notes
    assert (notes["rank"], notes["rank_from"]) == (6, "record_param_comms")


def test_collectives_of_two_ranks_in_one_file_name_none() -> None:
    """Several ranks' traces merged into one file."""
    trace = Trace(None)
    for rank in (0, 1):
        trace.add("cpu_op", "record_param_comms", 20 * rank, 10, **{"Collective name": "allreduce", "Rank": rank})
    assert read_bytes(trace, "plain.json")[1].notes["rank"] is None


@pytest.mark.parametrize(
    ("name", "want"),
    [
        ("hta/control.json.gz", (3, "distributedInfo")),
        ("hta/inference_rank_1.json.gz", (1, "distributedInfo")),
        ("hta/rank-34.Jul_15_10_52_41.1074.pt.trace.json.gz", (34, "distributedInfo")),
        ("hta/distributed_info_not_found.json.gz", (None, None)),
        ("tracelens/gpu_only_trace.json.gz", (None, None)),
    ],
)
def test_ranks_of_recorded_traces(name: str, want: tuple[int | None, str | None]) -> None:
    notes = read(name)[1].notes
    assert (notes["rank"], notes["rank_from"]) == want


def test_the_host_is_stated_or_in_the_default_name() -> None:
    trace = Trace(0, 2, host="node-5")
    trace.op("aten::add", 0, 10)
    plain = Trace(0, 2, host=None)
    plain.op("aten::add", 0, 10)
    assert read_bytes(trace)[1].notes["host"] == "node-5"
    assert read_bytes(plain, "gpu-node7_4711.1796000083241174510.pt.trace.json")[1].notes["host"] == "gpu-node7"
    assert read_bytes(plain, "rank0.json")[1].notes["host"] is None


# ---- no secrets

SECRET = "hunter2-AKIAIOSFODNN7EXAMPLE"


def with_secrets() -> Trace:
    """A trace whose writer added the job's environment: at the top level, among the device properties, in arguments of events."""
    trace = Trace(0, 1)
    trace.step(3, 0, 1000)
    trace.add("cpu_op", "aten::add", 10, 5, **{"env": {"AWS_SECRET_ACCESS_KEY": SECRET}, "Call stack": SECRET})
    trace.kernel("gemm", 20, 5, note=SECRET)
    trace.header["metadata"] = {"environment": {"AWS_SECRET_ACCESS_KEY": SECRET}, "argv": ["--token", SECRET]}
    trace.header["deviceProperties"] = [{"id": 0, "name": "NVIDIA H100", "uuid": SECRET, "totalGlobalMem": 85_000_000_000}]
    trace.header["distributedInfo"]["token"] = SECRET
    return trace


def test_what_a_reader_does_not_want_never_reaches_table_parquet_or_report(tmp_path: Path) -> None:
    folder = write(tmp_path / "job", {"rank0.json": with_secrets(), "rank1.json.gz": with_secrets()})
    events = pipelog.read(folder)
    assert not any(SECRET in str(row) for row in events.table.to_pylist())
    events.write(tmp_path / "events.parquet")
    data = (tmp_path / "events.parquet").read_bytes()
    assert SECRET.encode() not in data
    assert not any(SECRET in str(row) for row in pipelog.Events.read(tmp_path / "events.parquet").table.to_pylist())
    report = pipelog.diagnose(events)
    assert SECRET not in report.to_json()
    assert SECRET not in Report.from_json(report.to_json()).to_json()


# ---- malformations

SMALL = "hta/mi250_minitoy_train_ROCm6_2_kineto.json.gz"
"""220 events of a real GPU trace: all kinds of links, header behind the events."""


def small() -> dict[str, Any]:
    document: dict[str, Any] = json.loads(raw(SMALL))
    return document


def lines_of(table: pa.Table) -> set[int]:
    """Places (in traceEvents) of the events that gave a row."""
    return {n for n in table.column("line").to_pylist() if n is not None}


def whole() -> dict[int, dict[str, Any]]:
    """Row of each place of the undamaged file."""
    table, _ = read(SMALL)
    return {r["line"]: {k: v for k, v in r.items() if k != "file"} for r in table.to_pylist() if r["line"] is not None}


WHOLE = whole()
ORDER = ("kind", "name", "device", "stream", "start_ns", "dur_ns", "value", "bytes")


def same(table: pa.Table, but: set[int] = frozenset()) -> None:  # type: ignore[assignment]
    """All rows of the undamaged file are there, but those of these places."""
    found = {r["line"]: r for r in table.to_pylist() if r["line"] is not None}
    for line, row in WHOLE.items():
        if line not in but:
            assert line in found, row
            assert {k: found[line][k] for k in ORDER} == {k: row[k] for k in ORDER}


def compact(document: dict[str, Any]) -> bytes:
    return json.dumps(document).encode()


def places(data: bytes) -> list[int]:
    """Byte offsets at which the events of a file end, by the standard library's reader."""
    text = data.decode()
    at = text.index("[", text.index('"traceEvents"')) + 1
    decoder, ends = json.JSONDecoder(), []
    while True:
        while text[at] in ", \r\n\t":
            at += 1
        if text[at] == "]":
            return ends
        _, at = decoder.raw_decode(text, at)
        ends.append(at)


RAW = raw(SMALL)
ENDS = places(RAW)
BEGIN = RAW.index(b"[", RAW.index(b'"traceEvents"')) + 1


@settings(deadline=None, max_examples=150)
@given(st.integers(0, len(RAW) - 1))
@example(BEGIN)
@example(BEGIN + 1)
@example(ENDS[0])
@example(ENDS[0] - 1)
@example(ENDS[-1])
@example(ENDS[-1] + 1)
@example(len(RAW) - 1)
def test_a_file_cut_at_any_byte_keeps_every_event_before_the_cut(cut: int) -> None:
    table, given_input = read_bytes(RAW[:cut], "cut.json")
    complete = sum(end <= cut for end in ENDS)
    assert lines_of(table) <= set(range(complete))
    kept = {line for line in WHOLE if line < complete}
    # which operators are outermost, and what a launch belongs to, is told by events that may come later in the file
    assert {line for line in kept if WHOLE[line]["kind"] in ("kernel", "memcpy", "profiler_step")} <= lines_of(table)
    assert given_input.notes["trace_events"] == complete
    closed = cut > RAW.index(b"]", ENDS[-1])
    if not closed:
        assert given_input.notes["truncated"]
        assert given_input.skipped


def test_a_cut_in_the_middle_of_an_event_says_where_and_how_much() -> None:
    cut = ENDS[99] + 40
    _, given_input = read_bytes(RAW[:cut], "cut.json")
    (lost,) = given_input.skipped
    assert ENDS[99] < lost.line <= cut
    assert RAW[lost.line : lost.line + 1] == b"{"
    assert f"{cut - lost.line} bytes lost" in lost.why


@settings(deadline=None, max_examples=40)
@given(st.floats(0.05, 0.999))
def test_a_gzip_cut_at_any_byte_keeps_what_can_be_inflated(share: float) -> None:
    packed = gzip.compress(RAW)
    cut = packed[: int(len(packed) * share)]
    inflated = zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(cut)
    complete = sum(end <= len(inflated) for end in ENDS)
    _, given_input = read_bytes(cut, "cut.json.gz")
    assert given_input.notes["trace_events"] == complete
    assert given_input.notes["truncated"]
    assert any("gzip" in s.why for s in given_input.skipped)


def test_gzip_members_one_after_another() -> None:
    """pigz, and files that were appended to."""
    parts = [RAW[:10_000], RAW[10_000:20_000], RAW[20_000:]]
    table, given_input = read_bytes(b"".join(gzip.compress(p) for p in parts), "members.json.gz")
    same(table)
    assert given_input.skipped == []


def damaged(old: bytes, new: bytes, *, count: int = 1) -> tuple[pa.Table, Input]:
    """The file with *old* replaced by *new*, which must be there."""
    assert RAW.count(old) >= count
    return read_bytes(RAW.replace(old, new, count), "damaged.json")


NAME = b"hipLaunchKernel"


def first_with(text: bytes) -> int:
    """Place of the first event that holds *text*."""
    return next(i for i, (a, b) in enumerate(zip([BEGIN, *ENDS], ENDS, strict=False)) if text in RAW[a:b])


def events_with(change: Any) -> bytes:
    """The small trace with its events changed one by one."""
    document = small()
    document["traceEvents"] = [change(i, dict(e)) for i, e in enumerate(document["traceEvents"])]
    return compact(document)


KERNEL = next(line for line, row in WHOLE.items() if row["kind"] == "kernel")


def injected(text: bytes, *, name: bool = True) -> bytes:
    """The small trace with *text* put raw into the name of its first kernel, or behind its name's value."""
    document = small()
    document["traceEvents"][KERNEL]["name"] = "@@@"
    data = compact(document)
    return data.replace(b'"@@@"', b'"' + text + b'"' if name else text)


@pytest.mark.parametrize(
    "text",
    [
        b"C:\\Users\\me\\x.py(3): f",
        b"void f<\\x>",
        b'say "hello" twice',
        b'f("a", "b")',
        b"two\nlines\tand\x01control",
        b"\xff\xfe not utf-8 \xc3\x28",
        b"a ] in the name",
        b"a } and { in the name",
        b"\\u12 no escape",
        b"\x00",
        "snowman ☃ and 😀".encode(),
    ],
    ids=[
        "backslashes",
        "unknown escape",
        "quotes",
        "quotes and commas",
        "control bytes",
        "no utf-8",
        "bracket",
        "braces",
        "torn escape",
        "nul",
        "unicode",
    ],
)
def test_names_that_are_no_json_cost_at_most_themselves(text: bytes) -> None:
    table, given_input = read_bytes(injected(text), "damaged.json")
    same(table, but={KERNEL})
    kernel = [r for r in table.to_pylist() if r["line"] == KERNEL]
    if kernel:
        assert {k: kernel[0][k] for k in ORDER if k not in ("name", "kind")} == {k: WHOLE[KERNEL][k] for k in ORDER if k not in ("name", "kind")}
        assert given_input.skipped == []
    else:
        assert [s.line is not None for s in given_input.skipped] == [True]


def test_quotes_and_backslashes_are_mended_not_lost() -> None:
    for text in (b"C:\\Users\\me\\x.py(3): f", b'say "hello" twice', b"two\nlines"):
        table, _ = read_bytes(injected(text), "damaged.json")
        name = next(r["name"] for r in table.to_pylist() if r["line"] == KERNEL)
        assert name.split()[0].strip('"') == text.decode().split()[0].strip('"')


@pytest.mark.parametrize("value", [b"inf", b"-inf", b"nan", b"NaN", b"Infinity", b"-Infinity", b"N/A"])
def test_values_that_json_does_not_know(value: bytes) -> None:
    """`"memory bandwidth (GB/s)": inf` of a copy that took no time."""
    document = small()
    document["traceEvents"][KERNEL].setdefault("args", {})["memory bandwidth (GB/s)"] = "@@@"
    table, given_input = read_bytes(compact(document).replace(b'"@@@"', value), "damaged.json")
    same(table)
    assert given_input.skipped == []


@pytest.mark.parametrize(
    ("old", "new"),
    [(b"}]", b"},]"), (b"}}", b",}}"), (b"}, {", b"},\n, {"), (b'"tid": ', b'tid": ')],
    ids=["list", "args", "between", "quote"],
)
def test_commas_and_quotes_that_are_missing_or_too_many(old: bytes, new: bytes) -> None:
    data = compact(small())
    place = data.rindex(old) if old == b"}]" else data.index(old, 2000)
    table, given_input = read_bytes(data[:place] + new + data[place + len(old) :], "damaged.json")
    hurt = set(WHOLE) - lines_of(table)
    assert len(hurt) <= 1
    same(table, but=hurt)
    assert len(given_input.skipped) == len(hurt)


def test_string_times_and_threads() -> None:
    """Files of 2021, torch_npu and others write numbers as strings."""

    def change(_: int, event: dict[str, Any]) -> dict[str, Any]:
        for key in ("ts", "dur", "tid"):
            if key in event:
                event[key] = str(event[key])
        return event

    table, _ = read_bytes(events_with(change), "strings.json")
    found = {r["line"]: r for r in table.to_pylist() if r["line"] is not None}
    assert found.keys() == WHOLE.keys()
    assert all((found[n]["start_ns"], found[n]["dur_ns"]) == (row["start_ns"], row["dur_ns"]) for n, row in WHOLE.items())


def test_negative_and_odd_process_numbers() -> None:
    table, _ = read_bytes(events_with(lambda i, e: e | {"pid": [-1, "Spans", None, 2**40, 1.5][i % 5]}), "pids.json")
    assert lines_of(table) == set(WHOLE)


@pytest.mark.parametrize("dur", [None, -1, "absent", 0, "0.0", "N/A", {}, [], True, 1e300])
def test_durations_that_are_missing_or_impossible_count_as_none(dur: Any) -> None:
    document = small()
    event = document["traceEvents"][KERNEL]
    if dur == "absent":
        del event["dur"]
    else:
        event["dur"] = dur
    table, _ = read_bytes(compact(document), "dur.json")
    same(table, but={KERNEL})
    row = next(r for r in table.to_pylist() if r["line"] == KERNEL)
    assert row["start_ns"] == WHOLE[KERNEL]["start_ns"]
    assert row["dur_ns"] >= 0


def test_events_at_time_zero_do_not_stretch_the_span() -> None:
    """XPU on Windows, ROCm: one event at 0 or in the far past."""
    document = small()
    document["traceEvents"][KERNEL]["ts"] = 0
    table, given_input = read_bytes(compact(document), "zero.json")
    same(table, but={KERNEL})
    assert KERNEL not in lines_of(table)
    assert any("impossible times" in s.why for s in given_input.skipped)
    devices = Tables(pipelog.Events(table, [given_input]))["devices"]
    assert devices["span_us"].iloc[0] <= FILES[SMALL]["gpu"]["span_us"]


def test_times_since_the_epoch_with_a_fraction_are_exact() -> None:
    """Nightlies of April 2024: 19 digits, of which a double loses the last. Text in, nanoseconds out."""
    document = small()
    document.pop("baseTimeNanoseconds")
    stamps = {}
    for i, event in enumerate(document["traceEvents"]):
        if event.get("ph") == "X":
            stamps[i] = 1_712_345_678_901_234_000 + 1_000_001 * i
            event["ts"] = f"@{stamps[i] // 1000}.{stamps[i] % 1000:03}@"
    table, _ = read_bytes(compact(document).replace(b'"@', b"").replace(b'@"', b""), "epoch.json")
    rows = {r["line"]: r["start_ns"] for r in table.to_pylist() if r["line"] is not None and r["kind"] in ("kernel", "memcpy", "profiler_step")}
    assert rows
    assert rows == {line: stamps[line] for line in rows}
    assert float(f"{stamps[KERNEL] / 1000:.3f}") * 1000 != stamps[KERNEL]  # a double is not enough


def test_times_relative_to_a_base_are_exact() -> None:
    document = small()
    base = document["baseTimeNanoseconds"]
    want = {i: base + round(e["ts"] * 1000) for i, e in enumerate(document["traceEvents"]) if e.get("ph") == "X"}
    assert all(row["start_ns"] == want[line] for line, row in WHOLE.items() if row["kind"] in ("kernel", "memcpy"))


def test_integers_beyond_63_bits() -> None:
    """`Comms Id` of NCCL, and a correlation that cannot be one."""
    document = small()
    document["traceEvents"][KERNEL].setdefault("args", {}).update({"Comms Id": 2**64 - 1, "correlation": 2**70, "stream": 2**65})
    table, given_input = read_bytes(compact(document), "big.json")
    same(table, but={KERNEL})
    assert KERNEL in lines_of(table)
    assert given_input.skipped == []


@pytest.mark.parametrize("first", [True, False], ids=["header first", "header last"])
def test_the_header_stands_before_or_after_the_events(first: bool) -> None:
    document = small()
    events = document.pop("traceEvents")
    ordered = document | {"traceEvents": events} if first else {"traceEvents": events} | document
    table, given_input = read_bytes(compact(ordered), "ordered.json")
    same(table)
    assert given_input.notes["device_name"] == small()["deviceProperties"][0]["name"]


def test_a_bare_array_of_events() -> None:
    """torch 1.8: no object around, so no base and no rank."""
    document = small()
    data = json.dumps(document["traceEvents"]).encode()
    assert is_trace(data)
    table, given_input = read_bytes(data, "worker0.pt.trace.json")
    base = document["baseTimeNanoseconds"]
    assert {r["line"]: r["start_ns"] + base for r in table.to_pylist()} == {line: row["start_ns"] for line, row in WHOLE.items()}
    assert given_input.skipped == []


def test_brackets_in_the_name_of_the_trace() -> None:
    """kineto 888: tools that look for the end of the list stop at the name."""
    for name in ("a]b}c.json", '"traceEvents": [', "x\\]"):
        table, given_input = read_bytes(compact({"traceName": name} | small() | {"zName": name}), "named.json")
        same(table)
        assert given_input.skipped == []


@pytest.mark.parametrize(
    "data", [b'{"traceEvents": []}', b'{"schemaVersion": 1, "traceEvents": [\n], "traceName": "x"}', b'{"traceEvents":[]', b'{"traceEvents":[']
)
def test_an_export_without_events(data: bytes) -> None:
    """pytorch 167601: nothing was recorded."""
    table, given_input = read_bytes(data, "empty.json")
    assert table.num_rows == 0
    assert given_input.notes["trace_events"] == 0
    assert given_input.notes["truncated"] == (b"]" not in data)


def test_keys_that_stand_twice() -> None:
    """`distributedInfo` added by hand to a file that has it, `External id` and `external id` in one event."""
    data = compact(small()).replace(b'{"schemaVersion"', b'{"distributedInfo": {"rank": 5}, "schemaVersion"', 1)
    assert b'"distributedInfo"' in data
    table, given_input = read_bytes(data[:-1] + b', "distributedInfo": {"rank": 6}}', "twice.json")
    same(table)
    assert given_input.notes["rank"] in (5, 6)
    document = small()
    document["traceEvents"][KERNEL]["args"] |= {"External id": 1, "external id": 1}
    same(read_bytes(compact(document), "twice.json")[0])


def test_phases_that_nobody_knows_cost_nothing() -> None:
    document = small()
    strange = [
        {"ph": p, "name": "x", "cat": "kernel", "pid": 0, "tid": 0, "ts": 5.0, "id": 1} for p in ("Z", "B", "E", "b", "n", "C", "", "XX", "M", "@")
    ]
    document["traceEvents"] += strange
    table, given_input = read_bytes(compact(document), "phases.json")
    same(table)
    assert lines_of(table) == set(WHOLE)
    assert given_input.notes["trace_events"] == len(document["traceEvents"])


def test_events_that_are_no_events() -> None:
    document = small()
    document["traceEvents"] += [{}, {"name": "no phase"}, {"ph": None}, {"ph": 7}]
    table, _ = read_bytes(compact(document), "odd.json")
    same(table)


def test_many_damaged_events_are_counted_once_the_list_is_full() -> None:
    """Every event after the first ones is torn: the first hundred are listed with their place, the rest is counted."""
    document = small()
    good = document["traceEvents"][:100]
    torn = b",".join(b'{"ph": "X", "cat": "kernel", "name": "k", "ts": ' + b"," * 3 + b' "dur": 1}' for _ in range(300))
    data = json.dumps({"traceEvents": good}).encode()[:-2] + b"," + torn + b"]}"
    table, given_input = read_bytes(data, "torn.json")
    assert lines_of(table) <= set(range(100))
    assert sum(s.line is not None for s in given_input.skipped) == 100
    assert "200 more" in given_input.skipped[-1].why


def test_other_json_is_no_trace() -> None:
    for text in ('{"schema": "1.1.0-chakra", "nodes": []}', '{"zero_optimization": {"stage": 1}}', "[1, 2]", '[{"a": 1}]', "", "{"):
        assert not is_trace(text.encode())


def test_a_small_slice_gives_what_a_large_one_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    """Borders of slices fall anywhere: rows are the same, whatever their size."""
    from pipelog.reading import trace_list  # noqa: PLC0415

    def rows(size: int, name: str) -> list[tuple[Any, ...]]:
        monkeypatch.setattr(trace_list, "_SLICE", size)
        return sorted(tuple(str(r[k]) for k in ("line", *ORDER, "peer", "launch_ns")) for r in read(name)[0].to_pylist())

    for name in (SMALL, "tracelens/gpu_only_trace.json.gz", "deepspeed-cpu-pp4/vm_21338.1796000083241174510.pt.trace.json.gz"):
        whole_file = rows(2 << 20, name)
        for size in (5_000, 33_333):
            assert rows(size, name) == whole_file


BYTES = st.lists(
    st.one_of(
        st.binary(max_size=20),
        st.sampled_from(
            [b'{"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "dur": 2}', b"{", b"}", b"]", b'"', b",", b"\\", b'"traceEvents": [', b"\x1f\x8b"]
        ),
    ),
    max_size=20,
).map(b"".join)


@settings(deadline=None)
@given(st.one_of(BYTES, BYTES.map(lambda b: b'{"traceEvents": [' + b), BYTES.map(lambda b: RAW[: ENDS[3]] + b)))
def test_no_bytes_make_the_reader_raise(data: bytes) -> None:
    table, given_input = read_bytes(data, "any.json")
    assert table.schema.equals(EVENTS)
    assert given_input.kind == "trace"
    json.dumps([s.why for s in given_input.skipped])


VALUES = [m.span() for m in re.finditer(rb'(?<=: )(?:-?[\d.]+|"[^"]*")', RAW)]
ODD = b'null true [] {} "x" -1 1e309 99999999999999999999999 9223372036854775807 [[1]] "\\ud800" 1e-400 {"a":[]}'.split()


@settings(deadline=None, max_examples=150)
@given(st.lists(st.tuples(st.sampled_from(VALUES), st.sampled_from(ODD)), min_size=1, max_size=5, unique_by=lambda pair: pair[0]))
@example([(next(v for v in VALUES if RAW[: v[0]].endswith(b'"baseTimeNanoseconds": ')), b"99999999999999999999999")])
@example([(next(v for v in VALUES if RAW[: v[0]].endswith(b'"baseTimeNanoseconds": ')), b"true")])
@example([(next(v for v in VALUES if RAW[: v[0]].endswith(b'"Sequence number": ')), b"9223372036854775807")])
@example([(next(v for v in VALUES if RAW[: v[0]].endswith(b'"name": ') and v[0] > BEGIN), b"[]")])
def test_no_value_of_any_type_makes_the_reader_raise(changes: list[tuple[tuple[int, int], bytes]]) -> None:
    data = RAW
    for (begin, end), value in sorted(changes, reverse=True):
        data = data[:begin] + value + data[end:]
    table, given_input = read_bytes(data, "odd.json")
    assert table.schema.equals(EVENTS)
    assert given_input.notes["trace_events"] >= len(ENDS) - 5
    lost = set(WHOLE) - lines_of(table)
    assert len(lost) <= 3 * len(changes)  # an operator that is lost may have hidden none, its children, or be hidden itself


@pytest.mark.parametrize("rank", [True, False, 1.0, 2**40, None, [], {}])
def test_a_rank_that_is_no_rank_is_none(rank: Any) -> None:
    trace = Trace(None)
    trace.op("aten::add", 0, 10)
    trace.header["distributedInfo"] = {"rank": rank}
    assert read_bytes(trace, "plain.json")[1].notes["rank"] is None
