"""PL101 high-bubble-ratio: the pipeline idles more than it should.

What it does: compares the measured idle share of the pipeline phase with a limit and with the ideal (p-1)/(v*m+p-1) of the
schedule, and splits the difference: what fill and drain need, waiting caused by unequal stages, transfers, stalls, late data, host gaps.
Where stage-imbalance or communication-stall looked and found no stage or link, its part is called what it then is: scatter.
Why it matters: every idle per cent of the phase is a per cent of the job's GPUs that are paid for and do nothing.
What to do: more micro-batches at the same global batch if the schedule is the reason; else the part that the split names: balance the
stages, mend the link, feed the data faster. More stages make it worse.
When it is wrong: rank 0's timers show stage 0 only and hold untimed work, so a claim from them rests on its lower bound, and a small
share of one stage clears nothing; a profiler with Python stacks slows the host and widens the gaps. Where most of the idle time is
unexplained the finding says so first, with medium confidence. What slow-data-loading or communication-stall charges to the one stage whose timers
were printed is charged once: where little else is left, this is information.
Thresholds: limit 0.25 (a quarter of the phase), above_ideal 0.10 (design: well beyond the noise of 0.01 - 0.03 between sources).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from pipelog._text import listed, percent
from pipelog.detectors.pl102_few_micro_batches import few_micro_batches
from pipelog.detectors.pl105_slow_data_loading import slow_data_loading
from pipelog.detectors.pl201_stage_imbalance import stage_imbalance
from pipelog.detectors.pl202_straggler_rank import straggler_rank
from pipelog.detectors.pl401_communication_stall import communication_stall
from pipelog.findings import Advice, Confidence, Evidence, Finding, Severity, Where, detector
from pipelog.replay.breakdown import Breakdown
from pipelog.replay.cited import cited, doubled
from pipelog.replay.what_if import LEAST_GAIN
from pipelog.schedule import ideal_bubble
from pipelog.tables import CannotTell, Tables
from pipelog.tables.bubble import Bubble
from pipelog.tables.config import Config
from pipelog.tables.topology import Topology

_PARTS = {
    "imbalance-wait": "unequal stages",
    "p2p-transfer": "transfers",
    "stall": "stalls of a link",
    "data": "late data",
    "host-gap": "host gaps",
    "other": "unexplained",
}
_WITHOUT = {"imbalance-wait": "stages equal", "p2p-transfer": "transfers free", "stall": "link ", "data": "batches ready in time"}
"""The what-if in which a part is gone."""


_OF_A_RANK = "waiting for slow"
"""So begins what the wait for unequal stages is called where ranks are slow, and not their stages."""
_SCATTER = {"imbalance-wait": "scatter of passes", "stall": "scatter of messages"}
"""What a part is called where the rule that would name a stage or a link found none."""


@detector("PL101", "high-bubble-ratio", needs=("bubble", "topology", "config", "tables"))
def high_bubble_ratio(
    bubble: Bubble, topology: Topology, config: Config, tables: Tables, *, limit: float = 0.25, above_ideal: float = 0.10
) -> Iterator[Finding]:
    """One finding for the run, or for the one stage that was seen."""
    if topology.pp is None:
        raise CannotTell("no line tells the number of pipeline stages: 'Using topology: …' or Megatron's 'using world size: …' would")
    if topology.pp == 1:
        raise CannotTell("one stage: no pipeline")
    if bubble.measured is None or bubble.certain is None:
        raise CannotTell(
            "nothing measures the idle time: wall_clock_breakdown (DeepSpeed up to 0.18.2), Megatron's timers, or a torch profiler trace of every rank would"
        )
    if bubble.intervals == 1:
        raise CannotTell("one print interval alone has timers, and the first holds warm-up: a longer log would tell")
    ideal = bubble.ideal
    if bubble.certain < limit and (ideal is None or bubble.certain < ideal + above_ideal):
        if bubble.scope != "run":  # a stage that idles little may be the one that all others wait for
            stage = int(bubble.per_stage[0]["stage"])
            raise CannotTell(
                f"only stage {stage} was measured ({percent(bubble.certain)} idle or more): profiler traces of every rank would show the others"
            )
        return
    split = tables.get("breakdown") if bubble.source == "trace" and bubble.scope == "run" else None
    words = _words(tables, topology) if split is not None else _PARTS
    explained = ideal is not None and bubble.measured <= ideal + 0.03
    stuck = explained and config.micro_batch_size == 1  # with the global batch fixed, m cannot grow further
    others = _charged(bubble, tables, topology)
    cost = max(0.0, bubble.measured - (ideal or 0.0)) if not explained else bubble.measured
    left = max(0.0, cost - sum(f.cost or 0.0 for f in others))
    rest = not others or left >= above_ideal
    yield Finding(
        "PL101",
        "high-bubble-ratio",
        _title(bubble, topology, config, split, words) + _of_others(others),
        Severity.INFO if stuck or not rest else Severity.WARNING,
        Confidence.HIGH if bubble.scope == "run" and not (split is not None and _unexplained(split)) else Confidence.MEDIUM,
        Where(stages=() if bubble.scope == "run" else tuple(int(s["stage"]) for s in bubble.per_stage)),
        tuple(Evidence(file, line, bubble.shows) for file, line in bubble.where),
        _advice(bubble, topology, config, split, tables, words, explained=explained) if rest else (Advice(f"see to {others[0].name} first"),),
        cost=left if rest else None,
    )


def _charged(bubble: Bubble, tables: Tables, topology: Topology) -> list[Finding]:
    """What other rules charge to the idle time of the one stage whose timers were printed: late batches, the exchange with its neighbour."""
    if bubble.scope == "run" or bubble.source != "timers":
        return []
    seen = {int(s["stage"]) for s in bubble.per_stage}
    found = [f for rule in (slow_data_loading, communication_stall) for f in _warnings(rule, tables, topology) or ()]
    return [f for f in found if f.cost and seen & set(f.where.stages)]


def _of_others(others: list[Finding]) -> str:
    return f"; {listed(f'{f.name} names {percent(f.cost or 0.0)} of the step' for f in others)}" if others else ""


def _words(tables: Tables, topology: Topology) -> dict[str, str]:
    """What each part is called, after what the rules say that look for a stage, a rank or a link, at their own limits."""
    stages, ranks, links = (_warnings(rule, tables, topology) for rule in (stage_imbalance, straggler_rank, communication_stall))
    words = dict(_PARTS)
    if ranks and not stages:
        slow = sorted({r for f in ranks for r in f.where.ranks})
        words["imbalance-wait"] = f"{_OF_A_RANK} rank{'s' if len(slow) > 1 else ''} {listed(slow)} (straggler-rank)"
    elif stages is not None and not stages:
        words["imbalance-wait"] = _SCATTER["imbalance-wait"]
    if links is not None and not any(f.where.links for f in links):
        words["stall"] = _SCATTER["stall"]
    return words


def _warnings(rule: Callable[[Tables, Topology], Iterator[Finding]], tables: Tables, topology: Topology) -> list[Finding] | None:
    """What a rule warns of; None where it cannot tell."""
    try:
        return [f for f in rule(tables, topology) if f.severity is not Severity.INFO]
    except CannotTell:
        return None


def _unexplained(split: Breakdown) -> bool:
    """Whether more of the idle time is unexplained than is of any known kind."""
    return split.phase["other"] > max(split.phase[part] for part in ("fill-drain", *_PARTS) if part != "other")


def _title(bubble: Bubble, topology: Topology, config: Config, split: Breakdown | None, words: dict[str, str]) -> str:
    measured = percent(bubble.measured or 0)
    if bubble.scope == "run":
        subject = f"the pipeline idles {measured} of its phase"
    elif bubble.source == "trace":
        subject = f"stage {int(bubble.per_stage[0]['stage'])} idles {measured} of the pipeline phase (only its trace shows passes)"
    else:
        subject = f"stage {int(bubble.per_stage[0]['stage'])} idles {measured} of the step outside the optimizer ({bubble.note})"
    if bubble.ideal is None:
        return f"{subject}; the number of micro-batches is not known, so neither is what the schedule explains"
    schedule = f"{topology.pp} stages, {config.micro_batches} micro-batches"
    if split is None:
        return f"{subject}; the schedule explains {percent(bubble.ideal)} ({schedule})"
    parts = [f"{percent(split.phase['fill-drain'])} fill and drain ({schedule})"]
    parts += [f"{percent(split.phase[p])} {word}" for p, word in words.items() if split.phase[p] >= 0.01]
    if _unexplained(split):
        return f"{subject}, {percent(split.phase['other'])} of it for reasons that the traces do not show; {', '.join(parts[:-1])}"
    return f"{subject}: {', '.join(parts)}"


def _advice(
    bubble: Bubble, topology: Topology, config: Config, split: Breakdown | None, tables: Tables, words: dict[str, str], *, explained: bool
) -> tuple[Advice, ...]:
    advice = []
    if split is not None:
        worst = max(_PARTS, key=lambda part: split.phase[part])
        if words["imbalance-wait"].startswith(_OF_A_RANK) and split.phase["imbalance-wait"] > split.phase[worst] / 2:
            worst = "imbalance-wait"  # a rank that is slow scatters the messages, too
        if split.phase[worst] > split.phase["fill-drain"] / 2 and (first := _first(worst, split.phase[worst], words, tables)):
            advice.append(first)
    elif not explained and config.micro_batches:
        record = Advice("record a torch profiler trace of one step on every rank", "shows which stage or link the rest of the idle time comes from")
        advice.append((_named(tables, topology) if bubble.scope == "run" else None) or record)
    of_schedule = split is not None or explained or bubble.ideal is None or bubble.ideal > (bubble.measured or 0.0) / 2
    more = _more_micro_batches(topology, config, tables) if of_schedule else None  # else most of it is none of the schedule's
    if advice and more and _asked_for(bubble, topology, config, tables):
        more = None  # few-micro-batches says it, with what it costs
    return (*advice, more) if more else tuple(advice)


def _asked_for(bubble: Bubble, topology: Topology, config: Config, tables: Tables) -> bool:
    """Whether few-micro-batches, at its own limit, asks for more micro-batches."""
    try:
        return any(f.severity is not Severity.INFO for f in few_micro_batches(bubble, topology, config, tables))
    except CannotTell:
        return False


def _named(tables: Tables, topology: Topology) -> Advice | None:
    """The slow stage or rank that the others wait for, where the times of all ranks name one."""
    for rule, word in ((stage_imbalance, "stage"), (straggler_rank, "rank")):
        places = sorted({place for f in _warnings(rule, tables, topology) or () for place in (f.where.stages if word == "stage" else f.where.ranks)})
        if places:
            one = len(places) == 1
            return Advice(
                f"see to {word if one else word + 's'} {listed(places)} first", f"the others wait for {'it' if one else 'them'} at every micro-batch"
            )
    return None


def _first(part: str, share: float, words: dict[str, str], tables: Tables) -> Advice | None:
    """What to do about the largest part that the schedule does not need."""
    if part == "other":
        return Advice(
            "record a step on all ranks with record_shapes=True and with_stack=True",
            "shapes say whom a message goes to, stacks which instruction runs: what is unexplained then gets a name",
        )
    if words[part] in _SCATTER.values():
        return Advice(
            f"look at what disturbs all ranks alike ({words[part]}, {percent(share)} of the phase): other processes and thread counts on the hosts, "
            "garbage collection, sequence lengths",
            "no single stage or link stands out",
        )
    if words[part].startswith(_OF_A_RANK):
        return Advice(f"see to {words[part].removeprefix('waiting for ')} first", f"up to {percent(share)} of the phase")
    expected = _without(part, share, tables)
    return Advice(f"remove the largest avoidable part first: {words[part]}", expected) if expected else None


def _without(part: str, share: float, tables: Tables) -> str:
    """What is gained at best without this part, as replayed, else its share; empty where the replay says that nothing is.

    Stalls that come now and then are not in the middle durations that are replayed: there their share stays the answer.
    """
    without = cited(tables, _WITHOUT[part]) if part in _WITHOUT else None
    if without is None or (part == "stall" and without.gain < LEAST_GAIN):
        return f"up to {percent(share)} of the phase"
    return f"{without.name}, at best: {without}" if without.gain >= LEAST_GAIN else ""


def _more_micro_batches(topology: Topology, config: Config, tables: Tables) -> Advice | None:
    """Twice as many micro-batches, of half the size where that pays; not where the replay or the memory speaks against them."""
    p, m, micro = topology.pp or 1, config.micro_batches, config.micro_batch_size
    if not m:
        return None
    more = doubled(tables, p, m, micro)
    if not more.pays:
        return None
    effect = str(more.replayed) if more.replayed is not None else f"ideal bubble {percent(ideal_bubble(p, m))} → {percent(ideal_bubble(p, 2 * m))}"
    if more.size:
        action = f"halve the micro-batch ({micro} → {more.size}) and double the accumulation steps ({m} → {2 * m}), same global batch"
        return Advice(action, f"{effect}; smaller kernels may run less efficiently")
    memory = f"; memory: {more.room}" if more.room.more else ""
    return Advice(f"double the accumulation steps ({m} → {2 * m})", f"{effect}; the global batch doubles, which changes convergence{memory}")
