"""PL002 truncated-input: a file ends in the middle.

What it does: looks for a last line without an end, a traceback without its exception at the end, compressed data that break off, and
traces whose list of events is not closed.
Why it matters: what happened last, which is what one looks for after a failure, may be missing.
What to do: copy the file again, or look for the rest (block-buffered filters lose their last block when they are killed).
When it is wrong: a log that is still being written; text copied from a terminal or a ticket, whose last line has no end either. A
progress bar, a prompt and a line that ends like a sentence are not counted.
Thresholds: none.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from pipelog.events import Input
from pipelog.findings import Advice, Confidence, Evidence, Finding, Severity, detector
from pipelog.parsers.tracebacks import ENDS_WITHIN
from pipelog.tables import CannotTell

_BAR = re.compile(r"\d+%\||\bit/s|s/it\b|\r")
_WHOLE = re.compile(r"[.!?)\]}>'\"*;$#%]\s*$")
_ADVICE = (Advice("copy the file again; if it came through a pipe, look for what the filter had not written yet"),)


@detector("PL002", "truncated-input", needs=("inputs",))
def truncated_input(inputs: list[Input]) -> Iterator[Finding]:
    """One finding a file."""
    if not any(i.kind in ("log", "trace") for i in inputs):
        raise CannotTell("no log and no trace")
    for given in inputs:
        line, why = _end(given)
        if why:
            yield Finding(
                "PL002",
                "truncated-input",
                f"{given.path} {why}",
                Severity.WARNING,
                Confidence.MEDIUM if "of a line" in why else Confidence.HIGH,
                evidence=(Evidence(given.path, line),),
                advice=_ADVICE,
            )


def _end(given: Input) -> tuple[int | None, str | None]:
    if given.kind == "log":
        fragment = given.notes.get("unfinished_line")
        if given.notes.get("cut_stream"):
            return given.notes.get("lines"), "breaks off in its compressed data; everything before was read"
        if fragment and not _BAR.search(fragment) and not _WHOLE.search(fragment):
            shown = fragment if len(fragment) <= 60 else "…" + fragment[-60:]
            return given.notes.get("lines"), f"ends in the middle of a line: {shown!r}"
        last = given.notes.get("lines") or 0
        if any(place.why == ENDS_WITHIN and place.line is not None and last - place.line <= 1 for place in given.skipped):
            return last, "ends within a traceback: the exception itself is not there"
    if given.kind == "trace" and given.notes.get("truncated"):
        return None, f"ends in the middle of the list of events; {given.notes.get('trace_events', 0):,} events before were read"
    return None, None
