"""The rank of rows that name none: from what a launcher calls the writer, and from the names of the files where these are all there."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping

import numpy as np
import pandas as pd
import pyarrow as pa

from pipelog.events import Input
from pipelog.tables import frame
from pipelog.tables.environment import ranks_of_environment

_STARTS_OTHERS = frozenset({"spawned", "node", "torchrun", "restart", "child-failed"})
_OWN = ("step", "progress", "iteration", "memory_usage", "overflow", "error")
"""Kinds of rows whose rank is that of the process that wrote them; of errors only exceptions are."""
_IN_GROUP = ("nccl-watchdog", "nccl-enqueued", "nccl-completed", "nccl-abort", "nccl-heartbeat")
"""Rows of a watchdog, whose own word for the rank may be that within a process group: what the launcher says of the writer beats it."""
_SELDOM = ("mpi", "sagemaker")
_NUMBER = re.compile(r"(?<![\d.])\d{1,6}(?![\d.]*\d)")
_SAYS_RANK = re.compile(r"(?i)(?<![a-z])(?:rank|proc|process|procid|task)[-_.]?$")
_NODE = re.compile(r"(?i)(?:node|local|machine|host|pod|stage)[-_. ]?(?:rank[-_. ]?)?$")
_DIGITS = re.compile(r"\d+")
_MOST_FILES = 1 << 16


def ranks_of_writers(here: pa.Table, world: int | None, inputs: list[Input]) -> pa.ChunkedArray:
    """The rank column, filled from labels (`local 3`, `task 3`, `pid 4391`) and from file names where these can be told.

    world: number of ranks, null where not known; then only processes that a launcher lists by rank are told.
    """
    here = _without_local(here, world, inputs)
    own = _own(here)
    rank = _not_of_its_file(here, inputs, own)
    known = _processes(here) | (_tasks(here, world, inputs, own) | _locals(here, world) if world else {})
    if known:
        words = pa.array(list(known), pa.string())
        numbers = pa.array(list(known.values()), pa.int32())
        said = numbers.take(pa.compute.index_in(here.column("label").cast(pa.string()), words))
        in_group = pa.compute.is_in(here.column("name").cast(pa.string()), pa.array(_IN_GROUP, pa.string()))  # `[Rank 0]` of a process group
        rank = pa.compute.coalesce(pa.compute.if_else(in_group, said, pa.scalar(None, pa.int32())), rank, said)
    rank = pa.compute.coalesce(rank, _by_agent(here))
    rank = ranks_of_environment(here, rank, world, own)
    files = (_by_file(world, inputs, own) if world and world > 1 else {}) | _of_processes(here)
    if files:
        place = pa.compute.index_in(here.column("file").cast(pa.string()), pa.array(list(files), pa.string()))
        bare = pa.compute.and_(
            pa.compute.is_null(here.column("label")), pa.compute.invert(pa.compute.equal(here.column("kind").cast(pa.string()), "fact"))
        )
        rank = pa.compute.coalesce(rank, pa.compute.if_else(bare, pa.array(list(files.values()), pa.int32()).take(place), None))
    return rank


def _without_local(here: pa.Table, world: int | None, inputs: list[Input]) -> pa.Table:
    """The rows without ranks that a prefix of the user's own (`rank 3: `) states, where it counts within a host: the same one on several hosts or,
    below the number of ranks, in several files.
    """
    files = [i.path for i in inputs if "ranked" in i.notes.get("prefixes", ())]
    if not files:
        return here
    mine = pa.compute.is_in(here.column("file").cast(pa.string()), pa.array(files, pa.string()))
    of_others = pa.compute.is_in(here.column("kind").cast(pa.string()), pa.array(["place", "end", "process"], pa.string()))
    rows = here.filter(pa.compute.and_not(mine, of_others)).select(["file", "host", "rank"]).group_by(["file", "host", "rank"]).aggregate([])
    said = rows.to_pandas().dropna(subset=["rank"])
    each = said.drop_duplicates(["file", "rank"])["rank"].value_counts()
    hosts = said.dropna(subset=["host"]).drop_duplicates(["host", "rank"])["rank"].value_counts()
    of_hosts = len(hosts) > 0 and int(hosts.max()) > 1
    of_files = bool(world) and len(each) > 1 and int(each.max()) > 1 and int(said["rank"].max()) + 1 < int(world or 0)
    if not (of_hosts or of_files):
        return here
    rank = pa.compute.if_else(pa.compute.and_not(mine, of_others), pa.scalar(None, pa.int32()), here.column("rank"))
    return here.set_column(here.schema.get_field_index("rank"), here.schema.field("rank"), rank)


def _own(here: pa.Table) -> pd.DataFrame:
    """rank, label and file of the rows in which a process names its own rank."""
    rows = frame(here, (*_OWN, "place"), ("kind", "name", "rank", "label", "file")).dropna(subset=["rank"])
    mine = rows["kind"].isin(_OWN[:-1]) | (rows["name"] == "discovery") | ((rows["kind"] == "error") & (rows["name"] == "python-exception"))
    return rows.loc[mine, ["rank", "label", "file"]].drop_duplicates()


def _words(here: pa.Table) -> list[str]:
    return [w for w in pa.compute.unique(here.column("label").cast(pa.string())).to_pylist() if w]


def _tasks(here: pa.Table, world: int, inputs: list[Input], own: pd.DataFrame) -> dict[str, int]:
    """`task 3` → 3. A task is a rank where there are as many tasks as ranks; it may also be a whole node's launcher.

    There are as many where the last of them is named; where several name themselves by the same number; and, if nobody else starts
    processes, under launchers that start one process a rank (mpirun), whose tasks may seldom say anything.
    """
    words = _words(here)
    tasks = {w: int(w[5:]) for w in words if w.startswith("task ") and w[5:].isdecimal()}
    named = {number for w in words if w.startswith("task ") for number in _numbers(w[5:], world)}
    if not named:
        return {}
    said = own.dropna(subset=["label"])
    said = said[said["label"].isin(tasks)]
    numbers = said["label"].map(tasks)
    if (numbers != said["rank"]).any() or max(named) >= world:
        return {}
    seldom = any(name in i.notes.get("prefixes", ()) for i in inputs for name in _SELDOM)
    sure = max(named) + 1 == world or len(set(numbers)) > 1 or (seldom and _is_only_launcher(here, tasks))
    return tasks if sure else {}


def hosts_of_tasks(here: pa.Table, world: int, known: Mapping[int, str]) -> dict[int, str]:
    """Task → host, as srun lists the tasks of each node that ended alike. None where a task may be a whole node's launcher: the last of as many tasks as
    ranks is not among them, and no rank behind the first (*known*: rank → host) is on the host of the task of its number, or one is not.
    """
    rows = frame(here, ("end",), ("name", "host", "label")).dropna()
    rows = rows[rows["name"].str.startswith("slurm-task") & rows["label"].str.startswith("task ")]
    found = {number: str(host) for host, label in zip(rows["host"], rows["label"], strict=True) for number in _numbers(label[5:], world)}
    if not found or max(found) >= world:
        return {}
    agree = [known[number] == host for number, host in found.items() if number and number in known]
    return found if max(found) + 1 == world or (agree and all(agree)) else {}


def _locals(here: pa.Table, world: int) -> dict[str, int]:
    """`local 3` → 3 on a single host, where the local rank is the global one.

    It is a single host where all ranks say so, where the last local rank is that of the last rank, or one beyond the half: hosts have equally
    many ranks. The latter only where no other host is named, and no line gives a local rank another number.
    """
    known = {w: int(w[6:]) for w in _words(here) if w.startswith("local ") and w[6:].isdecimal()}
    if not known or max(known.values()) >= world:
        return {}
    if max(known.values()) + 1 == world:
        return known
    pairs = frame(here, ("end", "place", "process", "error"), ("kind", "rank", "label", "host"))
    placed = pairs.loc[pairs["kind"] == "place", ["rank", "host"]].dropna().drop_duplicates()
    if len(placed) == world and placed["rank"].nunique() == world and len(set(placed["host"])) == 1:
        return known
    both = pairs.dropna(subset=["rank", "label"])
    numbers = both["label"].map(known)
    hosts = {str(h) for h in here.column("host").unique().to_pylist() if h}
    differ = (numbers.notna() & (numbers != both["rank"])).any()
    alone = 2 * max(known.values()) >= world and len(hosts) <= 1 and not differ and numbers.notna().any()
    return known if alone else {}


def _processes(here: pa.Table) -> dict[str, int]:
    """`pid 4391` → rank, as a launcher lists them; none where two hosts have a process of that number."""
    rows = frame(here, ("process",), ("name", "rank", "value")).dropna(subset=["rank", "value"])
    rows = rows[rows["name"] == "worker"]
    found: dict[str, set[int]] = defaultdict(set)
    for rank, pid in zip(rows["rank"], rows["value"], strict=True):
        found[f"pid {int(pid)}"].add(int(rank))
    return {word: ranks.pop() for word, ranks in found.items() if len(ranks) == 1}


def _by_agent(here: pa.Table) -> pa.Array:
    """The rank of each row with a local rank, where the agent of its file lists the ranks of its processes: several agents where prefixes of hosts tell them apart."""
    rows = frame(here, ("process",), ("name", "rank", "file", "host", "label"))
    rows = rows[rows["name"] == "agent"].dropna(subset=["rank", "label"])
    if not len(rows):
        return pa.nulls(here.num_rows, pa.int32())
    found: dict[tuple[str, str, str], set[int]] = defaultdict(set)
    for file, host, label, rank in zip(rows["file"], rows["host"].fillna(""), rows["label"], rows["rank"], strict=True):
        found[file, host, label].add(int(rank))
    known = {key: ranks.pop() for key, ranks in found.items() if len(ranks) == 1}
    keys = pa.compute.binary_join_element_wise(
        *(pa.compute.fill_null(here.column(name).cast(pa.string()), "") for name in ("file", "host", "label")), "\0"
    )
    place = pa.compute.index_in(keys, pa.array(["\0".join(key) for key in known], pa.string()))
    place = place.combine_chunks() if isinstance(place, pa.ChunkedArray) else place
    return pa.array(list(known.values()), pa.int32()).take(place)


def _not_of_its_file(here: pa.Table, inputs: list[Input], own: pd.DataFrame) -> pa.ChunkedArray:
    """The rank column without the ranks that only the name of a file says, where other ranks write into it: `rank8/` may be that of a LoRA."""
    rank = here.column("rank")
    named = {i.path: r for i in inputs if (r := i.notes.get("rank_from_name")) is not None and i.kind == "log"}
    if not named:
        return rank
    others = own[own["file"].isin(named) & (own["rank"] != own["file"].map(named))]
    if not len(others):
        return rank
    wrong = {file: named[file] for file in others["file"].unique()}
    place = pa.compute.index_in(here.column("file").cast(pa.string()), pa.array(list(wrong), pa.string()))
    void = pa.compute.equal(rank, pa.array(list(wrong.values()), pa.int32()).take(place))
    return pa.compute.if_else(pa.compute.fill_null(void, False), pa.scalar(None, pa.int32()), rank)


def _of_processes(here: pa.Table) -> dict[str, int]:
    """File → rank, where each of several logs is that of one process, which states its rank as mpirun told it."""
    rows = frame(here, ("place",), ("name", "rank", "file"))
    said = rows.loc[rows["name"] == "discovery", ["rank", "file"]].dropna().drop_duplicates()
    if len(said) < 2 or said["file"].duplicated().any() or said["rank"].duplicated().any():
        return {}
    return dict(zip(said["file"], said["rank"].astype(int), strict=True))


def _by_file(world: int, inputs: list[Input], own: pd.DataFrame) -> dict[str, int]:
    """File → rank, where the names of logs differ in one number, which is that of each rank once: `std_log_process_00.txt` … `_07.txt` of eight.

    It is the rank where the name says so (rank, process, task), or a process of that number names itself; and never where one names another.
    """
    logs = [i.path for i in inputs if i.kind == "log"]
    if not world <= len(logs) <= _MOST_FILES:
        return {}
    groups: dict[tuple[str, str], dict[int, str]] = defaultdict(dict)
    twice: set[tuple[str, str]] = set()
    for path in logs:
        for m in _NUMBER.finditer(path):
            before, after = path[: m.start()], path[m.end() :]
            groups[before, after][int(m.group())] = path
            if (alike := _DIGITS.sub("#", before)) != before and _SAYS_RANK.search(before):  # node0_rank3, node1_rank4
                twice |= {(alike, after)} if int(m.group()) in groups[alike, after] else set()
                groups[alike, after][int(m.group())] = path
    ranks = own.groupby("file")["rank"].agg(lambda r: set(r.astype(int))).to_dict() if len(own) else {}
    out: dict[str, int] = {}
    for (before, after), files in groups.items():
        if (before, after) in twice or len(files) != world or not np.array_equal(sorted(files), np.arange(world)) or _NODE.search(before):
            continue
        stated = [ranks[path] == {number} for number, path in files.items() if path in ranks]
        if all(stated) and (stated or _SAYS_RANK.search(before)):
            out |= {path: number for number, path in files.items()}
    return out


def _is_only_launcher(here: pa.Table, tasks: dict[str, int]) -> bool:
    """Whether no launcher within a task starts processes, and no error of a task names another rank than its own."""
    names = pa.compute.unique(here.column("name").cast(pa.string())).to_pylist()
    if not _STARTS_OTHERS.isdisjoint(names):
        return False
    errors = frame(here, ("error",), ("rank", "label")).dropna()
    numbers = errors["label"].map(tasks)
    return bool((numbers.isna() | (numbers == errors["rank"])).all())


def _numbers(listed: str, most: int) -> set[int]:
    """The tasks of `0-1,3`, as srun lists those that ended alike; empty where it is no such list or has more than *most*."""
    found: set[int] = set()
    for part in listed.strip("[]").split(","):
        first, _, last = part.partition("-")
        if not (first.isdecimal() and (last or first).isdecimal()) or len(first) > 9 or len(last) > 9 or int(last or first) - int(first) > most:
            return set()
        found |= set(range(int(first), int(last or first) + 1))
    return found
