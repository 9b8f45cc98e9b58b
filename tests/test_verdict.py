"""The first sentence says what was read, and denies nothing that was."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipelog import diagnose, read
from pipelog.reporters.verdict import verdict

TIMER = (
    "[2023-06-03 00:10:23,345] [INFO] [logging.py:96:log_dist] [Rank 0] rank=0 time (ms) | forward_microstep: 1330.05 | backward_microstep: 4766.88\n"
)
PLACE = "[2023-07-05 15:08:30,157] [INFO] [engine.py:138:__init__] RANK=5 STAGE=1 LAYERS=12 [13, 25) STAGE_PARAMS=2718609408 (2718.609M) TOTAL_PARAMS=20553056256 (20553.056M) UNIQUE_PARAMS=20553056256 (20553.056M)\n"
STEP = "steps: 10 loss: 2.9134 iter time (s): 4.812 samples/sec: 106.401\n"


def said(tmp_path: Path, text: str) -> str:
    (tmp_path / "train.log").write_text(text)
    return verdict(diagnose(read(tmp_path))).sentence


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (TIMER, "no step with its time and no trace that shows work was read, but 2 timers"),
        (PLACE, "but 1 place of a rank, 2 statements about stages and 2 statements about the job"),
        ("hello\n", "No step line, no timer and no trace"),
    ],
)
def test_what_is_missing_is_said_of_what_was_read(tmp_path: Path, text: str, words: str) -> None:
    assert words in said(tmp_path, text)


def test_no_line_of_a_kind_that_was_read_is_denied(tmp_path: Path) -> None:
    assert "no timer" not in said(tmp_path, TIMER)
    assert "No step line" not in said(tmp_path, PLACE)


def test_one_interval_alone_is_said_to_hold_warm_up(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text(STEP)
    assert any("warm-up" in note for note in diagnose(read(tmp_path)).notes)
    (tmp_path / "train.log").write_text(STEP + STEP.replace("10", "20", 1))
    assert not any("warm-up" in note for note in diagnose(read(tmp_path)).notes)
