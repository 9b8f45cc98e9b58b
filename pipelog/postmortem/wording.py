"""Titles of verdicts: who, and what happened to whom."""

from __future__ import annotations

import re
from typing import Any

import pandas as pd

from pipelog._text import listed, of_several
from pipelog.postmortem.case import Whom
from pipelog.postmortem.kinds import Kind, Strength
from pipelog.tables.topology import Topology

_WORK = re.compile(r"Work\w*\((?:SeqNum=(?P<seq>\d+), )?(?:OpType=(?P<op>\w+))?(?:.{0,200}?ran for (?P<ms>\d+) milliseconds)?")
"""`WorkNCCL(SeqNum=4084, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600077 milliseconds` (ProcessGroupNCCL.cpp)"""

_STAMP = re.compile(r"^\[[A-Z]\d+ [\d:.]+ [\w.]+:\d+\] ")
"""`[E401 16:39:52.585735386 ProcessGroupNCCL.cpp:670] ` of torch's C++ log, which says nothing of what follows."""

_STUCK = re.compile(r"watchdog got stuck for (?P<seconds>\d+) seconds")
"""Of the heartbeat monitor: no call timed out."""


def title_of(kind: Kind, first: pd.Series, whom: Whom, topology: Topology) -> str:
    """One sentence: who, what, and why they are thought to be the ones."""
    if whom.title:
        return whom.title
    who, tail = subject(whom, topology), f"; {whom.why}" if whom.why else ""
    if kind.category == "hang":
        waited = {"timeout-gloo": "a p2p or collective call timed out", "timeout-nccl": _call(first), "timeout-hccl": "a call of HCCL timed out"}.get(
            kind.name, "nothing went on"
        )
        if whom.doing:
            return f"{f'{who} ' if whom.ranks else 'The run hung: '}{whom.doing}{tail}"
        if whom.ranks:
            return f"{who} {'was' if len(whom.ranks) == 1 else 'were'} waited for: {waited}{tail}"
        return f"The run hung: {waited}{tail or '; who was missing cannot be told'}"
    if kind.of_ranks and whom.ranks:
        return f"{who} {kind.of_ranks}{tail}"
    if kind.strength is Strength.ECHO and whom.lost_by:
        return _lost_a_peer(who, whom)
    says = filled(kind.says, kind, first["said"])
    if kind.name.startswith("left-with"):
        says += ", and no line says why"
    if kind.job and whom.hosts and kind.category == "hardware.node":
        says = says.replace("a node", f"{'node' if len(whom.hosts) == 1 else 'nodes'} {listed(whom.hosts)}")
    if kind.name == "launcher-setup" and whom.hosts:
        says += f" on {listed(whom.hosts)}"
    return f"{'The job' if kind.job and not whom.ranks else who} {of_several(says) if len(whom.ranks) > 1 else says}{tail}"


def _lost_a_peer(who: str, whom: Whom) -> str:
    """What the lines show: who lost a peer, and of whom, by its place in the pipeline or as the only one, no line says why; not that it died."""
    several = len(whom.lost_by) > 1
    lost = f"Rank{'s' if several else ''} {listed(whom.lost_by)} lost the connection to a peer"
    if not whom.ranks:
        return f"{lost}; the lines do not say to which, nor why"
    waited = f", which rank{'s' if len(whom.awaited_by) > 1 else ''} {listed(whom.awaited_by)} waited for," if whom.awaited_by else ""
    return f"{lost}; no line of {who[:1].lower()}{who[1:]}{waited} says why"


def _call(first: pd.Series) -> str:
    """`ALLREDUCE 4084 timed out after 600 s`, from whichever line repeats the watchdog's words."""
    if stuck := _STUCK.search(first["text"]):
        return (
            f"NCCL's watchdog itself was stuck for {stuck['seconds']} s: a call of CUDA or NCCL that does not return, or a thread that holds the GIL"
        )
    match = _WORK.search(first["text"])
    found = match.groupdict(default="") if match else {"seq": "", "op": "", "ms": ""}
    seq = f" {found['seq']}" if found["seq"] else ""
    waited = f" after {int(found['ms']) // 1000} s" if found["ms"] else ""
    return f"{found['op'] or 'a call'}{seq} timed out{waited}"


