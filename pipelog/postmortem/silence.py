"""A log that stops while the job goes on: what a wait without a timeout looks like from outside, in tables of GPUs, processes and jobs."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import pandas as pd
import pyarrow as pa

from pipelog._text import count, listed, seconds
from pipelog.events import ZONES_NS, Input
from pipelog.postmortem.identities import Identities
from pipelog.tables import frame, table
from pipelog.tables.topology import Topology

_BUSY_PERCENT = 90.0
"""A kernel that waits for a peer spins: the GPU counts as used all the time. One that is dead shows 0 %."""
_INTERVALS, _LEAST_NS = 10, 300 * 10**9
"""Silence counts from so many steps' time on, and never below five minutes: evaluations and checkpoints print nothing either."""
_ALONE_NS, _START_NS = 1800 * 10**9, 3600 * 10**9
"""What a table of processes or jobs must see where no GPU is: processes live while they save and evaluate; before the first step, while they index data and compile."""
_SETUP_NS = 1500 * 10**9
"""Between a job's start and its first line; clocks of different zones differ by half an hour at least."""
_MOST_BELOW = 40
"""Lines below the last that has a time: more may have taken any time."""
_WORK = ("step", "progress", "iteration")
SLEPT = "slept in the kernel's calls of a network file system"
"""What processes do that are in state D there."""
_SEEN = ("gpu_use", "process_state", "job_state")
_FILE_SYSTEM = re.compile(r"^(?:_*nfs\d?_|rpc_|ceph_|ll_|cl_|osc_|ptlrpc_|ldlm_|fuse_|request_wait_answer|gpfs|mmfs|kxWait|beegfs|wekafs|cxiWait)")
"""Functions of the kernel in which a process waits for a file system that is far away: NFS, Ceph, Lustre, FUSE, GPFS, BeeGFS, Weka."""


@dataclass(frozen=True, slots=True)
class Silence:
    """since_ns: time of the last line of the job; until_ns: of the last sample (ns, local). evidence: (file, line).

    ranks: those that wait for a file system, where not all do, and doing: in which call of the kernel.
    """

    since_ns: int
    until_ns: int
    why: str
    evidence: tuple[tuple[str, int], ...]
    ranks: tuple[int, ...] = ()
    doing: str = ""


@dataclass(frozen=True, slots=True)
class _Last:
    """What the job said last: its first and last time, how long without a word is long, in words, and the line of its last step.

    closed: little stands below the lines with a time, and these state no zone, as what somebody noted beside them does not either.
    """

    first_ns: int
    at_ns: int
    long_ns: int
    after: str
    line: tuple[tuple[str, int], ...]
    steps: bool
    closed: bool


@table("silence", needs=("placed", "identities", "topology", "inputs"))
def silence(placed: pa.Table, identities: Identities, topology: Topology, inputs: list[Input]) -> Silence | None:
    """That the job was still there long after its last line: processes that sleep in a file system, GPUs that all stayed busy, a job that runs; None where nothing shows it.

    Nothing is concluded from a log that just stops: the copy may be older than the end.
    """
    last = _last(placed, inputs)
    if last is None:
        return None
    seen = frame(placed, _SEEN, ("kind", "name", "rank", "host", "label", "device", "value", "dur_ns", "group", "start_ns", "file", "line", "text"))
    seen = seen.dropna(subset=["start_ns"])
    return (
        _asleep(seen[seen["kind"] == "process_state"], last, identities, topology)
        or _busy(seen[(seen["kind"] == "gpu_use") & (seen["name"] == "utilization")], last)
        or _running(seen[seen["kind"] == "job_state"], last)
    )


def _last(placed: pa.Table, inputs: list[Input]) -> _Last | None:
    clock = placed.column("clock").cast(pa.string())
    stamped = placed.filter(pa.compute.and_(pa.compute.is_in(clock, pa.array(["log", "utc"])), pa.compute.is_valid(placed.column("start_ns"))))
    own = pa.compute.invert(pa.compute.is_in(stamped.column("kind").cast(pa.string()), pa.array(_SEEN)))
    said = stamped.filter(own).select(["file", "line", "start_ns", "clock"]).to_pandas()
    if not len(said):
        return None
    work = frame(placed, _WORK, ("step", "file", "line", "start_ns")).dropna(subset=["step"])
    times = np.unique(work["start_ns"].dropna().to_numpy(dtype=np.int64))
    usual = int(np.median(np.diff(times))) if len(times) > 1 else 0
    row = work.sort_values(["step", "line"]).iloc[-1] if len(work) else said.sort_values(["start_ns", "line"]).iloc[-1]
    after = f"step {int(row['step'])}" if len(work) else f"the last lines of the log ({row['file']}:{int(row['line'])})"
    first, end = int(said["start_ns"].min()), int(said["start_ns"].max())
    lowest = said.groupby("file")["line"].max()
    below = [i.notes["lines"] - lowest.get(i.path, 0) for i in inputs if i.kind == "log" and "lines" in i.notes]
    untimed = work[work["line"] > work["file"].map(lowest).fillna(0)]["step"].nunique()  # the words of the last one
    closed = max(below, default=0) <= _MOST_BELOW and untimed <= 1 and (said["clock"] == "log").all()
    return _Last(first, end, max(_INTERVALS * usual, _LEAST_NS), after, ((str(row["file"]), int(row["line"])),), len(work) > 0, bool(closed))


