"""The four misreadings that a table of numbers invites, each said with the numbers of this job. None where the numbers are not there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pipelog._text import percent, seconds
from pipelog.planning import schedules
from pipelog.planning.costs import USUAL_BACKWARD
from pipelog.planning.plan import Plan


def pitfalls(plan: Plan) -> Iterator[str]:
    """More stages, larger micro-batches, throughput alone, recomputation."""
    if plan.bench.mesh.stages is None or plan.bench.mesh.stages < 2 or plan.bench.batch.m is None:
        return
    yield from _depth(plan)
    yield from _size(plan)
    yield from _throughput(plan)
    yield from _recomputation(plan)


def _depth(plan: Plan) -> Iterator[str]:
    rows = [o for o in plan.stages if not o.why_not]
    now = plan.bench.mesh.stages or 1
    here, deeper = next((o for o in rows if o.stages == now), None), next((o for o in rows if o.stages > now), None)
    if here and deeper:
        yield (
            f"More stages are not better: {deeper.stages} instead of {here.stages} raise the bubble from {percent(float(here.bubble))} to "
            f"{percent(float(deeper.bubble))} and the messages of a replica from {here.messages:,} to {deeper.messages:,} a step. Deepen only where a stage does not fit in memory."
        )
    else:
        yield "More stages are not better: each adds bubble and transfers. Deepen only where a stage does not fit in memory."


def _size(plan: Plan) -> Iterator[str]:
    b, p = plan.bench.batch, plan.bench.mesh.stages or 1
    same = [o for o in plan.micro_batches if o.train == b.train and o.micro and not o.why_not]
    larger = next((o for o in reversed(same) if b.micro and (o.micro or 0) > b.micro), None)
    base = next((o for o in same if o.micro == b.micro), None)
    if larger and base and base.bubble:
        yield (
            f"A larger micro-batch is not better: with train batch {b.train} fixed, {larger.micro} instead of {base.micro} samples leave m = {larger.m} instead of {base.m}, a bubble of "
            f"{percent(float(larger.bubble))} instead of {percent(float(base.bubble))}, and stage 0 holds {_times(larger.activations, base.activations)} the activations."
        )
    else:
        idle = percent(float(schedules.bubble("1f1b", p, 1)))
        yield f"A larger micro-batch is not better: with the global batch fixed it means fewer of them and a larger bubble, at m = 1 {idle}."


def _times(new: float | None, old: float | None) -> str:
    return f"{new / old:.3g} times" if new and old else "more of"


def _throughput(plan: Plan) -> Iterator[str]:
    b = plan.bench.batch
    grown = next((o for o in plan.micro_batches if b.train and o.train and o.train > b.train), None)
    now = plan.now
    if grown and grown.train and now and b.train:
        known = grown.samples_per_s and now.samples_per_s
        gain = (grown.samples_per_s or 1) / (now.samples_per_s or 1) - 1 if known else (1 - float(grown.bubble)) / (1 - float(now.bubble)) - 1
        yield (
            f"Throughput alone misleads: m = {grown.m} with train batch {grown.train} gives {'' if known else 'up to '}{percent(gain)} more samples a second, but {grown.train / b.train:.3g} times the samples a step. "
            "Compare bubble, compute per step and the loss after the same number of samples as well."
        )
    else:
        yield "Throughput alone misleads: a larger global batch raises samples a second and changes convergence. Compare bubble and compute per step as well."


def _recomputation(plan: Plan) -> Iterator[str]:
    config, run = plan.wanted.config, plan.wanted.measured
    interval = run.config.get("activation_checkpoint_interval") if run else None
    on = config.recompute if config and config.recompute is not None else None if interval is None else interval > 0
    told = run.replayed("checkpointing=on") if run else None
    known = f" Replayed on {run.name} for all stages: {_step(told)}." if run and told and not on else ""
    again = 1 / (1 + USUAL_BACKWARD)
    said = {True: "It is on here. ", None: "Whether it is on is not known. ", False: ""}[on]
    yield (
        f"Recomputation is not free of the schedule. {said}A full one adds a forward pass to every backward, about {percent(again)} more compute (backward = {USUAL_BACKWARD:g} forwards) "
        f"in every micro-batch and in the bubble; the bubble's share stays, and a stage that recomputes more than the others becomes the one they wait for.{known}"
    )


def _step(told: dict[str, Any]) -> str:
    """1.17 s a step, 33.5 % more."""
    gain = float(told["gain"])
    return f"{seconds(float(told['step_time_s']) * 1e9)} a step, {percent(abs(gain))} {'more' if gain < 0 else 'less'}"
