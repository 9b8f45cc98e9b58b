"""What a traceback tells: exceptions in chains, and the frames they came through."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Frame:
    """A frame of a traceback and the line it stands on; function is empty where a file could not be read."""

    line: int
    path: str
    at: str
    function: str


@dataclass(slots=True, eq=False)
class Raised:
    """An exception: its line, its message from that line on, its frames (outermost first, empty where they are not certain).

    told: where the line below `Last error:` stands, and that line.
    """

    line: int
    text: list[str]
    depth: int = 0
    told: tuple[int, str] | None = None
    frames: list[Frame] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Chain:
    """Exceptions that follow from one another, the cause first. line: where the first traceback begins.

    stream: `ignored` (raised where nobody could catch it, the process went on), `logged` (printed by a logger), `repeated` (in a torchrun
    table, with its rank). first: it is the first traceback of the region, whose line is known to the engine.
    """

    line: int
    raised: list[Raised] = field(default_factory=list)
    stream: str | None = None
    rank: int | None = None
    host: str | None = None
    first: bool = False

    def ordered(self) -> list[Raised]:
        """The cause first: what stands deepest in a group of exceptions, then in the order of the chain."""
        return sorted(self.raised, key=lambda raised: -raised.depth)
