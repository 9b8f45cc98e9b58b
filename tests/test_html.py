"""The HTML report: what it holds, what it never holds, how large it is, and (marked `browser`) how it behaves in chromium."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, Self

import plotly.graph_objects as go
import pytest
from playwright.sync_api import Browser, Page

from pipelog._text import visible
from pipelog.report import Report
from pipelog.reporters._escape import json_block, label
from pipelog.reporters._figures import AT_NIGHT, SOOT
from pipelog.reporters._places import placed
from pipelog.reporters._plotly import library
from pipelog.reporters.html import figures, render
from tests.conftest import FIXTURES
from tests.once import report_of

RUNS = sorted(p.parent.name for p in (FIXTURES / "runs").glob("*/truth.json"))
HOSTILE = [
    "<script>window.hacked = 1</script>",
    "</script><script>window.hacked = 2</script>",
    "\"><img src=x onerror='window.hacked = 3'>",
    "{{ 7 * 191 }}{% raw %}",
    "<b>bold</b> &lt;i&gt; <a href='javascript:window.hacked=4'>x</a> %{x}",
    "\x1b[31m red \x00 \x07 \ud800 lone \udfff",
    "\u202egnp.exe \u2066 \u200f \u2028 \u2029 \ufeff",
    "x" * 400,
]


def report(run: str) -> Report:
    return report_of(FIXTURES / "runs" / run)


@cache
def page_of(run: str) -> str:
    return render(report(run))


def drawn(given: Report) -> list[Any]:
    return [f for group in figures(given, placed(given)).values() for f in group]


class Tags(HTMLParser):
    """Anchors, ids, headings and references of a page; notes elements that are not closed in order."""

    VOID = frozenset({"meta", "br", "img", "link", "input", "hr"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.targets: set[str] = set()
        self.headings: list[int] = []
        self.fetched: list[str] = []
        self.wrong: list[str] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = dict(attrs)
        if named.get("id"):
            self.ids.append(named["id"] or "")
        if (named.get("href") or "").startswith("#"):
            self.targets.add((named["href"] or "")[1:])
        self.fetched += [f"{tag} {k}={v}" for k, v in attrs if k in ("src", "href", "action", "data") and not (v or "").startswith("#")]
        self.wrong += [f"{tag} {k}" for k, _ in attrs if k.startswith("on")]
        if re.fullmatch(r"h[1-6]", tag):
            self.headings.append(int(tag[1]))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.wrong.append(f"</{tag}>")


# ---- what a page holds


@pytest.mark.parametrize("run", RUNS)
def test_every_run_gives_a_sound_page(run: str) -> None:
    text = page_of(run)
    tags = Tags(text)
    assert text.startswith("<!doctype html>")
    assert not tags.wrong
    assert not tags.open
    assert not tags.fetched
    assert len(tags.ids) == len(set(tags.ids))
    assert tags.targets <= set(tags.ids)
    assert tags.headings[0] == 1
    assert tags.headings.count(1) == 1
    assert all(b <= a + 1 for a, b in zip(tags.headings, tags.headings[1:], strict=False))
    assert len(text.encode()) < 2_500_000


@pytest.mark.parametrize("run", RUNS)
def test_figures_are_valid_and_have_words(run: str) -> None:
    for figure in drawn(report(run)):
        go.Figure(figure.picture)
        assert all(figure.says)
        assert figure.says
        assert figure.data
        axes = [figure.layout[a].get("title", {}).get("text") for a in ("xaxis", "yaxis")]
        assert any(axes) or figure.layout["title"]["text"]


@pytest.mark.parametrize("run", RUNS)
def test_figures_use_colours_that_have_a_night(run: str) -> None:
    for figure in drawn(report(run)):
        used = set(re.findall(r"#[0-9a-f]{3,8}\b", json.dumps(figure.picture)))
        assert used <= {*AT_NIGHT, SOOT}


def test_page_says_what_the_report_says() -> None:
    given, text = report("heavy-stage2"), page_of("heavy-stage2").replace("\N{NO-BREAK SPACE}", " ")
    for finding in given.findings:
        assert finding.title in text or finding.title[:1].upper() + finding.title[1:] in text
        assert f'id="{finding.id}-1"' in text
    assert "At every micro-batch the other stages wait for the slowest" in text
    assert "Used here: limit 0.1" in text
    assert "ds_config.json:3" in text
    assert "Where the step goes" in text
    for name in ("timeline", "phase", "stages", "step", "step-time", "memory", "links", "loss"):
        assert f'data-figure="{name}"' in text


def test_change_point_is_marked() -> None:
    figure = next(f for f in drawn(report("straggler-from-step-20")) if f.id == "step-time")
    assert [s["x0"] for s in figure.layout["shapes"]] == [21]
    assert "from step 21" in figure.layout["annotations"][0]["text"]
    assert [p.anchor for p in figure.places] == ["PL104-1"]


def test_values_that_are_not_numbers_are_marked() -> None:
    figure = next(f for f in drawn(report("fail-nan-loss")) if f.id == "loss")
    crosses = next(t for t in figure.data if t["mode"] == "markers")
    assert crosses["x"] == list(range(12, 26))
    assert figure.layout["shapes"][0]["x0"] == 11.5


def test_expectation_of_memory_is_a_tick() -> None:
    figure = next(f for f in drawn(report("memory-skew")) if f.id == "memory")
    bars, ticks = figure.data
    assert bars["x"][0] > 3 * ticks["x"][0]
    assert ticks["marker"]["symbol"] == "line-ns"


def test_a_series_that_never_changes_is_a_sentence() -> None:
    text = page_of("R09")
    assert "Loss scale: −1 on all 49 lines" in text
    assert 'data-figure="loss-scale"' not in text


def test_a_failure_shows_its_price_its_lines_and_what_followed() -> None:
    document = json.loads(report("R01").to_json())
    document["run"] |= {"status": "failed", "last_checkpoint_step": 180, "lost_steps": 20, "lost_s": 372.0}
    groups = [{"file": "log.txt", "line": 90 + i, "text": f"[rank{i}] aborted", "what": "aborted", "count": 4, "ranks": [i]} for i in range(100)]
    document["failure"] |= {"category": "memory.gpu-oom", "consequences": groups, "advice": [{"action": "move two layers", "expected": "peak falls"}]}
    text = render(Report.from_json(json.dumps(document))).replace("\N{NO-BREAK SPACE}", " ")
    assert "20 steps (6 min) since the checkpoint of step 180" in text
    assert text.index("Move two layers.") < text.index('<section id="proof"') < text.index("CANCELLED AT 2021-05-23T08:45:57")
    assert "400 lines of other ranks and of launchers" in text
    assert "<summary>rank 59 aborted (4 lines)</summary>" in text
    assert "<summary>rank 60 aborted (4 lines)</summary>" not in text


def empty() -> Report:
    document = json.loads(report("heavy-stage2").to_json())
    document |= {"findings": [], "charts": {}, "inputs": [], "notes": []}
    document["rules"] = [r | {"status": "clear", "findings": 0} for r in document["rules"]]
    document["run"] |= {"started_at": None, "ended_at": None}
    document["topology"] |= {"ranks": [], "stages": [], "pp": None, "dp": None, "tp": None, "world_size": None, "partition_method": None}
    document["config"] = dict.fromkeys(document["config"]) | {"sources": {}}
    document["metrics"] = json.loads(report("per-rank-logs-monitors").to_json())["metrics"] | {
        "step_time_s": {"median": None, "p95": None, "n": 0, "source": None},
        "bubble": dict.fromkeys(document["metrics"]["bubble"]) | {"per_stage": []},
        "memory": {"skew": None, "per_stage": [], "verdict": None},
    }
    return Report.from_json(json.dumps(document))


def test_sections_without_data_are_absent() -> None:
    text = render(empty())
    sections = set(re.findall(r'<section id="([a-z-]+)"', text))
    assert sections == {"clear", "glossary"}
    assert 'id="library"' not in text
    assert 'class="plot"' not in text
    assert len(text) < 60_000


def test_library_inflates_to_the_script_that_the_policy_allows() -> None:
    script = gzip.decompress(base64.b64decode(library().packed))
    assert b"plotly.js" in script[:200]
    assert library() is library()
    text = page_of("heavy-stage2")
    own = re.search(r"<script>(.*?)</script>", text, re.DOTALL)
    assert own
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', text)
    assert policy
    allowed = set(re.findall(r"sha256-([\w+/=]+)", policy[1]))
    assert allowed == {base64.b64encode(hashlib.sha256(s).digest()).decode() for s in (script, own[1].encode())}
    assert policy[1].startswith("default-src &#39;none&#39;;")
    assert "http" not in policy[1]


def test_rendering_twice_gives_the_same_bytes() -> None:
    given = report("comm-stall-link-1-2")
    assert render(given) == render(given)
    again = Report.from_json(given.to_json())
    assert render(again) == render(given)


# ---- size


def large(stages: int = 64, bars: bool = False) -> Report:
    """64 stages on 256 ranks and every series at its longest: as busy shares, or with as many single passes as charts.py lets through."""
    document = json.loads(report("heavy-stage2").to_json())
    every = range(stages)
    document["topology"]["ranks"] = [
        {"rank": r, "stage": r // 4, "dp": 0, "tp": r % 4, "host": f"gpu-node-{r // 8:03}.cluster.example"} for r in range(4 * stages)
    ]
    document["topology"]["stages"] = [{"stage": s, "layers": [s, s + 1], "params": 10**9} for s in every]
    document["metrics"]["memory"]["per_stage"] = [{"stage": s, "peak_bytes": 2**34 - s * 2**26, "expected_bytes": 2**34} for s in every]
    series = {"step": list(range(1500)), "value": [1 / 3 + i / 7 for i in range(1500)]}
    document["charts"] |= {
        "stages": [{"stage": s, "compute": 0.51234, "recompute": 0.1, "idle": 0.38766} for s in every],
        "steps": {"step": series["step"], "seconds": series["value"], "source": "deepspeed"},
        "loss": {"loss": series, "loss_scale": series, "grad_norm": series},
        "links": [
            {"source": s, "target": t, "messages": 256, "transfer_ms": 0.1234, "late_ms": 0.4321, "cost": 0.001} for s in every[1:] for t in (s - 1,)
        ],
        "timeline": {
            "step": 5,
            "replica": 0,
            "phase_ms": 4000.0,
            "bin_ms": 10.0,
            "rows": [{"stage": s, "rank": 4 * s, "busy": [0.123, 0.987] * 200} for s in every],
        },
    }
    if bars:
        each = [[k, i, i * 80.1234 + (40.5 if k == "backward" else 0), 39.8765] for i in range(46) for k in ("forward", "backward")]
        document["charts"]["timeline"] = {
            "step": 5,
            "replica": 0,
            "phase_ms": 3700.0,
            "rows": [{"stage": s, "rank": 4 * s, "items": each} for s in every],
        }
    document["inputs"] = [
        {"path": f"logs/gpu-node-{r // 8:03}/rank{r}.log", "kind": "log", "bytes": 10**6, "events": 10**4, "skipped": [], "notes": {"lines": 10**4}}
        for r in range(4 * stages)
    ]
    return Report.from_json(json.dumps(document))


@pytest.mark.parametrize("bars", [False, True])
def test_a_large_job_stays_below_its_limit(bars: bool) -> None:
    given = large(bars=bars)
    text = render(given)
    assert len(text.encode()) < 4_000_000
    assert "<summary>256 ranks</summary>" in text
    assert "<summary>256 files</summary>" in text
    for figure in drawn(given):
        go.Figure(figure.picture)
        assert figure.height < 1100


# ---- hostile text


def poisoned(text: str) -> Report:
    """A report whose every text that can come from a log, a file name or a configuration carries *text*."""
    document = json.loads(report("heavy-stage2").to_json())
    log = json.loads(report("fail-nan-loss").to_json())
    document["findings"] = [f | {"title": f["title"] + text} for f in log["findings"] + document["findings"]]
    for finding in document["findings"]:
        finding["where"]["hosts"] = [text]
        finding["evidence"] = [{"file": text + ".log", "line": 3, "text": f"line {text}"}]
        finding["advice"] = [{"action": f"do {finding['id']} {text}", "expected": text}]
    document["rules"] = [r | {"reason": text, "status": s} for r, s in zip(document["rules"], ["failed", "not-applicable"] * 9, strict=False)]
    document |= {
        "name": text,
        "notes": [text],
        "inputs": [i | {"path": f"{n}{text}", "notes": {"host": text, "prefixes": {text: 3}}} for n, i in enumerate(document["inputs"])],
    }
    document["inputs"][0]["skipped"] = [{"line": 1, "why": text}]
    document["topology"]["ranks"] = [r | {"host": text} for r in document["topology"]["ranks"]]
    document["topology"] |= {"partition_method": text, "sources": {"pp": {"file": text, "line": 3, "source": text}}}
    document["config"] |= {"precision": text, "schedule": text, "sources": {"precision": {"file": None, "line": None, "source": text}}}
    document["run"]["frameworks"]["deepspeed"] = text
    document["run"]["attempts"] = [{"index": i, "status": text, "first_step": 1, "last_step": 2, "category": text} for i in range(2)]
    document["metrics"]["phase_breakdown"][3]["part"] = text
    document["metrics"]["step_breakdown"][0]["part"] = text
    document["metrics"]["memory"] |= {"skew": None, "reason": text}
    document["metrics"]["devices"] = [
        {
            "file": text,
            "rank": 0,
            "device": text,
            "span_us": 10.0,
            "busy_us": 5.0,
            "compute_us": 5.0,
            "comm_us": 1.0,
            "memory_us": 1.0,
            "comm_compute_overlap_us": 1.0,
            "kernels": 3,
            "steps": 1,
        }
    ]
    document["charts"]["steps"]["source"] = text
    document["charts"]["collectives"] = [{"name": text, "ranks": 2, "own_ms": 1.0, "wait_ms": 1.0, "share": 0.1}]
    lines = [{"file": text, "line": 3, "text": text}]
    document["failure"] = {
        "category": text, "cause_known": True, "confidence": "high", "title": text, "ranks": [], "stages": [], "hosts": [text], "at": None, "step": 3,
        "evidence": lines, "consequences": [*lines, {"file": text, "line": 4, "text": text, "ranks": [1]}], "missing": [text], "advice": [{"action": text}],
    }  # fmt: skip
    document["run"]["status"] = "failed"
    return Report.from_json(json.dumps(document))


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_text_is_shown_and_does_nothing(text: str) -> None:
    page = render(poisoned(text))
    page.encode()  # no lone surrogate is left
    tags = Tags(page)
    assert not tags.wrong
    assert not tags.fetched
    assert tags.targets <= set(tags.ids)
    assert page.count("<script") == 3
    assert "1337" not in page
    assert "<img" not in page
    assert "<b>" not in page
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200f\u202a-\u202e\u2066-\u2069\ufeff]", page)
    block = re.search(r'<script type="application/json" id="figures">(.*?)</script>', page, re.DOTALL)
    assert block
    assert not re.search("[<>&\u2028\u2029]", block[1])
    labels = json.dumps(json.loads(block[1])["figures"])
    assert "<b>" not in labels
    assert "<script" not in labels
    assert "%{x}: " not in labels.replace("%{x:", "")


def test_what_nobody_sees_is_made_visible() -> None:
    assert visible("a\x1b[31m\x7f\x85\u202eb\ud800\tc\n") == "a␛[31m␡\ufffd⟨U+202E⟩b\ufffd\tc\n"
    assert label("<b>x</b> &amp; %{y}\n") == "&lt;b&gt;x&lt;/b&gt; &amp;amp; % {y}"
    assert len(label("x" * 400)) == 60
    assert json_block({"a": "</script>\u2028&"}) == r'{"a":"\u003c/script\u003e\u2028\u0026"}'


# ---- in a browser


class Opened:
    """A report in a page, with everything that the page said, asked for or broke."""

    def __init__(self, chromium: Browser, file: Path, text: str, width: int = 1280, *, dark: bool = False) -> None:
        file.write_text(text, encoding="utf-8")
        self.context = chromium.new_context(viewport={"width": width, "height": 900}, color_scheme="dark" if dark else "light")
        self.page: Page = self.context.new_page()
        self.said: list[str] = []
        self.asked: list[str] = []
        self.page.on("console", lambda m: self.said.append(f"{m.type}: {m.text}"))
        self.page.on("pageerror", lambda e: self.said.append(f"error: {e}"))
        self.page.on("dialog", lambda d: (self.said.append("dialog"), d.dismiss()))
        self.page.on("request", lambda r: self.asked.append(r.url))
        self.page.goto(file.as_uri())
        if 'class="plot"' in text:
            self.page.wait_for_selector("html.drawn", state="attached", timeout=30_000)
        self.own = file.as_uri()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.context.close()

    def sound(self) -> bool:
        """No message, no error, no request but for the file itself, nothing wider than the screen."""
        assert not self.said
        assert self.asked == [self.own]
        assert self.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        return True


@pytest.mark.browser
@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("run", ["heavy-stage2", "R08", "two-restarts-one-file"])
def test_opens_from_disk_and_draws(chromium: Browser, tmp_path: Path, run: str, width: int) -> None:
    with Opened(chromium, tmp_path / "report.html", page_of(run), width) as opened:
        assert opened.sound()
        assert opened.page.locator("h1").is_visible()
        plots = opened.page.locator(".js-plotly-plot")
        assert plots.count() == len(drawn(report(run)))
        assert all(opened.page.evaluate("[...document.querySelectorAll('.plot')].map(p => p.querySelectorAll('svg .cartesianlayer path').length)"))
        assert opened.page.locator(".modebar-btn").count() == 0


@pytest.mark.browser
def test_labels_do_not_leave_their_picture(chromium: Browser, tmp_path: Path) -> None:
    script = """[...document.querySelectorAll('.plot')].flatMap(plot => {
        const box = plot.getBoundingClientRect();
        return [...plot.querySelectorAll('svg text')].filter(t => t.textContent.trim()).map(t => [t.textContent, t.getBoundingClientRect()])
          .filter(([_, r]) => r.width && (r.left < box.left - 2 || r.right > box.right + 2 || r.top < box.top - 2 || r.bottom > box.bottom + 2))
          .map(([text]) => plot.dataset.figure + ': ' + text);
    })"""
    for number, (run, width) in enumerate((("heavy-stage2", 1280), ("dp2-pp2-slow-replica", 390), ("R01", 1280), ("R01", 390))):
        with Opened(chromium, tmp_path / f"{number}.html", page_of(run), width) as opened:
            assert opened.page.evaluate(script) == []


@pytest.mark.browser
def test_dark_mode_is_dark_and_legible(chromium: Browser, tmp_path: Path) -> None:
    for dark in (False, True):
        with Opened(chromium, tmp_path / f"{dark}.html", page_of("heavy-stage2"), dark=dark) as opened:
            back = opened.page.evaluate("getComputedStyle(document.body).backgroundColor")
            brightness = sum(map(int, re.findall(r"\d+", back)[:3])) / 3
            assert brightness < 40 if dark else brightness > 240
            assert opened.page.evaluate(CONTRAST) == []


CONTRAST = """(() => {
  const parse = (c) => (c.match(/[\\d.]+/g) || [0, 0, 0, 0]).map(Number);
  const light = ([r, g, b]) => [r, g, b].map(v => v / 255).map(v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = (node) => {
    for (let at = node; at; at = at.parentElement) {
      const color = parse(getComputedStyle(at).backgroundColor);
      if (color.length < 4 || color[3] > 0) return color;
    }
  };
  const found = new Set();
  for (const fold of document.querySelectorAll('details')) fold.open = true;
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let text = walker.nextNode(); text; text = walker.nextNode()) {
    const node = text.parentElement;
    if (!text.data.trim() || !node.offsetParent && !node.ownerSVGElement || node.closest('script, style, noscript, .bartext, [hidden]')) continue;
    const style = getComputedStyle(node);
    const [a, b] = [light(parse(node.ownerSVGElement ? style.fill : style.color)), light(behind(node.ownerSVGElement ? node.closest('.plot') : node))].sort((x, y) => y - x);
    if ((a + 0.05) / (b + 0.05) < 4.5) found.add(`${text.data.trim().slice(0, 40)} (${((a + 0.05) / (b + 0.05)).toFixed(2)})`);
  }
  return [...found];
})()"""


@pytest.mark.browser
def test_folds_open_by_keyboard_and_for_paper(chromium: Browser, tmp_path: Path) -> None:
    with Opened(chromium, tmp_path / "report.html", page_of("heavy-stage2")) as opened:
        fold = opened.page.locator("details").first
        fold.locator("summary").focus()
        opened.page.keyboard.press("Enter")
        assert fold.get_attribute("open") is not None
        every = opened.page.locator("details").count()
        opened.page.evaluate("dispatchEvent(new Event('beforeprint'))")
        assert opened.page.locator("details[open]").count() == every
        assert opened.page.evaluate("Math.max(...[...document.querySelectorAll('.plot .main-svg')].map(s => s.getBoundingClientRect().width))") <= 700
        opened.page.evaluate("dispatchEvent(new Event('afterprint'))")
        assert opened.page.locator("details[open]").count() == 1
        assert opened.sound()


@pytest.mark.browser
def test_links_lead_to_findings(chromium: Browser, tmp_path: Path) -> None:
    with Opened(chromium, tmp_path / "report.html", page_of("heavy-stage2")) as opened:
        opened.page.locator("#chart-stages a.to").first.click()
        assert opened.page.url.endswith("#PL201-1")
        assert opened.page.locator("#PL201-1").is_visible()


@pytest.mark.browser
@pytest.mark.parametrize("number", range(len(HOSTILE)))
def test_hostile_text_executes_nothing(chromium: Browser, tmp_path: Path, number: int) -> None:
    with Opened(chromium, tmp_path / "report.html", render(poisoned(HOSTILE[number])), 390) as opened:
        assert opened.sound()
        assert opened.page.evaluate("window.hacked") is None
        assert opened.page.locator("img, main script, .plot a").count() == 0


@pytest.mark.browser
@pytest.mark.parametrize("bars", [False, True])
def test_a_large_job_does_not_freeze_the_browser(chromium: Browser, tmp_path: Path, bars: bool) -> None:
    with Opened(chromium, tmp_path / "report.html", render(large(bars=bars)), 390) as opened:
        assert opened.sound()
        slow = opened.page.evaluate("performance.getEntriesByType('navigation')[0].duration")
        assert slow < 20_000


@pytest.mark.browser
@pytest.mark.parametrize("width", [1280, 390])
def test_without_script_every_picture_stands_still(chromium: Browser, tmp_path: Path, width: int) -> None:
    file = tmp_path / "report.html"
    file.write_text(page_of("heavy-stage2"), encoding="utf-8")
    context = chromium.new_context(java_script_enabled=False, viewport={"width": width, "height": 900})
    page = context.new_page()
    page.goto(file.as_uri())
    assert page.locator("noscript").last.is_visible()
    assert not page.locator(".plot").first.is_visible()
    assert page.locator("#chart-stages summary").is_visible()
    charts = page.locator(".chart")
    assert charts.count() == len(drawn(report("heavy-stage2")))
    for i in range(charts.count()):
        box = charts.nth(i).locator(".still svg").first.bounding_box()
        assert box is not None
        assert box["height"] >= 20
        assert box["x"] >= 0
        assert width / 2 < box["width"] <= width - box["x"]
    context.close()
