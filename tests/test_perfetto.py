"""`pipelog events --perfetto`: the timeline holds what the tables hold, to the nanosecond, in a form that viewers take."""

from __future__ import annotations

import gzip
import itertools
import json
import shutil
from collections import Counter, defaultdict
from decimal import Decimal
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from click.testing import CliRunner, Result
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelog import timeline
from pipelog.cli import main
from pipelog.diagnosis import diagnose
from pipelog.events import Events
from pipelog.reading import read
from pipelog.report import Report
from pipelog.tables import Tables
from pipelog.timeline.slices import frame, into_threads
from tests import fake_pipeline, host_pipeline
from tests.conftest import FIXTURES
from tests.making import Trace, write
from tests.once import events_of, report_of

HEAVY = FIXTURES / "runs" / "heavy-stage2"
WITH_TRACES = [
    HEAVY,
    FIXTURES / "runs" / "dp2-pp2-slow-replica",
    FIXTURES / "traces" / "deepspeed-cpu-pp2-stack",
    FIXTURES / "traces" / "deepspeed-cpu-pp4",
    FIXTURES / "traces" / "hta",
    FIXTURES / "traces" / "tracelens",
]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(a) for a in arguments])


def drawn(events: Events, folder: Path, name: str = "merged.json") -> tuple[dict[str, Any], timeline.Written]:
    """The document, times as exact decimals."""
    place = folder / name
    made = timeline.write(events, _report(events), str(place))
    data = gzip.decompress(place.read_bytes()) if name.endswith(".gz") else place.read_bytes()
    return json.loads(data, parse_float=Decimal), made


def _report(events: Events) -> Report:
    """Of the fixtures' runs it is made once."""
    folder = next((f for f in WITH_TRACES if events_of(f) is events), None)
    return diagnose(events) if folder is None else report_of(folder)


def ns(value: Any) -> int:
    """Microseconds as written → ns, of which nothing may be left over."""
    exact = Decimal(value) * 1000
    assert exact == int(exact)
    return int(exact)


def names_of(document: dict[str, Any], what: str) -> dict[Any, str]:
    """Names of processes by pid, of threads by (pid, tid)."""
    found = [e for e in document["traceEvents"] if e["ph"] == "M" and e["name"] == what]
    return {(e["pid"], e["tid"]) if what == "thread_name" else e["pid"]: e["args"]["name"] for e in found}


def slices(document: dict[str, Any], thread: str) -> pd.DataFrame:
    """pid, name, start, end (ns) of the slices on threads of that name, further ones included."""
    threads = names_of(document, "thread_name")
    rows = [
        (e["pid"], e["name"], ns(e["ts"]), ns(e["ts"]) + ns(e["dur"]), e["args"])
        for e in document["traceEvents"]
        if e["ph"] == "X" and threads[e["pid"], e["tid"]].rstrip("0123456789 ") == thread
    ]
    return pd.DataFrame(rows, columns=["pid", "name", "start", "end", "args"])


def check(document: dict[str, Any]) -> None:
    """What Perfetto and chrome://tracing ask of a file."""
    events = document["traceEvents"]
    processes, threads = names_of(document, "process_name"), names_of(document, "thread_name")
    timed = [e for e in events if e["ph"] != "M"]
    assert [e["ts"] for e in timed] == sorted(e["ts"] for e in timed)
    by_thread = defaultdict(list)
    for event in timed:
        assert {"name", "cat", "ph", "pid", "tid", "ts"} <= set(event)
        assert event["pid"] in processes
        assert (event["pid"], event["tid"]) in threads
        assert ns(event["ts"]) >= 0
        if event["ph"] == "X":
            assert ns(event["dur"]) >= 0
            by_thread[event["pid"], event["tid"]].append((ns(event["ts"]), ns(event["ts"]) + ns(event["dur"])))
        elif event["ph"] == "i":
            assert event["s"] == "g"
    for mine in by_thread.values():  # one after another, or one inside another
        open_: list[int] = []
        for start, end in mine:
            while open_ and open_[-1] <= start:
                open_.pop()
            assert not open_ or end <= open_[-1]
            open_.append(end)
    flows = [e for e in timed if e["ph"] in "sf"]
    of_id = defaultdict(list)
    for event in flows:
        of_id[event["id"]].append(event)
        assert any(a <= ns(event["ts"]) < b or a == ns(event["ts"]) for a, b in by_thread[event["pid"], event["tid"]])
    for pair in of_id.values():
        assert [e["ph"] for e in pair] == ["s", "f"]
        assert pair[1]["bp"] == "e"
    orders = [e["args"]["sort_index"] for e in events if e["name"] == "process_sort_index"]
    assert len(set(orders)) == len(orders)


