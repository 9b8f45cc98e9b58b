r"""What a line of a failure means. One family a module; `@kind` registers a meaning and the advice that goes with it.

    @kind(
        "gpu-oom",
        category="memory.gpu-oom",
        pattern=r"(?:CUDA|HIP) out of memory\. Tried to allocate (?P<tried>[\d.]+ \w+)",
        says="ran out of GPU memory: {tried} more were asked for",
    )
    def gpu_oom(case: Case) -> Iterator[Advice]:
        '''PyTorch's allocator says it with its numbers.'''
        yield Advice("…")

Kinds are tried in the order of `first` (specific before general), then by name; the first whose pattern is in the text, and whose frame,
where it asks for one, is in the frames of the traceback, is what the line means.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import TYPE_CHECKING

from pipelog.findings import Advice
from pipelog.registry import Registry

if TYPE_CHECKING:
    from pipelog.postmortem.case import Case


class Role(StrEnum):
    """What an error is to the end of the run."""

    INITIATING = "initiating"
    CASCADE = "cascade"
    TEARDOWN = "teardown"
    BENIGN = "benign"


class Strength(IntEnum):
    """How far a line explains an end by itself; the strongest that there is decides, among equals the first (failures.md section 9)."""

    CAUSE = 1
    """It names what went wrong: an exception, GPU or host memory, a broken device, a full disk."""
    SYMPTOM = 2
    """Something broke, and the line does not say why: an illegal access, a signal with a message."""
    SIGNAL = 3
    """A process died of a signal or with a code, and said nothing."""
    TRANSPORT = 4
    """A link or a peer failed as seen from the network."""
    TIMEOUT = 5
    """Somebody waited in vain."""
    ECHO = 6
    """What others notice when one is gone."""
    WORD = 7
    """It calls itself an error; nothing more is known of it."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A meaning. category after contract.md; says: predicate of the verdict, {names} are groups of the pattern; of_ranks: the same where the ranks
    are known, where it reads otherwise then.

    known: whether such a line tells the cause. job: it concerns the job as a whole, not one rank. rows: names of the event rows it
    is looked for in, all where empty. missing: what would tell more where the cause is not known. only_with: the kind that follows where
    this one counts; without it such a line is said on healthy machines, too.
    """

    name: str
    category: str
    pattern: re.Pattern[str]
    says: str
    of_ranks: str
    role: Role
    strength: Strength
    known: bool
    job: bool
    rows: tuple[str, ...]
    frame: re.Pattern[str] | None
    first: int
    missing: tuple[str, ...]
    only_with: str | None
    page: str
    advice: Callable[[Case], Iterator[Advice]]


KINDS: Registry[Kind] = Registry()


def kind(
    name: str,
    *,
    category: str,
    pattern: str,
    says: str,
    of_ranks: str = "",
    role: Role = Role.INITIATING,
    strength: Strength = Strength.CAUSE,
    known: bool = True,
    job: bool = False,
    rows: tuple[str, ...] = (),
    frame: str | None = None,
    first: int = 50,
    missing: tuple[str, ...] = (),
    only_with: str | None = None,
) -> Callable[[Callable[[Case], Iterator[Advice]]], Callable[[Case], Iterator[Advice]]]:
    """Register a kind of failure; the function yields advice for a case. Lower *first* is tried earlier."""

    def add(function: Callable[[Case], Iterator[Advice]]) -> Callable[[Case], Iterator[Advice]]:
        page = (function.__doc__ or "").strip()
        frames = re.compile(frame) if frame else None
        made = Kind(
            name, category, re.compile(pattern), says, of_ranks, role, strength, known, job, rows, frames, first, missing, only_with, page, function
        )
        KINDS.add(name, made)
        return function

    return add
