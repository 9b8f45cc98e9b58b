"""Lines that go on from a record above them, which alone has rank and time in front: a logger's traceback, and what torch repeats below `Last error:`."""

from __future__ import annotations

import re

import pandas as pd

_TELLS_OF_ONE = re.compile(
    r"(?i)(?:exception|traceback|caught|unhandled|fail|crash|died|dying|abort|giving up|exiting|fatal|error(?![^\w\s]*\s*[|\]:]))|^\W*$"
)
"""Words of a record that a traceback belongs to; a level is none: `An error has been caught in function 'run'`, `step failed`."""
_LEVEL = re.compile(r"^.*?\b(?:ERROR|CRITICAL|FATAL|error|critical)\b")


def continue_records(rows: pd.DataFrame) -> None:
    """Fill in rank and host of errors that stand right below a logger's record that has them and speaks of an exception, and of those right below these.

    A logger writes record and traceback in one piece. What another process writes begins with a record of its own, or has a prefix.
    """
    named = rows[(rows["name"] == "level") & rows["rank"].notna()]
    if not len(named):
        return
    whose: dict[tuple[str, int], tuple[int, object]] = {}
    for file, line, rank, host, text in zip(named["file"], named["line"], named["rank"], named["host"], named["text"], strict=True):
        if _TELLS_OF_ONE.search(_LEVEL.sub("", text)):
            whose[file, int(line)] = int(rank), host
    bare = rows["rank"].isna() & rows["label"].isna() & rows["name"].ne("level") & rows["file"].isin({file for file, _ in whose})
    for place in rows[bare].sort_values(["file", "line"]).index:
        row = rows.loc[place]
        begun = str(row["chain"]).rstrip("'")
        first = int(begun) if row["name"] == "python-exception" and begun.isdecimal() else int(row["line"])
        if (found := whose.get((row["file"], first - 1))) is None:
            continue
        rows.loc[place, "rank"] = found[0]
        if not isinstance(row["host"], str):
            rows.loc[place, "host"] = found[1]
        whose[row["file"], int(row["line"])] = found


_RECORDS = ("nccl-abort", "nccl-watchdog", "nccl-heartbeat", "torch-log", "cpp-terminate")
_BELOW = 6
"""Lines of torch's message of an NCCL error: what failed, what that means, `Last error:`, and the last warning."""


def last_errors(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows; NCCL's last warning has rank and time of the only record of torch's log right above it, and is left out where it is in the text of an exception."""
    mine = rows[rows["name"] == "nccl-last-error"]
    if not len(mine):
        return rows
    whole = rows[rows["name"].isin(["python-exception", "cpp-terminate"])]
    above = rows[rows["name"].isin(_RECORDS)]
    said: list[int] = []
    for place, file, line, text in zip(mine.index, mine["file"], mine["line"], mine["text"], strict=True):
        inside = whole[(whole["file"] == file) & (whole["line"] < line) & (whole["line"] >= line - 2 * _BELOW)]
        if inside["text"].str.contains(text, regex=False).any():
            said.append(place)
            continue
        near = above[(above["file"] == file) & (above["line"] < line) & (above["line"] >= line - _BELOW)].dropna(subset=["rank"])
        if pd.isna(rows.at[place, "rank"]) and len(set(near["rank"])) == 1:
            for column in ("rank", "host", "at_ns", "since_ns", "until_ns"):
                rows.loc[place, column] = near[column].iloc[-1]
    return rows.drop(index=said)
