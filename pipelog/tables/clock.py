"""One clock for all traces: offsets between hosts from the messages between them, with their error."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from pipelog.tables import table
from pipelog.tables.device_work import DeviceTrace
from pipelog.tables.instructions import HostTrace
from pipelog.tables.message_calls import Calls
from pipelog.tables.message_order import by_order, calls_of
from pipelog.tables.topology import Topology

_ANOTHER_RUN_NS = 3600 * 10**9
"""Clocks an hour apart are no clocks: one of the traces is of another run."""


@dataclass(frozen=True, slots=True)
class Clocks:
    """offset_ns: clock → what to subtract from its times to have them on the reference clock; a clock that cannot be tied is absent.

    error_ns: the half-width of the bounds, added up from clock to clock, at its widest; 0 on one clock. reference: the clock of the lowest rank.
    apart: clock → (reference, offset) of those that are tied to each other alone, as the hosts of another replica are: nothing passes
    between replicas but collectives.
    """

    reference: str | None
    offset_ns: dict[str, int]
    error_ns: int
    apart: dict[str, tuple[str, int]] = field(default_factory=dict)

    def of(self, clock: str) -> tuple[str, int] | None:
        """(the reference that a clock is tied to, its offset), null where its times are to be compared with no other's."""
        if self.reference is not None and clock in self.offset_ns:
            return self.reference, self.offset_ns[clock]
        return self.apart.get(clock)


@dataclass(frozen=True, slots=True)
class Matched:
    """Both come from the pairs of sends and receives, which are found once: see the tables `clocks` and `messages`.

    by_order: how many messages were matched by the order of the schedule, since their traces do not say whom they go to. why_not: why
    others of such traces were not, null where all were.
    """

    clocks: Clocks
    messages: pd.DataFrame
    by_order: int = 0
    why_not: str | None = None


@table("matched", needs=("host_traces", "device_traces", "instructions", "topology"))
def matched(host_traces: list[HostTrace], device_traces: dict[str, DeviceTrace], instructions: pd.DataFrame, topology: Topology) -> Matched:
    """Sends with their receives, first in, first out, and the clocks that they tie; peers that no trace names by the order of the schedule.

    Messages that were matched by order are believed where none arrives before it was sent, on the clock that all of them give.
    """
    told = by_order(host_traces, device_traces, instructions, topology)
    found = _pairs(host_traces, device_traces, told.peers)
    known = _tied(host_traces, found)
    found = _on_one_clock(found, known)
    ordered = np.asarray(found["file"].isin(list(told.peers))) if told.peers else np.zeros(len(found), bool)
    early = ordered & (found["receive_end_ns"] - found["send_ns"] < -2 * known.error_ns).to_numpy(bool)
    if not early.any():
        return Matched(known, found, int(ordered.sum()), told.why_not)
    first = found[early].iloc[0]
    why = f"in the order of the schedule a message of step {first['step']} from rank {first['source']} would come to rank {first['target']} before it was sent"
    others = _pairs(host_traces, device_traces, {file: np.full_like(peers, -1) for file, peers in told.peers.items()})
    known = _tied(host_traces, others)
    return Matched(known, _on_one_clock(others, known), 0, why)


@table("clocks", needs=("matched",))
def clocks(matched: Matched) -> Clocks:
    """Ranks of one host share a clock. Others are tied by causality: a message is not received before it is sent.

    For clocks A and B with messages both ways the offset o of B lies in [max(send_B - end_A), min(end_B - send_A)]; the middle is
    taken, half the width is the error (as in NTP). Pipelines send both ways over every edge: activations down, gradients up. Traces
    that an offset of more than an hour would tie are of two runs and stay apart. Replicas on hosts of their own are tied each in itself.
    """
    return matched.clocks


@table("messages", needs=("matched",))
def messages(matched: Matched) -> pd.DataFrame:
    """Matched p2p messages: step, source, target (ranks), number (in its step and direction), bytes, and times on the reference clock.

    send_ns, send_end_ns, receive_ns, receive_end_ns: the calls from their beginning to the end of their wait; on a device the kernels. transfer_ns: from the
    later of the two calls to the end of the receive, the time that the message really took (waiting for the other side left out).
    gap_ns: idle time on the sender right before its call (a late send). on_device: timed by kernels, not by the host's waits. Matched first in, first out per direction and step; steps
    in which the counts of the two sides differ are left out.
    """
    return matched.messages


