"""The event table with the place of every row in the job: its rank, stage, replica, tensor-parallel rank and host."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from pipelog.events import Input
from pipelog.tables import coded, table
from pipelog.tables.labels import ranks_of_writers
from pipelog.tables.topology import Topology


@table("placed", needs=("here", "topology", "inputs"))
def placed(here: pa.Table, topology: Topology, inputs: list[Input]) -> pa.Table:
    """The rows of the attempt with rank (from the launcher's label or the names of files), stage, replica, tensor and host filled in from the topology."""
    return _placed(here, topology, inputs)


@table("all_placed", needs=("rows", "topology", "inputs"))
def all_placed(rows: pa.Table, topology: Topology, inputs: list[Input]) -> pa.Table:
    """The rows of all attempts, placed alike: what `pipelog events` writes."""
    return _placed(rows, topology, inputs)


def _placed(rows: pa.Table, topology: Topology, inputs: list[Input]) -> pa.Table:
    rank = ranks_of_writers(rows, topology.world_size, inputs)
    out = rows.set_column(rows.schema.get_field_index("rank"), rows.schema.field("rank"), rank)
    if not len(topology.ranks):
        return out
    size = int(topology.ranks["rank"].max()) + 1
    values = pa.compute.fill_null(rank, -1).to_numpy(zero_copy_only=False)
    index = np.where((values >= 0) & (values < size), values, size)  # the last for rows of no rank of the job
    for column in ("stage", "replica", "tensor"):
        known = topology.ranks.dropna(subset=[column])
        of_rank = np.full(size + 1, -1, np.int32)
        of_rank[known["rank"].to_numpy(dtype=np.int64)] = known[column].to_numpy(dtype=np.int64)
        out = _filled(out, column, of_rank, index, [])
    names = topology.ranks.set_index("rank")["host"].reindex(range(size)).to_list()
    hosts = {h: i for i, h in enumerate(dict.fromkeys(h for h in names if isinstance(h, str)))}
    return _filled(out, "host", np.array([*(hosts.get(h, -1) for h in names), -1], np.int32), index, list(hosts))


def _filled(rows: pa.Table, name: str, of_rank: np.ndarray, index: np.ndarray, words: list[str]) -> pa.Table:
    """The rows with a column filled where it is null: with of_rank[index], of a column of words their number; -1 is not known.

    Where nothing is to be filled, as in events that were placed before, nothing is copied.
    """
    column, dtype = rows.column(name), rows.schema.field(name).type
    void = column.is_null().to_numpy()
    if not column.null_count or not (void & (of_rank >= 0)[index]).any():
        return rows
    found = of_rank[index]
    if pa.types.is_dictionary(dtype):
        have = coded(column)
        all_words = list(dict.fromkeys([*have.categories, *words]))
        numbers = np.array([*(all_words.index(w) for w in words), -1], np.int32)
        codes = np.where(void, numbers[found], have.codes)
        filled = pa.DictionaryArray.from_arrays(pa.array(codes, pa.int32(), mask=codes < 0), pa.array(all_words, pa.string()))
    elif column.null_count == len(column):
        filled = pa.array(found, mask=found < 0).cast(dtype)
    else:
        filled = pa.compute.coalesce(column, pa.array(found, mask=found < 0).cast(dtype))
    return rows.set_column(rows.schema.get_field_index(name), rows.schema.field(name), filled)
