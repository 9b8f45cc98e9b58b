"""The page of a large job: how large it is, how soon it is seen (beside a plain page in the same browser), and what of 10,000 steps it shows."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from pipelog.diagnosis import diagnose
from pipelog.reading import read
from pipelog.report import Report
from pipelog.reporters.html import render
from tests.test_html import Opened, large, page_of

STEPS = 10_000
SPIKE = 7_777
"""The one step that takes 90 s."""
_MOST_S = 1.0
_MOST_TIMES = 30
"""How much longer than a plain page's may the first paint take: a few dozen milliseconds against some hundred."""


def job(folder: Path, pipes: int, replicas: int, steps: int) -> Path:
    """A log of the launcher's, with topology and a line for every step, and a log of each rank, of which one dies."""
    ranks = pipes * replicas
    (folder / "logs").mkdir(parents=True)
    (folder / "ds_config.json").write_text(json.dumps({"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 64, "steps_per_print": 1}))
    places = ", ".join(f"ProcessCoord(pipe={r // replicas}, data={r % replicas}): {r}" for r in range(ranks))
    lines = [f"Using topology: {{{places}}}"]
    for step in range(1, steps + 1):
        took = 90.0 if step == SPIKE else 2 + step % 13 / 100
        lines.append(
            f"steps: {step} loss: {9 - 5 * step / steps + step % 7 / 50:.4f} iter time (s): {took:.3f} samples/sec: {64 * replicas / took:.3f}"
        )
    (folder / "logs" / "train.log").write_text("\n".join(lines) + "\n")
    for rank in range(ranks):
        memory = f"[Rank {rank}] (after {steps} iterations) memory (MB) | allocated: {9000 + rank}.0 | max allocated: {30_000 - rank * 10}.0 | reserved: 40000.0 | max reserved: 40000.0"
        said = [
            f"node-{rank // 8:03}: [rank{rank}]: {line}"
            for line in (memory, "Traceback (most recent call last):", '  File "train.py", line 3, in <module>')
        ]
        end = "ValueError: labels have 33 positions" if rank == 3 else "RuntimeError: Connection closed by peer [10.0.0.3]:2950"
        (folder / "logs" / f"rank{rank}.log").write_text("\n".join([*said, f"node-{rank // 8:03}: [rank{rank}]: {end}"]) + "\n")
    return folder


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Pages by name: of 8 and of 256 ranks that died after 10,000 steps, and of 256 with every series and picture at its longest."""
    root = tmp_path_factory.mktemp("large")
    made = {str(ranks): render(diagnose(read(job(root / str(ranks), 8, ranks // 8, STEPS), jobs=1), name=str(ranks))) for ranks in (8, 256)}
    return made | {"longest": _longest()}


@cache
def _longest() -> str:
    return render(large(bars=True))


@pytest.mark.parametrize(("name", "most"), [("8", 2_500_000), ("256", 4_000_000), ("longest", 4_000_000)])
def test_size(pages: dict[str, str], name: str, most: int) -> None:
    size = len(pages[name].encode())
    print(f"page of {name}: {size:,} bytes of at most {most:,}")  # noqa: T201
    assert size <= most


@pytest.mark.parametrize("name", ["8", "256"])
def test_a_step_that_stands_out_is_shown(pages: dict[str, str], name: str) -> None:
    figures = json.loads(pages[name].partition('id="figures">')[2].partition("</script>")[0])["figures"]
    drawn = figures["step-time"]["data"][0]
    assert drawn["y"][drawn["x"].index(SPIKE)] == 90
    assert "90.0 s" in pages[name]  # in the table, too, which needs no script
    assert len(drawn["x"]) <= 1500


@pytest.mark.browser
def test_first_paint(pages: dict[str, str], chromium: Browser, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """From disk, the middle of three times: below a second, and no worse than a generous multiple of a page of one sentence."""
    plain = "<!doctype html><html lang=en><title>x</title><body><h1>One sentence.</h1></body></html>"
    took = {}
    for name, text in {"plain": plain, "heavy-stage2": page_of("heavy-stage2"), **pages}.items():
        file = tmp_path / f"{name}.html"
        file.write_text(text, encoding="utf-8")
        took[name] = sorted(_first_paint_ms(chromium, file) for _ in range(3))[1]
    with capsys.disabled():
        print("\nfirst contentful paint: " + ", ".join(f"{n} {ms:.0f} ms" for n, ms in took.items()))  # noqa: T201
    assert max(took.values()) < max(1000 * _MOST_S, _MOST_TIMES * took["plain"])


_OBSERVED = """() => new Promise(told => new PerformanceObserver(list => {
  const paint = list.getEntriesByName('first-contentful-paint')[0];
  if (paint) told(paint.startTime);
}).observe({type: 'paint', buffered: true}))"""


def _first_paint_ms(chromium: Browser, file: Path) -> float:
    context = chromium.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    page.goto(file.as_uri(), wait_until="load")
    # awaited by the page's own observer: Playwright's polling evaluates a string, which the policy of the page forbids once it has to wait
    found = page.evaluate(_OBSERVED)
    context.close()
    return float(found)


@pytest.mark.browser
@pytest.mark.parametrize("name", ["256", "longest"])
def test_large_pages_fit_a_phone(pages: dict[str, str], chromium: Browser, tmp_path: Path, name: str) -> None:
    with Opened(chromium, tmp_path / "report.html", pages[name], 390) as opened:
        opened.page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
        assert opened.sound()


def test_a_report_of_many_ranks_is_small_and_reads_back(tmp_path: Path) -> None:
    made = diagnose(read(job(tmp_path / "job", 8, 32, 2_000), jobs=1), name="job")
    text = made.to_json()
    assert len(text) < 2_000_000
    assert Report.from_json(text).to_json() == text
    assert made.failure is not None
    assert made.failure["ranks"] == [3]
