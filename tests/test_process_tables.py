"""Tables of `ps` and `squeue`: told by content, and what they show of a job that has stopped to print."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelog.events import EVENTS
from pipelog.reading.files import Source
from pipelog.reading.process_tables import is_process_table, read_process_table
from tests.test_postmortem_standstill import failure, report

PS = b"""# 2024-05-01 18:00
[admin@n1 ~]$ ps -eo pid,stat,wchan:20,etime,cmd | grep train
    PID STAT WCHAN                    ELAPSED CMD
   4311 DNl  nfs_start_io_read       08:01:00 /usr/bin/python -u train.py --local_rank=0 --deepspeed
   4312 R+   -                     1-08:01:00 /usr/bin/python -u train.py (RANK=5 LOCAL_RANK=1)
"""
SQUEUE = b"""$ date; squeue -j 812345
Wed May  1 06:00:31 PM CEST 2024
             JOBID PARTITION     NAME     USER ST       TIME  NODES NODELIST(REASON)
            812345       gpu pp-train      ana  R    8:01:01      1 n1
            812346       gpu  another      ana PD       0:00      1 (Priority)
"""
SIX = int(datetime.fromisoformat("2024-05-01T18:00:00+00:00").timestamp()) * 10**9
HOUR = 3600 * 10**9


def read(tmp_path: Path, data: bytes) -> list[dict[str, Any]]:
    path = tmp_path / "seen.txt"
    path.write_bytes(data)
    table, given_input = read_process_table(Source(path, path.name, len(data), 0))
    assert table.schema.equals(EVENTS)
    assert given_input.events == table.num_rows
    return [{k: v for k, v in row.items() if v is not None and k not in ("file", "clock")} for row in table.to_pylist()]


def test_processes(tmp_path: Path) -> None:
    common = {"kind": "process_state", "host": "n1", "start_ns": SIX}
    assert is_process_table(PS)
    lived = 8 * HOUR + 60 * 10**9
    assert read(tmp_path, PS) == [
        common | {"name": "D", "text": "nfs_start_io_read", "line": 4, "value": 4311.0, "label": "local 0", "dur_ns": lived},
        common | {"name": "R", "text": "-", "line": 5, "value": 4312.0, "label": "local 1", "rank": 5, "dur_ns": lived + 24 * HOUR},
    ]


def test_jobs_that_run(tmp_path: Path) -> None:
    assert is_process_table(SQUEUE)
    row = {"kind": "job_state", "name": "running", "group": "812345", "line": 4, "start_ns": SIX + 31 * 10**9, "dur_ns": 8 * HOUR + 61 * 10**9}
    assert [{k: v for k, v in r.items() if k != "text"} for r in read(tmp_path, SQUEUE)] == [row]


def test_forms_of_ps(tmp_path: Path) -> None:
    aux = b"""$ ssh -q root@n2 ps aux
