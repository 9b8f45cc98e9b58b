"""One way to run the job: stages, micro-batches and schedule, with its bubble, what it holds, its step time where costs are known, and its price."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from pipelog.planning import schedules
from pipelog.planning.batch import Batch, Mesh
from pipelog.planning.costs import MOST_INTERLEAVED, MOST_STAGES, Costs, Memory, phase, spread


@dataclass(frozen=True, slots=True)
class Option:
    """bubble: with equal stages and free transfers. held: micro-batches in flight, by stage. messages: of one replica and step.

    activations: of stage 0 over those of the job as configured, null where that is not known. phase_ns, step_ns, idle (mean over stages),
    idle_by_stage and peak_bytes: predicted, null where costs or memory are not known. price: what else changes. now: as configured.
    why_not: why it cannot run.
    """

    stages: int
    m: int
    micro: int | None
    train: int | None
    replicas: int | None
    schedule: str
    v: int
    bubble: Fraction
    held: tuple[Fraction, ...]
    messages: int
    activations: float | None = None
    phase_ns: float | None = None
    step_ns: float | None = None
    idle: float | None = None
    idle_by_stage: tuple[float, ...] | None = None
    peak_bytes: tuple[int, ...] | None = None
    price: str = ""
    now: bool = False
    why_not: str | None = None

    @property
    def samples_per_s(self) -> float | None:
        """Predicted throughput, null where the step or the batch is not known."""
        return self.train / (self.step_ns / 1e9) if self.step_ns and self.train else None


@dataclass(frozen=True, slots=True)
class Bench:
    """What all options are made from: the job as configured, costs, memory, layers; null where not known.

    ran_replicas: of the run that the costs are from. With another number, gradients are reduced among others, and no step is predicted.
    """

    mesh: Mesh
    batch: Batch
    schedule: str = "1f1b"
    v: int = 1
    costs: Costs | None = None
    memory: Memory | None = None
    layers: list[float] | None = None
    ran_replicas: int | None = None

    def option(
        self, stages: int, m: int, *, micro: int | None = None, replicas: int | None = None, schedule: str | None = None, v: int | None = None
    ) -> Option:
        """Work one out; what is not given is as configured."""
        name, chunks = schedule or self.schedule, self.v if v is None else v
        micro, replicas = micro or self.batch.micro, replicas or self.batch.replicas
        why = schedules.impossible(name, stages, m, chunks) or self._too_deep(stages * chunks)
        held = tuple(schedules.in_flight(name, s, stages, m, chunks) for s in range(stages)) if stages <= 4096 else ()
        found = None if why else self._phase(stages, m, micro, name, chunks)
        rest = self.costs.rest_ns if self.costs and replicas == self.ran_replicas else None
        return Option(
            stages,
            m,
            micro,
            micro * m * replicas if micro and replicas else None,
            replicas,
            name,
            chunks,
            schedules.bubble(name, stages, m, chunks),
            held,
            schedules.messages(name, stages, m, chunks),
            self._activations(held, micro),
            found.phase_ns if found else None,
            found.phase_ns + rest if found and rest is not None else None,
            found.mean_bubble if found else None,
            found.bubble if found else None,
            self._peaks(stages, held, micro, replicas),
            why_not=why,
        )

    def _too_deep(self, places: int) -> str | None:
        count = len(self.layers) if self.layers else sum(self.costs.layers) if self.costs and self.costs.layers else None
        return f"{count} layers cannot fill {places} stages or chunks" if count is not None and places > count else None

    def _phase(self, stages: int, m: int, micro: int | None, name: str, v: int) -> _Phase | None:
        if self.costs is None or name.startswith("zb") or stages > MOST_STAGES or (v > 1 and m * stages * v > MOST_INTERLEAVED):
            return None
        costs = self.costs
        if micro and costs.micro_batch and micro != costs.micro_batch:
            costs = costs.scaled(micro / costs.micro_batch)
        if stages == 1:
            total = sum(costs.forward_ns) + sum(costs.backward_ns)
            return _Phase(m * total, 0.0, (0.0,))
        split = spread(costs, stages, self.layers)
        if split is None:
            return None
        found = phase(split, name, m, v)
        return _Phase(found.phase_ns, found.mean_bubble, found.bubble)

    def _activations(self, held: tuple[Fraction, ...], micro: int | None) -> float | None:
        """Micro-batches that stage 0 holds x samples x its share of the layers, over the same as configured."""
        p, m = self.mesh.stages, self.batch.m
        if not (p and m and held) or (micro is None) != (self.batch.micro is None):
            return None
        now = schedules.in_flight(self.schedule, 0, p, m, self.v) * (self.batch.micro or 1) / p
        return float(held[0] * (micro or 1) / len(held) / now)

    def _peaks(self, stages: int, held: tuple[Fraction, ...], micro: int | None, replicas: int | None) -> tuple[int, ...] | None:
        if self.memory is None or micro is None or stages != len(self.memory.peak_bytes) or not held:
            return None
        if self.memory.sharded and replicas != self.ran_replicas:
            return None
        return self.memory.peaks(tuple(float(h) for h in held), micro)


@dataclass(frozen=True, slots=True)
class _Phase:
    phase_ns: float
    mean_bubble: float
    bubble: tuple[float, ...]
