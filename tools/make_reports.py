"""Write reports/: of some runs under fixtures/runs the report as JSON and as text, and one whole HTML page.

A change of wording or number shows there in review. The same input gives the same bytes.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pipelog
from pipelog.reporters import html, json, text

ROOT = Path(__file__).resolve().parents[1]
RUNS = ("heavy-stage2", "comm-stall-link-1-2", "memory-skew", "R01", "R08", "fail-nan-loss", "two-restarts-one-file")
PAGE = "heavy-stage2"


def main(folder: Path) -> None:
    """Write the reports into *folder*."""
    folder.mkdir(parents=True, exist_ok=True)
    for run in RUNS:
        report = pipelog.diagnose(pipelog.read(ROOT / "fixtures" / "runs" / run), name=run)
        reporters = {".json": json.render, ".txt": text.render} | ({".html": html.render} if run == PAGE else {})
        for suffix, render in reporters.items():
            (folder / f"{run}{suffix}").write_text(render(report), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "reports")
