"""The measured durations of a run's recorded steps as costs of a replay, and whether the replay may be believed."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import pandas as pd

from pipelog.replay.orders import Schedule
from pipelog.replay.simulate import Costs, phases
from pipelog.schedule import compute_order
from pipelog.tables import CannotTell, by_ranks, counted, table
from pipelog.tables.config import Config
from pipelog.tables.durations import Durations, receives_first
from pipelog.tables.steps import Steps

RECORDING = 0.15
"""Most by which recording may have lengthened a step: up to there it does so by about the same factor on all stages (docs/replay.md)."""
_MOST_CELLS = 400_000
"""Instructions times steps times replicas of a replay that is done many times over."""
_CLEARLY = 0.002
"""Sends block unless the replay without that is better by more than this share of the phase: what DeepSpeed does with gloo and NCCL."""
LIMIT = 0.05
"""Largest error of a replay that may be believed (design/product.md); the literature's median on production jobs is 1.3 %, its p90 5.5 %."""

_FIELDS = {
    "forward": "forward", "load": "load", "before_forward": "before_forward", "before_backward": "before_backward",
    "activation": "activation", "grad": "grad", "send_activation": "before_send_activation", "send_grad": "before_send_grad",
}  # fmt: skip
"""Kind of instruction → its array in `Durations`."""


@dataclass(frozen=True, slots=True, eq=False)
class Measured:
    """Steps that all recorded replicas show. costs: arrays (steps, replicas, stages or edges, m), ns. phase_ns: (steps, replicas).

    step_ns: (steps,), the longest rank. ranks: (replicas, stages). skew_ns: from the step's beginning to that of
    its first phase, the median. blocking: whether messages hold up their sender, whichever way reproduces the phases better.
    """

    schedule: Schedule
    blocking: bool
    p: int
    m: int
    steps: np.ndarray
    replicas: np.ndarray
    costs: Costs
    phase_ns: np.ndarray
    step_ns: np.ndarray
    ranks: np.ndarray
    skew_ns: float = 0.0

    def phases(self, costs: Costs, schedule: Schedule | None = None, p: int | None = None, m: int | None = None, v: int = 1) -> np.ndarray:
        """Length of the pipeline phase on other durations or under another schedule; sends block where the schedule is DeepSpeed's own."""
        other = schedule is not None and schedule != self.schedule
        return phases(schedule or self.schedule, costs, p or self.p, m or self.m, v, blocking=None if other else self.blocking)

    @property
    def outside_ns(self) -> float:
        """What a step takes beside the phase of its slowest replica: start skew, reduction, optimizer; median over steps."""
        return float(np.median(np.maximum(self.step_ns - self.phase_ns.max(axis=1), 0)))


@dataclass(frozen=True, slots=True)
class Order:
    """How the engine runs a step: the order of its instructions, and whether messages hold up their sender."""

    schedule: Schedule
    blocking: bool


@table("replay_order", needs=("durations", "config"))
def replay_order(durations: list[Durations], config: Config) -> Order:
    """By the release, and by which of the two reproduces the recorded phases better."""
    order: Schedule = "1f1b" if receives_first(config) else "1f1b-send-first"
    cells = durations[0]
    _, p, m = cells.forward.shape
    chosen = sample(13 * p * m, len(cells.step))
    costs, phase = costs_of(cells, chosen), cells.phase_ns[chosen]
    misses = {b: float(np.median(np.abs(phases(order, costs, p, m, blocking=b) / phase - 1))) for b in (True, False)}
    return Order(order, misses[True] <= misses[False] + _CLEARLY)


def costs_of(cells: Durations, chosen: np.ndarray | slice = slice(None)) -> Costs:
    """The durations of some cells as costs, (cells, p, m). Recomputation, which traces show per step, in equal parts of the backward passes."""
    again = np.minimum(cells.recompute[chosen, :, None] / cells.backward.shape[-1], cells.backward[chosen])
    recompute = again if again.any() else 0
    backward = cells.backward[chosen]
    return Costs(
        backward=backward - recompute if again.any() else backward,
        recompute=recompute,
        **{kind: getattr(cells, name)[chosen] for kind, name in _FIELDS.items()},
    )


