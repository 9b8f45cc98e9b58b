"""Closed forms of pipeline schedules with equal stages and free transfers, as exact fractions.

Sources: GPipe (arXiv 1811.06965), 1F1B with a flush = PipeDream-Flush (arXiv 2006.09503), interleaved 1F1B (arXiv 2104.04473, warm-up as in
Megatron-LM's schedules.py), zero bubble (arXiv 2401.10241; its memory is approximate). Notation: p stages, m micro-batches of one replica,
v chunks a stage. DeepSpeed runs 1F1B with a flush and nothing else.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

from pipelog._text import percent
from pipelog.schedule import in_flight as held_by_1f1b


@dataclass(frozen=True, slots=True)
class Schedule:
    """A schedule: its name on the command line, how a table calls it, its title, where it runs and what it is for."""

    name: str
    brief: str
    title: str
    runs_in: str
    fits_when: str
    chunks: bool = False


SCHEDULES = {
    s.name: s
    for s in (
        Schedule(
            "1f1b",
            "1F1B",
            "1F1B with a flush (PipeDream-Flush)",
            "DeepSpeed, always",
            "always, in DeepSpeed: it runs nothing else. A stage never holds more than p micro-batches",
        ),
        Schedule(
            "gpipe", "GPipe", "GPipe", "not in DeepSpeed", "never rather than 1F1B: the bubble is the same, and every stage holds all m micro-batches"
        ),
        Schedule(
            "interleaved",
            "interleaved",
            "interleaved 1F1B",
            "Megatron-LM's own pipeline, not in DeepSpeed",
            "where m cannot grow, links are fast and memory is left: 1/v of the idle time for v times the messages, m in multiples of p",
            chunks=True,
        ),
        Schedule(
            "zb-h1",
            "ZB-H1",
            "zero bubble H1",
            "for reference, not in DeepSpeed",
            "for reference, with gradients of inputs and of weights split, each as long as forward; memory is approximate",
        ),
        Schedule(
            "zb-h2",
            "ZB-H2",
            "zero bubble H2",
            "for reference, not in DeepSpeed",
            "for reference, as H1 and with memory for about 2p - 1 micro-batches",
        ),
    )
}


def impossible(name: str, p: int, m: int, v: int = 1) -> str | None:
    """Why a schedule cannot run with these numbers, null where it can."""
    if name != "interleaved" or p == 1:
        return None
    if v < 2:
        return "interleaving needs 2 chunks a stage or more"
    return f"interleaving needs m in multiples of {p} stages, not {m}" if m % p else None


def bubble(name: str, p: int, m: int, v: int = 1) -> Fraction:
    """Idle share of the pipeline phase of a stage: (p-1)/(m+p-1); interleaved (p-1)/(v m+p-1); zero bubble H1 (p-1)/(3m+p-1), H2 none.

    Zero bubble with equal forward, input-gradient and weight-gradient times. Raises ValueError below one stage, micro-batch or chunk.
    """
    if p < 1 or m < 1 or v < 1:
        raise ValueError(f"p, m and v must be at least 1, not {p}, {m}, {v}")
    work = {"interleaved": v * m, "zb-h1": 3 * m}.get(name, m)
    return Fraction(0) if name == "zb-h2" else Fraction(p - 1, work + p - 1)


def in_flight(name: str, stage: int, p: int, m: int, v: int = 1) -> Fraction:
    """Micro-batches whose activations a stage holds at its peak, in micro-batches of the whole stage (a chunk counts 1/v)."""
    if name == "gpipe":
        return Fraction(m)
    if name == "interleaved" and p > 1:
        return min(Fraction(2 * (p - stage - 1) + (v - 1) * p + 1, v), Fraction(m))
    if name == "zb-h1":
        return Fraction(min(p, m))
    if name == "zb-h2":
        return Fraction(min(2 * p - 1, m))
    return Fraction(held_by_1f1b(stage, p, m))


def messages(name: str, p: int, m: int, v: int = 1) -> int:
    """Activations and gradients that cross from stage to stage in a step of one replica: 2 m (p - 1), interleaved 2 m (v p - 1)."""
    if p == 1:
        return 0
    return 2 * m * ((v if name == "interleaved" else 1) * p - 1)


def over_ideal(idle: Fraction) -> Fraction:
    """Pipeline phase over the same work without any bubble: 1 / (1 - bubble)."""
    return 1 / (1 - idle)


def enough(p: int, limit: float, v: int = 1) -> int:
    """The smallest m with a bubble of at most *limit*: (p-1)(1-limit)/(limit v), as rule PL102 counts it."""
    return max(1, math.ceil((p - 1) * (1 - limit) / (limit * v)))


def shown(name: str, p: int, m: int, v: int = 1) -> str:
    """The bubble as the formula gives it, "3/7 = 42.9 %", not reduced: 3/12 = 25.0 %."""
    idle = bubble(name, p, m, v)
    if not idle:
        return "0 %"
    scale = (p - 1) // idle.numerator
    return f"{p - 1}/{idle.denominator * scale} = {percent(float(idle))}"
