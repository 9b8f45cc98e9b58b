"""Times of lines that no parser makes a row of: both ends of a file, and what is right above an error."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

import pipelog.reporters
from pipelog import diagnose, read
from pipelog.reading.files import Source
from pipelog.reading.logs import read_log
from pipelog.reading.stamped import stamp
from pipelog.registry import load
from pipelog.reporters import REPORTERS

STEPS = [
    f"[2024-03-05 14:{10 + n}:00,000] [INFO] [logging.py:96:log_dist] [Rank 0] step={n}, skipped=0, lr=[0.0001], mom=[(0.9, 0.95)]" for n in (1, 2, 3)
]
"""From 14:11 to 14:13."""


def stamps(tmp_path: Path, *lines: str, name: str = "train.log") -> list[tuple[str, int, str]]:
    """(name, line, time) of the rows of a log's bare times."""
    path = tmp_path / name
    path.write_text("".join(f"{line}\n" for line in lines))
    table, _ = read_log(Source(path, name, path.stat().st_size, 0))
    return [(r["name"], r["line"], str(pd.Timestamp(r["start_ns"]))) for r in table.to_pylist() if r["kind"] == "stamp"]


@pytest.mark.parametrize(
    ("text", "time", "clock"),
    [
        ("2024-03-05 14:10:02,123 INFO worker.py:1694 -- Connected", "2024-03-05 14:10:02.123", "log"),
        ("[2024-03-05 14:10:02] launching", "2024-03-05 14:10:02", "log"),
        ("[ERROR] 2025-10-11-15:09:30 (PID:2965, Device:5, RankID:29) ERR00100", "2025-10-11 15:09:30", "log"),
        ("INFO: 2024/03/05 14:10:02 done", "2024-03-05 14:10:02", "log"),
        ("2024-03-05T14:10:02.5Z pulling", "2024-03-05 14:10:02.5", "utc"),
        ("2024-03-05T14:10:02+01:00 pulling", "2024-03-05 13:10:02", "utc"),
        ("[NeMo I 2024-03-05 14:10:02 nemo_logging:393] Finalizing", "2024-03-05 14:10:02", "log"),
        ("03/05/2024 14:10:02 - INFO - __main__ - Training", "2024-03-05 14:10:02", "log"),
        ("Tue Mar  5 14:10:02 CET 2024", "2024-03-05 14:10:02", "log"),
        ("Tue Mar  5 02:10:02 PM UTC 2024", "2024-03-05 14:10:02", "log"),
        ("Tue 05 Mar 2024 12:10:02 AM UTC", "2024-03-05 00:10:02", "log"),
        ("[E305 14:10:02.5 ProcessGroupNCCL.cpp:632]", "1970-03-05 14:10:02.5", "log-yearless"),
        ("W1211 14:10:02.500000 2900 torch/distributed/run.py:793]", "1970-12-11 14:10:02.5", "log-yearless"),
        ("Mar  5 14:10:02 node-1 sshd[812]: Accepted", "1970-03-05 14:10:02", "log-yearless"),
    ],
)
def test_times_that_lines_begin_with(text: str, time: str, clock: str) -> None:
    found = stamp(text)
    assert found is not None
    assert (pd.Timestamp(found[0]), found[1]) == (pd.Timestamp(time), clock)


@pytest.mark.parametrize(
    "text",
    [
        "2024-03-04 09:00:00     181234 global_step100/mp_rank_00_model_states.pt",  # a list of files
        "2024-03-04 09:00:00   1.2GiB model.pt",
        "                           PRE 2024-03-04 09:00:00",
        "2024-03-04T09:00:00 2024-03-04T10:00:00 COMPLETED",  # a table of jobs
        "finished at 2024-03-04 09:00:00",
        "2024-13-45 09:00:00 no month",
        "02/30/2024 09:00:00 - INFO - no day",
        "03/05/2024 14:10:02 which of the two is the month, nobody says",
        "step 12:30:45",
    ],
)
def test_what_is_no_time_of_its_line(text: str) -> None:
    assert stamp(text) is None


def test_both_ends_of_a_file(tmp_path: Path) -> None:
    """An hour of preparation before, and half an hour of a client that asks in vain, of which no row is made."""
    asks = [f"[W305 14:{m}:00.000000 socket.cpp:720] [c10d] The client socket is attempting to connect" for m in range(20, 45)]
    found = stamps(tmp_path, "Tue Mar  5 13:05:00 UTC 2024", "unpacking", *STEPS, *asks, "bye")
    assert found == [("first", 1, "2024-03-05 13:05:00"), ("last", 30, "2024-03-05 14:44:00")]


def test_the_time_right_above_an_error(tmp_path: Path) -> None:
    error = ["Traceback (most recent call last):", '  File "train.py", line 3, in <module>', "    main()", "RuntimeError: no room"]
    later = ["2024-03-05 14:30:00 cleaning up", "2024-03-05 14:31:00 done"]
    (tmp_path / "train.log").write_text("\n".join([*STEPS, "2024-03-05 14:20:00 saving metrics", *error, *later, ""]))
    report = diagnose(read(tmp_path))
    assert report.failure is not None
    assert report.failure["not_before"] == "2024-03-05T14:20:00.000"
    assert (report.run["started_at"], report.run["ended_at"]) == ("2024-03-05T14:11:00.000", "2024-03-05T14:31:00.000")


