"""Stacks of the ranks of a job that stands still: where each one is, and who is not where the others wait."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import pandas as pd
import pyarrow as pa

from pipelog._text import count, listed
from pipelog.events import Input
from pipelog.postmortem.identities import Identities
from pipelog.postmortem.neighbours import towards
from pipelog.postmortem.sources import Line, Maps, said_of_processes
from pipelog.tables import frame, table
from pipelog.tables.topology import Topology

_LIVE = frozenset({"idle", "active", "idle+gil", "active+gil"})
"""States that py-spy prints: in a log, those of faulthandler belong to a crash, where its timer did not ask for them."""
_TALKS = re.compile(
    r"torch/distributed/(?!launcher|elastic|run\b)|deepspeed/comm/|runtime/pipe/p2p\.py|megatron/\S*p2p_communication\.py|\bnccl[A-Z_]\w*|c10d::|\bgloo::"
    r"|distributed_c10d\.py"
)
"""Frames of a call that waits for other ranks. Of `cudaStreamSynchronize` and the like nobody knows what the device waits for."""
_LOADS = re.compile(r"utils/data/dataloader\.py\S* (?:_try_get_data|_get_data|_next_data|__next__)\b")
"""The main process waits for the workers of its data loader, or makes the batch itself (see `_makes`)."""
_FETCHES = re.compile(r"utils/data/_utils/fetch\.py")
_ASKS_WORKERS = re.compile(r"utils/data/dataloader\.py\S* (?:_try_get_data|_get_data)\b")
_DEVICE = re.compile(r"torch/(?:cuda|npu|xpu|accelerator)/\S* synchronize$")
"""Waits for its device, of which nobody knows what that waits for."""
_INTRODUCED_ABOVE = 2
"""Lines above the head of a dump in which a script says whose it is."""
_P2P = re.compile(r" _exec_(?:send|recv)_\w+$", re.MULTILINE)
_INSTRUCTION = re.compile(r" (_exec_\w+)$", re.MULTILINE)
_MOST_CLUSTERS = 6
_MOST_ODD, _MOST_FRAMES = 2, 4
"""Frames of those who are elsewhere that are shown, and frames in all."""


@dataclass(frozen=True, slots=True)
class Stood:
    """Where a process stands, the line of that frame, and the line that ties the process to its rank, where another one does."""

    where: str
    line: Line
    map: Line | None = None


@dataclass(frozen=True, slots=True)
class Stacks:
    """ranks: those that are elsewhere while most wait for other ranks. why: who stands where. waiting: whether any rank waits for another.

    evidence: (file, line) of the frames that show it, those of the odd ones first, with the lines that say whose they are, then one of each other place.
    doing: what those who are elsewhere do, where their frames tell that. frames: where each rank that is known stands.
    """

    ranks: tuple[int, ...]
    why: str
    waiting: bool
    evidence: tuple[Line, ...]
    doing: str = ""
    frames: dict[int, Stood] = field(default_factory=dict)


@table("stacks", needs=("placed", "topology", "identities", "inputs"))
def stacks(placed: pa.Table, topology: Topology, identities: Identities, inputs: list[Input]) -> Stacks | None:
    """Where the main threads of the dumped processes stand; None without a stack. Of a single process it tells nothing of the others.

    Of a pipeline, whoever waits for a neighbour is a victim; who waits for nobody while most others wait is the suspect. Where all wait, and no
    frame is one of the pipeline engine, the only one that waits in another call than all others is.
    """
    found = _main_threads(placed, {i.path for i in inputs if i.kind == "stack-dump"})
    if not len(found):
        return None
    found["known"], found["rank"] = found["rank"], _ranks(found, identities)
    # what the device waits for within an instruction of p2p is its message
    found["talks"] = [(_TALKS.search(text) or _P2P.search(text)) is not None for text in found["text"]]
    found["place"] = [_place(text) for text in found["text"]]
    found["where"] = [_where(text, place) for text, place in zip(found["text"], found["place"], strict=True)]
    found["engine"] = [(m.group(1) if (m := _INSTRUCTION.search(text)) else "") for text in found["text"]]
    maps = said_of_processes(placed)
    frames = {int(row["rank"]): _stood(row, maps) for _, row in found[found["rank"].notna()].iterrows()}
    if len(found) < 2:
        return Stacks((), "", False, (), frames=frames)
    odd = _odd(found, topology)
    evidence = _shown(found, odd, frames)
    ranks = tuple(sorted({int(r) for r in odd["rank"].dropna()})) if odd["rank"].notna().all() else ()
    return Stacks(ranks, _clusters(found, odd), bool(found["talks"].any()), evidence, _doing(odd) if ranks else "", frames)


def _shown(found: pd.DataFrame, odd: pd.DataFrame, frames: dict[int, Stood]) -> tuple[Line, ...]:
    """The deciding frames of the odd ones, the lines that tie their processes to ranks, and a frame of each place where others stand."""
    others = found.drop(index=odd.index).drop_duplicates(["where", "engine"])
    mine = odd.head(_MOST_ODD) if len(others) else odd
    maps = [frames[int(r)].map for r in mine["rank"].dropna()]
    lines = [(str(found.at[i, "file"]), _line_of(found.loc[i])) for i in [*mine.index, *others.index, *odd.index][:_MOST_FRAMES]]
    return tuple(dict.fromkeys([*lines[: len(mine)], *(m for m in maps if m is not None), *lines[len(mine) :]]))


def _stood(row: pd.Series, maps: Maps) -> Stood:
    rank, pid, label = int(row["rank"]), row["value"], row["label"]
    line = None
    if pd.isna(row["known"]):
        line = (None if pd.isna(pid) else maps.of_process(int(pid), rank)) or (maps.of_local(label, rank) if isinstance(label, str) else None)
    return Stood(row["where"], (str(row["file"]), _line_of(row)), line)


def _line_of(row: pd.Series) -> int:
    """The line of the frame that says where a process stands."""
    numbers = row["group"].split() if isinstance(row["group"], str) else None
    return int(row["line"] + 1 + row["place"]) if numbers is None else int(numbers[row["place"]])


def _main_threads(placed: pa.Table, dumps: set[str]) -> pd.DataFrame:
    """The last stack of the main thread of each process: rank, host, label, value (pid), group (lines of its frames), file, line, text."""
    rows = frame(placed, ("stack",), ("name", "stream", "rank", "host", "label", "value", "group", "file", "line", "text")).dropna(subset=["text"])
    asked = _asked(placed, rows[~rows["file"].isin(dumps) & (rows["name"] == "thread")])
    rows = pd.concat([rows[rows["file"].isin(dumps) | rows["name"].isin(_LIVE)], asked]).sort_index()
    who = ["file", "rank", "host", "label", "value"]
    main = (rows["stream"] == "MainThread") | rows["text"].str.contains("<module>", regex=False)
    # faulthandler gives the threads no names, and the first that was started last
    last = ~rows.duplicated(who, keep="last") & rows["name"].isin(["thread", "current"])
    named = main.groupby([rows[column] for column in who], dropna=False).transform("any")
    rows = rows[main | (last & ~named)]
    return rows.drop_duplicates(who, keep="last").reset_index(drop=True)


def _asked(placed: pa.Table, rows: pd.DataFrame) -> pd.DataFrame:
    """Stacks of a log that faulthandler's timer asked for, of ranks that are known: what stands below its line, and not below a crash that came later.

    None where a step was made below such a line: then the timer runs whatever the job does.
    """
    heads = frame(placed, ("stack_head", "error"), ("kind", "name", "rank", "file", "line"))
    heads = heads[(heads["kind"] == "stack_head") | (heads["name"] == "fatal-python")]
    begun = heads[heads["kind"] == "stack_head"].groupby("file")["line"].min()
    work = frame(placed, ("step", "progress", "iteration"), ("file", "line"))
    if not len(rows) or not len(begun) or (work["line"] > work["file"].map(begun)).any():
        return rows.iloc[:0]
    said = frame(placed, ("place", "process"), ("rank", "file", "line")).dropna(subset=["rank"])
    sides = [
        side.assign(file=side["file"].astype(object), line=side["line"].astype("int64"), key=side["rank"].fillna(-1).astype("int64"))
        for side in (rows, heads)
    ]
    heads = sides[1].rename(columns={"line": "head"})[["file", "key", "kind", "head"]].sort_values("head", kind="stable")
    mine = sides[0].reset_index(drop=True)
    order = mine[["file", "key", "line"]].sort_values("line", kind="stable")
    found = pd.merge_asof(order, heads, left_on="line", right_on="head", by=["file", "key"], allow_exact_matches=False).set_axis(order.index)
    asked = found[found["kind"] == "stack_head"]
    told = {
        (file, int(head)): _told_above(said[said["file"] == file], int(head))
        for file, head in asked.loc[asked["key"] < 0, ["file", "head"]].drop_duplicates().itertuples(index=False)
    }
    ranks = {place: key if key >= 0 else told[file, int(head)] for place, file, key, head in asked[["file", "key", "head"]].itertuples()}
    whose = pd.array([ranks.get(place) for place in mine.index], dtype=rows["rank"].dtype)
    return rows.reset_index(drop=True).assign(rank=whose).dropna(subset=["rank"])


def _told_above(said: pd.DataFrame, head: int) -> int | None:
    """The one rank that is named right above a timer's line, null where none or several are. said: who is named, of the same file."""
    above = said.loc[said["line"].between(head - _INTRODUCED_ABOVE, head - 1), "rank"]
    return int(above.iloc[-1]) if len(set(above)) == 1 else None


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


