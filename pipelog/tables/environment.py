"""Whose output a file, a part of it or a prefix is, told by the variables of a process that stand there: RANK=5 of WORLD_SIZE=8."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd
import pyarrow as pa

from pipelog.tables import frame

_PAIRS = (
    ("env.RANK", ("env.WORLD_SIZE",)),
    ("env.SLURM_PROCID", ("env.SLURM_NTASKS", "env.SLURM_NPROCS")),
    ("env.OMPI_COMM_WORLD_RANK", ("env.OMPI_COMM_WORLD_SIZE",)),
    ("env.PMI_RANK", ("env.PMI_SIZE",)),
    ("env.MV2_COMM_WORLD_RANK", ("env.MV2_COMM_WORLD_SIZE",)),
)
"""Variables with the number of a process, and those that say of how many."""
_HOSTS = ("env.SLURMD_NODENAME", "env.HOSTNAME")


@dataclass(frozen=True, slots=True)
class Place:
    """One process that shows its variables: its rank, its host, and what is its output: lines *first* up to before *end* of a file, with this prefix;
    pod: what `kubectl describe` calls it.
    """

    rank: int
    host: str | None
    file: str
    first: int
    end: int
    prefix: tuple[str | None, str | None]
    pod: str | None


def places(here: pa.Table, world: int | None) -> list[Place]:
    """The processes that show their variables, where each is one of the job's: of as many as there are ranks, and no rank twice.

    A batch script shows those of its first process: where only rank 0 is told, it is nobody's in particular.
    """
    if not world or world < 2:
        return []
    facts = frame(here, ("fact",), ("name", "value", "text", "file", "line", "host", "label"))
    facts = facts[facts["name"].str.startswith(("env.", "pod.name"))]
    if not facts["name"].isin([name for name, _ in _PAIRS]).any():
        return []
    found = [place for file, mine in facts.groupby("file") for place in _of_file(str(file), mine, world)]
    ranks = pd.Series([place.rank for place in found])
    once = ~ranks.duplicated(keep=False)
    kept = [place for place, alone in zip(found, once, strict=True) if alone]
    return kept if any(place.rank for place in kept) else []


def _of_file(file: str, facts: pd.DataFrame, world: int) -> Iterator[Place]:
    """Processes of one file: each pod that is described, each prefix, or the file as a whole."""
    pods = facts[facts["name"] == "pod.name"].sort_values("line")
    begins = pods["line"].to_numpy(dtype=np.int64)
    mine = facts[facts["name"].str.startswith("env.")]
    part = np.searchsorted(begins, mine["line"].to_numpy(dtype=np.int64), side="right")
    for (number, host, label), rows in mine.groupby([part, mine["host"].fillna(""), mine["label"].fillna("")], sort=False):
        rank = next((r for name, sizes in _PAIRS if (r := _one(rows, (name,))) is not None and _one(rows, sizes) == world), None)
        if rank is None or rank >= world:
            continue
        named = next((text for name in _HOSTS for text in rows.loc[rows["name"] == name, "text"].dropna()), None)
        first = int(begins[number - 1]) if number else 0
        end = int(begins[number]) if number < len(begins) else np.iinfo(np.int64).max
        pod = str(pods["text"].iloc[number - 1]) if number else None
        yield Place(rank, named or host or None, file, first, int(end), (None, label) if label else (host or None, None), pod)


def _one(rows: pd.DataFrame, names: tuple[str, ...]) -> int | None:
    """The only value of these variables."""
    values = set(rows.loc[rows["name"].isin(names), "value"].dropna().astype(int))
    return values.pop() if len(values) == 1 else None


def ranks_of_environment(here: pa.Table, rank: pa.ChunkedArray, world: int | None, own: pd.DataFrame) -> pa.ChunkedArray:
    """The rank column, filled for rows without rank that stand in the output of a process which shows its variables, or behind the name of
    its pod.

    own: rank, label and file of rows in which a process names its own rank: where another one writes into a file, nothing is told.
    """
    known = places(here, world)
    if not known:
        return rank
    files = {place.file for place in known}
    names = here.column("file").cast(pa.string())
    pods = {place.pod: place.rank for place in known if place.pod}
    hosts = here.column("host").cast(pa.string())
    told = pa.compute.or_(
        pa.compute.is_in(names, pa.array(list(files), pa.string())),
        pa.compute.fill_null(pa.compute.is_in(hosts, pa.array(list(pods), pa.string())), False),
    )
    wanted = np.flatnonzero(pa.compute.and_(told, pa.compute.is_null(rank)).to_numpy(zero_copy_only=False))
    if not len(wanted):
        return rank
    places_of = {file: [p for p in known if p.file == file] for file in files}
    writers = {str(file): set(mine["rank"].astype(int)) for file, mine in own.groupby("file")}
    some = here.take(pa.array(wanted)).select(["kind", "file", "host", "label", "line"]).to_pylist()
    filled = np.full(here.num_rows, -1, np.int64)
    for spot, row in zip(wanted.tolist(), some, strict=True):
        if row["kind"] == "fact":
            continue
        mine = [p for p in places_of.get(row["file"], ()) if p.first <= row["line"] < p.end]
        mine = [p for p in mine if p.prefix[0] in (None, row["host"]) and p.prefix[1] == row["label"]]
        if len(mine) == 1 and (mine[0].pod or any(mine[0].prefix) or writers.get(row["file"], {mine[0].rank}) == {mine[0].rank}):
            filled[spot] = mine[0].rank
        elif not mine and row["label"] is None and row["host"] in pods:
            filled[spot] = pods[row["host"]]
    return pa.compute.coalesce(rank, pa.chunked_array([pa.array(filled, mask=filled < 0).cast(pa.int32())]))
