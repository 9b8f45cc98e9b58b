"""Who is waited for: watchdogs and timeouts, the pipeline's dependencies, and who is silent while others complain."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import pandas as pd
import pyarrow as pa

from pipelog._text import count, listed, seconds
from pipelog.findings import Confidence
from pipelog.postmortem.flights import Flights
from pipelog.postmortem.groups import group_of, places_of
from pipelog.postmortem.identities import Identities
from pipelog.postmortem.kinds import Role
from pipelog.postmortem.neighbours import left_before, towards
from pipelog.postmortem.silence import Silence
from pipelog.postmortem.stacks import Stacks
from pipelog.tables import frame, table
from pipelog.tables.topology import Topology

_P2P = frozenset({"SEND", "RECV", "COALESCED"})
_CALL = re.compile(r"SeqNum=(?P<seq>\d+), OpType=(?P<op>\w+)(?:, (?P<sizes>NumelIn=\d+, NumelOut=\d+))?")

_FEW = 4
"""Of the ranks of a pipeline at most one in so many is named for its silence alone."""
_MOST_SEEN = 2
"""Ranks whose frames a title has room for."""
_BARRIER = re.compile(r"\bRanks? (\d+(?:, \d+)*) failed to pass monitoredBarrier")
_REPORTED = re.compile(r"received errors while waiting for send/recv from rank \d+")
"""Whom the others of a monitored barrier blame: the rank that watches it, and tells in its own line who did not come."""
_NOTIFY = re.compile(r"remote rank:? ?\[(?P<peer>\d+)\](?:.*?rankSize\[(?P<size>\d+)\])?")
_GLOO_P2P = re.compile(r"Timed out waiting \d+ms for (?:send|recv) operation")
_PASSED = "failed to pass monitoredBarrier"
_OF_JOB = re.compile(rf"{_PASSED}|missing ranks: \{{")
"""Reports whose ranks are the job's, not places in a process group."""
_NCCL_ID = re.compile(r"retrieving ncclUniqueId from \[(\d+)\]")


@dataclass(frozen=True, slots=True)
class Hang:
    """ranks: those that are waited for, as far as that can be told. why: the reason in words. arrived: whether all came to the call.

    doing: where those stood while others waited, as a predicate; of nobody, who waited where. left: whether those ended by themselves before. stood: where the stacks show the
    processes, if those of several were dumped; seen: where they show those who are waited for. begin_ns: when the wait began (local time). lines: places in the table of errors that show it; evidence: (file, line) of other rows.
    confidence: that it hung at all, and that these are the ones, where no timeout says so. same_call: whether all members of the group were in one and the same call.
    """

    ranks: tuple[int, ...] = ()
    why: str = ""
    arrived: bool | None = None
    begin_ns: int | None = None
    lines: tuple[int, ...] = ()
    evidence: tuple[tuple[str, int], ...] = ()
    confidence: Confidence = Confidence.MEDIUM
    left: bool = False
    doing: str = ""
    stood: str = ""
    seen: str = ""
    same_call: bool = False


@table("heard", needs=("placed", "topology"))
def heard(placed: pa.Table, topology: Topology) -> frozenset[int]:
    """Ranks whose output the files hold: those of which a line stands there, and all that write into the same stream as several of them.

    Only of these can silence mean something: a rank whose log was not given says nothing either way.
    """
    rows = frame(
        placed, ("error", "end", "process", "step", "progress", "iteration", "memory_usage", "overflow", "comm_init"), ("rank", "file", "host")
    )
    known = rows.dropna(subset=["rank"]).drop_duplicates()
    out = set(known["rank"].astype(int))
    mixed = known.groupby("file")["rank"].nunique()
    for file in mixed[mixed > 1].index:
        hosts = {h for h in known.loc[known["file"] == file, "host"] if isinstance(h, str)}
        if len(topology.ranks):
            most = 2 * known.loc[known["file"] == file, "rank"].nunique() > len(topology.ranks)  # more than one host of two could be
            everywhere = topology.ranks["host"].isna().all() or not hosts or most
            out |= set(topology.ranks["rank"] if everywhere else topology.ranks.loc[topology.ranks["host"].isin(hosts), "rank"])
    return frozenset(int(r) for r in out)


