"""Rows of what an accounting, a controller or a service says of a job that is over: beside the job's own lines, and perhaps of other jobs."""

from __future__ import annotations

from typing import Any

from pipelog.events import ACCOUNTING
from pipelog.parsing import Row


def listed(job: str, line: int) -> Row:
    """The fact that a job is told of, whatever became of it."""
    return {"kind": "fact", "name": "job.listed", "line": line, "text": job}


def ended(name: str, job: str, line: int, text: str, **more: Any) -> Row:
    """How a job ended."""
    return {"kind": "end", "name": name, "group": job, "stream": ACCOUNTING, "line": line, "text": text} | more
