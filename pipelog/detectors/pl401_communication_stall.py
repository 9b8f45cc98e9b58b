"""PL401 communication-stall: time waiting on a p2p link or a collective beyond what the schedule explains.

What it does: from traces, replays the schedule with the measured times of every message and with those of one link at the level of
the others: the difference is what the link costs. Collectives: what they take once all ranks have come. From Megatron's last-rank
timers: the steady-state exchange (backward-send-forward-recv), which fill and drain do not explain. From rank 0's timers: print
intervals that are far longer than usual, with the excess in the p2p timers.
Why it matters: a link that is slow for every micro-batch is paid m times a step; nothing overlaps p2p in DeepSpeed's pipeline.
What to do: check the link named (NIC, cable, routing, interface chosen by NCCL); and what the sender does before it sends.
When it is wrong: idle time on the sender right before its sends to one neighbour has two readings, a slow link or a slow host path (a
copy, a lock, garbage collection on that rank); both are named. Beside a straggler of one of its stages a link is info: a slow host does
both. A receive that waits for a slow stage is not the link's. A network that
is slow everywhere makes no link stand out: high-bubble-ratio shows its transfers.
Thresholds: limit 0.05 of the phase for a link, 0.05 of the step for Megatron's exchange; floor_ms 2 more than the other links in
the median message, or ten times that in single ones, timed on the host, where a busy core alone makes a millisecond (a tenth of it
where the device timed it);
collective 0.15 of the step; spike 1.5 times the median interval.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from pipelog._text import count, listed, percent, seconds
from pipelog.findings import Advice, Confidence, Evidence, Finding, Severity, Where, cite, detector
from pipelog.replay.cited import at_best
from pipelog.tables import CannotTell, Tables
from pipelog.tables.balance import stragglers
from pipelog.tables.topology import Topology

_STRAGGLER = 0.10
"""The limit of PL202 straggler-rank."""


@detector("PL401", "communication-stall", needs=("tables", "topology"))
def communication_stall(
    tables: Tables, topology: Topology, *, limit: float = 0.05, floor_ms: float = 2.0, collective: float = 0.15, spike: float = 1.5
) -> Iterator[Finding]:
    """One finding a link (both directions together), a kind of collective, or a run of spikes."""
    pp = topology.pp or 0
    links = tables.get("links") if pp > 1 and len(_messages(tables)) else None
    collectives = _of_all_ranks(tables, topology)
    found: list[Finding] = []
    if links is not None:
        messages = tables["messages"]
        floor = floor_ms * 1e6 * (0.1 if messages["on_device"].any() else 1.0)
        found += _links(links, tables, topology, limit, floor)
    if collectives is not None:
        found += _collectives(collectives, tables, collective)
    if links is None and pp > 1 and not found and tables.get("links") is not None:
        matched = tables.get("matched")
        why = matched.why_not if matched is not None else None
        raise CannotTell(f"the traces do not say whom a message goes to{f', and {why}' if why else ''}: record them with record_shapes=True")
    if links is None and pp != 1:
        found += _from_timers(tables, pp, limit, spike, optional=bool(found))
    elif pp == 1 and collectives is None:
        raise CannotTell("no pipeline, and no collectives that all ranks recorded")
    yield from found


def _messages(tables: Tables) -> pd.DataFrame:
    """Messages that were matched, sender and receiver. Traces that do not say whom a call talks to have none, and then no link is clear."""
    found = tables.get("messages")
    return pd.DataFrame() if found is None else found


def _of_all_ranks(tables: Tables, topology: Topology) -> pd.DataFrame | None:
    """The collectives where every rank of the job was recorded: else what looks long may be the wait for a rank that was not."""
    collectives = tables.get("collectives")
    recorded = {t.rank for t in tables["host_traces"]} if collectives is not None else set()
    return collectives if topology.world_size is not None and len(recorded) >= topology.world_size else None


def _from_timers(tables: Tables, pp: int, limit: float, spike: float, *, optional: bool) -> list[Finding]:
    """What Megatron's last rank or DeepSpeed's rank 0 timed. Rank 0's own waiting holds fill, drain and slower stages: it clears nothing."""
    timers, megatron = tables["timers"], tables["megatron_timers"]
    if "backward-send-forward-recv" in megatron and len(megatron) > 1 and pp > 1:
        return list(_exchange(megatron, pp, limit))
    shown = "pipe_recv_grad_ns" in timers or "pipe_send_output_ns" in timers
    spikes = list(_spikes(timers, spike)) if shown and len(timers) >= 8 else []
    if spikes or optional:
        return spikes
    if shown:
        raise CannotTell("rank 0's timers show its own waiting only, which holds fill, drain and slower stages: traces of all ranks would tell")
    raise CannotTell(
        "no message was timed on both sides: a profiler trace of every rank, or Megatron's timers of two intervals or more, would show the waits"
    )


