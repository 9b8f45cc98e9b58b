"""The command line as the contract has it: outputs, options, exit codes, and one line for what the user can mend."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import pipelog.kept
from pipelog.cli import main
from pipelog.events import Events, Input, Skipped
from pipelog.tables.unread import unread
from tests.conftest import FIXTURES

HEAVY = FIXTURES / "runs" / "heavy-stage2"


pytestmark = pytest.mark.usefixtures("own_places")


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(a) for a in arguments])


def test_analyze_prints_the_verdict_and_names_the_report_last() -> None:
    done = run("analyze", HEAVY)
    assert done.exit_code == 0
    assert "stage 2" in done.stdout.lower()
    assert done.stdout.splitlines()[-1] == "pipelog-heavy-stage2.html"
    assert Path("pipelog-heavy-stage2.html").read_text().startswith("<!doctype html>")


def test_analyze_writes_nothing_into_the_folder() -> None:
    before = sorted(p for p in HEAVY.rglob("*"))
    assert run("analyze", HEAVY).exit_code == 0
    assert sorted(p for p in HEAVY.rglob("*")) == before


def test_one_format_to_standard_output_and_nothing_else_there() -> None:
    done = run("analyze", HEAVY, "--format", "json", "-o", "-")
    assert done.exit_code == 0
    assert json.loads(done.stdout)["schema"] == "pipelog.report/1"
    assert not list(Path.cwd().iterdir())


def test_several_formats_into_a_folder() -> None:
    done = run("analyze", HEAVY, "--format", "json", "--format", "text", "-o", "out/")
    assert done.exit_code == 0
    assert sorted(p.name for p in Path("out").iterdir()) == ["pipelog-heavy-stage2.json", "pipelog-heavy-stage2.txt"]
    assert done.stdout.splitlines() == ["out/pipelog-heavy-stage2.json", "out/pipelog-heavy-stage2.txt"]


def test_the_suffix_of_the_output_says_the_format() -> None:
    assert run("analyze", HEAVY, "-o", "x.json").exit_code == 0
    assert json.loads(Path("x.json").read_text())["name"] == "heavy-stage2"


@pytest.mark.parametrize(("level", "code"), [("info", 1), ("warning", 1), ("error", 0)])
def test_fail_on_compares_severities(level: str, code: int) -> None:
    """heavy-stage2 has warnings and no error."""
    assert run("analyze", HEAVY, "-o", "x.json", "--fail-on", level).exit_code == code


def test_a_threshold_changes_what_is_found() -> None:
    """Stage 2 computes 2.5 times what the others do, 72 % over the mean stage: a limit of 90 % is not met."""
    run("analyze", HEAVY, "-o", "x.json", "--set", "PL201.limit=0.9", "--set", "stage-imbalance.minimum=0.9")
    named = run("analyze", HEAVY, "-o", "y.json", "--set", "stage-imbalance.limit=0.9")
    assert named.exit_code == 0
    status = {r["name"]: r["status"] for r in json.loads(Path("y.json").read_text())["rules"]}
    assert status["stage-imbalance"] == "clear"


def test_every_attempt_can_be_looked_at() -> None:
    folder = FIXTURES / "runs" / "two-restarts-one-file"
    spans = []
    for attempt in (0, 1, 2):
        assert run("analyze", folder, "-o", "x.json", "--attempt", attempt).exit_code == 0
        run_ = json.loads(Path("x.json").read_text())["run"]
        spans.append((run_["first_step"], run_["last_step"]))
        assert spans[-1] == (run_["attempts"][attempt]["first_step"], run_["attempts"][attempt]["last_step"])
    assert len(set(spans)) == 3
    assert run("analyze", folder, "--attempt", 3).exit_code == 2


@pytest.mark.parametrize(
    "arguments",
    [
        ("analyze",),
        ("analyze", "no-such-folder"),
        ("analyze", HEAVY, "--format", "pdf"),
        ("analyze", HEAVY, "--frobnicate"),
        ("analyze", HEAVY, "--set", "PL201"),
        ("analyze", HEAVY, "--set", "PL201.limit=much"),
        ("analyze", HEAVY, "--set", "PL999.limit=1"),
        ("analyze", HEAVY, "--set", "PL201.lemit=1"),
        ("analyze", HEAVY, "--attempt", "7"),
        ("analyze", HEAVY, "--jobs", "0"),
        ("analyze", HEAVY, "-o", "-"),
        ("analyze", HEAVY, "--format", "json,text", "-o", "-"),
        ("analyze", HEAVY, "--format", "json,text", "-o", "one-file"),
        ("analyze", HEAVY, "-o", "/dev/null/x.html"),
        ("events", HEAVY, "-o", "/dev/null/x.parquet"),
        ("explain", "PL999"),
        ("frobnicate",),
        ("--frobnicate",),
    ],
    ids=lambda a: " ".join(Path(str(x)).name for x in a),
)
def test_what_the_user_can_mend_is_one_line_and_code_2(arguments: tuple[object, ...]) -> None:
    done = run(*arguments)
    assert done.exit_code == 2
    assert done.stderr.startswith("pipelog: ")
    assert done.stderr.count("\n") == 1
    assert not done.stdout


def test_a_name_of_a_file_cannot_write_to_the_terminal() -> None:
    done = run("analyze", "no\x1b[2Jsuch\nfile")
    assert done.exit_code == 2
    assert "\x1b" not in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_failure_inside_is_one_line_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("broken")

    monkeypatch.setattr(pipelog.kept, "diagnose", broken)
    done = run("analyze", HEAVY)
    assert done.exit_code == 2
    assert "ZeroDivisionError" in done.stderr
    assert done.stderr.count("\n") == 1


def test_the_event_table_is_an_input_again() -> None:
    """The same findings from the Parquet file as from the folder; CSV has the same rows."""
    assert run("events", HEAVY, "-o", "events.parquet").exit_code == 0
    assert run("events", HEAVY, "-o", "events.csv").exit_code == 0
    table = Events.read("events.parquet").table
    assert Path("events.csv").read_text().count("\n") == table.num_rows + 1
    run("analyze", HEAVY, "-o", "folder.json")
    run("analyze", "events.parquet", "-o", "table.json")
    one, two = (json.loads(Path(f).read_text()) for f in ("folder.json", "table.json"))
    assert [f["title"] for f in one["findings"]] == [f["title"] for f in two["findings"]]
    assert one["metrics"] == two["metrics"]


def test_a_table_beside_the_logs_is_not_counted_twice(tmp_path: Path) -> None:
    folder = tmp_path / "job"
    folder.mkdir()
    (folder / "train.log").write_bytes((HEAVY / "logs" / "train.log").read_bytes())
    run("events", folder, "-o", folder / "events.parquet")
    run("analyze", folder, "-o", "x.json")
    inputs = {i["path"]: i for i in json.loads(Path("x.json").read_text())["inputs"]}
    assert inputs["events.parquet"]["kind"] == "ignored"
    assert "by name" in inputs["events.parquet"]["skipped"][0]["why"]


def test_the_second_time_comes_from_the_cache_and_says_the_same(tmp_path: Path) -> None:
    log = tmp_path / "large.log"
    log.write_text((HEAVY / "logs" / "train.log").read_text() + "noise\n" * 200_000)
    assert run("analyze", log, "-o", "one.json").exit_code == 0
    assert len(list((tmp_path / "cache" / "pipelog").iterdir())) == 1
    assert run("analyze", log, "-o", "two.json").exit_code == 0
    assert Path("one.json").read_text() == Path("two.json").read_text()


def test_no_cache_leaves_none(tmp_path: Path) -> None:
    log = tmp_path / "large.log"
    log.write_text((HEAVY / "logs" / "train.log").read_text() + "noise\n" * 200_000)
    assert run("analyze", log, "-o", "one.json", "--no-cache").exit_code == 0
    assert not (tmp_path / "cache").exists()


def test_the_verdict_is_of_the_start_that_is_asked_for(tmp_path: Path) -> None:
    """Two starts: the first ends well, in the second rank 3 is killed."""
    logs = [FIXTURES / "runs" / name / "logs" / "train.log" for name in ("heavy-stage2", "fail-sigkill-rank3")]
    (tmp_path / "train.log").write_text("".join(log.read_text() for log in logs))
    told = []
    for more in ([], ["--attempt", "0"], ["--attempt", "1"]):
        assert run("analyze", tmp_path / "train.log", "-o", "x.json", *more).exit_code == 0
        document = json.loads(Path("x.json").read_text())
        told.append((document["run"]["status"], (document["failure"] or {}).get("ranks")))
        assert [a["status"] for a in document["run"]["attempts"]] == ["completed", "failed"]
    assert told == [("failed", [3]), ("completed", None), ("failed", [3])]


def reports_kept(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "cache" / "pipelog").glob("*.report.json"))


def test_a_report_is_told_again_while_nothing_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipelog.kept, "_SMALLEST", 0)
    folder = tmp_path / "job"
    shutil.copytree(HEAVY, folder)
    both = {"html", "json", "md", "sarif"}
    assert run("analyze", folder, "--format", ",".join(both), "-o", "one/").exit_code == 0
    monkeypatch.setattr(pipelog.kept, "diagnose", lambda *_, **__: pytest.fail("it was analyzed again"))
    assert run("analyze", folder, "--format", ",".join(both), "-o", "two/").exit_code == 0
    made = sorted(Path("one").iterdir())
    assert len(made) == len(both)
    assert all(file.read_bytes() == (Path("two") / file.name).read_bytes() for file in made)
    assert len(reports_kept(tmp_path)) == 1


def test_a_report_is_made_anew_for_other_files_and_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipelog.kept, "_SMALLEST", 0)
    folder = tmp_path / "job"
    shutil.copytree(HEAVY, folder)
    for number, more in enumerate(([], ["--redact"], ["--attempt", "0"], ["--set", "PL201.limit=0.3"]), 1):
        assert run("analyze", folder, "-o", "x.json", *more).exit_code == 0
        assert len(reports_kept(tmp_path)) == number
    (folder / "logs" / "train.log").write_text("step 1\n")
    assert run("analyze", folder, "-o", "x.json").exit_code == 0
    assert len(reports_kept(tmp_path)) == 5
    reports_kept(tmp_path)[0].write_text("{")
    assert run("analyze", folder, "-o", "y.json").exit_code == 0
    assert run("analyze", folder, "-o", "z.json", "--no-cache").exit_code == 0
    assert Path("y.json").read_text() == Path("z.json").read_text()
    assert len(reports_kept(tmp_path)) == 5


def test_a_report_that_lacks_a_file_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipelog.kept, "_SMALLEST", 0)
    assert run("analyze", HEAVY, tmp_path / "gone", "-o", "x.json").exit_code == 0
    assert reports_kept(tmp_path) == []


def test_rules_and_their_pages() -> None:
    listed = json.loads(run("rules", "--json").stdout)
    lines = run("rules").stdout.splitlines()
    assert len(listed) == len([line for line in lines if line.startswith("PL")]) > 15
    assert max(map(len, lines)) <= 100
    assert all(len(line) <= 100 for rule in listed for line in run("explain", rule["id"]).stdout.splitlines())
    for rule in listed:
        by_id, by_name = run("explain", rule["id"]), run("explain", rule["name"])
        assert by_id.exit_code == by_name.exit_code == 0
        assert by_id.stdout == by_name.stdout
        assert all(f"{rule['id']}.{option}=" in by_id.stdout for option in rule["options"])


def test_schema_is_a_json_schema() -> None:
    assert json.loads(run("schema").stdout)["$schema"].startswith("https://json-schema.org/")


def test_a_closed_pipe_is_no_error() -> None:
    """`pipelog rules | head -1`."""
    child = subprocess.Popen([sys.executable, "-m", "pipelog", "rules"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stderr is not None
    child.stdout.close()
    assert child.stderr.read() == ""
    child.stderr.close()
    child.wait(60)


def test_completion_is_offered() -> None:
    script = subprocess.run(
        [Path(sys.executable).with_name("pipelog")],
        env={**os.environ, "_PIPELOG_COMPLETE": "bash_source"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "complete" in script.stdout


def test_standard_input_is_read_in_place_of_a_file() -> None:
    log = (HEAVY / "logs" / "train.log").read_bytes()
    done = CliRunner().invoke(main, ["analyze", "-", "--format", "json", "-o", "-"], input=log)
    assert done.exit_code == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["name"] == "stdin"
    assert [i["path"] for i in document["inputs"]] == ["stdin"]
    cited = [e for f in document["findings"] for e in f["evidence"]]
    assert all(e["text"] == log.decode().splitlines()[e["line"] - 1][:400] for e in cited if e["line"])
    assert CliRunner().invoke(main, ["events", "-", "-o", "x.parquet"], input=log).exit_code == 0
    assert Events.read("x.parquet").table.num_rows == sum(i["events"] for i in document["inputs"])


def test_the_verdict_does_not_wait_for_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the terminal shows is out before the HTML report is drawn; a page that fails costs no verdict."""
    from pipelog.reporters import REPORTERS, Reporter  # noqa: PLC0415

    def broken(_report: object) -> str:
        raise RuntimeError("no page")

    run("rules")
    monkeypatch.setitem(REPORTERS, "html", Reporter("html", ".html", broken))
    done = run("analyze", HEAVY)
    assert done.exit_code == 2
    assert "stage 2" in done.stdout.lower()


