"""The runs and cases of fixtures/, read and analyzed once in a worker, for tests that change nothing of what they get."""

from __future__ import annotations

import functools
from pathlib import Path

import pipelog
from pipelog.report import Report


@functools.cache
def events_of(folder: Path) -> pipelog.Events:
    """The events of a folder."""
    return pipelog.read(folder, jobs=1)


@functools.cache
def report_of(folder: Path) -> Report:
    """The report of a folder, named after it."""
    return pipelog.diagnose(events_of(folder), name=folder.name)
