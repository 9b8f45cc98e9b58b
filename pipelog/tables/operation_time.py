"""Busy time and step length of each worker from a table of operations, in the columns that traces give."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow as pa

from pipelog.tables import CannotTell, of_kind, table, union_ns, whole_numbers

_WORK = {"forward-compute": "forward", "backward-compute": "backward"}


@table("operation_time", needs=("events",))
def operation_time(events: pa.Table) -> pd.DataFrame:
    """The columns of `stage_time`, one row a step and worker, of the one table of operations that was given.

    busy: union of forward and backward passes. The phase of a replica runs from its first forward pass to the end of its last backward
    pass over its stages; the step over all operations of all workers. The clock of such a table is one for all workers of a step.
    """
    rows = of_kind(events, "operation")
    files = pa.compute.unique(rows.column("file").cast(pa.string())).to_pylist()
    if len(files) != 1:
        raise CannotTell("no table of operations was given" if not files else f"{len(files)} tables of operations are of different jobs")
    numbers = ("step", "stage", "replica", "start_ns", "dur_ns", "line")
    found = pd.DataFrame({n: rows.column(n).cast(pa.int64()).to_numpy() for n in numbers})
    found["rank"] = whole_numbers(rows.column("rank"))
    found["end_ns"] = found["start_ns"] + found["dur_ns"]
    found["work"] = rows.column("name").cast(pa.string()).to_pandas().astype(object).map(_WORK)
    p = int(found["stage"].max()) + 1
    span = found.groupby("step").agg(step_start_ns=("start_ns", "min"), step_end_ns=("end_ns", "max"))
    first = found.groupby(["step", "replica", "stage"])["start_ns"].min().rename("first_ns")
    work = found.dropna(subset=["work"])
    out = pd.DataFrame([_of_worker(keys, mine) for keys, mine in work.groupby(["step", "replica", "stage"])])
    if not len(out):
        raise CannotTell("the table of operations holds no forward and backward passes")
    out = out.join(span, on="step").join(first, on=["step", "replica", "stage"])
    out["complete"] = out.groupby(["step", "replica"])["stage"].transform("nunique") == p
    phases = out.groupby(["step", "replica"]).agg(phase_start_ns=("start_ns", "min"), phase_end_ns=("end_ns", "max"))
    phases["phase_ns"] = phases["phase_end_ns"] - phases["phase_start_ns"]
    out = out.join(phases[["phase_start_ns", "phase_ns"]], on=["step", "replica"])
    out["phase_ns"] = out["phase_ns"].where(out["complete"], np.nan)
    return out.assign(recompute_ns=0, load_ns=0, shift_ns=0, tied=True, file=files[0], source="operations").reset_index(drop=True)


def _of_worker(keys: tuple[int, int, int], mine: pd.DataFrame) -> dict[str, object]:
    start, end = mine["start_ns"].to_numpy(), mine["end_ns"].to_numpy()
    forward, backward = (mine["work"].to_numpy() == word for word in ("forward", "backward"))
    return {
        "step": keys[0],
        "replica": keys[1],
        "stage": keys[2],
        "rank": int(mine["rank"].iloc[0]),
        "busy_ns": union_ns(start, end),
        "forward_ns": union_ns(start[forward], end[forward]),
        "backward_ns": union_ns(start[backward], end[backward]),
        "micro_batches": int(min(forward.sum(), backward.sum())),
        "start_ns": int(start[forward].min()) if forward.any() else int(start.min()),
        "end_ns": int(end[backward].max()) if backward.any() else int(end.max()),
        "line": int(mine["line"].iloc[int((end - start).argmax())]),
    }
