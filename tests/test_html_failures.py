"""Reports of failures: the same verdict in the page, in Markdown and in the terminal; and (marked `browser`) how the page behaves in chromium."""

from __future__ import annotations

import io
import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from playwright.sync_api import Browser, expect
from rich.console import Console

import pipelog
from pipelog.cli import main
from pipelog.report import Report
from pipelog.reporters import html, markdown, text
from pipelog.reporters._failure import facts, followed, labels, ratio, spent, starts
from pipelog.reporters._figures_end import ends, ledger
from pipelog.reporters._numbers import duration, parameters, power_of_two, scale, significant
from pipelog.reporters._places import capital
from pipelog.reporters._words import cut
from pipelog.reporters.markdown import words
from pipelog.reporters.verdict import verdict
from tests.conftest import FIXTURES
from tests.once import report_of
from tests.test_html import CONTRAST, HOSTILE, Opened, Tags, poisoned

CASES = sorted(p.parent.name for p in (FIXTURES / "cases").glob("*/truth.json"))
OOM, HANG, LIMIT, FINE = "gpu-oom-last-stage-cascade", "p2p-recv-hang-3-stages", "time-limit-kill-cascade", "ok-teardown-noise"
NBSP = "\N{NO-BREAK SPACE}"


def report(case: str) -> Report:
    return report_of(FIXTURES / "cases" / case)


@cache
def page_of(case: str) -> str:
    return html.render(report(case))


def plain(page: str) -> str:
    return page.replace(NBSP, " ").replace("&#39;", "'")


def changed(case: str, **sections: dict[str, Any]) -> Report:
    """A report with other values, as a reader of report.json may find them."""
    document = json.loads(report(case).to_json())
    for name, values in sections.items():
        document[name] |= values
    return Report.from_json(json.dumps(document))


# ---- in words


def test_the_verdict_of_an_oom_in_three_labels_and_three_facts() -> None:
    given = changed(OOM, run={"lost_steps": 20, "lost_s": 372.0, "last_checkpoint_step": 10}, failure={"at": "2024-01-31T02:21:33.500"})
    assert [(f.name, f.value) for f in facts(given)] == [
        ("Where", "rank 7 of 8 · stage 3 of 4 · host node-3"),
        ("When", "2024-01-31 02:21:33, after step 30"),
        ("Lost", "20 steps (6 min) since the checkpoint of step 10"),
    ]
    assert [(f.name, f.value.partition(":")[0]) for f in labels(given)] == [
        ("Category", "memory.gpu-oom"),
        ("Confidence", "high"),
        ("Cause", "known"),
    ]


def test_what_is_not_known_is_said_so() -> None:
    given = changed(
        OOM,
        run={"last_step": 30, "lost_steps": None},
        failure={
            "ranks": [],
            "stages": [],
            "hosts": [],
            "at": None,
            "not_before": None,
            "not_after": None,
            "step": None,
            "phase": None,
            "cause_known": False,
        },
    )
    assert [f.known for f in (*facts(given), *labels(given))] == [False, False, False, True, True, False]
    assert "cannot be told" in facts(given)[2].value
    assert "after step" not in verdict(given).sentence


def test_a_start_that_the_figures_do_not_speak_of_is_named() -> None:
    attempts = [{"index": i, "status": "failed", "first_step": 1, "last_step": 9, "category": None} for i in range(2)]
    given = changed(OOM, run={"attempts": attempts, "attempt": 0, "lost_steps": 4, "lost_s": None, "last_checkpoint_step": 5})
    assert facts(given)[2].value == "4 steps since the checkpoint of step 5 (attempt 0)"


@pytest.mark.parametrize(
    ("group", "says"),
    [
        (
            {"what": "was taken down with the rest", "ranks": list(range(255)), "count": 1020},
            "255 ranks (0-254) were taken down with the rest (1,020 lines)",
        ),
        ({"what": "was taken down with the rest", "ranks": [], "count": 17}, "17 lines: taken down with the rest"),
        ({"what": "lost a peer", "ranks": [4], "count": 1}, "rank 4 lost a peer"),
        ({"what": "was cancelled", "ranks": [4, 6], "count": 2}, "ranks 4 and 6 were cancelled"),
        ({"what": "said: it broke", "ranks": [1], "count": 3}, "3 lines of rank 1 like “it broke”"),
        ({"ranks": [1]}, "rank 1 said"),
    ],
)
def test_consequences_are_folded_and_counted(group: dict[str, Any], says: str) -> None:
    given = changed(OOM, failure={"consequences": [{"file": "a.log", "line": 1, "text": "x", **group}]})
    assert [f.says for f in followed(given)] == [says]


