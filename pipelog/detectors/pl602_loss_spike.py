"""PL602 loss-spike: the loss jumps up.

What it does: compares every printed training loss with the lowest level before it (median of the last five), and looks whether it
comes back.
Why it matters: a loss that does not come back has diverged; the steps after it are lost. The cost is their share of all steps.
What to do: lower the learning rate or lengthen the warm-up, skip the batches around the spike, resume from before it.
When it is wrong: fine-tuning on a mixture of tasks scatters by itself; validation loss is not looked at.
Thresholds: limit 1.5 times the level before and at_least 1.0 above it; recovered below 1.2 times the level before.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd

from pipelog._text import count, figure
from pipelog.findings import Advice, Confidence, Finding, Severity, Where, cite, detector
from pipelog.tables import CannotTell
from pipelog.tables.steps import series


@detector("PL602", "loss-spike", needs=("scalars",))
def loss_spike(scalars: pd.DataFrame, *, limit: float = 1.5, at_least: float = 1.0, recovered: float = 1.2) -> Iterator[Finding]:
    """One finding: the highest spike, and whether the loss came back."""
    loss = series(scalars, "loss")
    loss = loss[np.isfinite(loss["value"].to_numpy(dtype=float))].reset_index(drop=True)
    if len(loss) < 3:
        raise CannotTell(f"{count(len(loss), 'loss was', 'losses were')} printed; a jump needs three or more")
    value = loss["value"]
    level = value.rolling(5, min_periods=1).median().shift(1).cummin()
    jump = value > level + np.maximum((limit - 1) * level.abs(), at_least)
    if not jump.any():
        return
    first = int(jump.to_numpy().argmax())
    before = float(level.iloc[first])
    peak = first + int(value.iloc[first:].to_numpy().argmax())
    end = float(value.iloc[min(max(peak + 1, len(value) - 5), len(value) - 1) :].median())
    back = end <= before + (recovered - 1) * abs(before)
    where = Where(steps=(int(loss["step"].iloc[first]), int(loss["step"].iloc[-1 if not back else peak])))
    after = len(loss) - first
    verdict = ": not recovered" if after >= 5 else f", {count(after - 1, 'line')} later"
    tail = f"back at {figure(end)} at the end" if back else f"still {figure(end)} at the end{verdict}"
    yield Finding(
        "PL602",
        "loss-spike",
        f"the loss jumps from {figure(before)} to {figure(float(value.iloc[peak]))} (step {int(loss['step'].iloc[first])} on), {tail}",
        Severity.INFO if back else Severity.WARNING,
        Confidence.HIGH if not back and after >= 5 else Confidence.MEDIUM,
        where,
        cite(loss.iloc[[first, peak, len(loss) - 1]]),
        (Advice("lower the learning rate or lengthen its warm-up; resume from a checkpoint before the jump and leave out the batches around it"),),
        cost=None if back else after / len(loss),
    )