def _shows(row: Any) -> str:
    before = f"{seconds(row.gap_ns)} idle before it, then " if row.gap_ns > 0 else ""
    return (
        f"step {row.step}: message from rank {row.source} to rank {row.target}, {before}{seconds(row.transfer_ns)} on its way with both sides ready"
    )


def _links(links: pd.DataFrame, tables: Tables, topology: Topology, limit: float, floor: float) -> Iterator[Finding]:
    messages, slow = tables["messages"], _stragglers(tables)
    pairs = links.assign(low=links[["source", "target"]].min(axis=1), high=links[["source", "target"]].max(axis=1))
    for (low, high), both in pairs.groupby(["low", "high"]):
        if both["cost"].sum() <= limit:
            continue
        worst = both.loc[both["cost"].idxmax()]
        source, target = int(worst["source"]), int(worst["target"])
        late = worst["late_ns"] - worst["typical_late_ns"] > worst["transfer_ns"] - worst["typical_transfer_ns"]
        senders, receivers = topology.ranks_of(source), topology.ranks_of(target)
        mine = messages[messages["source"].isin(senders) & messages["target"].isin(receivers)]
        mine = mine.assign(excess=mine["gap_ns"] + mine["transfer_ns"])
        usual = worst["typical_late_ns"] + worst["typical_transfer_ns"]
        if mine["excess"].median() - usual < floor and mine["excess"].max() - usual < 10 * floor:
            continue
        ratio = float((mine["excess"] > 3 * usual).mean())
        often = "every message" if ratio > 0.9 else f"{percent(ratio)} of the messages"
        if late:
            said = (
                f"stage {source} is idle for {seconds(worst['late_ns'])} right before it sends to stage {target} (elsewhere {seconds(worst['typical_late_ns'])}): "
                "a slow link that holds the sender, or a slow host path on it"
            )
        else:
            said = f"a message from stage {source} to stage {target} takes {seconds(worst['transfer_ns'])} with both sides ready (elsewhere {seconds(worst['typical_transfer_ns'])})"
        if ratio < 0.5:
            said = f"single messages from stage {source} to stage {target} take up to {seconds(worst['worst_ns'])}"
        hosts = tuple(sorted({h for r in senders + receivers if (h := topology.host_of(r))}))
        ranks = sorted(rank for rank, stage in slow.items() if stage in (low, high))
        if ranks:
            often += f"; {'ranks' if len(ranks) > 1 else 'rank'} {listed(ranks)} beside it {'are' if len(ranks) > 1 else 'is'} slow, which may be all of it"
        yield Finding(
            "PL401",
            "communication-stall",
            f"the link between stage {low} and stage {high} costs {percent(float(both['cost'].sum()))} of the pipeline phase: {said}; {often}",
            Severity.INFO if ranks else Severity.WARNING,
            Confidence.LOW if ranks else Confidence.HIGH if ratio >= 0.5 else Confidence.MEDIUM,
            Where(links=((int(low), int(high)),), hosts=hosts if len(hosts) > 1 else (), steps=(int(worst["first_step"]), int(worst["last_step"]))),
            cite(mine, by="excess", says=_shows),
            _advice(tables, int(low), int(high), source, ranks, over_network=len(hosts) > 1 and _nccl(tables)),
            cost=float(both["cost"].sum()),
        )


def _advice(tables: Tables, low: int, high: int, source: int, slow: list[int], *, over_network: bool) -> tuple[Advice, ...]:
    """What to test: tools of NCCL and InfiniBand only where the link uses them."""
    if slow:
        return (Advice(f"see to rank {listed(slow)} first (straggler-rank), and record again: only what stays is the link's"),)
    host = Advice(f"look at what stage {source} does between its work and its send: host-to-device copies, locks, Python garbage collection")
    test = f"test the link between the hosts of stage {low} and {high} (ib_write_bw, nccl-tests sendrecv), and which interface NCCL chose"
    plain = f"time plain messages between the ranks of stage {low} and {high} outside the job, over the same backend"
    return (Advice(test if over_network else plain, at_best(tables, f"link {low}-{high} as the others")), host)


def _stragglers(tables: Tables) -> dict[int, int]:
    """Rank → stage of the ranks that straggler-rank warns of, at its own limit."""
    peers = tables.get("peers")
    if peers is None or not len(peers):
        return {}
    return {rank: s.stage for s in stragglers(peers, tables["compute_time"], _STRAGGLER) if s.certain for rank in s.ranks}


def _nccl(tables: Tables) -> bool:
    """Whether messages go over NCCL: the device timed them, or a line names it."""
    facts = tables["facts"]
    named = facts[facts["name"] == "backend"]["text"].dropna()
    return bool(tables["messages"]["on_device"].any()) or named.str.contains("nccl").any()


