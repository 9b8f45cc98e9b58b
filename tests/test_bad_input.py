"""Whatever lies in the folder: every complete record is kept, the rest is named, nothing is lost and nothing raises."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
import zlib
from pathlib import Path

import pyarrow as pa
import pytest

import pipelog
import pipelog.reporters
from pipelog import reading
from pipelog.errors import NoInput
from pipelog.events import Input
from pipelog.reading import sniff
from pipelog.registry import load
from pipelog.report import Report
from pipelog.reporters import REPORTERS
from tests.conftest import FIXTURES

STEP = "steps: {n} loss: 1.5000 iter time (s): 0.500 samples/sec: 64.000\n"
GOOD = "".join(STEP.format(n=n) for n in range(10, 60, 10))
TRACE = next((FIXTURES / "runs" / "heavy-stage2" / "traces").iterdir())


def inputs(report: Report) -> dict[str, dict[str, object]]:
    return {i["path"]: i for i in report.inputs}


def analyzed(folder: Path) -> Report:
    """The report of a folder that also holds one good log, which must come through."""
    (folder / "good.log").write_text(GOOD)
    report = pipelog.diagnose(pipelog.read(folder))
    assert report.run["last_step"] == 50
    assert not [o for o in report.outcomes if o.status.value == "failed"]
    return report


def steps(read: pipelog.Events) -> list[int]:
    kept = read.table.filter(pa.compute.equal(read.table.column("kind").cast(pa.string()), "step"))
    return kept.column("step").to_pylist()


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("empty.log", b"", "empty"),
        ("noise", bytes(range(256)) * 400, "binary"),
        ("shot.png", b"\x89PNG\r\n\x1a\n" + b"x" * 99, "picture"),
        ("model.pt", b"PK\x03\x04" + b"\0" * 99, "zip"),
        ("optimizer.pkl", b"\x80\x04\x95" + b"\0" * 99, "pickle"),
        ("result.json", b'{"answer": 42}', "neither a trace nor a DeepSpeed configuration"),
        ("run.sh", b"#!/bin/sh\necho steps: 1 loss: 2\n", "script"),
        ("report.html", b"<!DOCTYPE html>\n<p>steps: 1 loss: 2 iter time (s): 3 samples/sec: 4</p>", "HTML"),
        ("table.parquet", b"PAR1" + b"\0" * 99, "by name"),
    ],
)
def test_what_is_something_else_is_ignored_with_a_reason(tmp_path: Path, name: str, content: bytes, why: str) -> None:
    (tmp_path / name).write_bytes(content)
    found = inputs(analyzed(tmp_path))[name]
    assert found["kind"] == "ignored"
    assert found["events"] == 0
    assert why in found["skipped"][0]["why"]  # type: ignore[index]


def test_links_pipes_and_loops(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to(tmp_path)
    (tmp_path / "gone").symlink_to("/nowhere/at/all")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "again.log").symlink_to(tmp_path / "good.log")
    found = inputs(analyzed(tmp_path))
    assert set(found) in ({"good.log", "gone", "pipe"}, {"again.log", "gone", "pipe"})
    assert "could not be opened" in found["gone"]["skipped"][0]["why"]  # type: ignore[index]
    assert "regular" in found["pipe"]["skipped"][0]["why"]  # type: ignore[index]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_missing_permissions_are_named(tmp_path: Path) -> None:
    (tmp_path / "secret.log").write_text(GOOD)
    (tmp_path / "secret.log").chmod(0)
    (tmp_path / "closed").mkdir(mode=0)
    found = inputs(analyzed(tmp_path))
    assert "Permission denied" in found["secret.log"]["skipped"][0]["why"]  # type: ignore[index]
    assert "Permission denied" in found["closed"]["skipped"][0]["why"]  # type: ignore[index]


def test_a_file_that_cannot_be_opened_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same for root, who may read everything."""
    (tmp_path / "secret.log").write_text(GOOD)

    def refused(source: object) -> tuple[str, None]:
        if "secret" in str(source):
            raise PermissionError(13, "Permission denied")
        return "log", None

    monkeypatch.setattr(sniff, "kind", refused)
    assert "Permission denied" in inputs(analyzed(tmp_path))["secret.log"]["skipped"][0]["why"]  # type: ignore[index]


def test_a_reader_that_fails_costs_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "odd.log").write_text(GOOD)
    known = dict(reading._READERS)

    def broken(source: object) -> tuple[pa.Table, Input]:
        if "odd" in str(source):
            raise ZeroDivisionError("broken")
        return known["log"](source)  # type: ignore[arg-type]

    monkeypatch.setitem(reading._READERS, "log", broken)
    assert "ZeroDivisionError" in inputs(analyzed(tmp_path))["odd.log"]["skipped"][0]["why"]  # type: ignore[index]


@pytest.mark.parametrize("coding", ["utf-8-sig", "utf-16", "utf-16-le", "utf-16-be"])
def test_encodings(tmp_path: Path, coding: str) -> None:
    """Editors and PowerShell write these. Without a mark at the beginning, UTF-16 is told by its NUL bytes."""
    (tmp_path / "x.log").write_bytes(GOOD.encode(coding))
    assert steps(pipelog.read(tmp_path)) == [10, 20, 30, 40, 50]


def test_bytes_of_no_encoding_cost_nothing(tmp_path: Path) -> None:
    (tmp_path / "x.log").write_bytes(b"caf\xe9 \xff\xfe\n" + GOOD.encode() + b"\xc3\n\0\0\0\0" + STEP.format(n=60).encode())
    assert steps(pipelog.read(tmp_path)) == [10, 20, 30, 40, 50, 60]


