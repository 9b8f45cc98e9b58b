"""Folders whose every name and text is hostile, from the files to every output: shown inert, nothing lost, in time, and no page scrolls sideways on a phone."""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from playwright.sync_api import Browser

import pipelog.reporters
from pipelog import timeline
from pipelog.cli import main
from pipelog.comparing.comparison import compare
from pipelog.comparing.outputs import OUTPUTS as COMPARED
from pipelog.diagnosis import diagnose
from pipelog.events import Events
from pipelog.reading import read
from pipelog.registry import load
from pipelog.report import Report
from pipelog.reporters import REPORTERS
from tests.conftest import FIXTURES
from tests.test_html import Opened, Tags

load(pipelog.reporters)

MARKUP = (
    "<script>window.hacked=1</script></title></style>\"'><img src=x onerror=window.hacked=2>{{7*191}}[red]x[/red]%{x}`](javascript:window.hacked=3)"
)
TERMINAL = "\x1b[2J\x1b]0;owned\x07\x9b31m\u202edlrow\u2066\u200f\ufeff\u2028"
LONG = "w" * 5_000
KEPT = "KEPT-4711"
"""Stands in the exception's text, which must be in every output in full view."""
UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200f\u202a-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")


def nasty(most: int = 10_000) -> str:
    return f"{MARKUP} {TERMINAL} {LONG}"[:most]


def failed(folder: Path) -> Path:
    """A run that died by an exception: hostile are exception, frames, layers, hosts, labels, other lines, settings, monitors and the names of all of it."""
    shutil.copytree(FIXTURES / "runs" / "fail-exception-rank2", folder, copy_function=shutil.copyfile)
    log = folder / "logs" / "train.log"
    text = log.read_text()
    error = next(line for line in text.splitlines() if "ValueError: attention mask" in line)
    text = text.replace(error, f"{error} {KEPT} {MARKUP} {TERMINAL}")
    text = re.sub(r"(?m)^(\s+\d+: )Block$", lambda m: f"{m[1]}{MARKUP}", text)
    text = text.replace("train.py", "<b>tr&ain.py")
    lines = text.splitlines()
    lines[5:5] = [
        f"{MARKUP}: [rank7]: RuntimeError: {nasty()}",
        f"<img src=x>: [2026-11-30 01:11:52,226] [INFO] {nasty()}",
        "\x00" * 2000 + "\x1b[31m[rank1]:\x1b[0m loss: nan \udcff\udcfe",
        "z" * 10_000_000,
        f"{'y' * 300} NCCL WARN {MARKUP}{TERMINAL}",
    ]
    log.write_bytes("\n".join(lines).encode("utf-8", "surrogateescape"))
    log.rename(log.with_name("<img src=x onerror=window.hacked=4>\x1b[31m\u202e;$(id)`id`.log"))
    Path(os.fsdecode(os.fsencode(folder / "logs") + b"/\xff\xfe.log")).write_bytes(b"steps: 10 loss: 2.9 iter time (s): 4.8\n\xff\xfe\x00")
    (folder / "logs" / f"{'n' * 240}.log").write_text("steps: 10 loss: 2.9 iter time (s): 4.8 samples/sec: 3.0\n")
    config = json.loads((folder / "ds_config.json").read_text())
    config |= {nasty(200): nasty(), "optimizer": {"type": nasty(300)}, "zero_optimization": {"stage": MARKUP}, "partition_method": MARKUP}
    (folder / "ds_config.json").write_text(json.dumps(config))
    monitor = folder / "monitor" / "csv" / "<script>x"
    monitor.mkdir(parents=True)
    (monitor / "Train_Samples_train_loss<img src=x>.csv").write_text(f"step,{MARKUP}\n1,2.0\n2,nan\n{nasty()},3\n")
    return folder


def traced(folder: Path) -> Path:
    """A slow run with traces: hostile are names of events, devices, groups, and of the files."""
    shutil.copytree(FIXTURES / "runs" / "heavy-stage2", folder, copy_function=shutil.copyfile)
    for number, place in enumerate(sorted((folder / "traces").iterdir())):
        trace = json.loads(gzip.decompress(place.read_bytes()))
        trace["deviceProperties"] = [{"id": 0, "name": nasty(400)}]
        trace["distributedInfo"]["backend"] = MARKUP
        for event in trace["traceEvents"]:
            if event.get("ph") == "M" and "name" in event.get("args", {}):
                event["args"]["name"] = nasty(300)
            if event.get("cat") == "cpu_op" and event["name"].startswith("aten::"):
                event["name"] += f" {MARKUP}{TERMINAL}"
        at = min(e["ts"] for e in trace["traceEvents"] if e.get("cat") == "cpu_op")
        for i, name in enumerate((MARKUP, f"ncclDevKernel_{MARKUP}{TERMINAL}", nasty(3000))):
            kernel = {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 7, "ts": at + 10.0 * i, "dur": 5.0}
            trace["traceEvents"].append({**kernel, "args": {"device": 0, "stream": 7, "Process Group Name": MARKUP}})
        place.unlink()
        place.with_name(f"rank{number}<b>\u202e.pt.trace.json.gz").write_bytes(gzip.compress(json.dumps(trace).encode(), 1))
    return folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("hostile")
    name = "<script>window.hacked=9<\u202e\x1b[31m>"
    return {"failed": failed(root / f"failed {name}"), "traced": traced(root / f"traced {name}")}


@cache
def _analyzed(folder: Path) -> tuple[Events, Report]:
    events = read(folder, jobs=1)
    return events, diagnose(events, name=folder.name)


def outputs(folders: dict[str, Path], which: str, form: str) -> str:
    report = _analyzed(folders[which])[1]
    return REPORTERS[form].render(report) if form in REPORTERS else COMPARED[form.removeprefix("diff-")][1](compare(*both(folders)))


