"""What a kind of failure knows of the case it gives advice for."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import pandas as pd

from pipelog.tables.config import Config
from pipelog.tables.topology import Topology, said


@dataclass(frozen=True, slots=True)
class Whom:
    """Those who began it, as far as that can be told, and why they are thought to be the ones. label: `local 3` where that is all that is said.

    doing: where they stood while others waited, as a predicate. lost_by: ranks that lost a peer; awaited_by: those of them that waited for the ones named.
    title: the whole of it, where it is a host rather than a rank that others name.
    """

    ranks: tuple[int, ...] = ()
    stages: tuple[int, ...] = ()
    hosts: tuple[str, ...] = ()
    why: str = ""
    label: str | None = None
    doing: str = ""
    lost_by: tuple[int, ...] = ()
    awaited_by: tuple[int, ...] = ()
    title: str = ""


@dataclass(frozen=True, slots=True)
class Case:
    """The initiating line, whom it names, and the job around it. Unknown is null.

    apart: the host on which alone it was met, where others of the job came past what all of them do alike. limit: it was the limit of a
    cgroup (of a job, of a container) that was met, not the memory of the host. files: that of the line, then the others.
    """

    text: str
    rank: int | None
    stage: int | None
    host: str | None
    own: str | None
    topology: Topology
    config: Config
    facts: pd.DataFrame = field(repr=False)
    apart: str | None = None
    limit: bool = False
    files: tuple[str, ...] = ()

    def match(self, pattern: str) -> re.Match[str] | None:
        """Search the text of the line."""
        return re.search(pattern, self.text)

    def fact(self, name: str) -> str | None:
        """What a file states, as it was printed."""
        found = said(self.facts, (name,))
        return str(found[0].value) if found else None

    def facts_of(self, name: str) -> tuple[str, ...]:
        """The different values that files state."""
        return tuple(str(s.value) for s in said(self.facts, (name,)))

    @property
    def path(self) -> str | None:
        """A path that the line names."""
        found = re.search(r"(?<![\w.])(/[\w.@%+-]+(?:/[\w.@%+-]+)+)", self.text)
        return found.group(1) if found else None

    @property
    def folder(self) -> str | None:
        """The folder of that path, where its last part is a file by its ending (`.pt`, `.distcp`; no step: `ckpt-0.5`)."""
        path = self.path
        if path is None:
            return None
        above, _, last = path.rpartition("/")
        return above if above and re.search(r"\.[A-Za-z]\w{0,11}$", last) else path