def _collectives(collectives: pd.DataFrame, tables: Tables, limit: float) -> Iterator[Finding]:
    typical = collectives.groupby("name").agg(
        own_ns=("own_ns", "median"), wait_ns=("wait_ns", "median"), share=("share", "median"), ranks=("ranks", "max")
    )
    for name, row in typical[typical["share"] > limit].iterrows():
        steps = collectives[collectives["name"] == name]["step"]
        where = _rows_of(tables, str(name))
        yield Finding(
            "PL401",
            "communication-stall",
            f"{name} takes {seconds(row['own_ns'])} of a step ({percent(row['share'])}) once all {int(row['ranks'])} ranks have come",
            Severity.WARNING,
            Confidence.MEDIUM,
            Where(steps=(int(steps.min()), int(steps.max()))),
            where,
            (
                Advice(
                    "check the network between the hosts of that group, its message sizes (bucket size) and its algorithm (NCCL_ALGO, NCCL_DEBUG=INFO)"
                ),
            ),
            cost=float(row["share"]),
        )


def _rows_of(tables: Tables, name: str) -> tuple[Evidence, ...]:
    for trace in tables["host_traces"]:
        hits = np.flatnonzero(np.asarray(trace.kind == "collective") & np.asarray(trace.name == name))
        if len(hits):
            longest = hits[np.argmax(trace.end[hits] - trace.start[hits])]
            return (Evidence(trace.file, int(trace.line[longest])),)
    return ()


def _exchange(megatron: pd.DataFrame, pp: int, limit: float) -> Iterator[Finding]:
    """Megatron's last stage in steady state: it neither fills nor drains there, so what it waits is the link, or the stage before it."""
    used = megatron.iloc[1:]
    share = used["backward-send-forward-recv"] / used["step_ns"]
    if not share.median() > limit:
        return
    stall, least, most = (float(used["backward-send-forward-recv"].quantile(q)) for q in (0.5, 0.0, 1.0))
    yield Finding(
        "PL401",
        "communication-stall",
        f"in steady state the last stage ({pp - 1}) waits {seconds(stall)} a step ({seconds(least)} to {seconds(most)}) in its exchange with stage {pp - 2}, "
        f"{percent(float(share.median()))} of the step; fill and drain are not in it",
        Severity.WARNING,
        Confidence.MEDIUM,
        Where(stages=(pp - 1,), links=((pp - 2, pp - 1),), steps=(int(used["step"].min()), int(used["step"].max()))),
        cite(used, by="backward-send-forward-recv"),
        (Advice(f"trace one step of stage {pp - 2} and {pp - 1}: either the link is slow, or stage {pp - 2} computes longer than stage {pp - 1}"),),
        cost=float(share.median()),
    )


def _spikes(timers: pd.DataFrame, spike: float) -> Iterator[Finding]:
    """Rank 0's timers: intervals far above the median whose excess lies in the p2p timers. Which link or stage it is they cannot tell."""
    used = timers.iloc[1:]
    wait = sum((used[n].fillna(0) for n in ("pipe_recv_grad_ns", "pipe_send_output_ns") if n in used), start=pd.Series(0.0, index=used.index))
    median, usual = float(used["iter_ns"].median()), float(wait.median())
    long = used["iter_ns"] > spike * median
    excess, waited = used["iter_ns"] - median, wait - usual
    hits = used[long & (waited > 0.7 * excess)]
    if len(hits) < 2 or len(hits) > len(used) / 2:
        return
    lost = float((excess[hits.index] * hits["steps"]).sum() / (used["iter_ns"] * used["steps"]).sum())
    first, last = int((hits["step"] - hits["steps"]).min()) + 1, int(hits["step"].max())
    places = used.index.get_indexer(hits.index)
    if len(hits) > 2 and places[-1] - places[0] + 1 == len(hits):
        said = f"from step {first} to step {last} a step takes {seconds(float(hits['iter_ns'].median()))} instead of {seconds(median)}, the excess in stage 0's p2p timers"
    else:
        said = (
            f"{count(len(hits), 'print interval')} of {len(used)} took more than {spike:g} times the median step ({seconds(median)}), the excess in stage 0's p2p "
            "timers: stalls that come and go"
        )
    yield Finding(
        "PL401",
        "communication-stall",
        f"{said}, {percent(lost)} of the time; which link or stage causes it rank 0's timers cannot tell",
        Severity.INFO,
        Confidence.LOW,
        Where(steps=(first, last)),
        cite(hits, by="iter_ns"),
        (Advice("profile all ranks over some tens of steps, so that one such step is recorded on both sides of the link"),),
        cost=lost,
    )
