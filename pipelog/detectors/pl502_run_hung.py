"""PL502 run-hung: the run stood still; who was waited for.

What it does: reads watchdog and p2p timeouts, desync reports, stack dumps, flight-recorder dumps and silence. Flight recorders know best: who has
not begun a call that others wait in, and waits for nobody himself. Along the pipeline, whoever is waited for and says nothing is the suspect.
Why it matters: a timeout is reported by the ranks that wait, never by the one that is missing; and it says nothing of the cause.
What to do: look at the rank that is waited for; record a stack of every rank while it hangs.
When it is wrong: silence counts only for ranks whose output is among the files; where all ranks are in the same call, nobody is missing, and the
network or the device is suspected, not shown.
Thresholds: none.
"""

from __future__ import annotations

from collections.abc import Iterator

from pipelog.findings import Finding, Severity, Where, detector
from pipelog.postmortem.deaths import Death
from pipelog.tables import CannotTell


@detector("PL502", "run-hung", needs=("ended",))
def run_hung(ended: Death) -> Iterator[Finding]:
    """One finding where the attempt that is told of, in general the last, hung."""
    if ended.trouble is not None:
        raise RuntimeError(ended.trouble)
    if ended.status == "incomplete":
        raise CannotTell("the files do not say how the run ended")
    if ended.status == "hung":
        yield Finding(
            "PL502",
            "run-hung",
            ended.title,
            Severity.ERROR,
            ended.confidence,
            Where(ended.ranks, ended.stages, ended.hosts, steps=(ended.step, ended.step) if ended.step is not None else None),
            ended.evidence,
            ended.advice,
        )