@table("hang", needs=("errors", "heard", "placed", "topology", "identities", "flights", "stacks", "silence"))
def hang(
    errors: pd.DataFrame,
    heard: frozenset[int],
    placed: pa.Table,
    topology: Topology,
    identities: Identities,
    flights: Flights | None,
    stacks: Stacks | None,
    silence: Silence | None,
) -> Hang | None:
    """Who is waited for in the attempt, and where stacks show them; None where nobody waits."""
    found = _waited_for(errors, heard, placed, topology, identities, flights, stacks, silence)
    return found if found is None or stacks is None else _seen(found, stacks)


def _seen(found: Hang, stacks: Stacks) -> Hang:
    """The hang with what stacks show of all, and of those who are waited for where something else names them: the frame that each stands in."""
    mine = {rank: stacks.frames[rank] for rank in found.ranks if rank in stacks.frames}
    if not mine or found.doing or (stacks.evidence and found.evidence == stacks.evidence) or len(mine) > _MOST_SEEN:
        return replace(found, stood=stacks.why)
    places = listed(list(dict.fromkeys(stood.where for stood in mine.values())))
    lines = [*(stood.line for stood in mine.values()), *(stood.map for stood in mine.values() if stood.map is not None)]
    why = f"{found.why}{'; ' if found.why else ''}{'its stack shows' if len(mine) == 1 else 'their stacks show'} {'it' if len(mine) == 1 else 'them'} in {places}"
    return replace(found, why=why, evidence=(*lines, *found.evidence), stood=stacks.why, seen=places)


def _waited_for(
    errors: pd.DataFrame,
    heard: frozenset[int],
    placed: pa.Table,
    topology: Topology,
    identities: Identities,
    flights: Flights | None,
    stacks: Stacks | None,
    silence: Silence | None,
) -> Hang | None:
    """Who is waited for.

    A flight recorder knows best, then the desync report, then the watchdogs, then stacks of all processes; GPUs that stay busy while nothing is
    printed, and a job that still runs then, tell only that it hangs, processes that sleep in a file system who holds up the others.
    """
    waits = errors[errors["error"].isin(["timeout-nccl", "timeout-gloo", "timeout-hccl"]) & (errors["role"] != Role.BENIGN.value)]
    waits = waits.iloc[told_of_others(waits).to_numpy().argsort(kind="stable")]  # shown last: no wait of theirs
    begin, lines = _begin(waits), tuple(waits.index)
    if flights is not None:
        none = f", and left no dump ({listed(flights.absent)})" if flights.absent else ""
        why = f"{count(flights.waiters, 'rank')} waited in calls that {'it had' if len(flights.ranks) == 1 else 'they had'} not begun ({flights.calls[0]}){none}"
        return Hang(flights.ranks, why, False, begin, lines[:2], flights.evidence, Confidence.HIGH)
    accused = _accused(errors, placed)
    ranks = _in_job(accused, waits, topology)
    if ranks:
        return Hang(ranks, f"{_reporter(accused)} names {'it' if len(ranks) == 1 else 'them'}", False, begin, tuple(accused.index))
    if (named := _named(waits, topology)) is not None:
        return Hang(*named, False, begin, lines)
    found = None
    if len(waits):
        found = (
            _by_call(errors, waits, topology, begin)
            or _by_pipeline(waits, heard, topology, begin)
            or _by_place(errors, waits, heard, topology, begin)
            or _apart(errors, waits, topology, begin)
            or _by_group(errors, waits, heard, topology, begin)
            or _but_few(waits, heard, topology, begin)
            or _idle(errors, waits, topology, begin)
            or Hang((), "", None, begin, lines)
        )
        found = _gone(found, left_before(placed, waits, identities), topology)
    if (found is None or not (found.ranks or found.arrived)) and stacks is not None and stacks.waiting:
        return Hang(stacks.ranks, stacks.why, False if stacks.ranks else None, begin, lines, stacks.evidence, doing=stacks.doing)
    if found is None and silence is not None:
        confidence = Confidence.MEDIUM if silence.ranks else Confidence.LOW
        return Hang(silence.ranks, silence.why, None, silence.since_ns, (), silence.evidence, confidence, doing=silence.doing)
    return found


