"""A log of JSON lines: its text is read as any other log's; the numbers of its lines are those of the file."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelog.events import Input, Skipped
from pipelog.reading.files import Source
from pipelog.reading.logs import read_log

_MOST_LISTED = 50


def read_json_log(source: Source) -> tuple[pa.Table, Input]:
    """All rows of such a log, and what was skipped. Never raises for what the file holds.

    A record with a traceback gives several lines of text; all of them are cited as the one line of the file on which the record stands.
    """
    counts: list[int] = []
    odd: list[int] = []

    def note(lines: int, what: str) -> None:
        if what == "more":
            counts[-1] += lines
            return
        counts.append(lines)
        if what == "other":
            odd.append(len(counts))

    table, given = read_log(source, note)
    stands = np.repeat(np.arange(1, len(counts) + 1), counts)
    if len(stands) != len(counts) and len(stands):

        def number(line: int | None) -> int | None:
            return None if line is None else int(stands[min(max(line, 1), len(stands)) - 1])

        place = table.schema.get_field_index("line")
        virtual = pc.min_element_wise(pc.max_element_wise(table.column("line"), 1), len(stands))
        lines = pa.chunked_array(
            [pa.array(stands[chunk.to_numpy(zero_copy_only=False).astype(np.int64) - 1]) for chunk in virtual.chunks], pa.int64()
        )
        table = table.set_column(place, table.schema.field("line"), lines)
        given.skipped[:] = [replace(s, line=number(s.line)) for s in given.skipped]
    given.notes["lines"] = len(counts)
    given.skipped += [Skipped(line, "no record: read as plain text") for line in odd[:_MOST_LISTED]]
    if len(odd) > _MOST_LISTED:
        given.skipped.append(Skipped(None, f"{len(odd) - _MOST_LISTED} more lines that are no records"))
    return table, given
