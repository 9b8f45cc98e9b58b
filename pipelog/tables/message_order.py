"""Whom messages go to where the traces do not say it (recorded without record_shapes): by their place in DeepSpeed's schedule."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
import pandas as pd

from pipelog.schedule import order
from pipelog.tables.device_work import RECEIVE, SEND, DeviceTrace
from pipelog.tables.instructions import HostTrace
from pipelog.tables.message_calls import Calls, of_device, of_host
from pipelog.tables.topology import Topology

_FORWARD, _BACKWARD, _SEND, _RECEIVE = range(4)
_WAYS = {"send_activation": (_SEND, 1), "recv_activation": (_RECEIVE, -1), "send_grad": (_SEND, -1), "recv_grad": (_RECEIVE, 1)}
"""Instruction → which call it makes, and in which direction its peer lies."""


@dataclass(frozen=True, slots=True)
class Ordered:
    """peers: file → the peer of each of its calls, -1 where it stays unknown; of the files alone that say none. why_not: why some stay so, null where none does."""

    peers: dict[str, np.ndarray] = field(default_factory=dict)
    why_not: str | None = None


@dataclass(slots=True)
class _Lane:
    """One rank's calls and passes by window: tokens in order of time, and for each the number of its call, -1 for passes."""

    trace: HostTrace
    stage: int
    neighbours: dict[int, int]
    windows: dict[int, tuple[np.ndarray, np.ndarray]]
    count: int

    def step(self, window: int) -> int:
        """Its number, or that of the window where it has none."""
        number = self.trace.windows[window][0]
        return number if number >= 0 else window


def calls_of(trace: HostTrace, device: DeviceTrace | None) -> tuple[Calls, bool]:
    """The calls of messages in a trace, and whether the device timed them."""
    if device is not None and bool(np.isin(device.group, (SEND, RECEIVE)).any()):
        return of_device(trace, device), True
    return of_host(trace), False


def by_order(host_traces: list[HostTrace], device_traces: dict[str, DeviceTrace], instructions: pd.DataFrame, topology: Topology) -> Ordered:
    """The peers of calls in traces that name none.

    In each step the passes and calls of a stage have to come in the very order of TrainSchedule, with as many tensors a message on one
    side of an edge as on the other. Then each call's place says what it is, and the neighbour of that direction is its peer. A step in
    which a stage's order is another (an evaluation in it, a part of it recorded, another schedule) stays without peers.
    """
    silent = [trace for trace in host_traces if _names_nobody(trace, device_traces.get(trace.file))]
    if not silent:
        return Ordered()
    p = topology.pp or 0
    places = topology.ranks.dropna(subset=["stage", "replica"]) if len(topology.ranks) else topology.ranks
    if p < 2 or not len(places):
        return Ordered({}, "neither do the traces say whom a message goes to (record_shapes=True), nor a log which stage each rank is")
    at = {(int(s), int(r), -1 if pd.isna(t) else int(t)): int(k) for k, s, r, t in places[["rank", "stage", "replica", "tensor"]].to_numpy().tolist()}
    of_rank = {rank: place for place, rank in at.items()}
    passes = _passes(instructions)
    lanes: dict[tuple[int, int], list[_Lane]] = {}
    for trace in silent:
        if trace.rank in of_rank:
            calls, _ = calls_of(trace, device_traces.get(trace.file))
            stage, replica, tensor = of_rank[trace.rank]
            near = {way: at.get((stage + way, replica, tensor), -1) for way in (-1, 1)}
            lanes.setdefault((replica, tensor), []).append(_Lane(trace, stage, near, _windows(calls, passes.get(trace.file)), len(calls["sends"])))
    tries = [_told(lanes, p, receive_first=first) for first in (True, False)]
    return min(tries, key=lambda found: sum(int((peers < 0).sum()) for peers in found.peers.values()))


def _names_nobody(trace: HostTrace, device: DeviceTrace | None) -> bool:
    """Whether there are messages in a trace, and none says whom it goes to."""
    peers = trace.peer[trace.kind.isin(("send", "recv"))]
    if device is not None:
        peers = np.concatenate((peers, device.peer[np.isin(device.group, (SEND, RECEIVE))]))
    return bool(len(peers)) and not (peers >= 0).any()


def _passes(instructions: pd.DataFrame) -> dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """(token, window, start) of the passes of each file."""
    rows = instructions[instructions["instruction"].isin(("forward", "backward"))] if len(instructions) else instructions
    out = {}
    for file, places in rows.groupby("file", sort=False, observed=True).indices.items():
        mine = rows.iloc[places]
        token = np.where(np.asarray(mine["instruction"] == "forward"), _FORWARD, _BACKWARD)
        out[str(file)] = token, mine["window"].to_numpy(dtype=np.int64), mine["start_ns"].to_numpy(dtype=np.int64)
    return out


