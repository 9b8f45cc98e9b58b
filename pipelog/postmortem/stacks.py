"""Stacks of the ranks of a job that stands still: where each one is, and who is not where the others wait."""

from __future__ import annotations

import re
from dataclasses import dataclass

import pandas as pd
import pyarrow as pa

from pipelog._text import count, listed
from pipelog.events import Input
from pipelog.postmortem.identities import Identities
from pipelog.postmortem.neighbours import towards
from pipelog.tables import frame, table
from pipelog.tables.topology import Topology

_LIVE = frozenset({"idle", "active", "idle+gil", "active+gil"})
"""States that py-spy prints: in a log, those of faulthandler belong to a crash."""
_TALKS = re.compile(
    r"torch/distributed/(?!launcher|elastic|run\b)|deepspeed/comm/|runtime/pipe/p2p\.py|megatron/\S*p2p_communication\.py|\bnccl[A-Z_]\w*|c10d::|\bgloo::"
    r"|distributed_c10d\.py"
)
"""Frames of a call that waits for other ranks. Of `cudaStreamSynchronize` and the like nobody knows what the device waits for."""
_LOADS = re.compile(r"utils/data/dataloader\.py\S* (?:_try_get_data|_get_data|_next_data|__next__)\b")
"""The main process waits for the workers of its data loader, or, where `fetch` is among the frames too, makes the batch itself."""
_FETCHES = re.compile(r"utils/data/_utils/fetch\.py")
_P2P = re.compile(r" _exec_(?:send|recv)_\w+$", re.MULTILINE)
_INSTRUCTION = re.compile(r" (_exec_\w+)$", re.MULTILINE)
_MOST_CLUSTERS = 6


@dataclass(frozen=True, slots=True)
class Stacks:
    """ranks: those that are elsewhere while most wait for other ranks. why: who stands where. waiting: whether any rank waits for another.

    evidence: (file, line) of the stacks that show it, the odd ones first. doing: what those who are elsewhere do, where their frames tell that.
    """

    ranks: tuple[int, ...]
    why: str
    waiting: bool
    evidence: tuple[tuple[str, int], ...]
    doing: str = ""


@table("stacks", needs=("placed", "topology", "identities", "inputs"))
def stacks(placed: pa.Table, topology: Topology, identities: Identities, inputs: list[Input]) -> Stacks | None:
    """Where the main threads of the dumped processes stand; None without a stack of two processes.

    Of a pipeline, whoever waits for a neighbour is a victim; who waits for nobody while most others wait is the suspect. Where all wait, and no
    frame is one of the pipeline engine, the only one that waits in another call than all others is.
    """
    found = _main_threads(placed, {i.path for i in inputs if i.kind == "stack-dump"})
    if len(found) < 2:
        return None
    found["rank"] = _ranks(found, identities)
    # what the device waits for within an instruction of p2p is its message
    found["talks"] = [(_TALKS.search(text) or _P2P.search(text)) is not None for text in found["text"]]
    found["where"] = [_where(text) for text in found["text"]]
    found["engine"] = [(m.group(1) if (m := _INSTRUCTION.search(text)) else "") for text in found["text"]]
    odd = _odd(found, topology)
    shown = [*odd.index, *(i for i in found.index if i not in odd.index)]
    evidence = tuple((str(found.at[i, "file"]), int(found.at[i, "line"])) for i in shown[:4])
    ranks = tuple(sorted({int(r) for r in odd["rank"].dropna()})) if odd["rank"].notna().all() else ()
    return Stacks(ranks, _clusters(found, odd), bool(found["talks"].any()), evidence, _doing(odd) if ranks else "")


