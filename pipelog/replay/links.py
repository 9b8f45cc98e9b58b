"""What each link between two stages costs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from pipelog.replay.measured import Order, costs_of, sample
from pipelog.replay.simulate import run
from pipelog.tables import CannotTell, table
from pipelog.tables.durations import Durations

_MOST_EDGES = 24
_WORST_CELLS = 4
"""Steps and replicas with the largest excess on an edge, which are replayed whatever the sample of the others."""


@dataclass(frozen=True, slots=True)
class _Edge:
    """An edge of stage s and s + 1 in one direction, and the names of its two measures."""

    stage: int
    down: bool

    @property
    def names(self) -> tuple[str, str]:
        return ("activation", "before_send_activation") if self.down else ("grad", "before_send_grad")

    def of(self, cells: Durations) -> tuple[np.ndarray, np.ndarray]:
        """(transfer, idle time of the sender before), (cells, m)."""
        transfer, late = (getattr(cells, name)[:, self.stage] for name in self.names)
        return transfer, late


@table("links", needs=("durations", "replay_order"))
def links(durations: list[Durations], replay_order: Order) -> pd.DataFrame:
    """One row an edge and direction: source, target (stages), messages, transfer_ns, late_ns (medians), typical_transfer_ns,
    typical_late_ns (medians of the other edges, their median), worst_ns, cost, cost_most (share of the phase that a typical link would save: median
    and largest over steps and replicas), first_step, last_step.

    Two measures of each message: the transfer, from both sides ready to received, and the idle time on the sender right before its
    call. cost: phase as replayed with everything measured, against the same with this edge's own times at most the typical ones. Of
    very large jobs an even sample of the steps is replayed, and those with the largest excess on the edge; and only the edges with the
    largest excess: the others' costs are null.
    """
    if not durations:
        raise CannotTell("no step was recorded on all stages")
    edges = [_Edge(s, down) for s in range(durations[0].activation.shape[1]) for down in (True, False)]
    times = {edge: [np.concatenate([edge.of(cells)[i].ravel() for cells in durations]) for i in (0, 1)] for edge in edges}
    middle = np.array([[float(np.median(values)) for values in times[edge]] for edge in edges])
    usual = [np.median(np.delete(middle, i, axis=0), axis=0) for i in range(len(edges))]
    excess = [sum(np.maximum(t - u, 0).sum() for t, u in zip(times[e], limits, strict=True)) for e, limits in zip(edges, usual, strict=True)]
    asked = set(np.argsort(-np.array(excess), kind="stable")[:_MOST_EDGES].tolist())
    rows = [_row(edge, times[edge], limits) for edge, limits in zip(edges, usual, strict=True)]
    span = {"first_step": min(int(cells.step.min()) for cells in durations), "last_step": max(int(cells.step.max()) for cells in durations)}
    for i, row in enumerate(rows):
        savings = np.concatenate([_savings(cells, edges[i], usual[i], replay_order) for cells in durations]) if i in asked else np.array([np.nan])
        row.update({"cost": float(np.median(savings)), "cost_most": float(savings.max())} | span)
    return pd.DataFrame(rows)


def _row(edge: _Edge, times: list[np.ndarray], usual: np.ndarray) -> dict[str, float]:
    transfer, late = times
    return {
        "source": edge.stage if edge.down else edge.stage + 1,
        "target": edge.stage + 1 if edge.down else edge.stage,
        "messages": len(transfer),
        "transfer_ns": float(np.median(transfer)),
        "late_ns": float(np.median(late)),
        "typical_transfer_ns": float(usual[0]),
        "typical_late_ns": float(usual[1]),
        "worst_ns": float((transfer + late).max()),
    }


def _savings(cells: Durations, edge: _Edge, typical: np.ndarray, order: Order) -> np.ndarray:
    """Share of the phase that goes when the edge behaves like the others, of the steps and replicas that are replayed."""
    excess = sum(np.maximum(times - limit, 0).sum(axis=1) for times, limit in zip(edge.of(cells), typical, strict=True))
    if not np.any(excess):
        return np.zeros(1)
    _, p, m = cells.forward.shape
    chosen = np.union1d(sample(13 * p * m, len(cells.step)), np.argsort(-np.asarray(excess), kind="stable")[:_WORST_CELLS])
    names = {name.replace("before_send", "send"): limit for name, limit in zip(edge.names, typical, strict=True)}
    measured = costs_of(cells, chosen)
    better = measured
    for name, limit in names.items():
        values = np.array(getattr(measured, name))
        values[:, edge.stage] = np.minimum(values[:, edge.stage], limit)
        better = better.changed(**{name: values})
    before, after = (run(order.schedule, costs, p, m, blocking=order.blocking).phase() for costs in (measured, better))
    return np.asarray(np.maximum(0.0, (before - after) / cells.phase_ns[chosen]))