def subject(whom: Whom, topology: Topology) -> str:
    """Rank 7 (stage 3, replica 1, node-3)."""
    ranks, stages, hosts = whom.ranks, whom.stages, whom.hosts
    if not ranks:
        local = f"Local rank {whom.label.removeprefix('local ')}" if whom.label and whom.label.startswith("local ") else None
        if hosts:
            return f"{local or 'A rank'} on {listed(hosts)}"
        return f"{local} (the log does not say of which host)" if local else "A rank (the log does not say which)"
    if topology.world_size and len(ranks) == topology.world_size > 1:
        return f"All {len(ranks)} ranks"
    inside = []
    if stages and (topology.pp or 0) > 1:
        inside.append(f"stage{'s' if len(stages) > 1 else ''} {listed(stages)}")
    if len(ranks) == 1 and (topology.dp or 0) > 1:
        mine = topology.ranks.loc[topology.ranks["rank"] == ranks[0], "replica"].dropna()
        inside += [f"replica {int(mine.iloc[0])}"] if len(mine) else []
    if hosts and len(hosts) < 4:
        inside.append(listed(hosts))
    where = f" ({', '.join(inside)})" if inside else ""
    return f"Rank{'s' if len(ranks) > 1 else ''} {listed(ranks)}{where}"


def unstamped(text: str) -> str:
    """The first line of a row's text, without the stamp of torch's C++ log."""
    return _STAMP.sub("", text.partition("\n")[0].strip())


def filled(says: str, kind: Kind, text: str) -> str:
    """What a kind says, with the groups of its pattern, `{line}` and `{matched}` from the text of the row."""
    match = kind.pattern.search(text)
    groups: dict[str, Any] = {k: v or "" for k, v in match.groupdict().items()} if match else {}
    line = unstamped(text)
    groups |= {
        "line": line if len(line) <= 160 else f"{line[:100]} … {line[-57:]}",
        "matched": " ".join(match.group(0).partition("\nrow ")[0].split())[:80] if match else line[:80],
    }
    try:
        return says.format(**groups)
    except (KeyError, IndexError):
        return says


_LAST_STARTED = re.compile(r"--local_rank=(?P<local>\d+).*exits with return code")
"""The launcher prints the command of the process that it started last, whichever ended first (launch.py, up to v0.9)."""


def of_the_last(first: pd.Series, whom: Whom) -> str:
    """What a launcher's line must not be taken for, where it is all that there is."""
    named = _LAST_STARTED.search(first["text"])
    return "" if named is None or whom.ranks else f"; --local_rank={named['local']} is the process that the launcher started last, whichever died"


def missing_of(kind: Kind, first: pd.Series, whom: Whom, *, known: bool) -> tuple[str, ...]:
    """What would tell more: the cause where it is not known, and whom it hit."""
    missing = () if kind.known else kind.missing
    if whom.title and not known:
        missing = (
            f"why: the kernel log of {listed(whom.hosts) or 'that host'}, whether it was up (`last -x`, the scheduler), the counters of its ports (`ibqueryerrors`)",
        )
    elif kind.name == "peer-gone" and whom.ranks:
        missing = (
            f"what rank{'s' if len(whom.ranks) > 1 else ''} {listed(whom.ranks)} said last, and how the process ended: its own log, the kernel log of its host, the scheduler",
        )
    if not whom.ranks and not kind.job and kind.category != "hang" and not whom.title:
        last = (
            ", for the launcher prints the command (--local_rank) of the last process that it started, whichever ended first"
            if _LAST_STARTED.search(first["text"])
            else ""
        )
        missing += (f"which rank it was{last}: logs by rank (deepspeed --enable_each_rank_log DIR, torchrun --log-dir DIR --tee 3)",)
    return missing
