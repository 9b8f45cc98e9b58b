"""Process groups: which ranks of the job are the places that a watchdog speaks of."""

from __future__ import annotations

import itertools
import re

import pandas as pd

from pipelog.tables.topology import Topology

_PLACE = re.compile(r"\bRank (\d+)\] Watchdog caught")
_EVENLY = 3
"""As many ranks of a group tell how far apart its members are, where no topology does."""


def places_of(waits: pd.DataFrame) -> set[tuple[int, int]]:
    """(rank, place in its process group) of those whose watchdog says both."""
    rows = waits[(waits["name"] == "nccl-watchdog") & waits["rank"].notna()]
    return {(int(rank), int(m.group(1))) for rank, text in zip(rows["rank"], rows["text"], strict=True) if (m := _PLACE.search(text))}


def group_of(places: set[tuple[int, int]], topology: Topology) -> list[int] | None:
    """The only row of ranks (a stage's, a replica's, those that differ in one of stage, replica and tensor-parallel place alone) in which each of
    those that wait has its place; None where none or several fit. Where no stages are known: a row of equal distances, from three of them.
    """
    ranks = topology.ranks
    if not places or not len(ranks):
        return None
    known = [column for column in ("stage", "replica", "tensor") if ranks[column].notna().any()]
    if not known:
        return _evenly(places)
    by = [list(b) for n in (1, 2) for b in itertools.combinations(known, n) if b != ("tensor",)]
    rows = {tuple(sorted(int(r) for r in mine["rank"])) for columns in by for _, mine in ranks.dropna(subset=columns).groupby(columns)}
    fit = [row for row in rows if all(place < len(row) and row[place] == rank for rank, place in places)]
    return list(fit[0]) if len(fit) == 1 else None


def _evenly(places: set[tuple[int, int]]) -> list[int] | None:
    """The ranks up to the last place that is known, where at least three are known and all are equally far from one another."""
    ordered = sorted((place, rank) for rank, place in places)
    steps = {(b - a) / (q - p) for (p, a), (q, b) in itertools.pairwise(ordered) if q > p}
    if len(ordered) < _EVENLY or len(steps) != 1 or (step := steps.pop()) < 1 or step % 1 or ordered[0][1] < step * ordered[0][0]:
        return None
    return [ordered[0][1] + int(step) * (place - ordered[0][0]) for place in range(ordered[-1][0] + 1)]
