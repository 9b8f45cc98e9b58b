"""Busy time of each stage, step by step, and the pipeline phase it is measured against."""

from __future__ import annotations

import numpy as np
import pandas as pd

from pipelog.tables import CannotTell, Tables, table, union_ns
from pipelog.tables.clock import Clocks
from pipelog.tables.device_work import COMPUTE, RECEIVE, SEND, DeviceTrace
from pipelog.tables.instructions import HostTrace
from pipelog.tables.topology import Topology


@table("stage_time", needs=("instructions", "host_traces", "device_traces", "clocks", "topology", "tables"))
def stage_time(
    instructions: pd.DataFrame,
    host_traces: list[HostTrace],
    device_traces: dict[str, DeviceTrace],
    clocks: Clocks,
    topology: Topology,
    tables: Tables,
) -> pd.DataFrame:
    """One row a step and rank: step, replica, stage, rank, busy_ns, forward_ns, backward_ns, recompute_ns, load_ns, micro_batches,
    start_ns (first forward), end_ns (last backward), first_ns (first instruction), step_start_ns, step_end_ns, phase_start_ns, phase_ns, complete, file, line.

    busy: union of the extents of forward and backward passes (recomputation is inside the latter), never a sum. Times are on the
    reference clock. The phase of a replica in a step runs from its first forward to its last backward over its stages; where some
    stages were not recorded it is that of stage 0, which begins first and ends last under 1F1B, and null without stage 0.
    complete: all stages of the replica were recorded in this step, on one clock. Without traces of a pipeline, of a table of operations.
    """
    if not len(instructions) and (told := tables.get("operation_time")) is not None:
        return told
    if not len(instructions):
        raise CannotTell("no trace shows the passes of a stage: record torch profiler traces of every rank (CPU activities, with_stack=True is best)")
    _check(host_traces, device_traces, topology)
    traces = {t.file: t for t in host_traces}
    rows = []
    for (rank, window), mine in instructions.groupby(["rank", "window"], sort=True):
        trace = traces[mine["file"].iloc[0]]
        shift = clocks.offset_ns.get(trace.clock)
        place = topology.ranks[topology.ranks["rank"] == rank] if len(topology.ranks) else topology.ranks
        if not len(place) or pd.isna(place["stage"].iloc[0]):
            continue
        rows.append(_of_window(trace, device_traces.get(trace.file), int(window), mine, shift, int(place["stage"].iloc[0]), place["replica"].iloc[0]))
    found = pd.DataFrame([r for r in rows if r is not None])
    if not len(found):
        raise CannotTell("the traces do not say which stage each rank is: the log with the line 'Using topology: …' would")
    found["recorded"] = found.groupby(["step", "replica"])["stage"].transform("nunique")
    found["complete"] = (found["recorded"] == (topology.pp or 0)) & found.groupby(["step", "replica"])["tied"].transform("all")
    return _phases(found)


def _check(host_traces: list[HostTrace], device_traces: dict[str, DeviceTrace], topology: Topology) -> None:
    """Ranks that exchange messages are neighbours in the pipeline (or its ends, with interleaving); else the map is another job's."""
    last = (topology.pp or 1) - 1
    stage_of = dict(zip(topology.ranks["rank"], topology.ranks["stage"], strict=True)) if len(topology.ranks) else {}
    for trace in host_traces:
        here = stage_of.get(trace.rank)
        device = device_traces.get(trace.file)
        peers = trace.peer[np.isin(trace.kind, ("send", "recv"))]
        peers = peers if device is None else np.concatenate((peers, device.peer[np.isin(device.group, (SEND, RECEIVE))]))
        for peer in np.unique(peers[peers >= 0]).tolist():
            there = stage_of.get(peer)
            if here is None or there is None or pd.isna(here) or pd.isna(there) or abs(here - there) == 1 or {int(here), int(there)} == {0, last}:
                continue
            raise CannotTell(
                f"rank {trace.rank} exchanges messages with rank {peer}, but the stages that the log states ({here} and {there}) are no neighbours: "
                "log and traces are of two jobs"
            )


def _of_window(
    trace: HostTrace, device: DeviceTrace | None, window: int, mine: pd.DataFrame, shift: int | None, stage: int, replica: object
) -> dict[str, object] | None:
    kind = mine["instruction"].to_numpy()
    start, end = mine["start_ns"].to_numpy(dtype=np.int64), mine["end_ns"].to_numpy(dtype=np.int64)
    forward, backward = kind == "forward", kind == "backward"
    if not forward.any() or not backward.any():
        return None
    work = forward | backward
    number, opened, closed = trace.windows[window]
    again = (trace.kind == "recompute") & (trace.start >= opened) & (trace.start < closed)
    load = kind == "load_micro_batch"
    off = shift or 0
    heaviest = int(np.argmax(np.where(work, end - start, -1)))
    return {
        "step": number if number >= 0 else window,
        "replica": 0 if pd.isna(replica) else int(replica),  # type: ignore[call-overload]
        "stage": stage,
        "rank": trace.rank,
        "busy_ns": union_ns(start[work], end[work]),
        "forward_ns": union_ns(start[forward], end[forward]),
        "backward_ns": union_ns(start[backward], end[backward]),
        "recompute_ns": _recomputed(trace, device, again),
        "load_ns": union_ns(start[load], end[load]),
        "micro_batches": int(min(forward.sum(), backward.sum())),
        "start_ns": int(start[forward].min()) - off,
        "end_ns": int(end[backward].max()) - off,
        "first_ns": int(start.min()) - off,
        "step_start_ns": opened - off,
        "step_end_ns": closed - off,
        "shift_ns": off,
        "tied": shift is not None,
        "file": trace.file,
        "line": int(mine["line"].iloc[heaviest]),
        "source": str(mine["source"].iloc[0]),
    }


def _recomputed(trace: HostTrace, device: DeviceTrace | None, again: np.ndarray) -> int:
    """Time spent on computing activations again; on a device what was launched for it there."""
    start, end = trace.start[again], trace.end[again]
    if device is not None and (device.group == COMPUTE).any():
        start, end = device.extents(start, end)
        start, end = start[start >= 0], end[start >= 0]
    return union_ns(start, end)


def _phases(found: pd.DataFrame) -> pd.DataFrame:
    whole = found[found["complete"]].groupby(["step", "replica"]).agg(phase_start_ns=("start_ns", "min"), phase_end_ns=("end_ns", "max"))
    first = (
        found[~found["complete"] & (found["stage"] == 0)]
        .groupby(["step", "replica"])
        .agg(phase_start_ns=("start_ns", "min"), phase_end_ns=("end_ns", "max"))
    )
    phases = pd.concat([whole, first])
    phases["phase_ns"] = phases["phase_end_ns"] - phases["phase_start_ns"]  # before the join, which makes doubles of them
    found = found.join(phases, on=["step", "replica"])
    known = found["phase_start_ns"].notna() & (found["complete"] | (found["stage"] == 0))
    found["phase_ns"] = found["phase_ns"].where(known, np.nan)
    return found.drop(columns=["recorded", "phase_end_ns"]).sort_values(["step", "replica", "stage", "rank"]).reset_index(drop=True)
