"""Several jobs below one folder are told apart and never mixed; nodes, ranks and restarts of one job stay together."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from pathlib import Path

import pytest

import pipelog
from pipelog.events import Events
from pipelog.tables import Tables
from pipelog.tables.folders import Job


def stamp(second: int) -> str:
    return f"[2025-06-01 10:{second // 60:02d}:{second % 60:02d},000]"


def log(
    at: int,
    *,
    stages: int = 2,
    hosts: Sequence[str] = ("node-a",),
    arguments: str = "",
    steps: Sequence[int] = (10, 20, 30),
    step_s: float = 1.0,
    loaded: int | None = None,
    end: str = "",
) -> str:
    """What DeepSpeed's launcher and rank 0 print of a job of one rank a stage that begins *at* seconds after ten."""
    each = stages // len(hosts)
    world = base64.urlsafe_b64encode(json.dumps({h: list(range(each)) for h in hosts}).encode()).decode()
    lines = [
        (
            f"{stamp(at)} [INFO] [runner.py:605:main] cmd = /usr/bin/python3 -u -m deepspeed.launcher.launch --world_info={world} "
            f"--master_addr=10.0.0.4 --master_port=29500 train.py --deepspeed_config ds_config.json --stages {stages} {arguments}"
        ),
        node(at + 1, hosts, 0),
        "SEED_LAYERS=False BASE_SEED=1234 SEED_FN=None",
        f"Using topology: {{{', '.join(f'ProcessCoord(pipe={s}, data=0): {s}' for s in range(stages))}}}",
    ]
    if loaded is not None:
        lines.append(
            f"{stamp(at + 2)} [INFO] [torch_checkpoint_engine.py:27:load] [Torch] Loading checkpoint from ckpt/global_step{loaded}/mp_rank_00_model_states.pt..."
        )
    for n, step in enumerate(steps):
        lines.append(f"{stamp(at + 5 + 10 * n)} [INFO] [logging.py:128:log_dist] [Rank 0] step={step}, skipped=0, lr=[0.001], mom=[(0.9, 0.999)]")
        lines.append(f"steps: {step} loss: {9 / (step + at / 100):.4f} iter time (s): {step_s:.3f} samples/sec: {8 / step_s:.3f}")
    return "\n".join([*lines, f"{stamp(at + 40)} [INFO] [launch.py:351:main] Process 811 exits successfully." if end == "done" else "", ""])


def node(at: int, hosts: Sequence[str], number: int) -> str:
    """The launcher of one node."""
    return f"{stamp(at)} [INFO] [launch.py:152:main] nnodes={len(hosts)}, num_local_procs=2, node_rank={number}"


def found(folder: Path, files: dict[str, str]) -> list[list[str]]:
    """The places of each job, a single one without places."""
    jobs: list[Job] = Tables(read(folder, files))["jobs"]
    return [job.places for job in jobs]


def read(folder: Path, files: dict[str, str]) -> Events:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return pipelog.read(folder)


ONE = {
    "one log": {"train.log": log(0)},
    "a folder for each host": {"node-a/out.log": log(0, stages=4, hosts=("node-a", "node-b")), "node-b/out.log": node(1, ("node-a", "node-b"), 1)},
    "hosts with names that say nothing": {"ada/out.log": log(0, stages=4, hosts=("ada", "bob")), "bob/out.log": node(2, ("ada", "bob"), 1)},
    "a restart after a failure, nothing changed": {"a/train.log": log(0), "b/train.log": log(300)},
    "a restart that goes on with other settings": {
        "a/train.log": log(0, arguments="--micro_batch_size 4"),
        "b/train.log": log(300, arguments="--micro_batch_size 2", loaded=20, steps=(30, 40)),
    },
    "the same, told by its steps alone": {
        "a/train.log": log(0, arguments="--micro_batch_size 4"),
        "b/train.log": log(300, arguments="--micro_batch_size 2", steps=(30, 40)),
    },
    "a folder for each attempt, settings mended": {"attempt_0/train.log": log(0, steps=()), "attempt_1/train.log": log(300, stages=4)},
    "a folder named by the time of each start": {
        "2025-06-01_10-00/train.log": log(0, steps=()),
        "2025-06-01_10-05/train.log": log(300, stages=4),
    },
    "logs of one folder, the layout mended": {"train-1.log": log(0, steps=()), "train-2.log": log(300, stages=4)},
    "a longer run of the same model that goes on": {
        "a/train.log": log(0, arguments="--train_iters 30", end="done"),
        "b/train.log": log(300, arguments="--train_iters 60", loaded=30, steps=(40, 50)),
    },
    "both outputs of one process": {"slurm-7.out": log(0), "slurm-7.err": log(0, steps=())},
}


@pytest.mark.parametrize("files", ONE.values(), ids=ONE)
def test_one_job_stays_together(tmp_path: Path, files: dict[str, str]) -> None:
    assert found(tmp_path, files) == [[]]


SEVERAL = {
    "other stages, from the first step": {"a/train.log": log(0), "b/train.log": log(300, stages=4)},
    "other settings, from the first step": {
        "a/train.log": log(0, arguments="--micro_batch_size 4"),
        "b/train.log": log(300, arguments="--micro_batch_size 2"),
    },
    "the first came to its end": {"a/train.log": log(0, end="done"), "b/train.log": log(300)},
    "at the same time, each with its own steps": {"a/train.log": log(0), "b/train.log": log(5, step_s=1.5)},
    "another model that goes on from a checkpoint of its own": {
        "a/train.log": log(0, arguments="--num_layers 24"),
        "b/train.log": log(300, arguments="--num_layers 48", loaded=500, steps=(510, 520)),
    },
}


