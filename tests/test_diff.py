"""`pipelog diff`: recorded pairs whose difference is known from its source, what is no difference, what cannot be told, every form, hostile and damaged input."""

from __future__ import annotations

import copy
import json
import re
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from click.testing import CliRunner, Result
from hypothesis import given, settings
from hypothesis import strategies as st
from playwright.sync_api import Browser
from rich.console import Console

from pipelog.cli import main
from pipelog.comparing import html, markdown, text
from pipelog.comparing import json as as_json
from pipelog.comparing.comparison import Comparison, compare
from pipelog.comparing.findings import ORDER
from pipelog.comparing.steps_between import between
from pipelog.errors import BadReport
from pipelog.reading import read
from pipelog.report import Report
from pipelog.schema import text as schema
from tests.conftest import FIXTURES, ROOT
from tests.test_html import HOSTILE, Opened, Tags, poisoned
from tests.test_html import report as analyzed

SAVED = FIXTURES / "diff"
RUNS = FIXTURES / "runs"


pytestmark = pytest.mark.usefixtures("own_places")


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(a) for a in arguments])


@cache
def report(name: str) -> Report:
    """A run of fixtures/runs, or the saved report of one that is too large to be here."""
    saved = SAVED / f"{name}.json"
    return Report.from_json(saved.read_text()) if saved.exists() else analyzed(name)


@cache
def pair(a: str, b: str) -> Comparison:
    return compare(report(a), report(b))


def changed(name: str, **paths: Any) -> Report:
    """The report of a run with other values: `metrics__step_time_s__median=1.0`."""
    document = copy.deepcopy(json.loads(report(name).to_json()))
    for path, value in paths.items():
        *way, last = path.split("__")
        place = document
        for key in way:
            place = place[key]
        place[last] = value
    return Report.from_json(json.dumps(document))


def found(made: Comparison, what: str) -> list[tuple[str, tuple[int, ...]]]:
    return [(c.shown.name, c.shown.where.stages) for c in made.findings if c.what == what]


# ---- recorded pairs: what was put in, and the times, were measured at the source


def test_a_heavy_stage_is_named() -> None:
    """Stage 2 of heavy-stage2 was made 2.5 times as heavy: 763 ms of compute a step against 328; stages 0 and 1 of the other recompute."""
    made = pair("checkpoint-some-stages", "heavy-stage2")
    assert made.verdict.word == "SLOWER"
    assert made.time is not None
    assert made.time.ratio == pytest.approx(850 / 556, rel=0.06)
    assert "waiting for unequal stages (stage 2 computes" in made.verdict.sentence
    assert found(made, "gained") == [("stage-imbalance", (2,))]
    assert sorted(found(made, "gone")) == [("stage-imbalance", (0,)), ("stage-imbalance", (1,))]
    rows = {p.name: p.more_s for p in made.parts}
    assert rows["recomputation"] < 0 < rows["waiting for unequal stages"]
    assert sum(rows.values()) == pytest.approx(0.8735 - 0.548, rel=1e-6)  # the printed medians
    stages = as_json.document(made)["stages"]
    assert stages[2]["b"]["compute_s"] / stages[2]["a"]["compute_s"] == pytest.approx(763 / 328, rel=0.03)


def test_a_slow_link_and_a_slow_loader_are_told_apart() -> None:
    """25 ms on the link from stage 1 to 2 in one, 20 ms in the data loader in the other; 502 ms and 435 ms a step."""
    made = pair("slow-dataloader", "comm-stall-link-1-2")
    assert made.time is not None
    assert made.time.ratio == pytest.approx(502 / 435, rel=0.02)
    assert "stalls of a link (between stages 1 and 2)" in made.verdict.sentence
    assert re.search(r"against -1\d\d ms late data", made.verdict.sentence)
    assert [name for name, _ in found(made, "gained")] == ["communication-stall"]
    assert [name for name, _ in found(made, "gone")] == ["slow-data-loading"]
    back = pair("comm-stall-link-1-2", "slow-dataloader")
    assert back.verdict.word == "FASTER"
    assert "stalls of a link (between stages 1 and 2)" in back.verdict.sentence


