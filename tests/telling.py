"""What tests of the post-mortem write: lines of logs as a job leaves them, and how they are read."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import pipelog
import pipelog.postmortem
from pipelog.registry import load
from pipelog.tables import Tables

load(pipelog.postmortem)


def read(files: Mapping[str, Sequence[str]], attempt: int | None = None) -> Tables:
    """The derived tables over logs with these lines."""
    with tempfile.TemporaryDirectory() as folder:
        for name, lines in files.items():
            path = Path(folder) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("".join(f"{line}\n" for line in lines))
        return Tables(pipelog.read(folder, jobs=1), attempt)


def traceback(raises: str, *frames: str, rank: int | None = None) -> list[str]:
    """The traceback of an exception as torch prints it for a rank; frames as `path:line function`, outermost first."""
    lines = ["Traceback (most recent call last):"]
    for frame in frames or ("/job/train.py:40 main",):
        place, _, function = frame.partition(" ")
        path, _, line = place.rpartition(":")
        lines += [f'  File "{path}", line {line}, in {function}', "    ..."]
    lines += raises.split("\n")
    return lines if rank is None else [f"[rank{rank}]: {line}" for line in lines]
