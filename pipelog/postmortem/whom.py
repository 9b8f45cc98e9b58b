"""Who began it: ranks, stages and hosts, from the first line, from what followed on the same process, and from those of which nothing is heard."""

from __future__ import annotations

import re

import pandas as pd
import pyarrow as pa

from pipelog._text import listed
from pipelog.postmortem.blamed import blamed_of
from pipelog.postmortem.case import Whom
from pipelog.postmortem.hangs import Hang, silent_targets, told_of_others
from pipelog.postmortem.kinds import Kind, Role, Strength
from pipelog.postmortem.neighbours import neighbour
from pipelog.postmortem.nodes import not_joined, ranks_of_node, speaking
from pipelog.postmortem.roles import AWAITED
from pipelog.tables import frame
from pipelog.tables.topology import Topology

_ENDS_OF_ITS_OWN = frozenset({"cuda-async", "device-assert-unseen", "gpu-unknown-error", "gpu-fault", "killed", "crashed", "aborted"})
"""What a process shows of a cause that another line names: a broken device, a kill by the kernel, an assertion on the GPU."""
_BY_SIGNAL = frozenset({"killed", "crashed", "aborted"})
"""Those of these that have many causes: beside a rank that says what its GPU did they are of others, whom the break took along."""
_MOST_NAMED = 4
_NOT_STARTED = frozenset({"shell-command", "ssh"})
"""Rows of what could not be started on a node that others wait for."""
_OF_ONE = frozenset({"port-in-use"})
"""Kinds of the whole job that are a single rank's where only one says it: the one that opens the store."""
_OF_A_STAGE = re.compile(r"state_dict|size mismatch|layer_\d|mp_rank_\d|zero_pp_rank_\d")
"""Of a checkpoint what each stage has for itself: its weights and its files."""
_SEVERAL = 2
"""Ranks of a stage of which it is no chance that all of them, and none of another stage, met something."""
_LATE = frozenset({"dependency"})
"""Kinds of the start that a single rank may meet later: a module that only some code asks for."""
_OF_A_NODE = frozenset({"launcher-setup"})
"""Kinds of the whole job that a single node may have: its driver, its container runtime."""


def whom_of(
    roles: pd.DataFrame,
    same: pd.DataFrame,
    kind: Kind,
    hang: Hang | None,
    heard: frozenset[int],
    placed: pa.Table,
    topology: Topology,
) -> tuple[Whom, list[int]]:
    """Who began it, and the places of the lines that show it."""
    lines = list(same.index)
    if kind.category == "hang":
        ranks, why = (hang.ranks, hang.why) if hang is not None else ((), "")
        lines = list(hang.lines) if hang is not None and hang.lines else lines
        shown = roles.loc[[place for place in lines if place in roles.index]]
        if (hang is None or not hang.doing) and set(ranks).isdisjoint(ranks_of(shown)):  # else they are of both sides in turn
            lines = _neighbours_first(_own_waits(lines, ranks, roles), ranks, roles, topology)
        return Whom(
            ranks,
            stages_of(ranks, same, topology),
            hosts_of(ranks, same.iloc[:0], topology),  # the lines are of those who wait
            why,
            doing=hang.doing if hang is not None else "",
        ), lines
    if (blamed := blamed_of(roles, kind, placed, topology)) is not None:
        return Whom((), blamed.stages, (blamed.host,) if blamed.host else (), title=blamed.title), list(blamed.lines)
    of_host = ranks_of_node(kind, same, topology) or _all_of_one_host(roles, same, placed, topology) or _named_in(kind, same, placed, topology)
    job = kind.job and not (of_host or _met_by_some(roles, same, kind, placed, topology) or _met_alone(roles, same, kind, topology))
    ranks, why = () if job or kind.strength is Strength.ECHO else of_host or ranks_of(same), ""
    lost_by: tuple[int, ...] = ()
    awaited_by: tuple[int, ...] = ()
    if kind.name in AWAITED:
        ranks, why = _never_came(placed, topology)
    elif not ranks and not job and kind.strength in (Strength.SIGNAL, Strength.ECHO):
        echoes = roles[(roles["error"] == "peer-gone") & (roles["role"] != Role.BENIGN.value)]
        ranks, lost_by, shown = silent_targets(echoes, heard, topology)
        awaited_by = ranks_of(echoes.loc[list(shown)])
        ranks = ranks or _only_silent(roles, lost_by, heard, topology)
        why = _lost(ranks, lost_by) if kind.strength is Strength.SIGNAL else ""
        lines += [place for place in shown or tuple(echoes.index) if place not in lines]
    if not ranks and not job and kind.strength is not Strength.ECHO:
        ranks = _only_one_that_does_not_wait(roles, kind, heard, topology)
    if not ranks and not job and kind.strength is not Strength.ECHO:
        tasks = _by_task(roles, same)
        told = tasks if len(tasks) else _as_seen_by_the_process(roles, same, kind, topology)
        ranks, lines = ranks_of(told), [*lines, *told.index]
    hosts = hosts_of(ranks, same.iloc[:0] if kind.name in AWAITED else same, topology)  # who waited in vain is not who did not come
    if kind.name in AWAITED and not hosts:
        unstarted = roles[roles["name"].isin(_NOT_STARTED) & roles["host"].notna() & (roles["role"] != Role.BENIGN.value)]
        hosts, lines = hosts_of((), unstarted, topology), [*lines, *unstarted.index]
        why = why or (f"on {listed(hosts)} nothing was started" if hosts else "")
        if not hosts:
            hosts, why = not_joined(same, placed)
    if not ranks and not job:
        ranks, hosts = _by_exit(roles[~roles["host"].isin(_others(placed, same))], hosts, len(same))
        hosts = hosts or hosts_of(ranks, same.iloc[:0], topology)
    elif not hosts and kind.name in _OF_A_NODE:
        hosts = _by_exit(roles, hosts, 1)[1]
    labels = {w for w in same["label"] if isinstance(w, str)}
    label = labels.pop() if len(labels) == 1 else None
    return Whom(ranks, stages_of(ranks, same, topology), hosts, why, label, lost_by=lost_by, awaited_by=awaited_by), lines


