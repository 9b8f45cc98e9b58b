"""`pipelog plan` as the user sees it: the course's example in every format, every error in one line, hostile files."""

from __future__ import annotations

import contextlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from click.testing import CliRunner, Result
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from pipelog.cli import main
from pipelog.errors import PipelogError
from pipelog.planning import html, markdown, text
from pipelog.planning import json as as_json
from pipelog.planning.batch import AUTO, Sizes
from pipelog.planning.config_file import ConfigFile, read
from pipelog.planning.costs import given as costs_of
from pipelog.planning.document import sections
from pipelog.planning.from_run import Measured
from pipelog.planning.plan import Plan, Wanted, plan
from pipelog.schema import text as schema
from tests.conftest import FIXTURES, ROOT

COURSE = FIXTURES / "plan" / "course" / "ds_config.json"
ON_EIGHT = ("plan", COURSE, "--stages", 4, "--gpus", 8)


pytestmark = pytest.mark.usefixtures("own_places")


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(a) for a in arguments])


def check(document: dict[str, Any]) -> None:
    jsonschema.Draft202012Validator(json.loads(schema("plan-1.json"))).validate(document)


# the course's example


@pytest.mark.parametrize("form", ["txt", "md", "json"])
def test_the_course_s_example_is_the_golden(form: str, update: bool) -> None:
    done = run(*ON_EIGHT, "--format", {"txt": "text"}.get(form, form))
    assert done.exit_code == 0
    golden = COURSE.with_name(f"plan.{form}")
    if update:
        golden.write_text(done.stdout)
    assert done.stdout == golden.read_text()


def test_the_course_s_example_says_what_is_wrong_with_it() -> None:
    """Each number by hand: 3/(4+3), 3/(16+3), 64/4, 64/(4*4), 8/4, 4*4*2, 16 GPUs; what would fit on 8 GPUs with 4 stages is m = 8."""
    said = " ".join(run(*ON_EIGHT).stdout.split())
    for words in (
        "DOES NOT FIT",
        "train batch 64 is not micro-batch 4 x 4 micro-batches x 2 data-parallel replicas = 32",
        "3/7 = 42.9 %",
        "64 / 4 = 16 counts the micro-batches of all replicas together. Read as m it would promise a bubble of 3/19 = 15.8 %",
        "64 = 4 x 4 x 4 asks for 4 replicas, 16 GPUs with 4 stages; 8 GPUs make only 2",
        "[PL103 batch-arithmetic]",
        "[PL102 few-micro-batches]",
        "64 = 4 x 8 x 2",
        "3/11 = 27.3 %",
        "DeepSpeed itself runs only 1F1B with a flush (= PipeDream-Flush)",
    ):
        assert words in said


def test_the_readme_shows_the_course_s_example() -> None:
    readme = (ROOT / "README.md").read_text()
    shown = readme.partition("pipelog plan fixtures/plan/course/ds_config.json --stages 4 --gpus 8\n")[2].partition("```")[0].strip()
    assert len(shown.splitlines()) > 20
    golden = COURSE.with_name("plan.txt").read_text()
    for part in shown.removesuffix("…").split("\n…\n"):
        assert part.strip() in golden


def test_the_json_of_the_course_s_example() -> None:
    document = json.loads(run(*ON_EIGHT, "--format", "json").stdout)
    check(document)
    assert [f["name"] for f in document["findings"]] == ["batch-arithmetic", "few-micro-batches"]
    assert document["batch"]["micro_batches_of_all_replicas"] == 16
    assert document["as_configured"]["bubble"] == {"numerator": 3, "denominator": 7, "value": 3 / 7}
    assert document["as_configured"]["in_flight"] == [4, 3, 2, 1]
    same = [(o["micro_batches"], o["micro_batch_size"]) for o in document["micro_batches"]]
    assert same == [(1, 32), (2, 16), (4, 8), (8, 4), (16, 2), (32, 1)]
    on_eight = [(o["stages"], o["replicas"], o["micro_batches"]) for o in document["stages"]]
    assert on_eight == [(1, 8, 2), (2, 4, 4), (4, 2, 8), (8, 1, 16)]
    one, _, interleaved = document["grid"]["schedules"][:3]
    row, column = document["grid"]["micro_batches"].index(4), document["grid"]["stages"].index(4)
    assert (one["bubble"][row][column], interleaved["bubble"][row][column]) == (3 / 7, 3 / 11)
    assert interleaved["bubble"][row][column + 1] is None  # 4 micro-batches are no multiple of 8 stages
    assert [(o["schedule"], o["messages"]) for o in document["schedules"]] == [
        ("1f1b", 24), ("gpipe", 24), ("interleaved", 56), ("zb-h1", 24), ("zb-h2", 24),
    ]  # fmt: skip


