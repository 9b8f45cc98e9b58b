"""Which line began it: roles of errors, tiers, time and order; what is survived, what follows, what is torn down."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelog.events import Input
from pipelog.findings import Confidence
from pipelog.postmortem.deaths import Death
from tests.making import Row, step, tables, topology_map
from tests.telling import read, traceback

SECOND = 10**9
T0 = 1_709_650_000 * SECOND

OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has 1 GiB free."
ILLEGAL = "RuntimeError: CUDA error: an illegal memory access was encountered"
PEER = "RuntimeError: [gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.7]:44940"
DISK = "OSError: [Errno 28] No space left on device: '/data/out/global_step40'"


def raised(text: str, rank: int | None = None, **more: Any) -> Row:
    """The last line of a traceback."""
    return {"kind": "error", "name": "python-exception", "rank": rank, "group": f"{text}{rank}{more.get('file')}", "value": 0.0, "text": text, **more}


def left(code: int, **more: Any) -> Row:
    """The launcher's word for a rank that ended."""
    return {"kind": "end", "name": "exit-code", "value": float(code), "text": f"exits with return code = {code}", **more}


def killing(pid: int) -> Row:
    """`Killing subprocess 28100`."""
    return {"kind": "process", "name": "killed", "value": float(pid)}


def timed_out(rank: int, at_s: float, ran_s: int = 600, **more: Any) -> Row:
    text = f"Watchdog caught collective operation timeout: WorkNCCL(SeqNum=5, OpType=ALLREDUCE, Timeout(ms)={ran_s}000)"
    return {"kind": "error", "name": "nccl-watchdog", "rank": rank, "value": 5.0, "dur_ns": ran_s * SECOND, "text": text, **at(at_s), **more}


def at(seconds: float) -> Row:
    return {"clock": "log", "start_ns": T0 + round(seconds * SECOND)}


def verdict(rows: list[Row], inputs: list[Input] | None = None) -> Death:
    found: Death = tables(rows, inputs)["death"]
    return found


def began(death: Death) -> list[tuple[str, int]]:
    """(file, line) of the errors that began it."""
    mine = death.roles[death.roles["role"] == "initiating"]
    return [(str(f), int(n)) for f, n in zip(mine["file"], mine["line"], strict=True)]


def role_of(death: Death, line: int, file: str = "train.log") -> str:
    (role,) = death.roles.loc[(death.roles["line"] == line) & (death.roles["file"] == file), "role"]
    return str(role)


# ---- roles


def test_one_begins_the_rest_follow() -> None:
    """OOM on rank 2, its peers notice, the launcher kills all and gives the code."""
    death = verdict([step(1), step(2), raised(OOM, 2), raised(PEER, 1), raised(PEER, 3), killing(100), killing(101), left(1)])
    assert (death.kind, death.ranks, death.known, death.confidence) == ("gpu-oom", (2,), True, Confidence.HIGH)
    assert [role_of(death, n) for n in range(3, 9)] == ["initiating", "cascade", "cascade", "teardown", "teardown", "cascade"]
    assert all(death.roles["why"] != "")
    echo = next(c for c in death.consequences if c["line"] == 4)
    assert (echo["role"], echo["count"], echo["ranks"], echo["file"]) == ("cascade", 2, [1, 3], "train.log")
    assert sum(c["count"] for c in death.consequences) == 5
    assert [(e.file, e.line) for e in death.evidence] == [("train.log", 3)]


def test_the_launcher_s_line_proves_an_end_of_which_nobody_else_speaks() -> None:
    """It names the command of its last local rank, whichever failed; torchrun's and srun's lines name the one that did."""
    assert [e.line for e in verdict([step(1), step(2), killing(100), left(-9)]).evidence] == [4]
    task: Row = {"kind": "end", "name": "slurm-task", "value": 1.0, "label": "task 2", "text": "srun: error: node-1: task 2: Exited with exit code 1"}
    assert [e.line for e in verdict([step(1), step(2), raised(OOM, 2), task]).evidence] == [3, 4]


def test_an_error_before_steps_is_survived() -> None:
    death = verdict([raised(OOM, 0), step(1), step(2), step(3), raised(DISK, 1), left(1)])
    assert role_of(death, 1) == "benign"
    assert death.kind == "disk-full"
    assert "training went on" in death.roles["why"].iloc[0]


def test_one_step_line_may_have_been_under_way() -> None:
    assert verdict([step(1), raised(DISK, 1), step(2), left(1)]).kind == "disk-full"


