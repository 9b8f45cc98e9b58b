"""Reports of folders already analyzed, in the cache beside the event tables: an unchanged folder of a gigabyte is told again within two seconds.

Only the command line uses it, and only for folders whose analysis takes seconds. A report is of exactly these files (path, size, time of
change), this state of pipelog and its plug-ins, and these options; where a file could not be read it is not kept.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path

from pipelog.diagnosis import diagnose
from pipelog.errors import BadReport
from pipelog.events import Events
from pipelog.reading import cache
from pipelog.reading.files import sources
from pipelog.report import Report
from pipelog.tables.unread import NOTE

_SMALLEST = 64 << 20
"""Bytes of a folder from which on its report is kept."""


def analyzed(
    paths: tuple[str, ...],
    read: Callable[[], Events],
    *,
    attempt: int | None,
    options: Mapping[str, float],
    name: str,
    redact: bool,
    cached: bool,
) -> Report:
    """What `diagnose` says of the events that *read* gives, or what it said of them before. Raises what both raise."""
    place = _place(paths, repr((attempt, sorted(options.items()), name, redact))) if cached else None
    if place is not None and (text := cache.text(place)) is not None:
        try:
            return Report.from_json(text)
        except BadReport:  # damaged: made anew
            pass
    report = diagnose(read(), attempt=attempt, options=options, name=name, redact=redact)
    if place is not None and not any(note.startswith(NOTE) for note in report.notes):
        cache.keep_text(place, report.to_json())
    return report


def _place(paths: tuple[str, ...], options: str) -> Path | None:
    found, refused = sources(paths)
    if sum(source.bytes for source in found) < _SMALLEST:
        return None
    files = [(str(source.path.resolve()), source.shown, source.bytes, source.modified_ns) for source in found]
    key = repr((files, [given.path for given in refused], options, cache.code()))
    return cache.folder() / f"{hashlib.sha256(key.encode('utf-8', 'surrogateescape')).hexdigest()[:32]}.report.json"
