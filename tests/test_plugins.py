"""What another distribution offers through entry points: each kind of thing is found, a broken one is named, and a new parser reads cached files again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PARSER = """
from pipelog.parsing import records

@records("own-step", mark="own step ", pattern=r"^own step (?P<step>\\d{1,9}) took (?P<s>[\\d.]+) s$")
def own(found):
    yield found.rows("step", "own", step=found.int("step"), steps=1, dur_ns=found.seconds("s"))
"""
TABLE = """
from pipelog.tables import CannotTell, table

@table("own_steps", needs=("steps",))
def own_steps(steps):
    if steps.source != "own":
        raise CannotTell("no own step was printed")
    return steps.rows
"""
RULE = '''"""PX101 own-steps: there are own steps."""
from pipelog.findings import Confidence, Finding, Severity, cite, detector

@detector("PX101", "own-steps", needs=("own_steps",))
def rule(own_steps, *, least: float = 2):
    if len(own_steps) >= least:
        yield Finding("PX101", "own-steps", f"{len(own_steps)} own steps", Severity.INFO, Confidence.HIGH, evidence=cite(own_steps))
'''
KIND = '''
from pipelog.findings import Advice
from pipelog.postmortem.kinds import kind

@kind("own-failure", category="data", pattern=r"OwnError: (?P<what>.*)", says="met {what}", first=1)
def own(case):
    """Nobody else's."""
    yield Advice("call the owner")
'''
REPORTER = """
from pipelog.reporters import reporter

@reporter("own", suffix=".own")
def render(report):
    return "; ".join([f.title for f in report.findings if f.id == "PX101"] + [report.failure["title"]])
"""
PARTS = {
    "pipelog.parsers": ("own_parser", PARSER),
    "pipelog.tables": ("own_table", TABLE),
    "pipelog.detectors": ("own_rule", RULE),
    "pipelog.postmortem.kinds": ("own_kind", KIND),
    "pipelog.reporters": ("own_reporter", REPORTER),
}
LOG = [
    "own step 1 took 0.5 s",
    "own step 2 took 0.5 s",
    "Traceback (most recent call last):",
    '  File "/job/train.py", line 7, in main',
    "    go()",
    "OwnError: a wall",
]


def installed(folder: Path, parts: dict[str, tuple[str, str]]) -> Path:
    """A distribution as pip leaves it."""
    about = folder / "own-0.1.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: own\nVersion: 0.1\n")
    (about / "entry_points.txt").write_text("".join(f"[{group}]\nown = {module}\n" for group, (module, _) in parts.items()))
    for module, text in parts.values():
        (folder / f"{module}.py").write_text(text)
    return folder


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Large enough to be cached."""
    place = tmp_path / "train.log"
    place.write_text("\n".join([*["a line that says nothing" for _ in range(50_000)], *LOG]) + "\n")
    return place


def analyze(log: Path, form: str, *, plugins: Path | None = None) -> subprocess.CompletedProcess[str]:
    more = [str(plugins)] if plugins else []
    surroundings = os.environ | {"PYTHONPATH": os.pathsep.join([*more, *sys.path]), "XDG_CACHE_HOME": str(log.parent / "cache")}
    command = [sys.executable, "-m", "pipelog", "analyze", str(log), "--format", form, "-o", "-", "-q"]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=surroundings, timeout=120)


def test_each_kind_of_thing_is_found_also_in_files_read_before(tmp_path: Path, log: Path) -> None:
    before = json.loads(analyze(log, "json").stdout)
    assert before["metrics"]["step_time_s"]["median"] is None
    assert len(list((tmp_path / "cache" / "pipelog").iterdir())) == 1
    done = analyze(log, "own", plugins=installed(tmp_path / "site", PARTS))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("2 own steps; ")
    assert "met a wall" in done.stdout


@pytest.mark.parametrize("group", PARTS)
def test_a_broken_one_is_named_with_its_distribution(tmp_path: Path, log: Path, group: str) -> None:
    site = installed(tmp_path / "site", {group: ("own_broken", "import what_is_not_there\n")})
    done = analyze(log, "json", plugins=site)
    assert done.returncode == 2
    assert done.stdout == ""
    assert "the plug-in own_broken of own 0.1 cannot be loaded (ModuleNotFoundError: No module named 'what_is_not_there')" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_mark_that_is_taken_is_named_with_both_parsers(tmp_path: Path, log: Path) -> None:
    """Marks are compared when the first log is read: that, too, is no fault of the file."""
    more = PARSER.replace("own-step", "other-step")
    parts = {"pipelog.parsers": ("own_parser", PARSER + more.replace("def own(", "def other("))}
    done = analyze(log, "json", plugins=installed(tmp_path / "site", parts))
    assert done.returncode == 2
    assert done.stderr == "pipelog: the mark 'own step ' belongs to own-step and to other-step: only one parser of its sort may claim it\n"
