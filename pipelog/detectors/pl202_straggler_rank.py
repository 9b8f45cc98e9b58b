"""PL202 straggler-rank: one rank is slower than the peers that do the same work.

What it does: compares the compute time per micro-batch of the ranks of one stage across data-parallel replicas (traces, or Megatron's timers of all
ranks), step by step, with the lower median of them; a rank that stays above the limit from some step on is named, with that step. Without such times,
the reports of a straggler detector (Megatron's --log-straggler, NVIDIA's resiliency extension): a rank that nearly all of them name as slow. Where eight
steps or more were measured, also against the rank's own pace, with what the others take in the same step taken out: slower from a step on (which
needs no second replica), more and more, for a while, again and again, or in one step alone.
Why it matters: all replicas meet in the gradient reduction, so the slowest rank sets the step time of the whole job.
What to do: look at that GPU and its host: clocks, temperature, ECC counters, other processes, a slow PCIe link; exchange it.
When it is wrong: replicas with longer sequences in these steps; two replicas only tell that they differ, the slower one is named. The ranks of a
tensor-parallel group wait for each other in every layer, so that which of them is slow is not told. One slow
step among others is no straggler; where one step alone was recorded, it may be a hiccup: the confidence is lower, and below three times the
limit it is info. Reports of Megatron's detector compare ranks of all stages: where no rank of the same stage is known to be faster, it is info.
Thresholds: limit 0.10 (10 % above its peers).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd

from pipelog._text import count, listed, percent, seconds
from pipelog.findings import Advice, Confidence, Finding, Severity, Where, cite, detector
from pipelog.replay.cited import at_best
from pipelog.tables import CannotTell, Tables
from pipelog.tables.balance import Straggler, stragglers
from pipelog.tables.compute_time import said_per
from pipelog.tables.reported import Reported, reported
from pipelog.tables.slow_ranks import Slow, slow_over
from pipelog.tables.topology import Topology


@detector("PL202", "straggler-rank", needs=("tables", "topology"))
def straggler_rank(tables: Tables, topology: Topology, *, limit: float = 0.10) -> Iterator[Finding]:
    """One finding a rank or tensor-parallel group."""
    reports: pd.DataFrame = tables["straggler_reports"]
    told = reported(reports, topology, limit)
    pace: pd.DataFrame | None = tables.get("own_pace")
    paced = slow_over(pace, limit) if pace is not None and len(pace) else []
    try:
        found = _measured(tables, topology, limit)
    except CannotTell:
        if not told and not paced and (not len(reports) or topology.dp == 1):
            raise
        found = []
    for straggler in found:
        yield _of_times(straggler, tables, topology)
    named = {rank for straggler in found for rank in straggler.ranks}
    for slow in paced:
        if named.isdisjoint(slow.ranks):
            named |= set(slow.ranks)
            yield _of_pace(slow, tables, topology)
    for report in told:
        if named.isdisjoint(report.ranks):
            yield _of_reports(report, tables, topology)


def _measured(tables: Tables, topology: Topology, limit: float) -> list[Straggler]:
    if topology.dp == 1:
        raise CannotTell("one data-parallel replica: no two ranks do the same work")
    peers: pd.DataFrame = tables["peers"]
    if not len(peers):
        raise CannotTell("no stage was recorded on two replicas: profiler traces of all ranks would show whether one is slower")
    return list(stragglers(peers, tables["compute_time"], limit))


def _of_times(straggler: Straggler, tables: Tables, topology: Topology) -> Finding:
    ranks, late, compute_time = straggler.ranks, straggler.steps, tables["compute_time"]
    timed = "source" in compute_time and bool((compute_time["source"] == "timers").any())
    replica = int(late["replica"].iloc[0])
    group = (topology.ranks["stage"] == straggler.stage) & (topology.ranks["replica"] == replica)
    alone = timed and len(ranks) < group.sum()  # in a group the one that waits is timed longer too
    since = "" if straggler.from_start else f" from step {int(late['step'].iloc[0])} on"
    return Finding(
        "PL202",
        "straggler-rank",
        f"{_subject(ranks)} (stage {straggler.stage}, replica {replica}) {'computes' if len(ranks) == 1 else 'compute'} {percent(float(late['ratio'].median()) - 1)} longer than "
        f"{'its' if len(ranks) == 1 else 'their'} peers{since}: "
        f"{seconds(float(late['compute_ns'].median()))} {said_per(compute_time)} against {seconds(float(late['peer_ns'].median()))}{_GROUP if len(ranks) > 1 else ''}",
        Severity.WARNING if straggler.certain else Severity.INFO,
        Confidence.HIGH if len(late) > 1 and not alone else Confidence.MEDIUM,
        Where(ranks=ranks, stages=(straggler.stage,), hosts=_hosts(topology, ranks), steps=(int(late["step"].iloc[0]), int(late["step"].iloc[-1]))),
        cite(late, by="ratio", says=_timed if timed else _shows),
        # what is replayed is the middle of the steps
        (_check(ranks, at_best(tables, "replicas equal") if straggler.from_start else None),),
        cost=straggler.lost,
    )


def _of_pace(slow: Slow, tables: Tables, topology: Topology) -> Finding:
    """A rank that is slower in some steps than in its others."""
    rows, lasting = slow.rows, slow.pattern in ("since", "creeping")
    said, usual = (float(rows[name].median()) for name in ("compute_ns", "usual_ns"))
    first, last = int(rows["step"].iloc[0]), int(rows["step"].iloc[-1])
    more, measured = percent(said / usual - 1), "measured step" if (tables["compute_time"]["source"] == "trace").all() else "printed interval"
    how = {
        "since": f"{more} longer from step {first} on than before",
        "creeping": f"longer and longer: {more} more in the last {count(len(rows), measured)} than in the first",
        "period": f"{more} longer from step {first} to step {last} than before and after",
        "recurring": f"{more} longer in {len(rows)} of {count(slow.seen, measured)} ({_at(rows)}{f', every {slow.every} steps' if slow.every else ''}): it comes back, and does not last",
        "single": f"{more} longer in {'step' if len(rows) == 1 else 'steps'} {_at(rows)} alone, of {count(slow.seen, measured)}: a one-off",
    }[slow.pattern]
    alone = topology.dp == 1 and lasting
    return Finding(
        "PL202",
        "straggler-rank",
        f"{_subject(slow.ranks)} (stage {slow.stage}, replica {slow.replica}) {'computes' if len(slow.ranks) == 1 else 'compute'} {how}: {seconds(said)} "
        f"{said_per(tables['compute_time'])} against {seconds(usual)}, while the others keep their pace"
        f"{'; whether the device or the work of its stage changed, one replica does not tell' if alone else ''}{_GROUP if len(slow.ranks) > 1 else ''}",
        Severity.WARNING if lasting or (slow.lost > _LOUD and slow.pattern != "single") else Severity.INFO,
        Confidence.LOW if slow.pattern == "single" else Confidence.MEDIUM,
        Where(ranks=slow.ranks, stages=(slow.stage,), hosts=_hosts(topology, slow.ranks), steps=(first, last)),
        cite(rows, by="ratio", says=_paced),
        (_check(slow.ranks, None) if lasting else Advice(_COMES_AND_GOES.format(_subject(slow.ranks))),),
        cost=slow.lost,
    )


_LOUD = 0.05
"""What comes and goes is worth a warning where it costs more of the time than this."""
_MOST_STEPS = 5
_COMES_AND_GOES = "see what {} does or shares at those steps (checkpoints, evaluation, garbage collection, another job on its host); nothing is to be exchanged for it"


def _at(rows: pd.DataFrame) -> str:
    steps = rows["step"].astype(int).tolist()
    return listed(steps) if len(steps) <= _MOST_STEPS else f"{', '.join(map(str, steps[:_MOST_STEPS]))}, …"


def _paced(row: Any) -> str:
    return (
        f"step {row.step}: {_subject(tuple(row.ranks))} {'computes' if len(row.ranks) == 1 else 'compute'} {percent(row.ratio - 1)} longer than usual"
    )


def _of_reports(report: Reported, tables: Tables, topology: Topology) -> Finding:
    ranks, rows, detector_name = report.ranks, report.rows, _DETECTORS[report.source]
    steps = rows["step"].dropna().astype(int)
    throttled = report.clock is not None
    loud = report.peers or throttled
    known = report.source == "megatron" and report.peers
    length = tables["steps"].measured()["dur_ns"].median() if known else None
    advice = [_check(ranks, None)]
    if throttled:
        advice.insert(
            0,
            Advice(
                f"see why the clock of rank {report.device} is held down: cooling, a power limit (nvidia-smi -q -d PERFORMANCE,CLOCK names the reason)"
            ),
        )
    return Finding(
        "PL202",
        "straggler-rank",
        f"{_subject(ranks)}{'' if report.stage is None else f' (stage {report.stage})'} {_slower(report)}, in {len(rows)} of {count(report.of, 'report')} of {detector_name}"
        f"{_since(report, steps)}{_device(report)}{_GROUP if len(ranks) > 1 else ''}{'' if report.peers else _OTHER_WORK}",
        Severity.WARNING if loud else Severity.INFO,
        Confidence.HIGH if known and rows["listed"].all() and len(rows) >= 5 else Confidence.MEDIUM if loud else Confidence.LOW,
        Where(
            ranks=ranks,
            stages=() if report.stage is None else (report.stage,),
            hosts=_hosts(topology, ranks),
            steps=(int(steps.iloc[0]), int(steps.iloc[-1])) if len(steps) else None,
        ),
        cite(rows, by="excess"),
        tuple(advice),
        cost=float((rows["took"] - rows["others"]).median() / length) if length else None,
    )


_DETECTORS = {
    "megatron": "Megatron's straggler detector",
    "relative": "NVIDIA's straggler detection (relative performance)",
    "individual": "NVIDIA's straggler detection (performance against its own best)",
    "flagged": "NVIDIA's straggler detection that flag any",
}
_GROUP = "; they share the work of their replica (a tensor-parallel group), where all wait for the slowest: which one it is is not told"
_OTHER_WORK = "; no rank of the same stage is known to be faster: it may be the work of its stage"


def _subject(ranks: tuple[int, ...]) -> str:
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {listed(ranks)}"


def _slower(report: Reported) -> str:
    """How much slower, and than whom."""
    rows = report.rows
    excess, one = percent(float(rows["excess"].median())), len(report.ranks) == 1
    whom = "all ranks but the slowest few" if rows["listed"].all() else "the fastest rank"
    if report.source == "flagged":
        return f"{'is' if one else 'are'} below the threshold of relative performance (0.7 unless set)"
    if report.source != "megatron":
        return f"{'scores' if one else 'score'} {1 / float(rows['took'].median()):.2f} where {whom} score {1 / float(rows['others'].median()):.2f} or more"
    times = f"{seconds(float(rows['took'].median()))} a step against {seconds(float(rows['others'].median()))}{' or less' if rows['listed'].all() else ''}"
    return f"{'takes' if one else 'take'} {excess} longer for {'its' if one else 'their'} forward passes than {whom} ({times})"


def _since(report: Reported, steps: pd.Series) -> str:
    if report.from_start:
        return ""
    return f" from step {int(steps.iloc[0])} on" if len(steps) else f" from the report at line {int(report.rows['line'].iloc[0])} on"


def _device(report: Reported) -> str:
    said = []
    if report.clock is not None:
        said.append(f"runs at the lowest clock ({report.clock[0]:.0f} MHz, others at up to {report.clock[1]:.0f} MHz)")
    if report.hot is not None:
        said.append(f"is the hottest ({report.hot:.0f} °C)")
    whose = "its device" if len(report.ranks) == 1 else f"the device of rank {report.device}"
    return f"; {whose} {' and '.join(said)}" if said else ""


def _check(ranks: tuple[int, ...], expected: str | None) -> Advice:
    devices, it, stays = ("the device and host", "it", "stays") if len(ranks) == 1 else ("the devices and hosts", "the slow one", "stays")
    return Advice(f"check {devices} of {_subject(ranks)} (clocks, temperature, ECC, other processes) and exchange {it} if it {stays} slow", expected)


def _shows(row: Any) -> str:
    return f"step {row.step}: rank {row.rank} computes {seconds(row.compute_ns)} per micro-batch, its peers {seconds(row.peer_ns)}; here its longest pass"


def _timed(row: Any) -> str:
    return f"step {row.step}: rank {row.rank} computes {percent(row.ratio - 1)} longer than its peers (forward-compute and backward-compute)"


def _hosts(topology: Topology, ranks: tuple[int, ...]) -> tuple[str, ...]:
    return tuple(sorted({host for rank in ranks if (host := topology.host_of(rank))}))
