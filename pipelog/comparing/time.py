"""Is one run faster? Step times where a step is the same work, else time per sample; and what of a gain came from batch or GPUs alone."""

from __future__ import annotations

from dataclasses import dataclass

from pipelog.comparing.side import Side

LEAST = 0.01
"""A smaller difference of two runs is never claimed."""
_ONE_UNKNOWN = 0.05
_BOTH_UNKNOWN = 0.20
"""What a difference must exceed where the scatter of the steps of one run, or of both, is not known: runs of one job differ by several per cent."""
_SURE = 3.0
_ENOUGH = 5


@dataclass(frozen=True, slots=True)
class Change:
    """ratio: time of B over that of A, of a step or (per_sample) of a sample. noise: the share that a difference must exceed.

    schedule: the share of the ratio that the number of micro-batches explains alone, null where the shapes differ otherwise.
    gpus: time of a GPU per sample, B over A; null where it is not known or the number of GPUs is the same.
    """

    ratio: float
    noise: float
    per_sample: bool
    confidence: str
    schedule: float | None
    gpus: float | None

    @property
    def faster(self) -> bool:
        """Whether B needs less, beyond the noise."""
        return self.ratio < 1 - self.noise

    @property
    def slower(self) -> bool:
        """Whether B needs more, beyond the noise."""
        return self.ratio > 1 + self.noise

    @property
    def rest(self) -> float | None:
        """What is left of the ratio, of a GPU, when the schedule's share is taken out: the time of a micro-batch, per sample."""
        return (self.ratio if self.gpus is None else self.gpus) / self.schedule if self.schedule else None


def change(a: Side, b: Side) -> Change | None:
    """Null where the two cannot be compared: no step times, or a batch that is not known on one side only or on both."""
    if a.step_s is None or b.step_s is None or a.batch is None or b.batch is None:
        return None
    per_sample = a.batch != b.batch
    ratio = (b.step_s / b.batch) / (a.step_s / a.batch)
    noise, confidence = _noise(a, b, ratio)
    if a.source != b.source:
        confidence = "low"
    gpus = ratio * b.gpus / a.gpus if a.gpus and b.gpus and a.gpus != b.gpus else None
    return Change(ratio, noise, per_sample, confidence, _schedule(a, b), gpus)


def _noise(a: Side, b: Side, ratio: float) -> tuple[float, str]:
    """Both scatters together, over the step times; and how sure a difference beyond it is."""
    known = [s.scatter_s / s.step_s for s in (a, b) if s.scatter_s is not None and s.step_s]
    if not known:
        return _BOTH_UNKNOWN, "low"
    if len(known) == 1:
        return max(_ONE_UNKNOWN, 2 * known[0]), "medium"
    noise = max(LEAST, sum(known))
    sure = abs(ratio - 1) > _SURE * noise and min(a.intervals, b.intervals) >= _ENOUGH
    return noise, "high" if sure else "medium"


def _schedule(a: Side, b: Side) -> float | None:
    """Time per sample that equal stages would need with the one number of micro-batches over the other: (m + (p - 1)/v)/m."""
    same = (a.pp, a.tp, a.v) == (b.pp, b.tp, b.v) and a.pp is not None
    if not same or a.m is None or b.m is None or a.pp is None:
        return None
    fill = (a.pp - 1) / a.v
    return (1 + fill / b.m) / (1 + fill / a.m)


def from_batch(change: Change, a: Side, b: Side) -> str | None:
    """By what a gain per sample came from a bigger batch and not from faster work; null where it did not.

    micro-batches: more of them fill the pipeline better, and each takes as long. micro-batch size: larger ones, which cannot be told from
    faster work. unknown: the batch grew, and how is not known.
    """
    if not (change.faster and a.batch and b.batch and b.batch > a.batch):
        return None
    if change.rest is not None and change.schedule is not None and change.schedule < 1 and change.rest >= 1 - _same(change):
        return "micro-batches"
    if a.micro and b.micro and b.micro > a.micro:
        return "micro-batch size"
    told = change.schedule is not None and a.micro is not None and b.micro is not None and (change.gpus is not None or a.m != b.m)
    return None if told else "unknown"


def from_gpus(change: Change, a: Side, b: Side) -> bool:
    """Whether a gain came from more GPUs alone: each of them needs as long for a sample as before, or longer."""
    return bool(change.faster and change.gpus is not None and a.gpus and b.gpus and b.gpus > a.gpus and change.gpus >= 1 - _same(change))


def _same(change: Change) -> float:
    """Within this share two times are the same."""
    return max(change.noise, 0.02)