def test_a_straggler_from_some_step_on_is_named() -> None:
    """One rank is three times slower from step 21 on: 343 ms a step against 187. Rank 0's timers see no stage but their own."""
    made = pair("truncated-midline", "straggler-from-step-20")
    assert made.verdict.word == "SLOWER"
    assert made.time is not None
    assert made.time.ratio == pytest.approx(343 / 187, rel=0.02)
    assert "in B alone, from step 21 on" in made.verdict.sentence
    assert any("stage 0, the only one measured, computes as long as before" in r.says for r in made.reasons)
    assert "stage 1" not in made.verdict.sentence


def test_a_gain_that_came_from_a_bigger_batch_is_named_so() -> None:
    """m 8 → 16 on four stages: by hand (1 + 3/16)/(1 + 3/8) = 0.8636 a sample; a micro-batch itself is no faster. Rank 0 holds 900 MB more."""
    made = pair("truncated-midline", "memory-skew")
    assert made.verdict.word == "BIGGER BATCH"
    assert made.verdict.sentence.startswith("The gain came from a bigger batch (16 → 32): a sample takes")
    assert "a bigger batch changes convergence" in made.verdict.sentence
    assert made.time is not None
    assert made.time.per_sample
    assert made.time.schedule == pytest.approx((1 + 3 / 16) / (1 + 3 / 8))
    assert made.time.ratio == pytest.approx((326 / 32) / (187 / 16), rel=0.03)
    assert ("memory-skew", (0,)) in found(made, "gained")
    document = as_json.document(made)
    assert document["b"]["samples_per_s"] > document["a"]["samples_per_s"]
    back = pair("memory-skew", "truncated-midline")
    assert back.verdict.word == "SLOWER"
    assert "8 micro-batches instead of 16 alone make 15.8 % more for a sample" in back.verdict.sentence


def test_a_bigger_batch_that_is_slower_for_a_sample_is_no_gain() -> None:
    """m 4 → 12 fills the pipeline better, but stage 2 is 2.5 times as heavy: 210/8 ms a sample against 850/24."""
    made = pair("few-microbatches-m4", "heavy-stage2")
    assert made.verdict.word == "SLOWER"
    assert made.time is not None
    assert made.time.ratio == pytest.approx((850 / 24) / (210 / 8), rel=0.04)
    assert "stage 2 computes" in made.verdict.sentence
    assert re.search(r"against -\S+ ms a sample fill and drain", made.verdict.sentence)


def test_what_one_run_alone_could_tell_is_neither_new_nor_a_reason() -> None:
    """Without traces nothing tells whether the link was slow before; and the stages compute otherwise, which rank 0's timers cannot be compared to."""
    made = pair("truncated-midline", "comm-stall-link-1-2")
    assert made.verdict.word == "SLOWER"
    assert "what took more cannot be told: of B alone it is known: the link between stage 1 and stage 2" in made.verdict.sentence
    assert "A has no data" in made.verdict.sentence
    assert [n for n, _ in found(made, "only B could tell")] == ["communication-stall"]
    assert not made.reasons[0].explains
    assert all(s["a"]["compute_s"] is None for s in as_json.document(made)["stages"])


def test_a_loss_that_is_no_number_is_no_reason_for_a_slower_step() -> None:
    made = pair("truncated-midline", "fail-nan-loss")
    assert ("loss-nan", ()) in found(made, "gained")
    assert "nan" not in made.verdict.sentence


# ---- no difference, and what cannot be told


def test_a_run_is_no_faster_than_itself() -> None:
    made = pair("truncated-midline", "truncated-midline")
    assert made.verdict.word == "NO DIFFERENCE"
    assert {c.what for c in made.findings} == {"same"}
    assert made.settings == ()
    assert made.reasons == ()