def test_the_same_step_twice_is_one_step() -> None:
    """Megatron and DeepSpeed both print the step that was under way."""
    assert verdict([step(1), raised(DISK, 1), step(2, name="deepspeed"), step(2, name="megatron"), left(1)]).kind == "disk-full"


def test_lines_held_back_in_a_buffer_are_no_sign_of_survival() -> None:
    """The traceback goes to stderr at once; step lines of before it come after it when the buffer is written out."""
    rows = [step(1, **at(1)), {"kind": "phase", "name": "note", **at(40)}, raised(DISK, 1), step(2, **at(20)), step(3, **at(30)), left(1, **at(41))]
    death = verdict(rows)
    assert (death.kind, role_of(death, 3)) == ("disk-full", "initiating")


def test_steps_with_later_times_are() -> None:
    rows = [step(1, **at(1)), step(4, **at(40)), raised(DISK, 1), step(5, **at(50)), step(6, **at(60)), raised(OOM, 2), left(1, **at(61))]
    assert (verdict(rows).kind, role_of(verdict(rows), 3)) == ("gpu-oom", "benign")


def test_steps_of_another_file_say_nothing_of_the_rank() -> None:
    rows = [raised(DISK, 1, file="rank1.log", line=1), step(1), step(2), step(3), left(1)]
    assert verdict(rows).kind == "disk-full"


def test_after_a_bad_end_the_only_error_explains_it_even_if_it_seems_survived() -> None:
    """Without any other word: held-back lines without times look as if training went on."""
    death = verdict([step(1), raised(DISK, 1), step(2), step(3), left(1)])
    assert death.kind == "disk-full"


def test_noise_is_benign() -> None:
    noise = {"kind": "error", "name": "torch-warning", "text": "Warning: destroy_process_group() was not called before program exit"}
    death = verdict([step(1), raised(DISK, 1), noise, left(1)])
    assert role_of(death, 3) == "benign"
    assert not [c for c in death.consequences if c["line"] == 3]


# ---- tiers


@pytest.mark.parametrize("first", [PEER, "SystemExit: 143", "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:"])
def test_an_echo_or_a_teardown_before_the_cause_is_still_one(first: str) -> None:
    """Standard error comes in any order."""
    assert verdict([step(1), raised(first, 1), raised(OOM, 2), left(1)]).ranks == (2,)


def test_a_named_cause_comes_before_a_signal() -> None:
    death = verdict([step(1), left(-9), raised(DISK, 1)])
    assert (death.kind, role_of(death, 2)) == ("disk-full", "cascade")


def test_a_cause_and_a_symptom_are_alike_the_earlier_decides() -> None:
    assert verdict([step(1), raised(ILLEGAL, 3), raised(DISK, 1), left(1)]).kind == "cuda-async"
    assert verdict([step(1), raised(DISK, 1), raised(ILLEGAL, 3), left(1)]).kind == "disk-full"


def test_a_signal_before_a_timeout_is_its_cause() -> None:
    """Rank 2 was killed; ten minutes later the others time out."""
    death = verdict([step(1, **at(0)), left(-9, **at(10)), timed_out(0, 610), timed_out(1, 611)])
    assert (death.status, death.kind, death.known) == ("failed", "killed", False)


def test_a_signal_after_a_timeout_follows_from_it() -> None:
    death = verdict([step(1, **at(0)), timed_out(0, 610), timed_out(1, 611), left(-9, **at(640))])
    assert (death.status, death.category) == ("hung", "hang")
    assert role_of(death, 4) == "cascade"


def test_where_only_echoes_are_left_the_first_is_cited_and_nothing_is_known() -> None:
    death = verdict([step(1), raised(PEER, 1), raised(PEER, 3), left(1)])
    assert (death.status, death.category, death.known, death.confidence) == ("failed", "network", False, Confidence.MEDIUM)
    assert "log of the peer" in death.missing[0]


def test_an_abort_alone_says_that_the_reason_is_missing() -> None:
    death = verdict([step(1), left(-6)])
    assert (death.kind, death.category, death.known) == ("aborted", "killed", False)
    assert death.missing
    assert death.advice


def test_a_code_without_a_word_is_unknown() -> None:
    death = verdict([step(1), left(1)])
    assert (death.status, death.category, death.known) == ("failed", "unknown", False)
    assert "exit code 1" in death.title


def test_minus_nine_is_a_kill_and_no_lack_of_memory() -> None:
    death = verdict([step(1), left(-9)])
    assert (death.category, death.known) == ("killed", False)
    assert "memory" not in death.title.lower()
    assert any("oom" in words for words in death.missing)


