"""PipeDream's progress lines, each of which says whose stage the process has.

Stage: [0] Epoch: [1][100/10009]	Time: 0.696 (0.684)	Epoch time [hr]: 0.019 (1.902)	Memory: 6.129 (7.204)
"""

from __future__ import annotations

from collections.abc import Iterator

from pipelog.parsers._facts import first_of_each
from pipelog.parsing import Records, Rows, lines


@lines("pipedream-stage", mark="Stage: [", pattern=r"^Stage: \[(?P<stage>\d{1,4})\] Epoch: \[\d{1,9}\]\[\d{1,12}/\d{1,12}\]")
def stage(found: Records) -> Iterator[Rows]:
    """Give the stage of the process that writes the file: one row, and none where processes of several stages write into it."""
    each = first_of_each(found, "stage")
    if len(each) == 1:
        yield each.rows("place", "introduced", stage=each.int("stage"))
