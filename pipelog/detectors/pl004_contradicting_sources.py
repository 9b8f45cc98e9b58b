"""PL004 contradicting-sources: the files disagree about the shape or the configuration of the job.

What it does: compares what logs, configurations, command lines and traces say of world size, stages, replicas and batch sizes.
Why it matters: figures that rest on the wrong one are wrong; often the folder holds files of two jobs.
What to do: see which file belongs to this job; give pipelog that one alone.
When it is wrong: an elastic job changes its world size between attempts.
Thresholds: none.
"""

from __future__ import annotations

from collections.abc import Iterator

from pipelog._text import figure
from pipelog.events import Input
from pipelog.findings import Advice, Confidence, Evidence, Finding, Severity, detector
from pipelog.tables import CannotTell
from pipelog.tables.config import Config
from pipelog.tables.topology import Said, Topology


@detector("PL004", "contradicting-sources", needs=("topology", "config", "inputs"))
def contradicting_sources(topology: Topology, config: Config, inputs: list[Input]) -> Iterator[Finding]:
    """One finding a quantity."""
    if not topology.said and not config.said:
        raise CannotTell("no file states the shape or the configuration of the job")
    for what, values in (*topology.conflicts, *config.conflicts):
        yield Finding(
            "PL004",
            "contradicting-sources",
            f"{what}: {_spelt(values)}",
            Severity.INFO,
            Confidence.MEDIUM,
            evidence=tuple(Evidence(s.file, s.line) for s in values[:4] if s.file is not None),
            advice=(Advice("see which of the files belongs to this job; the first one named was used"),),
        )
    del inputs


def _spelt(values: list[Said]) -> str:
    shown = [f"{_plain(s.value)} ({s.source}{f' in {s.file}' if s.file else ''})" for s in values[:4]]
    return " against ".join(dict.fromkeys(shown))


def _plain(value: object) -> str:
    if not isinstance(value, float):
        return str(value)
    return str(int(value)) if value.is_integer() else figure(value)
