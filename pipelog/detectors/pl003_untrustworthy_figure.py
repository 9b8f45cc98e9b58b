"""PL003 untrustworthy-figure: a number in the log that is known to lie here.

What it does: knows the figures that DeepSpeed, Megatron and their combinations print without having measured them: a gradient norm
or loss scale that never changes, timers that are empty or all zero, counters that disagree, iter time of releases that divide it
twice, comms-logger latencies that add up, timers that miss most of the step.
Why it matters: people tune by these numbers.
What to do: use the figure named instead; pipelog itself leaves the false one out.
When it is wrong: a gradient norm that is truly constant (a frozen model).
Thresholds: lines 3 or more equal values before a figure counts as frozen, and alone 10 of them where no skipped step explains it; untimed
0.5 of the step in no timer.
"""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd
import pyarrow as pa

from pipelog._text import count, figure, percent
from pipelog.findings import Advice, Confidence, Finding, Severity, Where, cite, detector
from pipelog.tables import CannotTell, Tables, frame
from pipelog.tables.config import Config
from pipelog.tables.steps import Steps, series, version_tuple
from pipelog.tables.topology import said


@detector("PL003", "untrustworthy-figure", needs=("scalars", "steps", "placed", "config", "tables"))
def untrustworthy_figure(
    scalars: pd.DataFrame,
    steps: Steps,
    placed: pa.Table,
    config: Config,
    tables: Tables,
    *,
    lines: float = 3,
    alone: float = 10,
    untimed: float = 0.5,
) -> Iterator[Finding]:
    """One finding a figure."""
    if not len(scalars) and not len(steps.rows):
        raise CannotTell("no loss, norm, scale or step time was printed")
    engine = config.deepspeed is not None or bool(len(series(scalars, "skipped_steps")))
    yield from _frozen(scalars, int(lines), engine=engine)
    yield from _still(scalars, tables, int(lines), int(alone), engine=engine)
    yield from _timer_lines(placed)
    yield from _counters(scalars, placed)
    yield from _iter_time(steps)
    yield from _comms(placed, config)
    yield from _untimed(tables, config, untimed)


def _figure(
    title: str, rows: pd.DataFrame, instead: str, *, severity: Severity = Severity.WARNING, confidence: Confidence = Confidence.HIGH
) -> Finding:
    steps = rows["step"].dropna() if "step" in rows else pd.Series(dtype="int64")
    where = Where(steps=(int(steps.min()), int(steps.max()))) if len(steps) else Where()
    return Finding("PL003", "untrustworthy-figure", title, severity, confidence, where, cite(rows), (Advice(instead),))


def _frozen(scalars: pd.DataFrame, lines: int, *, engine: bool) -> Iterator[Finding]:
    """Values that no training has."""
    scale = series(scalars, "loss_scale")
    negative = scale[scale["value"] < 0]
    if len(negative) >= lines:
        yield _figure(
            f"the loss scale reads {figure(negative['value'].iloc[0])} on {count(len(negative), 'line')}: the engine does not fill it in",
            negative,
            "read the loss scale from DeepSpeed's own overflow lines",
        )
    norm = series(scalars, "grad_norm")
    zero = norm[norm["value"] == 0]
    if len(zero) >= lines and len(zero) > 0.9 * len(norm):
        yield _figure(
            f"the gradient norm reads 0 on {count(len(zero), 'line')}: the engine does not fill it in",
            zero,
            f"compute the norm in the training script{', or read it from the engine (engine.get_global_grad_norm())' if engine else ''}",
        )


def _still(scalars: pd.DataFrame, tables: Tables, lines: int, alone: int, *, engine: bool) -> Iterator[Finding]:
    """A gradient norm that stands still while the loss moves. Two or three equal values are chance, unless steps were skipped meanwhile.

    That a norm is not filled in is known of DeepSpeed's engine alone (engine); of others it is worth a look, and no more.
    """
    norm, loss = series(scalars, "grad_norm"), series(scalars, "loss")
    tail = _same_tail(norm)
    clip = {s.value for s in said(tables["facts"], ("config.gradient_clipping", "args.clip_grad"))}
    moved = _varies(loss[loss["step"].isin(tail["step"])]["value"])
    if len(tail) < lines or not moved or tail["value"].iloc[0] in clip or (norm["value"] == 0).mean() > 0.9:
        return
    skipped = series(scalars, "skipped_steps")
    during = skipped[skipped["step"].between(tail["step"].min(), tail["step"].max())]["value"]
    interval = series(scalars, "skipped_in_interval")
    counted = _varies(during) or bool((interval[interval["step"].isin(tail["step"])]["value"] > 0).any())
    if not counted and len(tail) < alone:
        return
    why = ": it is not updated when steps are skipped" if counted else ""
    known = counted or engine
    yield _figure(
        f"the gradient norm stands at {figure(tail['value'].iloc[0])} on the last {len(tail)} lines while the loss moves{why}",
        tail,
        "compare with the counter of skipped steps"
        if counted
        else "read the norm from the engine (engine.get_global_grad_norm())"
        if engine
        else "compare with a norm that the training script computes itself before the optimizer's step",
        severity=Severity.WARNING if known else Severity.INFO,
        confidence=Confidence.HIGH if known else Confidence.MEDIUM,
    )