@pytest.mark.parametrize("files", SEVERAL.values(), ids=SEVERAL)
def test_several_jobs_are_told_apart(tmp_path: Path, files: dict[str, str]) -> None:
    assert found(tmp_path, files) == [["a/"], ["b/"]]


def test_logs_of_one_folder_of_different_models(tmp_path: Path) -> None:
    files = {"small.log": log(0, arguments="--num_layers 12"), "large.log": log(300, arguments="--num_layers 48")}
    assert found(tmp_path, files) == [["small.log"], ["large.log"]]


@pytest.mark.parametrize(("later", "together"), [("2025-06-02", True), ("2025-08-01", False)])
def test_logs_of_one_folder_on_other_ranks_weeks_apart(tmp_path: Path, later: str, together: bool) -> None:
    """The layout mended the next day is a restart; two months later it is another job, though it goes on from a checkpoint."""
    again = log(300, stages=4, loaded=30, steps=(40, 50)).replace("2025-06-01", later)
    assert found(tmp_path, {"train-1.log": log(0), "train-2.log": again}) == ([[]] if together else [["train-1.log"], ["train-2.log"]])


@pytest.mark.parametrize(("stages", "together"), [(4, True), (8, False)])
def test_a_folder_that_holds_two_layouts(tmp_path: Path, stages: int, together: bool) -> None:
    """Logs of 2 and of 4 stages in one folder: what comes weeks later may be one of them that goes on, unless it has neither layout."""
    mixed = {"a/one.log": log(0), "a/two.log": log(300, stages=4)}
    later = log(600, stages=stages, loaded=30, steps=(40, 50)).replace("2025-06-01", "2025-08-01")
    assert found(tmp_path, {**mixed, "b/train.log": later}) == ([[]] if together else [["a/"], ["b/"]])


def test_the_report_speaks_of_the_newest_alone_and_says_so(tmp_path: Path) -> None:
    """The older job has 4 stages of 2 s a step, the newer 2 of 1 s; `zoo` is the older though it is the last by name."""
    files = {"zoo/train.log": log(0, stages=4, step_s=2.0), "zoo/ds_config.json": '{"train_batch_size": 64}', "ant/train.log": log(300)}
    report = pipelog.diagnose(read(tmp_path, files), name="parent")
    assert report.topology["pp"] == 2
    assert report.metrics["step_time_s"]["median"] == 1.0
    assert report.config["train_batch_size"] is None
    assert len(report.run["attempts"]) == 1
    assert {i["path"] for i in report.inputs if i["kind"] == "ignored"} == {"zoo/train.log", "zoo/ds_config.json"}
    (note,) = [n for n in report.notes if "different jobs" in n]
    assert "speaks of ant/ alone" in note
    assert "pipelog analyze …/zoo/" in note
    assert "pp is 4 in zoo/ and 2 in ant/" in note
    assert report.notes[0] == note


def test_jobs_below_jobs(tmp_path: Path) -> None:
    """The newest of the newest team."""
    files = {
        "x/1st/train.log": log(0, arguments="--num_layers 12"),
        "y/old/train.log": log(300, arguments="--num_layers 24", end="done"),
        "y/new/train.log": log(600, arguments="--num_layers 24", step_s=3.0),
    }
    report = pipelog.diagnose(read(tmp_path, files))
    assert report.metrics["step_time_s"]["median"] == 3.0
    assert [i["path"] for i in report.inputs if i["kind"] == "log"] == ["y/new/train.log"]


def test_the_table_places_each_job_by_itself(tmp_path: Path) -> None:
    """Rank 1 is on stage 1 in both, and each has its first start."""
    events = read(tmp_path, {"a/train.log": log(0, stages=4), "b/train.log": log(300)}).table
    assert set(events.column("attempt").drop_null().to_pylist()) == {0}
    assert {i for i in events.column("file").cast("string").to_pylist() if i} == {"a/train.log", "b/train.log"}


def test_notes_beside_the_folders_and_folders_without_a_start(tmp_path: Path) -> None:
    """What nothing ties to the newest job is left out, a page of notes in the parent is nobody's."""
    files = {
        "notes.txt": "run b next\n",
        "a/train.log": log(0),
        "b/train.log": log(300, stages=4),
        "old/ds_config.json": '{"train_batch_size": 64}',
        "broken/kernel.log": "[Sun Jun  1 09:00:00 2025] NVRM: Xid (PCI:0000:17:00): 79, GPU has fallen off the bus.\n",
    }
    report = pipelog.diagnose(read(tmp_path, files))
    assert {i["path"] for i in report.inputs if i["kind"] != "ignored"} == {"b/train.log", "notes.txt"}
    assert report.failure is None
    assert "old/" in report.notes[0]


def test_folders_without_settings_in_a_folder_of_jobs(tmp_path: Path) -> None:
    """c says nothing that ties it to a or b: once these are two jobs, it is a third."""
    files = {
        "a/train.log": log(0),
        "b/train.log": log(300, stages=4),
        "c/train.log": "\n".join(f"steps: {n} loss: 0.5 iter time (s): 1.0 samples/sec: 8.0" for n in range(10, 50, 10)),
    }
    assert sorted(found(tmp_path, files)) == [["a/"], ["b/"], ["c/"]]


def test_names_that_end_in_a_number_without_being_a_series(tmp_path: Path) -> None:
    files = {"killed-rank1/train.log": log(0), "hung-rank2/train.log": log(300, stages=4), "fine/train.log": log(600, stages=6)}
    assert len(found(tmp_path, files)) == 3


def test_a_series_of_hosts_is_one_job(tmp_path: Path) -> None:
    assert found(tmp_path, {"node-1/out.log": log(0), "node-2/out.log": log(300, stages=4)}) == [[]]