def test_other_findings_are_counted_without_the_verdict_itself() -> None:
    loud = [f for f in report(LIMIT).findings if f.severity.value != "info" and f.name not in ("run-failed", "run-hung")]
    assert loud
    assert verdict(report(LIMIT)).sentence.endswith(f"{len(loud)} more findings below")
    assert "below" not in verdict(report(OOM)).sentence


def test_the_step_stands_with_what_happened_not_with_what_is_added() -> None:
    given = changed(OOM, failure={"title": "rank 3 was killed (signal 9); ranks 2 and 4 lost it", "step": 1200})
    assert verdict(given).sentence.startswith("Rank 3 was killed (signal 9) after step 1,200; ranks 2 and 4 lost it")
    given = changed(OOM, failure={"title": "nothing was printed after step 1,200", "step": 1200})
    assert verdict(given).sentence.count("1,200") == 1


def test_nothing_is_said_of_steps_where_no_log_was_given() -> None:
    given = changed(HANG, run={"last_step": None, "lost_steps": None})
    assert facts(given)[2].value == "no step was printed"
    given.inputs = [i | {"kind": "flight-recorder"} for i in given.inputs]
    assert (facts(given)[2].value, facts(given)[2].known) == ("cannot be told: no log is among the files", False)
    assert "train.out, entry 52" in text.render(given)
    assert "train.out, entry 52" in markdown.render(given)
    assert "train.out, entry 52" in html.render(given)


LEDGER = {
    "attempts": [
        {"attempt": 0, "wall_s": 3600.0, "productive_s": 1800.0, "lost_s": 900.0, "hang_s": 600.0, "other_s": 300.0, "gap_s": None},
        {"attempt": 1, "wall_s": 1200.0, "productive_s": 600.0, "lost_s": 0.0, "hang_s": 0.0, "other_s": 600.0, "gap_s": 1200.0},
    ],
    "effective_ratio": 0.4,
}
TWO = [
    {"index": 0, "status": "hung", "first_step": 1, "last_step": 1200, "category": "hang"},
    {"index": 1, "status": "failed", "first_step": 801, "last_step": 1000, "category": "memory.gpu-oom"},
]


def two_starts() -> Report:
    return changed(OOM, run={"ledger": LEDGER, "attempts": TWO, "attempt": 1})


def test_the_ledger_in_words() -> None:
    assert ratio(two_starts()) == "40.0 % of the 1 h 40 min from the first line to the last was productive (effective training time ratio)."
    first, second = starts(two_starts())
    assert first.whole
    assert spent(first) == "hung (hang), 1 h: 30 min productive, 15 min lost, 10 min hanging, 5 min start-up and other; steps 1 to 1,200"
    assert spent(second).endswith("10 min productive, 10 min start-up and other; steps 801 to 1,000; 20 min after the one before")


def test_the_ledger_as_a_picture_has_the_numbers_of_the_report() -> None:
    made = ledger(two_starts())
    assert made
    assert [[(b.begin, b.width) for b in row.bars] for row in made.rows] == [
        [(0.0, 50.0), (50.0, 25.0), (75.0, 16.67), (91.67, 8.33)],
        [(0.0, 16.67), (16.67, 16.67)],
    ]
    assert made.table[0][4:] == ("1 h", "30 min", "15 min", "10 min", "5 min", "")
    assert made.table[1][-1] == "20 min"


def test_unknown_time_is_drawn_as_unknown() -> None:
    attempts = [LEDGER["attempts"][0] | {"productive_s": None, "lost_s": None, "other_s": None}]  # type: ignore[index,operator]
    given = changed(OOM, run={"ledger": {"attempts": attempts, "effective_ratio": None}})
    made = ledger(given)
    assert made
    assert [b.says for b in made.rows[0].bars] == ["hanging: 10 min", "not known what it went into"]
    assert "cannot be told" in ratio(given)


def test_one_start_that_came_to_its_end_has_no_ledger() -> None:
    assert report(FINE).run["status"] == "completed"
    assert ledger(report(FINE)) is None
    assert 'id="ledger"' not in page_of(FINE)


# ---- the ranks in the end


