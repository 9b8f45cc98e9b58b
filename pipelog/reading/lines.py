"""Single lines of a file again, for a report that cites them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from pipelog.reading.heads import clean_line
from pipelog.reading.streams import Stream

Cut = Callable[[str, str], str]
"""(line, words that matter) → what is shown of it."""


def texts(path: Path, wanted: Mapping[int, str], cut: Cut) -> dict[int, str]:
    """Line number → text without colours, cut around the words that are wanted of it. Reads up to the last line wanted."""
    found: dict[int, str] = {}
    last, number = max(wanted), 1
    held = b""
    try:
        for piece in Stream(path).text(flat=True):
            data = held + piece
            end = data.rfind(b"\n") + 1
            number = _take(data[:end], number, wanted, found, cut)
            held = data[end:] if len(data) - end < (1 << 20) else data[end : end + (1 << 20)]
            if number > last:
                return found
        if held:
            _take(held, number, wanted, found, cut)
    except OSError:
        return found
    return found


def _take(data: bytes, first: int, wanted: Mapping[int, str], found: dict[int, str], cut: Cut) -> int:
    """Lines of *data* that are wanted; returns the number of the line after it."""
    count = data.count(b"\n")
    lines = count + (not data.endswith(b"\n"))  # what follows the last end of line is the next piece's, unless it is the last one
    here = [n for n in wanted if first <= n < first + lines]
    if here:
        texts = data.split(b"\n")
        for n in here:
            found.setdefault(n, cut(_part(texts[n - first], wanted[n]), wanted[n]))
    return first + count


def _part(raw: bytes, words: str) -> str:
    """The line as a terminal shows it; where the words stand in what a progress bar wrote over, that."""
    text = clean_line(raw)
    if words and words not in text and b"\r" in raw:
        return next((part for part in map(clean_line, raw.split(b"\r")) if words in part), text)
    return text
