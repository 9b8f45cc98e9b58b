"""What a micro-batch costs on each stage, and what a step costs beside it: from a measured run, or as given on the command line."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from pipelog._text import percent
from pipelog.replay.simulate import Costs as Durations
from pipelog.replay.simulate import run
from pipelog.schedule import in_flight as held_by_1f1b

MOST_NODES = 4_000
"""Stages x micro-batches that are simulated one by one; beyond that the time of another micro-batch is constant, and is extrapolated."""
MOST_INTERLEAVED = 6_000
"""Chunks x micro-batches; an interleaved schedule of more is not simulated."""
_LEAST_GROUPS = 12
"""Groups of p micro-batches after which each takes as long as the one before; on random costs 8 are enough for nearly all."""
MOST_STAGES = 32
"""Deeper pipelines are not simulated, only calculated."""
MOST_ERROR = 0.05
"""A run whose own step the simulation misses by more predicts nothing (design: the same limit as for the report's what-if)."""
USUAL_BACKWARD = 2.0
"""Backward over forward where only their sum is known: gradients of inputs and of weights, each as much work as the forward pass."""


@dataclass(frozen=True, slots=True)
class Links:
    """By edge (between stage s and s + 1), ns: a transfer down and up, and the idle time of the sender right before its call."""

    activation_ns: tuple[float, ...] = ()
    grad_ns: tuple[float, ...] = ()
    late_activation_ns: tuple[float, ...] = ()
    late_grad_ns: tuple[float, ...] = ()

    @staticmethod
    def alike(p: int, transfer_ns: float) -> Links:
        """Every transfer takes the same time."""
        return Links(*((transfer_ns,) * (p - 1),) * 2, *((0.0,) * (p - 1),) * 2)

    def scaled(self, factor: float) -> Links:
        """Messages of *factor* times the bytes; idle time of the host stays."""
        return replace(self, activation_ns=tuple(t * factor for t in self.activation_ns), grad_ns=tuple(t * factor for t in self.grad_ns))

    def mean(self, p: int) -> Links:
        """For p stages, every edge like the mean one."""
        every = (self.activation_ns, self.grad_ns, self.late_activation_ns, self.late_grad_ns)
        return Links(*((float(np.mean(values)) if values else 0.0,) * (p - 1) for values in every))


@dataclass(frozen=True, slots=True)
class Costs:
    """forward_ns, backward_ns: of one micro-batch of micro_batch samples, by stage; recomputation is part of backward.

    rest_ns: of a step outside the pipeline phase. layers: how many each stage has, null where not known. basis: where it all comes from.
    relative: only their ratios mean anything. stretch: measured phase of the run over the simulated one; gaps between passes, which costs do
    not hold, make it a little more than 1.
    """

    forward_ns: tuple[float, ...]
    backward_ns: tuple[float, ...]
    links: Links
    basis: str
    micro_batch: int | None = None
    rest_ns: float | None = None
    layers: tuple[int, ...] | None = None
    relative: bool = False
    stretch: float = 1.0

    @property
    def stages(self) -> int:
        """How many stages it speaks of."""
        return len(self.forward_ns)

    def total_ns(self, stage: int) -> float:
        """Forward and backward of one micro-batch on a stage."""
        return self.forward_ns[stage] + self.backward_ns[stage]

    def scaled(self, factor: float) -> Costs:
        """The same for micro-batches of *factor* times the samples: passes and transfers grow in proportion."""
        forward, backward = (tuple(t * factor for t in times) for times in (self.forward_ns, self.backward_ns))
        return replace(self, forward_ns=forward, backward_ns=backward, links=self.links.scaled(factor))


def of_layers(layers: list[float], p: int) -> Costs | None:
    """Relative costs of the best contiguous split of layers on *p* stages; null where there are fewer layers than stages."""
    if len(layers) < p:
        return None
    one = given([(sum(layers) / (1 + USUAL_BACKWARD), sum(layers) * USUAL_BACKWARD / (1 + USUAL_BACKWARD))], 0.0, "relative costs of --layers")
    return replace(spread(one, p, layers) or one, relative=True, layers=tuple(best_split(layers, p)))


def given(totals_ns: list[tuple[float, float]], transfer_ns: float, basis: str) -> Costs:
    """From (forward, backward) of each stage, and one time for every transfer."""
    return Costs(tuple(f for f, _ in totals_ns), tuple(b for _, b in totals_ns), Links.alike(len(totals_ns), transfer_ns), basis)


@dataclass(frozen=True, slots=True)
class Phase:
    """A predicted pipeline phase: its length and the idle share of each stage."""

    phase_ns: float
    bubble: tuple[float, ...]

    @property
    def mean_bubble(self) -> float:
        """Over the stages."""
        return float(np.mean(self.bubble))


def phase(costs: Costs, schedule: str, m: int, v: int = 1) -> Phase:
    """Simulate one step. With chunks, those of a stage share its time equally, and what wraps around takes the mean transfer.

    Many micro-batches are extrapolated from fewer: past the fill each group of p takes as long as the one before. That is exact for 1F1B and
    GPipe; interleaving may swing with other periods, so it is simulated whole.
    """
    p = costs.stages
    few = m if schedule == "interleaved" else min(m, max(_LEAST_GROUPS, MOST_NODES // (p * p)) * p)
    if few >= m:
        length = _simulated(costs, schedule, m, v)
    else:
        few -= (few - m) % p  # so that the groups come out even
        one, two = _simulated(costs, schedule, few - p, v), _simulated(costs, schedule, few, v)
        length = two + (m - few) / p * (two - one)
    length *= costs.stretch
    return Phase(length, tuple(max(0.0, 1 - m * costs.total_ns(s) / length) for s in range(p)))


def _simulated(costs: Costs, schedule: str, m: int, v: int) -> float:
    p = costs.stages
    places = [s for _ in range(v) for s in range(p)]

    def column(values: tuple[float, ...], share: float = 1.0) -> np.ndarray:
        return np.array(values, float)[:, None] * share

    def edges(values: tuple[float, ...]) -> np.ndarray:
        around = float(np.mean(values)) if values else 0.0
        return np.array([values[s] if s < p - 1 else around for s in places[:-1]], float)[:, None]

    durations = Durations(
        forward=column(costs.forward_ns, 1 / v)[places],
        backward=column(costs.backward_ns, 1 / v)[places],
        activation=edges(costs.links.activation_ns) if p * v > 1 else 0,
        grad=edges(costs.links.grad_ns) if p * v > 1 else 0,
        send_activation=edges(costs.links.late_activation_ns) if p * v > 1 else 0,
        send_grad=edges(costs.links.late_grad_ns) if p * v > 1 else 0,
    )
    return float(run(schedule, durations, p, m, v).phase())  # type: ignore[arg-type]


def spread(costs: Costs, p: int, layers: list[float] | None = None) -> Costs | None:
    """The same work on *p* stages; as it is where it has so many. Null where there are fewer layers than stages."""
    return costs if p == costs.stages else split(costs, p, layers)


def split(costs: Costs, p: int, layers: list[float] | None = None) -> Costs | None:
    """The same work on *p* stages: neighbours put together where that is enough, else the best contiguous split of the layers.

    The layers of a stage are taken as equal where their costs are not given; without layers, the stages are. Transfers are the mean ones.
    Null where there are fewer layers than stages.
    """
    total_f, total = sum(costs.forward_ns), sum(costs.forward_ns) + sum(costs.backward_ns)
    counts, shares = costs.layers, layers
    taken: list[int] | None = None
    stages = [total / p] * p
    if shares is None and p < costs.stages and costs.stages % p == 0:
        each = costs.stages // p
        stages = [sum(costs.total_ns(s) for s in range(k * each, (k + 1) * each)) for k in range(p)]
        taken = None if counts is None else [sum(counts[k * each : (k + 1) * each]) for k in range(p)]
    elif shares is None and counts is not None and all(counts):
        shares = [costs.total_ns(s) / n for s, n in enumerate(counts) for _ in range(n)]
    if shares is not None:
        if len(shares) < p:
            return None
        taken = best_split(shares, p)
        ends = np.cumsum([0, *taken])
        stages = [sum(shares[a:b]) / sum(shares) * total for a, b in pairwise(ends)]
    forward = total_f / total
    return replace(
        costs,
        forward_ns=tuple(t * forward for t in stages),
        backward_ns=tuple(t * (1 - forward) for t in stages),
        links=costs.links if p == costs.stages else costs.links.mean(p),
        layers=None if taken is None else tuple(taken),
    )


def best_split(layers: list[float], p: int) -> list[int]:
    """How many layers each of *p* stages takes in the contiguous split whose heaviest stage is lightest, every stage at least one.

    Where several splits are as good, the most even one of them in number: the heaviest stage is bounded, then each takes its fair share.
    """
    n = len(layers)
    sums = np.concatenate(([0.0], np.cumsum(layers)))
    best = sums[1:].copy()  # heaviest of the first i + 1 layers on one stage
    for _ in range(p - 1):
        reach = np.full(n, np.inf)
        for i in range(1, n):
            reach[i] = np.min(np.maximum(best[:i], sums[i + 1] - sums[1 : i + 1]))
        best = reach
    bound, counts, at = float(best[-1]) * (1 + 1e-12), [], 0
    for stage in range(p):
        left = p - stage
        most = n - at - (left - 1)  # every later stage needs one
        fair = round((n - at) / left)
        taken = next(k for k in _near(fair, most) if sums[at + k] - sums[at] <= bound and _rest_fits(sums, at + k, left - 1, bound))
        counts.append(taken)
        at += taken
    return counts


def _near(fair: int, most: int) -> list[int]:
    """1 … most, the ones nearest to *fair* first, the larger before the smaller."""
    return sorted(range(1, most + 1), key=lambda k: (abs(k - fair), -k))


def _rest_fits(sums: np.ndarray, at: int, stages: int, bound: float) -> bool:
    """Whether the layers from *at* on fit on so many stages below the bound, each taking as many as it can."""
    n = len(sums) - 1
    if stages == 0:
        return at == n
    for left in range(stages, 0, -1):
        upto = min(int(np.searchsorted(sums, sums[at] + bound, side="right")) - 1, n - (left - 1))
        if upto <= at:
            return False
        at = upto
    return at == n


@dataclass(frozen=True, slots=True)
class Memory:
    """Measured peak of each stage, and the activations of one micro-batch of micro_batch samples that neighbours show.

    sharded: the optimizer's part is spread over the replicas (ZeRO), so that the peaks are those of their number alone; also where not known.
    capacity_bytes: memory of a device, null where the run does not state it.
    """

    peak_bytes: tuple[int, ...]
    activation_bytes: float
    micro_batches: int
    micro_batch: int
    sharded: bool = True
    capacity_bytes: int | None = None

    def peaks(self, held: tuple[float, ...], micro: int) -> tuple[int, ...]:
        """Peak of each stage when it holds so many micro-batches of *micro* samples: the measured one and the difference in activations.

        Never less than the lowest measured peak: below it something else than activations sets the peak.
        """
        p, floor = len(self.peak_bytes), min(self.peak_bytes)
        now = [held_by_1f1b(s, p, self.micro_batches) for s in range(p)]
        more = [self.activation_bytes * (h * micro / self.micro_batch - n) for h, n in zip(held, now, strict=True)]
        return tuple(max(floor, round(peak + extra)) for peak, extra in zip(self.peak_bytes, more, strict=True))


@dataclass(frozen=True, slots=True)
class Measured:
    """A run's report, as far as a plan needs it; why_… say what is missing where costs or memory are null. error: of the simulation of its step.

    what_if: changes of this very run that the report replayed on all of its durations (metrics.what_if).
    """

    name: str
    shape: dict[str, int | None]
    config: dict[str, int | None]
    costs: Costs | None
    memory: Memory | None
    why_no_costs: str | None = None
    why_no_memory: str | None = None
    error: float | None = None
    what_if: tuple[dict[str, Any], ...] = ()

    def replayed(self, begins: str) -> dict[str, Any] | None:
        """The replayed change of that name, null where there is none."""
        return next((w for w in self.what_if if str(w.get("change", "")).startswith(begins)), None)


def off(error: float) -> str:
    """How far the simulation of the run is off, in words."""
    return f"the simulation misses the run's own pipeline phase by {percent(abs(error))}"