def _main_threads(placed: pa.Table, dumps: set[str]) -> pd.DataFrame:
    """The last stack of the main thread of each process: rank, host, label, value (pid), file, line, text."""
    rows = frame(placed, ("stack",), ("name", "stream", "rank", "host", "label", "value", "file", "line", "text")).dropna(subset=["text"])
    rows = rows[rows["file"].isin(dumps) | rows["name"].isin(_LIVE)]
    who = ["file", "rank", "host", "label", "value"]
    main = (rows["stream"] == "MainThread") | rows["text"].str.contains("<module>", regex=False)
    # faulthandler gives the threads no names, and the first that was started last
    last = ~rows.duplicated(who, keep="last") & rows["name"].isin(["thread", "current"])
    named = main.groupby([rows[column] for column in who], dropna=False).transform("any")
    rows = rows[main | (last & ~named)]
    return rows.drop_duplicates(who, keep="last").reset_index(drop=True)


def _ranks(found: pd.DataFrame, who: Identities) -> pd.Series:
    rank: list[int | None] = []
    for known, host, label, pid in zip(*(found[c] for c in ("rank", "host", "label", "value")), strict=True):
        on = host if isinstance(host, str) else None
        if not pd.isna(known):
            rank.append(int(known))
        elif isinstance(label, str):
            rank.append(who.of_local(on, label))
        else:
            rank.append(None if pd.isna(pid) else who.of_process(on, int(pid)))
    return pd.Series(pd.array(rank, dtype="Int64"), index=found.index)


def _where(text: str) -> str:
    """The frame that says where a process stands: of a call that waits the outermost of the library, the data loader's own, else the innermost."""
    frames = text.split("\n")
    inside = [f for f in frames if _TALKS.search(f)]
    if not inside and not _FETCHES.search(text):
        inside = [f for f in frames if _LOADS.search(f)][:1]
    at, _, function = (inside[-1] if inside else frames[0]).rpartition(" ")
    return f"{function} ({'/'.join(at.split('/')[-2:])})"


def _odd(found: pd.DataFrame, topology: Topology) -> pd.DataFrame:
    elsewhere = found[~found["talks"]]
    if len(elsewhere):
        if len(elsewhere) * 2 > len(found):
            return elsewhere.iloc[:0]
        waited = _waited_for(found[found["talks"]], topology)
        return elsewhere[elsewhere["rank"].isin(waited)] if elsewhere["rank"].isin(waited).any() else elsewhere
    if (found["engine"] != "").any():
        return elsewhere
    alike = found["where"].map(found["where"].value_counts())
    alone = found[alike == 1]
    return alone if len(alone) == 1 and found["where"].nunique() == 2 and len(found) > 2 else elsewhere


def _waited_for(talking: pd.DataFrame, topology: Topology) -> set[int]:
    """Ranks whose neighbours in the pipeline wait for them."""
    out = set()
    for rank, engine in zip(talking["rank"], talking["engine"], strict=True):
        partner = None if pd.isna(rank) else towards(topology, int(rank), engine)
        out |= set() if partner is None else {partner}
    return out


def _doing(odd: pd.DataFrame) -> str:
    """What they stood in, where all of their stacks show the same: the data loader."""
    if len(odd) and odd["text"].str.contains(_LOADS.pattern).all():
        if odd["text"].str.contains(_FETCHES.pattern).all():
            return "was making a batch in its data loader" if len(odd) == 1 else "were making a batch in their data loaders"
        return "waited for its data loader" if len(odd) == 1 else "waited for their data loaders"
    return ""


def _clusters(found: pd.DataFrame, odd: pd.DataFrame) -> str:
    """`7 ranks stand in recv (pipe/p2p.py:50); rank 3 in __next__ (data/dataloader.py:633)`"""
    said = []
    groups = sorted(found.groupby(["where", "engine"], sort=False), key=lambda g: (g[1].index[0] in odd.index, -len(g[1])))
    for (where, engine), mine in groups[:_MOST_CLUSTERS]:
        ranks = sorted(int(r) for r in mine["rank"].dropna())
        who = f"rank{'s' if len(ranks) > 1 else ''} {listed(ranks)}" if len(ranks) == len(mine) <= 4 else count(len(mine), "process", "processes")
        inside = f", {engine}" if engine and engine not in where else ""
        said.append(f"{who} in {where}{inside}")
    more = f"; {len(groups) - _MOST_CLUSTERS} more places" if len(groups) > _MOST_CLUSTERS else ""
    return "; ".join(said) + more
