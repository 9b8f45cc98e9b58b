"""Flight-recorder dumps: which rank has not joined a call that others wait in, and who waits for nobody himself."""

from __future__ import annotations

import re
from dataclasses import dataclass

import pandas as pd
import pyarrow as pa

from pipelog.tables import frame, table

_P2P = re.compile(r"(?:nccl:)?(?P<what>send|recv) (?P<a>\d+)(?P<way>->|<-)(?P<b>\d+)")
_WAITING = ("scheduled", "started")


@dataclass(frozen=True, slots=True)
class Flights:
    """ranks: who is waited for and waits for nobody; absent: those of them that left no dump. waiters: how many ranks wait for them.

    evidence: (file, place in its list) of calls that wait for them, one a group. calls: those calls in words.
    """

    ranks: tuple[int, ...]
    absent: tuple[int, ...]
    waiters: int
    evidence: tuple[tuple[str, int], ...]
    calls: tuple[str, ...]


@table("flights", needs=("here",))
def flights(here: pa.Table) -> Flights | None:
    """Who holds up the others, from all dumps together; None without dumps, or where nobody waits for anybody.

    r waits for s where both belong to a group (or to a p2p pair) in which r has begun a call that s has not: sequence numbers are
    compared within a group only, those of p2p within a pair. Whoever is waited for and waits for nobody is the one that is missing;
    a laggard that itself waits for another is a victim.
    """
    calls = frame(here, ("flight",), ("name", "group", "value", "text", "rank", "file", "line")).dropna(subset=["rank", "value", "group"])
    if not len(calls):
        return None
    calls["rank"], calls["value"] = calls["rank"].astype("int64"), calls["value"].astype("int64")
    members = _members(frame(here, ("fact",), ("name", "text")))
    pending = calls[calls["text"].isin(_WAITING)]
    edges = pd.concat([_collective(calls, pending, members), _p2p(calls, pending, members)], ignore_index=True)
    if not len(edges):
        return None
    missing = sorted(set(edges["on"]) - set(edges["rank"]))
    if not missing:
        return None
    shown = edges[edges["on"].isin(missing)].drop_duplicates("group").head(3)
    dumped = set(calls["rank"]) | _dumped(here)
    return Flights(
        tuple(int(r) for r in missing),
        tuple(int(r) for r in missing if r not in dumped),
        int(edges["rank"].nunique()),
        tuple((str(f), int(n)) for f, n in zip(shown["file"], shown["line"], strict=True)),
        tuple(f"{name} {number} of group {group}" for name, number, group in zip(shown["name"], shown["value"], shown["group"], strict=True)),
    )


def _members(facts: pd.DataFrame) -> dict[str, list[int]]:
    """Group → ranks, as the dumps' configuration says."""
    out = {}
    for name, text in zip(facts["name"], facts["text"], strict=True):
        if isinstance(name, str) and name.startswith("group.") and isinstance(text, str):
            out[name[6:]] = [int(n) for n in text.rpartition(":")[2].split(",") if n.isdecimal()]
    return out


def _dumped(here: pa.Table) -> set[int]:
    """Ranks that left a dump, if only one without calls: their groups are listed."""
    facts = frame(here, ("fact",), ("name", "rank"))
    return set(facts.loc[facts["name"].fillna("").str.startswith("group."), "rank"].dropna().astype(int))


def _collective(calls: pd.DataFrame, pending: pd.DataFrame, members: dict[str, list[int]]) -> pd.DataFrame:
    """Edges rank → on of collectives: a member whose highest number in the group is below that of the call."""
    mine = calls[~calls["name"].str.match(_P2P)]
    waiting = pending[~pending["name"].str.match(_P2P)]
    reached = mine.groupby(["group", "rank"])["value"].max()
    last = waiting.sort_values("value").drop_duplicates(["group", "rank"], keep="last")
    parts = []
    for group, rows in last.groupby("group"):
        of = members.get(str(group))
        if not of:
            continue
        level = reached.get(group)
        at = pd.Series({r: (-1 if level is None else level.get(r, -1)) for r in of})
        behind = at[at < rows["value"].max()]
        for on, low in behind.items():
            ahead = rows[rows["value"] > low]
            parts.append(ahead.assign(on=on)[["rank", "on", "group", "name", "value", "file", "line"]])
    return pd.concat(parts, ignore_index=True) if parts else _none()


def _p2p(calls: pd.DataFrame, pending: pd.DataFrame, members: dict[str, list[int]]) -> pd.DataFrame:
    """Edges of p2p calls: the partner has not begun a call of the pair with that number. Partners are numbered within the group."""
    told = calls["name"].str.extract(_P2P)
    both = calls.assign(a=told["a"], b=told["b"]).dropna(subset=["a", "b"])
    if not len(both):
        return _none()
    partner = [
        _partner(members.get(str(g), []), int(r), int(a), int(b))
        for g, r, a, b in zip(both["group"], both["rank"], both["a"], both["b"], strict=True)
    ]
    both = both.assign(on=partner).dropna(subset=["on"])
    both["on"] = both["on"].astype("int64")
    reached = both.groupby(["group", "rank", "on"])["value"].max()
    waiting = both[both.index.isin(pending.index)].sort_values("value").drop_duplicates(["group", "rank", "on"], keep="last")
    other = pd.Series(
        [reached.get((g, on, r), -1) for g, r, on in zip(waiting["group"], waiting["rank"], waiting["on"], strict=True)],
        index=waiting.index,
        dtype="int64",
    )
    return waiting[other < waiting["value"]][["rank", "on", "group", "name", "value", "file", "line"]]


def _partner(of: list[int], rank: int, a: int, b: int) -> int | None:
    """Global rank of place *b* of a group in which *rank* has place *a*."""
    return of[b] if a < len(of) and b < len(of) and of[a] == rank else None


def _none() -> pd.DataFrame:
    return pd.DataFrame(columns=["rank", "on", "group", "name", "value", "file", "line"])