def test_words_of_loggers_end_nothing() -> None:
    words = {"kind": "error", "name": "level", "stream": "error", "text": "[ERROR] the tracking server did not answer"}
    death = verdict([step(1), words])
    assert (death.status, death.category) == ("incomplete", None)


# ---- time and order


def two(first: Row, second: Row) -> list[Row]:
    """Errors of two files, each with a time."""
    return [step(1, **at(0)), {**first, "file": "b.log", "line": 5}, {**second, "file": "a.log", "line": 9}, left(1, **at(100))]


def test_among_files_the_earlier_in_time_begins_it() -> None:
    assert began(verdict(two({**raised(OOM, 2), **at(50)}, {**raised(DISK, 3), **at(60)}))) == [("b.log", 5)]
    assert began(verdict(two({**raised(OOM, 2), **at(60)}, {**raised(DISK, 3), **at(50)}))) == [("a.log", 9)]


def test_a_traceback_has_the_time_of_the_line_before_it() -> None:
    """Tracebacks have none of their own: the last stamp above each in its file is the earliest that they can be."""
    rows = [step(7, **at(70), file="a.log", line=1), raised(DISK, 3, file="a.log", line=2), step(6, **at(60), file="b.log", line=1)]
    rows += [raised(OOM, 2, file="b.log", line=2), left(1, **at(100), file="c.log", line=1)]
    assert began(verdict(rows)) == [("b.log", 2)]


def test_without_times_the_order_of_the_files_decides() -> None:
    rows = [raised(DISK, 3, file="a.log", line=9), raised(OOM, 2, file="b.log", line=2), left(1, file="c.log", line=1)]
    for files, wanted in ((["a.log", "b.log", "c.log"], "a.log"), (["b.log", "a.log", "c.log"], "b.log")):
        death = verdict(rows, [Input(f, "log", 1) for f in files])
        assert began(death)[0][0] == wanted


def test_in_one_file_the_order_of_lines_decides() -> None:
    assert began(verdict([step(1), raised(DISK, 3), raised(OOM, 2), left(1)])) == [("train.log", 2)]


# ---- who


def test_ranks_that_say_the_same_begin_it_together() -> None:
    """Every replica's first stage runs out of memory in the same step; only the numbers differ."""
    other = OOM.replace("2.00", "2.50")
    death = verdict([*topology_map(2, 2), step(1), raised(OOM, 0), raised(other, 1), raised(PEER, 2), left(1)])
    assert (death.ranks, death.stages) == ((0, 1), (0,))


def test_of_torchrun_s_table_the_root_cause_counts() -> None:
    """The table lists other failures first; its agent knows which one it saw first."""
    words = {"text": "Signal 9 (SIGKILL) received by PID 4316"}
    rows = [{"kind": "end", "name": "child-failed", "rank": rank, "value": -9.0, **words} for rank in (4, 6)]
    rows.append({"kind": "end", "name": "child-root-cause", "rank": 5, "value": -9.0, **words})
    death = verdict([*topology_map(4, 2), step(1), *rows])
    assert (death.kind, death.ranks, death.stages) == ("killed", (5,), (2,))


def test_a_chain_of_exceptions_counts_with_its_cause() -> None:
    """`During handling of the above exception, another exception occurred`: the first block is the cause."""
    lines = [
        "Using topology: {ProcessCoord(pipe=0): 0, ProcessCoord(pipe=1): 1}",
        *traceback("OSError: [Errno 28] No space left on device: '/data/out/global_step40'", "/job/train.py:40 main", rank=1),
        "",
        "[rank1]: During handling of the above exception, another exception occurred:",
        "",
        *traceback("RuntimeError: could not finish the checkpoint", "/job/train.py:41 main", rank=1),
    ]
    made = read({"train.log": lines})
    death: Death = made["death"]
    assert (death.kind, death.ranks, len(made["errors"])) == ("disk-full", (1,), 1)
    assert death.evidence[0].line == 5