def _gone(found: Hang, left: dict[int, tuple[str, int]], topology: Topology) -> Hang:
    """The hang, with the line that shows where those who are waited for had left with exit code 0 before; where nobody is named, they are."""
    world = len(topology.ranks)
    if not found.ranks and not found.arrived and 0 < len(left) <= world / _FEW:
        it = "it" if len(left) == 1 else "they"
        why = f"{it} left with exit code 0 before the calls of the others timed out"
        return replace(found, ranks=tuple(sorted(left)), why=why, arrived=False, evidence=tuple(left.values()), left=True)
    if found.ranks and left.keys() >= set(found.ranks):
        why = f"{found.why}{'; ' if found.why else ''}{'it' if len(found.ranks) == 1 else 'they'} had left with exit code 0"
        return replace(found, why=why, evidence=tuple(left[r] for r in found.ranks), left=True)
    return found


def _named(waits: pd.DataFrame, topology: Topology) -> tuple[tuple[int, ...], str] | None:
    """Ranks that the waiting ones name themselves, and how: gloo's monitored barrier, and the store that was asked for another rank's NCCL id."""
    ranks = {int(r) for t in waits["text"] for m in _BARRIER.finditer(t) for r in m.group(1).split(", ")}
    if ranks:
        return tuple(sorted(ranks)), "the monitored barrier names it" if len(ranks) == 1 else "the monitored barrier names them"
    notified = [m for t in waits["text"] if (m := _NOTIFY.search(t))]
    peers = {int(m["peer"]) for m in notified}
    whole = all(m["size"] and int(m["size"]) == (topology.world_size or 0) for m in notified)  # elsewhere it counts within a group
    if len(peers) == 1 and whole and not peers & set(waits["rank"].dropna().astype(int)):
        return tuple(peers), f"{count(len(notified), 'rank')} waited in vain for its notify record"
    asked = [m for t in waits["text"] if (m := _NCCL_ID.search(t))]
    root = {int(m.group(1)) for m in asked}
    complaining = set(waits["rank"].dropna().astype(int))
    others = set(topology.ranks["rank"].astype(int)) - root if len(topology.ranks) else None
    default = all("default_pg" in m.string for m in asked) or complaining == others  # elsewhere ranks count within their group
    if len(root) == 1 and default and not root & complaining:
        return tuple(root), f"{count(len(asked), 'rank')} asked in vain for the NCCL id that it gives out when it comes to its first call"
    return None


def _accused(errors: pd.DataFrame, placed: pa.Table) -> pd.DataFrame:
    """Lines in which a report names ranks; who watches a monitored barrier is none of them where it says itself who did not come, nor are victims."""
    rows = errors[(errors["name"] == "nccl-desync") & errors["rank"].notna()]
    told = rows["text"].str.contains(_PASSED, regex=False)
    rows = rows[~rows["text"].str.contains(_REPORTED.pattern)] if told.any() else rows
    victims = rows["rank"].isin(_joined(rows, placed))
    return rows if victims.all() else rows[~victims]  # where each waits for another, all are named


def _joined(missing: pd.DataFrame, placed: pa.Table) -> set[int]:
    """Ranks that a report of several calls shows waiting in one of them for others: whatever else they are missing in, they come to when those come.

    Below the line of those who are missing in a call stands that of its group: who is in the second alone has joined the call.
    """
    groups = frame(placed, ("flight_group",), ("text", "file", "line")).dropna(subset=["text"]).sort_values("line")
    out: set[int] = set()
    for file, mine in missing.groupby("file"):
        heads = sorted(set(mine["line"]))
        here = groups[groups["file"] == file]
        for head, end in zip(heads, [*heads[1:], float("inf")], strict=True):
            group = here[(here["line"] > head) & (here["line"] < end)]
            if len(group):
                out |= {int(r) for r in group["text"].iloc[0].split(", ")} - set(mine.loc[mine["line"] == head, "rank"].astype(int))
    return out


def _reporter(accused: pd.DataFrame) -> str:
    """Who names them: gloo's monitored barrier, the analyzer of flight recorders, the watchdog's desync report."""
    texts = accused["text"]
    if texts.str.contains(_PASSED, regex=False).any():
        return "the monitored barrier"
    return "the report of the flight recorders" if texts.str.contains("missing ranks: {", regex=False).any() else "the desync report"


def _in_job(accused: pd.DataFrame, waits: pd.DataFrame, topology: Topology) -> tuple[int, ...]:
    """The accused as ranks of the job: a desync report counts within its group; none where nobody tells which group that is."""
    said = sorted(set(accused["rank"].dropna().astype(int)))
    places = places_of(waits)
    if accused["text"].str.contains(_OF_JOB.pattern).any() or all(rank == place for rank, place in places):
        return tuple(said)
    group = group_of(places, topology)
    return tuple(sorted(group[place] for place in said)) if group is not None and (not said or said[-1] < len(group)) else ()


