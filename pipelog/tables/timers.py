"""Timer lines joined with the step they belong to: DeepSpeed's rank-0 timers, Megatron's last-rank timers and its tables over ranks."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow as pa

from pipelog.tables import frame, of_kind, table
from pipelog.tables.config import Config
from pipelog.tables.steps import Steps, version_tuple

_COLUMNS = ["kind", "name", "rank", "stage", "replica", "dur_ns", "file", "line", "text"]
_COMPUTE = ("forward-compute", "backward-compute", "batch-generator", "forward-backward")
SYNCED = ("all-grads-sync", "layernorm-grads-all-reduce", "embedding-grads-all-reduce")
"""What forward-backward holds after the last backward pass, in the releases that time all-grads-sync; before, it came after forward-backward."""


@table("timers", needs=("placed", "steps", "config"))
def timers(placed: pa.Table, steps: Steps, config: Config) -> pd.DataFrame:
    """DeepSpeed's timers, one row a printed interval: step, steps, iter_ns, file, line, and a column `<timer>_ns` **per step** for each timer
    (`step_ns` is the timer of the optimizer step).

    The lines of an interval stand around its `steps:` line: `pipe_…` after it, all others before. A printed value is the sum over
    the steps of the interval; releases 0.4.0 - 0.5.6 keep the last micro-batch only, so their timers are left out.
    """
    rank = placed.column("rank")
    first = pa.compute.or_(pa.compute.is_null(rank), pa.compute.equal(rank, 0))  # other ranks' timers are not told: no need to copy them
    columns = ("kind", "name", "step", "dur_ns", "file", "line")
    rows = frame(placed.select(columns).filter(pa.compute.fill_null(first, True)), ("timer", "step"), columns)
    lines = rows[(rows["kind"] == "step") & (rows["name"] == "deepspeed")].dropna(subset=["step"]).sort_values(["file", "line"])
    found = rows[rows["kind"] == "timer"].sort_values(["file", "line"])
    version = version_tuple(config.deepspeed)
    if not len(found) or not len(lines) or (0, 4, 0) <= version <= (0, 5, 6):
        return pd.DataFrame({"step": pd.Series(dtype="int64")})
    codes, words = pd.factorize(found["name"])  # few words, many rows
    found = found.assign(after=np.array([str(word).startswith("pipe_") for word in words], bool)[codes])
    printed = dict(iter(lines.groupby("file", sort=False)))
    parts = []
    for file, mine in found.groupby("file", sort=False):
        at = printed.get(file)
        if at is None:
            continue
        line, marks, number = mine["line"].to_numpy(), at["line"].to_numpy(), at["step"].to_numpy(dtype=np.int64)
        index = np.where(mine["after"], np.searchsorted(marks, line, side="right") - 1, np.searchsorted(marks, line, side="left"))
        inside = (index >= 0) & (index < len(marks))
        parts.append(mine[inside].assign(step=number[index[inside]]))
    if not parts:
        return pd.DataFrame({"step": pd.Series(dtype="int64")})
    joined = pd.concat(parts)
    joined = joined[joined["file"] == joined.groupby("step")["file"].transform("first")]  # the same lines in the merged log and in rank 0's
    joined["dur_ns"] = joined["dur_ns"].astype("float64")
    wide = joined.pivot_table(index="step", columns="name", values="dur_ns", aggfunc="sum").add_suffix("_ns")
    where = joined.groupby("step")[["file", "line"]].first()
    known = steps.rows.set_index("step") if steps.source == "deepspeed" else pd.DataFrame(columns=["steps", "dur_ns"])
    wide = wide.join(known[["steps", "dur_ns"]].rename(columns={"dur_ns": "iter_ns"}).astype("float64"), how="inner").dropna(
        subset=["steps", "iter_ns"]
    )
    names = [c for c in wide.columns if c not in ("steps", "iter_ns")]
    wide[names] = wide[names].div(wide["steps"], axis=0)
    return wide.join(where).reset_index()


@table("megatron_timers", needs=("placed",))
def megatron_timers(placed: pa.Table) -> pd.DataFrame:
    """Megatron's one-line timers, one row an iteration line: step, step_ns, file, line, and a column in ns per step for each timer.

    They are means per iteration over the interval; the line follows the iteration line. Printed by the last rank (the last stage).
    Set-up timers before the first iteration are left out.
    """
    rows = of_kind(placed.select(_COLUMNS), "megatron_timer")
    joined = _of_intervals(placed, rows.filter(pa.compute.is_null(rows.column("text"))))
    if not len(joined):
        return pd.DataFrame({"step": pd.Series(dtype="int64")})
    wide = joined.pivot_table(index="step", columns="name", values="dur_ns", aggfunc="first")
    return wide.join(joined.groupby("step")[["step_ns", "file", "line"]].first()).reset_index()


@table("rank_timers", needs=("placed",))
def rank_timers(placed: pa.Table) -> pd.DataFrame:
    """Megatron's timers of all ranks (`--timing-log-option all`), one row an iteration line and rank: step, step_ns, rank, stage, replica, file, line
    (of its largest timer of compute there), and a column in ns per step for each timer that tells of compute and the pipeline phase; null for a rank that the table leaves out, since it timed nothing.
    """
    joined = _of_intervals(placed, _tabled(placed, "all", names=(*_COMPUTE, *SYNCED)))
    joined = joined.dropna(subset=["rank", "step_ns"])
    keys = ["step", "rank"]
    if not len(joined):
        return pd.DataFrame({n: pd.Series(dtype="int64") for n in keys})
    wide = joined.pivot_table(index=keys, columns="name", values="dur_ns", aggfunc="last")
    told = joined.assign(compute=joined["name"].isin(["forward-compute", "backward-compute"])).sort_values(["compute", "dur_ns"], ascending=False)
    return wide.join(told.groupby(keys)[["step_ns", "stage", "replica", "file", "line"]].first()).reset_index()


@table("timer_ranges", needs=("placed",))
def timer_ranges(placed: pa.Table) -> pd.DataFrame:
    """Smallest and largest of a timer over the ranks, one row an iteration line and timer: step, step_ns, name, min_ns (null where only the largest is
    printed), max_ns, rank (whose the largest is, where all are printed), file, line (of the largest).

    From the tables `(min, max) time across ranks`, `max time across ranks` and `times across ranks`: means per iteration.
    """
    joined = _of_intervals(placed, _tabled(placed, "min", "max", "all")).dropna(subset=["step_ns"])
    keys = ["step", "name"]
    if not len(joined):
        return pd.DataFrame({n: pd.Series(dtype="int64" if n == "step" else "object") for n in keys})
    low = joined[joined["text"] != "max"].groupby(keys)["dur_ns"].min().rename("min_ns")
    high = joined[joined["text"] != "min"]
    high = high.loc[high.groupby(keys)["dur_ns"].idxmax()].assign(rank=lambda f: f["rank"].where(f["text"] == "all"))
    return high[[*keys, "step_ns", "dur_ns", "rank", "file", "line"]].rename(columns={"dur_ns": "max_ns"}).join(low, on=keys).reset_index(drop=True)


def _tabled(placed: pa.Table, *forms: str, names: tuple[str, ...] = ()) -> pa.Table:
    """Rows of Megatron's timers of tables over ranks, of these forms (`text`: min, max, all) and names (none given: all of them)."""
    rows = of_kind(placed.select(_COLUMNS), "megatron_timer")
    good = pa.compute.is_in(rows.column("text"), pa.array(forms, rows.column("text").type))
    if names:
        good = pa.compute.and_(good, pa.compute.is_in(rows.column("name").cast(pa.string()), pa.array(names, pa.string())))
    return rows.filter(good)


