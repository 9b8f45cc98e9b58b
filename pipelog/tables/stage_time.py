"""Busy time of each stage, step by step, and the pipeline phase it is measured against."""

from __future__ import annotations

import numpy as np
import pandas as pd

from pipelog.tables import CannotTell, Tables, by_ranks, table, union_ns
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
    reference clock, those of a replica whose hosts are not tied to it on its own. The phase of a replica in a step runs from its first forward to its last backward over its stages; where some
    stages were not recorded it is that of stage 0, which begins first and ends last under 1F1B, and null without stage 0.
    complete: all stages of the replica were recorded in this step, on one clock. Without traces of a pipeline, of a table of operations.
    """
    if not len(instructions) and (told := tables.get("operation_time")) is not None:
        return told
    if not len(instructions):
        raise CannotTell("no trace shows the passes of a stage: record torch profiler traces of every rank (CPU activities, with_stack=True is best)")
    _check(host_traces, device_traces, topology)
    found = _of_windows(instructions, {t.file: t for t in host_traces}, device_traces, clocks, topology)
    if not len(found):
        raise CannotTell("the traces do not say which stage each rank is: the log with the line 'Using topology: …' would")
    found["recorded"] = found.groupby(["step", "replica"])["stage"].transform("nunique")
    cells = found.groupby(["step", "replica"])
    found["complete"] = (found["recorded"] == (topology.pp or 0)) & cells["tied"].transform("all") & (cells["clock"].transform("nunique") == 1)
    return _phases(found.drop(columns="clock"))


def _check(host_traces: list[HostTrace], device_traces: dict[str, DeviceTrace], topology: Topology) -> None:
    """Ranks that exchange messages are neighbours in the pipeline (or its ends, with interleaving); else the map is another job's."""
    last = (topology.pp or 1) - 1
    stage_of = dict(zip(topology.ranks["rank"], topology.ranks["stage"], strict=True)) if len(topology.ranks) else {}
    for trace in host_traces:
        here = stage_of.get(trace.rank)
        device = device_traces.get(trace.file)
        peers = trace.peer[trace.kind.isin(("send", "recv"))]
        peers = peers if device is None else np.concatenate((peers, device.peer[np.isin(device.group, (SEND, RECEIVE))]))
        for peer in np.unique(peers[peers >= 0]).tolist():
            there = stage_of.get(peer)
            if here is None or there is None or pd.isna(here) or pd.isna(there) or abs(here - there) == 1 or {int(here), int(there)} == {0, last}:
                continue
            raise CannotTell(
                f"rank {trace.rank} exchanges messages with rank {peer}, but the stages that the log states ({here} and {there}) are no neighbours: "
                "log and traces are of two jobs"
            )


def _of_windows(
    instructions: pd.DataFrame, traces: dict[str, HostTrace], device_traces: dict[str, DeviceTrace], clocks: Clocks, topology: Topology
) -> pd.DataFrame:
    """One row a rank and window with a forward and a backward pass, of the ranks whose stage is known; times on the reference clock."""
    places = topology.ranks.drop_duplicates("rank").set_index("rank") if len(topology.ranks) else pd.DataFrame(columns=["stage", "replica"])
    known = instructions["rank"].isin(places.index[places["stage"].notna()])
    rows = instructions if known.all() else instructions[known]
    if not len(rows):
        return pd.DataFrame()
    out = pd.concat([_of_ranks(mine) for mine in by_ranks(rows)], ignore_index=True)
    out = out.assign(stage=out["rank"].map(places["stage"]).astype(int), replica=out["rank"].map(places["replica"]).fillna(0).astype(int))
    return _with_windows(out, traces, device_traces, clocks)