def _place(text: str) -> int:
    """Which frame says where a process stands: of a call that waits the outermost of the library, the data loader's own, else the innermost."""
    frames = text.split("\n")
    inside = [n for n, f in enumerate(frames) if _TALKS.search(f)]
    if not inside and not _makes(text):
        inside = [n for n, f in enumerate(frames) if _LOADS.search(f)][:1]
    return inside[-1] if inside else 0


def _where(text: str, place: int) -> str:
    """`recv (pipe/p2p.py:83)`"""
    at, _, function = text.split("\n")[place].rpartition(" ")
    return f"{function} ({'/'.join(at.split('/')[-2:])})"


def _makes(text: str) -> bool:
    """Whether a process that is in its data loader makes the batch itself: something is called from there, and no worker is asked for it."""
    loads = _LOADS.search(text)
    return loads is not None and (_FETCHES.search(text) is not None or (_ASKS_WORKERS.search(text) is None and "\n" in text[: loads.start()]))


def _odd(found: pd.DataFrame, topology: Topology) -> pd.DataFrame:
    elsewhere = found[~found["talks"]]
    if len(elsewhere):
        if len(elsewhere) * 2 > len(found):
            return elsewhere.iloc[:0]
        waited = elsewhere["rank"].isin(_waited_for(found[found["talks"]], topology))
        return elsewhere[waited] if waited.any() else _without_devices(elsewhere)
    if (found["engine"] != "").any():
        return elsewhere
    alike = found["where"].map(found["where"].value_counts())
    alone = found[alike == 1]
    return alone if len(alone) == 1 and found["where"].nunique() == 2 and len(found) > 2 else elsewhere


