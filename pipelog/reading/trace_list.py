"""The list of events of a trace: bytes → slices cut at event borders → typed structs.

A damaged event costs itself, a cut file its last event; both are listed with their byte offset.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import msgspec

from pipelog.events import Skipped
from pipelog.tracing import AnyEvent, TraceEvent

_SLICE = 2 << 20
_LONGEST_EVENT = 64 << 20
_EVENTS_KEY = re.compile(rb'"traceEvents"\s*:\s*\[')
_BARE = re.compile(rb"\s*\[")
_FIRST_KEY = re.compile(rb'\{\s*"[^"\\]{1,40}"\s*:')
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|[{}\[\]]', re.DOTALL)
_CLOSED = re.compile(rb'\}\s*,?\s*\](?=\s*(?:,\s*"|\}|$))')
"""The end of the list: after its last event, before another key of the header or the end of the file."""
_DOUBLE_EXACT_US = 2.0**43
"""Below, a double holds microseconds exactly to the nanosecond (its spacing is 2**-10 us or less)."""
_MOST_SKIPPED = 100


@dataclass(slots=True)
class EventList:
    """The events of one file, and what is learned on the way.

    head, tail: what stands before and after the list. skipped: places that could not be read, `lost` how many more. truncated: the
    list is not closed. exact: timestamps need more digits than a double has.
    """

    skipped: list[Skipped] = field(default_factory=list)
    lost: Counter[str] = field(default_factory=Counter)
    exact: bool = False
    truncated: bool = False
    head: bytes = b""
    tail: bytes = b""

    def read(self, pieces: Iterator[bytes]) -> Iterator[list[Any]]:
        """The events, slice by slice."""
        for offset, body, last in _slices(pieces, self):
            yield _decoded(body, offset, self, last=last)

    def skip(self, offset: int | None, why: str) -> None:
        """Note a place that could not be read."""
        if len(self.skipped) < _MOST_SKIPPED:
            self.skipped.append(Skipped(offset, why))
        else:
            self.lost[why] += 1


def _slices(pieces: Iterator[bytes], state: EventList) -> Iterator[tuple[int, bytearray, bool]]:
    """(byte offset, `[` and whole events, nothing comes after) of the list of events.

    All but the last slice are JSON lists; the last one holds what the file has after its last border. One copy of each byte: at
    hundreds of MB/s every further one shows.
    """
    rest, offset, sign = b"", 0, b""
    begun = False
    for piece in pieces:
        if not begun:
            rest += piece
            match = _BARE.match(rest) if rest.lstrip()[:1] == b"[" else _EVENTS_KEY.search(rest)
            if match is None:
                continue
            state.head = rest[: match.start()] if rest.lstrip()[:1] == b"{" else b""
            rest, offset, begun, piece = rest[match.end() :], match.end(), True, b""  # noqa: PLW2901
        if len(rest) + len(piece) < _SLICE:
            rest += piece
            continue
        data = bytearray(b"[")
        data += rest
        data += piece
        if not sign:
            first = _FIRST_KEY.search(data)
            sign = first.group(0) if first else b"{"
        border = data.rfind(sign)
        end = data.rfind(b"}", 0, max(border, 0)) + 1
        if not end:
            rest += piece
            if len(rest) > _LONGEST_EVENT:
                state.skip(offset, f"an event, or what follows the events, of more than {_LONGEST_EVENT >> 20} MB")
                state.truncated = True
                return
            continue
        rest = bytes(data[border:])
        size = border - 1
        del data[end:]
        data += b"]"
        yield offset, data, False
        offset += size
    if begun:
        yield offset, bytearray(b"[") + rest, True
    else:
        state.skip(None, "no list of events")
        state.truncated = True


def _decoder(*, exact: bool) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(list[AnyEvent], float_hook=Decimal) if exact else msgspec.json.Decoder(list[AnyEvent])


_FAST, _EXACT = _decoder(exact=False), _decoder(exact=True)


def _decoded(body: bytearray, offset: int, state: EventList, *, last: bool) -> list[Any]:
    """The events of one slice."""
    decoder = _EXACT if state.exact else _FAST
    try:
        events = decoder.decode(body) if not last else _last(body, decoder, state)
    except (msgspec.MsgspecError, ValueError):  # ValueError: UnicodeDecodeError
        events = _one_by_one(bytes(body[1:] if last else body[1:-1]), offset, decoder, state, last=last)
    if not state.exact and any(isinstance(e, TraceEvent) and type(e.ts) is float and e.ts >= _DOUBLE_EXACT_US for e in events[:200]):
        state.exact = True  # since the epoch and with a fraction: 19 digits, more than a double holds
        return _decoded(body, offset, state, last=last)
    return events


def _last(body: bytearray, decoder: msgspec.json.Decoder[Any], state: EventList) -> list[TraceEvent]:
    """The slice that ends the list: what follows the `]` after its last event is the rest of the header."""
    first = _FIRST_KEY.search(body)
    if first is None or body[1:].lstrip().startswith(b"]"):  # an empty list
        end = body.find(b"]")
        if end < 0:
            raise ValueError("no event")
        state.tail = bytes(body[end + 1 :])
        return []
    begin = body.rfind(first.group(0))  # the last events may begin with another key: look on from here
    end = _closing(body, begin)
    if end < 0:
        raise ValueError("the list is not closed")
    events = decoder.decode(body[:end].rstrip(b", \r\n\t") + b"]")
    state.tail = bytes(body[end + 1 :])
    return events  # type: ignore[no-any-return]


def _closing(body: bytearray, begin: int) -> int:
    """Where the list of events is closed after *begin*, -1 where it is not."""
    depth = 0
    for token in _TOKEN.finditer(body, begin):
        c = token.group(0)
        depth += (c in (b"{", b"[")) - (c in (b"}", b"]"))
        if depth < 0:
            return token.start() if c == b"]" else -1
    return -1


def _one_by_one(body: bytes, offset: int, decoder: msgspec.json.Decoder[Any], state: EventList, *, last: bool) -> list[TraceEvent]:
    """The slow way, for a slice that is damaged: each event by itself, mended where it can be, else skipped with its place."""
    end = _list_end(body, offset, state) if last else len(body)
    first = _FIRST_KEY.search(body, 0, end)
    if first is None:
        if body[:end].strip(b" \r\n\t]},"):
            state.skip(offset, "no event")
        return []
    borders = [m.start() for m in re.finditer(re.escape(first.group(0)), body[:end])] + [end]
    events: list[TraceEvent] = []
    for begin, stop in itertools.pairwise(borders):
        got = _mend(body[begin:stop].rstrip(b", \r\n\t"), decoder)
        if got is not None:
            events += got
            continue
        for start, size in _objects(body[begin:stop]):  # events that begin with another key stand in the same piece
            piece = body[begin + start : begin + start + size]
            got = _mend(piece.rstrip(b", \r\n\t"), decoder)
            if got is None:
                state.skip(offset + begin + start, f"an event that is no JSON: {piece[:60].decode('utf-8', 'replace')!r}")
                got = [TraceEvent()]  # keeps the numbers of the events after it right
            events += got
    return events


def _list_end(body: bytes, offset: int, state: EventList) -> int:
    """Where the events of the last slice end; what follows them is the rest of the header, or nothing where the file was cut."""
    first = _FIRST_KEY.search(body)
    at = body.rfind(first.group(0)) if first else 0
    while (start := at + len(body[at:]) - len(body[at:].lstrip(b", \r\n\t"))) < len(body) and body[start : start + 1] == b"{":
        size = _object_end(body[start:])
        if size < 0:
            break
        at = start + size
    rest = body[start:]
    if rest.startswith(b"]"):
        state.tail = rest[1:]
        return start
    closed = _CLOSED.search(body, start) if rest and body.rstrip().endswith((b"}", b"]")) else None
    if closed:  # the last event holds quotes or brackets that are no JSON
        state.tail = body[closed.end() :]
        return closed.start() + 1
    state.truncated = True
    if rest:
        state.skip(offset + start, f"the file ends in the middle of an event: {len(rest)} bytes lost")
    else:
        state.skip(offset + start, "the list of events is not closed: the file was cut")
    return start


def _objects(piece: bytes) -> list[tuple[int, int]]:
    """(start, length) of the objects that follow one another in *piece*; the last one takes what is left."""
    found: list[tuple[int, int]] = []
    at = 0
    while at < len(piece):
        size = _object_end(piece[at:])
        if size < 0:
            size = len(piece) - at
        found.append((at, size))
        at += size
        at += len(piece[at:]) - len(piece[at:].lstrip(b", \r\n\t"))
    return found


def _object_end(piece: bytes) -> int:
    """Length of the object that *piece* begins with, -1 where it does not end."""
    depth = 0
    for token in _TOKEN.finditer(piece):
        c = token.group(0)
        depth += (c in (b"{", b"[")) - (c in (b"}", b"]"))
        if depth == 0:
            return token.end()
    return -1


def _mend(piece: bytes, decoder: msgspec.json.Decoder[Any]) -> list[TraceEvent] | None:
    """Decode one event; faults known from real writers are mended (torch-traces.md section 13)."""
    for attempt in (lambda p: p, _mend_text, _mend_values, _mend_quotes):
        piece = attempt(piece)
        try:
            events: list[TraceEvent] = decoder.decode(b"[%b]" % piece)
        except (msgspec.MsgspecError, ValueError):
            continue
        return events
    return None


def _mend_text(piece: bytes) -> bytes:
    """Bytes that are not UTF-8, control bytes, lone backslashes (Windows paths)."""
    text = piece.decode("utf-8", "replace").encode()
    text = re.sub(rb"[\x00-\x1f]", b" ", text)
    return re.sub(rb'\\(?!["\\/bfnrtu])|\\u(?![0-9a-fA-F]{4})', rb"\\\\", text)


def _mend_values(piece: bytes) -> bytes:
    """inf, nan, N/A as a value; a missing quote; a comma followed by nothing."""
    piece = re.sub(rb'(:\s*)"?(?:-?inf|-?nan|-?Infinity|NaN|N/A)"?(\s*[,}\]])', rb"\1null\2", piece)
    piece = re.sub(rb'([{,]\s*)(\w+)"(\s*:)', rb'\1"\2"\3', piece)
    return re.sub(rb",(\s*[}\]])", rb"\1", piece)


def _mend_quotes(piece: bytes) -> bytes:
    """Quotes inside the name: everything up to the key that follows it is the name."""

    def escape(match: re.Match[bytes]) -> bytes:
        inner = re.sub(rb'(?<!\\)"', rb'\\"', match.group(2))
        return match.group(1) + inner + match.group(3)

    return re.sub(rb'("name"\s*:\s*")(.*?)("\s*,\s*"(?:ph|cat|pid|tid|ts|dur|args|id|s|bp)"\s*:|"\s*})', escape, piece, count=1, flags=re.DOTALL)
