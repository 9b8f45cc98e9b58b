"""The calls of p2p messages in one trace, each as long as it or its wait lasted."""

from __future__ import annotations

import numpy as np

from pipelog.tables import narrow
from pipelog.tables.device_work import RECEIVE, SEND, DeviceTrace
from pipelog.tables.instructions import HostTrace

Calls = dict[str, np.ndarray]
"""window, step (the window's number where it has none), sends, peer (-1 where it is not told), call_ns, end_ns, gap_ns (idle time before it), size, line."""


def of_host(trace: HostTrace) -> Calls:
    """Gloo's waits: from the call to the end of the wait."""
    places = np.flatnonzero(trace.kind.isin(("send", "recv")))
    window = trace.window_of(trace.start[places])
    places, window = places[window >= 0], window[window >= 0]
    call = np.where(trace.launch[places] > 0, trace.launch[places], trace.start[places])
    rows = {"sends": np.asarray(trace.kind[places] == "send"), "peer": trace.peer[places], "call_ns": call, "end_ns": trace.end[places]}
    return (
        _stepped(trace, window) | rows | {"gap_ns": _gap_before(trace, call), "size": trace.size[places].astype(np.int64), "line": trace.line[places]}
    )


def of_device(trace: HostTrace, device: DeviceTrace) -> Calls:
    """Send and receive kernels; the step is that of their launch."""
    places = np.flatnonzero(np.isin(device.group, (SEND, RECEIVE)))
    window = trace.window_of(device.launch[places])
    places, window = places[window >= 0], window[window >= 0]
    rows = {"sends": device.group[places] == SEND, "peer": device.peer[places], "call_ns": device.start[places], "end_ns": device.end[places]}
    rows |= {"gap_ns": device.idle_before(places), "size": device.size[places], "line": narrow(device.line[places])}
    return _stepped(trace, window) | rows


def _stepped(trace: HostTrace, window: np.ndarray) -> Calls:
    step = np.array([w[0] for w in trace.windows], np.int64)[window]
    return {"window": narrow(window), "step": narrow(np.where(step < 0, window, step))}


def _gap_before(trace: HostTrace, calls: np.ndarray) -> np.ndarray:
    """Time since anything ended on the main thread before each call."""
    use = trace.main & trace.kind.isin(("cpu_op", "send", "recv", "collective", "data_load"))
    start, end = trace.start[use], np.maximum.accumulate(trace.end[use])
    before = np.searchsorted(start, calls, side="left") - 1
    return np.where(before >= 0, np.maximum(calls - end[np.maximum(before, 0)], 0), 0)
