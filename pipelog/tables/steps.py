"""Step times, interval by interval, from the line that measures them best; and the scalars printed beside them."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import pandas as pd
import pyarrow as pa

from pipelog.tables import Tables, frame, table
from pipelog.tables.config import Config

_PREFERENCE = ("deepspeed", "neox", "megatron")
"""DeepSpeed's own `iter time` holds train_batch alone; Megatron's elapsed time also evaluation and checkpoints in the interval.
Lines of any other name come after these, so that a parser of a new kind of step line needs no place here."""


@dataclass(frozen=True, slots=True)
class Steps:
    """rows: step (the last of the interval), steps, dur_ns (mean of one step), file, line, in order of step. source: which lines.

    correction: what was put right in the printed values and why, or null. printed: rows as printed, before that.
    """

    rows: pd.DataFrame
    source: str | None
    correction: str | None
    printed: pd.DataFrame

    def measured(self) -> pd.DataFrame:
        """The intervals without the first printed one, which holds warm-up, where there are others."""
        good = self.rows.dropna(subset=["dur_ns"])
        return good.iloc[1:] if len(good) > 1 and self.source not in ("trace", "operations") else good


@table("steps", needs=("placed", "config", "facts", "tables"))
def steps(placed: pa.Table, config: Config, facts: pd.DataFrame, tables: Tables) -> Steps:
    """The intervals of the best source; `steps` is the distance to the line before, or steps_per_print for the first.

    Where no line of the source gives a time, the stamps of the lines do. After a resume at a step that is no multiple of steps_per_print the first interval is shorter, but its time is divided by
    steps_per_print all the same: put right where the log says which checkpoint was loaded. Releases 0.4.0 - 0.5.6 divide the last step's time by steps_per_print, and 0.6.2 - 0.6.3 print milliseconds as seconds
    (formats/deepspeed-logs.md 5.1): put right here, and said so.
    """
    rows = frame(placed, ("step",), ("name", "rank", "step", "steps", "dur_ns", "start_ns", "file", "line"))
    rows = rows.dropna(subset=["step"])
    names = rows["name"].unique().tolist()
    source = next((name for name in (*_PREFERENCE, *names) if name in names), None)
    if source is None:
        return _from_traces(placed, tables.get("operation_time"))
    mine = rows[rows["name"] == source].sort_values(["step", "file", "line"], kind="stable")
    if source not in _PREFERENCE and mine["dur_ns"].isna().all():
        mine = between_stamps(mine)
    mine = mine.drop_duplicates(["step", "dur_ns"]).drop_duplicates("step", keep="last").reset_index(drop=True)
    number = mine["step"].astype("int64")
    gap = number.diff()
    first = config.steps_per_print if source == "deepspeed" and config.steps_per_print else None
    usual = gap.min() if len(gap) > 1 else np.nan
    gap = gap.fillna(first or usual)
    if len(gap) and pd.notna(gap.iloc[0]) and gap.iloc[0] > number.iloc[0] > 0:
        gap.iloc[0] = number.iloc[0]
    resumed = facts.loc[facts["name"] == "resume.step", "value"].max()
    if source == "deepspeed" and len(gap) and pd.notna(gap.iloc[0]) and 0 < number.iloc[0] - resumed < gap.iloc[0]:
        mine["dur_ns"] = mine["dur_ns"].astype("Int64")
        mine.loc[0, "dur_ns"] = (
            round(int(mine["dur_ns"].iloc[0]) * gap.iloc[0] / (number.iloc[0] - resumed)) if pd.notna(mine["dur_ns"].iloc[0]) else pd.NA
        )
        gap.iloc[0] = number.iloc[0] - resumed
    mine["steps"] = mine["steps"].astype("Float64").fillna(gap.astype("Float64")).round().astype("Int64")
    mine["step"] = number
    printed = mine.copy()
    correction = _correct(mine, config, usual) if source == "deepspeed" else None
    return Steps(mine.drop(columns="name"), source, correction, printed)


_STAMPS = 5 * 10**9
"""Nanoseconds between two lines from which on their stamps tell a time well enough, where these are whole seconds."""


def between_stamps(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows with the time of a step where no line says it (torchtitan): from the stamp of one line of a rank to its next, by the steps in between.

    What else was done meanwhile, as a checkpoint, is in it.
    """
    rows = rows.sort_values(["file", "line"], kind="stable")
    before = rows.groupby(["file", "rank"], dropna=False)[["step", "start_ns"]].shift()
    gone, made = rows["start_ns"] - before["start_ns"], rows["step"] - before["step"]
    whole = bool((rows["start_ns"].dropna() % 10**9 == 0).all())  # stamps without a fraction
    good = (made > 0) & (gone >= (_STAMPS if whole else 1))
    return rows.assign(dur_ns=(gone / made).where(good).round().astype("Int64")).sort_values(["step", "file", "line"], kind="stable")


