"""What a parser of torch profiler events is written against: `@trace_events`, `Slice`.

A trace is read in slices of about 2 MB, decoded into typed structs that name only the fields kept here: the rest is never
stored (traces can carry whole environments with secrets). A family of events is one small function: slice → columns. Rows are
thrown away while parsing; what needs the whole file (launches, names of collectives) is done by the reader at the end.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Union

import msgspec
import numpy as np
import pyarrow as pa

from pipelog.registry import Registry

_NOTHING = msgspec.Raw(b"")


class TraceArgs(msgspec.Struct, gc=False):
    """The arguments of a complete event that are kept; names as Kineto writes them. Every field costs time on every event."""

    correlation: Any = None
    external: Any = msgspec.field(name="External id", default=None)
    external_old: Any = msgspec.field(name="external id", default=None)
    sequence: Any = msgspec.field(name="Sequence number", default=None)
    forward_thread: Any = msgspec.field(name="Fwd thread id", default=None)
    stream: Any = None
    device: Any = None
    bytes: Any = None
    collective: Any = msgspec.field(name="Collective name", default=None)
    elements: Any = msgspec.field(name="In msg nelems", default=None)
    dtype: Any = None
    group: Any = msgspec.field(name="Process Group Name", default=None)
    rank: Any = msgspec.field(name="Rank", default=None)
    source: Any = msgspec.field(name="Src Rank", default=None)
    target: Any = msgspec.field(name="Dst Rank", default=None)
    inputs: msgspec.Raw = msgspec.field(name="Concrete Inputs", default=_NOTHING)
    dims: msgspec.Raw = msgspec.field(name="Input Dims", default=_NOTHING)
    types: msgspec.Raw = msgspec.field(name="Input type", default=_NOTHING)


class InstantArgs(msgspec.Struct, gc=False):
    """The arguments of an instant event that are kept: those of `[memory]`."""

    total_allocated: Any = msgspec.field(name="Total Allocated", default=None)
    total_reserved: Any = msgspec.field(name="Total Reserved", default=None)
    device_type: Any = msgspec.field(name="Device Type", default=None)
    device_id: Any = msgspec.field(name="Device Id", default=None)


class TraceEvent(msgspec.Struct, gc=False, tag_field="ph", tag="X"):
    """A complete event of traceEvents. Times in microseconds as written; types are loose, since writers differ."""

    cat: Any = ""
    name: str | int | float | None = ""
    ts: Any = None
    dur: Any = None
    pid: Any = None
    tid: Any = None
    args: TraceArgs | None = None


class InstantEvent(msgspec.Struct, gc=False, tag_field="ph", tag="i"):
    """An instant event of traceEvents."""

    cat: Any = ""
    name: str | int | float | None = ""
    ts: Any = None
    dur: Any = None
    pid: Any = None
    tid: Any = None
    args: InstantArgs | None = None


_OTHERS = tuple(msgspec.defstruct(f"Phase_{phase}", [], gc=False, tag_field="ph", tag=phase) for phase in "MsftCBEbenPNODSTpFRcvVaI")
"""Phases of the Trace Event format that hold nothing kept here: flows, metadata, counters, begin and end."""

AnyEvent = Union[(TraceEvent, InstantEvent, *_OTHERS)]  # type: ignore[valid-type]

NO_ARGS = TraceArgs()


@dataclass(frozen=True, slots=True)
class Slice:
    """Events of the categories of one family, in the order of the file. index: their places in traceEvents."""

    events: list[TraceEvent]
    index: np.ndarray

    def ts_ns(self) -> np.ndarray:
        """Start in ns, relative to the base of the file."""
        return nanoseconds([e.ts for e in self.events])

    def dur_ns(self) -> np.ndarray:
        """Duration in ns; absent and negative ones (unfinished events) count as 0."""
        return np.asarray(np.maximum(nanoseconds([e.dur for e in self.events]), 0))

    def args(self) -> list[TraceArgs]:
        """The arguments of each event."""
        return [e.args or NO_ARGS for e in self.events]

    def where(self, keep: list[int]) -> Slice:
        """The events at these places of the slice."""
        return Slice([self.events[i] for i in keep], self.index[keep])

    def names(self) -> pa.Array:
        """The names, as a dictionary."""
        return words([e.name for e in self.events])

    def threads(self) -> pa.Array:
        """The host threads."""
        return words([f"thread {e.tid}" for e in self.events])


@dataclass(frozen=True, slots=True)
class TraceParser:
    """A family of trace events: see `trace_events`."""

    key: str
    categories: tuple[str, ...]
    phase: str
    reduce: Callable[[Slice], pa.Table | None]


TRACE: Registry[TraceParser] = Registry()


def trace_events(
    key: str, *, categories: tuple[str, ...], phase: str = "X"
) -> Callable[[Callable[[Slice], pa.Table | None]], Callable[[Slice], pa.Table | None]]:
    """Register a family of events: its categories (today's names, lower case) and phase ("X" complete, "i" instant).

    The function turns a slice into rows: columns of the event table, `line` being the event's place, and the reader's own
    `correlation` and `external`, which link host and device and are dropped at the end.
    """

    def add(function: Callable[[Slice], pa.Table | None]) -> Callable[[Slice], pa.Table | None]:
        TRACE.add(key, TraceParser(key, categories, phase, function))
        return function

    return add


_MOST_US = (2**63 - 1) // 1000


def nanoseconds(values: list[Any]) -> np.ndarray:
    """Microseconds as the file has them → integer ns. Exact below 2**43 us, where a double still tells single ns; what is no time is 0."""
    try:
        array = np.array(values)
    except ValueError:  # a list among them
        array = np.array(None)
    if array.dtype.kind == "i" and (not len(array) or np.abs(array).max() <= _MOST_US):
        return np.asarray(array * 1000)
    if array.dtype.kind == "f":
        finite = np.nan_to_num(array, posinf=0.0, neginf=0.0)
        return np.asarray(np.rint(np.where(np.abs(finite) <= _MOST_US, finite, 0.0) * 1000), np.int64)
    return np.fromiter((_one_nanosecond(v) for v in values), np.int64, len(values))


def _one_nanosecond(value: Any) -> int:
    try:
        number = value if isinstance(value, Decimal) else Decimal(str(value))
        return int(number * 1000) if abs(number) <= _MOST_US else 0
    except (ArithmeticError, ValueError):  # absent, or no number
        return 0


def integers(values: list[Any]) -> pa.Array:
    """int64, null where the value is no integer or does not fit."""
    try:
        return pa.array(values, pa.int64())
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
        return pa.array([_integer(v) for v in values], pa.int64())


def _integer(value: Any) -> int | None:
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if abs(number) < 2**63 else None


def words(values: list[Any]) -> pa.Array:
    """A dictionary of strings; what is no string is spelt as one."""
    try:
        array = pa.array(values, pa.string())
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        array = pa.array([None if v is None else str(v) for v in values], pa.string())
    return array.dictionary_encode()


_DTYPE_BYTES = {
    **dict.fromkeys(("byte", "char", "bool", "uint8", "int8", "float8_e4m3fn", "float8_e5m2", "unsigned char", "signed char"), 1),
    **dict.fromkeys(("half", "bfloat16", "short", "float16", "int16", "c10::half", "c10::bfloat16"), 2),
    **dict.fromkeys(("float", "int", "float32", "int32"), 4),
    **dict.fromkeys(("double", "long", "float64", "int64", "long int", "complexfloat"), 8),
}


def message_bytes(elements: Any, dtype: Any) -> int | None:
    """Bytes of a message of so many elements; null where the type is not known."""
    size = _DTYPE_BYTES.get(str(dtype).lower())
    count = _integer(elements)
    return None if size is None or count is None else count * size
