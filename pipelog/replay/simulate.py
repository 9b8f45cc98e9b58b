"""One step of a pipeline, simulated: start and end of every instruction from the durations of each.

    graph = schedule_graph("1f1b", p=4, m=8)
    line = simulate(graph, Costs(forward=2_000_000, backward=4_000_000, activation=100_000, grad=100_000))
    line.phase(), line.bubble(), line.of("forward")

Times are in the unit of the costs, nanoseconds throughout pipelog. Axes before (place, micro-batch) are independent steps and replicas.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import lru_cache

import numpy as np

from pipelog.replay.dag import Dag, dag
from pipelog.replay.orders import Schedule, in_flight, program

Durations = np.ndarray | float | int

KINDS = (
    "load", "before_forward", "forward", "before_backward", "recompute", "backward", "weight",
    "send_activation", "recv_activation", "activation", "send_grad", "recv_grad", "grad",
)  # fmt: skip
COMPUTE = ("forward", "recompute", "backward", "weight")
_AT_EDGES = frozenset(KINDS[7:])
_ALWAYS = frozenset({"forward", "backward", *KINDS[7:]})


@dataclass(frozen=True, slots=True)
class Costs:
    """Durations of one step's instructions, ns: numbers, or arrays that broadcast to (…, places, m) or (…, places - 1, m).

    forward, recompute, backward: the passes; backward without recomputation. weight: the part of the backward pass that only makes
    weight gradients, where it is to be told apart (zero-bubble); backward is then without it too. load: to get the batch, before the
    forward pass. before_forward, before_backward: idle time of the host before the pass. activation, grad: a transfer over the edge
    between places j and j + 1, down and up, once both sides are ready. send_…, recv_…: idle time of the caller right before its call.
    Without interleaving places are stages; with v chunks there are p v, in the order in which a micro-batch passes them.
    """

    forward: Durations
    backward: Durations
    recompute: Durations = 0
    weight: Durations = 0
    load: Durations = 0
    before_forward: Durations = 0
    before_backward: Durations = 0
    activation: Durations = 0
    grad: Durations = 0
    send_activation: Durations = 0
    recv_activation: Durations = 0
    send_grad: Durations = 0
    recv_grad: Durations = 0

    def each(self, change: Callable[[np.ndarray], np.ndarray]) -> Costs:
        """The same with every array of durations changed; plain numbers stay."""
        return Costs(**{f.name: change(v) if isinstance(v := getattr(self, f.name), np.ndarray) else v for f in fields(self)})

    def changed(self, **durations: Durations) -> Costs:
        """The same with other durations of some kinds."""
        return replace(self, **durations)

    def given(self) -> frozenset[str]:
        """Kinds of instructions that take any time."""
        return frozenset(f.name for f in fields(self) if np.any(np.asarray(getattr(self, f.name))))


@dataclass(frozen=True, slots=True, eq=False)
class Graph:
    """Instructions of one step and what each waits for. kind: into KINDS; stage (of a transfer the sender), place (or edge), micro_batch.

    blocking: a message needs both sides and holds both until it has come (gloo, NCCL above its buffers: what DeepSpeed's blocking send and
    receive do). Otherwise it leaves when it is sent, one after another on a link, and only the receiver waits.
    """

    schedule: Schedule
    p: int
    m: int
    v: int
    blocking: bool
    dag: Dag
    kind: np.ndarray
    stage: np.ndarray
    place: np.ndarray
    micro_batch: np.ndarray

    def in_flight(self) -> np.ndarray:
        """Micro-batches that each stage holds at its peak, (p,)."""
        return np.array([in_flight(self.schedule, s, self.p, self.m, self.v) for s in range(self.p)])

    def nodes(self, kind: str) -> np.ndarray:
        """Numbers of the instructions of a kind, (places or edges, m); empty where the graph has none."""
        found = np.flatnonzero(self.kind == KINDS.index(kind))
        return found[np.lexsort((self.micro_batch[found], self.place[found]))].reshape(-1, self.m)


def schedule_graph(
    schedule: Schedule, p: int, m: int, v: int = 1, *, blocking: bool | None = None, kinds: frozenset[str] = frozenset(KINDS)
) -> Graph:
    """The graph of one step: p stages, m micro-batches of one replica, v chunks a stage (interleaved only).

    blocking: see `Graph`; by default DeepSpeed's schedule and GPipe block, those that overlap messages with compute do not. kinds: leave out
    instructions that take no time. Raises ValueError where the schedule does not exist for these numbers or cannot run.
    """
    if p < 1:
        raise ValueError(f"p must be at least 1, not {p}")
    if blocking is None:
        blocking = schedule in ("1f1b", "1f1b-send-first", "gpipe")
    return _graph(schedule, p, m, v, (kinds | _ALWAYS) & frozenset(KINDS), blocking=blocking)


@lru_cache(maxsize=16)
def _graph(schedule: Schedule, p: int, m: int, v: int, kinds: frozenset[str], *, blocking: bool) -> Graph:
    """Nodes are keyed by kind, place and micro-batch as one number, and numbered in the order of the programs, transfers last."""
    code = {kind: i for i, kind in enumerate(KINDS)}
    programs = [np.array([(code[kind], place, k) for kind, place, k in program(schedule, s, p, m, v) if kind in kinds], np.int64) for s in range(p)]
    rows, stage = np.concatenate(programs), np.repeat(np.arange(p), [len(mine) for mine in programs])
    calls = {code[f"{call}_{name}"]: code[name] for call in ("send", "recv") for name in ("activation", "grad")}
    sends = np.isin(rows[:, 0], [code["send_activation"], code["send_grad"]])
    talks = np.isin(rows[:, 0], list(calls))
    carried = np.array([calls.get(i, -1) for i in range(len(KINDS))])
    transfers = np.column_stack((carried[rows[sends, 0]], rows[sends, 1:]))
    keys, own = np.concatenate((rows, transfers)), len(rows)
    at = np.zeros(len(KINDS) * p * v * m, np.int64)
    flat = (keys[:, 0] * p * v + keys[:, 1]) * m + keys[:, 2]
    at[flat] = np.arange(len(keys))
    transfer = np.where(talks, at[np.where(talks, (carried[rows[:, 0]] * p * v + rows[:, 1]) * m + rows[:, 2], 0)], -1)
    node = np.arange(own)
    follows = np.flatnonzero(stage[1:] == stage[:-1])  # the instruction after these is on the same stage
    waits = talks if blocking else talks & ~sends
    if blocking:
        edges = [(node[waits], transfer[waits]), (np.where(waits, transfer, node)[follows], follows + 1)]
    else:
        received = follows[waits[follows]]
        edges = [(node[sends], transfer[sends]), (follows, follows + 1), (transfer[received], received + 1)]
        link = np.lexsort((np.arange(len(transfers)), transfers[:, 1], transfers[:, 0]))
        same = (np.diff(transfers[link, 0]) == 0) & (np.diff(transfers[link, 1]) == 0)
        edges.append((own + link[:-1][same], own + link[1:][same]))
    before, after = (np.concatenate([e[i] for e in edges]) for i in (0, 1))
    made = dag(len(keys), before, after)
    back = np.argsort(made.order)
    stages = np.concatenate((stage, stage[sends]))
    return Graph(schedule, p, m, v, blocking, made, keys[back, 0], stages[back], keys[back, 1], keys[back, 2])


@dataclass(frozen=True, slots=True, eq=False)
class Timeline:
    """Times of every instruction of a graph: durations, start, end, each (nodes, …), ns from the step's beginning."""

    graph: Graph
    durations: np.ndarray
    start: np.ndarray
    end: np.ndarray

    def of(self, kind: str) -> tuple[np.ndarray, np.ndarray]:
        """(start, end) of the instructions of a kind, (…, places or edges, m).

        A transfer starts when both sides are ready (blocking) or when it is sent. A send or receive is here the idle time right before its
        call, at whose end it calls; under blocking the call returns with the end of its transfer.
        """
        nodes = self.graph.nodes(kind)
        return np.moveaxis(self.start[nodes], (0, 1), (-2, -1)), np.moveaxis(self.end[nodes], (0, 1), (-2, -1))

    def phase(self) -> np.ndarray:
        """Length of the pipeline phase, (…): start of the first forward pass to the end of the last backward pass."""
        last = np.isin(self.graph.kind, (KINDS.index("backward"), KINDS.index("weight")))
        return np.asarray(self.end[last].max(axis=0) - self.start[self.graph.kind == KINDS.index("forward")].min(axis=0))

    def busy(self) -> np.ndarray:
        """Time in passes of each stage, (…, p)."""
        work = np.isin(self.graph.kind, [KINDS.index(k) for k in COMPUTE])
        out = np.zeros((self.graph.p, *self.durations.shape[1:]), self.durations.dtype)
        np.add.at(out, self.graph.stage[work], self.durations[work])
        return np.moveaxis(out, 0, -1)

    def bubble(self) -> np.ndarray:
        """Idle share of the phase of each stage, (…, p): 1 - busy / phase."""
        return np.asarray(1 - self.busy() / self.phase()[..., None])

    def slack(self) -> np.ndarray:
        """By how much each instruction may be late without lengthening the step, (nodes, …)."""
        return self.graph.dag.slack(self.durations, self.end)

    def critical(self) -> np.ndarray:
        """Which instructions lie on the critical path, (nodes, …): one longest chain to the end of the last backward pass."""
        return self.graph.dag.critical(self.start, self.end)


