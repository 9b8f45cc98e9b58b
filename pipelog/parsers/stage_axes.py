"""A map from ranks to their places along axes that it names, in a script's own words.

rank -> (tensor, pipeline): 8->(0,2) 9->(1,2) 10->(0,3) 11->(1,3)
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import pyarrow as pa

from pipelog.parsers._stage_ranks import repeated
from pipelog.parsing import Records, Rows, lines


@lines(
    "stage-axes",
    mark=("rank -> (", "rank->("),
    pattern=r"\brank ?-> ?\((?P<axes>\w+(?:, ?\w+)+)\) ?[:=]? ?(?P<places>\d{1,6} ?-> ?\(\d{1,5}(?:, ?\d{1,5})+\)[^a-z]*)$",
    once=True,
)
def stage_axes(found: Records) -> Iterator[Rows]:
    """Give stage, replica and tensor-parallel rank of each rank of a map whose axes are named, where no rank stands in it twice."""
    for at, (axes, places) in enumerate(zip(found["axes"].to_pylist(), found["places"].to_pylist(), strict=True)):
        columns = [_axis(word) for word in re.split(r", ?", axes)]
        each = [(int(rank), [int(n) for n in where.split(",")]) for rank, where in re.findall(r"(\d{1,6}) ?-> ?\(([\d, ]+)\)", places)]
        if "stage" not in columns or len({rank for rank, _ in each}) < len(each) or any(len(where) != len(columns) for _, where in each):
            continue
        told = {
            column: pa.array([where[n] for _, where in each], pa.int32())
            for n, column in enumerate(columns)
            if column is not None and columns.count(column) == 1
        }
        yield repeated(found, [at] * len(each)).rows("place", "rank-line", rank=pa.array([rank for rank, _ in each], pa.int32()), **told)


_WORDS = {"stage": ("pp", "pipe", "stage"), "replica": ("dp", "data", "replica"), "tensor": ("tp", "tensor", "model")}


def _axis(word: str) -> str | None:
    return next((column for column, begins in _WORDS.items() if word.lower().startswith(begins)), None)