def both(folders: dict[str, Path]) -> tuple[Report, Report]:
    return _analyzed(folders["failed"])[1], _analyzed(folders["traced"])[1]


FORMS = ["html", "md", "text", "sarif", "json", "diff-html", "diff-md", "diff-text", "diff-json"]


@pytest.mark.parametrize("which", ["failed", "traced"])
@pytest.mark.parametrize("form", FORMS)
def test_every_output_is_inert(folders: dict[str, Path], which: str, form: str) -> None:
    text = outputs(folders, which, form)
    text.encode()  # no lone surrogate
    if form.endswith(("json", "sarif")):
        json.loads(text, parse_constant=lambda c: pytest.fail(f"{c} is no JSON"))
    if not form.endswith("json"):  # where unseen characters are escaped, and scripts want them as they were
        assert not UNSEEN.search(text.replace("\u202f", "")), UNSEEN.search(text)
    if form.endswith("html"):
        tags = Tags(text)
        assert not tags.wrong
        assert not tags.open
        assert not tags.fetched
        assert text.count("<script") == (3 if 'id="library"' in text else 1 if form == "html" else 0)
        assert "<img" not in text
        assert "1337" not in text
    if form.endswith("md"):
        bare = re.sub(r"(?s)(`+)(?:(?!\1).)*\1", "", text)
        assert not re.search(r"(?<!\\)<(?!!--)|(?<!\\)\]\(javascript", bare)
    limit = {"html": 2_500_000, "diff-html": 200_000}.get(form, 400_000)
    assert len(text) < limit


def test_what_the_exception_says_is_told_in_every_output(folders: dict[str, Path]) -> None:
    for form in ("html", "md", "text", "sarif", "json"):
        assert KEPT in outputs(folders, "failed", form), form
    document = json.loads(outputs(folders, "failed", "json"))
    assert (document["run"]["status"], document["failure"]["ranks"]) == ("failed", [2])
    names = [i["path"] for i in document["inputs"]]
    assert len(names) == len(set(names)) >= 6


@pytest.mark.parametrize(("form", "most"), [("html", 3_000_000), ("json", 300_000), ("sarif", 300_000), ("md", 30_000), ("text", 30_000)])
def test_a_line_of_10_mb_is_cut_in_every_output(folders: dict[str, Path], form: str, most: int) -> None:
    assert len(outputs(folders, "failed", form)) < most


def test_a_timeline_is_inert_and_valid(folders: dict[str, Path], tmp_path: Path) -> None:
    events, report = _analyzed(folders["traced"])
    timeline.write(events, report, str(tmp_path / "merged.json"))
    text = (tmp_path / "merged.json").read_bytes().decode("ascii")
    document = json.loads(text)
    assert not UNSEEN.search(json.dumps(document, ensure_ascii=False))
    labels = [e["args"]["labels"] for e in document["traceEvents"] if e["name"] == "process_labels"]
    assert labels[0] == "traces/rank0<b>⟨U+202E⟩.pt.trace.json.gz"  # viewers draw it as text


def test_the_command_line_is_inert(folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is printed, the name of the page, and a plan of the hostile configuration; nothing of a file's name gets into a path."""
    monkeypatch.chdir(tmp_path)
    runner = CliRunner()
    done = runner.invoke(main, ["analyze", str(folders["failed"]), "--no-cache", "--jobs", "1"])
    assert done.exit_code == 0
    assert not UNSEEN.search(done.stdout + done.stderr)
    assert [p.name for p in tmp_path.iterdir()] == [done.stdout.splitlines()[-1]]
    assert re.fullmatch(r"[\w.-]+\.html", next(tmp_path.iterdir()).name)
    config = folders["failed"] / "ds_config.json"
    for form in ("text", "md", "html", "json"):
        planned = runner.invoke(main, ["plan", str(config), "--stages", "4", "--gpus", "4", "--format", form, "-o", "-"])
        assert planned.exit_code in (0, 2)
        assert form == "json" or not UNSEEN.search(planned.stdout + planned.stderr)
        assert "<img" not in planned.stdout or form in ("text", "json")


def test_a_plan_says_hostile_settings_inert(folders: dict[str, Path], tmp_path: Path) -> None:
    config: dict[str, Any] = json.loads((folders["failed"] / "ds_config.json").read_text())
    config["zero_optimization"] = {"stage": 0}
    place = tmp_path / "<img src=x onerror=window.hacked=5>\x1b[31m.json"
    place.write_text(json.dumps(config))
    for form in ("text", "md", "html"):
        done = CliRunner().invoke(main, ["plan", str(place), "--stages", "4", "--gpus", "4", "--format", form, "-o", "-"])
        assert done.exit_code == 0, done.stderr
        assert not UNSEEN.search(done.stdout)
        if form == "html":
            assert not Tags(done.stdout).wrong
            assert "<img" not in done.stdout


@pytest.mark.browser
@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("which", ["failed", "traced", "diff"])
def test_pages_run_nothing_and_do_not_scroll_sideways(folders: dict[str, Path], chromium: Browser, tmp_path: Path, which: str, width: int) -> None:
    page = outputs(folders, "failed", "diff-html") if which == "diff" else outputs(folders, which, "html")
    with Opened(chromium, tmp_path / "report.html", page, width) as opened:
        opened.page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
        assert opened.sound()
        assert opened.page.evaluate("window.hacked") is None
        assert opened.page.locator("img, main script, .plot a").count() == 0
        outside = "[...document.querySelectorAll('h1, h2, h3, p, .line, .fact')].filter(e => e.offsetParent && e.getBoundingClientRect().right > innerWidth + 1).length"
        assert opened.page.evaluate(outside) == 0