def sample(each: int, count: int) -> np.ndarray:
    """Which of *count* steps or cells to replay where that is done many times over: all, or evenly many of them. each: instructions of one."""
    most = min(count, max(1, _MOST_CELLS // each))
    return np.unique(np.linspace(0, count - 1, most).round().astype(int))


def follows_schedule(cells: Durations, passes: pd.DataFrame) -> None:
    """Raises CannotTell where a recorded rank runs its passes in another order than 1F1B."""
    _, p, m = cells.forward.shape
    stage_of = np.full(int(cells.rank.max()) + 1, -1)
    stage_of[cells.rank.ravel()] = np.tile(np.arange(p), len(cells.rank))
    wanted = np.array([[work == "forward" for work, _ in compute_order(s, p, m)] for s in range(p)])
    for rows in by_ranks(passes):
        rank, window, step = (rows[n].to_numpy(dtype=np.int64) for n in ("rank", "window", "step"))
        known = np.isin(np.where(step >= 0, step, window), cells.step) & (rank < len(stage_of))
        known &= stage_of[np.where(known, rank, 0)] >= 0
        place = counted(rank - rank.min(), window)
        mine = np.flatnonzero(known & (place < 2 * m))
        forward = np.asarray(rows["instruction"] == "forward")[mine]
        other = mine[wanted[stage_of[rank[mine]], place[mine]] != forward]
        if len(other):
            first = rows.iloc[int(other[0])]
            where = f"{first['instruction']} pass {first['micro_batch']} of stage {stage_of[first['rank']]} in step {first['step']}"
            raise CannotTell(f"the recorded passes are not in the order of 1F1B, first at the {where}: another schedule ran, and is not replayed")


@table("measured", needs=("durations", "replay_order", "stage_time", "passes", "config"))
def measured(durations: list[Durations], replay_order: Order, stage_time: pd.DataFrame, passes: pd.DataFrame, config: Config) -> Measured:
    """The recorded steps with the most frequent number of micro-batches that all their replicas show, where they ran 1F1B."""
    if config.virtual_stages is not None and config.virtual_stages > 1:
        raise CannotTell("the run interleaves chunks of its stages; their passes cannot be told apart in traces yet")
    cells = durations[0]
    follows_schedule(cells, passes)
    _, p, m = cells.forward.shape
    by_step = pd.Series(cells.replica).groupby(cells.step).agg(frozenset)
    most = max(by_step, key=lambda found: (len(found), int((by_step == found).sum())))
    steps, replicas = by_step.index[[found == most for found in by_step]].to_numpy(), np.array(sorted(most))
    at = pd.Series(np.arange(len(cells.step)), index=[cells.step, cells.replica])
    chosen = at.loc[list(itertools.product(steps, replicas))].to_numpy()
    shape = (len(steps), len(replicas))
    every = np.array_equal(chosen, np.arange(len(cells.step)))  # as nearly always: then nothing is copied
    costs = costs_of(cells, slice(None) if every else chosen).each(lambda a: a.reshape(*shape, *a.shape[1:]))
    rows = stage_time[stage_time["complete"]]
    lengths = (rows["step_end_ns"] - rows["step_start_ns"]).groupby(rows["step"].to_numpy()).max().reindex(steps).to_numpy(float)
    skew = (rows["phase_start_ns"] - rows["step_start_ns"]).groupby(rows["step"].to_numpy()).min().reindex(steps).median()
    phase = cells.phase_ns[chosen].reshape(shape)
    ranks = cells.rank[chosen[: shape[1]]]
    return Measured(
        replay_order.schedule, replay_order.blocking, p, m, steps, replicas, costs, phase, lengths, ranks, max(float(skew), 0.0)
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class ReplayCheck:
    """Whether the replay may be believed. errors are |predicted / observed - 1|.

    own: of the replay of each step on its own durations (median). predicted: each error of a prediction from half of what was recorded;
    halves: `steps` (half of the steps predict the others), `micro-batches` (half of one step's micro-batches predict it). printed_ns: the
    median step that the log prints without recording; recording: recorded / printed step - 1; both null where it prints no others.
    reason: why it may not be believed, null where it may.
    """

    own: float
    predicted: tuple[float, ...]
    halves: str
    printed_ns: float | None
    recording: float | None
    reason: str | None

    @property
    def error(self) -> float:
        """The error that decides: the larger of the two."""
        return max(self.own, float(np.median(self.predicted)))

    @property
    def believed(self) -> bool:
        """Whether what-if may be asked."""
        return self.reason is None


@table("replay_check", needs=("measured", "steps"))
def replay_check(measured: Measured, steps: Steps) -> ReplayCheck:
    """Durations of some steps predict others within 5 %, or nothing is predicted (design/product.md)."""
    own = float(np.median(np.abs(measured.phases(measured.costs) / measured.phase_ns - 1)))
    predicted, halves = (_other_steps(measured), "steps") if len(measured.steps) > 1 else (_other_micro_batches(measured), "micro-batches")
    printed = _printed_ns(measured, steps)
    recording = float(np.median(measured.step_ns)) / printed - 1 if printed else None
    typical, reason = float(np.median(predicted)), None
    if own > LIMIT:
        reason = f"the replay of the recorded steps misses their own length by {own:.1%}"
    elif typical > LIMIT:
        what = (
            f"half of the {len(measured.steps)} recorded steps predict the others"
            if halves == "steps"
            else "half of the step's micro-batches predict it"
        )
        reason = f"{what} with an error of {typical:.1%}: its durations vary too much"
    elif recording is not None and printed is not None and abs(recording) > RECORDING:
        recorded = float(np.median(measured.step_ns)) / 1e9
        reason = f"the recorded steps take {recorded:.3f} s, those that the log prints {printed / 1e9:.3f} s: too far apart to carry over from one to the other"
    return ReplayCheck(own, tuple(predicted), halves, printed, recording, reason)


def _other_steps(measured: Measured) -> list[float]:
    """The median of every second step's durations predicts the phase of each of the others, and the other way round."""
    out: list[float] = []
    for first in (0, 1):
        half = measured.costs.each(lambda a, i=first: np.median(a[i::2], axis=0))  # type: ignore[misc]
        out += np.abs(measured.phases(half) / measured.phase_ns[1 - first :: 2] - 1).ravel().tolist()
    return out


def _other_micro_batches(measured: Measured) -> list[float]:
    """The mean durations of every second micro-batch of a step, of each stage and instruction, predict its phase."""
    out: list[float] = []
    for first in (0, 1) if measured.m > 1 else (0,):
        half = measured.costs.each(lambda a, i=first: np.broadcast_to(a[..., i::2].mean(axis=-1, keepdims=True), a.shape))  # type: ignore[misc]
        out += np.abs(measured.phases(half) / measured.phase_ns - 1).ravel().tolist()
    return out


def _printed_ns(measured: Measured, steps: Steps) -> float | None:
    """Median over the printed intervals that hold no recorded step, nor the one after it where there are others; null where there are none."""
    rows = steps.measured().dropna(subset=["step", "steps", "dur_ns"])
    if steps.source in (None, "trace") or not len(rows):
        return None
    last, count = rows["step"].to_numpy(np.int64), rows["steps"].to_numpy(np.int64)

    def without(steps_: np.ndarray) -> pd.Series:
        return rows.loc[~((steps_[:, None] <= last) & (steps_[:, None] > last - count)).any(axis=0), "dur_ns"].astype(float)

    times = without(measured.steps)
    if len(further := without(np.concatenate((measured.steps, measured.steps + 1)))):  # after a recording the profiler writes its files
        times = further
    return float(times.median()) if len(times) else None
