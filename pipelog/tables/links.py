"""What each link between two stages costs, and what collectives cost in themselves."""

from __future__ import annotations

import numpy as np
import pandas as pd

from pipelog.schedule import Delays, replay
from pipelog.tables import CannotTell, table
from pipelog.tables.breakdown import Durations, receives_first
from pipelog.tables.config import Config
from pipelog.tables.instructions import HostTrace
from pipelog.tables.topology import Topology


@table("links", needs=("durations", "config"))
def links(durations: list[Durations], config: Config) -> pd.DataFrame:
    """One row an edge and direction: source, target (stages), messages, transfer_ns, late_ns (medians), typical_transfer_ns,
    typical_late_ns (median over the other edges), cost (share of the phase that a typical link would save), steps (first, last).

    Two measures of each message: the transfer, from both sides ready to received, and the idle time on the sender right before its
    call. cost: phase as replayed with everything measured, against the same with this edge's own times at most the typical ones,
    the median over steps and replicas.
    """
    if not durations:
        raise CannotTell("no step was recorded on all stages")
    edges = len(durations[0].activation)
    rows = []
    for s in range(edges):
        for down in (True, False):
            transfer = [_of(d, s, down=down)[0] for d in durations]
            late = [_of(d, s, down=down)[1] for d in durations]
            typical = _typical(durations, s, down=down)
            savings = [_saving(d, s, typical, down=down, receive_first=receives_first(config)) for d in durations]
            rows.append(
                {
                    "source": s if down else s + 1,
                    "target": s + 1 if down else s,
                    "messages": sum(map(len, transfer)),
                    "transfer_ns": float(np.median(np.concatenate(transfer))),
                    "late_ns": float(np.median(np.concatenate(late))),
                    "typical_transfer_ns": typical[0],
                    "typical_late_ns": typical[1],
                    "worst_ns": float(max(np.max(t + g) for t, g in zip(transfer, late, strict=True))),
                    "cost": float(np.median(savings)),
                    "cost_most": float(np.max(savings)),
                    "first_step": min(d.step for d in durations),
                    "last_step": max(d.step for d in durations),
                }
            )
    return pd.DataFrame(rows)


def _of(one: Durations, edge: int, *, down: bool) -> tuple[np.ndarray, np.ndarray]:
    return (one.activation[edge], one.before_send_activation[edge]) if down else (one.grad[edge], one.before_send_grad[edge])


def _typical(durations: list[Durations], edge: int, *, down: bool) -> tuple[float, float]:
    """Medians over all messages of the other edges and directions; over the own quarter of shortest ones where there is no other."""
    transfers, gaps = [], []
    for one in durations:
        for s in range(len(one.activation)):
            for d in (True, False):
                if (s, d) != (edge, down):
                    t, g = _of(one, s, down=d)
                    transfers.append(t)
                    gaps.append(g)
    return float(np.median(np.concatenate(transfers))), float(np.median(np.concatenate(gaps)))


def _saving(one: Durations, edge: int, typical: tuple[float, float], *, down: bool, receive_first: bool) -> float:
    """Share of the phase that goes when the edge behaves like the others."""
    measured = {
        "load": one.load,
        "before_forward": one.before_forward,
        "before_backward": one.before_backward,
        "activation": one.activation,
        "grad": one.grad,
        "before_send_activation": one.before_send_activation,
        "before_send_grad": one.before_send_grad,
    }
    names = ("activation", "before_send_activation") if down else ("grad", "before_send_grad")
    better = dict(measured)
    for name, limit in zip(names, typical, strict=True):
        values = measured[name].copy()
        values[edge] = np.minimum(values[edge], limit)
        better[name] = values
    before, after = (float(replay(one.forward, one.backward, Delays(**d), receive_first=receive_first)) for d in (measured, better))
    return max(0.0, (before - after) / one.phase_ns)


@table("collectives", needs=("host_traces", "topology"))
def collectives(host_traces: list[HostTrace], topology: Topology) -> pd.DataFrame:
    """Collectives of a step, matched by order over the ranks that made the same number: step, name, ranks, own_ns, wait_ns, share.

    own_ns: the shortest duration over the ranks, what the collective takes once all have come; wait_ns: the longest minus that, the
    wait for the last to come. share: own_ns of all collectives of this name in the step over the step.
    """
    del topology
    rows = []
    for trace in host_traces:
        places = np.flatnonzero(trace.kind == "collective")
        window = trace.window_of(trace.start[places])
        for i, w in zip(places[window >= 0], window[window >= 0], strict=True):
            step, begin, end = trace.windows[w]
            rows.append((step if step >= 0 else int(w), trace.rank, str(trace.name[i]), int(trace.end[i] - trace.start[i]), end - begin))
    if not rows:
        raise CannotTell("no trace shows collectives")
    found = pd.DataFrame(rows, columns=["step", "rank", "name", "dur_ns", "step_ns"])
    found["number"] = found.groupby(["step", "rank", "name"]).cumcount()
    each = found.groupby(["step", "name", "number"]).agg(
        ranks=("rank", "nunique"), own_ns=("dur_ns", "min"), longest=("dur_ns", "max"), step_ns=("step_ns", "max")
    )
    each = each[each["ranks"] > 1]
    total = each.groupby(["step", "name"]).agg(
        ranks=("ranks", "max"), own_ns=("own_ns", "sum"), longest=("longest", "sum"), step_ns=("step_ns", "max")
    )
    total["wait_ns"] = total["longest"] - total["own_ns"]
    total["share"] = total["own_ns"] / total["step_ns"]
    return total.drop(columns="longest").reset_index()