@pytest.mark.parametrize(("train", "m", "need"), [(32, 4, "half the GPUs, 1 replica"), (256, 8, "twice the GPUs, 4 replicas")])
def test_other_numbers_of_gpus_are_counted(train: int, m: int, need: str) -> None:
    """Micro-batch 8 on two replicas: 32 = 8 x 4 x 1 asks for one of them, 256 = 8 x 8 x 4 for four."""
    assert need in {f.price for f, _ in written(train=train, micro=8, m=m).fits}


def test_without_gpus_the_sizes_ask_for_their_number() -> None:
    done = run("plan", COURSE, "--stages", 4)
    assert "4 stages x 4 replicas = 16 GPUs" in done.stdout
    assert done.stdout.startswith("SLOW  4 micro-batches on 4 stages leave a bubble of 3/7 = 42.9 %")


def test_what_is_typed_goes_over_the_configuration() -> None:
    done = run(*ON_EIGHT, "--accumulation", 8)
    assert "batch-arithmetic" not in done.stdout
    assert "3/11 = 27.3 %" in done.stdout.splitlines()[0]


def test_a_threshold_is_that_of_the_rule() -> None:
    assert "few-micro-batches" not in run("plan", COURSE, "--stages", 4, "--set", "PL102.limit=0.43").stdout


# the forms


def written(**more: Any) -> Plan:
    return plan(Wanted(**({"train": 64, "micro": 4, "m": 8, "stages": 4, "gpus": 8} | more)))


PLANS = {
    "fits": lambda: written(m=16, train=128),
    "course": lambda: plan(Wanted(read(str(COURSE)), stages=4, gpus=8)),
    "nothing": lambda: plan(Wanted(gpus=8)),
    "one-stage": lambda: written(stages=1, m=2),
    "costs": lambda: written(stage_costs_ns=((1e6, 2e6), (1e6, 2e6), (3e6, 6e6), (1e6, 2e6)), transfer_ns=1e5),
    "layers": lambda: written(layers=(1.0,) * 26),
    "too-few-layers": lambda: written(layers=(1.0,) * 3),
    "interleaved": lambda: written(schedules=("interleaved", "1f1b"), chunks=(2, 4)),
    "interleaved-not": lambda: written(schedules=("interleaved",), m=6, train=48),
    "deep": lambda: written(stages=64, gpus=128, train=4096, m=512, stage_costs_ns=((1e6, 2e6),) * 64),
    "many": lambda: written(train=None, m=1 << 39),
    "mesh": lambda: written(gpus=30),
    "no-run": lambda: plan(Wanted(measured=Measured("x\x1b[2J<script>", {}, {}, None, None, "nothing was measured", "no memory"))),
}


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("form", [text, markdown, html, as_json], ids=lambda m: m.__name__.rpartition(".")[2])
def test_every_plan_has_every_form(name: str, form: Any) -> None:
    made = PLANS[name]()
    out = form.render(made)
    assert out.endswith("\n") or form is html
    assert not re.search(r"\bnan\b|\binf\b|None|Fraction", out.replace("None of", ""))
    assert "\x1b" not in out
    if form is as_json:
        check(json.loads(out))


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("width", [60, 80, 100, 120, 200])
def test_no_line_is_wider_than_the_terminal(name: str, width: int) -> None:
    console = Console(width=width, record=True, file=open("/dev/null", "w"), highlight=False, legacy_windows=False)  # noqa: PTH123, SIM115
    text.styled(PLANS[name](), console)
    lines = console.export_text().splitlines()
    console.file.close()
    tables = 80  # a table of numbers is not cut: it needs what it needs
    assert max(map(len, lines)) <= max(width, tables)
    assert len(lines) > 3


def test_words_find_their_place_beside_or_below_the_numbers() -> None:
    """In a narrow terminal they stand below their row, none is lost."""
    made = PLANS["costs"]()
    for width in (70, 140):
        console = Console(width=width, record=True, file=open("/dev/null", "w"), highlight=False)  # noqa: PTH123, SIM115
        text.styled(made, console)
        out = " ".join(console.export_text().split())
        console.file.close()
        for section in sections(made):
            assert section.title in out
            for row in section.rows:
                assert all(" ".join(cell.split()) in out for cell in row[:-1])


