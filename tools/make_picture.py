"""Write docs/report.png: the first screens of the report of heavy-stage2, as chromium shows it."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from chromium import browser

import pipelog
from pipelog.reporters.html import render

ROOT = Path(__file__).resolve().parents[1]
RUN = "heavy-stage2"
WIDTH = 1280
LAST = "#chart-phase"


def main(target: Path) -> None:
    """The page from its top to the end of the breakdown of the pipeline phase."""
    report = pipelog.diagnose(pipelog.read(ROOT / "fixtures" / "runs" / RUN), name=RUN)
    with tempfile.TemporaryDirectory() as folder, browser() as chromium:
        file = Path(folder) / "report.html"
        file.write_text(render(report), encoding="utf-8")
        page = chromium.new_page(viewport={"width": WIDTH, "height": 900}, color_scheme="light")
        page.goto(file.as_uri())
        page.wait_for_selector("html.drawn", state="attached")
        end = page.evaluate("(id) => document.querySelector(id).getBoundingClientRect().bottom + scrollY", LAST)
        page.screenshot(path=target, full_page=True, clip={"x": 0, "y": 0, "width": WIDTH, "height": end + 32})


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "report.png")