@pytest.mark.parametrize(("begun", "wanted"), [("PL20", ["PL201", "PL202"]), ("pl601", ["PL601"]), ("loss-n", ["loss-nan"]), ("x", [])])
def test_rules_are_completed_for_explain(begun: str, wanted: list[str]) -> None:
    shell = {"_PIPELOG_COMPLETE": "bash_complete", "COMP_WORDS": f"pipelog explain {begun}", "COMP_CWORD": "2"}
    done = CliRunner().invoke(main, [], env=shell, prog_name="pipelog")
    assert [line.partition(",")[2] for line in done.stdout.splitlines() if line] == wanted


def test_what_could_not_be_read_is_said_first_in_every_output_and_on_standard_error(tmp_path: Path) -> None:
    """A path that does not exist names neither the report nor stays unsaid."""
    done = run("analyze", tmp_path / "gone.log", HEAVY, *(x for f in ("json", "html", "md", "text") for x in ("--format", f)), "-o", "out/")
    assert done.exit_code == 0
    assert "Not read: " in done.stderr
    assert "gone.log (there is no such file or folder)" in done.stderr
    for suffix in ("json", "html", "md", "txt"):
        said = " ".join((Path("out") / f"pipelog-heavy-stage2.{suffix}").read_text().split())
        assert "gone.log (there is no such file or folder)" in said
    lines = Path("out/pipelog-heavy-stage2.txt").read_text().splitlines()
    assert any(line.startswith("Not read: ") for line in lines[:8])


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_permission_is_said(tmp_path: Path) -> None:
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "a.log").write_text("steps: 10 loss: 0.5 iter time (s): 1.0 samples/sec: 8.0\n")
    (tmp_path / "job" / "b.log").write_text("x\n")
    (tmp_path / "job" / "b.log").chmod(0)
    assert "b.log (permission denied)" in run("analyze", tmp_path / "job", "--format", "text", "-o", "-").stderr