def _from_traces(placed: pa.Table, operations: pd.DataFrame | None) -> Steps:
    """Without any step line: ProfilerStep#N of the traces, which is DeepSpeed's step N + 1, the longest rank; else the steps of a table of operations."""
    rows = frame(placed, ("profiler_step",), ("rank", "value", "dur_ns", "file", "line"))
    columns = ["rank", "step", "steps", "dur_ns", "start_ns", "file", "line"]
    if not len(rows) and operations is not None:
        each = operations.drop_duplicates("step").sort_values("step").reset_index(drop=True)
        best = each[["rank", "step", "file", "line"]].assign(steps=1, dur_ns=each["step_end_ns"] - each["step_start_ns"], start_ns=pd.NA)
        return Steps(best[columns], "operations", None, best[columns])
    if not len(rows):
        empty = pd.DataFrame({c: pd.Series(dtype="object" if c == "file" else "Int64") for c in columns})
        return Steps(empty, None, None, empty)
    rows["step"] = rows["value"].astype("int64") + 1
    best = rows.loc[rows.groupby("step")["dur_ns"].idxmax()].sort_values("step").reset_index(drop=True)
    best["steps"], best["start_ns"] = 1, pd.NA
    return Steps(best[columns], "trace", None, best[columns])


def version_tuple(text: str | None) -> tuple[int, ...]:
    """(0, 16, 9) of "0.16.9+abc"; empty where it is no version."""
    match = re.match(r"v?(\d+)\.(\d+)(?:\.(\d+))?", text or "")
    return tuple(int(g or 0) for g in match.groups()) if match else ()


def _correct(rows: pd.DataFrame, config: Config, usual: float) -> str | None:
    """Put the durations right in place, and say so. usual: steps from line to line, which are steps_per_print where the configuration was not printed."""
    version = version_tuple(config.deepspeed)
    every = config.steps_per_print or (1 if np.isnan(usual) else int(usual))
    if (0, 6, 2) <= version <= (0, 6, 3):
        rows["dur_ns"] = (rows["dur_ns"].astype("Float64") / 1000).round().astype("Int64")
        return f"DeepSpeed {config.deepspeed} prints iter time in milliseconds under the label (s): divided by 1000"
    if (0, 4, 0) <= version <= (0, 5, 6) and every > 1:
        rows["dur_ns"] = rows["dur_ns"] * every
        return (
            f"DeepSpeed {config.deepspeed} divides the time of one step by steps_per_print ({every}): multiplied by it here; "
            "its samples/sec are as many times too high"
        )
    return None


@table("scalars", needs=("placed",))
def scalars(placed: pa.Table) -> pd.DataFrame:
    """Numbers printed for a step: name, step (null where the line gives none), value, file, line; each (name, step, value) once."""
    rows = frame(placed, ("scalar",), ("name", "step", "value", "file", "line", "start_ns"))
    rows = rows.sort_values(["file", "line"], kind="stable")
    with_step = rows.dropna(subset=["step"]).drop_duplicates(["name", "step", "value"])
    return pd.concat([with_step, rows[rows["step"].isna()]], ignore_index=True)


def series(scalars: pd.DataFrame, name: str) -> pd.DataFrame:
    """One scalar in order of step: step (int64), value, file, line; the last line of a step counts."""
    named = scalars["name"].to_numpy() == name
    if not named.any():
        none = scalars.iloc[:0]
        return none if none["step"].dtype == np.int64 else none.astype({"step": "int64"})
    mine = scalars[named & scalars["step"].notna()].copy()
    mine["step"] = mine["step"].astype("int64")
    return mine.sort_values(["step", "line"], kind="stable").drop_duplicates("step", keep="last").reset_index(drop=True)