def timed(seconds: list[float], **more: Any) -> Report:
    """A run with these intervals behind a warm-up of 9 s."""
    middle = sorted(seconds)[len(seconds) // 2]
    chart = {"step": list(range(5, 5 * len(seconds) + 10, 5)), "seconds": [9.0, *seconds], "source": "deepspeed"}
    return changed("truncated-midline", charts__steps=chart, metrics__step_time_s__median=middle, **more)


STEADY = [1.0, 1.01, 0.99, 1.0, 1.01, 0.99, 1.0]
"""Median absolute deviation 0.01: scatter 0.014826."""


def test_below_the_scatter_there_is_no_difference() -> None:
    """Both scatter by 1.4826 x 1 %, together 2.97 %: 2.5 % are none, 3.5 % are one."""
    for factor, word in ((1.025, "NO DIFFERENCE"), (0.975, "NO DIFFERENCE"), (1.035, "SLOWER"), (0.96, "FASTER")):
        made = compare(timed(STEADY), timed([s * factor for s in STEADY]))
        assert made.verdict.word == word
        assert made.time is not None
        assert made.time.noise == pytest.approx(2 * 0.014826, rel=0.01)


def test_the_warm_up_is_no_scatter() -> None:
    made = compare(timed(STEADY), timed([1.2] * 7))
    assert made.b.scatter_s == 0
    assert made.verdict.word == "SLOWER"


def test_of_single_intervals_only_a_large_difference_counts() -> None:
    one = timed([1.0])
    assert compare(one, timed([1.15])).verdict.word == "NO DIFFERENCE"
    made = compare(one, timed([1.3]))
    assert made.verdict.word == "SLOWER"
    assert made.time is not None
    assert made.time.confidence == "low"
    assert any("scatter is not known" in n for n in made.notes)


def test_a_small_difference_of_one_run_each_says_so() -> None:
    assert any("one run of each" in n for n in compare(timed([1.0] * 9), timed([1.03] * 9)).notes)


def test_more_gpus_are_no_faster_work() -> None:
    """Twice the replicas and the batch in the same step: half the time a sample, each GPU works as long for it."""
    more = {"topology__world_size": 8, "topology__dp": 2, "config__train_batch_size": 32}
    made = compare(timed(STEADY), timed(STEADY, **more))
    assert made.verdict.word == "MORE GPUS"
    assert "each GPU works as much for it" in made.verdict.sentence
    assert made.time is not None
    assert (made.time.ratio, made.time.gpus) == (0.5, 1.0)
    faster = compare(timed(STEADY), timed([s * 0.8 for s in STEADY], **more))
    assert faster.verdict.word == "FASTER"


def test_bigger_micro_batches_are_a_bigger_batch() -> None:
    made = compare(timed(STEADY), timed([s * 1.5 for s in STEADY], config__train_batch_size=32, config__micro_batch_size=4))
    assert made.verdict.word == "BIGGER BATCH"
    assert "micro-batches of 4 samples instead of 2" in made.verdict.sentence


def test_more_gpus_and_more_micro_batches_are_no_faster_work() -> None:
    """Twice the replicas and m 8 → 16: four times the batch in 19/11 of the step. A GPU needs 0.864 of the time for a sample, all by the schedule."""
    more = {"topology__world_size": 8, "topology__dp": 2, "config__train_batch_size": 64, "config__micro_batches": 16}
    made = compare(timed(STEADY), timed([s * 19 / 11 for s in STEADY], **more))
    assert made.verdict.word == "BIGGER BATCH"
    assert "16 micro-batches instead of 8" in made.verdict.sentence
    assert made.time is not None
    assert made.time.rest == pytest.approx(1)


def test_a_gain_of_both_says_how_much_the_batch_makes() -> None:
    """m 8 → 16, and a micro-batch in 0.7 of its time."""
    made = compare(timed(STEADY), timed([s * 0.7 * 19 / 11 for s in STEADY], config__train_batch_size=32, config__micro_batches=16))
    assert made.verdict.word == "FASTER"
    assert "16 micro-batches instead of 8 alone make 13.6 % less" in made.verdict.sentence


@pytest.mark.parametrize(
    "more", [{"config__micro_batches": None}, {"config__micro_batch_size": None}, {"topology__world_size": None, "topology__dp": None}]
)
def test_a_batch_that_grew_nobody_knows_how_is_not_faster_work(more: dict[str, Any]) -> None:
    a = timed(STEADY, **more)
    made = compare(a, timed(STEADY, config__train_batch_size=32, **more))
    assert made.verdict.word == "BIGGER BATCH"
    assert "came with a bigger batch" in made.verdict.sentence
    assert "cannot be told" in made.verdict.sentence


def test_a_single_interval_that_holds_warm_up_tells_nothing() -> None:
    """fail-hang-gloo-timeout printed one step time."""
    made = pair("truncated-midline", "fail-hang-gloo-timeout")
    assert made.verdict.word == "CANNOT TELL"
    assert "the only step time of B is that of its first interval, which holds warm-up" in made.verdict.sentence


def test_times_of_other_lines_are_little_sure() -> None:
    made = compare(timed(STEADY), changed("truncated-midline", metrics__step_time_s__median=2.0, metrics__step_time_s__source="megatron"))
    assert made.time is not None
    assert made.time.confidence == "low"
    assert any("other lines" in n for n in made.notes)


def test_the_same_batch_in_smaller_micro_batches_is_faster_by_the_schedule() -> None:
    """(1 + 3/16)/(1 + 3/8) = 0.864."""
    made = compare(timed(STEADY), timed([s * 0.864 for s in STEADY], config__micro_batches=16, config__micro_batch_size=1))
    assert made.verdict.word == "FASTER"
    assert "16 micro-batches instead of 8 alone make 13.6 % less for a sample" in made.verdict.sentence


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"metrics__step_time_s__median": None}, "B has no step times"),
        ({"config__train_batch_size": None}, "the train batch of B is not known"),
        ({"topology__stages": [{"stage": s, "layers": [s * 3, s * 3 + 3], "params": None} for s in range(4)]}, "10 layers in A, 12 in B"),
        ({"topology__stages": [{"stage": s, "layers": None, "params": 10**9} for s in range(4)]}, "4,000,000,000 in B"),
        ({"topology__stages": [], "topology__dp": 2}, "no layers or parameters tell"),
    ],
    ids=["no-steps", "no-batch", "layers", "parameters", "no-model"],
)
def test_what_cannot_be_compared_is_not(more: dict[str, Any], why: str) -> None:
    made = compare(report("truncated-midline"), changed("truncated-midline", **more))
    assert made.verdict.word == "CANNOT TELL"
    assert why in made.verdict.sentence
    assert made.time is None
    for form in (text, markdown, html, as_json):
        assert "CANNOT TELL" in form.render(made)