USER         PID %CPU %MEM    VSZ   RSS TTY      STAT START   TIME COMMAND
ana         4311 99.0  1.0 123456 65432 ?        Rl   10:00 481:02 python train.py --local_rank=3
"""
    assert is_process_table(aux)
    assert read(tmp_path, aux) == [{"kind": "process_state", "name": "R", "text": "", "line": 3, "value": 4311.0, "label": "local 3", "host": "n2"}]


@pytest.mark.parametrize(
    "head",
    [
        b"steps: 10 loss: 1.5 iter time (s): 0.5 samples/sec: 64.0\n" * 30 + PS,
        PS + b"steps: 10 loss: 1.5 iter time (s): 0.5 samples/sec: 64.0\n" * 30,
        b"PID STAT of the process\n",
        b"JOBID NAME STATE\n",
        b"",
    ],
)
def test_what_is_no_such_table(head: bytes) -> None:
    assert not is_process_table(head)


@given(st.lists(st.sampled_from([*PS.split(b" "), *SQUEUE.split(b" "), b"\n", b"\r", b"\xff", b"\0", b"9" * 30]), max_size=60).map(b" ".join))
def test_no_bytes_raise(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    for head in (PS, SQUEUE, b""):
        is_process_table(head + data)
        read(tmp_path_factory.mktemp("t"), head + data)


# ---- what they show

BEGAN = datetime.fromisoformat("2024-05-01T10:00:00")


def log(steps: int = 3, below: int = 0) -> str:
    """A job of four stages on two hosts, begun at ten, with steps ten seconds apart from 10:05 on, and unknown lines without a time below."""
    lines = [f"[{BEGAN:%Y-%m-%d %H:%M:%S},000] [INFO] [runner.py:568:main] cmd = pdsh -w n1,n2 python train.py"]
    for host, first in (("n1", 0), ("n2", 2)):
        lines.append(
            f"{host}: [{BEGAN:%Y-%m-%d %H:%M:%S},800] [INFO] [launch.py:162:main] global_rank_mapping=defaultdict(<class 'list'>, {{'n1': [0, 1], 'n2': [2, 3]}})"
        )
        lines += [
            f"{host}: [{BEGAN:%Y-%m-%d %H:%M:%S},900] [INFO] [launch.py:253:main] process {4311 + first + n} spawned with command: ['python', '-u', 'train.py', '--local_rank={n}']"
            for n in (0, 1)
        ]
    lines.append(f"n1: Using topology: {{{', '.join(f'ProcessCoord(pipe={n}, data=0): {n}' for n in range(4))}}}")
    for n in range(1, steps + 1):
        at = BEGAN + timedelta(minutes=5, seconds=10 * n)
        lines.append(f"n1: [{at:%Y-%m-%d %H:%M:%S},000] [INFO] [logging.py:96:log_dist] [Rank 0] step={n}, skipped=0, lr=[0.001], mom=[(0.9, 0.95)]")
        lines.append(f"n1: steps: {n} loss: 2.5000 iter time (s): 10.000 samples/sec: 1.600")
    return "\n".join([*lines, *["n1: batch of my own loop"] * below]) + "\n"


def ps(seen: datetime | None, *states: str, host: str = "n2", pid: int = 4313, lived: timedelta | None = None) -> str:
    lived = lived or ((seen or BEGAN) - BEGAN)
    elapsed = f"{lived.days}-{lived.seconds // 3600:02}:{lived.seconds // 60 % 60:02}:00"
    rows = [f"{pid + n:>7} {state:<22} {elapsed} /usr/bin/python -u train.py --local_rank={n}" for n, state in enumerate(states)]
    when = "" if seen is None else f"# {seen:%Y-%m-%d %H:%M}\n"
    return f"{when}{host}$ ps -eo pid,stat,wchan:20,etime,cmd\n    PID STAT WCHAN ELAPSED CMD\n" + "\n".join(rows) + "\n"


LATE = BEGAN + timedelta(hours=9)
ASLEEP = ("Dl nfs_start_io_write", "DNl rpc_wait_bit_killable")


def test_processes_that_sleep_in_a_file_system_hold_up_the_others(tmp_path: Path) -> None:
    files = {"train.log": log(), "ps_n2.txt": ps(LATE, *ASLEEP), "ps_n1.txt": ps(LATE, "Rl -", "Rl -", host="n1", pid=4311)}
    found = report(tmp_path, files)
    verdict = failure(found)
    assert (found.run["status"], verdict["category"], verdict["ranks"], verdict["hosts"]) == ("hung", "hang", [2, 3], ["n2"])
    assert (verdict["cause_known"], verdict["confidence"]) == (False, "medium")
    assert [(e["file"], e["line"]) for e in verdict["evidence"][:2]] == [("ps_n2.txt", 4), ("ps_n2.txt", 5)]
    assert "nfs_start_io_write" in verdict["title"]
    assert "nothing was printed for 8.91 h after step 3" in verdict["title"]  # 10:05:30 to 19:00
    assert "answers on n2" in verdict["advice"][0]["action"]


def test_where_all_sleep_nobody_is_named(tmp_path: Path) -> None:
    files = {"train.log": log(), "ps_n2.txt": ps(LATE, *ASLEEP), "ps_n1.txt": ps(LATE, *ASLEEP, host="n1", pid=4311)}
    verdict = failure(report(tmp_path, files))
    assert (verdict["category"], verdict["ranks"]) == ("hang", [])
    assert "all ranks slept" in verdict["title"]


@pytest.mark.parametrize(
    "table",
    [
        ps(BEGAN + timedelta(minutes=6), *ASLEEP),  # seconds after the last line
        ps(BEGAN + timedelta(minutes=20), *ASLEEP),
        ps(None, *ASLEEP),  # nobody tells when
        ps(LATE, "Dl folio_wait_bit_common", "Dl io_schedule"),  # of its own disk
        ps(LATE, "Sl nfs_start_io_write", "Rl -"),
        ps(LATE, *ASLEEP, host="q7", pid=991),  # of no process of the job
        ps(LATE, *ASLEEP, lived=timedelta(hours=2)),  # begun seven hours after the job, or seen in another zone
    ],
)
def test_processes_that_show_no_hang(tmp_path: Path, table: str) -> None:
    found = report(tmp_path, {"train.log": log(), "ps_n2.txt": table})
    assert (found.run["status"], found.failure) == ("incomplete", None)


def squeue(seen: datetime, ran: str, state: str = "RUNNING", job: str = "812345") -> str:
    return f"$ date; squeue\n{seen:%a %b %e %H:%M:%S} UTC {seen:%Y}\nJOBID NAME STATE TIME NODELIST(REASON)\n{job} pp-train {state} {ran} n[1-2]\n"


@pytest.mark.parametrize(("steps", "after"), [(3, "step 3"), (0, "the last lines of the log (train.log:7)")])
def test_a_job_that_runs_hours_after_its_last_line(tmp_path: Path, steps: int, after: str) -> None:
    found = report(tmp_path, {"train.log": log(steps), "squeue.txt": squeue(LATE, "9:00:40")})
    verdict = failure(found)
    assert (found.run["status"], verdict["category"], verdict["ranks"], verdict["confidence"]) == ("hung", "hang", [], "low")
    assert after in verdict["title"]
    assert ("squeue.txt", 4) in [(e["file"], e["line"]) for e in verdict["evidence"]]


@pytest.mark.parametrize(
    ("table", "below"),
    [
        (squeue(BEGAN + timedelta(minutes=6), "6:40"), 0),  # seconds after the last line
        (squeue(LATE, "2:00:00"), 0),  # another job
        (squeue(LATE, "17:00:40"), 0),  # its clock is eight hours ahead
        (squeue(LATE, "9:00:40", state="PENDING"), 0),
        (squeue(LATE, "9:00:40") + "812399 other RUNNING 9:00:10 n9\n", 0),  # which of the two it is nobody tells
        (squeue(LATE, "9:00:40"), 50),  # these may have taken all day
    ],
)
def test_jobs_that_show_no_hang(tmp_path: Path, table: str, below: int) -> None:
    found = report(tmp_path, {"train.log": log(below=below), "squeue.txt": table})
    assert (found.run["status"], found.failure) == ("incomplete", None)