class Page(HTMLParser):
    """Tags that were opened and not closed, and what would be fetched."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.fetched: list[str] = []
        self.scripts = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in ("meta", "link", "br", "img", "hr", "input"):
            self.open.append(tag)
        self.scripts += tag == "script"
        self.fetched += [v or "" for k, v in attrs if k in ("src", "href", "srcset") and not (v or "").startswith("#")]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.mark.parametrize("name", PLANS)
def test_the_page_is_whole_and_asks_for_nothing(name: str) -> None:
    page = Page()
    page.feed(html.render(PLANS[name]()))
    assert not page.open
    assert not page.fetched
    assert not page.scripts


@pytest.mark.parametrize("name", PLANS)
def test_tables_of_markdown_are_tables(name: str) -> None:
    """Every row has as many cells as its head."""
    cells = None
    for line in markdown.render(PLANS[name]()).splitlines():
        if not line.startswith("|"):
            cells = None
            continue
        mine = len(re.findall(r"(?<!\\)\|", line))
        assert cells in (None, mine)
        cells = mine


@pytest.mark.parametrize(("form", "starts"), [("json", "{"), ("md", "<!-- pipelog plan -->"), ("txt", "DOES NOT FIT"), ("html", "<!doctype html>")])
def test_the_suffix_of_the_output_says_the_form(form: str, starts: str) -> None:
    done = run(*ON_EIGHT, "-o", f"out/x.{form}")
    assert (done.exit_code, done.stdout) == (0, f"out/x.{form}\n")
    assert Path(f"out/x.{form}").read_text().strip().startswith(starts)


def test_a_page_without_a_name_gets_one() -> None:
    done = run(*ON_EIGHT, "--format", "html")
    assert done.stdout == "pipelog-plan.html\n"
    assert Path("pipelog-plan.html").read_text().strip().startswith("<!doctype html>")
    assert run(*ON_EIGHT, "--format", "html", "-o", "-").stdout.strip().startswith("<!doctype html>")


def test_a_plan_in_the_job_s_folder_is_no_log() -> None:
    for form in ("json", "md", "html", "txt"):
        run(*ON_EIGHT, "-o", f"job/x.{form}")
    Path("job/train.log").write_text("hello\n")
    run("analyze", "job", "-o", "report.json", "--jobs", 1)
    kinds = {i["path"]: (i["kind"], i["skipped"]) for i in json.loads(Path("report.json").read_text())["inputs"]}
    for form in ("json", "md", "html", "txt"):
        assert kinds[f"x.{form}"] == ("ignored", [{"line": None, "why": "ignored, because it is a report of pipelog"}])


def test_the_schema_is_printed() -> None:
    assert json.loads(run("schema", "--plan").stdout)["$id"] == "urn:pipelog:plan:1"
    assert json.loads(run("schema").stdout)["$id"] == "urn:pipelog:report:1"


def test_a_saved_report_is_planned_with() -> None:
    run("analyze", FIXTURES / "runs" / "heavy-stage2", "-o", "heavy.json")
    done = run("plan", "--from", "heavy.json", "--format", "json")
    document = json.loads(done.stdout)
    check(document)
    assert document["costs"]["basis"] == "measured in heavy-stage2"
    assert document["as_configured"]["predicted"]["step_s"] == pytest.approx(0.874, rel=0.01)
    assert [f["name"] for f in document["findings"]] == ["stage-imbalance"]


# what the user can mend


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "nothing to plan with"),
        (("no-such.json",), "no such file or folder: no-such.json"),
        ((".",), "is a folder"),
        (("--stages", 0), "--stages"),
        (("--stages", 5000), "more than any job has"),
        (("--gpus", 1 << 30), "more than any job has"),
        (("--stages", 4, "--train-batch", 1 << 60), "no batch is as large"),
        (("--stages", "four"), "--stages"),
        (("--stages", 4, "--costs", "1,2"), "--costs gives 2 stages, but there are 4"),
        (("--costs", "1,x"), "'x' is no positive number"),
        (("--costs", "1,,2"), "a number is missing between two commas"),
        (("--costs", "1/0,1/2"), "'0' is no positive number"),
        (("--costs", "1,nan"), "no positive number"),
        (("--stages", 4, "--layers", "2.5"), "expected how many layers"),
        (("--stages", 4, "--layers", "-3,1"), "no positive number"),
        (("--stages", 4, "--chunks", "1"), "whole numbers from 2 on"),
        (("--stages", 4, "--schedule", "pipedream"), "no schedule 'pipedream': there are 1f1b, gpipe, interleaved, zb-h1, zb-h2"),
        (("--stages", 4, "--transfer", -1), "--transfer"),
        (("--stages", 4, "--set", "PL102.limit=2"), "between 0 and 1"),
        (("--stages", 4, "--set", "PL201.limit=0.2"), "PL102.limit alone"),
        (("--stages", 4, "--set", "PL102.limit=x"), "expected RULE.OPTION=NUMBER"),
        (("--stages", 4, "--format", "pdf"), "--format"),
        (("--stages", 4, "-o", "/dev/null/x.json"), "cannot write"),
        (("--from", "no-such-run"), "no such file or folder"),
        (("--frobnicate",), "--frobnicate"),
    ],
    ids=lambda a: " ".join(map(str, a)) if isinstance(a, tuple) else "",
)
def test_what_the_user_can_mend_is_one_line_and_code_2(arguments: tuple[object, ...], words: str) -> None:
    done = run("plan", *arguments)
    assert done.exit_code == 2
    assert done.stderr.startswith("pipelog: ")
    assert done.stderr.count("\n") == 1
    assert words in done.stderr
    assert not done.stdout


CONFIGS = {
    "": "no JSON object",
    "   \n": "no JSON object",
    "[1, 2]": "no JSON object",
    "train_batch_size: 64": "no JSON object",
    "\x00\x01\x02": "no JSON object",
    '{"train_batch_size": 64': "x.json:1: the configuration is not closed",
    '{"train_batch_size": }': "x.json:1: the key 'train_batch_size' has no value",
    '{"train_batch_size": 64, "train_batch_size": 32}': "x.json:1: 'train_batch_size' is given twice",
    '{\n"train_batch_size": -4}': "x.json:2: train_batch_size is '-4.0'",
    '{"train_batch_size": "64"}': "x.json:1: train_batch_size is '64'",
    '{"train_batch_size": true}': "x.json:1: train_batch_size is 'true'",
    '{"train_batch_size": 6.5}': "x.json:1: train_batch_size is '6.5'",
    '{"train_batch_size": 1e300}': "x.json:1: train_batch_size is '1e+300'",
    '{"train_batch_size": {"a": 1}}': "x.json:1: train_batch_size is an object",
    '{"train_batch_size": 64, "pipeline": {"stages": "many"}}': "x.json:1: pipeline.stages is 'many'",
    '{"train_batch_size": 64, "pipeline": {"stages": 0}}': "x.json:1: pipeline.stages is '0'",
    '{"train_batch_size": 64, "zero_optimization": {"stage": "x"}}': "x.json:1: zero_optimization.stage is 'x'",
    "{" * 100 + "}" * 100: "x.json:1: a value without a key",
}


@pytest.mark.parametrize("content", CONFIGS, ids=lambda c: c[:40])
def test_a_broken_configuration_is_one_line(content: str) -> None:
    Path("x.json").write_text(content)
    done = run("plan", "x.json", "--stages", 4)
    assert done.exit_code == 2
    assert done.stderr.count("\n") == 1
    assert CONFIGS[content] in done.stderr
    assert not done.stdout


@given(st.binary(max_size=300) | st.text(max_size=300).map(lambda t: ("{" + t + "}").encode("utf-8", "replace")))
@settings(max_examples=200)
def test_no_file_at_all_makes_it_fail(content: bytes) -> None:
    file = Path("any.json")
    file.write_bytes(content)
    with contextlib.suppress(PipelogError):
        assert text.render(plan(Wanted(read(str(file)), stages=4, gpus=8)))


@pytest.mark.parametrize(
    "content",
    [
        '// ours\n{"train_batch_size": 64, # all\n "gradient_accumulation_steps": 8}',
        '\ufeff{"train_batch_size": 6.4e1, "gradient_accumulation_steps": 8.0}',
        '{"train_batch_size": 64, "gradient_accumulation_steps": 8, "train_micro_batch_size_per_gpu": null}',
    ],
)
def test_configurations_as_people_write_them(content: str) -> None:
    Path("x.json").write_text(content)
    done = run("plan", "x.json", "--stages", 4, "--gpus", 8)
    assert "64 = 4 x 8 x 2" in done.stdout or "train batch 64 · micro-batch 4 · m = 8" in done.stdout


def test_values_that_somebody_else_fills_in() -> None:
    Path("x.json").write_text('{"train_batch_size": "auto", "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": "auto"}')
    done = run("plan", "x.json", "--stages", 4, "--gpus", 8)
    assert done.stdout.startswith("CANNOT TELL")
    assert 'train_batch_size and gradient_accumulation_steps, which are "auto": filled in by the trainer' in " ".join(done.stdout.split())


def test_the_stages_of_the_configuration_count() -> None:
    Path("x.json").write_text('{"train_batch_size": 64, "train_micro_batch_size_per_gpu": 4, "pipeline": {"stages": 2}}')
    assert "2 stages x 4 replicas = 8 GPUs" in run("plan", "x.json", "--gpus", 8).stdout
    assert "4 stages x 2 replicas = 8 GPUs" in run("plan", "x.json", "--gpus", 8, "--stages", 4).stdout


def test_what_the_engine_refuses_besides() -> None:
    Path("x.json").write_text('{"train_batch_size": 64, "gradient_accumulation_steps": 16, "zero_optimization": {"stage": 2}}')
    done = run("plan", "x.json", "--stages", 4, "--gpus", 8)
    assert done.stdout.startswith("DOES NOT FIT  ZeRO stage 2 with a pipeline")
    assert "zero-stage" not in run("plan", "x.json", "--stages", 1, "--gpus", 8).stdout
    Path("y.json").write_text('{"fp16": {"enabled": true}}')
    assert "Neither train_batch_size nor train_micro_batch_size_per_gpu is given" in " ".join(run("plan", "y.json", "--stages", 4).stdout.split())


def test_elastic_batches_are_not_judged() -> None:
    made = plan(Wanted(ConfigFile("x", Sizes(64, 4, 4), elastic=True), stages=4, gpus=8))
    assert "batch-arithmetic" not in [f.name for f in made.findings]
    assert any("elasticity" in m for m in made.missing)
    assert plan(Wanted(ConfigFile("x", Sizes(AUTO, AUTO, AUTO)), stages=4, gpus=8)).now is None


# laws of the whole


@settings(max_examples=40)
@given(st.integers(1, 8), st.integers(1, 8), st.integers(1, 16), st.integers(1, 4), st.sampled_from((1, 2)))
def test_every_row_that_can_run_multiplies(stages: int, micro: int, m: int, replicas: int, tp: int) -> None:
    made = plan(Wanted(train=micro * m * replicas, micro=micro, m=m, stages=stages, gpus=stages * tp * replicas, tp=tp))
    assert not [f for f in made.findings if f.severity == "error"]
    for o in (*made.micro_batches, *made.stages, *made.schedules):
        assert o.why_not or o.train == (o.micro or 0) * o.m * (o.replicas or 0)
        assert 0 <= o.bubble < 1
    for o in made.stages:
        assert o.why_not or (o.train == made.bench.batch.train and o.stages * tp * (o.replicas or 0) == made.bench.mesh.gpus)
    same = [o for o in made.micro_batches if o.train == made.bench.batch.train]
    assert [o.bubble for o in same] == sorted((o.bubble for o in same), reverse=True)
    assert stages == 1 or sum(o.now for o in made.micro_batches) == 1


def test_a_larger_micro_batch_leaves_fewer_of_them_and_a_larger_bubble() -> None:
    """The pitfall with numbers: train batch 64 on 2 replicas, micro-batch 8 instead of 4: m 4 instead of 8, 3/7 instead of 3/11, twice the activations.

    m = 9 is the first with a bubble of at most 25 %: (9/12) / (8/11) = 1.031.
    """
    said = " ".join(run("plan", "--stages", 4, "--gpus", 8, "--train-batch", 64, "--micro-batch", 4).stdout.split())
    assert "8 instead of 4 samples leave m = 4 instead of 8, a bubble of 42.9 % instead of 27.3 %, and stage 0 holds 2 times the activations" in said
    assert "More stages are not better: 8 instead of 4 raise the bubble from 27.3 % to 30.4 %" in said
    assert "Throughput alone misleads: m = 9 with train batch 72 gives up to 3.1 % more samples a second, but 1.12 times the samples" in said
    assert "Recomputation is not free of the schedule" in said


def test_given_costs_predict_the_phase() -> None:
    """Four stages of 90 ms, the third of 210: at m = 8 at least 8 x 210 ms, at most that and the three others once."""
    made = plan(Wanted(m=8, stage_costs_ns=tuple((30e6 * f, 60e6 * f) for f in (1, 1, 7 / 3, 1))))
    assert made.now is not None
    assert made.now.phase_ns is not None
    assert 8 * 210e6 <= made.now.phase_ns <= 8 * 210e6 + 3 * 90e6
    assert made.bench.costs == costs_of([(30e6, 60e6), (30e6, 60e6), (70e6, 140e6), (30e6, 60e6)], 0.0, "given by --costs")