def test_lanes_of_an_oom() -> None:
    rows = {r["rank"]: r for r in report(OOM).charts["lanes"]["rows"]}
    assert sorted(rows) == list(range(8))
    assert rows[7]["error_role"] == "initiating"
    assert rows[7]["error_line"] == 144
    assert {rows[r]["error_role"] for r in range(6)} == {"cascade"}
    assert report(OOM).charts["lanes"]["from"] == "2024-01-31T02:21:31.074"  # step=30, the last that was printed
    assert (rows[0]["step"], rows[0]["step_s"]) == (30, 0.0)
    made = ends(report(OOM))
    assert made
    assert [row.name for row in made.rows if row.stands_out] == ["rank 7"]
    # its line has no time: it stands between step=30 at 02:21:31.074 and the launcher's line at 02:21:33.164
    assert [(m.shape, m.says) for m in made.rows[7].marks] == [("cross", "the error that began it, at 0 s to 2.09 s")]
    assert made.rows[1].end == "last line 4.80 s to 4.97 s"
    assert all(0 <= b.begin <= 100 and b.begin + b.width <= 100.01 for row in made.rows for b in row.bars)
    assert all(0 <= m.at <= 100 for row in made.rows for m in row.marks)


def test_a_hang_has_nobody_who_began_it_where_all_wait() -> None:
    made = ends(report(HANG))
    assert made
    assert not [row.name for row in made.rows if row.stands_out]
    assert "began it" not in " ".join((*made.says, *(k.name for k in made.legend)))


def test_of_many_ranks_those_are_drawn_that_tell_something() -> None:
    row = dict.fromkeys(
        ("stage", "host", "step", "file", "line", "error_file", "error_line", "error_role", "last_until_s", "error_until_s", "error_s", "step_s")
    )
    rows = [row | {"rank": r, "last_s": 10.0 + r} for r in range(32)]
    lanes = {
        "from": "2024-01-31T02:00:00.000",
        "to": "2024-01-31T02:05:00.000",
        "length_s": 300.0,
        "rows": rows,
        "more": {"ranks": 224, "first_s": 42.0, "last_s": 300.0},
    }
    made = ends(changed(OOM, charts={"lanes": lanes}))
    assert made
    assert "224 more ranks fell silent later and are not drawn; their last lines stand between 42.0 s and 5 min." in made.says


def test_the_picture_reaches_as_far_as_its_labels() -> None:
    """The last line of rank 1 bears no time: it stands between 8 s and 10 s, and the axis ends at 10 s."""
    given = changed(OOM, charts=json.loads(json.dumps(report(OOM).charts)))
    row = given.charts["lanes"]["rows"][0]
    rows = [row | {"rank": 0, "last_s": 8.0, "last_until_s": None}, row | {"rank": 1, "last_s": 8.0, "last_until_s": 10.0}]
    given.charts["lanes"] |= {"length_s": 8.0, "drawn_s": 10.0, "rows": rows}
    made = ends(given)
    assert made
    assert "to the last line, 8.00 s to 10.0 s later." in made.says[0]
    assert made.ticks[-1] == (100.0, "10.0 s")
    assert [(b.begin, b.width) for b in made.rows[1].bars[:2]] == [(0.0, 80.0), (80.0, 20.0)]


def test_an_end_within_one_stamp_is_no_picture() -> None:
    document = json.loads(report(OOM).to_json())
    document["charts"]["lanes"] |= {"length_s": 0.0}
    made = ends(Report.from_json(json.dumps(document)))
    assert made
    assert not made.rows
    assert made.table


# ---- pages


@pytest.mark.parametrize("case", CASES)
def test_every_case_gives_a_sound_page(case: str) -> None:
    tags = Tags(page_of(case))
    assert not tags.wrong
    assert not tags.open
    assert not tags.fetched
    assert len(tags.ids) == len(set(tags.ids))
    assert tags.targets <= set(tags.ids)
    assert all(b <= a + 1 for a, b in zip(tags.headings, tags.headings[1:], strict=False))


@pytest.mark.parametrize("case", [c for c in CASES if not c.startswith("ok-")])
def test_the_page_the_markdown_and_the_terminal_say_the_same(case: str) -> None:
    given = report(case)
    assert given.failure
    page, marked = plain(page_of(case)), markdown.render(given)
    shown = " ".join(text.render(given).split())
    for fact in (*facts(given), *labels(given)):
        assert f"<dt>{fact.name}</dt>" in page
        assert f"- **{fact.name}:** {words(fact.value)}" in marked
        assert f"{fact.name} {fact.value}" in shown
    for evidence in given.failure["evidence"][:4]:
        assert f"{evidence['file']}:{evidence['line']}" in page
        assert f"{evidence['file']}:{evidence['line']}  " in marked
        assert f"{evidence['file']}:{evidence['line']}" in shown
    for group in followed(given)[:3]:
        assert words(group.says) in marked
        assert " ".join(group.says.split()) in shown


