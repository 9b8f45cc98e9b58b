"""A headless chromium for the browser tests and the picture: Debian's, another of the system's, or Playwright's own."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-quic",
    "--no-first-run",
    "--disable-component-update",
    "--disable-sync",
    "--font-render-hinting=none",
)


class NoChromium(Exception):
    """None is installed; the text says how to get one."""


@contextmanager
def browser() -> Iterator[Browser]:
    """A browser with a profile of its own, headless; raises NoChromium."""
    with sync_playwright() as playwright:
        own = playwright.chromium.executable_path
        found = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
        if found is None and not Path(own).exists():
            raise NoChromium("no chromium was found: `make browser` installs one, or set CHROMIUM to its path")
        made = playwright.chromium.launch(executable_path=found or own, headless=True, args=list(ARGUMENTS))
        try:
            yield made
        finally:
            made.close()
