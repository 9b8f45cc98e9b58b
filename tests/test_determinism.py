"""One input, the same bytes: in every output, however many processes read it and in whatever order the system lists its files."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

import pipelog.reporters
from pipelog.cli import main
from pipelog.comparing.outputs import OUTPUTS
from pipelog.reading import read
from pipelog.registry import load
from pipelog.reporters import REPORTERS
from tests.conftest import FIXTURES

load(pipelog.reporters)

PLACES = [
    FIXTURES / "runs" / "heavy-stage2",
    FIXTURES / "runs" / "fail-sigkill-rank3",
    FIXTURES / "cases" / "xid79-dmesg-srun-label",
    FIXTURES / "cases" / "hang-loader-pyspy-then-time-limit",
]


def outputs(job: Path, out: Path, *more: str) -> dict[str, bytes]:
    """Every output of every command that reads a folder, by name."""
    runner = CliRunner()
    commands = [["analyze", str(job), "-o", f"{out}/", "--format", ",".join(sorted(REPORTERS))]]
    commands += [["analyze", str(job), "--redact", "-o", f"{out}/redacted/", "--format", ",".join(sorted(REPORTERS))]]
    commands += [["events", str(job), "-o", str(out / f"events{suffix}")] for suffix in (".csv", ".parquet")]
    commands += [["diff", str(FIXTURES / "diff" / "few-microbatches-m4.json"), str(job), "-o", str(out / f"diff{s}")] for s, _ in OUTPUTS.values()]
    if (job / "traces").exists():
        commands += [["events", str(job), "--perfetto", "-o", str(out / f"merged.json{packed}")] for packed in ("", ".gz")]
    out.mkdir(parents=True)
    for command in commands:
        done = runner.invoke(main, [*command, "-q", "--no-cache", *more])
        assert done.exit_code == 0, (command, done.output)
    return {str(p.relative_to(out)): p.read_bytes() for p in sorted(out.rglob("*")) if p.is_file()}


@pytest.mark.parametrize("place", PLACES, ids=lambda p: p.name)
def test_the_same_bytes_from_one_process_from_two_and_from_files_listed_backwards(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = tmp_path / "a" / place.name
    shutil.copytree(place, job, copy_function=shutil.copyfile)
    first = outputs(job, tmp_path / "1", "--jobs", "1")
    assert len(first) >= 2 * len(REPORTERS) + 2 + len(OUTPUTS)
    _same(first, outputs(job, tmp_path / "2", "--jobs", "2"))
    moved = tmp_path / "b" / place.name  # written in another order, at another time
    for file in sorted((p for p in job.rglob("*") if p.is_file()), reverse=True):
        copy = moved / file.relative_to(job)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, copy)
        os.utime(copy, (1_000_000_000, 1_000_000_000))
    listed = os.listdir
    monkeypatch.setattr(os, "listdir", lambda *given: sorted(listed(*given), reverse=True))
    _same(first, outputs(moved, tmp_path / "3", "--jobs", "1"))


def test_names_that_differ_in_zeros_alone_stand_in_one_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("rank1.log", "rank01.log", "rank001.log", "rank10.log"):
        (tmp_path / name).write_text(f"steps: 10 loss: {len(name)}.5 iter time (s): 4.812 samples/sec: 106.401\n")
    listed = os.listdir
    order = []
    for backwards in (False, True):
        monkeypatch.setattr(os, "listdir", lambda *given, turned=backwards: sorted(listed(*given), reverse=turned))
        order.append([i.path for i in read(tmp_path, jobs=1).inputs])
    assert order[0] == order[1] == ["rank001.log", "rank01.log", "rank1.log", "rank10.log"]


def _same(a: dict[str, bytes], b: dict[str, bytes]) -> None:
    assert a.keys() == b.keys()
    assert [name for name in a if a[name] != b[name]] == []