def _tied(host_traces: list[HostTrace], pairs: pd.DataFrame) -> Clocks:
    if not host_traces:
        return Clocks(None, {}, 0)
    begins: dict[str, int] = {}
    for trace in sorted(host_traces, key=lambda t: t.rank):
        begins.setdefault(trace.clock, int(trace.start[0]))
    first, *others = begins
    if not others:
        return Clocks(first, {first: 0}, 0)
    bounds = _bounds(pairs)
    known, worst = _reached(first, bounds)
    apart: dict[str, tuple[str, int]] = {}
    for clock in others:
        if clock in known or clock in apart or abs(begins[clock] - begins[first]) > _ANOTHER_RUN_NS:
            continue
        island, error = _reached(clock, bounds)
        worst = max(worst, error)
        apart |= {name: (clock, offset) for name, offset in island.items()}
    return Clocks(first, known, worst, apart)


def _reached(first: str, bounds: dict[tuple[str, str], int]) -> tuple[dict[str, int], int]:
    """Offsets of the clocks that messages both ways tie to *first*, over others, and the largest error."""
    known, errors, queue = {first: 0}, {first: 0}, deque([first])
    while queue:
        a = queue.popleft()
        for (x, b), upper in bounds.items():
            lower = bounds.get((b, x))
            if x != a or b in known or lower is None or upper + lower < 0 or abs(upper - lower) > 2 * _ANOTHER_RUN_NS:
                continue
            known[b] = known[a] + (upper - lower) // 2
            errors[b] = errors[a] + (upper + lower) // 2
            queue.append(b)
    return known, max(errors.values())


def _bounds(pairs: pd.DataFrame) -> dict[tuple[str, str], int]:
    """(A, B) → min over messages from A to B of (end of the receive on B's clock - start of the send on A's)."""
    if not len(pairs):
        return {}
    a, b = pairs["clock"].cat, pairs["clock_r"].cat
    words, most = a.categories, np.iinfo(np.int64).max
    least = np.full(len(words) ** 2, most)
    which = a.codes.to_numpy(dtype=np.int64) * len(words) + b.codes.to_numpy(dtype=np.int64)
    np.minimum.at(least, which, (pairs["receive_end_ns"] - pairs["send_ns"]).to_numpy(dtype=np.int64))
    found = ((*divmod(int(i), len(words)), int(least[i])) for i in np.flatnonzero(least < most))
    return {(str(words[i]), str(words[j])): value for i, j, value in found if i != j}


def _on_one_clock(pairs: pd.DataFrame, known: Clocks) -> pd.DataFrame:
    """The pairs between clocks that are tied, their times on the reference clock."""
    if not len(pairs):
        return pairs.assign(transfer_ns=pd.Series(dtype="int64"))
    words = pairs["clock"].cat.categories
    places = [known.of(str(word)) for word in words]
    shift = np.array([place[1] if place else 0 for place in places], np.int64)
    references = pd.factorize(np.array([place[0] if place else None for place in places], object))[0]
    ours, theirs = references[pairs["clock"].cat.codes], references[pairs["clock_r"].cat.codes]
    good = (ours >= 0) & (ours == theirs)
    found = pairs if good.all() else pairs[good].reset_index(drop=True)
    for side, names in (("clock", ("send_ns", "send_end_ns")), ("clock_r", ("receive_ns", "receive_end_ns"))):
        for name in names:
            found[name] -= shift[found[side].cat.codes]
    ready = np.maximum(found["send_ns"], found["receive_ns"])
    found["transfer_ns"] = np.maximum(found["receive_end_ns"] - ready, 0)
    return found


_SENT = {"call_ns": "send_ns", "end_ns": "send_end_ns", "gap_ns": "gap_ns", "size": "bytes", "line": "line"}
_RECEIVED = {"call_ns": "receive_ns", "end_ns": "receive_end_ns"}


