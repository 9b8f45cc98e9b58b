"""The job of the files and other jobs: tables of an accounting tell of all that somebody asked for."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import PurePath
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from pipelog.events import ACCOUNTING

_STEP = re.compile(r"\*{3} (?:STEP|JOB) (?P<id>\d{1,12})\b|StepId=(?P<step>\d{1,12})\b")
_SLURM_FILE = re.compile(r"slurm-(?P<id>\d{1,12}(?:_\d{1,7})?)(?:\.\w+)*$")
_NUMBER = re.compile(r"(?<!\d)\d{3,12}(?:_\d{1,7})?(?!\d)")


def of_other_jobs(rows: pd.DataFrame, files: Iterable[str], facts: pd.DataFrame) -> NDArray[Any]:
    """Whether a row is an accounting's word on a job that is not that of the files.

    rows: group, name, stream, text. files: those of the attempt, of which each may be a job of its own. facts: name, text (`job.id`: ids that the job's own lines state; `job.listed`: those that accountings tell of). Whose id it is tell, first that there is: what the job says itself and
    the name of Slurm's output (`slurm-812345.out`); a number in the name of a file or folder that is the id of a job of the table; that the table has only
    one job. Else none is taken for the job.
    """
    noted = (rows["stream"] == ACCOUNTING) & rows["group"].notna()
    if not noted.any():
        return np.zeros(len(rows), bool)
    listed = set(rows.loc[noted, "group"]) | set(facts.loc[facts["name"] == "job.listed", "text"].dropna())
    paths = [PurePath(file) for file in files]
    own = set(facts.loc[facts["name"] == "job.id", "text"].dropna()) | {match["id"] for path in paths if (match := _SLURM_FILE.match(path.name))}
    said = rows.loc[~noted & rows["name"].fillna("").str.startswith("slurm-"), "text"].fillna("").str.extract(_STEP.pattern)
    own |= set(said["id"].dropna()) | set(said["step"].dropna())
    named = listed & {number for path in paths for part in path.parts for number in _NUMBER.findall(part)}
    ours = _same(listed, own) if own else named or (listed if len(listed) == 1 else set())
    return np.asarray(noted & ~rows["group"].isin(ours), bool)


def _same(listed: set[str], own: set[str]) -> set[str]:
    """Ids of the table that are ours: a job array's task is `812345_7`, and its own lines may state either number."""
    exact = listed & own
    return exact or {job for job in listed if re.split(r"[_+\[]", job)[0] in own}
