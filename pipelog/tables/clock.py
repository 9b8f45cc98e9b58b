"""One clock for all traces: offsets between hosts from the messages between them, with their error."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np
import pandas as pd

from pipelog.tables import table
from pipelog.tables.device_work import RECEIVE, SEND, DeviceTrace
from pipelog.tables.instructions import HostTrace

_ANOTHER_RUN_NS = 3600 * 10**9
"""Clocks an hour apart are no clocks: one of the traces is of another run."""


@dataclass(frozen=True, slots=True)
class Clocks:
    """offset_ns: clock → what to subtract from its times to have them on the reference clock; a clock that cannot be tied is absent.

    error_ns: the half-width of the bounds, 0 on one clock. reference: the clock of the lowest rank.
    """

    reference: str | None
    offset_ns: dict[str, int]
    error_ns: int


@table("clocks", needs=("host_traces", "device_traces"))
def clocks(host_traces: list[HostTrace], device_traces: dict[str, DeviceTrace]) -> Clocks:
    """Ranks of one host share a clock. Others are tied by causality: a message is not received before it is sent.

    For clocks A and B with messages both ways the offset o of B lies in [max(send_B - end_A), min(end_B - send_A)]; the middle is
    taken, half the width is the error (as in NTP). Pipelines send both ways over every edge: activations down, gradients up. Traces
    that an offset of more than an hour would tie are of two runs and stay apart.
    """
    if not host_traces:
        return Clocks(None, {}, 0)
    first = min(host_traces, key=lambda t: t.rank).clock
    known = {first: 0}
    if len({t.clock for t in host_traces}) == 1:
        return Clocks(first, known, 0)
    bounds = _bounds(_pairs(host_traces, device_traces))
    worst, queue = 0, deque([first])
    while queue:
        a = queue.popleft()
        for (x, b), upper in bounds.items():
            lower = bounds.get((b, x))
            if x != a or b in known or lower is None or upper + lower < 0 or abs(upper - lower) > 2 * _ANOTHER_RUN_NS:
                continue
            known[b] = known[a] + (upper - lower) // 2
            worst = max(worst, (upper + lower) // 2)
            queue.append(b)
    return Clocks(first, known, worst)


def _bounds(pairs: pd.DataFrame) -> dict[tuple[str, str], int]:
    """(A, B) → min over messages from A to B of (end of the receive on B's clock - start of the send on A's)."""
    least = (pairs["receive_end_ns"] - pairs["send_ns"]).groupby([pairs["clock"], pairs["clock_r"]]).min()
    return {(str(a), str(b)): int(value) for (a, b), value in least.items() if a != b}


@table("messages", needs=("host_traces", "device_traces", "clocks"))
def messages(host_traces: list[HostTrace], device_traces: dict[str, DeviceTrace], clocks: Clocks) -> pd.DataFrame:
    """Matched p2p messages: step, source, target (ranks), number (in its step and direction), bytes, and times on the reference clock.

    send_ns, send_end_ns, receive_ns, receive_end_ns: the calls from their beginning to the end of their wait; on a device the kernels. transfer_ns: from the
    later of the two calls to the end of the receive, the time that the message really took (waiting for the other side left out).
    gap_ns: idle time on the sender right before its call (a late send). on_device: timed by kernels, not by the host's waits. Matched first in, first out per direction and step; steps
    in which the counts of the two sides differ are left out.
    """
    found = _pairs(host_traces, device_traces)
    if not len(found):
        return found.assign(transfer_ns=pd.Series(dtype="int64"))
    found = found[found["clock"].isin(clocks.offset_ns) & found["clock_r"].isin(clocks.offset_ns)].copy()
    for side, names in (("clock", ("send_ns", "send_end_ns")), ("clock_r", ("receive_ns", "receive_end_ns"))):
        shift = found[side].map(clocks.offset_ns).astype("int64")
        for name in names:
            found[name] -= shift
    ready = np.maximum(found["send_ns"], found["receive_ns"])
    return found.assign(transfer_ns=np.maximum(found["receive_end_ns"] - ready, 0)).reset_index(drop=True)


def _pairs(host_traces: list[HostTrace], device_traces: dict[str, DeviceTrace]) -> pd.DataFrame:
    """Sends joined with their receives; times on each side's own clock."""
    sends, receives = [], []
    for i, trace in enumerate(host_traces):
        device = device_traces.get(trace.file)
        on_device = device is not None and np.isin(device.group, (SEND, RECEIVE)).any()
        made = _of_device(trace, device) if device is not None and on_device else _of_host(trace)
        made = made[made["peer"] >= 0].assign(rank=trace.rank, trace=i, on_device=bool(on_device))
        made["step"] = np.array([w[0] for w in trace.windows], np.int64)[made["window"].to_numpy()]
        sends.append(made[made["sends"]].drop(columns="sends"))
        receives.append(made[~made["sends"]].drop(columns="sends"))
    left = pd.concat(sends, ignore_index=True) if sends else pd.DataFrame()
    right = pd.concat(receives, ignore_index=True) if receives else pd.DataFrame()
    if not len(left) or not len(right):
        return pd.DataFrame({c: pd.Series(dtype="int64") for c in _MESSAGE})
    for frame in (left, right):  # without step numbers the windows are counted
        frame["step"] = np.where(frame["step"] < 0, frame["window"], frame["step"])
    made = _matched(left.rename(columns={"rank": "source", "peer": "target"}), right.rename(columns={"rank": "target", "peer": "source"}))
    codes, clocks = pd.factorize(np.array([t.clock for t in host_traces], object))
    words = {"file": pd.Categorical.from_codes(made["trace"], [t.file for t in host_traces])}  # words once, however many messages there are
    words |= {name: pd.Categorical.from_codes(codes[made[of]], clocks) for name, of in (("clock", "trace"), ("clock_r", "trace_r"))}
    return made.assign(**words)[_MESSAGE]


