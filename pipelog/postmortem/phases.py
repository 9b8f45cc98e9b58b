"""What the job was at when it ended: start-up, training, a checkpoint, an evaluation; its last step."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd
import pyarrow as pa

from pipelog.tables import frame

_EVALUATED = frozenset({"eval_loss", "validation_loss", "test_loss"})
"""Scalars that end an evaluation."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """An evaluation that began after the last step line: the step that its line names, and where that stands."""

    step: int | None
    file: str
    line: int

    @property
    def said(self) -> str:
        """`evaluation had begun at step 500 (train.log:223)`"""
        return f"evaluation had begun{'' if self.step is None else f' at step {self.step}'} ({self.file}:{self.line})"


def evaluation(placed: pa.Table, work: pd.DataFrame, first: pd.Series | None) -> Evaluation | None:
    """The evaluation that no step and no loss of it followed, above the line that began the end where both stand in one file.

    Steps that are printed seldom may have been made after it: what is told is that it began, not that it lasted.
    """
    rows = frame(placed, ("evaluation", "scalar"), ("kind", "name", "step", "file", "line"))
    rows = rows[(rows["kind"] == "evaluation") | rows["name"].isin(_EVALUATED)].sort_values(["file", "line"])
    rows = rows.drop_duplicates("file", keep="last")
    began = rows[(rows["kind"] == "evaluation") & rows["file"].isin(work["file"])]
    last = work.groupby("file")["line"].max()
    began = began[began["line"] > began["file"].map(last)]
    if first is not None:
        began = began[(began["file"] != first["file"]) | (began["line"] < first["line"])]
    if not len(began):
        return None
    row = began.iloc[0]
    return Evaluation(None if pd.isna(row["step"]) else int(row["step"]), str(row["file"]), int(row["line"]))


def phase_of(placed: pa.Table, work: pd.DataFrame, first: pd.Series | None) -> str | None:
    """Start-up, training, evaluation or checkpoint: what was last begun before the line; null where neither a start nor a step is among the files."""
    if not len(work):
        return "start-up" if len(frame(placed, ("start",), ("line",))) else None
    if first is not None:
        saved = frame(placed, ("checkpoint",), ("name", "file", "line"))
        same = saved[(saved["file"] == first["file"]) & (saved["line"] < first["line"])]
        last = work.loc[(work["file"] == first["file"]) & (work["line"] < first["line"]), "line"].max()
        if len(same) and same["name"].iloc[-1] in ("begin", "saving") and (pd.isna(last) or same["line"].iloc[-1] > last):
            return "checkpoint"
    return "evaluation" if evaluation(placed, work, first) is not None else "training"


def last_step(work: pd.DataFrame) -> int | None:
    """The highest step that a line names."""
    steps = work["step"].dropna()
    return int(steps.max()) if len(steps) else None