def simulate(graph: Graph, costs: Costs) -> Timeline:
    """Run the graph on durations; every instruction starts as soon as what it waits for has ended. Whole numbers stay exact."""
    missing = costs.given() - {KINDS[k] for k in np.unique(graph.kind)} - (_AT_EDGES if graph.p * graph.v == 1 else frozenset())
    if missing:
        raise ValueError(f"the graph has no {', '.join(sorted(missing))}")
    places = graph.p * graph.v
    given = {f.name: np.asarray(getattr(costs, f.name)) for f in fields(costs)}
    rows = {name: places - 1 if name in _AT_EDGES else places for name in given}
    lead = np.broadcast_shapes(*(value.shape[:-2] for value in given.values() if value.ndim > 2))
    durations = np.zeros((len(graph.kind), *lead), np.result_type(*given.values()))
    for name, value in given.items():
        if rows[name] and (nodes := graph.nodes(name)).size:
            durations[nodes] = np.moveaxis(np.broadcast_to(value, (*lead, rows[name], graph.m)), (-2, -1), (0, 1))
    start, end = graph.dag.run(durations)
    return Timeline(graph, durations, start, end)


def run(schedule: Schedule, costs: Costs, p: int, m: int, v: int = 1, *, blocking: bool | None = None) -> Timeline:
    """Simulate one schedule on durations, with only the instructions that take time in its graph."""
    return simulate(schedule_graph(schedule, p, m, v, blocking=blocking, kinds=costs.given()), costs)


_AT_ONCE = 1 << 20
"""Instructions times steps times replicas that are simulated together: their times take some 30 bytes each."""


def phases(schedule: Schedule, costs: Costs, p: int, m: int, v: int = 1, *, blocking: bool | None = None) -> np.ndarray:
    """Length of the pipeline phase, (…), as `run(…).phase()` gives it; of many steps one piece after another, for the sake of memory."""
    graph = schedule_graph(schedule, p, m, v, blocking=blocking, kinds=costs.given())
    lead = np.broadcast_shapes(*(np.shape(getattr(costs, f.name))[:-2] for f in fields(costs)))
    each = max(1, int(_AT_ONCE // (len(graph.kind) * max(1, int(np.prod(lead[1:]))))))
    if not lead or lead[0] <= each:
        return simulate(graph, costs).phase()

    def piece(first: int) -> Costs:
        return costs.each(lambda a: a[first : first + each] if a.ndim == len(lead) + 2 and len(a) == lead[0] else a)

    return np.concatenate([simulate(graph, piece(i)).phase() for i in range(0, lead[0], each)])