def test_verdict_comes_first_then_what_to_do_then_the_lines() -> None:
    page = page_of(OOM)
    places = [
        page.index(s)
        for s in ('id="verdict"', "<h1", 'class="glance"', 'id="what-to-do"', 'id="proof"', 'id="followed"', 'id="ends"', 'id="findings"')
    ]
    assert places == sorted(places)
    assert page.count("Tried to allocate 3.91 GiB") == 3  # the proof, the lines around it, the ticket: no finding repeats it


def test_the_lines_around_are_there_and_the_cited_one_stands_out() -> None:
    context = report(OOM).failure["evidence"][0]["context"]  # type: ignore[index]
    assert [c["line"] for c in context] == list(range(141, 148))
    found = re.search(r'<li class="cited"><span class="at">(\d+)</span><code>(.*?)</code>', page_of(OOM))
    assert found
    assert found[1] == "144"
    assert "CUDA out of memory" in found[2]


def test_advice_that_has_nothing_to_do_with_the_end_is_folded() -> None:
    page = page_of(LIMIT)
    first, _, rest = page.partition("to do, about other findings")
    assert "gradient_accumulation_steps" in rest
    assert "raise gradient_accumulation_steps" not in first.lower()


def test_commands_in_advice_are_code() -> None:
    assert re.search(r'<span class="action">Next time while it hangs: <code>py-spy dump', page_of(HANG))


# ---- markdown


@pytest.mark.parametrize("case", CASES)
def test_markdown_is_short_and_marked(case: str) -> None:
    lines = markdown.render(report(case)).splitlines()
    assert lines[0] == "<!-- pipelog report -->"
    assert lines[1].startswith("## ")
    assert len(lines) < 60
    assert sum(line.startswith("```") for line in lines) in (0, 2)


def test_the_longest_markdown_stays_short() -> None:
    given = two_starts()
    document = json.loads(given.to_json())
    document["run"]["ledger"]["attempts"] *= 20
    document["run"]["attempts"] *= 20
    document["notes"] = ["note"] * 9
    failure = document["failure"]
    for name in ("evidence", "consequences", "missing", "advice"):
        failure[name] = [{"action": f"do {i}", "file": "a", "line": i, "text": "t", "what": "lost a peer", "count": 1} for i in range(40)]
    failure["missing"] = [f"thing {i}" for i in range(40)]
    document["findings"] = [
        {"id": r["id"], "name": r["name"], "severity": "warning", "confidence": "high", "role": None, "title": "t", "cost": None, "where": {"ranks": [], "stages": [], "hosts": [], "links": [], "steps": []}, "evidence": [], "advice": [], "fingerprint": "0"}
        for r in document["rules"]
    ]  # fmt: skip
    assert markdown.render(Report.from_json(json.dumps(document))).count("\n") < 60


@pytest.mark.parametrize(
    ("given", "made"),
    [
        ("<img src=x>", r"\<img src=x>"),
        ("**bold** and `code *x*`", r"\*\*bold\*\* and `code *x*`"),
        ("a_b stays, _so_ not", r"a_b stays, \_so\_ not"),
        ("[x](javascript:1)", r"[x\](javascript:1)"),
        ("ping @all", "ping @\N{WORD JOINER}all"),
        ("two\nlines", "two lines"),
        ("odd ` tick", r"odd \` tick"),
    ],
)
def test_words_of_logs_do_nothing_in_markdown(given: str, made: str) -> None:
    assert words(given) == made


def test_a_fence_is_longer_than_any_inside() -> None:
    lines = [{"file": "a.log", "line": 1, "text": "```` end of fence", "context": []}]
    marked = markdown.render(changed(OOM, failure={"evidence": lines}))
    assert marked.count("`````\n") == 2


# ---- the terminal


@pytest.mark.parametrize("width", [40, 60, 100, 200])
def test_the_terminal_keeps_to_its_width(width: int) -> None:
    for case in (OOM, HANG, LIMIT):
        out = io.StringIO()
        text.styled(report(case), Console(file=out, width=width, no_color=True, highlight=False, soft_wrap=False))
        assert max(map(len, out.getvalue().splitlines())) <= width
        assert "What to do" in out.getvalue()


