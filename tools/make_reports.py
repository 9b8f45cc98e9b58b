"""Write reports/: of one run or case for each kind of problem the report as JSON, as Markdown, as text and as a picture of its first screen; of a few the whole page; a comparison; and an index.

A change of wording or number shows there in review. The same input gives the same bytes (pictures need a chromium; without one they stay as they are).
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import gallery
from chromium import NoChromium, browser

import pipelog
from pipelog.comparing.comparison import compare
from pipelog.comparing.outputs import OUTPUTS
from pipelog.report import Report
from pipelog.reporters import html, json, markdown, text

ROOT = Path(__file__).resolve().parents[1]
RUNS = (
    "heavy-stage2",
    "comm-stall-link-1-2",
    "memory-skew",
    "slow-dataloader",
    "straggler-from-step-20",
    "R01",
    "R08",
    "fail-nan-loss",
    "fail-exception-rank2",
    "fail-hang-gloo-timeout",
    "fail-oom-leak-rank1",
    "fail-sigkill-rank3",
    "two-restarts-one-file",
)
CASES = (
    "gpu-oom-last-stage-cascade",
    "ecc-then-oom-same-node",
    "host-oom-slurm-cgroup",
    "ib-completion-error-12",
    "node-failure-slurm",
    "p2p-recv-hang-3-stages",
    "store-barrier-4-of-8",
    "user-typeerror-stage2",
    "batch-size-assertion",
    "resume-other-dp-size",
    "ckpt-write-disk-full",
    "loss-scale-floor-tqdm",
    "time-limit-kill-cascade",
)
PAGES = ("heavy-stage2", "fail-sigkill-rank3", "p2p-recv-hang-3-stages")
"""Of these the whole page; one with pictures brings the library that draws them, 2 MB."""
COMPARED = ("diff-heavy-stage2", "checkpoint-some-stages", "heavy-stage2")
"""Name of the comparison, the saved report of A, and the run that is B."""
WIDTH, HEIGHT = 1280, 900


def main(folder: Path) -> None:
    """Write the reports into *folder*."""
    folder.mkdir(parents=True, exist_ok=True)
    places = [ROOT / "fixtures" / kind / name for kind, names in (("runs", RUNS), ("cases", CASES)) for name in names]
    reports = {p.name: pipelog.diagnose(pipelog.read(p), name=p.name) for p in places}
    for name, report in reports.items():
        reporters = {".json": json.render, ".md": markdown.render, ".txt": text.render} | ({".html": html.render} if name in PAGES else {})
        for suffix, render in reporters.items():
            (folder / f"{name}{suffix}").write_text(render(report), encoding="utf-8")
    pages = {name: html.render(report) for name, report in reports.items()}
    pages[COMPARED[0]] = _comparison(folder, reports[COMPARED[2]])
    try:
        pictures(folder, pages)
    except NoChromium as error:
        print(f"no pictures: {error}", file=sys.stderr)
    gallery.write(folder)


def _comparison(folder: Path, b: Report) -> str:
    """Write all forms of the comparison; gives its page."""
    name, saved, _ = COMPARED
    made = compare(Report.from_json((ROOT / "fixtures" / "diff" / f"{saved}.json").read_text(encoding="utf-8")), b)
    for suffix, render in OUTPUTS.values():
        (folder / f"{name}{suffix}").write_text(render(made), encoding="utf-8")
    return (folder / f"{name}.html").read_text(encoding="utf-8")


def pictures(folder: Path, pages: dict[str, str]) -> None:
    """The first screen of each page."""
    with tempfile.TemporaryDirectory() as scratch, browser() as chromium:
        for name, text in pages.items():
            file = Path(scratch) / f"{name}.html"
            file.write_text(text, encoding="utf-8")
            page = chromium.new_page(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme="light")
            page.goto(file.as_uri())
            if 'class="plot"' in text:
                page.wait_for_selector("html.drawn", state="attached")
            page.screenshot(path=folder / f"{name}.png")
            page.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "reports")