def test_quotations_count_for_nothing(tmp_path: Path) -> None:
    """The log of yesterday's job is printed at the end, a list of old files before the start."""
    old = ["2024-03-04 09:00:00 starting", "2024-03-04 09:30:00 gone"]
    assert stamps(tmp_path, "2024-01-01 00:00:00 seen long ago", *STEPS, *old) == []


def test_of_two_clocks_none_is_told(tmp_path: Path) -> None:
    assert stamps(tmp_path, *STEPS, "2024-03-05T13:30:00Z the pod is gone") == []


def test_what_others_log_is_no_time_of_the_job(tmp_path: Path) -> None:
    """The kernel's log goes back to the boot of the machine and on after the job."""
    kernel = ["2024-03-01T00:00:00+00:00 n1 kernel: Linux version 5.15", "2024-03-05T14:13:30+00:00 n1 kernel: NVRM: Xid (PCI:0000:3b:00): 79, pid=1"]
    assert stamps(tmp_path, *kernel, "2024-03-09T00:00:00+00:00 n1 kernel: eth0: link up", name="dmesg.txt") == []


def test_a_begin_that_no_line_tells(tmp_path: Path) -> None:
    """The first time is that of the error: steps were made before it."""
    steps = [f"iteration {n}/ 100 | elapsed time per iteration (ms): 60000.0 | lm loss: 2.0 |" for n in range(1, 9)]
    end = [
        "[rank3]: [ERROR] 2025-10-11-15:09:30 (PID:2965, Device:5, RankID:3) ERR00100 PTA call acl api failed.",
        "W1011 15:09:44.100000 2900 api.py] bye",
    ]
    (tmp_path / "train.log").write_text("\n".join([*steps, *end, ""]))
    run = diagnose(read(tmp_path)).run
    assert (run["started_at"], run["duration_s"], run["ledger"]) == (None, None, None)
    assert run["ended_at"] == "2025-10-11T15:09:44.100"


def test_a_year_that_no_line_tells(tmp_path: Path) -> None:
    words = "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600010 milliseconds"
    (tmp_path / "rank3.log").write_text(f"[rank3]:[E602 11:18:53.865680143 ProcessGroupNCCL.cpp:632] [Rank 3] {words} before timing out.\n")
    load(pipelog.reporters)
    report = diagnose(read(tmp_path))
    assert report.failure is not None
    assert (report.failure["at"], report.failure["at_without_year"]) == (None, "06-02 11:18:53")
    assert "06-02 11:18:53 (no line tells the year)" in REPORTERS["text"].render(report)
    assert "1970" not in REPORTERS["html"].render(report)


def test_a_log_put_together_of_others_has_no_span(tmp_path: Path) -> None:
    """The second part is of three months before."""
    older = [line.replace("2024-03-05", "2023-12-05").replace("step=", "step=1") for line in STEPS]
    (tmp_path / "train.log").write_text("\n".join([*STEPS, *older, ""]))
    run = diagnose(read(tmp_path)).run
    assert (run["started_at"], run["ended_at"], run["duration_s"]) == (None, None, None)


def test_one_time_is_no_duration(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text(f"some words\n{STEPS[0]}\nmore words\n")
    run = diagnose(read(tmp_path)).run
    assert (run["started_at"], run["duration_s"]) == ("2024-03-05T14:11:00.000", None)


def test_a_step_behind_the_last_time_is_its_own(tmp_path: Path) -> None:
    """Megatron's line bears none and follows those of DeepSpeed that do: the end is theirs."""
    two = [f" iteration {n}/ 100 | elapsed time per iteration (ms): 60000.0 | lm loss: 2.0 |" for n in (2, 3)]
    (tmp_path / "train.log").write_text("\n".join([*STEPS[:2], two[0], STEPS[2], two[1], ""]))
    assert diagnose(read(tmp_path)).run["ended_at"] == "2024-03-05T14:13:00.000"


def test_the_launcher_tells_the_end_of_ranks_whose_steps_bear_no_time(tmp_path: Path) -> None:
    steps = [f" iteration {n}/ 100 | elapsed time per iteration (ms): 60000.0 | lm loss: 2.0 |" for n in range(1, 6)]
    (tmp_path / "rank0.log").write_text("\n".join([STEPS[0], *steps, ""]))
    (tmp_path / "launcher.log").write_text(f"{STEPS[0]}\n[2024-03-05 14:20:00,000] [INFO] [launch.py:351:main] Process 812 exits successfully.\n")
    assert diagnose(read(tmp_path)).run["ended_at"] == "2024-03-05T14:20:00.000"
    (tmp_path / "launcher.log").unlink()
    assert diagnose(read(tmp_path)).run["ended_at"] is None
