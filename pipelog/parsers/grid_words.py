"""The sizes of the grid in a script's own words: all of its axes in one row.

    parallel_state.py: tensor 2 pipeline 2 data 4
    mesh: pp=4, dp=2, tp=1
    PP=4 DP=8 TP=2 CP=1
    pipeline_parallel_size: 4, data_parallel_size: 2, tensor_parallel_size: 2

A rank may as well print its place so. Whether it is one or the other, tables/topology.py finds out: the product of the sizes is the number of ranks,
that of a place's numbers, which count from 0, is always less.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from pipelog.parsers._facts import first_of_each, joined
from pipelog.parsing import Records, Rows, lines

_PAIR = r"(?:tensor|pipeline|data|context|tp|pp|dp|cp|TP|PP|DP|CP)(?:_parallel)?(?:_(?:size|degree))?(?:[=:] ?| )\d{1,5}"
_AXES = {"pp": "(?:pipeline|pp)", "dp": "(?:data|dp)", "tp": "(?:tensor|tp)", "cp": "(?:context|cp)"}


@lines(
    "grid-words",
    mark=("pp=", "PP=", "pp: ", " pipeline ", "pipeline_parallel"),
    pattern=rf"(?:^|[\s(\[{{|])(?P<words>{_PAIR}(?:(?:[,;]? | ?[/x×|] ?){_PAIR}){{2,3}})(?:[\s,;)\]}}|.]|$)",
    once=True,
)
def grid(found: Records) -> Iterator[Rows]:
    """Give the numbers of all axes, as text: stages, replicas, tensor-parallel ranks and ranks that share a sequence (1 where they are not said)."""
    each = first_of_each(found, "words")
    sizes = {axis: _size(each.groups["words"], word) for axis, word in _AXES.items()}
    sizes["cp"] = pc.fill_null(sizes["cp"], "1")
    text = joined(sizes["pp"], " ", sizes["dp"], " ", sizes["tp"], " ", sizes["cp"])
    whole = pc.is_valid(text)
    yield each.where(whole).rows("fact", "grid.words", text=text.filter(whole))


def _size(words: pa.Array, axis: str) -> pa.Array:
    return pc.struct_field(pc.extract_regex(words, rf"(?i)\b{axis}(?:_[a-z_]+)?(?:[=:] ?| )(?P<n>\d+)"), "n")