@pytest.mark.parametrize("folder", WITH_TRACES, ids=lambda p: p.name)
def test_every_fixture_gives_a_valid_timeline(folder: Path, tmp_path: Path) -> None:
    document, made = drawn(events_of(folder), tmp_path)
    check(document)
    kinds = Counter(e["ph"] for e in document["traceEvents"])
    assert (kinds["X"], kinds["s"], kinds["f"], kinds["i"]) == (made.slices, made.arrows, made.arrows, made.markers)
    assert made.slices > 0


@pytest.mark.parametrize("folder", WITH_TRACES[:4], ids=lambda p: p.name)
def test_instructions_are_those_of_the_table_to_the_nanosecond(folder: Path, tmp_path: Path) -> None:
    """All on one clock here: times differ by one constant, the first event."""
    events = events_of(folder)
    document, made = drawn(events, tmp_path)
    tables = Tables(events)
    wanted = tables["instructions"]
    origin = document["otherData"]["first_event_ns"]
    shown = pd.concat([slices(document, t) for t in ("compute", "p2p send", "p2p receive", "collectives", "steps")])
    shown = shown[["source" in a for a in shown["args"]]]  # the others are steps and collectives
    assert len(shown) == len(wanted)
    for rank, found in wanted.groupby("rank"):
        here = shown[shown["pid"] == rank + 1].sort_values(["start", "end"], kind="stable")
        mine = found.sort_values(["start_ns", "end_ns"], kind="stable")
        assert [n.partition(" ")[0] for n in here["name"]] == list(mine["instruction"])
        assert (here["start"] + origin).tolist() == mine["start_ns"].tolist()
        assert (here["end"] + origin).tolist() == mine["end_ns"].tolist()
        passes = here[[n.startswith(("forward", "backward")) for n in here["name"]]]
        assert [(int(n.rpartition(" ")[2]), a["micro_batch"]) for n, a in zip(passes["name"], passes["args"], strict=True)] == [
            (k, k) for k in mine[mine["instruction"].isin(["forward", "backward"])]["micro_batch"]
        ]
        assert [a["event"] for a in here["args"]] == mine["line"].tolist()
    assert made.arrows == len(tables["messages"])
    assert made.apart == ()
    assert len(slices(document, "steps")) >= wanted.groupby(["rank", "window"]).ngroups


def test_processes_are_named_and_ordered_pipeline_by_pipeline(tmp_path: Path) -> None:
    """dp 2 x pp 2: stage 0 are ranks 0 and 1, stage 1 ranks 2 and 3."""
    document, _ = drawn(events_of(FIXTURES / "runs" / "dp2-pp2-slow-replica"), tmp_path)
    names = names_of(document, "process_name")
    order = {e["pid"]: e["args"]["sort_index"] for e in document["traceEvents"] if e["name"] == "process_sort_index"}
    assert [names[pid] for pid in sorted(order, key=lambda p: order[p])] == [
        "findings of pipelog",
        "stage 0 · rank 0 · replica 0",
        "stage 1 · rank 2 · replica 0",
        "stage 0 · rank 1 · replica 1",
        "stage 1 · rank 3 · replica 1",
    ]


def test_findings_are_marks_over_everything(tmp_path: Path) -> None:
    """Stage 2 is the slow one: the mark stands at a pass of rank 2, and the words are those of the report."""
    events = events_of(HEAVY)
    document, _ = drawn(events, tmp_path)
    marks = {e["name"]: e for e in document["traceEvents"] if e["ph"] == "i"}
    report = report_of(HEAVY)
    assert {f"{f.id} {f.name}" for f in report.findings} == set(marks)
    slow = next(f for f in report.findings if f.id == "PL201")
    mark = marks["PL201 stage-imbalance"]
    assert mark["args"]["says"] == slow.title
    passes = slices(document, "compute")
    passes = passes[passes["pid"] == 3]
    assert ((passes["start"] <= ns(mark["ts"])) & (ns(mark["ts"]) <= passes["end"])).any()


