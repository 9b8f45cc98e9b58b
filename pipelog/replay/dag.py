"""A graph of dependencies, and the times at which its nodes start and end for given durations.

Nodes are numbered by level (the longest chain of nodes before them), so that all nodes of a level are one slice of every array: the
loop runs over levels, never over nodes, steps or ranks.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True, eq=False)
class Dag:
    """order: number in the caller's count → number here. levels: borders of the levels, n + 1 of them.

    before, first: the nodes before node i are before[first[i] : first[i + 1]]; none in level 0, at least one elsewhere.
    """

    order: np.ndarray
    levels: np.ndarray
    before: np.ndarray
    first: np.ndarray

    @property
    def size(self) -> int:
        """Number of nodes."""
        return len(self.first) - 1

    def run(self, durations: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(start, end) of every node, each as early as the nodes before it allow. durations: (n, …), the axes after the first are independent."""
        start = np.zeros_like(durations)
        end = durations.copy()
        for a, b in zip(self.levels[1:-1], self.levels[2:], strict=True):
            low, high = self.first[a], self.first[b]
            start[a:b] = np.maximum.reduceat(end[self.before[low:high]], self.first[a:b] - low, axis=0)
            end[a:b] += start[a:b]
        return start, end

    def slack(self, durations: np.ndarray, end: np.ndarray) -> np.ndarray:
        """By how much each node may end later without anything ending later than the last end of all."""
        latest = np.empty_like(end)
        latest[:] = end.max(axis=0)
        begin = np.empty_like(end)
        for a, b in zip(self.levels[-2::-1], self.levels[:0:-1], strict=True):
            begin[a:b] = latest[a:b] - durations[a:b]
            low, high = self.first[a], self.first[b]
            if low == high:
                continue
            of = np.repeat(np.arange(a, b), np.diff(self.first[a : b + 1]))
            np.minimum.at(latest, self.before[low:high], begin[of])
        return np.asarray(latest - end)

    def critical(self, start: np.ndarray, end: np.ndarray) -> np.ndarray:
        """Which nodes lie on one longest chain, from the node that ends last back to the beginning. Where two are equal, the first counts.

        start, end: (n, …); the answer has their shape.
        """
        lead = end.shape[1:]
        flat_start, flat_end = start.reshape(self.size, -1), end.reshape(self.size, -1)
        on = np.zeros(flat_end.shape, bool)
        cells = np.arange(flat_end.shape[1])
        at = np.argmax(flat_end, axis=0)
        widest = int(np.diff(self.first).max(initial=0))
        while len(cells):
            on[at, cells] = True
            low, count = self.first[at], self.first[at + 1] - self.first[at]
            there = count > 0
            at, cells, low, count = at[there], cells[there], low[there], count[there]
            came = at
            begun = flat_start[came, cells]
            at = self.before[low]
            best = flat_end[at, cells]
            for i in range(1, widest):
                more = count > i
                other = self.before[np.where(more, low + i, low)]
                later = more & (flat_end[other, cells] > best) & (best < begun)
                at, best = np.where(later, other, at), np.where(later, flat_end[other, cells], best)
        return on.reshape(self.size, *lead)


def dag(size: int, before: np.ndarray, after: np.ndarray) -> Dag:
    """The graph of *size* nodes in which before[i] has to end before after[i] starts. Raises ValueError where they go in a circle."""
    out = np.argsort(before, kind="stable")
    later = after[out]
    begins = np.concatenate(([0], np.cumsum(np.bincount(before, minlength=size))))
    waits = np.bincount(after, minlength=size)
    level = np.flatnonzero(waits == 0)
    sequence, levels = [level], [0, len(level)]
    while len(level):
        low, count = begins[level], begins[level + 1] - begins[level]
        ends = np.cumsum(count)
        total = int(ends[-1])
        reached = later[np.arange(total) + np.repeat(low - ends + count, count)]
        np.subtract.at(waits, reached, 1)
        level = np.unique(reached[waits[reached] == 0])
        sequence.append(level)
        levels.append(levels[-1] + len(level))
    if levels[-1] < size:
        raise ValueError(f"{size - levels[-1]} of {size} nodes wait for each other: the order of instructions cannot run")
    order = np.empty(size, np.int64)
    order[np.concatenate(sequence)] = np.arange(size)
    into = np.argsort(order[after], kind="stable")
    first = np.concatenate(([0], np.cumsum(np.bincount(order[after], minlength=size))))
    return Dag(order, np.array(levels[:-1]), order[before[into]], first)
