"""Derived tables: events → numbers, one table a file, each computed once and shared.

A table is a function of other tables, named once, with its formula in the docstring. `events` (the event table, an
`pyarrow.Table`), `inputs` (what became of each file) and `wanted_attempt` (None: the last that trained) are given.
"""

from __future__ import annotations

import functools
import itertools
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from pipelog.events import Events
from pipelog.registry import Registry

log = logging.getLogger(__name__)


class CannotTell(Exception):
    """The data do not carry an answer; the text says which are missing and what would provide them."""


@dataclass(frozen=True, slots=True)
class TableSpec:
    """A table: its name, what it is computed from, and how."""

    name: str
    needs: tuple[str, ...]
    compute: Callable[..., Any]


TABLES: Registry[TableSpec] = Registry()


def table(name: str, *, needs: tuple[str, ...]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a function as the table *name*; its arguments are the tables it needs, in that order."""

    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        TABLES.add(name, TableSpec(name, needs, function))
        return function

    return add


class Tables:
    """All tables of one set of events, computed when first asked for. A failure is kept too, and raised to all who ask."""

    def __init__(self, events: Events, attempt: int | None = None, shared: dict[str, Any] | None = None, whole: Tables | None = None) -> None:
        known = {"events": events.table, "inputs": events.inputs}
        self._known: dict[str, Any] = {**known, **(shared or {}), "wanted_attempt": attempt, "tables": self}
        self._failed: dict[str, Exception] = {}
        self._whole = whole

    def __getitem__(self, name: str) -> Any:
        if name in self._failed:
            raise self._failed[name]
        if name not in self._known and self._whole is not None and _of_all_attempts(name):
            return self._whole[name]
        if name not in self._known:
            spec = TABLES[name]
            try:
                self._known[name] = spec.compute(*(self[need] for need in spec.needs))
            except Exception as error:
                self._failed[name] = error
                raise
        return self._known[name]

    def get(self, name: str) -> Any:
        """A table, or None where the data do not carry it; one that fails costs its figures, not the report, which names it (`faults`)."""
        try:
            return self[name]
        except CannotTell:
            return None
        except Exception:
            log.debug("table %s failed", name, exc_info=True)
            return None

    def faults(self) -> dict[str, Exception]:
        """Tables in which pipelog itself failed, by name; not those that only need one of them."""
        first: dict[int, tuple[str, Exception]] = {}
        for name, error in self._failed.items():  # a need fails before what needs it
            if not isinstance(error, CannotTell):
                first.setdefault(id(error), (name, error))
        return dict(first.values())

    def of_attempt(self, number: int) -> Tables:
        """The same tables of another attempt; what is the same for all attempts is computed once, here."""
        return Tables(Events(self["events"], self["inputs"]), number, whole=self)

    def computed(self) -> dict[str, Any]:
        """Those computed so far, by name."""
        return dict(self._known)


@functools.cache
def _of_all_attempts(name: str) -> bool:
    """Whether a table is the same whichever attempt is asked for."""
    return name not in ("wanted_attempt", "tables") and all(map(_of_all_attempts, TABLES[name].needs if name in TABLES else ()))


def of_kind(events: pa.Table, *kinds: str) -> pa.Table:
    """The rows of these kinds, as they stand in the table: one parser's after another's."""
    column = events.column("kind").combine_chunks()
    column = column.chunk(0) if isinstance(column, pa.ChunkedArray) else column
    codes = [i for i, word in enumerate(column.dictionary.to_pylist()) if word in kinds]
    return where(events, np.isin(column.indices.to_numpy(zero_copy_only=False), codes))


def where(rows: pa.Table, mask: np.ndarray) -> pa.Table:
    """The rows where *mask* is true; without a copy where that are all."""
    return rows if mask.all() else rows.filter(pa.array(mask))


def coded(column: pa.ChunkedArray) -> pd.Categorical:
    """A column of words as numbers, and the words once: to compare it costs no strings."""
    column = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
    whole = column.unify_dictionaries().combine_chunks()
    whole = whole.chunk(0) if isinstance(whole, pa.ChunkedArray) else whole
    codes = pa.compute.fill_null(whole.indices, -1).to_numpy(zero_copy_only=False)
    return pd.Categorical.from_codes(codes, pd.Index(whole.dictionary.to_pylist(), dtype=object))


def matching(words: pd.Categorical, wanted: Callable[[str], bool]) -> np.ndarray:
    """Where the word is wanted; each different word is asked about once."""
    good = np.array([*(wanted(str(word)) for word in words.categories), False], bool)  # the last for those without a word
    return np.asarray(good[words.codes])


def grouped(codes: np.ndarray, places: np.ndarray, keys: tuple[np.ndarray, ...]) -> list[np.ndarray]:
    """*places* by their code, in one pass however many there are: codes as they first come, within one by *keys*, the last of which counts first."""
    order = places[np.argsort(codes[places], kind="stable")]
    borders = np.flatnonzero(np.concatenate(([True], np.diff(codes[order]) != 0, [True]))) if len(order) else np.zeros(0, np.int64)
    groups = sorted((order[a:b] for a, b in itertools.pairwise(borders.tolist())), key=lambda group: int(group[0]))
    return [group[np.lexsort(tuple(key[group] for key in keys))] if keys else group for group in groups]


def whole_numbers(column: pa.ChunkedArray) -> np.ndarray:
    """A column of integers as int64, -1 where it is null."""
    column = column if column.type == pa.int64() else column.cast(pa.int64())
    return np.asarray((pa.compute.fill_null(column, -1) if column.null_count else column).to_numpy())


def by_ranks(rows: pd.DataFrame, most: int = 1 << 18) -> Iterator[pd.DataFrame]:
    """The rows in pieces, in order of rank: all rows of one rank in one piece, and about *most* in each, since what is done to them takes memory."""
    rank = rows["rank"].to_numpy()
    order = np.argsort(rank, kind="stable")
    borders = np.append(np.flatnonzero(np.concatenate((np.ones(min(1, len(rank)), bool), np.diff(rank[order]) != 0))), len(rank))
    begin = 0
    for end in borders[1:].tolist():
        if end - begin >= most or end == len(rank):
            yield rows.iloc[order[begin:end]]
            begin = end


def counted(*keys: np.ndarray) -> np.ndarray:
    """How many rows with the same keys, whole numbers from 0, stand before each row."""
    key = np.zeros(len(keys[0]), np.int64)
    for part in keys:
        key = key * (int(part.max(initial=0)) + 1) + part
    order = np.argsort(key, kind="stable")
    ordered = key[order]
    first = np.flatnonzero(np.concatenate(([True], np.diff(ordered) != 0))) if len(key) else np.zeros(0, np.int64)
    out = np.empty(len(key), np.int64)
    out[order] = np.arange(len(key)) - np.repeat(first, np.diff(np.append(first, len(key))))
    return out


def narrow(values: np.ndarray) -> np.ndarray:
    """Whole numbers in 32 bits where they fit: half the memory, where there are millions of them."""
    small = not len(values) or (int(values.min()) >= np.iinfo(np.int32).min and int(values.max()) <= np.iinfo(np.int32).max)
    return values.astype(np.int32) if small else values


def frame(events: pa.Table, kinds: tuple[str, ...], columns: tuple[str, ...]) -> pd.DataFrame:
    """Rows of these kinds as pandas, in order of file and line: words as strings, integers exact (Int64 where some are null, else int64)."""
    needed = events.select(list(dict.fromkeys((*columns, "kind", "file", "line"))))  # before rows are copied
    rows = _in_order(of_kind(needed, *kinds)).select(list(columns))
    if not rows.num_rows:  # so it is of most kinds in most jobs
        return _without_rows(rows.schema).copy()
    return pd.DataFrame({name: _values(rows.column(name)) for name in columns})


@functools.cache
def _without_rows(schema: pa.Schema) -> pd.DataFrame:
    return pd.DataFrame({field.name: _values(pa.chunked_array([], field.type)) for field in schema})


def _values(column: pa.ChunkedArray) -> Any:
    """A column as pandas takes it. A word that stands in many rows is one string in all of them."""
    dtype = column.type
    if pa.types.is_dictionary(dtype):
        whole = column.unify_dictionaries().combine_chunks()
        whole = whole.chunk(0) if isinstance(whole, pa.ChunkedArray) else whole
        words = np.array([*whole.dictionary.to_pylist(), None], dtype=object)  # the last for those without one
        return pd.Series(words[pa.compute.fill_null(whole.indices, -1).to_numpy(zero_copy_only=False)], dtype=object)
    if pa.types.is_string(dtype) or pa.types.is_large_string(dtype):
        return pd.Series(column.to_numpy(), dtype=object)
    if pa.types.is_integer(dtype) and column.null_count:
        return pd.arrays.IntegerArray(pa.compute.fill_null(column.cast(pa.int64()), 0).to_numpy().copy(), column.is_null().to_numpy())
    return (column.cast(pa.int64()) if pa.types.is_integer(dtype) else column).to_numpy()


def _in_order(rows: pa.Table) -> pa.Table:
    """Sorted by file, as they were read, and by line; null lines last."""
    if not rows.num_rows:
        return rows
    files = rows.column("file").combine_chunks()
    files = files.chunk(0) if isinstance(files, pa.ChunkedArray) else files
    file = files.indices.to_numpy(zero_copy_only=False)
    line = pa.compute.fill_null(rows.column("line"), np.iinfo(np.int64).max).to_numpy()
    later = (file[1:] > file[:-1]) | ((file[1:] == file[:-1]) & (line[1:] >= line[:-1]))
    return rows if later.all() else rows.take(pa.array(np.lexsort((line, file))))


def union_ns(start: np.ndarray, end: np.ndarray) -> int:
    """Length of the union of intervals, ns. Never a sum of durations: kernels of one device overlap."""
    if not len(start):
        return 0
    order = np.argsort(start, kind="stable")
    start, end = start[order], end[order]
    reach = np.maximum.accumulate(end)
    before = np.concatenate((start[:1], reach[:-1]))
    return int(np.maximum(reach - np.maximum(start, before), 0).sum())


def merged(start: np.ndarray, end: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The union of intervals as intervals that do not touch, in order."""
    if not len(start):
        return start, end
    order = np.argsort(start, kind="stable")
    start, end = start[order], end[order]
    reach = np.maximum.accumulate(end)
    new = np.concatenate(([True], start[1:] > reach[:-1]))
    groups = np.flatnonzero(new)
    return start[groups], reach[np.append(groups[1:], len(start)) - 1]


def overlap_ns(a: tuple[np.ndarray, np.ndarray], b: tuple[np.ndarray, np.ndarray]) -> int:
    """Time that two unions have in common, ns: |A| + |B| - |A u B|."""
    return union_ns(*a) + union_ns(*b) - union_ns(np.concatenate((a[0], b[0])), np.concatenate((a[1], b[1])))