def _same_tail(rows: pd.DataFrame) -> pd.DataFrame:
    """The last rows that carry one and the same value."""
    if not len(rows):
        return rows
    same = rows["value"].eq(rows["value"].iloc[-1]).to_numpy()
    length = len(same) if same.all() else int(same[::-1].argmin())
    return rows.iloc[len(rows) - length :]


def _timer_lines(placed: pa.Table) -> Iterator[Finding]:
    rows = frame(placed, ("timer_line",), ("name", "step", "file", "line"))
    for name, what in (("zero", "reads 0.00 in every field"), ("empty", "has no field")):
        mine = rows[rows["name"] == name]
        if len(mine) >= 2:
            yield _figure(
                f"the timer line 'time (ms)' {what} on {count(len(mine), 'line')}: Megatron's timers are not used when DeepSpeed runs the step",
                mine,
                "switch on wall_clock_breakdown (DeepSpeed up to 0.18.2) or record profiler traces",
            )


def _counters(scalars: pd.DataFrame, placed: pa.Table) -> Iterator[Finding]:
    """Counters on the iteration line that say 0 where the engine, or the loss itself, says otherwise."""
    skipped, interval = series(scalars, "skipped_steps"), series(scalars, "skipped_in_interval")
    skipped = skipped[skipped["step"].between(interval["step"].min(), interval["step"].max())] if len(interval) else skipped
    if len(skipped) > 1 and len(interval) and interval["value"].sum() == 0:
        total = float(skipped["value"].max() - skipped["value"].min())
        if total > 0:
            last = skipped[skipped["value"] == skipped["value"].max()].tail(1)  # where the counter stands at its end
            share = f", {percent(float(skipped['value'].max()) / float(last['step'].iloc[0]))} of the steps" if last["step"].iloc[0] else ""
            both = pd.concat([last, interval.tail(1)])
            yield _figure(
                f"'number of skipped iterations' reads 0 on every iteration line, while DeepSpeed's own counter stands at {int(skipped['value'].max()):,}{share}",
                both,
                "trust DeepSpeed's counter (the line 'step=…, skipped=…')",
            )
    nan = series(scalars, "nan_in_interval")
    bad_norm = scalars[(scalars["name"] == "grad_norm") & scalars["value"].isna() & scalars["step"].notna()]
    silent = bad_norm[bad_norm["step"].isin(nan[nan["value"] == 0]["step"])]
    if len(silent):
        yield _figure(
            f"'number of nan iterations' reads 0 on {count(len(silent), 'line')} whose gradient norm is nan",
            silent,
            "trust the gradient norm, and the loss that is missing from these lines",
        )
    del placed


def _iter_time(steps: Steps) -> Iterator[Finding]:
    if steps.correction is not None:
        yield _figure(f"iter time (s) is not the time of a step here: {steps.correction}", steps.printed, "use the corrected values of this report")


def _comms(placed: pa.Table, config: Config) -> Iterator[Finding]:
    if version_tuple(config.deepspeed) >= (0, 18, 3):
        rows = frame(placed, ("comm", "comm_summary"), ("step", "file", "line"))
        if len(rows):
            yield _figure(
                f"comms_logger latencies of DeepSpeed {config.deepspeed} are sums of all calls so far (since v0.18.3), so its bandwidths and totals mean nothing",
                rows,
                "take the difference of consecutive lines of one operation",
            )


def _untimed(tables: Tables, config: Config, limit: float) -> Iterator[Finding]:
    """Rank 0's timers cover only a part of the step."""
    timers = tables["timers"]
    if "fwd_ns" not in timers and "fwd_microstep_ns" not in timers:
        return
    pair = ("fwd_ns", "bwd_ns") if "fwd_ns" in timers else ("fwd_microstep_ns", "bwd_microstep_ns")
    used = timers.iloc[1:]  # the first interval holds warm-up
    if not len(used):
        return
    names = [*pair, "pipe_send_output_ns", "pipe_recv_grad_ns", "batch_input_ns", "step_ns" if "step_ns" in timers else "step_microstep_ns"]
    covered = sum((used[n].fillna(0) for n in names if n in used), start=pd.Series(0.0, index=used.index))
    share = float((1 - covered / used["iter_ns"]).median())
    if share > limit:
        reason = (
            "memory_breakdown is on and slows what lies outside the timers"
            if config.memory_breakdown
            else "reductions, the loss broadcast or work outside the timers"
        )
        yield _figure(
            f"rank 0's timers cover {percent(1 - share)} of iter time; the rest is in no timer ({reason})",
            used,
            "switch memory_breakdown off for timing" if config.memory_breakdown else "a profiler trace shows the rest",
            severity=Severity.WARNING if config.memory_breakdown else Severity.INFO,
            confidence=Confidence.MEDIUM,
        )


def _varies(values: pd.Series) -> bool:
    return bool(values.min() < values.max())  # of nothing both are nan