def _windows(calls: Calls, passes: tuple[np.ndarray, np.ndarray, np.ndarray] | None) -> dict[int, tuple[np.ndarray, np.ndarray]]:
    """By window the tokens in order of time, and the numbers of the calls among them."""
    if passes is None:
        return {}
    count = len(calls["sends"])
    token = np.concatenate((np.where(calls["sends"], _SEND, _RECEIVE), passes[0]))
    window, start = np.concatenate((calls["window"], passes[1])), np.concatenate((calls["call_ns"], passes[2]))
    number = np.concatenate((np.arange(count), np.full(len(passes[0]), -1)))
    by_time = np.lexsort((start, window))
    borders = np.flatnonzero(np.concatenate(([True], np.diff(window[by_time]) != 0)))
    return {int(window[part[0]]): (token[part], number[part]) for part in np.split(by_time, borders[1:])}


def _told(lanes: dict[tuple[int, int], list[_Lane]], p: int, *, receive_first: bool) -> Ordered:
    """The peers under one of the two orders that DeepSpeed's releases have."""
    peers = {lane.trace.file: np.full(lane.count, -1, np.int32) for mine in lanes.values() for lane in mine}
    why_not: str | None = None
    for mine in lanes.values():
        steps: dict[int, list[tuple[_Lane, int]]] = {}
        for lane in mine:
            for window in lane.windows:
                steps.setdefault(lane.step(window), []).append((lane, window))
        for step, there in steps.items():
            sizes = _tensors({lane.stage: lane.windows[window][0] for lane, window in there}, p)
            for lane, window in there:
                token, number = lane.windows[window]
                m = int((token == _FORWARD).sum())
                wanted, way = _expected(lane.stage, p, m, tuple(sizes.get((lane.stage, w), 1) for w in _WAYS), receive_first=receive_first)
                if sizes and np.array_equal(wanted, token):
                    near = np.array([lane.neighbours[-1], -1, lane.neighbours[1]], np.int32)
                    peers[lane.trace.file][number[number >= 0]] = near[way[number >= 0] + 1]
                elif why_not is None:
                    why_not = f"rank {lane.trace.rank} does not send, receive and compute in step {step} in the order of 1F1B with {p} stages and {m} micro-batches"
    return Ordered(peers, why_not)


@lru_cache(maxsize=256)
def _expected(stage: int, p: int, m: int, sizes: tuple[int, ...], *, receive_first: bool) -> tuple[np.ndarray, np.ndarray]:
    """(token, direction of the peer) of all passes and calls of a stage in a step; sizes: calls of a message by kind, in the order of _WAYS."""
    count = dict(zip(_WAYS, sizes, strict=True))
    passes = {"forward": (_FORWARD, 0), "backward": (_BACKWARD, 0)}
    made = [_WAYS.get(word) or passes[word] for word, _ in order(stage, p, m, receive_first=receive_first) for _ in range(count.get(word, 1))]
    return np.array([token for token, _ in made]), np.array([way for _, way in made])


def _tensors(tokens: dict[int, np.ndarray], p: int) -> dict[tuple[int, str], int]:
    """(stage, instruction) → calls of one message, from what each stage sends and receives, beginning with stage 0, whose sends are activations alone.

    Where not all stages were recorded, one call a message. Empty where the stages do not fit together.
    """
    if set(tokens) != set(range(p)):
        return {(stage, word): 1 for stage in tokens for word in _WAYS}
    counts = {kind: [int((tokens[s] == kind).sum()) for s in range(p)] for kind in range(4)}
    m = counts[_FORWARD][0]
    if m < 1 or any(n != m for kind in (_FORWARD, _BACKWARD) for n in counts[kind]):
        return {}
    sizes: dict[tuple[int, str], int] = {}
    down = up = 0  # calls of a message between the stage before and this one
    for s in range(p):
        sent, received = divmod(counts[_SEND][s], m), divmod(counts[_RECEIVE][s], m)
        sizes |= {(s, "recv_activation"): down, (s, "send_grad"): up}
        down, up = sent[0] - up, received[0] - down
        sizes |= {(s, "send_activation"): down, (s, "recv_grad"): up}
        if sent[1] or received[1] or (min(down, up) < 1 if s < p - 1 else (down, up) != (0, 0)):
            return {}
    return sizes