def test_a_run_that_died_before_a_step_is_told_so() -> None:
    made = compare(report("truncated-midline"), changed("fail-sigkill-rank3", metrics__step_time_s__median=None))
    assert "B has no step times: Rank 3" in made.verdict.sentence
    assert any(n.startswith("B did not come to its end (failed)") for n in made.notes)


def test_a_padded_vocabulary_is_the_same_model() -> None:
    sizes = [{"stage": s, "layers": [s * 3, s * 3 + 3], "params": 100_000 + 50 * s} for s in range(4)]
    more = [{**s, "params": s["params"] + 100} for s in sizes]
    assert compare(timed(STEADY, topology__stages=sizes), timed(STEADY, topology__stages=more)).time is not None


def test_a_recorded_step_that_is_not_the_usual_one_tells_no_parts() -> None:
    made = compare(report("checkpoint-some-stages"), changed("heavy-stage2", metrics__step_time_s__median=0.6))
    assert made.parts == ()
    assert "off the usual" in made.b.why_no_parts


# ---- laws


PAIRS = [
    ("checkpoint-some-stages", "heavy-stage2"),
    ("slow-dataloader", "comm-stall-link-1-2"),
    ("truncated-midline", "straggler-from-step-20"),
    ("truncated-midline", "memory-skew"),
    ("few-microbatches-m4", "heavy-stage2"),
    ("truncated-midline", "comm-stall-link-1-2"),
    ("dp2-pp2-slow-replica", "dp2-pp2-slow-replica"),
    ("R01", "R08"),
    ("fail-sigkill-rank3", "truncated-midline"),
]


@pytest.mark.parametrize(("a", "b"), PAIRS)
def test_the_other_way_round_says_the_opposite(a: str, b: str) -> None:
    made, back = pair(a, b), pair(b, a)
    assert (made.time is None) == (back.time is None)
    if made.time and back.time:
        assert made.time.ratio * back.time.ratio == pytest.approx(1)
        assert made.time.noise == back.time.noise
        assert {made.time.slower, back.time.slower} != {True}
    turned = {"gained": "gone", "gone": "gained", "worse": "better", "better": "worse", "same": "same"}
    turned |= {"only A could tell": "only B could tell", "only B could tell": "only A could tell"}
    assert sorted(turned[c.what] for c in made.findings) == sorted(c.what for c in back.findings)
    assert [(s.name, s.b, s.a) for s in made.settings] == [
        (s.name, s.a, s.b) for s in sorted(back.settings, key=lambda s: [x.name for x in made.settings].index(s.name))
    ]
    assert set(turned) == set(ORDER)


