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


@detector("PL501", "run-failed", needs=("deaths",))
def run_failed(deaths: list[Death]) -> Iterator[Finding]:
    """One finding where the last attempt failed."""
    last = deaths[-1]
    if last.trouble is not None:
        raise RuntimeError(last.trouble)
    if last.status == "incomplete":
        raise CannotTell("the files do not say how the run ended")
    if last.status == "failed":
        yield Finding(
            "PL501",
            "run-failed",
            last.title or "the run failed; no line says why",
            Severity.ERROR,
            last.confidence,
            Where(last.ranks, last.stages, last.hosts, steps=(last.step, last.step) if last.step is not None else None),
            last.evidence,
            last.advice,
        )
