"""Exact figures of each trace that holds device work: busy, compute, communication, memory and their overlap, as unions."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow as pa

from pipelog.events import Input
from pipelog.tables import of_kind, overlap_ns, table, union_ns

_COMPUTE = ("kernel",)
_COMMUNICATION = ("collective", "send", "recv", "p2p")
_MEMORY = ("memcpy", "memset")


@table("devices", needs=("here", "inputs"))
def devices(here: pa.Table, inputs: list[Input]) -> pd.DataFrame:
    """One row a trace and device: file, rank, device, span_us, busy_us, compute_us, comm_us, memory_us, comm_compute_overlap_us, kernels, steps.

    Over the whole trace, in exact nanoseconds. busy is the union of all device work, the others those of their own kind, which
    overlap; kernels counts compute and communication kernels, not copies and fills.
    """
    rows = of_kind(here, *_COMPUTE, *_COMMUNICATION, *_MEMORY)
    device = rows.column("device").cast(pa.string())
    rows = rows.filter(pa.compute.fill_null(pa.compute.starts_with(device, "gpu"), False))
    names = {i.path: i.notes.get("device_name") for i in inputs if i.kind == "trace"}
    steps = _steps(here)
    if not rows.num_rows:
        return pd.DataFrame()
    file = rows.column("file").cast(pa.string()).to_numpy(zero_copy_only=False)
    device = rows.column("device").cast(pa.string()).to_numpy(zero_copy_only=False)
    kind = rows.column("kind").cast(pa.string()).to_numpy(zero_copy_only=False)
    start = rows.column("start_ns").to_numpy()
    end = start + rows.column("dur_ns").to_numpy()
    rank = rows.column("rank").to_pylist()
    out = []
    for path in dict.fromkeys(file):
        for unit in dict.fromkeys(device[file == path]):
            mine = np.flatnonzero((file == path) & (device == unit))
            compute, comm, memory = (mine[np.isin(kind[mine], kinds)] for kinds in (_COMPUTE, _COMMUNICATION, _MEMORY))
            out.append(
                {
                    "file": path,
                    "rank": rank[mine[0]],
                    "device": names.get(path) or unit,
                    "span_us": float(end[mine].max() - start[mine].min()) / 1e3,
                    "busy_us": union_ns(start[mine], end[mine]) / 1e3,
                    "compute_us": union_ns(start[compute], end[compute]) / 1e3,
                    "comm_us": union_ns(start[comm], end[comm]) / 1e3,
                    "memory_us": union_ns(start[memory], end[memory]) / 1e3,
                    "comm_compute_overlap_us": overlap_ns((start[compute], end[compute]), (start[comm], end[comm])) / 1e3,
                    "kernels": len(compute) + len(comm),
                    "steps": steps.get(path, 0),
                }
            )
    return pd.DataFrame(out)


def _steps(here: pa.Table) -> dict[str, int]:
    marks = of_kind(here, "profiler_step")
    counts = pa.compute.value_counts(marks.column("file").cast(pa.string())).to_pylist()
    return {c["values"]: c["counts"] for c in counts}