def _pairs(host_traces: list[HostTrace], device_traces: dict[str, DeviceTrace], told: dict[str, np.ndarray]) -> pd.DataFrame:
    """Sends joined with their receives; times on each side's own clock. told: by file the peers of calls, where the trace names none."""
    sent: list[Calls] = []
    received: list[Calls] = []
    for i, trace in enumerate(host_traces):
        calls, on_device = calls_of(trace, device_traces.get(trace.file))
        calls["peer"] = told.get(trace.file, calls["peer"])
        known = calls["peer"] >= 0
        for side, wanted, mine in ((sent, _SENT, known & calls["sends"]), (received, _RECEIVED, known & ~calls["sends"])):
            of = {"rank": np.int32(trace.rank), "trace": np.int32(i), "on_device": np.bool_(on_device)}
            count = int(mine.sum())
            side.append({n: calls[n][mine] for n in ("step", "peer", *wanted)} | {n: np.full(count, value) for n, value in of.items()})
    left, right = _in_one(sent), _in_one(received)
    if not len(left.get("step", ())) or not len(right.get("step", ())):
        return pd.DataFrame({c: pd.Series(dtype="int64") for c in _MESSAGE})
    ours, theirs, number = _in_turn(left, right)
    made: dict[str, Any] = {"step": left["step"][ours], "source": left["rank"][ours], "target": left["peer"][ours], "number": number}
    made |= {name: left[own][ours] for own, name in _SENT.items()} | {name: right[own][theirs] for own, name in _RECEIVED.items()}
    made["on_device"] = left["on_device"][ours]
    codes, clocks = pd.factorize(np.array([t.clock for t in host_traces], object))
    # words once, however many messages there are
    made["file"] = pd.Categorical.from_codes(left["trace"][ours], pd.Index([t.file for t in host_traces], dtype=object))
    for column, traces in (("clock", left["trace"][ours]), ("clock_r", right["trace"][theirs])):
        made[column] = pd.Categorical.from_codes(codes[traces], clocks)
    return pd.DataFrame({name: made.pop(name) for name in _MESSAGE}, copy=False)


def _in_one(parts: list[Calls]) -> Calls:
    """The calls of all traces, one trace after another."""
    return {name: np.concatenate([part.pop(name) for part in parts]) for name in list(parts[0] if parts else ())}


_MESSAGE = [
    "step", "source", "target", "number", "bytes", "send_ns", "send_end_ns", "receive_ns", "receive_end_ns", "gap_ns", "on_device", "clock", "clock_r",
    "file", "line",
]  # fmt: skip


def _in_turn(sends: Calls, receives: Calls) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Places of sends and of their receives, first in, first out, of the steps and directions in which both sides made as many; and their number.

    Both sides in order of step, source, target and call: then the n-th of one side is the n-th of the other, and nothing has to be joined.
    """
    ranks = int(max(int(side[n].max()) for side in (sends, receives) for n in ("rank", "peer"))) + 1
    ordered = []
    for side, source, target in ((sends, "rank", "peer"), (receives, "peer", "rank")):
        key = (side["step"].astype(np.int64) * ranks + side[source]) * ranks + side[target]
        order = np.lexsort((side["call_ns"], key))
        ordered.append((order, key[order], *np.unique(key[order], return_counts=True)))
    both, at, other = np.intersect1d(ordered[0][2], ordered[1][2], assume_unique=True, return_indices=True)
    good = both[ordered[0][3][at] == ordered[1][3][other]]
    masks = [np.isin(keys, good) for _, keys, _, _ in ordered]
    (ours, keys), (theirs, _) = ((order[mask], key[mask]) for (order, key, _, _), mask in zip(ordered, masks, strict=True))
    first = np.flatnonzero(np.concatenate(([True], np.diff(keys) != 0))) if len(keys) else np.zeros(0, np.int64)
    number = np.arange(len(keys), dtype=np.int32) - np.repeat(first, np.diff(np.append(first, len(keys)))).astype(np.int32)
    return ours, theirs, number