def test_windows_line_ends_and_progress_bars(tmp_path: Path) -> None:
    (tmp_path / "x.log").write_bytes(GOOD.replace("\n", "\r\n").encode() + b"\r 10%|#   | 1/10 [00:01<00:09]\r" + STEP.format(n=60).encode())
    assert steps(pipelog.read(tmp_path)) == [10, 20, 30, 40, 50, 60]


def test_lines_of_many_megabytes(tmp_path: Path) -> None:
    """A line that never ends is let pass; the ones around it are read."""
    (tmp_path / "x.log").write_bytes(GOOD.encode() + b"x" * (40 << 20) + b"\n" + STEP.format(n=60).encode())
    assert steps(pipelog.read(tmp_path)) == [10, 20, 30, 40, 50, 60]


def test_a_cut_gzip_gives_what_stands_before(tmp_path: Path) -> None:
    """All steps whose bytes come out of a plain decompressor, and a note."""
    text = "".join(STEP.format(n=n) for n in range(1, 3001)).encode()
    packed = gzip.compress(text, 6)[:-1500]
    whole = zlib.decompressobj(31).decompress(packed).decode()
    (tmp_path / "x.log.gz").write_bytes(packed)
    read = pipelog.read(tmp_path)
    assert 100 < whole.count("\n") < 3000
    assert whole.count("\n") <= len(steps(read)) <= whole.count("\n") + 1  # the last line may just be whole
    assert "end in the middle" in read.inputs[0].skipped[0].why


def test_a_damaged_gzip_gives_what_stands_before(tmp_path: Path) -> None:
    packed = bytearray(gzip.compress("".join(STEP.format(n=n) for n in range(1, 3001)).encode(), 6))
    packed[len(packed) // 2 : len(packed) // 2 + 64] = b"\xff" * 64
    (tmp_path / "x.log.gz").write_bytes(packed)
    (tmp_path / "good.log").write_text(GOOD)
    read = pipelog.read(tmp_path)
    damaged = next(i for i in read.inputs if i.path == "x.log.gz")
    assert damaged.skipped


@pytest.mark.parametrize("keep", [0, 1, 100, 3000, 20_000])
def test_a_cut_trace(tmp_path: Path, keep: int) -> None:
    (tmp_path / "rank0.json.gz").write_bytes(TRACE.read_bytes()[:keep])
    found = inputs(analyzed(tmp_path))["rank0.json.gz"]
    assert found["skipped"] or keep == 0 or found["kind"] == "ignored"


def test_hostile_words_go_nowhere(tmp_path: Path) -> None:
    """Markup is escaped in HTML; control characters reach no terminal."""
    load(pipelog.reporters)
    nasty = "<script>alert(1)</script>\x1b[2J\x1b]0;title\x07 '\"><img src=x onerror=alert(1)> {{7*7}} [red]x[/red]"
    (tmp_path / "x.log").write_text(
        f'Traceback (most recent call last):\n  File "x.py", line 1, in <module>\nRuntimeError: {nasty}\nloss: nan\n{STEP.format(n=7)}'
    )
    (tmp_path / "<img src=x onerror=alert(1)>.log").write_text(GOOD)
    report = pipelog.diagnose(pipelog.read(tmp_path), name=nasty)
    html = REPORTERS["html"].render(report)
    assert "<script>alert" not in html
    assert "<img src=x" not in html
    text = REPORTERS["text"].render(report)
    assert "\x1b" not in text
    assert "\x07" not in text


def test_nothing_to_read(tmp_path: Path) -> None:
    with pytest.raises(NoInput):
        pipelog.read(tmp_path)
    with pytest.raises(NoInput):
        pipelog.read(tmp_path / "nowhere")


def test_a_log_of_no_known_line_is_read(tmp_path: Path) -> None:
    """Status incomplete, no failure, no finding, and no rule says clear about what it has not seen."""
    (tmp_path / "x.log").write_text("hello\nworld\n")
    report = pipelog.diagnose(pipelog.read(tmp_path))
    assert report.run["status"] == "incomplete"
    assert report.failure is None
    assert not report.findings
    status = {o.name: o.status.value for o in report.outcomes}
    assert status["stage-imbalance"] == status["memory-skew"] == status["communication-stall"] == status["high-bubble-ratio"] == "not-applicable"


def test_files_of_the_same_name_are_told_apart(tmp_path: Path) -> None:
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "x.log").write_text(GOOD)
    read = pipelog.read(tmp_path / "one" / "x.log", tmp_path / "two" / "x.log")
    assert [i.path for i in read.inputs] == ["one/x.log", "two/x.log"]


def test_processes_say_what_one_process_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for rank in range(3):
        (tmp_path / f"rank{rank}.log").write_text(GOOD)
    alone = pipelog.read(tmp_path, jobs=1)
    monkeypatch.setattr(reading, "_WORTH_PROCESSES", 0)
    together = pipelog.read(tmp_path, jobs=2)
    assert together.table.cast(alone.table.schema).to_pylist() == alone.table.to_pylist()
    assert together.inputs == alone.inputs


def test_a_script_without_a_guard_runs_once(tmp_path: Path) -> None:
    """Processes that are started anew would import it, and so run it again, up to its own call of read."""
    for name in ("one.log", "two.log"):
        (tmp_path / name).write_text("steps: 1 loss: 9.1 iter time (s): 1.0 samples/sec: 4.0\n")
    script = tmp_path / "own.py"
    script.write_text(
        "import pipelog, pipelog.reading\n"
        "pipelog.reading._WORTH_PROCESSES = 0\n"
        "print('begun')\n"
        f"print(pipelog.read({str(tmp_path / 'one.log')!r}, {str(tmp_path / 'two.log')!r}, jobs=2).table.num_rows)\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False, timeout=120)
    assert (done.stdout.split(), done.stderr) == (["begun", "6"], "")