def test_hosts_are_put_on_one_clock(tmp_path: Path) -> None:
    """GPUs of four hosts whose clocks differ by up to a second; the passes stand as in the simulation, but for half a transfer."""
    line = fake_pipeline.Pipeline(
        4, 4, [2000.0] * 4, [4000.0] * 4, hosts=[("node-0", 0.0), ("node-1", 1_000_000.0), ("node-2", 5_000.0), ("node-3", 77_000.0)]
    )
    folder = tmp_path / "run"
    folder.mkdir()
    fake_pipeline.write(line, folder)
    document, made = drawn(read(folder, jobs=1), tmp_path)
    check(document)
    assert made.apart == ()
    shown = slices(document, "compute")
    truth = fake_pipeline.simulate(line)
    zero = shown[(shown["pid"] == 1) & (shown["name"] == "forward 0")]["start"].min() - truth[0][0][2] * 1000
    for stage, items in enumerate(truth):
        for what, k, begin, end in items:
            if what not in ("F", "B"):
                continue
            name = f"{'forward' if what == 'F' else 'backward'} {k}"
            first = shown[(shown["pid"] == stage + 1) & (shown["name"] == name)].sort_values("start").iloc[0]
            assert first["start"] - zero == pytest.approx(begin * 1000, abs=document["otherData"]["clock_error_ns"] + 1)
            assert first["end"] - first["start"] == round((end - begin) * 1000)
    assert made.arrows == 3 * 4 * 2 * 2  # edges, micro-batches, directions, steps


def test_a_rank_whose_clock_nothing_ties_says_so(tmp_path: Path) -> None:
    """No messages between the hosts: rank 1 begins at 0 on a clock of its own, and no arrow leads to it."""
    ranks = [Trace(0, 2, host="node-0"), Trace(1, 2, host="node-1")]
    for offset, trace in zip((0.0, 123_456.789), ranks, strict=True):
        trace.step(3, offset, 10_000)
        trace.kernel("gemm", offset + 100, 50.001)
    folder = write(tmp_path / "run", {f"rank{n}.json": t for n, t in enumerate(ranks)})
    document, made = drawn(read(folder, jobs=1), tmp_path)
    check(document)
    assert made.apart == (1,)
    assert names_of(document, "process_name")[2] == "rank 1 · clock of its own, not aligned"
    kernels = slices(document, "compute")
    assert kernels[["pid", "name", "start", "end"]].values.tolist() == [[1, "kernels", 100_000, 150_001], [2, "kernels", 100_000, 150_001]]
    assert document["otherData"]["not_aligned"] == [1]


@pytest.mark.parametrize("folder", WITH_TRACES[4:], ids=lambda p: p.name)
def test_without_instructions_the_kernels_are_merged(folder: Path, tmp_path: Path) -> None:
    """The length of the merged kernels of a process is the exact union that the report states for its device."""
    document, _ = drawn(events_of(folder), tmp_path)
    wanted = {d["file"]: d["compute_us"] for d in report_of(folder).metrics["devices"] if d["compute_us"]}
    files = {e["args"]["labels"]: e["pid"] for e in document["traceEvents"] if e["name"] == "process_labels"}
    shown = slices(document, "compute")
    shown = shown[shown["name"] == "kernels"]
    lengths = (shown["end"] - shown["start"]).groupby(shown["pid"]).sum()
    alone = {file: pid for file, pid in files.items() if file in wanted}
    assert alone
    assert {file: lengths[pid] / 1000 for file, pid in alone.items()} == pytest.approx({file: wanted[file] for file in alone})


def test_host_pipeline_with_stack_of_messages(tmp_path: Path) -> None:
    """Two replicas on gloo: an arrow a message, each from its send into its receive."""
    line = host_pipeline.Pipeline(3, 4, replicas=2)
    folder = write(tmp_path / "run", {f"rank{n}.json": t for n, t in enumerate(host_pipeline.traces(line))})
    document, made = drawn(read(folder, jobs=1), tmp_path)
    check(document)
    assert made.arrows == 2 * 4 * 2 * 2 * line.steps  # edges, micro-batches, directions, replicas
    assert made.processes == 6


def test_gzip_by_name_the_same_bytes_twice_and_no_input_of_its_own(tmp_path: Path) -> None:
    first, second = tmp_path / "a" / "merged.json.gz", tmp_path / "b" / "merged.json.gz"
    for place in (first, second):
        place.parent.mkdir()
        done = run("events", HEAVY, "--perfetto", "-o", place)
        assert done.exit_code == 0, done.stderr
        assert "72 arrows" in done.stderr
        assert not done.stdout
    assert first.read_bytes() == second.read_bytes()
    document = json.loads(gzip.decompress(first.read_bytes()))
    assert document["otherData"]["run"] == "heavy-stage2"
    (tmp_path / "a" / "train.log").write_text("steps: 10 loss: 2.9134 iter time (s): 4.812 samples/sec: 106.401\n")
    inputs = {i.path: i for i in read(tmp_path / "a", jobs=1).inputs}
    assert inputs["merged.json.gz"].kind == "ignored"
    assert "report of pipelog" in inputs["merged.json.gz"].skipped[0].why


