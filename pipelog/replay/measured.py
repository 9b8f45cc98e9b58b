"""The measured durations of a run's recorded steps as costs of a replay, and whether the replay may be believed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from pipelog.replay.orders import Schedule
from pipelog.replay.simulate import Costs, run
from pipelog.tables import CannotTell, table
from pipelog.tables.breakdown import Durations, receives_first
from pipelog.tables.config import Config
from pipelog.tables.steps import Steps

RECORDING = 0.15
"""Most by which recording may have lengthened a step: up to there it does so by about the same factor on all stages (docs/replay.md)."""
_CLEARLY = 0.005
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

    step_ns: (steps,), the longest rank. ranks: (replicas, stages). blocking: whether messages hold up their sender, whichever way reproduces the phases better.
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

    def phases(self, costs: Costs, schedule: Schedule | None = None, p: int | None = None, m: int | None = None, v: int = 1) -> np.ndarray:
        """Length of the pipeline phase on other durations or under another schedule; sends block where the schedule is DeepSpeed's own."""
        other = schedule is not None and schedule != self.schedule
        return run(schedule or self.schedule, costs, p or self.p, m or self.m, v, blocking=None if other else self.blocking).phase()

    @property
    def outside_ns(self) -> float:
        """What a step takes beside the phase of its slowest replica: start skew, reduction, optimizer; median over steps."""
        return float(np.median(np.maximum(self.step_ns - self.phase_ns.max(axis=1), 0)))


@table("measured", needs=("durations", "stage_time", "config"))
def measured(durations: list[Durations], stage_time: pd.DataFrame, config: Config) -> Measured:
    """The recorded steps as arrays. Recomputation, which traces show per step, is taken out of the backward passes in equal parts."""
    if config.virtual_stages is not None and config.virtual_stages > 1:
        raise CannotTell("the run interleaves chunks of its stages; their passes cannot be told apart in traces yet")
    shapes = pd.Series([d.forward.shape for d in durations])
    shape = shapes.mode().iloc[0]
    alike = {(d.step, d.replica): d for d in durations if d.forward.shape == shape}
    by_step: dict[int, frozenset[int]] = {s: frozenset(r for step, r in alike if step == s) for s, _ in alike}
    most = max(by_step.values(), key=lambda found: (len(found), sum(v == found for v in by_step.values())))
    steps = sorted(s for s, found in by_step.items() if found == most)
    replicas = sorted(most)

    def stacked(name: str) -> np.ndarray:
        return np.array([[getattr(alike[s, r], name) for r in replicas] for s in steps], float)

    again, ends, ranks = _recomputation(stage_time, steps, replicas, shape)
    backward = stacked("backward")
    again = np.minimum(again, backward)
    costs = Costs(backward=backward - again, recompute=again, **{kind: stacked(name) for kind, name in _FIELDS.items()})
    phase = stacked("phase_ns")
    order: Schedule = "1f1b" if receives_first(config) else "1f1b-send-first"
    misses = {b: float(np.median(np.abs(run(order, costs, *shape, blocking=b).phase() / phase - 1))) for b in (True, False)}
    blocking = misses[True] <= misses[False] + _CLEARLY
    p, m = shape
    return Measured(order, blocking, p, m, np.array(steps), np.array(replicas), costs, phase, ends, ranks)


def _recomputation(
    stage_time: pd.DataFrame, steps: list[int], replicas: list[int], shape: tuple[int, int]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(recomputation of each pass (steps, replicas, p, m), ns, length of each step (steps,), ns, rank (replicas, p))."""
    p, m = shape
    rows = stage_time[stage_time["complete"]].drop_duplicates(["step", "replica", "stage"])
    places = pd.MultiIndex.from_product([steps, replicas, range(p)])
    again = rows.set_index(["step", "replica", "stage"])["recompute_ns"].reindex(places).to_numpy(float).reshape(len(steps), len(replicas), p)
    lengths = (rows["step_end_ns"] - rows["step_start_ns"]).groupby(rows["step"].to_numpy()).max()
    ranks = rows.drop_duplicates(["replica", "stage"]).set_index(["replica", "stage"])["rank"].reindex(places.droplevel(0).unique())
    return np.repeat(np.nan_to_num(again)[..., None] / m, m, axis=-1), lengths.reindex(steps).to_numpy(float), ranks.to_numpy().reshape(-1, p)


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
    """Median over the printed intervals that hold no recorded step; null where there are none."""
    rows = steps.measured().dropna(subset=["step", "steps", "dur_ns"])
    if steps.source in (None, "trace") or not len(rows):
        return None
    last, count = rows["step"].to_numpy(np.int64), rows["steps"].to_numpy(np.int64)
    recorded = measured.steps[:, None]
    rows = rows[~((recorded <= last) & (recorded > last - count)).any(axis=0)]
    return float(rows["dur_ns"].astype(float).median()) if len(rows) else None
