"""PL601 loss-nan: the loss or the gradient norm is not a number.

What it does: looks for nan and inf among the printed losses and gradient norms, for iterations that Megatron counts as nan, for results
that its rerun state machine calls nan or inf (which names the rank), and for iteration lines without a loss although their steps were not all skipped (Megatron leaves a nan loss out).
Why it matters: from there on the weights are worthless; every further step is lost. The cost is the share of steps from there on.
What to do: go back to a checkpoint at or before the last finite print; look at the data of the steps after it, the learning rate, the precision.
When it is wrong: where losses are printed every few steps, the first nan lies somewhere after the last finite print. fp16 skips steps with inf gradients while it searches its loss scale; those are not counted.
Of prints that name no step (Hugging Face's Trainer) a gradient norm counts only where the last three are nan.
Thresholds: none.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd
import pyarrow as pa

from pipelog._text import count
from pipelog.findings import Advice, Confidence, Finding, Severity, Where, cite, detector
from pipelog.tables import CannotTell, frame
from pipelog.tables.steps import Steps, series


@detector("PL601", "loss-nan", needs=("scalars", "placed", "steps"))
def loss_nan(scalars: pd.DataFrame, placed: pa.Table, steps: Steps) -> Iterator[Finding]:
    """One finding: from the first step with a nan on."""
    bad = _printed(scalars)
    missing = _left_out(placed, scalars)
    checked = _checked(placed)
    if not len(scalars[scalars["name"].isin(["loss", "grad_norm"])]) and not len(missing) and not len(checked):
        raise CannotTell("no loss was printed")
    rows = pd.concat([bad, missing, checked], ignore_index=True)
    if not len(rows):
        yield from _without_steps(scalars)
        return
    rows = rows.sort_values(["step", "line"], kind="stable")
    first, last = int(rows["step"].min()), int(rows["step"].max())
    words = list(dict.fromkeys(rows["what"]))
    end = int(steps.rows["step"].max()) if len(steps.rows) else last
    to_end = last >= end
    loss = series(scalars, "loss")
    again = bool(np.isfinite(loss[loss["step"].between(first, last)]["value"].to_numpy(dtype=float)).any()) and first != last
    good = _last_good(scalars, rows, first)
    when = _when(rows, good, again=again, end=end if to_end else None)
    begin = (steps.rows["step"] - steps.rows["steps"].fillna(1)).min() if len(steps.rows) else 0
    yield Finding(
        "PL601",
        "loss-nan",
        f"{' and '.join(words)} {when}",
        Severity.WARNING,
        Confidence.HIGH,
        Where(ranks=tuple(sorted({int(r) for r in checked["rank"].dropna()})), steps=(first, last)),
        cite(rows),
        (
            Advice(
                f"resume from the last checkpoint {f'before step {first}' if good is None else f'at or before step {good}, the last that is known to be finite'}, "
                f"once its weights are seen to be finite; save {_suspects(good, first)} alone with torch.autograd.detect_anomaly"
            ),
            Advice("lower the learning rate or clip gradients; with fp16 compare a bf16 run"),
        ),
        cost=float(min(1.0, (end - first + 1) / (end - begin))) if to_end and not again and end > begin else None,
    )


def _without_steps(scalars: pd.DataFrame) -> Iterator[Finding]:
    """What prints that name no step tell: which of them is the first, by its line."""
    for name, what in (("loss", "the loss is nan or inf"), ("grad_norm", "the gradient norm is nan")):
        prints = scalars[(scalars["name"] == name) & scalars["step"].isna()].sort_values(["file", "line"], kind="stable")
        value = prints["value"].to_numpy(dtype=float)
        bad = np.isnan(value) if name == "grad_norm" else ~np.isfinite(value)
        if not bad.any() or (name == "grad_norm" and not (len(bad) >= _LASTING and bad[-_LASTING:].all())):
            continue
        first = int(np.argmax(bad))
        reach = "to the end" if bad[first:].all() else "not in all that follow"
        yield Finding(
            "PL601",
            "loss-nan",
            f"{what} in {bad.sum():,} of {count(len(bad), 'print')} that name no step, from number {first + 1} on, {reach}",
            Severity.WARNING,
            Confidence.HIGH,
            evidence=cite(prints[bad]),
            advice=(
                Advice("resume from a checkpoint that was saved before the first of them, once its weights are seen to be finite"),
                Advice("lower the learning rate or clip gradients; with fp16 compare a bf16 run"),
            ),
        )
        return


_LASTING = 3
"""Gradient norms that are nan one after another: a single one is a step that fp16 skips."""


def _last_good(scalars: pd.DataFrame, rows: pd.DataFrame, first: int) -> int | None:
    """The step of the last finite print before the first nan; None where there is none, or where the nan itself is of a named step."""
    if "rank" in rows and pd.notna(rows["rank"].iloc[0]):  # of Megatron's rerun state machine, which looks at every step
        return None
    names = ["grad_norm"] if rows["what"].iloc[0].startswith("the gradient norm") else ["loss"]
    before = scalars[scalars["name"].isin(names) & (scalars["step"] < first) & np.isfinite(scalars["value"].to_numpy(dtype=float))]
    return int(before["step"].max()) if len(before) else None


def _suspects(good: int | None, first: int) -> str:
    """The batches among which the one is that began it."""
    if good is None or good == first - 1:
        return f"the batch of step {first} and run it"
    return f"the batches of steps {good + 1} to {first} and run each"


def _when(rows: pd.DataFrame, good: int | None, *, again: bool, end: int | None) -> str:
    """The steps concerned: where not every step was printed, between which two prints it began. end: the last step, where the nan lasts to it."""
    first, last, prints = int(rows["step"].min()), int(rows["step"].max()), rows["step"].nunique()
    sure = good is None or good == first - 1
    began = "" if sure else f" (it began between step {(good or 0) + 1} and {first}: the print of step {good} is finite)"
    if first == last and (end is None or sure):
        return f"at step {first}{began}"
    every = prints == last - first + 1
    if again:  # single steps with good ones between
        return f"at {count(prints, 'step' if every or sure else 'printed step')} from {first} to {last}{began}"
    if end is None:
        much = count(prints, "step" if every else "printed step")
        return f"from step {first} to {last} ({much}){began}"
    if sure:
        return f"from step {first} on ({count(end - first + 1, 'step')}, to the end)"
    return f"to the end, {end - first + 1:,} to {end - (good or 0):,} steps{began}"


def _printed(scalars: pd.DataFrame) -> pd.DataFrame:
    """Values that are nan or inf, and counts of nan iterations. A gradient norm of inf belongs to a skipped step."""
    value = scalars["value"].to_numpy(dtype=float)
    of_loss = (scalars["name"] == "loss") & ~np.isfinite(value)
    of_norm = (scalars["name"] == "grad_norm") & np.isnan(value)
    counted = (scalars["name"] == "nan_in_interval") & (value > 0)
    rows = scalars[(of_loss | of_norm | counted) & scalars["step"].notna()].copy()
    words = {"loss": "the loss is nan or inf", "grad_norm": "the gradient norm is nan", "nan_in_interval": "iterations are counted as nan"}
    return rows.assign(what=rows["name"].map(words))[["step", "file", "line", "what"]]


def _checked(placed: pa.Table) -> pd.DataFrame:
    """Results that Megatron's rerun state machine found to be nan or inf, with their ranks."""
    rows = frame(placed, ("error",), ("name", "rank", "step", "value", "file", "line"))
    rows = rows[(rows["name"] == "megatron-rerun") & rows["step"].notna()]
    rows = rows[~np.isfinite(rows["value"].to_numpy(dtype=float, na_value=np.nan))]
    who = [f"a result of rank {r} is nan or inf" if pd.notna(r) else "a result is nan or inf" for r in rows["rank"]]
    if len(rows) and rows["rank"].nunique() > 3:
        who = [f"results of {rows['rank'].nunique()} ranks are nan or inf"] * len(rows)
    return rows.assign(what=pd.Series(who, index=rows.index, dtype=object))[["step", "rank", "file", "line", "what"]]


def _left_out(placed: pa.Table, scalars: pd.DataFrame) -> pd.DataFrame:
    """Iteration lines that lost their loss: others have one, and not all of their steps were skipped."""
    lines = frame(placed, ("iteration",), ("step", "text", "file", "line")).dropna(subset=["step"])
    empty = lines.iloc[:0].assign(what="")[["step", "file", "line", "what"]]
    has = lines["text"].fillna("").str.contains(r"(?:^| )loss(?: |$)", regex=True)
    if not len(lines) or not has.any() or has.all():
        return empty
    skipped = series(scalars, "skipped_in_interval").set_index("step")["value"]
    gap = lines["step"].astype("int64").diff()
    interval = gap.fillna(gap.min() if len(gap) > 1 else 1)
    partly = lines["step"].astype("int64").map(skipped).fillna(0) < interval
    first_loss = int(lines[has]["step"].iloc[0])
    gone = lines[~has & partly & (lines["step"] > first_loss)]
    return gone.assign(what="the loss is missing from the iteration line, as Megatron does with nan,")[["step", "file", "line", "what"]]
