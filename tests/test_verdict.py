"""The first sentence says what was read, and denies nothing that was."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pipelog import diagnose, read
from pipelog.findings import Confidence, Finding, Outcome, Severity, Status, Where
from pipelog.reporters._words import cut, spoken_of
from pipelog.reporters.text import render
from pipelog.reporters.verdict import verdict
from tests.conftest import FIXTURES
from tests.once import report_of

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


def test_a_log_that_stops_says_so_first(tmp_path: Path) -> None:
    text = STEP + "".join(STEP.replace("10", str(n), 1) for n in range(20, 90, 10))
    (tmp_path / "train.log").write_text(text)
    made = verdict(diagnose(read(tmp_path)))
    assert made.word == "INCOMPLETE"
    assert made.sentence.startswith("The log stops after step 80, and no line says why; no problem found by the ")


def test_a_completed_run_says_so_first() -> None:
    made = verdict(report_of(FIXTURES / "runs" / "heavy-stage2"))
    assert (made.word, made.tone) == ("SLOW", "warning")
    assert made.sentence.startswith("Completed, step 15: stage 2 computes ")


def test_an_idle_share_of_stage_0_is_not_called_slow(tmp_path: Path) -> None:
    timers = "[2024-05-01 10:00:{:02d},000] [INFO] [logging.py:96:log_dist] [Rank 0] time (ms) | fwd_microstep: 600.00 | bwd_microstep: 1400.00 | step_microstep: 10.00\n"
    waits = "[2024-05-01 10:00:{:02d},000] [INFO] [logging.py:96:log_dist] [Rank 0] time (ms) | pipe_send_output: 100.00 | pipe_recv_grad: 1900.00\n"
    topology = "Using topology: {ProcessCoord(pipe=0, data=0): 0, ProcessCoord(pipe=1, data=0): 1}\n"
    steps = "".join(f"steps: {n} loss: 2.9134 iter time (s): 4.000 samples/sec: 2.000\n" + timers.format(n) + waits.format(n) for n in range(1, 9))
    (tmp_path / "train.log").write_text(topology + steps)
    (tmp_path / "ds_config.json").write_text('{"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 8, "steps_per_print": 1}')
    made = diagnose(read(tmp_path))
    assert [f.name for f in made.findings if f.severity.value == "warning"] == ["high-bubble-ratio"]
    assert verdict(made).word == "INCOMPLETE"
    assert verdict(made).sentence.startswith("The log stops after step 8")


START = "[2025-06-01 10:0{}:00,000] [INFO] [runner.py:605:main] cmd = /usr/bin/python3 -u train.py\n"
KILLED = "[2025-06-01 10:01:00,000] [ERROR] [launch.py:325:sigkill_handler] ['/usr/bin/python3', '-u', 'train.py'] exits with return code = -9\n"
NO_CHECKPOINT = (
    "[2025-06-01 10:00:09,000] [WARNING] [engine.py:2970:load_checkpoint] Unable to find latest file at ckpt/latest, if trying to load latest "
    "checkpoint please ensure this file exists or pass an explicit checkpoint tag when loading a checkpoint.\n"
)


def several(*numbers: int) -> str:
    return "".join(STEP.replace("10", str(n), 1) for n in numbers)


def test_a_last_start_without_a_step_is_what_ended(tmp_path: Path) -> None:
    """The figures are those of the first start, but the job is where the second left it."""
    text = START.format(0) + several(10, 20, 30) + START.format(5)
    (tmp_path / "train.log").write_text(text + "[2025-06-01 10:05:09,000] [INFO] [launch.py:152:main] nnodes=1, num_local_procs=2, node_rank=0\n")
    made = verdict(diagnose(read(tmp_path)))
    assert made.word == "INCOMPLETE"
    assert made.sentence.startswith("Attempt 1 stops before its first step, and no line says why; in attempt 0, ")


def test_how_earlier_starts_ended_is_said(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text(START.format(0) + several(10, 20) + KILLED + START.format(5) + several(30, 40))
    assert any("attempt 0 failed after step 20 (killed); the figures speak of attempt 1" in n for n in diagnose(read(tmp_path)).notes)


def test_a_checkpoint_that_was_not_there_is_said(tmp_path: Path) -> None:
    """Not where one was loaded all the same, nor where none was asked for."""
    log = tmp_path / "train.log"
    log.write_text(START.format(0) + NO_CHECKPOINT + several(10, 20))
    assert any(n.startswith("A checkpoint was to be loaded, and there was none (ckpt/latest, train.log:2)") for n in diagnose(read(tmp_path)).notes)
    loaded = "[2025-06-01 10:00:10,000] [INFO] [torch_checkpoint_engine.py:27:load] [Torch] Loading checkpoint from ckpt/global_step9/mp_rank_00_model_states.pt...\n"
    log.write_text(START.format(0) + NO_CHECKPOINT + loaded + several(10, 20))
    assert not any("checkpoint" in n for n in diagnose(read(tmp_path)).notes)
    log.write_text(START.format(0) + several(10, 20))
    assert not any("checkpoint" in n for n in diagnose(read(tmp_path)).notes)


def test_memory_that_grows_is_said_rather_than_what_it_has_grown_to() -> None:
    """The rank that leaks is also above its place: the leak is the headline. Of another rank's growth the skew is none."""
    memory = {"severity": Severity.WARNING, "confidence": Confidence.HIGH}
    skew = Finding("PL301", "memory-skew", "rank 2 peaks at 1.3 GiB", where=Where(ranks=(2,)), cost=None, **memory)
    leak = Finding("PL303", "memory-growth", "the peak memory of rank 2 grows", where=Where(ranks=(2,)), cost=None, **memory)
    report = replace(report_of(FIXTURES / "runs" / "heavy-stage2"))
    for grown, said_first in ((leak, "grows"), (replace(leak, where=Where(ranks=(1,))), "peaks")):
        report.outcomes = (
            Outcome("PL301", "memory-skew", Status.FOUND, None, (skew,)),
            Outcome("PL303", "memory-growth", Status.FOUND, None, (grown,)),
        )
        assert said_first in verdict(report).sentence


