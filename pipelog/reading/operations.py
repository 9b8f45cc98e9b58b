"""Tables of operations: Parquet with one row a forward pass, transfer or collective of a worker, as NDTimeline-like tracers leave them.

    step  stage  dp_rank  optype            start_ts  duration  seq_id  mb_id
      16      0        0  backward-compute  1.053252  0.412402       0      0

Times are seconds; starts count from the beginning of the step, over all workers (the form of ByteDance's StragglerAnalysis).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipelog.events import WORD, Input, Skipped, conform, constant, join
from pipelog.reading.files import Source

_NEEDED = ("step", "stage", "dp_rank", "optype", "start_ts", "duration")
_INTEGERS = {"step": pa.int32(), "stage": pa.int16(), "dp_rank": pa.int32(), "rank": pa.int32(), "mb_id": pa.int32(), "seq_id": pa.int32()}


def is_operations(path: Path) -> bool:
    """Whether a Parquet file has the columns of such a table; False for one that cannot be opened."""
    try:
        return set(_NEEDED) <= set(pq.read_schema(path).names)
    except (pa.ArrowException, OSError, ValueError):
        return False


def read_operations(source: Source) -> tuple[pa.Table, Input]:
    """One row an operation: kind `operation`, its kind as `name`, stage, replica, step, micro_batch (passes only), times, number among its like in `value`.

    The clock is `step`: starts are comparable within one step of one file only. Never raises for what the file holds: a file that
    cannot be decoded and rows without a time are listed as skipped.
    """
    try:
        raw = pq.read_table(source.path, columns=[n for n in (*_NEEDED, "rank", "mb_id", "seq_id") if n in pq.read_schema(source.path).names])
        columns = _columns(raw)
    except (pa.ArrowException, ValueError, TypeError) as error:
        why = f"the table of operations cannot be decoded: {str(error).splitlines()[0][:200]}"
        return conform(pa.table({"line": pa.array([], pa.int64())})), Input(source.shown, "trace", source.bytes, skipped=[Skipped(None, why)])
    good = pc.fill_null(
        pc.and_(pc.is_finite(columns["start"]), pc.and_(pc.is_finite(columns["length"]), pc.greater_equal(columns["length"], 0))), False
    )
    for name in ("step", "stage", "replica", "name"):
        good = pc.and_(good, pc.is_valid(columns[name]))
    columns = {name: pc.filter(column, good) for name, column in columns.items()}
    n = len(columns["step"])
    for name, seconds in (("start_ns", columns.pop("start")), ("dur_ns", columns.pop("length"))):
        columns[name] = pa.array(np.round(seconds.to_numpy(zero_copy_only=False) * 1e9).astype(np.int64))
    words = {"kind": "operation", "clock": "step", "file": source.shown}
    table = conform(pa.table(columns | {name: constant(word, WORD, n) for name, word in words.items()}))
    if n:
        table = join([table, _stages(columns, source.shown)])
    lost = raw.num_rows - n
    skipped = [Skipped(None, f"{lost} rows without a step, a place or a time")] if lost else []
    return table, Input(source.shown, "trace", source.bytes, table.num_rows, skipped, {"trace_events": raw.num_rows})


def _stages(columns: dict[str, pa.Array], file: str) -> pa.Table:
    """A fact: how many stages the rows name, with the first row of the last one. A worker may stand for many ranks, so no more is known."""
    numbers = columns["stage"].to_numpy(zero_copy_only=False)
    most = int(numbers.max())
    line = int(columns["line"][int((numbers == most).argmax())].as_py())
    words = {"kind": "fact", "name": "topology.pp", "value": float(most + 1), "text": str(most + 1)}
    return conform(pa.Table.from_pylist([words | {"file": file, "line": line}]))


def _columns(raw: pa.Table) -> dict[str, pa.Array]:
    """The columns of the event table, times still in seconds. Raises ArrowInvalid where one has no numbers."""

    def integers(name: str) -> pa.Array:
        return raw.column(name).combine_chunks().cast(_INTEGERS[name])

    out = {"line": pa.array(np.arange(raw.num_rows)), "name": raw.column("optype").cast(pa.string()).combine_chunks()}
    out |= {"step": integers("step"), "stage": integers("stage"), "replica": integers("dp_rank")}
    out |= {"start": raw.column("start_ts").combine_chunks().cast(pa.float64()), "length": raw.column("duration").combine_chunks().cast(pa.float64())}
    if "rank" in raw.column_names:
        out["rank"] = integers("rank")
    if "seq_id" in raw.column_names:
        out["value"] = integers("seq_id").cast(pa.float64())
    if "mb_id" in raw.column_names:
        batches = integers("mb_id")
        work = pc.ends_with(out["name"], "-compute")
        out["micro_batch"] = pc.if_else(pc.and_(work, pc.greater_equal(batches, 0)), batches, pa.scalar(None, pa.int32()))
    return out
