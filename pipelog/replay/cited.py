"""What the replay predicts for a change that a rule proposes, in words: an advice and the what-if never name two numbers for one change."""

from __future__ import annotations

from dataclasses import dataclass

from pipelog._text import percent, seconds
from pipelog.replay.what_if import LEAST_GAIN, WhatIf
from pipelog.tables import Tables


@dataclass(frozen=True, slots=True)
class Cited:
    """A predicted change beside the present setting, which is the first of the what-if."""

    found: WhatIf
    now: WhatIf

    @property
    def name(self) -> str:
        """`setting=value`."""
        return self.found.change.name

    @property
    def gain(self) -> float:
        """Share of the time per sample that goes."""
        return self.found.gain

    @property
    def advised(self) -> bool:
        """Whether the what-if advises it."""
        return self.found.advised

    def __str__(self) -> str:
        """211 ms → 178 ms a step, 15.8 % less time per sample, bubble 45.3 % → 34.8 % (replay)."""
        samples = self.found.change.samples
        more = f" for {samples:g} times the samples" if samples != 1 else ""
        way = f"{percent(abs(self.gain))} {'less' if self.gain >= 0 else 'more'} time per sample"
        bubble = f"bubble {percent(self.now.bubble)} → {percent(self.found.bubble)}"
        return f"{seconds(self.now.step_ns)} → {seconds(self.found.step_ns)} a step{more}, {way}, {bubble} (replay)"


def cited(tables: Tables, *names: str) -> Cited | None:
    """The first of these changes that was predicted, by its name or, where that ends in `=` or a space, by its beginning; None where none was."""
    every: list[WhatIf] = tables.get("what_if") or []
    for name in names:
        for found in every[1:]:
            if found.change.name == name or (name.endswith(("=", " ")) and found.change.name.startswith(name)):
                return Cited(found, every[0])
    return None


def at_best(tables: Tables, *names: str) -> str | None:
    """What is gained where a cause is gone altogether, in words; None where that was not predicted, or is nothing."""
    found = cited(tables, *names)
    return f"{found.name}, at best: {found}" if found is not None and found.gain >= LEAST_GAIN else None