def _own_waits(lines: list[int], ranks: tuple[int, ...], roles: pd.DataFrame) -> list[int]:
    """Without the lines of ranks that only say how far they were when the call of another one timed out, where there are others."""
    told = told_of_others(roles.loc[[place for place in lines if place in roles.index]])
    told &= ~roles.loc[told.index, "rank"].isin(ranks)
    return [place for place in lines if not told.get(place, False)] if not told.all() else lines


def _neighbours_first(lines: list[int], ranks: tuple[int, ...], roles: pd.DataFrame, topology: Topology) -> list[int]:
    """Of many who waited those next to the ranks waited for, along the pipeline: theirs are the lines that point to them."""
    beside = {n for rank in ranks for way in (-1, 1) if (n := neighbour(topology, rank, way)) is not None} - set(ranks)
    near = {place for place in lines if place in roles.index and not pd.isna(rank := roles.at[place, "rank"]) and int(rank) in beside}
    return sorted(lines, key=lambda place: place not in near)


def _named_in(kind: Kind, same: pd.DataFrame, placed: pa.Table, topology: Topology) -> tuple[int, ...]:
    """Few ranks whom the lines of a whole job name: the two that share a GPU, the one that saw each overflow."""
    if kind.name == "duplicate-gpu":
        found = {int(r) for pair in same["text"].str.extractall(_SHARE).to_numpy().tolist() for r in pair}
    elif kind.category == "numerics.loss-scale":
        rows = frame(placed, ("overflow",), ("name", "rank"))
        found = set(rows.loc[rows["name"] == "culprit", "rank"].dropna().astype(int))
        found = found if len(found) == 1 else set()
    else:
        found = set()
    return tuple(sorted(found)) if len(found) * 4 <= (topology.world_size or 0) else ()


_SHARE = r"Duplicate GPU detected : rank (\d{1,6}) and rank (\d{1,6}) both on"


def _all_of_one_host(roles: pd.DataFrame, same: pd.DataFrame, placed: pa.Table, topology: Topology) -> tuple[int, ...]:
    """The ranks of the one host where each process says the same (or as many say it as the host has ranks) while others that speak do not."""
    hosts = set(same["host"].dropna())
    if len(hosts) != 1 or same["host"].isna().any() or not len(topology.ranks) or not (hosts & set(topology.ranks["host"].dropna())):
        return ()
    mine = {int(r) for r in topology.ranks.loc[topology.ranks["host"].isin(hosts), "rank"]}
    others = roles.loc[roles["host"].notna() & ~roles["host"].isin(hosts), "host"]
    said = set(ranks_of(same))
    whole = said == mine if said else len(same.drop_duplicates(["file", "line"])) == len(mine)
    return tuple(sorted(mine)) if whole and len(mine) < len(topology.ranks) and (len(others) or speaking(placed) - hosts) else ()


def _met_by_some(roles: pd.DataFrame, same: pd.DataFrame, kind: Kind, placed: pa.Table, topology: Topology) -> bool:
    """Whether some ranks alone met what mostly concerns the whole job: others came past it and lost these, or it is a late import after steps.

    Not what the machines are: a full disk or a broken network is met first by one of many.
    """
    ranks, world = set(ranks_of(same)), topology.world_size
    if not ranks or not world or len(ranks) >= world or kind.category.partition(".")[0] in ("host", "hardware", "network", "storage"):
        return False
    lost = set(roles.loc[roles["error"] == "peer-gone", "rank"].dropna().astype(int))
    if lost - ranks or kind.name not in _LATE:
        return bool(lost - ranks)
    made = frame(placed, ("step", "progress", "iteration"), ("step", "file", "line")).dropna(subset=["step"])
    first = same.groupby("file")["line"].min()
    return bool((made["line"] < made["file"].map(first)).fillna(False).any())


