"""CSV files of DeepSpeed's monitor (v0.6.6 on): one series a file, the x axis counts consumed samples.

    step,train_loss
    16,6.390515327453613

The column is called `step`, but counts samples. The file is opened for append: after a restart the header stands in the middle again.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from pipelog.events import WORD, Input, Skipped, conform, constant
from pipelog.reading.files import Source
from pipelog.reading.streams import Stream

_NUMBER = r"-?(?:\d+\.?\d*(?:[eE][-+]?\d+)?|nan|inf)"
_HEAD = re.compile(rf"step,[A-Za-z_][\w./ -]{{0,80}}\r?\n(?:\d{{1,18}},(?:{_NUMBER}\r?\n|[^\n]*\Z)|\d*\Z)".encode(), re.ASCII)
_MOST_SKIPPED = 200


def is_monitor(head: bytes) -> bool:
    """Whether a file that begins with *head* is such a file: the header, and then a row of two numbers, if anything."""
    return _HEAD.match(head) is not None


def read_monitor(source: Source) -> tuple[pa.Table, Input]:
    """One row a value: kind `monitor`, name of the series, `value`, and the consumed samples in `start_ns` on the clock `samples`.

    Never raises for what the file holds: rows that are no two numbers, and a last one without its end, are listed as skipped.
    """
    stream = Stream(source.path)
    data = b"".join(stream.text()).decode("utf-8", "replace").encode()
    whole = data[: data.rfind(b"\n") + 1]
    columns, skipped = _rows(whole)
    if len(whole) < len(data):
        torn = data[len(whole) :][:40].decode("utf-8", "replace")
        skipped.append(Skipped(whole.count(b"\n") + 1, f"the last line has no end: {torn!r}"))
    series = data.partition(b"\n")[0].partition(b",")[2].strip().decode("utf-8", "replace")
    n = len(columns["line"])
    words = {"kind": "monitor", "name": series, "clock": "samples", "file": source.shown}
    table = conform(pa.table(columns | {name: constant(word, WORD, n) for name, word in words.items()}))
    listed = [*stream.trouble, *skipped[:_MOST_SKIPPED]]
    if len(skipped) > _MOST_SKIPPED:
        listed.append(Skipped(None, f"{len(skipped) - _MOST_SKIPPED} more places like these"))
    return table, Input(source.shown, "monitor", source.bytes, n, listed)


def _rows(whole: bytes) -> tuple[dict[str, pa.Array], list[Skipped]]:
    """The columns line, start_ns (samples) and value of whole lines, and the rows that are no two numbers; headers and empty lines are passed over."""
    wrong: list[tuple[int, str]] = []

    def refuse(row: Any) -> str:
        wrong.append((row.number, row.text))
        return "skip"

    if not whole:
        return {"line": pa.array([], pa.int64())}, []
    table = csv.read_csv(
        pa.BufferReader(whole),
        csv.ReadOptions(use_threads=False, block_size=len(whole) + 1, column_names=["samples", "value"]),  # rows are numbered only so
        csv.ParseOptions(quote_char=False, ignore_empty_lines=False, invalid_row_handler=refuse),
        csv.ConvertOptions(column_types={"samples": pa.string(), "value": pa.string()}),
    ).combine_chunks()
    samples, values = (pc.ascii_trim_whitespace(table[name]).combine_chunks() for name in ("samples", "value"))
    numbers = np.setdiff1d(np.arange(1, len(samples) + len(wrong) + 1), [number for number, _ in wrong])
    good = pc.and_(pc.match_substring_regex(samples, r"^\d{1,18}$"), pc.match_substring_regex(values, rf"^{_NUMBER}$"))
    bad = pc.and_not(pc.invert(good), pc.or_(pc.equal(samples, "step"), pc.equal(samples, "")))
    texts = pc.binary_join_element_wise(samples, values, ",").filter(bad).to_pylist()
    wrong += zip(numbers[bad.to_numpy(zero_copy_only=False)].tolist(), texts, strict=True)
    columns = {"line": pa.array(numbers).filter(good), "start_ns": samples.filter(good).cast(pa.int64())}
    columns["value"] = values.filter(good).cast(pa.float64())
    return columns, [Skipped(number, f"no two numbers: {text[:40]!r}") for number, text in sorted(wrong)]