def _by_place(errors: pd.DataFrame, waits: pd.DataFrame, heard: frozenset[int], topology: Topology, begin: int | None) -> Hang | None:
    """The few of a stage's replicas, or of a replica's stages, of which nothing is heard while the others of that group wait in the same call.

    Which group it is, is told by their places in it, where these are other numbers than their ranks.
    """
    places = places_of(waits)
    watchdogs = waits[waits["name"] == "nccl-watchdog"]
    calls = watchdogs["text"].str.extract(_CALL)[["seq", "op"]].assign(group=watchdogs["group"].fillna("")).drop_duplicates()
    group = group_of(places, topology)
    if group is None or all(rank == place for rank, place in places) or len(places) < 2 or len(calls) != 1 or calls["op"].isin(_P2P).any():
        return None
    missing = set(group) - {rank for rank, _ in places}
    if not missing or len(missing) > len(group) / _FEW or not missing <= heard:
        return None
    why = f"the others of its group waited in the same call (ranks {listed(sorted(rank for rank, _ in places))})"
    if len(missing) == 1 and set(topology.ranks["rank"].astype(int)) - set(errors["rank"].dropna().astype(int)) == missing:
        why += ", and of all ranks it alone printed nothing when that timed out"
    return Hang(tuple(sorted(missing)), why, False, begin, tuple(waits.index))


def _but_few(waits: pd.DataFrame, heard: frozenset[int], topology: Topology, begin: int | None) -> Hang | None:
    """The few ranks that say nothing while all others waited in vain for a send or receive of gloo."""
    world = {int(r) for r in topology.ranks["rank"]} if len(topology.ranks) else set()
    p2p = waits[waits["text"].str.contains(_GLOO_P2P.pattern) & waits["rank"].notna()]
    missing = world - set(waits["rank"].dropna().astype(int))
    if not len(p2p) or not missing or len(missing) > len(world) / _FEW or not missing <= heard:
        return None
    return Hang(tuple(sorted(missing)), "all other ranks waited in vain for a message", False, begin, tuple(p2p.index))


def _begin(waits: pd.DataFrame) -> int | None:
    """The first wait: time of the line less how long it ran."""
    timed = waits.dropna(subset=["at_ns", "dur_ns"])
    return int((timed["at_ns"].astype("int64") - timed["dur_ns"].astype("int64")).min()) if len(timed) else None


def _by_call(errors: pd.DataFrame, waits: pd.DataFrame, topology: Topology, begin: int | None) -> Hang | None:
    """Ranks that are in another call than all others of their group, or in the same one with another size: they left the common order.

    Only the first number at which they differ counts, only where fewer than half of the ranks are in the odd call, and never for p2p, where
    each pair has calls of its own. Calls without a group are of the default one where no other is named and there is one stage: else each
    stage has groups of its own, with numbers that are alike.
    """
    named = set(errors["group"].dropna()[errors["name"].str.startswith("nccl")]) - {""}
    one = len(named) == 1 and (topology.pp or 1) == 1
    group = waits["group"].replace("", pd.NA).fillna(next(iter(named))) if one else waits["group"].replace("", pd.NA)
    calls = waits["text"].str.extract(_CALL).assign(rank=waits["rank"], group=group)
    calls = calls[calls[["rank", "seq", "group"]].notna().all(axis=1) & ~calls["op"].isin(_P2P)].drop_duplicates(["rank", "group", "seq"])
    calls["call"] = calls["op"] + (" (" + calls["sizes"] + ")").fillna("")
    differ = calls.groupby(["group", "seq"])["call"].transform("nunique") > 1
    for (_, seq), mine in calls[differ].groupby(["group", "seq"], sort=False):
        usual = mine["call"].value_counts()
        odd = mine[mine["call"] != usual.index[0]]
        if len(odd) * 2 < len(mine):
            made = f"made {listed(sorted(set(odd['call'])))} as call {seq}, the others {usual.index[0]}"
            ranks, others = tuple(sorted(set(odd["rank"].astype(int)))), mine.index.difference(odd.index)
            return Hang(ranks, "", False, begin, (*odd.index[:2], *others[:2], *odd.index[2:], *others[2:]), doing=made)
    return None


