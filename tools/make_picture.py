"""Write docs/report.png and docs/failure.png: the first screens of the reports of a slow run and of one that died, by day and (…-dark.png) by night."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from chromium import browser

import pipelog
from pipelog.reporters.html import render

ROOT = Path(__file__).resolve().parents[1]
PICTURES = {"report.png": ("heavy-stage2", "#chart-phase"), "failure.png": ("fail-sigkill-rank3", "#ends")}
"""File → the run, and the last thing on the picture."""
WIDTH = 1280


def main(folder: Path) -> None:
    """Each page from its top to the end of the thing named."""
    with tempfile.TemporaryDirectory() as scratch, browser() as chromium:
        for name, (run, last) in PICTURES.items():
            report = pipelog.diagnose(pipelog.read(ROOT / "fixtures" / "runs" / run), name=run)
            file = Path(scratch) / "report.html"
            file.write_text(render(report), encoding="utf-8")
            for scheme, place in (("light", name), ("dark", name.replace(".png", "-dark.png"))):
                page = chromium.new_page(viewport={"width": WIDTH, "height": 900}, color_scheme=scheme)
                page.goto(file.as_uri())
                page.wait_for_selector("html.drawn", state="attached")
                end = page.evaluate("(id) => document.querySelector(id).getBoundingClientRect().bottom + scrollY", last)
                page.screenshot(path=folder / place, full_page=True, clip={"x": 0, "y": 0, "width": WIDTH, "height": end + 32})
                page.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs")
