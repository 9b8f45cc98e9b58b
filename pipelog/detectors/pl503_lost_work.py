"""PL503 lost-work: steps and time since the last complete checkpoint.

What it does: takes the last step that was printed and the last checkpoint that was written to its end. Where an attempt is known to have written none
(its save interval was not reached), all its steps are lost.
Why it matters: that is the price of the failure, besides the restart.
What to do: resume from that checkpoint. The interval that costs least is the square root of 2 x (time to save) x (mean time between
failures) (Young 1974).
When it is wrong: steps that were made but not printed are not counted: the true loss is up to one print interval larger. Checkpoints whose end is
not in the log count only where steps were made after them.
Thresholds: at_least 1 lost step.
"""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from pipelog._text import count, seconds
from pipelog.findings import Advice, Confidence, Finding, Severity, Where, cite, detector
from pipelog.postmortem.deaths import Death
from pipelog.tables import CannotTell


@detector("PL503", "lost-work", needs=("deaths", "chosen", "spans", "losses", "checkpoints", "ledger"))
def lost_work(
    deaths: list[Death],
    chosen: int,
    spans: pd.DataFrame,
    losses: pd.DataFrame,
    checkpoints: pd.DataFrame,
    ledger: pd.DataFrame,
    *,
    at_least: float = 1,
) -> Iterator[Finding]:
    """One finding about the attempt that the report speaks of, where it did not come to its end."""
    status = deaths[chosen].status
    if status == "completed":
        return
    if chosen not in spans.index:
        raise CannotTell("no step was printed")
    if status == "incomplete":
        raise CannotTell("the files do not say how the run ended")
    lost = losses.at[chosen, "lost_steps"]
    if pd.isna(lost):
        raise CannotTell("no line says that a checkpoint was written")
    if int(lost) < at_least:
        return
    last, step_ns = int(spans.at[chosen, "last"]), float(spans.at[chosen, "step_ns"])
    saved = losses.at[chosen, "saved"]
    spent = ledger["lost_s"].get(chosen)  # fitted into the time that there was
    lost_ns = int(lost) * step_ns if spent is None or pd.isna(spent) else float(spent) * 1e9
    time = f" ({seconds(lost_ns)})" if not pd.isna(lost_ns) else ""
    since = f"since checkpoint {int(saved)}" if not pd.isna(saved) else "no checkpoint was written"
    mine = checkpoints[checkpoints["attempt"].fillna(0) <= chosen]
    where = "set a save interval that the run reaches"
    if not pd.isna(saved):
        where = f"resume from the checkpoint of step {int(saved)}"
    elif deaths[chosen].phase == "checkpoint":
        where = "the first save did not come to its end: see to what ended it, and take what it left for incomplete"
    yield Finding(
        "PL503",
        "lost-work",
        f"{count(int(lost), 'step')}{time} lost: {since}, the last step was {last}",
        Severity.WARNING,
        Confidence.HIGH if not pd.isna(saved) else Confidence.MEDIUM,
        Where(steps=(last - int(lost) + 1, last)),
        cite(mine.tail(1)),
        (Advice(where),),
    )
