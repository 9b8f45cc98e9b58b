"""Numbers of pictures and tables as a reader wants them: no exponents, no more digits than tell something."""

from __future__ import annotations

import math

from pipelog._text import digits, seconds

_RAISED = str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻")


def raised(base: int, exponent: int) -> str:
    """2¹⁶: a power in one line of text."""
    return f"{base}{str(exponent).translate(_RAISED)}"


def significant(value: float, most: int = 4) -> str:
    """At least the whole part, else *most* digits that count: 6.521, 12,346, 0.0001235; very small ones as 1.235 × 10⁻⁷."""
    if value == 0:
        return "0"
    exponent = math.floor(math.log10(abs(value)))
    if exponent < -4:
        text = f"{value / 10**exponent:.{most - 1}f}"
        return f"{text.rstrip('0').rstrip('.')} × {raised(10, exponent)}".replace("-", "−")
    if exponent >= 12:
        return f"{value / 10**exponent:.2f} × {raised(10, exponent)}".replace("-", "−")
    places = max(0, most - 1 - exponent)
    text = f"{value:,.{places}f}"
    return (text.rstrip("0").rstrip(".") if places else text).replace("-", "−")


def power_of_two(value: float) -> int | None:
    """16 for 65536; None where it is no power of two."""
    mantissa, exponent = math.frexp(value) if value > 0 and math.isfinite(value) else (0.0, 0)
    return exponent - 1 if mantissa == 0.5 else None


def scale(value: float) -> str:
    """A loss scale: 65,536 (2¹⁶)."""
    power = power_of_two(value)
    return significant(value) if power is None or power < 4 else f"{2**power:,} ({raised(2, power)})"


def parameters(number: int) -> str:
    """1.71 billion, 21.3 million, 12,345."""
    for word, size in (("trillion", 1e12), ("billion", 1e9), ("million", 1e6)):
        if number >= size:
            return f"{digits(number / size)} {word}"
    return f"{number:,}"


def duration(value: float) -> str:
    """Seconds as a reader wants them: 41 s, 6 min, 1 h 52 min, 3 d 4 h."""
    if value < 120:
        return "0 s" if value == 0 else seconds(value * 1e9)
    minutes = round(value / 60)
    if minutes < 60:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    return f"{hours // 24} d {hours % 24} h"


def moment(iso: str) -> str:
    """2024-03-05 15:20:09 of an ISO 8601 time; of one of 1970, which is of lines that print no year, 03-05 15:20:09."""
    return iso.removeprefix("1970-")[: 14 if iso.startswith("1970-") else 19].replace("T", " ")