def test_the_terminal_does_not_repeat_the_verdict_as_a_finding() -> None:
    assert "run-failed" not in text.render(report(OOM))
    assert "lost-work" in text.render(report(LIMIT))


# ---- its own reports among the files


def test_its_own_reports_are_no_input(tmp_path: Path) -> None:
    job = tmp_path / "job"
    job.mkdir()
    (job / "multi_node.log").write_bytes((FIXTURES / "cases" / OOM / "multi_node.log").read_bytes())
    before = pipelog.diagnose(pipelog.read(job), name="job")
    for suffix, render in {"html": html.render, "md": markdown.render, "txt": text.render}.items():
        (job / f"report.{suffix}").write_text(render(before))
    (job / "report.json").write_text(before.to_json())
    after = pipelog.diagnose(pipelog.read(job), name="job")
    assert {i["path"]: i["skipped"][0]["why"] for i in after.inputs if i["kind"] == "ignored"} == {
        f"report.{s}": "ignored, because it is a report of pipelog" for s in ("html", "json", "md", "txt")
    }
    assert after.failure == before.failure
    assert after.run == before.run


def test_a_log_that_ends_in_a_report_is_still_a_log(tmp_path: Path) -> None:
    log = (FIXTURES / "cases" / LIMIT / "base_n4.out").read_text()
    (tmp_path / "slurm.out").write_text(log + text.render(report(LIMIT)))
    assert [i.kind for i in pipelog.read(tmp_path).inputs] == ["log"]


def test_markdown_from_the_command_line(tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["analyze", str(FIXTURES / "cases" / OOM), "--format", "md", "-o", "-", "--no-cache"])
    assert done.exit_code == 0
    assert done.output.startswith("<!-- pipelog report -->\n## FAILED: ")
    done = CliRunner().invoke(main, ["analyze", str(FIXTURES / "cases" / OOM), "-o", str(tmp_path / "x.md"), "--no-cache"])
    assert (tmp_path / "x.md").read_text().startswith("<!-- pipelog report -->")


# ---- numbers


@pytest.mark.parametrize(
    ("value", "made"),
    [(0, "0"), (6.52049, "6.52"), (10.1512, "10.15"), (4294967296, "4,294,967,296"), (12345.6, "12,346"), (0.00012346, "0.0001235"), (1.2346e-7, "1.235 × 10⁻⁷"), (-1, "−1"), (3e14, "3.00 × 10¹⁴")],
)  # fmt: skip
def test_significant(value: float, made: str) -> None:
    assert significant(value) == made


def test_loss_scales_are_powers_of_two() -> None:
    assert scale(65536.0) == "65,536 (2¹⁶)"
    assert scale(4294967296.0) == "4,294,967,296 (2³²)"
    assert scale(1000.0) == "1,000"
    assert [power_of_two(v) for v in (1.0, 0.5, 3.0, 0.0, float("inf"), 2.0**31)] == [0, -1, None, None, None, 31]


def test_parameters_and_durations() -> None:
    assert [parameters(n) for n in (12345, 21_300_000, 1_710_000_000)] == ["12,345", "21.3 million", "1.71 billion"]
    assert [duration(s) for s in (0, 0.5, 41, 119, 600, 3600, 6720, 273600)] == [
        "0 s", "500 ms", "41.0 s", "119 s", "10 min", "1 h", "1 h 52 min", "3 d 4 h",
    ]  # fmt: skip


def test_the_loss_scale_has_an_axis_of_powers() -> None:
    figure = next(f for f in html.figures(report(LIMIT), html.placed(report(LIMIT)))["numerics"] if f.id == "loss-scale")
    assert figure.layout["yaxis"]["ticktext"][-1] == "2³¹"
    assert figure.layout["yaxis"]["tickvals"][0] == 2.0**16
    assert figure.data[0]["customdata"][0] == "2,147,483,648 (2³¹)"
    assert not re.search(r"\de[+-]?\d", json.dumps([figure.says, figure.rows], ensure_ascii=False))


def test_names_keep_their_letters() -> None:
    assert [capital(t) for t in ("gpu-b07 fails", "py-spy dump", "train_batch is", "micro-batches are", "rank 3")] == [
        "gpu-b07 fails", "py-spy dump", "train_batch is", "Micro-batches are", "Rank 3",
    ]  # fmt: skip
    assert cut("a" * 90 + "return code = -9", 60).endswith("return code = -9")
    assert len(cut("x" * 500, 200)) <= 200


