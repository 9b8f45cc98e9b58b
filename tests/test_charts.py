"""The series behind the pictures: small tables whose charts can be told by hand, and laws on whole runs."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import pipelog
from pipelog import charts
from pipelog.comparing.side import side
from pipelog.report import Report
from pipelog.reporters._places import placed
from pipelog.reporters.html import figures
from pipelog.tables.steps import Steps
from tests.conftest import FIXTURES
from tests.once import report_of

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
    rows = pd.DataFrame({"step": range(10_000), "value": 1.0})
    kept = charts.thinned(rows, "value")["step"].tolist()
    assert len(kept) <= 1500
    assert (kept[0], kept[-1]) == (0, 9999)
    assert charts.thinned(rows, "value", 20_000)["step"].tolist() == list(range(10_000))


ODD = st.one_of(st.floats(allow_nan=True, allow_infinity=True, width=32), st.sampled_from([1.0, 1.0, 1.0, 2.0, math.nan]))


@given(st.lists(ODD, min_size=2, max_size=4_000), st.integers(60, 600))
@example([1.0] * 1234 + [99.0] + [1.0] * 4321 + [-5.0] + [1.0] * 777 + [math.nan] + [1.0] * 5000, 600)
def test_no_extreme_is_hidden(values: list[float], most: int) -> None:
    """The highest, the lowest and the first value that is no number are always drawn, and so is whether any stretch of the picture has some."""
    rows = pd.DataFrame({"step": range(len(values)), "value": values})
    kept = charts.thinned(rows, "value", most)
    assert len(kept) <= max(most, 2)
    assert kept["step"].is_monotonic_increasing
    assert (kept["step"].iloc[0], kept["step"].iloc[-1]) == (0, len(values) - 1)
    finite = [v for v in values if math.isfinite(v)]
    shown = [v for v in kept["value"] if math.isfinite(v)]
    assert (max(finite, default=None), min(finite, default=None)) == (max(shown, default=None), min(shown, default=None))
    first = next((i for i, v in enumerate(values) if not math.isfinite(v)), None)
    assert first is None or first in set(kept["step"])
    usual = kept[~kept["extreme"]]["step"].diff().dropna()
    assert usual.empty or usual.max() - usual.min() <= 1  # those that are not extreme are evenly spaced


def test_a_spike_among_many_steps_is_in_picture_and_table() -> None:
    """One step of 5,000 takes 40 s, one loss of them is nan: both in the figure's points and, without script, in its table; the scatter of a comparison is not theirs."""
    document = json.loads(report_of(FIXTURES / "runs" / "truncated-midline").to_json())
    rows = pd.DataFrame({"step": range(1, 5001), "dur_ns": [40e9 if s == 3333 else 1e9 + s % 7 * 1e6 for s in range(1, 5001)]})
    made = charts._steps(Steps(rows, "deepspeed", None, rows))
    loss = charts.thinned(pd.DataFrame({"step": rows["step"], "value": [math.nan if s == 2222 else 1 / s for s in rows["step"]]}), "value")
    values = [None if math.isnan(v) else v for v in loss["value"]]
    document["charts"] |= {"steps": made, "loss": {"loss": {"step": loss["step"].tolist(), "value": values}}}
    given_report = Report.from_json(json.dumps(document))
    times, losses = (f for group in figures(given_report, placed(given_report)).values() for f in group if f.id in ("step-time", "loss"))
    assert max(times.data[0]["y"]) == 40
    assert any(row[2] == "40.0 s" for row in times.rows)
    assert losses.data[1]["x"] == [2222]
    assert [row[3] for row in losses.rows if row[3]] == ["some"]
    assert max(len(times.rows), len(losses.rows)) <= 30
    assert side("A", given_report).scatter_s == pytest.approx(1.4826 * 2e-3, rel=0.2)


def test_the_slowest_replica_is_drawn() -> None:
    made = report_of(FIXTURES / "runs" / "dp2-pp2-slow-replica").charts
    assert made["timeline"]["replica"] == 1
    assert [r["rank"] for r in made["timeline"]["rows"]] == [1, 3]
    slow = max(made["peers"], key=lambda p: p["compute_ms"] / p["peer_ms"])
    assert slow["rank"] == 1
    assert slow["compute_ms"] > 1.5 * slow["peer_ms"]
    assert {c["name"] for c in made["collectives"]} >= {"all_reduce", "broadcast"}


def test_a_stalled_link_is_drawn_where_its_sender_waits() -> None:
    rows = report_of(FIXTURES / "runs" / "comm-stall-link-1-2").charts["timeline"]["rows"]
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
    assert (made["from"], made["length_s"], made["drawn_s"]) == ("2024-01-31T02:00:20.000", 15.0, 20.0)
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
