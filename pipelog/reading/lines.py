"""Single lines of a file again, for a report that cites them."""

from __future__ import annotations

from pathlib import Path

from pipelog.reading.heads import clean_line
from pipelog.reading.streams import Stream


def texts(path: Path, wanted: set[int], most: int) -> dict[int, str]:
    """Line number → text without colours, cut at *most* characters. Reads up to the last line wanted, by whole pieces."""
    found: dict[int, str] = {}
    last, number = max(wanted), 1
    held = b""
    try:
        for piece in Stream(path).text(flat=True):
            data = held + piece
            end = data.rfind(b"\n") + 1
            number = _take(data[:end], number, wanted, found, most)
            held = data[end:] if len(data) - end < (1 << 20) else data[end : end + (1 << 20)]
            if number > last:
                return found
        if held:
            _take(held, number, wanted, found, most)
    except OSError:
        return found
    return found


def _take(data: bytes, first: int, wanted: set[int], found: dict[int, str], most: int) -> int:
    """Lines of *data* that are wanted; returns the number of the line after it."""
    count = data.count(b"\n")
    lines = count + (not data.endswith(b"\n"))  # what follows the last end of line is the next piece's, unless it is the last one
    here = [n for n in wanted if first <= n < first + lines]
    if here:
        texts = data.split(b"\n")
        for n in here:
            text = clean_line(texts[n - first])
            found.setdefault(n, text if len(text) <= most else text[: most - 1] + "…")
    return first + count