def _of_intervals(placed: pa.Table, timed: pa.Table) -> pd.DataFrame:
    """Rows of Megatron's timers with the step, and its length (step_ns), of the iteration line that they follow in their file; those before the first are of set-up."""
    found = frame(timed, ("megatron_timer",), ("name", "rank", "stage", "replica", "dur_ns", "file", "line", "text")).sort_values(["file", "line"])
    found = found.assign(step=0, step_ns=np.nan)
    if not len(found):
        return found
    lines = frame(placed, ("step",), ("name", "step", "dur_ns", "file", "line"))
    lines = lines[lines["name"].isin(["megatron", "neox"])].dropna(subset=["step"]).sort_values(["file", "line"])
    parts = []
    printed = dict(iter(lines.groupby("file", sort=False)))
    for file, mine in found.groupby("file", sort=False):
        at = printed.get(file, lines.iloc[:0])
        index = np.searchsorted(at["line"].to_numpy(), mine["line"].to_numpy(), side="right") - 1
        good = index >= 0
        parts.append(mine[good].assign(step=at["step"].to_numpy(dtype=np.int64)[index[good]], step_ns=at["dur_ns"].to_numpy()[index[good]]))
    joined = pd.concat(parts)
    joined[["dur_ns", "step_ns"]] = joined[["dur_ns", "step_ns"]].astype("float64")
    return joined.reset_index(drop=True)
