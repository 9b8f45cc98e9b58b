"""Durations of passes, loads and messages of every recorded step, as arrays."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd

from pipelog.tables import CannotTell, by_ranks, table
from pipelog.tables.config import Config
from pipelog.tables.steps import version_tuple
from pipelog.tables.topology import Topology


@dataclass(frozen=True, slots=True, eq=False)
class Durations:
    """Measured durations of completely recorded steps and replicas that have as many micro-batches (*cells*), ns.

    step, replica, phase_ns: (cells,). rank, recompute: (cells, p); recomputation is inside backward. forward, backward, load,
    before_forward, before_backward: (cells, p, m). activation, grad: transfers over the edge of stage s and s+1, (cells, p-1, m), from
    both sides ready to received. before_send_…: idle time on the sender right before its call, (cells, p-1, m).
    """

    step: np.ndarray
    replica: np.ndarray
    phase_ns: np.ndarray
    rank: np.ndarray
    recompute: np.ndarray
    forward: np.ndarray
    backward: np.ndarray
    load: np.ndarray
    before_forward: np.ndarray
    before_backward: np.ndarray
    activation: np.ndarray
    grad: np.ndarray
    before_send_activation: np.ndarray
    before_send_grad: np.ndarray


PASSES = ["rank", "window", "step", "instruction", "micro_batch", "dur_ns", "gap_ns", "load_ns", "file", "line"]


@table("passes", needs=("instructions", "topology"))
def passes(instructions: pd.DataFrame, topology: Topology) -> pd.DataFrame:
    """Forward and backward passes with what came right before: rank, window, step, instruction, micro_batch, dur_ns, gap_ns, load_ns.

    gap_ns: idle time between the end of whatever the rank did before and the pass. load_ns: for a forward pass of the first or the
    last stage, the time to get the batch: the extent of LoadMicroBatch where the trace names it, else that gap, since on these
    stages nothing but the data iterator lies there.
    """
    if not len(instructions):
        return pd.DataFrame(columns=PASSES)
    loading = [r for s in (0, (topology.pp or 1) - 1) for r in topology.ranks_of(s)]
    return pd.concat([_passes_of(rows, loading) for rows in by_ranks(instructions)], ignore_index=True)


def _passes_of(instructions: pd.DataFrame, loading: list[int]) -> pd.DataFrame:
    """The passes of some ranks; *loading*: those that get batches."""
    rank, window = (instructions[n].to_numpy(dtype=np.int64) for n in ("rank", "window"))
    begun = instructions["start_ns"].to_numpy(dtype=np.int64)
    order = np.lexsort((begun, window, rank))
    start, end = begun[order], instructions["end_ns"].to_numpy(dtype=np.int64)[order]
    new = np.concatenate(([True], (np.diff(rank[order]) != 0) | (np.diff(window[order]) != 0)))
    group = np.cumsum(new) - 1
    gap = np.maximum(start - _reached(start, end, new, group), 0).astype(float)  # integers before: a double of this century tells 256 ns apart
    codes, words = pd.factorize(instructions["instruction"])  # words are compared once, not row by row
    codes, places = codes[order], {word: i for i, word in enumerate(words)}
    forward, backward, named = (codes == places.get(word, -2) for word in ("forward", "backward", "load_micro_batch"))
    before = np.concatenate(([False], named[:-1])) & ~new
    load = np.where(before, np.concatenate(([0], (end - start)[:-1])), 0).astype(float)
    from_gap = forward & np.isin(rank[order], loading) & ~np.logical_or.reduceat(named, np.flatnonzero(new))[group]
    load, gap = np.where(from_gap, gap, load), np.where(from_gap, 0, gap)
    work = forward | backward
    told = instructions.iloc[order[work]]
    return told.assign(dur_ns=(end - start)[work], gap_ns=gap[work], load_ns=load[work])[PASSES]


def _reached(start: np.ndarray, end: np.ndarray, new: np.ndarray, group: np.ndarray) -> np.ndarray:
    """Until when the rank was busy before each instruction, ns: the latest end of those before it in its group, its own start for the first."""
    origin = start[np.flatnonzero(new)][group]
    apart = group * (int((end - origin).max()) + 1)  # groups one after another, so that one running maximum serves all
    latest = np.maximum.accumulate(end - origin + apart)
    before = np.concatenate((latest[:1], latest[:-1])) - apart + origin
    return np.asarray(np.where(new, start, before))


@table("durations", needs=("passes", "stage_time", "messages", "topology"))
def durations(passes: pd.DataFrame, stage_time: pd.DataFrame, messages: pd.DataFrame, topology: Topology) -> list[Durations]:
    """The durations of every completely recorded (step, replica); one entry a number of micro-batches, the most frequent first."""
    p = topology.pp or 0
    whole = stage_time[stage_time["complete"]]
    if p < 2 or not len(whole):
        raise CannotTell("not all stages of a replica were recorded in the same step")
    whole = whole.drop_duplicates(["step", "replica", "stage"])
    groups = whole.groupby(["step", "replica"])["micro_batches"]
    good = (groups.transform("size") == p) & (groups.transform("min") == groups.transform("max")) & (whole["micro_batches"] > 0)
    whole = whole[good].sort_values(["step", "replica", "stage"], kind="stable")
    if not len(whole):
        raise CannotTell("the recorded stages do not show the same number of micro-batches")
    counts = whole["micro_batches"].value_counts()
    return [_of_shape(whole[whole["micro_batches"] == m], passes, messages, p, int(m)) for m in counts.index]


class _Cells:
    """Where the row of a step and rank stands in arrays of cells: its cell, and its stage; -1 where it is in none."""

    def __init__(self, cells: pd.DataFrame, p: int) -> None:
        step, rank = (cells[n].to_numpy(dtype=np.int64) for n in ("step", "rank"))
        self._steps = np.unique(step)
        self._cell = np.full((len(self._steps), int(rank.max()) + 1), -1, np.int32)
        self._cell[np.searchsorted(self._steps, step), rank] = np.arange(len(cells)) // p
        self._stage = np.full(int(rank.max()) + 1, -1, np.int32)
        self._stage[rank] = np.arange(len(cells)) % p

    def of(self, step: np.ndarray, rank: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(cell, stage) of each row."""
        at = np.minimum(np.searchsorted(self._steps, step), len(self._steps) - 1)
        known = (self._steps[at] == step) & (rank >= 0) & (rank < len(self._stage))
        rank = np.where(known, rank, 0)
        return np.where(known, self._cell[at, rank], -1), self._stage[rank]