def test_what_the_kernel_said_a_month_ago_began_nothing() -> None:
    job = [
        f"[2024-03-05 15:1{n}:00,000] [INFO] [logging.py:107:log_dist] [Rank 0] steps: {n} loss: 9.1 iter time (s): 1.0 samples/sec: 4.0"
        for n in (1, 2)
    ]
    xid = "NVRM: Xid (PCI:0000:3b:00): 79, pid=4312, name=python, GPU has fallen off the bus."
    old: Death = read({"train.log": [*job, *traceback(OOM, rank=1)], "dmesg.txt": [f"[Tue Feb  6 15:20:08 2024] {xid}"]})["death"]
    assert (old.kind, old.ranks) == ("gpu-oom", (1,))
    assert not [c for c in old.consequences if c["file"] == "dmesg.txt"]
    new: Death = read({"train.log": [*job, *traceback(OOM, rank=1)], "dmesg.txt": [f"[Tue Mar  5 15:11:30 2024] {xid}"]})["death"]
    assert new.kind == "gpu-broken"


KERNEL = {
    "kernel-oom": "Out of memory: Killed process 999 (chrome) total-vm:210763776kB, anon-rss:204812344kB, file-rss:0kB, shmem-rss:1024kB",
    "kernel-xid": "NVRM: Xid (PCI:0000:3b:00): 63, pid=1202, name=nvidia-smi, Row Remapper: New row marked for remapping",
}


@pytest.mark.parametrize("name", KERNEL)
def test_what_hit_another_process_is_not_the_cause_of_an_exception(name: str) -> None:
    said = {"kind": "error", "name": name, "text": KERNEL[name], "file": "dmesg.txt", "line": 1, **at(1)}
    assert verdict([step(1, **at(0)), said, raised(DISK, 1, **at(5)), left(1, **at(9))]).kind == "disk-full"


# ---- laws

ROWS = [
    step(1, **at(1)),
    step(2, **at(2)),
    raised(OOM, 2, file="rank2.log", **at(3)),
    raised(PEER, 1, file="rank1.log", **at(4)),
    raised(PEER, 3, file="rank3.log", **at(5)),
    left(1, **at(6)),
]


def told(death: Death) -> tuple[Any, ...]:
    """What the verdict says, whatever the order of what follows."""
    follow = sorted((c["what"], c["role"], c["count"], tuple(c["ranks"])) for c in death.consequences)
    return (death.status, death.category, death.kind, death.known, death.confidence, death.title, death.ranks, death.stages, death.at_ns, follow)


@given(st.permutations(range(len(ROWS))), st.permutations(["train.log", "rank1.log", "rank2.log", "rank3.log"]))
@settings(max_examples=12, deadline=None)
def test_the_order_of_files_and_rows_changes_nothing(order: list[int], files: list[str]) -> None:
    rows = [{"line": n, **row} for n, row in enumerate(ROWS, 1)]
    plain = verdict(rows)
    other = verdict([rows[i] for i in order], [Input(f, "log", 1) for f in files])
    assert told(other) == told(plain)
    assert began(other) == began(plain) == [("rank2.log", 3)]


BEHIND = st.lists(
    st.sampled_from([killing(100), killing(101), raised("SystemExit: 143", 3), raised(PEER, 0), left(-15), raised("torch.ChildFailedError:", None)]),
    max_size=6,
)


@given(st.sampled_from([OOM, ILLEGAL, DISK, "ZeroDivisionError: division by zero"]), BEHIND)
@settings(max_examples=15, deadline=None)
def test_what_comes_down_behind_the_verdict_does_not_change_it(text: str, behind: list[Row]) -> None:
    rows = [*topology_map(4), step(1), step(2), raised(text, 2), left(1)]
    plain, other = verdict(rows), verdict([*rows, *behind])
    assert told(other)[:9] == told(plain)[:9]
    assert other.evidence[0] == plain.evidence[0]
    assert began(other) == began(plain)


@given(st.permutations(range(8)), st.sampled_from([(2,), (0, 1), (7,), (4, 5)]))
@settings(max_examples=12, deadline=None)
def test_renumbering_ranks_renumbers_the_verdict(names: list[int], ranks: tuple[int, ...]) -> None:
    """Rank r of a 4 x 2 job is called names[r] in every file; its place in the map moves with it."""
    rows = [*topology_map(4, 2), step(1), *(raised(OOM, r) for r in ranks), raised(PEER, 3), raised(PEER, 6), left(1)]
    renamed = [{**row, "rank": names[row["rank"]]} if row.get("rank") is not None else row for row in rows]
    plain, other = verdict(rows), verdict(renamed)
    assert plain.ranks == ranks
    assert other.ranks == tuple(sorted(names[r] for r in ranks))
    assert (other.stages, other.kind) == (plain.stages, plain.kind)
    for mine, its in zip(plain.consequences, other.consequences, strict=True):
        assert its["ranks"] == sorted(names[r] for r in mine["ranks"])