def test_the_terminal_folds_findings_of_efficiency_where_the_run_did_not_come_to_its_end() -> None:
    """What a schedule costs is a matter for another day; its title stays, its lines and advice are on the page."""
    report = report_of(FIXTURES / "cases" / "ckpt-truncated-layer-file")
    (finding,) = [f for f in report.findings if f.id == "PL102"]
    assert finding.evidence
    text = " ".join(render(report).split())
    assert "[PL102 few-micro-batches" in text
    assert not [a for a in finding.advice if a.action[:40] in text]


def test_the_host_that_failed_before_is_in_the_first_sentence() -> None:
    """Not where another host began the last failure."""
    made = replace(report_of(FIXTURES / "runs" / "heavy-stage2"))
    offender = Finding(
        "PL504",
        "repeat-offender",
        "w-063 began the failure of 2 attempts (0: hardware.gpu and 1: killed)",
        Severity.WARNING,
        Confidence.HIGH,
        Where(hosts=("w-063",)),
    )
    outcome = Outcome("PL504", "repeat-offender", Status.FOUND, findings=(offender,))
    ended = {"title": "rank 3 was killed", "step": None, "ranks": [3]}
    of_it = replace(made, outcomes=(outcome,), failure=ended | {"hosts": ["w-063"]})
    assert verdict(of_it).sentence == "Rank 3 was killed; w-063 began the failure of 2 attempts"
    of_another = replace(of_it, failure=ended | {"hosts": ["w-064"]})
    assert verdict(of_another).sentence == "Rank 3 was killed; 1 more finding below"
    again = replace(of_it, failure=ended | {"hosts": ["w-063"], "title": "w-063 fails again: ECC"})
    assert "began" not in verdict(again).sentence


LINE = " | ".join(
    ["iteration 880/1600", *(f"figure {n}: {n * 1.5}" for n in range(20)), "grad norm: 0.467", *(f"timer {n}: {n * 2.5}" for n in range(20))]
)


def test_a_line_is_cut_beside_the_figure_that_its_finding_speaks_of() -> None:
    title = "The gradient norm stands at 0.467 on the last 80 lines while the loss moves"
    assert "grad norm: 0.467" not in cut(LINE, 200)
    kept = cut(LINE, 200, spoken_of(title, LINE))
    assert "grad norm: 0.467" in kept
    assert kept.startswith("iteration 880/1600")
    assert len(kept) <= 200
    assert cut(LINE, 200, "no such name") == cut(LINE, 200)
    assert spoken_of("rank 3 was killed", LINE) == ""
    assert all(len(cut(LINE[n:], 200, "grad norm")) <= 200 and "grad norm: 0.467" in cut(LINE[n:], 200, "grad norm") for n in range(0, 300, 7))