def _met_alone(roles: pd.DataFrame, same: pd.DataFrame, kind: Kind, topology: Topology) -> bool:
    """Whether few ranks met what others did not: the port of the store, or a checkpoint's file of their stage.

    The latter where a launcher says that the others were only taken down.
    """
    ranks, world = ranks_of(same), topology.world_size or 0
    if kind.name in _OF_ONE:
        return len(ranks) == 1 and len(same) == 1
    of_a_stage = kind.category == "checkpoint" and same["text"].str.contains(_OF_A_STAGE.pattern).all()
    return bool(
        of_a_stage and 0 < len(ranks) < world and (_whole_stages(ranks, topology) or (len(ranks) <= world / 4 and _by_exit(roles, (), 1)[0] == ranks))
    )


def _whole_stages(ranks: tuple[int, ...], topology: Topology) -> bool:
    """Whether they are all the ranks of some stages, two or more of each, and no others: no chance of who came first."""
    known = topology.ranks.dropna(subset=["stage"]) if len(topology.ranks) else topology.ranks
    sizes = known.groupby("stage")["rank"].nunique() if len(known) == topology.world_size else pd.Series(dtype="int64")
    mine = known[known["rank"].isin(ranks)].groupby("stage")["rank"].nunique() if len(sizes) else sizes
    return 0 < len(mine) < len(sizes) and bool((mine >= _SEVERAL).all() and (mine == sizes.reindex(mine.index)).all())


def _only_silent(roles: pd.DataFrame, complaining: tuple[int, ...], heard: frozenset[int], topology: Topology) -> tuple[int, ...]:
    """The one rank of which nothing is heard while all others lost a peer, where the output of all is among the files."""
    world = {int(r) for r in topology.ranks["rank"]} if len(topology.ranks) else set()
    own = roles[~roles["role"].isin([Role.TEARDOWN.value, Role.BENIGN.value])]
    silent = world - set(complaining) - set(own["rank"].dropna().astype(int))
    return tuple(silent) if complaining and len(silent) == 1 and world <= heard else ()


def _only_one_that_does_not_wait(roles: pd.DataFrame, kind: Kind, heard: frozenset[int], topology: Topology) -> tuple[int, ...]:
    """The rank of a broken device that no line ties to one: all others waited in vain, or lost a peer."""
    if not kind.category.startswith("hardware.gpu"):
        return ()
    echoes = roles[roles["error"].isin(["timeout-nccl", "timeout-gloo", "timeout-hccl", "peer-gone"]) & (roles["role"] != Role.BENIGN.value)]
    return _only_silent(roles, ranks_of(echoes), heard, topology)


def _lost(ranks: tuple[int, ...], complaining: tuple[int, ...]) -> str:
    if not complaining:
        return ""
    it = "them" if len(ranks) > 1 else "it"
    return f"rank{'s' if len(complaining) > 1 else ''} {listed(complaining)} lost a peer" + (f", and nothing was heard of {it}" if ranks else "")


def ranks_of(rows: pd.DataFrame) -> tuple[int, ...]:
    """Ranks that the rows name."""
    return tuple(sorted(set(rows["rank"].dropna().astype(int))))


def stages_of(ranks: tuple[int, ...], rows: pd.DataFrame, topology: Topology) -> tuple[int, ...]:
    """Stages of the ranks, else of the rows; none where no rank is named."""
    found = {s for r in ranks if (s := topology.stage_of(r)) is not None} or set(rows["stage"].dropna().astype(int))
    return tuple(sorted(found)) if ranks else ()


def hosts_of(ranks: tuple[int, ...], rows: pd.DataFrame, topology: Topology) -> tuple[str, ...]:
    """Hosts of the ranks, else of the rows."""
    found = {h for r in ranks if (h := topology.host_of(r)) is not None}
    return tuple(sorted(found or {h for h in rows["host"] if isinstance(h, str)}))


def _by_task(roles: pd.DataFrame, same: pd.DataFrame) -> pd.DataFrame:
    """srun's lines of the same kind on the same host, with the task: the daemon of a node words a kill without it."""
    hosts = set(same["host"].dropna())
    mine = roles[(roles["name"] == "slurm-task") & roles["error"].isin(same["error"]) & (roles["role"] != Role.BENIGN.value)]
    return mine[mine["host"].isin(hosts) & mine["rank"].notna()] if len(hosts) == 1 else mine.iloc[:0]


