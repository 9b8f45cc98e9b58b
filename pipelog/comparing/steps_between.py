"""The picture of a comparison: from the step of A to that of B, part by part."""

from __future__ import annotations

from dataclasses import replace

from pipelog._text import count
from pipelog.comparing.because import Part
from pipelog.comparing.comparison import Comparison
from pipelog.comparing.words import signed, time
from pipelog.reporters._figures import AMBER, DARK, MIDDLE, Key
from pipelog.reporters._figures_end import Bar, Lane, Lanes

_LEAST = 0.02
"""A change below this share of the longer step has no row of its own."""
_MOST = 8
_LEGEND = (Key(DARK, "a whole step"), Key(AMBER, "B needs more"), Key(MIDDLE, "B needs less", shape="hatched"))


def between(made: Comparison) -> Lanes | None:
    """A row for A, one for each part that changed, where the one before ends, and one for B; null where the parts are not known."""
    if made.why_not or not made.parts:
        return None
    a, b = (sum(s) for s in zip(*((p.a_s, p.b_s) for p in made.parts), strict=True))
    own = [p for p in made.parts if abs(p.more_s) >= _LEAST * max(a, b)][:_MOST]
    rest = [p for p in made.parts if p not in own and p.more_s]
    if not own:
        return None
    shown = [*own, _together(rest)] if rest else own
    ends = [a]
    for part in shown:
        ends.append(ends[-1] + part.more_s)
    full = max(a, b, *ends)
    rows = [_whole("A", a, full), *(_part(p, at, full) for p, at in zip(shown, ends, strict=False)), _whole("B", b, full)]
    per = "sample" if made.time and made.time.per_sample else "step"
    says = (f"What makes the {time(b)} of B out of the {time(a)} of A, the largest change first; each bar begins where the one above ends.",)
    legend = tuple(replace(k, name=k.name.replace("step", per)) for k in _LEGEND)
    return Lanes(says, legend, tuple(rows), (), (), ())


def _together(rest: list[Part]) -> Part:
    """What is left, as one part."""
    return Part(count(len(rest), "smaller change"), sum(p.a_s for p in rest), sum(p.b_s for p in rest))


def _whole(name: str, value: float, full: float) -> Lane:
    return Lane(name, "", time(value), (Bar("", f"{name}: {time(value)}", 0.0, _share(value, full), DARK),), stands_out=True)


def _part(part: Part, at: float, full: float) -> Lane:
    begin = min(at, at + part.more_s)
    look = ("", AMBER) if part.more_s > 0 else ("hatched", MIDDLE)
    says = f"{part.name}: {time(part.a_s)} in A, {time(part.b_s)} in B"
    return Lane(part.name, "", signed(part.more_s), (Bar(look[0], says, _share(begin, full), _share(abs(part.more_s), full), look[1]),))


def _share(value: float, full: float) -> float:
    """Per cent of the width."""
    return round(100 * max(0.0, value) / full, 3) if full > 0 else 0.0
