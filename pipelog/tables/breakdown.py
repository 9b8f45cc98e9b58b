"""Where the pipeline phase and the step go: shares that sum to 1, from the replay of the schedule on measured durations."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from pipelog.schedule import Delays, replay
from pipelog.tables import CannotTell, table, union_ns
from pipelog.tables.config import Config
from pipelog.tables.instructions import HostTrace
from pipelog.tables.steps import version_tuple
from pipelog.tables.topology import Topology


@dataclass(slots=True)
class Durations:
    """Measured durations of one replica and step, ns.

    forward, backward, load, before_forward, before_backward: (p, m). activation, grad: transfers over the edge of stage s and s+1,
    (p-1, m), from both sides ready to received. before_send_…: idle time on the sender right before its call, (p-1, m).
    """

    step: int
    replica: int
    phase_ns: float
    forward: np.ndarray
    backward: np.ndarray
    load: np.ndarray
    before_forward: np.ndarray
    before_backward: np.ndarray
    activation: np.ndarray
    grad: np.ndarray
    before_send_activation: np.ndarray
    before_send_grad: np.ndarray


@table("passes", needs=("instructions", "topology"))
def passes(instructions: pd.DataFrame, topology: Topology) -> pd.DataFrame:
    """Forward and backward passes with what came right before: rank, window, step, instruction, micro_batch, dur_ns, gap_ns, load_ns.

    gap_ns: idle time between the end of whatever the rank did before and the pass. load_ns: for a forward pass of the first or the
    last stage, the time to get the batch: the extent of LoadMicroBatch where the trace names it, else that gap, since on these
    stages nothing but the data iterator lies there.
    """
    loading = {r for s in (0, (topology.pp or 1) - 1) for r in topology.ranks_of(s)}
    parts = []
    for (rank, _), unordered in instructions.groupby(["rank", "window"], sort=False):
        mine = unordered.sort_values("start_ns", kind="stable")
        start, end = mine["start_ns"].to_numpy(dtype=np.int64), mine["end_ns"].to_numpy(dtype=np.int64)
        reach = np.concatenate((start[:1], np.maximum.accumulate(end)[:-1]))  # integers: a double of this century tells 256 ns apart
        gap = np.maximum(start - reach, 0).astype(float)
        kind = mine["instruction"].to_numpy()
        named = kind == "load_micro_batch"
        load = np.zeros(len(mine))
        if named.any():  # the load right before the pass
            length = (mine["end_ns"] - mine["start_ns"]).to_numpy(dtype=float)
            load[1:] = np.where(named[:-1], length[:-1], 0)
        elif rank in loading:
            load = np.where(kind == "forward", gap, 0)
            gap = gap - load
        told = mine.assign(dur_ns=mine["end_ns"] - mine["start_ns"], gap_ns=gap, load_ns=load)
        parts.append(told[np.isin(kind, ("forward", "backward"))])
    columns = ["rank", "window", "step", "instruction", "micro_batch", "dur_ns", "gap_ns", "load_ns", "file", "line"]
    return pd.concat(parts, ignore_index=True)[columns] if parts else pd.DataFrame(columns=columns)


@table("durations", needs=("passes", "stage_time", "messages", "topology"))
def durations(passes: pd.DataFrame, stage_time: pd.DataFrame, messages: pd.DataFrame, topology: Topology) -> list[Durations]:
    """The durations of every completely recorded (step, replica), in the shape that `schedule.replay` takes."""
    p = topology.pp or 0
    whole = stage_time[stage_time["complete"]]
    if p < 2 or not len(whole):
        raise CannotTell("not all stages of a replica were recorded in the same step")
    out = []
    for (step, replica), stages in whole.groupby(["step", "replica"]):
        ranks = stages.drop_duplicates("stage").set_index("stage")["rank"].reindex(range(p))
        m = int(stages["micro_batches"].min())
        if ranks.isna().any() or m < 1 or stages["micro_batches"].max() != m:
            continue
        one = Durations(
            int(step),
            int(replica),
            float(stages["phase_ns"].iloc[0]),
            *(np.zeros((p, m)) for _ in range(5)),
            *(np.zeros((p - 1, m)) for _ in range(4)),
        )
        mine = passes[(passes["step"] == step) | ((passes["step"] < 0) & (passes["window"] == step))]
        for stage, rank in ranks.items():
            of_rank = mine[mine["rank"] == rank]
            forward, backward = (of_rank[of_rank["instruction"] == word].iloc[:m] for word in ("forward", "backward"))
            one.forward[stage], one.load[stage], one.before_forward[stage] = forward["dur_ns"], forward["load_ns"], forward["gap_ns"]
            one.backward[stage], one.before_backward[stage] = backward["dur_ns"], backward["gap_ns"]
        _transfers(one, messages[messages["step"] == step], ranks, m)
        out.append(one)
    if not out:
        raise CannotTell("the recorded stages do not show the same number of micro-batches")
    return out


def _transfers(one: Durations, messages: pd.DataFrame, ranks: pd.Series, m: int) -> None:
    """Fill in the transfers; the tensors of one message (a tuple between stages) are added up."""
    for stage in range(len(one.activation)):
        low, high = ranks[stage], ranks[stage + 1]
        for source, target, transfer, gap in (
            (low, high, one.activation, one.before_send_activation),
            (high, low, one.grad, one.before_send_grad),
        ):
            rows = messages[(messages["source"] == source) & (messages["target"] == target)].sort_values("number")
            if len(rows) and len(rows) % m == 0:
                transfer[stage] = rows["transfer_ns"].to_numpy(dtype=float).reshape(m, -1).sum(axis=1)
                gap[stage] = rows["gap_ns"].to_numpy(dtype=float).reshape(m, -1).sum(axis=1)


@dataclass(frozen=True, slots=True)
class Breakdown:
    """phase: part → share of stages x pipeline phase; step: part → share of the step. Both sum to 1. replay_error: of the full replay.

    per_step: step, replica and the parts in ns of stage time, for charts.
    """

    phase: dict[str, float]
    step: dict[str, float]
    replay_error: float | None
    per_step: pd.DataFrame = field(default_factory=pd.DataFrame)


PARTS = ("compute", "recompute", "fill-drain", "imbalance-wait", "p2p-transfer", "stall", "data", "host-gap", "other")


@table("breakdown", needs=("durations", "stage_time", "host_traces", "config"))
def breakdown(durations: list[Durations], stage_time: pd.DataFrame, host_traces: list[HostTrace], config: Config) -> Breakdown:
    """Split stages x phase into parts (design/product.md), by replaying 1F1B with one cause after another taken in:

    compute, recompute: measured busy time. fill-drain: p (p-1) c with c the mean compute of a stage and micro-batch, what equal
    stages need. imbalance-wait: what the replay with the measured passes and free, immediate transfers adds. p2p-transfer: what
    transfers add up to three times the usual one; stall: what transfers and idle time before sends add beyond. data: what loads
    add. host-gap: what the usual idle time before sends and passes adds. The difference to the measured phase is `other`.
    """
    rows = [_of_one(one, stage_time, receive_first=receives_first(config)) for one in durations]
    per_step = pd.DataFrame(rows)
    totals = per_step[list(PARTS)].clip(lower=0).sum()
    phase = {part: float(totals[part] / totals.sum()) for part in PARTS}
    errors = per_step["replayed_ns"] / per_step["phase_ns"] - 1
    return Breakdown(phase, _of_step(stage_time, host_traces), float(errors.abs().median()), per_step)


def usual(times: np.ndarray) -> float:
    """The typical value of transfers or gaps of one replica and step: their median over all edges."""
    return float(np.median(times)) if times.size else 0.0


def _split(times: np.ndarray, typical: float) -> np.ndarray:
    """*times* without what lies far beyond the typical value: more than three times it and a millisecond over it."""
    return np.where((times > 3 * typical) & (times > typical + 1e6), typical, times)


def receives_first(config: Config) -> bool:
    """Whether the engine receives before it sends: DeepSpeed v0.8.3 and later, and where the version is not known."""
    version = version_tuple(config.deepspeed)
    return not version or version >= (0, 8, 3)


def _of_one(one: Durations, stage_time: pd.DataFrame, *, receive_first: bool) -> dict[str, float]:
    p, m = one.forward.shape
    mine = stage_time[(stage_time["step"] == one.step) & (stage_time["replica"] == one.replica)].drop_duplicates("stage")
    busy, again = float((one.forward + one.backward).sum()), float(mine["recompute_ns"].sum())
    transfers = usual(np.concatenate((one.activation, one.grad)))
    gaps = usual(np.concatenate((one.before_send_activation, one.before_send_grad)))
    late_activation, late_grad = (np.where(g > _split(g, gaps), g, 0.0) for g in (one.before_send_activation, one.before_send_grad))

    def phase(**delays: np.ndarray) -> float:
        return float(replay(one.forward, one.backward, Delays(**delays), receive_first=receive_first))

    moved = {"activation": _split(one.activation, transfers), "grad": _split(one.grad, transfers)}
    stalled = {"activation": one.activation, "grad": one.grad, "before_send_activation": late_activation, "before_send_grad": late_grad}
    loaded = stalled | {"load": one.load}
    full = loaded | {
        "before_send_activation": one.before_send_activation,
        "before_send_grad": one.before_send_grad,
        "before_forward": one.before_forward,
        "before_backward": one.before_backward,
    }
    lengths = [phase(), phase(**moved), phase(**stalled), phase(**loaded), phase(**full)]
    fill = (p - 1) * busy / m
    parts = {"compute": busy - again, "recompute": again, "fill-drain": fill, "imbalance-wait": p * lengths[0] - busy - fill}
    parts |= {name: p * (b - a) for name, a, b in zip(("p2p-transfer", "stall", "data", "host-gap"), lengths, lengths[1:], strict=False)}
    parts["other"] = p * (one.phase_ns - lengths[-1])
    excess = 0.0  # where the replay overshoots the measured phase, the later causes shrink
    for part in ("other", "host-gap", "data", "stall", "p2p-transfer", "imbalance-wait", "fill-drain"):
        parts[part] += excess
        excess = min(parts[part], 0.0)
        parts[part] = max(parts[part], 0.0)
    return parts | {"step": one.step, "replica": one.replica, "phase_ns": one.phase_ns, "replayed_ns": lengths[-1]}


def _of_step(stage_time: pd.DataFrame, host_traces: list[HostTrace]) -> dict[str, float]:
    """Shares of the step: what comes before the pipeline phase, the phase, and what comes after it.

    Each as the mean over the ranks of a replica, over the longest step of its ranks; then the mean over replicas and the median over
    steps. Collectives are counted outside the phase only, on whatever thread they wait.
    """
    whole = stage_time[stage_time["complete"]]
    traces = {t.file: t for t in host_traces}
    rows = []
    for (step, replica), mine in whole.groupby(["step", "replica"]):
        begin, end = int(mine["step_start_ns"].min()), int(mine["step_end_ns"].max())
        first, length = int(mine["phase_start_ns"].iloc[0]), float(end - begin)
        after = [
            _after(traces[str(r["file"])], first + int(r["phase_ns"]) + int(r["shift_ns"]), int(r["step_end_ns"]) + int(r["shift_ns"]))
            for r in mine.to_dict("records")
        ]
        share = {"start-skew": (first - begin) / length, "pipeline": float(mine["phase_ns"].iloc[0]) / length}
        share |= {part: float(np.mean([a[part] for a in after])) / length for part in ("reduce", "optimizer", "loss-broadcast")}
        share["other"] = max(0.0, 1 - sum(share.values()))
        rows.append({"step": step, "replica": replica} | share)
    if not rows:
        return {}
    shares = pd.DataFrame(rows).drop(columns="replica").groupby("step").mean().median().clip(lower=0)
    return {str(part): float(value / shares.sum()) for part, value in shares.items()}


def _after(trace: HostTrace, begin: int, end: int) -> dict[str, float]:
    """Time in ns, after the phase, in the optimizer, in reductions and in the broadcast of the loss; each a union, none counted twice."""
    inside = (trace.end > begin) & (trace.start < end)
    start, stop = np.maximum(trace.start, begin), np.minimum(trace.end, end)

    def of(mask: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return start[mask & inside], stop[mask & inside]

    optimizer = of(trace.kind == "optimizer_step")
    broadcast = of((trace.kind == "collective") & (trace.name == "broadcast"))
    reduction = of((trace.kind == "collective") & (trace.name != "broadcast"))
    so_far = optimizer
    out = {"optimizer": float(union_ns(*optimizer))}
    for part, pieces in (("reduce", reduction), ("loss-broadcast", broadcast)):
        joined = (np.concatenate((so_far[0], pieces[0])), np.concatenate((so_far[1], pieces[1])))
        out[part] = float(union_ns(*joined) - union_ns(*so_far))
        so_far = joined
    return out
