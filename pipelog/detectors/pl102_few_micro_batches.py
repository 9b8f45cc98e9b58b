"""PL102 few-micro-batches: the configured number of micro-batches is too small for the number of stages.

What it does: computes the ideal bubble (p-1)/(v*m+p-1) from the topology and the configuration alone, whatever was measured.
Why it matters: with equal stages and free transfers each stage still idles for that share of the pipeline phase.
What to do: double gradient_accumulation_steps (m), once or more; at a fixed global batch that means smaller micro-batches, never larger
ones. Where the run failed or hung, or is not seen to make a step, this is not its trouble: then it is info.
When it is wrong: m is what one pipeline replica sees in one optimizer step; a batch-size ramp-up changes it during the run.
Thresholds: limit 0.25: fewer than 3 (p - 1) micro-batches.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from pipelog._text import percent
from pipelog.findings import Advice, Confidence, Evidence, Finding, Severity, detector
from pipelog.postmortem.deaths import Death
from pipelog.replay.cited import Doubled, doubled
from pipelog.tables import CannotTell, Tables
from pipelog.tables.bubble import Bubble
from pipelog.tables.config import Config
from pipelog.tables.topology import Topology


@detector("PL102", "few-micro-batches", needs=("bubble", "topology", "config", "tables"))
def few_micro_batches(bubble: Bubble, topology: Topology, config: Config, tables: Tables | None = None, *, limit: float = 0.25) -> Iterator[Finding]:
    """One finding for the run; without *tables* nothing is replayed."""
    if topology.pp is None:
        raise CannotTell("no line tells the number of pipeline stages")
    if topology.pp == 1:
        raise CannotTell("one stage: no pipeline")
    m = config.micro_batches
    if m is not None and config.virtual_stages is None and "schedule" in config.said:
        raise CannotTell(f"what the schedule {config.schedule} needs for fill and drain no closed form gives")
    if bubble.ideal is None or m is None:
        raise CannotTell("the number of micro-batches is not known: ds_config.json or the line 'CONFIG: micro_batches=…' would tell")
    if bubble.ideal <= limit:
        return
    p, v = topology.pp, config.virtual_stages or 1
    enough = math.ceil((p - 1) * (1 - limit) / (limit * v))
    source = config.said.get("micro_batches")
    evidence = tuple(Evidence(s.file, s.line) for s in (source, topology.said.get("pp")) if s is not None and s.file is not None)
    twice = 2 * m  # one step over the limit is no goal, while a doubling is felt
    more = f"; {percent(limit)} or less from {enough} on" if twice < enough else ""
    effect = f"ideal bubble {percent(bubble.ideal)} → {percent((p - 1) / (v * twice + p - 1))}"
    ended: Death | None = tables.get("ended") if tables is not None else None
    yield Finding(
        "PL102",
        "few-micro-batches",
        f"{m} micro-batch{'es' if m > 1 else ''} for {p} stages: the schedule alone idles {percent(bubble.ideal)} of the pipeline phase",
        Severity.INFO if ended is not None and _unasked(ended, bubble) else Severity.WARNING,
        Confidence.HIGH,
        evidence=evidence,
        advice=(
            _of_torchtitan(m, twice, effect, more)
            if "schedule" in config.said
            else _advice(m, config.micro_batch_size, effect, more, doubled(tables, p, m, config.micro_batch_size)),
        ),
        cost=bubble.ideal,
    )


def _unasked(ended: Death, bubble: Bubble) -> bool:
    """Whether the run has another trouble, or nothing shows that it ever came to a step."""
    return ended.status in ("failed", "hung") or (ended.status == "incomplete" and not ended.step and bubble.measured is None)


def _advice(m: int, micro: int | None, effect: str, enough: str, more: Doubled) -> Advice:
    """Twice as many micro-batches: of half the size at the same global batch, or of the same; whichever the replay does not speak against. Not before there is room for them."""
    price = f"the global batch doubles with it, which changes convergence{_smaller(micro)}"
    if more.size:
        price = f"at the same global batch with micro-batches of {more.size} instead of {micro}, whose kernels may run less efficiently"
    elif more.against is not None and micro:
        price += f"; with micro-batches of {micro // 2} at the same global batch it would not pay as the run is: {more.against}"
    memory = f"; memory: {more.room}" if more.room.more else ""
    said = f"; replayed: {more.replayed}" if more.replayed is not None else ""
    action = f"double gradient_accumulation_steps ({m} → {2 * m})"
    if more.room.fits is False:
        action = f"make room on the fullest stage first (activation checkpointing, or fewer layers there), then {action}"
    return Advice(action, f"{effect}; {price}{enough}{memory}{said}")


def _of_torchtitan(m: int, doubled: int, effect: str, more: str) -> Advice:
    """The same in its words, where the batch of a rank is cut into micro-batches of a given size."""
    price = "with micro-batches of half the size, whose kernels may run less efficiently, or a batch of twice the size, which changes convergence"
    return Advice(f"make it {doubled} micro-batches ({m} → {doubled}): halve the micro-batch, or double local_batch_size", f"{effect}; {price}{more}")


def _smaller(micro: int | None) -> str:
    return f" (a micro-batch of {micro} cannot be halved)" if micro and micro > 1 and micro % 2 else ""
