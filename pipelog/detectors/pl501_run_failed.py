"""PL501 run-failed: the run ended in a failure; what began it.

What it does: gives every line that speaks of a failure a meaning and a role (initiating, cascade, teardown, benign). The verdict is the
earliest line of the last attempt among those that explain most: a named cause before a symptom, a symptom before a signal without words, that
before transport errors, timeouts, and what others notice when one is gone. Everything it explains is folded under it.
Why it matters: nearly all error lines of a dead job are consequences; the first one is what to mend.
What to do: see the advice for the kind of failure.
When it is wrong: where the log of the rank that began it is not among the files, the first echo elsewhere looks like the beginning; with
clocks that are apart, an order between hosts may be wrong. `confidence`, `cause_known` and `missing` say how far the files carry.
Thresholds: none.
"""

from __future__ import annotations

from collections.abc import Iterator

from pipelog.findings import Finding, Severity, Where, detector
from pipelog.postmortem.deaths import Death
from pipelog.tables import CannotTell


@detector("PL501", "run-failed", needs=("ended",))
def run_failed(ended: Death) -> Iterator[Finding]:
    """One finding where the attempt that is told of, in general the last, failed."""
    if ended.trouble is not None:
        raise RuntimeError(ended.trouble)
    if ended.status == "incomplete":
        raise CannotTell("the files do not say how the run ended")
    if ended.status == "failed":
        yield Finding(
            "PL501",
            "run-failed",
            ended.title or "the run failed; no line says why",
            Severity.ERROR,
            ended.confidence,
            Where(ended.ranks, ended.stages, ended.hosts, steps=(ended.step, ended.step) if ended.step is not None else None),
            ended.evidence,
            ended.advice,
        )
