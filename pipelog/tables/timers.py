"""Timer lines joined with the step they belong to: DeepSpeed's rank-0 timers, Megatron's last-rank timers."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow as pa

from pipelog.tables import frame, table
from pipelog.tables.config import Config
from pipelog.tables.steps import Steps, version_tuple


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
    rows = frame(placed, ("megatron_timer", "step"), ("kind", "name", "step", "dur_ns", "file", "line", "text"))
    lines = rows[(rows["kind"] == "step") & rows["name"].isin(["megatron", "neox"])].sort_values(["file", "line"])
    found = rows[(rows["kind"] == "megatron_timer") & rows["text"].isna()].sort_values(["file", "line"])
    parts = []
    printed = dict(iter(lines.groupby("file", sort=False)))
    for file, mine in found.groupby("file", sort=False):
        at = printed.get(file, lines.iloc[:0])
        index = np.searchsorted(at["line"].to_numpy(), mine["line"].to_numpy(), side="right") - 1
        good = index >= 0
        parts.append(mine[good].assign(step=at["step"].to_numpy()[index[good]], step_ns=at["dur_ns"].to_numpy()[index[good]]))
    if not parts or not sum(map(len, parts)):
        return pd.DataFrame({"step": pd.Series(dtype="int64")})
    joined = pd.concat(parts)
    joined[["dur_ns", "step_ns"]] = joined[["dur_ns", "step_ns"]].astype("float64")
    wide = joined.pivot_table(index="step", columns="name", values="dur_ns", aggfunc="first")
    return wide.join(joined.groupby("step")[["step_ns", "file", "line"]].first()).reset_index()
