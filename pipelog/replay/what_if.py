"""What another setting would give: the same graph on changed durations, and what each change costs elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from pipelog.replay.changes import best_split, halved, interleaved, merged, middle, resized, split, typical
from pipelog.replay.measured import Measured, ReplayCheck
from pipelog.replay.orders import Schedule
from pipelog.replay.room import Room, room
from pipelog.replay.simulate import Costs, Timeline, run
from pipelog.schedule import ideal_bubble
from pipelog.tables import CannotTell, Tables, table
from pipelog.tables.config import Config
from pipelog.tables.memory import StageMemory
from pipelog.tables.topology import Topology

LEAST_GAIN = 0.02
"""Smallest gain that is advised; never less than the error of the replay."""
LEAST_ASSUMED = 0.05
"""Likewise where durations under the change are assumed, not measured."""
_PASSES = ("forward", "backward", "recompute")
_SMALL_BUBBLE = 0.05
"""Ideal bubble below which more micro-batches are not proposed."""


@dataclass(frozen=True, slots=True)
class Change:
    """One change before it is simulated.

    name: `setting=value`. setting: what to set, null where nothing can be set. samples: samples of a step over those now. size: micro-batch
    over the present one. price: what it costs elsewhere. assumed: whether durations were changed by an assumption. outside_ns: what
    the change adds to the time beside the phase. kind: `advice` (may be recommended), `memory` (only if memory forces or allows it),
    `bound` (what removing a cause would give at most), `reference` (DeepSpeed does not run it).
    """

    name: str
    costs: Costs
    p: int
    m: int
    kind: str
    setting: str | None = None
    price: str | None = None
    schedule: Schedule | None = None
    v: int = 1
    samples: float = 1.0
    size: float = 1.0
    assumed: bool = False
    outside_ns: float = 0.0


@dataclass(frozen=True, slots=True)
class WhatIf:
    """A change with its prediction. step_ns; gain: share of the time per sample that goes. bubble: mean idle share of the phase over stages.

    compute_ns: mean work of a stage in a step. in_flight, peak_bytes (null where memory is not known): by stage. messages: p2p messages
    that a replica exchanges in a step. room: whether it fits. advised: worth its price by the figures that are known, and not known not to fit.
    """

    change: Change
    step_ns: float
    gain: float
    bubble: float
    compute_ns: float
    in_flight: tuple[float, ...]
    peak_bytes: tuple[int, ...] | None
    messages: int
    room: Room
    advised: bool


@table("what_if", needs=("measured", "replay_check", "topology", "config", "tables"))
def what_if(measured: Measured, replay_check: ReplayCheck, topology: Topology, config: Config, tables: Tables) -> list[WhatIf]:
    """The present setting first (change `now`), then every change that this run allows, by predicted gain.

    A change is simulated on the middle durations of each micro-batch, or where their number changes, on their mean; the length is put in
    proportion to what the same durations give for the present setting, so that what they miss cancels. What a step takes outside the
    pipeline phase stays. Where the log prints steps that were not recorded, times are in proportion to those.
    """
    if not replay_check.believed:
        raise CannotTell(str(replay_check.reason))
    memory: StageMemory | None = tables.get("stage_memory")
    whole, mean = middle(measured.costs), typical(measured.costs)
    phase = float(np.median(measured.phase_ns.max(axis=1)))
    scale = replay_check.printed_ns / float(np.median(measured.step_ns)) if replay_check.printed_ns else 1.0
    factors = {costs_.forward.shape[-1]: phase / float(measured.phases(costs_).max()) for costs_ in (mean, whole)}  # type: ignore[union-attr]
    known = _Known(factors, measured.outside_ns, scale, max(LEAST_GAIN, replay_check.error), memory, tables)
    first = _predicted(Change("now", whole, measured.p, measured.m, "now"), measured, known, None)
    found = [_predicted(change, measured, known, first.step_ns) for change in _changes(whole, mean, measured, topology, config)]
    return [first, *sorted(found, key=lambda w: -w.gain)]


@dataclass(frozen=True, slots=True)
class _Known:
    """factors: micro-batches that the durations tell apart (all, or 1: their mean) → measured over replayed phase. outside_ns: of a step,
    beside the phase. scale: printed over recorded step. least: smallest gain that is advised.
    """

    factors: dict[int, float]
    outside_ns: float
    scale: float
    least: float
    memory: StageMemory | None
    tables: Tables


def _predicted(change: Change, measured: Measured, known: _Known, now_ns: float | None) -> WhatIf:
    own = change.schedule is None
    line = run(change.schedule or measured.schedule, change.costs, change.p, change.m, change.v, blocking=measured.blocking if own else None)
    factor = known.factors[np.shape(change.costs.forward)[-1]]
    step = (float(line.phase().max()) * factor + known.outside_ns + change.outside_ns) * known.scale
    gain = 1 - step / change.samples / now_ns if now_ns else 0.0
    held = line.graph.in_flight()
    least = max(known.least, LEAST_ASSUMED) if change.assumed else known.least
    peaks = _peaks(change, held, measured, known.memory)
    fits = _room(change, held, measured, known.tables, peaks)
    return WhatIf(
        change, step, gain, float(line.bubble().mean()), float(line.busy().mean()) * factor * known.scale, tuple(held.tolist()),
        peaks, _messages(line), fits, change.kind == "advice" and gain > least and fits.fits is not False,
    )  # fmt: skip


def _room(change: Change, held: np.ndarray, measured: Measured, tables: Tables, peaks: tuple[int, ...] | None) -> Room:
    """More is held where a stage holds more samples, keeps what it recomputes now, or has the layers of two."""
    if change.p != measured.p:
        return room(tables, [1.0 if change.p < measured.p else 0.0], comparable=False)
    if change.name.startswith(("partition", "checkpoint")):
        return room(tables, [1.0 if change.name.startswith("checkpointing=off") else 0.0], comparable=False)
    before = np.minimum(measured.p - np.arange(measured.p), measured.m)
    return room(tables, (held * change.size - before).tolist(), peaks)


def _messages(line: Timeline) -> int:
    return sum(line.graph.nodes(kind).size for kind in ("activation", "grad"))


def _peaks(change: Change, held: np.ndarray, measured: Measured, memory: StageMemory | None) -> tuple[int, ...] | None:
    """Peak of each stage with as many micro-batches of this size as it then holds; null where that cannot be told.

    Without the size of one micro-batch's activations only what holds the same as now is told: then the peak is the present one.
    """
    if memory is None or len(memory.per_stage) != measured.p or change.p != measured.p or change.name.startswith(("partition", "checkpoint")):
        return None
    peak = memory.per_stage.sort_values("stage")["peak_bytes"].to_numpy(float)
    before = np.minimum(measured.p - np.arange(measured.p), measured.m).astype(float)
    more = held * change.size - before
    if not more.any():
        return tuple(int(x) for x in peak)
    if memory.slope_bytes is None:
        return None
    return tuple(int(x) for x in np.maximum(peak + more * memory.slope_bytes, 0))


def _changes(whole: Costs, mean: Costs, measured: Measured, topology: Topology, config: Config) -> Iterator[Change]:
    yield from _batch(mean, measured, config)
    yield from _depth(mean, measured, topology)
    yield from _partition(whole, measured, topology)
    yield from _checkpointing(whole, measured)
    yield from _bounds(whole, measured)
    yield from _schedules(whole, measured)


def _batch(costs: Costs, measured: Measured, config: Config) -> Iterator[Change]:
    p, m, b = measured.p, measured.m, config.micro_batch_size
    for factor in (2, 4):
        if ideal_bubble(p, m * factor // 2) <= _SMALL_BUBBLE:
            break
        setting = f'"gradient_accumulation_steps": {m * factor}'
        price = f"the global batch grows {factor} times, which convergence has to bear; gain is per sample"
        yield Change(f"micro_batches={m * factor}", costs, p, m * factor, "advice", setting, price, samples=float(factor))
        if b and b % factor == 0:
            both = f'"train_micro_batch_size_per_gpu": {b // factor}, {setting}'
            price = f"{factor} times as many messages, and smaller kernels: half the size is taken to need half the time, which GPUs may not reach"
            name = f"micro_batches={m * factor}, micro_batch_size={b // factor}"
            yield Change(name, resized(costs, 1 / factor), p, m * factor, "advice", both, price, size=1 / factor, assumed=True)
    if m % 2 == 0:
        size = f'"train_micro_batch_size_per_gpu": {2 * b}, ' if b else ""
        price = "with the global batch fixed a larger micro-batch means fewer of them: a larger bubble and larger activations"
        name = f"micro_batches={m // 2}" + (f", micro_batch_size={2 * b}" if b else ", micro_batch_size doubled")
        yield Change(name, resized(costs, 2.0), p, m // 2, "memory", f'{size}"gradient_accumulation_steps": {m // 2}', price, size=2.0)


def _depth(costs: Costs, measured: Measured, topology: Topology) -> Iterator[Change]:
    """Stages on the same GPUs with the same global batch: half as many stages are twice as many replicas, each with half the micro-batches."""
    p, m, dp = measured.p, measured.m, topology.dp
    if p % 2 == 0 and m % 2 == 0 and p > 2:
        price = "parameters and optimizer state of a GPU double, and twice as many replicas reduce gradients, which is not in the prediction"
        yield Change(f"stages={p // 2}", merged(costs), p // 2, m // 2, "memory", f"num_stages={p // 2}", price)
    if dp and dp % 2 == 0 and _layers(topology, p) is not None:
        price = "more stages mean a larger bubble and more messages: only if memory forces it"
        yield Change(f"stages={2 * p}", halved(costs), 2 * p, 2 * m, "memory", f"num_stages={2 * p}", price)


def _layers(topology: Topology, p: int) -> np.ndarray | None:
    """Layers of each stage, (p,); null where they are not all known."""
    stages = topology.stages
    if not len(stages) or "layers" not in stages or len(stages) != p:
        return None
    counts = stages.sort_values("stage")["layers"].astype("Float64").to_numpy(float, na_value=np.nan)
    return counts.astype(np.int64) if np.isfinite(counts).all() and (counts >= 1).all() else None


def _partition(costs: Costs, measured: Measured, topology: Topology) -> Iterator[Change]:
    """The split of layers that is best under the worse of two readings, where it is better than the present one.

    A stage that costs more than its layers let one expect may hold heavier layers, or be slow itself (a head, a loss, a slow host). Under
    the first the excess moves with the layers, under the second it stays. One cannot be told from the other by the costs of stages.
    """
    p, m, counts = measured.p, measured.m, _layers(topology, measured.p)
    if counts is None:
        return
    work = np.zeros(p)
    for name in _PASSES:
        work += np.broadcast_to(np.asarray(getattr(costs, name), float), (*np.shape(costs.forward),)).mean(axis=(0, 2))
    each = float(np.median(work / counts))
    excess = work - each * counts
    candidates = [np.diff(best_split(np.repeat(work / counts, counts), p)), _filled(each, excess, int(counts.sum()))]

    def length(changed: Costs) -> float:
        return float(measured.phases(changed, p=p, m=m).max())

    best, found, chosen = length(costs), None, None
    for layers in candidates:
        stays = (each * layers + excess) / work
        readings = [split(costs, _shares(counts, layers)), split(costs, np.diag(stays))] if (stays > 0).all() else []
        worst = max(readings, key=length, default=None)
        if worst is not None and length(worst) < best:
            best, found, chosen = length(worst), worst, layers
    if found is not None and chosen is not None:
        named = "/".join(str(n) for n in chosen)
        price = "the worse of two readings (costs move with their layers, or stay with the stage); parameters move too: measure again after it"
        yield Change(f"partition={named} layers", found, p, m, "advice", f"layers per stage: {named}", price, assumed=True)


def _shares(old: np.ndarray, new: np.ndarray) -> np.ndarray:
    """How much of old stage s (columns) new stage t (rows) holds, by number of layers."""
    a, b = (np.concatenate(([0], np.cumsum(n))) for n in (old, new))
    return np.asarray(np.maximum(np.minimum(b[1:, None], a[None, 1:]) - np.maximum(b[:-1, None], a[None, :-1]), 0) / old)


def _filled(each: float, excess: np.ndarray, layers: int) -> np.ndarray:
    """Layers of each stage where one costs *each* anywhere and every stage has its own excess: one after another to the lightest."""
    counts = np.ones(len(excess), np.int64)
    for _ in range(layers - len(excess)):
        counts[int((each * (counts + 1) + excess).argmin())] += 1
    return counts


def _checkpointing(costs: Costs, measured: Measured) -> Iterator[Change]:
    again = np.asarray(costs.recompute)
    on = again.any(axis=(0, 2)) if again.ndim else np.zeros(measured.p, bool)
    named = ", ".join(str(s) for s in np.flatnonzero(on))
    if on.any():
        price = "all activations of the micro-batches in flight are kept: how much memory that takes is not known from this run"
        yield Change(
            f"checkpointing=off (stages {named})",
            replace(costs, recompute=0),
            measured.p,
            measured.m,
            "memory",
            '"activation_checkpoint_interval": 0',
            price,
        )
    if not on.all():
        price = "recomputes the forward pass in every backward pass: only if memory forces it"
        full = np.where(again > 0, again, costs.forward)
        yield Change(
            "checkpointing=on (all stages)",
            replace(costs, recompute=full),
            measured.p,
            measured.m,
            "memory",
            '"activation_checkpoint_interval": 1',
            price,
        )


def _bounds(costs: Costs, measured: Measured) -> Iterator[Change]:
    """What removing a cause would give at most; how to remove it is another question."""
    p, m = measured.p, measured.m

    def bound(name: str, changed: Costs) -> Change:
        return Change(name, changed, p, m, "bound", None, "an upper bound: what is left when the cause is gone altogether")

    equal = {
        n: np.broadcast_to(a.mean(axis=-2, keepdims=True), a.shape)
        for n in ("forward", "backward", "recompute")
        if (a := np.asarray(getattr(costs, n))).ndim
    }
    yield bound("stages equal", replace(costs, **equal))
    if p > 2:
        work = sum(a.mean(axis=(0, 2)) for n in _PASSES if (a := np.asarray(getattr(costs, n))).ndim)
        heavy = int(np.asarray(work).argmax())
        others = {
            n: np.where(np.arange(p)[:, None] == heavy, np.median(np.delete(a, heavy, axis=-2), axis=-2, keepdims=True), a)
            for n in _PASSES
            if (a := np.asarray(getattr(costs, n))).ndim
        }
        yield bound(f"stage {heavy} as the others", replace(costs, **others))
    yield bound("transfers free", replace(costs, activation=0, grad=0, send_activation=0, send_grad=0))
    wires = {n: a for n in ("activation", "grad", "send_activation", "send_grad") if (a := np.asarray(getattr(costs, n))).ndim}
    if p > 2 and wires:
        slow = int(sum(a.mean(axis=(0, 2)) for a in wires.values()).argmax())
        usual = {n: np.where(np.arange(p - 1)[:, None] == slow, np.minimum(a, np.median(np.delete(a, slow, axis=-2))), a) for n, a in wires.items()}
        yield bound(f"link {slow}-{slow + 1} as the others", replace(costs, **usual))
    if np.any(costs.load):
        first = float(np.median(np.asarray(costs.load)[..., 0, :]))  # the first batch is loaded before the phase begins
        yield replace(bound("batches ready in time", replace(costs, load=0)), outside_ns=-min(first, measured.skew_ns))
    if len(measured.replicas) > 1:
        peers = {
            n: np.broadcast_to(np.quantile(a, 0.5, axis=0, method="lower", keepdims=True), a.shape)
            for n in ("forward", "backward", "recompute")
            if (a := np.asarray(getattr(costs, n))).ndim
        }
        yield bound("replicas equal", replace(costs, **peers))


def _schedules(costs: Costs, measured: Measured) -> Iterator[Change]:
    p, m = measured.p, measured.m
    yield Change("schedule=gpipe", costs, p, m, "reference", None, f"holds all {m} micro-batches; DeepSpeed does not run it", "gpipe")
    if m % p == 0 and p > 1:
        price = "twice as many messages and more activations; DeepSpeed does not run it"
        yield Change("schedule=interleaved, v=2", interleaved(costs, 2), p, m, "reference", None, price, "interleaved", v=2)
    half = np.asarray(costs.backward) / 2
    price = "half of a backward pass is taken to make weight gradients, messages to be hidden; every stage holds as much as the first; DeepSpeed does not run it"
    yield Change("schedule=zero-bubble (ZB-H1)", replace(costs, backward=half, weight=half), p, m, "reference", None, price, "zb-h1")