def _of_shape(cells: pd.DataFrame, passes: pd.DataFrame, messages: pd.DataFrame, p: int, m: int) -> Durations:
    count = len(cells) // p
    rank = cells["rank"].to_numpy(dtype=np.int64).reshape(count, p)
    places = _Cells(cells, p)
    made = dict(_passes(places, passes, (count, p, m))) | dict(_transfers(places, messages, (count, p - 1, m)))
    first = cells.iloc[::p]
    return Durations(
        first["step"].to_numpy(dtype=np.int64), first["replica"].to_numpy(dtype=np.int64), first["phase_ns"].to_numpy(dtype=float), rank,
        cells["recompute_ns"].to_numpy(dtype=float).reshape(count, p), **made,
    )  # fmt: skip


def _passes(places: _Cells, passes: pd.DataFrame, shape: tuple[int, int, int]) -> Iterator[tuple[str, np.ndarray]]:
    """The first of several passes of one kind and micro-batch counts: those of a copy of a trace, or of a second window, are as good."""
    step = passes["step"].to_numpy(dtype=np.int64)
    step = np.where(step >= 0, step, passes["window"].to_numpy(dtype=np.int64))
    number = passes["micro_batch"].to_numpy(dtype=np.int64)
    cell, stage = places.of(step, passes["rank"].to_numpy(dtype=np.int64))
    codes, words = pd.factorize(passes["instruction"])
    for word in ("forward", "backward"):
        rows = np.flatnonzero((cell >= 0) & (number < shape[2]) & (codes == next((i for i, w in enumerate(words) if w == word), -2)))[::-1]
        at = cell[rows], stage[rows], number[rows]
        wanted = {word: "dur_ns", f"before_{word}": "gap_ns"} | ({"load": "load_ns"} if word == "forward" else {})
        for name, column in wanted.items():
            out = np.zeros(shape)
            out[at] = passes[column].to_numpy(dtype=float)[rows]
            yield name, out


def _transfers(places: _Cells, messages: pd.DataFrame, shape: tuple[int, int, int]) -> Iterator[tuple[str, np.ndarray]]:
    """The tensors of one message (a tuple between stages) are added up; edges whose messages are no multiple of m stay zero."""
    step = messages["step"].to_numpy(dtype=np.int64)
    (cell, source), (other, target) = (places.of(step, messages[side].to_numpy(dtype=np.int64)) for side in ("source", "target"))
    for down, name in ((1, "activation"), (-1, "grad")):
        rows = np.flatnonzero((cell >= 0) & (cell == other) & (target - source == down))
        edge, of = np.minimum(source[rows], target[rows]), cell[rows]
        counts = np.zeros(shape[:2], np.int64)
        np.add.at(counts, (of, edge), 1)
        even = counts[of, edge] % shape[2] == 0
        rows, edge, of = rows[even], edge[even], of[even]
        at = of, edge, messages["number"].to_numpy(dtype=np.int64)[rows] // np.maximum(counts[of, edge] // shape[2], 1)
        for made, column in ((name, "transfer_ns"), (f"before_send_{name}", "gap_ns")):
            out = np.zeros(shape)
            np.add.at(out, at, messages[column].to_numpy(dtype=float)[rows])
            yield made, out


def receives_first(config: Config) -> bool:
    """Whether the engine receives before it sends: DeepSpeed v0.8.3 and later, and where the version is not known."""
    version = version_tuple(config.deepspeed)
    return not version or version >= (0, 8, 3)
