"""Whose a traceback is that a logger printed under a record of its own: the record has the rank in front, the lines of the traceback have nothing."""

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
