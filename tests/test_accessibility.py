"""The pages as those read them who see little, use no mouse, have no script or paper: axe-core in chromium, and what it cannot look at."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser

from pipelog.comparing import html as compared
from pipelog.comparing.comparison import compare
from tests.test_html import Opened, page_of
from tests.test_html import report as analyzed

RUNS = ("heavy-stage2", "fail-sigkill-rank3", "two-restarts-one-file")
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
"""WCAG 2.2 up to AA, and what is good practice besides."""


def axe() -> str:
    """axe-core, as the package for Playwright carries it. The package itself is not needed."""
    spec = find_spec("axe_playwright_python")
    assert spec is not None
    assert spec.origin is not None
    return (Path(spec.origin).parent / "axe.min.js").read_text(encoding="utf-8")


def violations(opened: Opened) -> list[str]:
    """What axe-core finds with all folds open: rule, impact and the first element."""
    opened.page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    opened.page.evaluate(axe())
    found: dict[str, Any] = opened.page.evaluate("rules => axe.run(document, {runOnly: rules, resultTypes: ['violations']})", RULES)
    assert len(found["passes"]) > 20
    return [f"{v['id']} ({v['impact']}): {v['nodes'][0]['html'][:200]}" for v in found["violations"]]


@pytest.mark.browser
@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)])
@pytest.mark.parametrize("run", RUNS)
def test_axe_finds_nothing(chromium: Browser, tmp_path: Path, run: str, width: int, dark: bool) -> None:
    with Opened(chromium, tmp_path / "report.html", page_of(run), width, dark=dark) as opened:
        assert violations(opened) == []


@pytest.mark.browser
def test_axe_finds_nothing_in_a_comparison(chromium: Browser, tmp_path: Path) -> None:
    page = compared.render(compare(analyzed("heavy-stage2"), analyzed("R08")))
    with Opened(chromium, tmp_path / "diff.html", page, 390) as opened:
        assert violations(opened) == []


@pytest.mark.browser
@pytest.mark.parametrize("run", RUNS)
def test_without_script_all_that_is_said_is_there(chromium: Browser, tmp_path: Path, run: str) -> None:
    """The verdict, what to do, the lines and every finding with its evidence are in the page, and seen."""
    file = tmp_path / "report.html"
    file.write_text(page_of(run), encoding="utf-8")
    context = chromium.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(file.as_uri())
    for part in ("h1", ".facts", "#what-to-do li", "#proof .line"):
        assert page.locator(part).first.is_visible(), part
    findings = analyzed(run).findings
    assert page.locator("article.finding").count() == len(findings)
    text = " ".join(page.locator("main").inner_text().split())
    for finding in findings:
        assert finding.title[1:60] in text
    assert not page.locator("#copy").is_visible()  # it could do nothing
    context.close()


@pytest.mark.browser
@pytest.mark.parametrize("run", RUNS)
def test_paper_is_light_and_holds_the_verdict(chromium: Browser, tmp_path: Path, run: str) -> None:
    """Also where the reader's screen is dark; nothing is wider than the sheet."""
    with Opened(chromium, tmp_path / "report.html", page_of(run), dark=True) as opened:
        opened.page.emulate_media(media="print")
        assert opened.page.evaluate("getComputedStyle(document.querySelector('h1')).color.match(/\\d+/g).slice(0, 3).every(c => c < 80)")
        assert opened.page.locator("h1").is_visible()
        assert not opened.page.locator("nav").is_visible()
        opened.page.set_viewport_size({"width": 718, "height": 1000})  # an A4 sheet at 96 dots an inch, less its margins
        assert opened.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        paper = opened.page.pdf(format="A4", print_background=True)
        assert paper.startswith(b"%PDF")
        assert 1 <= paper.count(b"/Type /Page\n") + paper.count(b"/Type /Page ") + paper.count(b"/Type/Page") < 60