# ---- in a browser


@pytest.mark.browser
@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("case", [OOM, HANG, LIMIT])
def test_the_first_screen_is_the_verdict(chromium: Browser, tmp_path: Path, case: str, width: int) -> None:
    with Opened(chromium, tmp_path / "report.html", page_of(case), width) as opened:
        assert opened.sound()
        bottoms = opened.page.evaluate(
            "[...document.querySelectorAll('h1, .glance > div, #h-what-to-do')].map(e => e.getBoundingClientRect().bottom)"
        )
        assert len(bottoms) == 8
        assert max(bottoms) <= 900
        shown = opened.page.locator(".glance").inner_text().replace(NBSP, " ")
        for fact in (*facts(report(case)), *labels(report(case))):
            assert fact.name in shown
        assert report(case).failure["category"] in shown  # type: ignore[index]


@pytest.mark.browser
def test_the_lines_around_open_and_close(chromium: Browser, tmp_path: Path) -> None:
    with Opened(chromium, tmp_path / "report.html", page_of(OOM)) as opened:
        fold = opened.page.locator("#proof .around").first
        assert not fold.locator("li").first.is_visible()
        fold.locator("summary").click()
        assert fold.locator("li").count() == 7
        assert fold.locator("li.cited").inner_text().startswith("144")
        fold.locator("summary").click()
        assert not fold.locator("li").first.is_visible()


@pytest.mark.browser
def test_copy_for_the_ticket_copies_the_markdown(chromium: Browser, tmp_path: Path) -> None:
    with Opened(chromium, tmp_path / "report.html", page_of(OOM)) as opened:
        opened.page.evaluate("navigator.clipboard.writeText = async (text) => { window.copied = text; }")
        opened.page.locator("#copy").click()
        expect(opened.page.locator("#copy")).to_have_text("Copied")
        assert opened.page.evaluate("window.copied") == markdown.render(report(OOM))


@pytest.mark.browser
def test_lanes_and_ledger_stand_where_the_numbers_say(chromium: Browser, tmp_path: Path) -> None:
    given = two_starts()
    with Opened(chromium, tmp_path / "report.html", html.render(given)) as opened:
        assert opened.sound()
        assert opened.page.locator("#ends .lane:not(.axis)").count() == len(given.charts["lanes"]["rows"])
        widths = opened.page.evaluate(
            "[...document.querySelectorAll('#ledger .lane')].map(l => [...l.querySelectorAll('.bar')].map(b => b.getBoundingClientRect().width / l.querySelector('.track').clientWidth))"
        )
        wall = LEDGER["attempts"][0]["wall_s"]  # type: ignore[index]
        for row, measured in zip(LEDGER["attempts"], widths, strict=True):  # type: ignore[arg-type]
            wanted = [row[k] / wall for k in ("productive_s", "lost_s", "hang_s", "other_s") if row[k]]  # type: ignore[index]
            assert measured == pytest.approx(wanted, abs=0.005)
        assert "40.0 %" in opened.page.locator("#ledger").inner_text().replace(NBSP, " ")


@pytest.mark.browser
@pytest.mark.parametrize("dark", [False, True])
def test_pages_of_failures_are_legible(chromium: Browser, tmp_path: Path, dark: bool) -> None:
    with Opened(chromium, tmp_path / "report.html", html.render(two_starts()), dark=dark) as opened:
        assert opened.page.evaluate(CONTRAST) == []


@pytest.mark.browser
@pytest.mark.parametrize("number", range(len(HOSTILE)))
def test_hostile_lines_around_evidence_do_nothing(chromium: Browser, tmp_path: Path, number: int) -> None:
    given = poisoned(HOSTILE[number])
    assert given.failure
    given.failure["evidence"] = [
        {"file": HOSTILE[number], "line": 3, "text": HOSTILE[number], "context": [{"line": n, "text": HOSTILE[number]} for n in (2, 3)]}
    ]
    given.charts["lanes"] = json.loads(json.dumps(report(OOM).charts["lanes"]))
    for row in given.charts["lanes"]["rows"]:
        row |= {"host": HOSTILE[number], "file": HOSTILE[number], "error_file": HOSTILE[number]}
    with Opened(chromium, tmp_path / "report.html", html.render(given), 390) as opened:
        opened.page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
        assert opened.sound()
        assert opened.page.evaluate("window.hacked") is None
        assert opened.page.locator("img, main script, .plot a").count() == 0