@settings(max_examples=60)
@given(a=st.lists(st.floats(0.5, 2.0), min_size=1, max_size=12), factor=st.floats(0.3, 3.0))
def test_the_same_steps_scaled_alike_give_the_same_verdict(a: list[float], factor: float) -> None:
    made = compare(timed(a), timed([x * factor for x in a]))
    scaled = compare(timed([x * 7 for x in a]), timed([x * factor * 7 for x in a]))
    assert made.time is not None
    assert scaled.time is not None
    assert made.time.ratio == pytest.approx(factor, rel=1e-4)
    assert scaled.time.ratio == pytest.approx(made.time.ratio, rel=1e-4)
    assert scaled.time.noise == pytest.approx(made.time.noise, rel=1e-3, abs=1e-4)


# ---- forms


def check(document: dict[str, Any]) -> None:
    jsonschema.Draft202012Validator(json.loads(schema("diff-1.json"))).validate(document)


def test_the_schema_is_one() -> None:
    jsonschema.Draft202012Validator.check_schema(json.loads(schema("diff-1.json")))
    assert json.loads(run("schema", "--diff").stdout)["$id"] == "urn:pipelog:diff:1"
    assert run("schema", "--diff", "--plan").exit_code == 2


@pytest.mark.parametrize(("a", "b"), PAIRS)
@pytest.mark.parametrize("form", [text, markdown, html, as_json], ids=lambda m: m.__name__.rpartition(".")[2])
def test_every_pair_has_every_form(a: str, b: str, form: Any) -> None:
    out = form.render(pair(a, b))
    assert out == form.render(compare(report(a), report(b)))
    assert not re.search(r"\bnan\b|\binf\b|\bNone\b", re.sub(r"nan or inf", "", out))
    if form is as_json:
        check(json.loads(out))
    if form is html:
        tags = Tags(out)
        assert not tags.wrong
        assert not tags.fetched
        assert "<script" not in out


@pytest.mark.parametrize(("a", "b"), PAIRS[:4])
@pytest.mark.parametrize("width", [60, 100, 200])
def test_sentences_are_as_wide_as_the_terminal(a: str, b: str, width: int) -> None:
    with Path("/dev/null").open("w") as file:
        console = Console(width=width, record=True, file=file, highlight=False, legacy_windows=False)
        text.styled(pair(a, b), console)
        lines = console.export_text().splitlines()
    assert max(map(len, lines)) <= max(width, 110)  # a table of numbers is not cut


@pytest.mark.parametrize("bad", [*HOSTILE, "a|b\n| c |", "`" * 50, "x" * 20_000], ids=range(len(HOSTILE) + 3))
def test_hostile_text_is_shown_and_does_nothing(bad: str) -> None:
    made = compare(report("heavy-stage2"), poisoned(bad))
    page = html.render(made)
    page.encode()
    tags = Tags(page)
    assert not tags.wrong
    assert not tags.fetched
    assert "<script" not in page
    assert "<img" not in page
    shown = text.render(made)
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", shown)
    ticket = markdown.render(made)
    ticket.encode()
    assert not re.search(r"(?<!\\)<(?!!-- pipelog diff -->)|(?<!\\)\]\(", re.sub(r"`[^`\n]*`", "", ticket))
    check(json.loads(as_json.render(made)))


DAMAGE = [None, "x", -1, 0, True, [], {}, float("inf"), [None], {"a": 1}, "9" * 400]