def _as_seen_by_the_process(roles: pd.DataFrame, same: pd.DataFrame, kind: Kind, topology: Topology) -> pd.DataFrame:
    """Lines in which ranks that are known say what became of them, where the first line (of the kernel, of a device) names no rank.

    Those of the same category, and the ends that such a cause has: an assertion in a kernel makes the next CUDA call of the process fail. What
    others notice does not count. Where every rank was hit, or the hosts do not agree, none is named.
    """
    hosts, first = set(same["host"].dropna()), same.iloc[0]
    own = (roles["category"] == kind.category) | roles["error"].isin(_ENDS_OF_ITS_OWN if kind.strength is Strength.CAUSE else ())
    mine = roles[own & roles["rank"].notna() & ~roles["role"].isin([Role.TEARDOWN.value, Role.BENIGN.value]) & (roles["error"] != "left-with-code")]
    mine = mine[(mine["file"] != first["file"]) | (mine["line"] >= first["line"])]
    if len(hosts) == 1:
        mine = mine[mine["host"].isna() | mine["host"].isin(hosts)]
    elif (mine["file"] == first["file"]).any() and same["rank"].isna().all():  # of several nodes' logs it is one of its own
        mine = mine[mine["file"] == first["file"]]
    if kind.category.startswith("hardware.gpu") and not (signals := mine["error"].isin(_BY_SIGNAL)).all():
        mine = mine[~signals]
    named = set(mine["rank"].astype(int))
    if len(named) > 1 and same["name"].str.startswith("kernel").all() and len(set(same["group"])) == 1 and isinstance(first["group"], str):
        # the kernel names one GPU, which is one rank's
        return mine.iloc[:0]
    return mine.drop_duplicates("rank") if len(named) < (topology.world_size or len(named) + 1) and len(named) <= _MOST_NAMED else mine.iloc[:0]


def _others(placed: pa.Table, same: pd.DataFrame) -> set[str]:
    """Hosts that are known to write themselves, and are none of those that wrote the lines: a process that failed there did not say them."""
    mine = set(same["host"].dropna())
    spoken = placed.filter(pa.compute.not_equal(placed.column("kind").cast(pa.string()), "end")).column("host")
    seen = {h for h in spoken.unique().to_pylist() if isinstance(h, str)}
    return seen - mine if mine and mine <= seen else set()


def _by_exit(roles: pd.DataFrame, hosts: tuple[str, ...], many: int) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """The one process that left with an error code of its own while all others were taken down by a signal: rank and host, as far as told.

    Or as many of one host as there are tracebacks (*many*) that name no rank: each is then the end of one of them.
    """
    own = roles[roles["code"].notna() & roles["name"].isin(["child-failed", "child-root-cause", "slurm-task"])]
    if not len(own):  # torchrun's line of the one that it saw first, where its table is not among the files
        own = roles[(roles["name"] == "exit-code") & roles["text"].astype(str).str.startswith("failed (exitcode: ")]
    own = own[(own["code"] > 0) | own["code"].isin([-4, -7, -8, -9, -11])]
    ranks = set(own["rank"].dropna().astype(int))
    named = {h for h in own["host"] if isinstance(h, str)}
    lines = len(own.drop_duplicates(["file", "line"]))
    as_many = len(named) == 1 and 1 < many == len(ranks) == lines and (own["code"] > 0).all()
    # torchrun says of one process first that it failed, then once more in its table
    return (tuple(sorted(ranks)) if (len(ranks) == 1 and (lines == 1 or own["rank"].notna().all())) or as_many else ()), (
        tuple(named) if len(named) == 1 else hosts
    )


_BARRIER = r"store based barrier on rank: (?P<rank>\d{1,9}), for key: \S+ \(world_size=(?P<world>\d{1,9}), (?:worker_count|num_workers_joined)=(?P<came>\d{1,9})"


def _never_came(placed: pa.Table, topology: Topology) -> tuple[tuple[int, ...], str]:
    """Ranks that did not join the store-based barrier, where those that did are all known."""
    rows = frame(placed, ("error",), ("name", "rank", "value", "text"))
    waits = rows[rows["name"] == "store-wait"]
    told = rows.loc[rows["name"] == "python-exception", "text"].str.extract(_BARRIER).dropna().astype(int)
    came = set(waits["rank"].dropna().astype(int)) | set(told["rank"])
    joined = pd.concat([waits["value"].dropna(), told["came"]])
    world = topology.world_size or (int(told["world"].max()) if len(told) else None)
    if not world or not len(joined) or len(came) != int(joined.max()) or len(came) >= world:
        return (), ""
    return tuple(r for r in range(world) if r not in came), f"{len(came)} of {world} joined"
