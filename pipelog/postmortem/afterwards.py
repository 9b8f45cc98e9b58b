"""What a log says below the end of a run that came to its end."""

from __future__ import annotations

from pipelog._text import around
from pipelog.postmortem.deaths import Death
from pipelog.postmortem.kinds import Strength
from pipelog.tables import table
from pipelog.tables.ending import Ending

_TOLD = ("python-exception", "signal", "exit-code", "child-failed", "shell-signal", "slurm-task")
"""What deserves a line: the failure of another command, the signal of whoever had waited for the end. The first of them that there is is told."""
_MOST_CHARACTERS = 120


@table("afterwards", needs=("ended", "endings"))
def afterwards(ended: Death, endings: list[Ending]) -> str | None:
    """The line of a failure below the end of the training, in words: none of the run's, and not to be met with silence. None where there is none.

    What ranks say of each other while they end (a peer that is gone) is no failure.
    """
    end = endings[ended.attempt]
    if ended.status != "completed" or end.line is None or not len(ended.roles):
        return None
    rows = ended.roles[(ended.roles["file"] == end.file) & (ended.roles["line"] > end.line) & (ended.roles["text"] != "")]
    rows = rows[
        rows["name"].isin(_TOLD)
        & (rows["stream"].fillna("") != "ignored")
        & ((rows["strength"] <= int(Strength.SIGNAL)) | (rows["name"] != "python-exception"))
    ]
    if not len(rows):
        return None
    row = min(rows.to_dict("records"), key=lambda r: (_TOLD.index(r["name"]), r["line"]))
    text = around(row["text"].partition("\n")[0].strip(), "", _MOST_CHARACTERS)
    return f"After the end of the training ({end.file}:{end.line}): “{text}” ({row['file']}:{int(row['line'])})."