@settings(max_examples=100)
@given(data=st.data())
def test_a_damaged_report_ends_in_one_line(data: st.DataObject) -> None:
    """Any value of a report put out of shape: a comparison, or BadReport."""
    document = copy.deepcopy(json.loads(report("heavy-stage2").to_json()))
    place: Any = document
    for _ in range(data.draw(st.integers(1, 6))):
        keys = sorted(place) if isinstance(place, dict) else list(range(len(place)))
        key = data.draw(st.sampled_from(keys))
        if not isinstance(place[key], dict | list) or not place[key]:
            break
        place, last = place[key], (place, key)
    else:
        place, key = last
    place[key] = data.draw(st.sampled_from(DAMAGE))
    try:
        damaged = Report.from_json(json.dumps(document))
        made = compare(report("heavy-stage2"), damaged)
        for form in (text, markdown, html, as_json):
            form.render(made)
    except BadReport:
        pass


@pytest.mark.parametrize("name", ["ideal", "measured"])
def test_a_damaged_bubble_is_noticed_before_anything_is_shown(name: str) -> None:
    document = json.loads(report("heavy-stage2").to_json())
    document["metrics"]["bubble"][name] = "x"
    with pytest.raises(BadReport):
        compare(report("heavy-stage2"), Report.from_json(json.dumps(document)))


def test_ranks_are_compared_where_they_do_the_same_work() -> None:
    """Rank 1 of dp2-pp2-slow-replica needs 40.5 ms a micro-batch; here rank 2 needs twice its 22.4 ms instead."""
    peers = report("dp2-pp2-slow-replica").charts["peers"]
    slow = [p | {"compute_ms": {1: 22.6, 2: 44.8}.get(p["rank"], p["compute_ms"])} for p in peers]
    made = compare(report("dp2-pp2-slow-replica"), changed("dp2-pp2-slow-replica", charts__peers=slow))
    assert [r.rank for r in made.ranks][:2] == [2, 1]
    assert made.ranks[0].b_s / made.ranks[0].a_s == pytest.approx(2, rel=0.01)
    assert compare(report("heavy-stage2"), report("dp2-pp2-slow-replica")).ranks == ()


@pytest.mark.parametrize(("a", "b"), PAIRS)
def test_the_picture_leads_from_a_to_b(a: str, b: str) -> None:
    """Each bar begins where the one above ends, the last at the step of B; no bar leaves the picture."""
    made = pair(a, b)
    picture = between(made)
    if made.why_not or not made.parts:
        assert picture is None
        return
    if picture is None:
        assert max(abs(p.more_s) for p in made.parts) < 0.02 * sum(p.a_s for p in made.parts)
        return
    bars = [row.bars[0] for row in picture.rows]
    assert all(bar.begin >= 0 and bar.begin + bar.width <= 100.01 for bar in bars)
    at = bars[0].width
    for row, bar in zip(picture.rows[1:-1], bars[1:-1], strict=True):
        assert at == pytest.approx(bar.begin + (0 if row.end.startswith("+") else bar.width), abs=0.01)
        at += bar.width if row.end.startswith("+") else -bar.width
    assert at == pytest.approx(bars[-1].width, abs=0.01)
    assert bars[-1].width / bars[0].width == pytest.approx(sum(p.b_s for p in made.parts) / sum(p.a_s for p in made.parts), rel=1e-3)


@pytest.mark.browser
@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("dark", [False, True])
def test_the_page_opens_from_disk(chromium: Browser, tmp_path: Path, width: int, dark: bool) -> None:
    for number, bad in enumerate([None, HOSTILE[0]]):
        page = html.render(compare(report("heavy-stage2"), poisoned(bad)) if bad else pair("checkpoint-some-stages", "heavy-stage2"))
        with Opened(chromium, tmp_path / f"{number}.html", page, width, dark=dark) as opened:
            assert opened.sound()
            for link in opened.page.query_selector_all("nav a"):
                assert opened.page.query_selector(link.get_attribute("href") or "#none")


# ---- the command


def test_the_readme_shows_what_it_says() -> None:
    shown = (
        (ROOT / "README.md")
        .read_text()
        .partition("pipelog diff fixtures/diff/checkpoint-some-stages.json fixtures/runs/heavy-stage2\n")[2]
        .partition("```")[0]
    )
    assert len(shown.splitlines()) > 20
    assert shown.strip().removesuffix("…").strip() in run("diff", SAVED / "checkpoint-some-stages.json", RUNS / "heavy-stage2", "-q").stdout