def test_redacted_it_names_nobody_and_nothing_else_changes(tmp_path: Path) -> None:
    """Folder and files are named after host and user, whom a traceback tells; a finding holds a token, which goes unasked."""
    job = tmp_path / "alice-run"
    shutil.copytree(HEAVY, job, copy_function=shutil.copyfile)
    log = job / "logs" / "train.log"
    raised = (
        "Traceback (most recent call last):",
        '  File "/home/alice/proj/train.py", line 3, in <module>',
        "ValueError: HF_TOKEN=hf_AbCdEfGhIjKlMnOpQrStUvWx of alice is wrong",
    )
    log.write_text("".join(f"gpu17: {line}\n" for line in [*log.read_text().splitlines(), *(f"[rank0]: {line}" for line in raised)]))
    for place in sorted((job / "traces").iterdir()):
        place.rename(place.with_name(f"gpu17_alice_{place.name}"))
    made = {}
    for more in ((), ("--redact",)):
        place = tmp_path / f"{len(more)}.json"
        assert run("events", job, "--perfetto", "--no-cache", "-o", place, *more).exit_code == 0
        made[bool(more)] = place.read_text()
    assert "gpu17_alice" in made[False]
    assert "hf_AbCdEf" not in made[False]
    for word in ("gpu17", "alice", "hf_AbCdEf", "/home/"):
        assert word not in made[True], word
    plain, hidden = (json.loads(made[k])["traceEvents"] for k in (False, True))
    assert [{k: v for k, v in e.items() if k not in ("name", "args")} for e in plain] == [
        {k: v for k, v in e.items() if k not in ("name", "args")} for e in hidden
    ]


def test_the_table_is_not_redacted_and_says_so(tmp_path: Path) -> None:
    done = run("events", HEAVY, "--redact", "-o", tmp_path / "x.parquet")
    assert done.exit_code == 2
    assert "not for sharing" in done.stderr
    assert not (tmp_path / "x.parquet").exists()


@pytest.mark.parametrize(
    ("folder", "output", "says"),
    [
        (FIXTURES / "runs" / "R08", "x.json", "needs torch profiler traces"),
        (HEAVY, "x.parquet", ".json or .json.gz"),
        (HEAVY, "/dev/null/x.json", "cannot write"),
    ],
    ids=["no traces", "suffix", "place"],
)
def test_what_the_user_can_mend_is_one_line_and_code_2(folder: Path, output: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = run("events", folder, "--perfetto", "-o", output)
    assert done.exit_code == 2
    assert says in done.stderr
    assert done.stderr.count("\n") == 1
    assert not Path("x.json").exists()


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["compute", "collectives"]), st.integers(0, 50), st.integers(0, 30)), min_size=1, max_size=40))
def test_work_that_overlaps_goes_to_threads_of_its_own(work: list[tuple[str, int, int]]) -> None:
    """Nothing is lost, and in a thread slices follow one another or lie inside one another."""
    rows = frame(
        {"row": [r for r, *_ in work], "name": ["x"] * len(work), "start_ns": [s for _, s, _ in work], "end_ns": [s + d for _, s, d in work]}
    )
    made, names = into_threads(rows)
    assert Counter(zip(made["row"], made["start_ns"], made["end_ns"], strict=True)) == Counter((r, s, s + d) for r, s, d in work)
    for tid, mine in made.groupby("tid"):
        assert names[tid].startswith(mine["row"].iloc[0])
        for (_, b), (c, d) in itertools.combinations(zip(mine["start_ns"], mine["end_ns"], strict=True), 2):
            assert b <= c or d <= b  # the second does not begin before the first


def test_a_copy_of_a_trace_is_drawn_once(tmp_path: Path) -> None:
    """The same file twice in a folder, with device work in it."""
    line = fake_pipeline.Pipeline(2, 3, [2000.0] * 2, [4000.0] * 2)
    folder = tmp_path / "run"
    (folder / "copy").mkdir(parents=True)
    fake_pipeline.write(line, folder)
    alone, _ = drawn(read(folder, jobs=1), tmp_path)
    (folder / "copy" / "rank0.pt.trace.json").write_bytes((folder / "rank0.pt.trace.json").read_bytes())
    twice, _ = drawn(read(folder, jobs=1), tmp_path)
    assert slices(twice, "compute")[["pid", "name", "start", "end"]].equals(slices(alone, "compute")[["pid", "name", "start", "end"]])