def _without_devices(elsewhere: pd.DataFrame) -> pd.DataFrame:
    """Without those who wait for their devices, where the others load data: a device may wait for a call of another rank, a batch waits for none."""
    device = elsewhere["text"].map(lambda text: _DEVICE.search(text.partition("\n")[0]) is not None)
    rest = elsewhere[~device]
    return rest if len(rest) and rest["text"].str.contains(_LOADS.pattern).all() else elsewhere


def _waited_for(talking: pd.DataFrame, topology: Topology) -> set[int]:
    """Ranks whose neighbours in the pipeline wait for them."""
    out = set()
    for rank, engine in zip(talking["rank"], talking["engine"], strict=True):
        partner = None if pd.isna(rank) else towards(topology, int(rank), engine)
        out |= set() if partner is None else {partner}
    return out


def _doing(odd: pd.DataFrame) -> str:
    """What they stood in, where all of their stacks show the same: the data loader."""
    if not len(odd) or not odd["text"].str.contains(_LOADS.pattern).all():
        return ""
    makes = odd["text"].map(_makes)
    if makes.all():
        return "was making a batch in its data loader" if len(odd) == 1 else "were making a batch in their data loaders"
    return "" if makes.any() else "waited for its data loader" if len(odd) == 1 else "waited for their data loaders"


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
