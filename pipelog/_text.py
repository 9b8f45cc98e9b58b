"""Numbers and lists as a reader wants them: no more digits than they deserve, always with a unit."""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Iterable
from datetime import UTC, datetime

_ODD = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")


def percent(share: float) -> str:
    """0.4286 → "42.9 %"; whole per cents from 100 on."""
    value = share * 100
    return f"{value:.0f} %" if abs(value) >= 99.95 else f"{value:.1f} %"


def seconds(ns: float) -> str:
    """A duration given in ns with a fitting unit and three digits: seconds up to ten minutes, minutes up to three hours."""
    for unit, size, least in (("h", 3600e9, 3.0), ("min", 60e9, 10.0)):
        if abs(ns) >= least * size:
            return f"{digits(ns / size)} {unit}"
    for unit, size in (("s", 1e9), ("ms", 1e6), ("µs", 1e3)):
        if abs(ns) >= size:
            return f"{digits(ns / size)} {unit}"
    return f"{ns:.0f} ns"


def iso(ns: int) -> str:
    """A time as logs stamp it, ns since the epoch: ISO 8601 without a zone, to the millisecond."""
    return datetime.fromtimestamp(ns / 1e9, UTC).replace(tzinfo=None).isoformat(timespec="milliseconds")


def size(count: float) -> str:
    """Bytes in binary units: 1.5 GiB."""
    for unit, factor in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if abs(count) >= factor:
            return f"{digits(count / factor)} {unit}"
    return f"{count:.0f} B"


def digits(value: float) -> str:
    """Three significant digits, without an exponent."""
    magnitude = abs(value)
    return f"{value:,.0f}" if magnitude >= 100 else f"{value:.1f}" if magnitude >= 10 else f"{value:.2f}"


def figure(value: float) -> str:
    """A number without a unit, such as a loss: four significant digits, and no exponent from 0.000001 up to a thousand billions."""
    magnitude = abs(value)
    if not math.isfinite(value) or value == 0:
        return f"{value:g}"
    if not 1e-6 <= magnitude < 1e15:
        power = math.floor(math.log10(magnitude))
        return f"{value / 10.0**power:.2f} x 10^{power}"
    if magnitude >= 1000:
        return f"{value:,.0f}"
    text = f"{value:.{3 - math.floor(math.log10(magnitude))}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def power(value: float) -> str:
    """A loss scale: powers of two from 2^17 on as such, since these are what fp16 uses; else as a figure."""
    exponent = math.log2(value) if value > 0 else 0.0
    return f"2^{exponent:.0f}" if exponent >= 17 and exponent.is_integer() else figure(value)


def count(number: int, one: str, many: str | None = None) -> str:
    """A number with its word: `1 rank`, `3 ranks`."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def around(text: str, words: str, most: int, lead: int | None = None) -> str:
    """No longer than *most* characters: from *lead* (a quarter of them) before *words* on; the beginning where they do not occur."""
    if len(text) <= most:
        return text
    found = text.find(words) if words else -1
    if found + len(words) < most:
        return f"{text[: most - 1]}…"
    begin = found - (most // 4 if lead is None else lead)
    if lead is None:
        begin = min(begin, len(text) - most + 1)
    if len(text) - begin < most:
        return f"…{text[begin:]}"
    return f"…{text[begin : begin + most - 2]}…"


def listed(items: Iterable[object], most: int = 6) -> str:
    """Words in a row: `1, 2 and 3`; long lists end in how many more there are; runs of numbers are written 0-15."""
    words = _runs(list(items))
    if len(words) > most:
        return f"{', '.join(words[:most])} and {len(words) - most} more"
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}" if words else "none"


def _runs(items: list[object]) -> list[str]:
    if len(items) < 4 or not all(isinstance(i, int) for i in items):
        return [str(i) for i in items]
    numbers = sorted(i for i in items if isinstance(i, int))
    runs: list[list[int]] = []
    for n in numbers:
        if runs and n == runs[-1][-1] + 1:
            runs[-1].append(n)
        else:
            runs.append([n])
    return [word for r in runs for word in ([f"{r[0]}-{r[-1]}"] if len(r) > 2 else map(str, r))]


WIDTH = 100
"""Columns of what a terminal shows at most."""
_LABEL = re.compile(r"[A-Z][a-z' ]+: |[A-Z]{2}\d{3} [a-z-]+: ")


def wrapped(page: str) -> str:
    """A page with lines of at most 100 columns: each heading begins one, blank lines stay."""
    parts: list[str] = []
    for line in page.splitlines():
        if parts and parts[-1] and line.strip() and not _LABEL.match(line):
            parts[-1] += f" {line.strip()}"
        else:
            parts.append(line.strip())
    return "\n".join(textwrap.fill(part, WIDTH, break_on_hyphens=False, break_long_words=False) for part in parts).replace("\N{NO-BREAK SPACE}", " ")


def visible(text: str) -> str:
    """*text* with what nobody sees made visible: control pictures for control characters, ⟨U+202E⟩ for marks that turn the line around.

    Lone surrogates, which no file can hold, become U+FFFD. Escaping is another matter, and left to the output.
    """
    return _ODD.sub(_shown, text)


def _shown(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code < 0x20:
        return chr(0x2400 + code)
    if code == 0x7F:
        return "\u2421"
    return "\ufffd" if code < 0xA0 or 0xD800 <= code <= 0xDFFF else f"⟨U+{code:04X}⟩"


_PLURALS = {"was": "were", "has": "have", "is": "are", "needs": "need", "misses": "miss"}


def of_several(predicate: str) -> str:
    """The predicate of several subjects: `was killed` → `were killed`."""
    verb, blank, rest = predicate.partition(" ")
    return f"{_PLURALS.get(verb, verb)}{blank}{rest}"


NAMELESS = frozenset({"localhost", "127.0.0.1"})
"""What a launcher calls a single host: no name by which others know it."""


def short_host(host: str) -> str:
    """A host's name without its domain, in small letters; an address stays whole."""
    return host.lower() if host.replace(".", "").isdigit() else host.lower().partition(".")[0]
