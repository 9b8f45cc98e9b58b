r"""What a parser of log lines is written against: `@records`, `@lines`, `@block`, `Records`, `Block`.

A rank's output mixes formats and glues lines together, so not lines but *marks* open records. A parser names the literal
its record begins with; one scan finds all marks of all parsers; a record runs from its mark to the next mark, `\r` or end of
line. What stands before the mark is its *head* (launcher prefix, logger stamp, `[Rank N]`), parsed once by the engine for rank,
host and time; a parser may ask for fields of its own in the head.

A line that speaks of a failure is told by a literal anywhere in it, and is wanted whole: `@lines` is for those; their marks cut no record.

There is no loop, no `try` and no unit arithmetic in a record parser:

    @records("deepspeed-steps", mark="steps: ", pattern=r"^steps: (?P<step>\d+) loss: (?P<loss>\S+) iter time \(s\): (?P<s>[\d.]+)")
    def steps(found: Records) -> Iterator[Rows]:
        yield found.rows("step", "deepspeed", step=found.int("step"), dur_ns=found.seconds("s"))

What is rare or spans lines (configuration blocks, tables) is a block, where a plain loop is right.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelog.events import EVENTS, WORD, Skipped, constant, nulls
from pipelog.registry import Registry

Rows: TypeAlias = pa.Table
"""Some columns of the event table; the engine adds the others."""

Row: TypeAlias = dict[str, Any]
"""One row of a block: columns of the event table by name."""

_UNITS = {"bytes": 1, "B": 1, "KB": 2**10, "KiB": 2**10, "MB": 2**20, "MiB": 2**20, "GB": 2**30, "GiB": 2**30, "TB": 2**40, "TiB": 2**40}
"""Bytes in a unit. DeepSpeed, Megatron and torch all print binary units, also under the names MB and GB."""


_COLUMNS = frozenset(EVENTS.names)


@dataclass(frozen=True, slots=True)
class RecordParser:
    """A parser of one-line records: see `records`."""

    key: str
    marks: tuple[str, ...]
    pattern: str
    head: str
    torn: str
    shadows: tuple[str, ...]
    parse: Callable[[Records], Iterable[Rows]]


@dataclass(frozen=True, slots=True)
class LineParser:
    """A parser of whole lines: see `lines`."""

    key: str
    marks: tuple[str, ...]
    pattern: str
    once: bool
    parse: Callable[[Records], Iterable[Rows]]


@dataclass(frozen=True, slots=True)
class BlockParser:
    """A parser of records over several lines: see `block`."""

    key: str
    marks: tuple[str, ...]
    head: str
    most: int
    whole: bool
    parse: Callable[[Block], Iterable[Row | Skipped]]


RECORDS: Registry[RecordParser] = Registry()
LINES: Registry[LineParser] = Registry()
BLOCKS: Registry[BlockParser] = Registry()


def _tuple(mark: str | tuple[str, ...]) -> tuple[str, ...]:
    return (mark,) if isinstance(mark, str) else mark


def records(
    key: str, *, mark: str | tuple[str, ...], pattern: str, head: str = "", torn: str = "", shadows: tuple[str, ...] = ()
) -> Callable[[Callable[[Records], Iterable[Rows]]], Callable[[Records], Iterable[Rows]]]:
    """Register a parser of one-line records.

    mark: literal(s) the record begins with. pattern: RE2 expression with named groups, matched from the mark on; what does
    not match is some other text and is left alone, unless *torn* matches it: then it is a broken record and is listed as
    skipped. head: expression searched in what stands before the mark; where given, records without it are left alone.
    shadows: longer literals that contain a mark of another parser and are not its record (`time (ms): ` hides `time (ms)`).
    """

    def add(function: Callable[[Records], Iterable[Rows]]) -> Callable[[Records], Iterable[Rows]]:
        RECORDS.add(key, RecordParser(key, _tuple(mark), pattern, head, torn, shadows, function))
        return function

    return add


def lines(
    key: str, *, mark: str | tuple[str, ...], pattern: str, once: bool = False
) -> Callable[[Callable[[Records], Iterable[Rows]]], Callable[[Records], Iterable[Rows]]]:
    """Register a parser of whole lines.

    mark: literal(s) of which the line holds one, anywhere; long and rare ones, which may be part of a word, cost the scan least.
    pattern: RE2 expression with named groups, searched in the line without launcher prefix and colours; lines without it are
    left alone. The group `line` is that whole line. A line that several parsers claim is given to each of them, also
    where their marks overlap. once: of lines that are equal the first is enough (of each chunk).
    """

    def add(function: Callable[[Records], Iterable[Rows]]) -> Callable[[Records], Iterable[Rows]]:
        LINES.add(key, LineParser(key, _tuple(mark), pattern, once, function))
        return function

    return add


def block(
    key: str, *, mark: str | tuple[str, ...], head: str = "", most: int = 400, whole: bool = False
) -> Callable[[Callable[[Block], Iterable[Row | Skipped]]], Callable[[Block], Iterable[Row | Skipped]]]:
    """Register a parser of records over several lines, at most *most* of them, beginning at *mark*.

    whole: what it reads is its own; its mark on a line that it has read, of the same writer, begins no block of its own.
    """

    def add(function: Callable[[Block], Iterable[Row | Skipped]]) -> Callable[[Block], Iterable[Row | Skipped]]:
        BLOCKS.add(key, BlockParser(key, _tuple(mark), head, most, whole, function))
        return function

    return add


def taken(column: pa.Array, places: pa.Array) -> pa.Array:
    """`column.take(places)`; at no cost where the column holds nothing but nulls, as most do."""
    return nulls(column.type, len(places)) if column.null_count == len(column) else column.take(places)


@dataclass(slots=True)
class Records:
    """The records that one parser found in a block of text, as columns.

    groups: the named groups of pattern and head, as strings ("" where a group took no part). columns: what the engine
    knows of each record: line, rank, host, label, clock, start_ns.
    """

    groups: dict[str, pa.Array]
    columns: dict[str, pa.Array]
    skipped: list[Skipped] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.columns["line"])

    def __getitem__(self, name: str) -> pa.Array:
        """A group as strings, null where it took no part."""
        column = self.groups[name]
        return pc.if_else(pc.equal(column, ""), pa.scalar(None, column.type), column)

    def has(self, name: str) -> pa.Array:
        """Where a group took part, as booleans."""
        return pc.not_equal(self.groups[name], "")

    def int(self, name: str) -> pa.Array:
        """A group as int64."""
        return self._number(name, pa.int64())

    def float(self, name: str) -> pa.Array:
        """A group as float64; nan and inf are values."""
        return self._number(name, pa.float64())

    def seconds(self, name: str) -> pa.Array:
        """A group in seconds, as integer nanoseconds."""
        return self.scaled(name, 1e9)

    def ms(self, name: str) -> pa.Array:
        """A group in milliseconds, as integer nanoseconds."""
        return self.scaled(name, 1e6)

    def bytes(self, name: str, unit: str) -> pa.Array:
        """A group in *unit*, as integer bytes; the unit may also be the name of a group that holds it."""
        if unit not in self.groups:
            return self.scaled(name, _UNITS[unit])
        sizes = pa.array([_UNITS.get(u) for u in self.groups[unit].to_pylist()], pa.float64())
        return _integers(pc.multiply(self.float(name), sizes))

    def scaled(self, name: str, factor: builtins.float) -> pa.Array:
        """A group times *factor*, rounded to int64; null where that is no finite number."""
        return _integers(pc.multiply(self.float(name), builtins.float(factor)))

    def where(self, mask: pa.Array) -> Records:
        """The records where *mask* is true."""
        keep = pc.fill_null(mask, False)
        if pc.all(keep).as_py():
            return Records(dict(self.groups), dict(self.columns), self.skipped)
        some = pa.array(np.flatnonzero(keep.to_numpy(zero_copy_only=False)))
        return Records({k: v.take(some) for k, v in self.groups.items()}, {k: taken(v, some) for k, v in self.columns.items()}, self.skipped)

    def split(self, name: str, separator: str, pattern: str) -> Records:
        """One record per part of a group: *name* cut at *separator*, each part matched with *pattern*.

        Parts that do not match are left out; the other groups and the columns of the record are repeated for each part.
        """
        parts = pc.split_pattern(self.groups[name], separator)
        parent = pc.list_parent_indices(parts)
        found = pc.extract_regex(pc.list_flatten(parts), pattern)
        keep = pc.is_valid(found)
        parent, found = parent.filter(keep), found.filter(keep)
        groups = {k: v.take(parent) for k, v in self.groups.items() if k != name}  # the whole once per part would be n²
        groups |= {found.type.field(i).name: found.field(i) for i in range(found.type.num_fields)}
        return Records(groups, {k: v.take(parent) for k, v in self.columns.items()}, self.skipped)

    def rows(self, kind: str, name: Any, **columns: Any) -> Rows:
        """Rows of *kind*; name and every other column of the event table is one value or an array of them. Raises TypeError for a column it has not."""
        if unknown := columns.keys() - _COLUMNS:
            raise TypeError(f"the event table has no column {', '.join(sorted(unknown))}")
        n = len(self)
        out: dict[str, Any] = dict(self.columns)
        for key, value in {"kind": kind, "name": name, **columns}.items():
            if isinstance(value, str):
                out[key] = constant(value, WORD, n)
            elif not isinstance(value, pa.Array | pa.ChunkedArray):
                out[key] = pa.repeat(pa.scalar(value), n)
            elif key == "rank":  # what the record says of itself, else what its head says
                out[key] = pc.coalesce(pc.cast(value, pa.int32()), self.columns["rank"])
            else:
                out[key] = value
        return pa.table(out)

    def _number(self, name: str, dtype: pa.DataType) -> pa.Array:
        column = self[name]
        try:
            return pc.cast(column, dtype)
        except pa.ArrowInvalid:
            return self._number_by_number(name, column, dtype)

    def _number_by_number(self, name: str, column: pa.Array, dtype: pa.DataType) -> pa.Array:
        """The slow way, taken only where something is no number: that value becomes null and is listed as skipped."""
        convert = int if pa.types.is_integer(dtype) else float
        values: list[Any] = []
        for text, line in zip(column.to_pylist(), self.columns["line"].to_pylist(), strict=True):
            try:
                values.append(None if text is None else pa.scalar(convert(text), dtype).as_py())
            except (ValueError, OverflowError, pa.ArrowInvalid):
                values.append(None)
                self.skipped.append(Skipped(line, f"{name}: {text[:40]!r} is not a number"))
        return pa.array(values, dtype)


def _integers(values: pa.Array) -> pa.Array:
    floats = values.to_numpy(zero_copy_only=False)
    good = np.isfinite(floats) & (np.abs(floats) < 2.0**63)
    return pa.array(np.where(good, np.rint(np.where(good, floats, 0.0)), 0.0).astype(np.int64), mask=~good)


@dataclass(slots=True)
class Block:
    """A record over several lines.

    first: the text from the mark to the end of its line or (unless the parser takes blocks as a whole) to the parser's next mark on it.
    head: what stood before it; before: the same without the launcher's prefix. line: number of that line. rank: the writer's, as far as known.
    """

    first: str
    head: str
    line: int
    _rest: Iterator[tuple[int, str]]
    note: Callable[[int], None] | None = None
    before: str = ""
    rank: int | None = None

    def lines(self) -> Iterator[tuple[int, str]]:
        """(number, text) from the mark on: lines of the same writer, with launcher prefixes and colours removed."""
        yield self.line, self.first
        for number, text in self._rest:
            if self.note is not None:
                self.note(number)
            yield number, text