def test_folders_files_and_reports_say_the_same(tmp_path: Path) -> None:
    saved = tmp_path / "a.json"
    assert run("analyze", RUNS / "truncated-midline", "--format", "json", "-o", saved, "-q").exit_code == 0
    done = [run("diff", a, RUNS / "memory-skew", "--format", "json", "-q") for a in (saved, RUNS / "truncated-midline")]
    assert [d.exit_code for d in done] == [0, 0]
    assert done[0].stdout == done[1].stdout
    check(json.loads(done[0].stdout))


def test_where_it_writes(tmp_path: Path) -> None:
    a, b = SAVED / "few-microbatches-m4.json", SAVED / "checkpoint-some-stages.json"
    assert run("diff", a, b).stdout.startswith(("SLOWER  ", "FASTER  ", "NO DIFFERENCE  ", "BIGGER BATCH  "))
    assert run("diff", a, b, "--format", "html").stdout == "pipelog-diff.html\n"
    assert Path("pipelog-diff.html").read_text().startswith("<!doctype html>")
    assert run("diff", a, b, "-o", tmp_path / "x" / "d.md").exit_code == 0
    assert (tmp_path / "x" / "d.md").read_text().startswith(markdown.MARK)
    assert json.loads(run("diff", a, b, "--format", "json", "-o", "-").stdout)["schema"] == "pipelog.diff/1"


@pytest.mark.parametrize("form", ["text", "json", "md", "html"])
def test_redacted_it_names_no_host(form: str, tmp_path: Path) -> None:
    """The run that died names its host; a saved report is redacted, too."""
    saved = tmp_path / "a.json"
    saved.write_text(report("fail-sigkill-rank3").to_json().replace("localhost", "gpu-b07.example.org"))
    plain = run("diff", saved, RUNS / "dp2-pp2-slow-replica", "--format", form, "-o", "-", "-q")
    assert "gpu-b07" in plain.stdout
    done = run("diff", saved, RUNS / "dp2-pp2-slow-replica", "--format", form, "-o", "-", "-q", "--redact")
    assert done.exit_code == 0
    assert "gpu-b07" not in done.stdout
    assert "node-1 of A need not be node-1 of B" in " ".join(done.stdout.split())


def test_its_own_outputs_are_not_read_as_logs(tmp_path: Path) -> None:
    job = tmp_path / "job"
    shutil.copytree(RUNS / "fail-sigkill-rank3", job)
    for form, suffix in (("text", "txt"), ("md", "md"), ("json", "json"), ("html", "html")):
        assert (
            run("diff", SAVED / "few-microbatches-m4.json", RUNS / "fail-sigkill-rank3", "--format", form, "-o", job / f"d.{suffix}").exit_code == 0
        )
    kinds = {i.path: i.kind for i in read(job, jobs=1).inputs}
    assert {kinds[p] for p in kinds if Path(p).stem == "d"} == {"ignored"}


@pytest.mark.parametrize(
    ("content", "says"),
    [(None, "nothing there"), ('{"schema": "pipelog.report/9"}', "not a report"), ('{"schema": "pipelog.report/1", "x": ', "not a report")],
    ids=["missing", "version", "torn"],
)
def test_what_the_user_can_mend_is_one_line(content: str | None, says: str, tmp_path: Path) -> None:
    bad = tmp_path / "bad.json"
    if content is not None:
        bad.write_text(content)
    for order in ((bad, SAVED / "few-microbatches-m4.json"), (SAVED / "few-microbatches-m4.json", bad)):
        done = run("diff", *order)
        assert done.exit_code == 2
        assert len(done.stderr.splitlines()) == 1
        assert done.stderr.startswith("pipelog: ")
        assert says in done.stderr or content is None


def test_wrong_arguments_are_one_line() -> None:
    for arguments in (["only-one"], [], ["a", "b", "c"], ["a", "b", "--format", "sarif"]):
        done = run("diff", *arguments)
        assert done.exit_code == 2
        assert len(done.stderr.splitlines()) == 1
    done = run("diff", SAVED / "few-microbatches-m4.json", SAVED / "few-microbatches-m4.json", "-o", "/dev/null/x.md")
    assert done.exit_code == 2
    assert "cannot write" in done.stderr