def _by_pipeline(waits: pd.DataFrame, heard: frozenset[int], topology: Topology, begin: int | None) -> Hang | None:
    """Each rank says for whom it waits; whoever is waited for and says nothing himself is the suspect."""
    ranks, _, lines = silent_targets(waits, heard, topology)
    if not ranks:
        return None
    return Hang(
        ranks,
        f"{_ranks(waits)} for {'it' if len(ranks) == 1 else 'them'}, and nothing was heard of {'it' if len(ranks) == 1 else 'them'}",
        False,
        begin,
        lines,
    )


def _ranks(waits: pd.DataFrame) -> str:
    ranks = sorted(set(waits["rank"].dropna().astype(int)))
    return f"rank{'s' if len(ranks) > 1 else ''} {listed(ranks)} waited"


def silent_targets(rows: pd.DataFrame, heard: frozenset[int], topology: Topology) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """(silent ranks that others wait for along the pipeline, ranks that complain, places of the lines) from the engine's frames."""
    if not len(topology.ranks) or topology.ranks["stage"].isna().all():
        return (), (), ()
    told = rows.dropna(subset=["rank"])
    told = told[told["pipe"].notna()]
    complaining = set(rows["rank"].dropna().astype(int))
    found: dict[int, list[int]] = {}
    for place, rank, pipe in zip(told.index, told["rank"].astype(int), told["pipe"], strict=True):
        partner = towards(topology, rank, pipe)
        if partner is not None and partner not in heard:
            return (), tuple(sorted(complaining)), ()  # it may as well be the one whose log is missing
        if partner is not None and partner not in complaining:
            found.setdefault(partner, []).append(place)
    return tuple(sorted(found)), tuple(sorted(complaining)), tuple(p for places in found.values() for p in places)


def _by_group(errors: pd.DataFrame, waits: pd.DataFrame, heard: frozenset[int], topology: Topology, begin: int | None) -> Hang | None:
    """Watchdogs of one process group: who of its members does not complain, who is behind, whether all are in the same call."""
    calls = waits[(waits["name"] == "nccl-watchdog") & waits["rank"].notna()]
    collective = calls[~calls["stream"].isin(_P2P)]
    for group, mine in collective.groupby(collective["group"].fillna(""), sort=False):
        lines = tuple(mine.index)
        ranks = set(mine["rank"].astype(int))
        behind = _behind(errors, str(group))
        if behind:
            return Hang(
                tuple(sorted(behind)),
                f"{'its' if len(behind) == 1 else 'their'} last completed call was behind that of the others",
                False,
                begin,
                lines,
            )
        members = _members(str(group), topology)
        if not members:
            continue
        if members <= ranks:
            called = {m.group(0) for t in mine["text"] if (m := _CALL.search(t))}
            same = len(called) == 1 and mine["value"].min() == mine["value"].max()
            why = "all members were in the same call: nobody was missing" if same else "the ranks were in different calls"
            return Hang((), why, True if same else None, begin, lines, same_call=same)
        missing = members - _complaining(waits)
        if missing and len(missing) <= len(members) / 2 and missing <= heard:
            return Hang(tuple(sorted(missing)), "all other members of the group complained", False, begin, lines)
    p2p = calls[calls["stream"].isin(_P2P)]
    world = set(topology.ranks["rank"].astype(int)) if len(topology.ranks) else set()
    missing = world - _complaining(waits)
    if len(p2p) and world and not missing:
        return Hang((), "every rank waited in a send or receive: nobody was missing", True, begin, tuple(p2p.index))
    if len(p2p) and missing and len(missing) <= len(world) / _FEW and missing <= heard:
        return Hang(tuple(sorted(missing)), "all other ranks complained of a wait", False, begin, tuple(p2p.index))
    return None


def _complaining(waits: pd.DataFrame) -> set[int]:
    """Ranks whose own call timed out, not those that only say how far they were when another one's did."""
    return set(waits.loc[~told_of_others(waits), "rank"].dropna().astype(int))


def told_of_others(waits: pd.DataFrame) -> pd.Series:
    """Whether a line says how far its rank was when the call of another timed out: "Received a dump signal due to a collective timeout from rank 34"."""
    return waits["text"].str.contains("dump signal", regex=False).astype(bool)


