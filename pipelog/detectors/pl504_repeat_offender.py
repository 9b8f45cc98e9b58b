"""PL504 repeat-offender: the same host or rank began failures in several attempts.

What it does: compares the hosts, else the ranks, that the verdicts of the attempts name.
Why it matters: a host that fails twice fails a third time; a restart on the same nodes costs the next checkpoint interval, too.
What to do: take the host out of the pool before the next start. The same rank on changing hosts points at the code, the data or the stage instead.
Failures of the code, the data or the configuration are not counted: they come again wherever they run.
When it is wrong: a rank stays on its host where the scheduler gives the same nodes again, so a rank alone does not tell host from work.
Thresholds: attempts 2 is how often the same one must begin a failure.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from pipelog._text import count, listed
from pipelog.findings import Advice, Confidence, Finding, Severity, Where, detector
from pipelog.postmortem.deaths import Death
from pipelog.tables import CannotTell
from pipelog.tables.attempts import Attempts

_OF_A_PLACE = frozenset({"hardware", "host", "memory", "network", "hang", "killed", "storage", "unknown"})
"""Categories that a host or a device may cause: a fault of the code, the data or the configuration comes again wherever it runs."""


@detector("PL504", "repeat-offender", needs=("deaths", "attempts"))
def repeat_offender(deaths: list[Death], starts: Attempts, *, attempts: int = 2) -> Iterator[Finding]:
    """One finding a host; one a rank where no host is known."""
    bad = [d for d in deaths if d.status in ("failed", "hung") and (d.category or "unknown").partition(".")[0] in _OF_A_PLACE]
    if len(deaths) < 2:
        raise CannotTell("the files hold one attempt")
    if len(bad) < 2:
        return
    hosts: dict[str, list[Death]] = defaultdict(list)
    ranks: dict[int, list[Death]] = defaultdict(list)
    for death in bad:
        if len(death.hosts) == 1 and death.hosts[0] != "localhost":
            hosts[death.hosts[0]].append(death)
        elif len(death.ranks) == 1 and not starts.jobs:
            ranks[death.ranks[0]].append(death)
    for host, mine in hosts.items():
        if len(mine) >= attempts:
            yield _finding(
                f"{host} began the failure of {count(len(mine), 'attempt')} ({_numbers(mine)})",
                mine,
                Where(hosts=(host,)),
                f"take {host} out of the pool before the next start",
            )
    for rank, mine in ranks.items():
        if len(mine) >= attempts:
            yield _finding(
                f"rank {rank} began the failure of {count(len(mine), 'attempt')} ({_numbers(mine)})",
                mine,
                Where(ranks=(rank,), stages=mine[-1].stages if len(mine[-1].stages) == 1 else ()),
                f"see whether rank {rank} ran on the same host each time: if so, take that host out; if not, look at the work of its stage",
            )


def _numbers(mine: list[Death]) -> str:
    return listed(f"{d.attempt}: {d.category or 'unknown'}" for d in mine)


def _finding(title: str, mine: list[Death], where: Where, action: str) -> Finding:
    evidence = tuple(e for death in mine for e in death.evidence[:1])
    known = Confidence.HIGH if any((d.category or "").startswith("hardware") for d in mine) else Confidence.MEDIUM
    return Finding("PL504", "repeat-offender", title, Severity.WARNING, known, where, evidence, (Advice(action),))
