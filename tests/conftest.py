"""Shared paths and the switch that rewrites goldens."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from playwright.sync_api import Browser

from tools.chromium import NoChromium, browser

settings.register_profile("house", deadline=None)  # nothing is asserted about time
settings.load_profile("house")

ROOT = Path(__file__).resolve().parents[1]
FIXTURES = ROOT / "fixtures"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update", action="store_true", help="write the golden files anew; look at the difference before you commit")


def pytest_collection_finish() -> None:
    """What was imported and collected stays until the end: the collector of garbage need not look through it again and again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


@pytest.fixture
def update(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--update"))


@pytest.fixture
def own_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder to work in and a cache of one's own."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    """A headless browser, one for all tests of a worker, each of which opens a context of its own; without one the test is skipped, which CI does not allow."""
    try:
        with browser() as found:
            yield found
    except NoChromium as error:
        pytest.skip(f"browser: {error}")