def _of_ranks(rows: pd.DataFrame) -> pd.DataFrame:
    """One row a rank and window with a forward and a backward pass; times on the rank's own clock."""
    numbers = {n: rows[n].to_numpy(dtype=np.int64) for n in ("rank", "window", "start_ns", "end_ns", "line")}
    order = np.lexsort((numbers["start_ns"], numbers["window"], numbers["rank"]))
    rank, window, start, end, line = (values[order] for values in numbers.values())
    codes, words = pd.factorize(rows["instruction"])
    codes, code = codes[order], {word: i for i, word in enumerate(words)}
    of = {word: codes == code.get(word, -2) for word in ("forward", "backward", "load_micro_batch")}
    first = np.flatnonzero(np.concatenate(([True], (np.diff(rank) != 0) | (np.diff(window) != 0))))
    group = np.repeat(np.arange(len(first)), np.diff(np.append(first, len(rank))))
    work = of["forward"] | of["backward"]
    counts = {word: np.bincount(group[mask], minlength=len(first)) for word, mask in of.items()}
    length = np.where(work, end - start, -1)
    heaviest = np.lexsort((np.arange(len(length)), -length, group))[first]
    return pd.DataFrame(
        {
            "rank": rank[first],
            "window": window[first],
            "busy_ns": union_by(group, start, end, work),
            "forward_ns": union_by(group, start, end, of["forward"]),
            "backward_ns": union_by(group, start, end, of["backward"]),
            "load_ns": union_by(group, start, end, of["load_micro_batch"]),
            "micro_batches": np.minimum(counts["forward"], counts["backward"]),
            "start_ns": np.minimum.reduceat(np.where(of["forward"], start, np.iinfo(np.int64).max), first),
            "end_ns": np.maximum.reduceat(np.where(of["backward"], end, np.iinfo(np.int64).min), first),
            "first_ns": np.minimum.reduceat(start, first),
            "line": line[heaviest],
            "file": rows["file"].to_numpy()[order[first]],
            "source": rows["source"].to_numpy()[order[first]],
        }
    )[lambda f: f["micro_batches"] > 0]


def union_by(group: np.ndarray, start: np.ndarray, end: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Length of the union of the intervals of each group that *mask* picks, ns; rows are in order of group and start."""
    out = np.zeros(int(group[-1]) + 1, np.int64)
    group, start, end = group[mask], start[mask], end[mask]
    if not len(group):
        return out
    new = np.concatenate(([True], np.diff(group) != 0))
    origin = start[np.maximum.accumulate(np.where(new, np.arange(len(new)), 0))]
    apart = group * (int((end - origin).max()) + 1)  # groups one after another, so that one running maximum serves all
    low, high = start - origin + apart, end - origin + apart
    reach = np.concatenate((low[:1], np.maximum.accumulate(high)[:-1]))
    reach = np.where(new, low, reach)
    np.add.at(out, group, np.maximum(high - np.maximum(low, reach), 0))
    return out


def _with_windows(rows: pd.DataFrame, traces: dict[str, HostTrace], device_traces: dict[str, DeviceTrace], clocks: Clocks) -> pd.DataFrame:
    """The columns that come from the step's window and from the trace's clock, and the time spent on recomputation."""
    window = rows["window"].to_numpy()
    number, opened, closed, off, again = (np.zeros(len(rows), np.int64) for _ in range(5))
    tied, reference = np.zeros(len(rows), bool), np.empty(len(rows), object)
    for file, mine in rows.groupby("file", sort=False, observed=True).indices.items():
        trace = traces[str(file)]
        place = clocks.of(trace.clock)
        number[mine], opened[mine], closed[mine] = np.array(trace.windows, np.int64)[window[mine]].T
        reference[mine], off[mine], tied[mine] = *(place or (trace.clock, 0)), place is not None
        again[mine] = _recomputed(trace, device_traces.get(trace.file), opened[mine], closed[mine])
    told = {"step": np.where(number >= 0, number, window), "step_start_ns": opened - off, "step_end_ns": closed - off}
    times = {name: rows[name] - off for name in ("start_ns", "end_ns", "first_ns")}
    return rows.assign(**told, **times, recompute_ns=again, shift_ns=off, tied=tied, clock=reference).drop(columns="window")


def _recomputed(trace: HostTrace, device: DeviceTrace | None, opened: np.ndarray, closed: np.ndarray) -> list[int]:
    """Time spent on computing activations again in each window; on a device what was launched for it there."""
    again = np.flatnonzero(trace.kind == "recompute")
    start, end = trace.start[again], trace.end[again]
    out = []
    for low, high in zip(np.searchsorted(start, opened), np.searchsorted(start, closed), strict=True):
        begun, ended = start[low:high], end[low:high]
        if device is not None and (device.group == COMPUTE).any():
            begun, ended = device.extents(begun, ended)
            begun, ended = begun[begun >= 0], ended[begun >= 0]
        out.append(union_ns(begun, ended))
    return out


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