_MESSAGE = [
    "step", "source", "target", "number", "bytes", "send_ns", "send_end_ns", "receive_ns", "receive_end_ns", "gap_ns", "on_device", "clock", "clock_r",
    "file", "line",
]  # fmt: skip


def _matched(sends: pd.DataFrame, receives: pd.DataFrame) -> pd.DataFrame:
    """Sends beside their receives, first in, first out, of the steps and directions in which both sides made as many.

    Both sides in order of step, source, target and call: then the n-th of one side is the n-th of the other, and nothing has to be joined.
    """
    ranks = int(max(f[n].max() for f in (sends, receives) for n in ("source", "target"))) + 1
    sides = []
    for side in (sends, receives):
        step, source, target = (side[n].to_numpy(dtype=np.int64) for n in ("step", "source", "target"))
        key = (step * ranks + source) * ranks + target
        order = np.lexsort((side["call_ns"].to_numpy(dtype=np.int64), key))
        sides.append((side, order, key[order], *np.unique(key[order], return_counts=True)))
    both, at, other = np.intersect1d(sides[0][3], sides[1][3], assume_unique=True, return_indices=True)
    good = both[sides[0][4][at] == sides[1][4][other]]
    (left, keys), (right, _) = ((side.iloc[order[mask := np.isin(key, good)]], key[mask]) for side, order, key, _, _ in sides)
    first = np.flatnonzero(np.concatenate(([True], np.diff(keys) != 0))) if len(keys) else np.zeros(0, np.int64)
    number = np.arange(len(keys)) - np.repeat(first, np.diff(np.append(first, len(keys))))
    taken = {"receive_ns": right["call_ns"], "receive_end_ns": right["end_ns"], "trace_r": right["trace"]}
    made = left.rename(columns={"call_ns": "send_ns", "end_ns": "send_end_ns"})
    return made.assign(number=number, **{name: column.to_numpy() for name, column in taken.items()}).reset_index(drop=True)


def _of_host(trace: HostTrace) -> pd.DataFrame:
    """Gloo's waits: from the call to the end of the wait."""
    places = np.flatnonzero(trace.kind.isin(("send", "recv")))
    call = np.where(trace.launch[places] > 0, trace.launch[places], trace.start[places])
    rows = {
        "window": trace.window_of(trace.start[places]),
        "sends": np.asarray(trace.kind[places] == "send"),
        "peer": trace.peer[places],
        "call_ns": call,
    }
    rows |= {"end_ns": trace.end[places], "gap_ns": _gap_before(trace, call), "bytes": trace.size[places], "line": trace.line[places]}
    found = pd.DataFrame(rows)
    return found[found["window"] >= 0]


def _of_device(trace: HostTrace, device: DeviceTrace) -> pd.DataFrame:
    """Send and receive kernels; the step is that of their launch."""
    places = np.flatnonzero(np.isin(device.group, (SEND, RECEIVE)))
    rows = {
        "window": trace.window_of(device.launch[places]),
        "sends": device.group[places] == SEND,
        "peer": device.peer[places],
        "call_ns": device.start[places],
    }
    rows |= {"end_ns": device.end[places], "gap_ns": device.idle_before(places), "bytes": device.size[places], "line": device.line[places]}
    found = pd.DataFrame(rows)
    return found[found["window"] >= 0]


def _gap_before(trace: HostTrace, calls: np.ndarray) -> np.ndarray:
    """Time since anything ended on the main thread before each call."""
    use = trace.main & trace.kind.isin(("cpu_op", "send", "recv", "collective", "data_load"))
    start, end = trace.start[use], np.maximum.accumulate(trace.end[use])
    before = np.searchsorted(start, calls, side="left") - 1
    return np.where(before >= 0, np.maximum(calls - end[np.maximum(before, 0)], 0), 0)