def _idle(errors: pd.DataFrame, waits: pd.DataFrame, topology: Topology, begin: int | None) -> Hang | None:
    """Ranks that have completed all they enqueued, while each other rank waits in a call: they do not come to the next one.

    Where a timeout was seen, each rank prints how far it is ("Received a dump signal … Last enqueued NCCL work: 2102, last completed NCCL work: 2100").
    """
    work = errors[errors["name"].isin(["nccl-enqueued", "nccl-completed"])].dropna(subset=["rank", "value"])
    last = work.assign(group=work["group"].fillna("")).pivot_table("value", ["rank", "group"], "name", aggfunc="max")
    if not {"nccl-enqueued", "nccl-completed"} <= set(last.columns):
        return None
    waiting = last["nccl-enqueued"] > last["nccl-completed"]
    busy = {int(r) for r in last.index.get_level_values("rank")[waiting]} | _complaining(waits)
    idle = {int(r) for r in last.index.get_level_values("rank")} - busy
    world = set(topology.ranks["rank"].astype(int)) if len(topology.ranks) else set()
    if not idle or busy | idle != world or len(idle) > len(world) / _FEW:
        return None
    mine = work[work["rank"].isin(idle)].index
    it = "it had" if len(idle) == 1 else "they had"
    return Hang(tuple(sorted(idle)), f"{it} nothing open, and all other ranks waited in a call", False, begin, (*mine[:1], *waits.index))


def _apart(errors: pd.DataFrame, waits: pd.DataFrame, topology: Topology, begin: int | None) -> Hang | None:
    """Some of the ranks wait in a send or receive and the others in a collective, and nobody is silent: they do not stand at the same place of the schedule.

    Named is, where all calls are of one group, who has completed fewer calls than most and waits in a collective, else the fewer of the two sides. The number
    of calls alone is no measure here: the stages of a pipeline send and receive a different number of messages.
    """
    calls = waits[(waits["name"] == "nccl-watchdog") & waits["rank"].notna() & waits["stream"].notna()].drop_duplicates("rank")
    p2p = calls["stream"].isin(_P2P)
    world = {int(r) for r in topology.ranks["rank"]} if len(topology.ranks) else set()
    if not world or p2p.all() or not p2p.any() or set(calls["rank"].astype(int)) != world:
        return None
    groups = set(calls["group"].fillna(""))
    behind = calls["rank"].isin(_behind(errors, str(min(groups)))) & ~p2p if len(groups) == 1 else p2p & ~p2p
    fewer = calls[behind] if behind.any() else calls[p2p] if 2 * p2p.sum() < len(calls) else calls[~p2p]
    others = calls.drop(index=fewer.index)
    lines = (*fewer.index[:2], *others.index[:2], *fewer.index[2:], *others.index[2:])
    longest = calls["dur_ns"].max()
    lasted = "" if pd.isna(longest) else f", for {seconds(float(longest))}"
    if 2 * len(fewer) < len(calls) and len(groups) == 1:
        ranks = tuple(sorted(int(r) for r in fewer["rank"]))
        why = f"{'its' if len(ranks) == 1 else 'their'} last completed call was behind that of the others" if behind.any() else ""
        return Hang(ranks, why, False, begin, lines, doing=f"waited in {listed(sorted(set(fewer['stream'])))} while {_stood(others)}{lasted}")
    return Hang((), "", None, begin, lines, doing=f"{_stood(fewer)} while {_stood(others)}{lasted}")


def _stood(calls: pd.DataFrame) -> str:
    """`ranks 1-3 waited in RECV and rank 4 in SEND`"""
    said: list[str] = []
    for op, mine in calls.groupby("stream", sort=False):
        ranks = sorted(int(r) for r in mine["rank"])
        said.append(f"rank{'s' if len(ranks) > 1 else ''} {listed(ranks)}{'' if said else ' waited'} in {op}")
    return listed(said)


def _behind(errors: pd.DataFrame, group: str) -> set[int]:
    """Ranks whose last completed call of the group is lower than that of most. Never compared between groups."""
    done = errors[(errors["name"] == "nccl-completed") & (errors["group"].fillna("") == group)].dropna(subset=["rank", "value"])
    if done["rank"].nunique() < 3:
        return set()
    last = done.groupby(done["rank"].astype(int))["value"].max()
    low = last[last < last.median()]
    return {int(r) for r in low.index} if 0 < len(low) < len(last) / 2 else set()


def _members(group: str, topology: Topology) -> set[int]:
    """Ranks of a process group, where that is sure: the default group has all."""
    default = group in ("", "0", "default_pg") or "default_pg" in group
    return {int(r) for r in topology.ranks["rank"]} if default and len(topology.ranks) else set()
