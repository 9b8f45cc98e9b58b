"""The series behind the pictures: small tables whose charts can be told by hand, and laws on whole runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import pipelog
from pipelog import charts
from tests.conftest import FIXTURES

MS = 1_000_000


def instructions(rows: list[tuple[str, int, float, float]], rank: int = 0) -> pd.DataFrame:
    """(instruction, micro-batch, start, end) in ms, of one rank and step 5."""
    return pd.DataFrame(
        [
            {"rank": rank, "window": 0, "step": 5, "instruction": k, "micro_batch": m, "start_ns": int(a * MS), "end_ns": int(b * MS)}
            for k, m, a, b in rows
        ]
    )


def stage_rows(end: float = 100) -> pd.DataFrame:
    return pd.DataFrame([{"stage": 0, "rank": 0, "shift_ns": 0, "start_ns": 0, "end_ns": int(end * MS)}])


def test_bars_are_in_ms_from_the_first_forward_pass() -> None:
    made = charts._bars(instructions([("forward", 0, 10, 20), ("backward", 0, 30, 60), ("other", 0, 0, 5)]), stage_rows().assign(start_ns=10 * MS), 5)
    assert made == {"rows": [{"stage": 0, "rank": 0, "items": [["forward", 0, 0.0, 10.0], ["backward", 0, 20.0, 30.0]]}]}


def test_too_many_bars_become_passes_then_busy_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    both = instructions([("recv", 0, 0, 10), ("forward", 0, 10, 35), ("backward", 0, 50, 75)])
    monkeypatch.setattr(charts, "_MOST_BARS", 2)
    assert [i[0] for i in charts._bars(both, stage_rows(), 5)["rows"][0]["items"]] == ["forward", "backward"]
    monkeypatch.setattr(charts, "_MOST_BARS", 1)
    monkeypatch.setattr(charts, "_MOST_BINS", 4)
    made = charts._bars(both, stage_rows(), 5)
    assert made["bin_ms"] == 25.0
    assert made["rows"][0]["busy"] == [0.6, 0.4, 1.0, 0.0]


def test_overlapping_passes_are_busy_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(charts, "_MOST_BARS", 1)
    monkeypatch.setattr(charts, "_MOST_BINS", 2)
    made = charts._bars(instructions([("forward", 0, 0, 40), ("backward", 0, 20, 50)]), stage_rows(), 5)
    assert made["rows"][0]["busy"] == [1.0, 0.0]


def test_waiting_for_the_batch_is_drawn_where_no_load_is_named() -> None:
    known = instructions([("forward", 0, 30, 40), ("forward", 1, 41, 50)])
    passes = known.assign(load_ns=[20 * MS, MS])
    made = charts._with_loads(known, passes)
    assert made[made["instruction"] == "load_micro_batch"][["micro_batch", "start_ns", "end_ns"]].values.tolist() == [[0, 10 * MS, 30 * MS]]
    named = instructions([("load_micro_batch", 0, 0, 5), ("forward", 0, 30, 40)])
    assert charts._with_loads(named, passes) is named


def test_late_sends_are_far_beyond_the_usual() -> None:
    messages = pd.DataFrame(
        {"step": 5, "source": [0, 0, 0, 1], "send_ns": [10 * MS, 20 * MS, 60 * MS, 70 * MS], "gap_ns": [MS // 10, MS // 10, 25 * MS, MS // 10]}
    )
    rows: list[dict[str, Any]] = [{"rank": 0, "items": []}, {"rank": 1, "items": []}]
    charts._add_late_sends(rows, messages, 5, origin=5 * MS)
    assert [r["items"] for r in rows] == [[["late_send", -1, 30.0, 25.0]], []]


def test_long_series_are_thinned_with_both_ends() -> None:
    rows = pd.DataFrame({"step": range(10_000)})
    kept = charts.thinned(rows)["step"].tolist()
    assert len(kept) <= 1500
    assert (kept[0], kept[-1]) == (0, 9999)
    assert charts.thinned(rows, 20_000) is rows


def test_the_slowest_replica_is_drawn() -> None:
    made = pipelog.diagnose(pipelog.read(FIXTURES / "runs" / "dp2-pp2-slow-replica")).charts
    assert made["timeline"]["replica"] == 1
    assert [r["rank"] for r in made["timeline"]["rows"]] == [1, 3]
    slow = max(made["peers"], key=lambda p: p["compute_ms"] / p["peer_ms"])
    assert slow["rank"] == 1
    assert slow["compute_ms"] > 1.5 * slow["peer_ms"]
    assert {c["name"] for c in made["collectives"]} >= {"all_reduce", "broadcast"}


def test_a_stalled_link_is_drawn_where_its_sender_waits() -> None:
    rows = pipelog.diagnose(pipelog.read(FIXTURES / "runs" / "comm-stall-link-1-2")).charts["timeline"]["rows"]
    late = {row["stage"]: [i[3] for i in row["items"] if i[0] == "late_send"] for row in rows}
    assert len(late[1]) >= 6
    assert min(late[1]) > 20
    assert not late[0]
    assert not late[3]


def test_lanes_end_where_a_rank_falls_silent(tmp_path: Path) -> None:
    """Rank 1 dies at some time between its neighbours' stamps; rank 0 prints steps 1 and 2 and says what it lost; the launcher's words are no line of a rank."""
    stamp = "[2024-01-31 02:00:{:02},000] [INFO] [logging.py:96:log_dist] [Rank 0] step={}, skipped=0, lr=[0.001], mom=[(0.9, 0.95)]"
    trouble = '[rank{0}]: Traceback (most recent call last):\n[rank{0}]:   File "/home/u/train.py", line 3, in <module>\n[rank{0}]:     main()\n[rank{0}]: {1}'
    lines = [
        "[2024-01-31 02:00:00,000] [INFO] [launch.py:146:main] WORLD INFO DICT: {'node-1': [0, 1]}",
        stamp.format(10, 1),
        stamp.format(20, 2),
        trouble.format(1, "ValueError: bad sample"),
        "[2024-01-31 02:00:35,000] [INFO] [launch.py:319:sigkill_handler] Killing subprocess 11",
        trouble.format(0, "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.7]:44940"),
        "[2024-01-31 02:00:40,000] [ERROR] [launch.py:325:sigkill_handler] ['python', 'train.py', '--local_rank=1'] exits with return code = 1",
    ]
    (tmp_path / "train.log").write_text("\n".join(lines) + "\n")
    made = pipelog.diagnose(pipelog.read(tmp_path)).charts["lanes"]
    assert (made["from"], made["length_s"]) == ("2024-01-31T02:00:20.000", 15.0)
    zero, one = made["rows"]
    assert [zero[k] for k in ("step", "step_s", "last_s", "last_until_s", "error_role", "error_s")] == [2, 0.0, 15.0, 20.0, "cascade", 15.0]
    assert [one[k] for k in ("step", "last_s", "last_until_s", "error_role", "error_s", "error_until_s")] == [
        None,
        0.0,
        15.0,
        "initiating",
        0.0,
        15.0,
    ]
    assert (one["error_file"], one["error_line"]) == ("train.log", 7)