def _alone(last: _Last) -> int:
    """From when on a table without GPUs tells anything."""
    return last.at_ns + max(last.long_ns, _ALONE_NS if last.steps else _START_NS)


def _places(rows: pd.DataFrame) -> tuple[tuple[str, int], ...]:
    return tuple((str(f), int(n)) for f, n in zip(rows["file"], rows["line"], strict=True))


def _busy(use: pd.DataFrame, last: _Last) -> Silence | None:
    """All GPUs stayed busy."""
    later = use[use["start_ns"] >= last.at_ns + last.long_ns]
    devices = use["device"].nunique(dropna=False)
    if not last.steps or not len(later) or later["device"].nunique(dropna=False) < devices:
        return None
    if later["value"].min() < _BUSY_PERCENT or later["start_ns"].nunique() < 2:
        return None
    end = int(later["start_ns"].max())
    gpus = "the GPU still showed" if devices == 1 else f"all {count(devices, 'GPU')} still showed"
    low = later["value"].min()
    why = f"{_nothing(last, end)}, while {gpus} {low:.0f} %{' or more' if low < 100 else ''}"
    return Silence(last.at_ns, end, why, (*last.line, *_places(later.iloc[[0, -1]])))


def _nothing(last: _Last, end: int) -> str:
    return f"nothing was printed for {seconds(end - last.at_ns)} after {last.after}"


def _asleep(seen: pd.DataFrame, last: _Last, who: Identities, topology: Topology) -> Silence | None:
    """Processes of the job that slept uninterruptibly in a file system of the network; they are named where others of the job did not."""
    if not last.closed:
        return None
    began = seen["start_ns"] - seen["dur_ns"] - last.first_ns
    same_clock = began.abs().le(_SETUP_NS).fillna(False) | (seen["start_ns"] - last.at_ns > ZONES_NS)
    rows = (
        seen[same_clock & (seen["start_ns"] >= _alone(last))]
        .sort_values(["start_ns", "line"], kind="stable")
        .drop_duplicates(["host", "value"], keep="last")
    )
    rows = rows.assign(rank=[_rank(who, *row) for row in zip(rows["rank"], rows["host"], rows["label"], rows["value"], strict=True)])
    rows = rows.dropna(subset=["rank"])
    mine = rows[(rows["name"] == "D") & rows["text"].fillna("").str.match(_FILE_SYSTEM.pattern)]
    if not len(mine):
        return None
    end = int(mine["start_ns"].max())
    ranks = tuple(sorted({int(r) for r in mine["rank"]}))
    calls = listed(list(dict.fromkeys(mine["text"])))
    others = (topology.world_size or len(topology.ranks)) > len(ranks)
    doing = f"{SLEPT} ({calls})" if others else ""
    why = _nothing(last, end) if others else f"{_nothing(last, end)}, while all ranks {SLEPT} ({calls})"
    return Silence(last.at_ns, end, why, (*_places(mine.head(4)), *last.line), ranks if others else (), doing)


def _rank(who: Identities, rank: float, host: object, label: object, pid: float) -> int | None:
    """The rank of a process in a table of a host: by its number, which another host may have, too; else as its command says."""
    on = host if isinstance(host, str) else None
    if not pd.isna(rank):
        return int(rank)
    known = who.of_process(on, int(pid))
    return who.of_local(on, label) if known is None and isinstance(label, str) else known


def _running(seen: pd.DataFrame, last: _Last) -> Silence | None:
    """The batch system still ran the job: the one of its table that began when the log did, which also tells that both have one clock."""
    began = last.first_ns - (seen["start_ns"] - seen["dur_ns"])
    mine = seen[(began >= -60 * 10**9) & (began <= _SETUP_NS)]
    if not last.closed or len(set(mine["group"])) != 1:
        return None
    row = mine.loc[mine["start_ns"].idxmax()]
    end = int(row["start_ns"])
    if end < _alone(last):
        return None
    return Silence(last.at_ns, end, f"{_nothing(last, end)}, while job {row['group']} still ran", (*last.line, *_places(mine.loc[[row.name]])))