def said(text: str, rank: int | None = None, **more: Any) -> Row:
    """The last line of a traceback, alone: what `grep`, or a launcher that mixes outputs, left of it."""
    return {"kind": "error", "name": "bare-exception", "rank": rank, "text": text, **more}


@pytest.mark.parametrize(
    ("text", "code", "rank", "kind", "category"),
    [
        (ILLEGAL, -6, 6, "cuda-async", "unknown"),
        (OOM, 1, 6, "gpu-oom", "memory.gpu-oom"),
        ("KeyError: 'labels'", 1, 6, "bare-exception", "unknown"),
        ("KeyError: 'labels'", -9, None, "killed", "killed"),  # a KeyError kills nobody
        (PEER, -6, None, "aborted", "killed"),  # who lost a peer did not begin it
    ],
)
def test_the_last_line_of_a_traceback_alone(text: str, code: int, rank: int | None, kind: str, category: str) -> None:
    """It means what it says, as far as it says something by itself; before an exit code that says nothing it is the better word, too."""
    found = verdict([*topology_map(4, 2), step(240), said(text, 6), killing(100), left(code)])
    assert (found.kind, found.category, found.ranks) == (kind, category, () if rank is None else (rank,))


def test_a_last_line_that_a_step_followed_is_no_last_word() -> None:
    found = verdict([*topology_map(4, 2), step(230), said("KeyError: 'labels'", 6), step(240), left(1)])
    assert found.kind == "left-with-code"


def test_a_traceback_beats_the_last_line_of_another() -> None:
    found = verdict([*topology_map(4, 2), step(240), said(ILLEGAL, 6, file="0.log"), raised(OOM, 2, file="1.log"), left(1, file="1.log")])
    assert (found.kind, found.ranks) == ("gpu-oom", (2,))


LAUNCHED: Row = {"kind": "start", "name": "launcher"}


def test_what_stands_above_the_launcher_and_is_nobodys_did_not_end_the_job() -> None:
    """A notice, or a step of the same script that failed: the job was started after it."""
    notice = raised("AttributeError: module 'x' was built for another version")
    death = verdict([notice, LAUNCHED, *topology_map(4), raised(OOM, 2), left(1)])
    assert death.kind == "gpu-oom"
    assert began(death) == [("train.log", len(topology_map(4)) + 3)]
    assert not [c for c in death.consequences if "AttributeError" in c["what"]]  # nothing follows from what came after


def test_where_nothing_else_says_why_it_is_still_the_cause() -> None:
    """The preparation of the data failed, and training only left with a code."""
    death = verdict([raised("ValueError: no shards in /data"), LAUNCHED, *topology_map(4), left(1)])
    assert (death.kind, began(death)) == ("code", [("train.log", 1)])


def test_a_rank_that_fails_above_another_launchers_line_is_the_cause() -> None:
    death = verdict([raised("ValueError: bad shard", 1), LAUNCHED, *topology_map(4), raised(OOM, 2), left(1)])
    assert death.kind == "code"


XID = "[19001.118230] NVRM: Xid (PCI:0000:d8:00): 48, pid=78003, name=python, An uncorrectable double bit error (DBE) has been detected on GPU"


@pytest.mark.parametrize(("raises", "kind"), [(ILLEGAL, "gpu-broken"), (DISK, "disk-full")])
def test_a_kernel_s_line_without_a_date_explains_the_symptom_of_its_rank(raises: str, kind: str) -> None:
    """Seconds since the machine was started cannot be compared: what they say of a rank comes before its symptom, not before another cause."""
    row: Row = {"kind": "error", "name": "kernel-xid", "rank": 7, "value": 48.0, "group": "0000:d8:00", "text": XID, "file": "dmesg.txt"}
    stamped = [step(239, 1.0, **at(0)), raised(raises, 7, **at(3)), left(-6, **at(4))]
    found = verdict([*topology_map(4, 2), row, *stamped])
    assert (found.kind, found.ranks) == (kind, (7,))


def test_the_name_of_an_exception_amid_a_log_is_a_quotation() -> None:
    """A model's sample, a note of a service: without a bad end only the last lines of a file can be last words."""
    inputs = [Input("train.log", "log", 1, notes={"lines": 100})]
    for line, kind in ((50, None), (97, "gpu-oom")):
        rows = [*topology_map(4, 2), step(240, line=49), said(OOM, line=line)]
        found = verdict(rows, inputs)
        assert (found.kind or None) == kind
