"""The device's side of each trace: what it computed and communicated, and for whom on the host."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from pipelog.tables import coded, grouped, matching, of_kind, table, where, whole_numbers

COMPUTE, SEND, RECEIVE, COLLECTIVE = 0, 1, 2, 3
_GROUPS = {"kernel": COMPUTE, "send": SEND, "recv": RECEIVE, "collective": COLLECTIVE, "p2p": COLLECTIVE}


@dataclass(frozen=True, slots=True)
class DeviceTrace:
    """Device rows of one trace as arrays in order of start. group: COMPUTE, SEND, RECEIVE or COLLECTIVE (and p2p of unknown direction).

    launch: start of the launching call on the host, the row's own start where none is known. peer is -1 where it is not known.
    """

    file: str
    group: np.ndarray
    start: np.ndarray
    end: np.ndarray
    launch: np.ndarray
    peer: np.ndarray
    size: np.ndarray
    line: np.ndarray

    def extents(self, begin: np.ndarray, end: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """For each span of host time the first start and the last end of the compute work launched in it; -1 where there is none."""
        work = np.flatnonzero(self.group == COMPUTE)
        work = work[np.argsort(self.launch[work], kind="stable")]
        launch = self.launch[work]
        low, high = np.searchsorted(launch, begin, side="left"), np.searchsorted(launch, end, side="right")
        first, last = np.full(len(begin), -1), np.full(len(begin), -1)
        for i in np.flatnonzero(high > low).tolist():
            first[i] = self.start[work[low[i] : high[i]]].min()
            last[i] = self.end[work[low[i] : high[i]]].max()
        return first, last

    def idle_before(self, places: np.ndarray) -> np.ndarray:
        """Time since anything ended on the device before each of these rows began."""
        reach = np.maximum.accumulate(self.end)
        before = np.searchsorted(self.start, self.start[places], side="left") - 1
        return np.where(before >= 0, np.maximum(self.start[places] - reach[np.maximum(before, 0)], 0), 0)


_USED = ["file", "kind", "device", "start_ns", "dur_ns", "launch_ns", "peer", "bytes", "line"]


@table("device_traces", needs=("placed",))
def device_traces(placed: pa.Table) -> dict[str, DeviceTrace]:
    """By file, for traces that hold device work; copies and fills are left out."""
    rows = of_kind(on_gpu(placed.select(_USED)), *_GROUPS)
    if not rows.num_rows:
        return {}
    file, kind = coded(rows.column("file")), coded(rows.column("kind"))
    start = rows.column("start_ns").to_numpy()
    end = start + rows.column("dur_ns").to_numpy()
    launch = pa.compute.coalesce(rows.column("launch_ns"), rows.column("start_ns")).to_numpy()
    peer, size, line = (whole_numbers(rows.column(n)) for n in ("peer", "bytes", "line"))
    group = np.array([_GROUPS.get(str(word), -1) for word in kind.categories], np.int8)[kind.codes]
    out = {}
    for mine in grouped(file.codes, np.arange(len(start)), (start,)):
        path = str(file[mine[0]])
        out[path] = DeviceTrace(path, group[mine], start[mine], end[mine], launch[mine], peer[mine], size[mine], line[mine])
    return out


def on_gpu(rows: pa.Table) -> pa.Table:
    """The rows of devices that are no processor."""
    return where(rows, matching(coded(rows.column("device")), lambda name: name.startswith("gpu")))