def test_who_may_read_a_file_is_said_with_the_remedy() -> None:
    closed = Input("logs/b.log", "ignored", 1, skipped=[Skipped(None, "ignored, because it could not be opened: [Errno 13] Permission denied")])
    assert "logs/b.log (" in unread([closed])
    assert "chmod a+r" in unread([closed])
    gone = Input("logs/c.log", "ignored", 1, skipped=[Skipped(None, "ignored, because there is no such file or folder")])
    assert "chmod" not in unread([gone])


def test_nothing_is_said_of_what_is_no_input() -> None:
    assert "Not read" not in run("analyze", HEAVY, "--format", "text", "-o", "-").output


def test_the_number_of_a_start_that_the_text_names_is_the_option_s(tmp_path: Path) -> None:
    """Two starts in one log: the note names the option, the option gives the start, and a third is refused with what there is."""
    start = "[2025-06-01 10:00:00,000] [INFO] [runner.py:605:main] cmd = /usr/bin/python3 -u train.py"
    step = "steps: {} loss: 0.5 iter time (s): {}.0 samples/sec: 8.0"
    log = tmp_path / "train.log"
    log.write_text("\n".join([start, step.format(10, 1), step.format(20, 1), start, step.format(10, 3), step.format(20, 3)]) + "\n")
    assert "the figures speak of attempt 1 (the first is 0; --attempt shows another)" in " ".join(
        run("analyze", log, "--format", "text", "-o", "-").stdout.split()
    )
    assert json.loads(run("analyze", log, "--format", "json", "-o", "-", "--attempt", 0).stdout)["metrics"]["step_time_s"]["median"] == 1.0
    refused = run("analyze", log, "--attempt", 2)
    assert refused.exit_code == 2
    assert "the files hold 2 starts, --attempt 0 to --attempt 1" in refused.stderr


def test_what_cannot_be_written_is_one_line_that_names_the_option() -> None:
    done = run("analyze", HEAVY, "-o", "/dev/null/x.html")
    assert done.exit_code == 2
    assert done.stderr.count("\n") == 1
    assert "name another place with -o" in done.stderr


def test_many_rules_without_data_are_named_in_a_few_lines(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text("".join(f"steps: {n} loss: 0.5 iter time (s): 1.0 samples/sec: 8.0\n" for n in range(10, 50, 10)))
    text = run("analyze", tmp_path, "--format", "text", "-o", "-").stdout
    (line,) = [n for n, line in enumerate(text.splitlines()) if line.startswith("Not looked at, for want of data (")]
    assert len(text.splitlines()) - line <= 8


def test_help_and_completion_load_neither_pandas_nor_pyarrow() -> None:
    code = "import sys, pipelog.cli; print(sorted({'pandas', 'pyarrow', 'numpy', 'plotly'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_public_names_are_there_when_they_are_used() -> None:
    assert set(pipelog.__all__) <= set(dir(pipelog))
    assert all(getattr(pipelog, name) is not None for name in pipelog.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = pipelog.nothing
