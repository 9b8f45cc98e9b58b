"""Exact figures of each trace that holds device work: busy, compute, communication, memory and their overlap, as unions."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow as pa

from pipelog.events import Input
from pipelog.tables import coded, grouped, of_kind, overlap_ns, table, union_ns
from pipelog.tables.device_work import on_gpu

_COMPUTE = ("kernel",)
_COMMUNICATION = ("collective", "send", "recv", "p2p")
_MEMORY = ("memcpy", "memset")


_USED = ["file", "kind", "device", "rank", "start_ns", "dur_ns"]


@table("devices", needs=("here", "inputs"))
def devices(here: pa.Table, inputs: list[Input]) -> pd.DataFrame:
    """One row a trace and device: file, rank, device, span_us, busy_us, compute_us, comm_us, memory_us, comm_compute_overlap_us, kernels, steps.

    Over the whole trace, in exact nanoseconds. busy is the union of all device work, the others those of their own kind, which
    overlap; kernels counts compute and communication kernels, not copies and fills.
    """
    rows = on_gpu(of_kind(here.select(_USED), *_COMPUTE, *_COMMUNICATION, *_MEMORY))
    names = {i.path: i.notes.get("device_name") for i in inputs if i.kind == "trace"}
    steps = _steps(here)
    if not rows.num_rows:
        return pd.DataFrame()
    file, device, kind = (coded(rows.column(name)) for name in ("file", "device", "kind"))
    start = rows.column("start_ns").to_numpy()
    end = start + rows.column("dur_ns").to_numpy()
    rank = rows.column("rank")
    is_a = {kinds: np.asarray(kind.isin(kinds)) for kinds in (_COMPUTE, _COMMUNICATION, _MEMORY)}
    out = []
    for mine in grouped(file.codes.astype(np.int64) * len(device.categories) + device.codes, np.arange(len(start)), ()):
        path, unit = str(file[mine[0]]), str(device[mine[0]])
        compute, comm, memory = (mine[mask[mine]] for mask in is_a.values())
        out.append(
            {
                "file": path,
                "rank": rank[int(mine[0])].as_py(),
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
