"""One verdict an attempt: what began its end, what followed, what is not known."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from pipelog._text import listed, seconds
from pipelog.events import Input
from pipelog.findings import Advice, Confidence, Evidence
from pipelog.postmortem.case import Case, Whom
from pipelog.postmortem.hang_advice import look_at, look_first, still_missing
from pipelog.postmortem.hangs import Hang
from pipelog.postmortem.identities import Identities
from pipelog.postmortem.kinds import KINDS, Role, Strength
from pipelog.postmortem.left_over import LeftOver, left_over
from pipelog.postmortem.nodes import not_missed
from pipelog.postmortem.phases import evaluation, last_step, phase_of
from pipelog.postmortem.ports import around_the_loss
from pipelog.postmortem.proofs import killed_for_memory, of_another, of_its_end, seen_by, told_again, with_those
from pipelog.postmortem.roles import (
    alike,
    before_the_start,
    consequences_of,
    folded,
    harmless_alone,
    late_launches,
    of_launchers,
    of_other_hosts,
    primary_of,
    survived,
)
from pipelog.postmortem.schedulers import what_was_taken
from pipelog.postmortem.sources import told_by
from pipelog.postmortem.whom import hosts_of, stages_of, whom_of
from pipelog.postmortem.wording import missing_of, of_the_last, subject, title_of
from pipelog.tables import Tables, frame, table
from pipelog.tables.attempts import Attempts
from pipelog.tables.config import Config
from pipelog.tables.ending import Ending
from pipelog.tables.topology import Topology, said

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Death:
    """How an attempt ended. status, category, known (cause_known), confidence, title, … as in report.json's `failure`.

    at_ns: when (local time); hang_ns: when the wait began. consequences: groups of lines that followed: what, count, ranks, file, line, text. roles: the table of errors with role and reason.
    trouble: where the post-mortem itself failed, what it failed of; the status is then all that is known. label: what the launcher calls the one
    that began it (`local 1`), where all of its lines have the same.
    """

    attempt: int
    status: str
    category: str | None = None
    kind: str | None = None
    known: bool = False
    confidence: Confidence = Confidence.LOW
    title: str = ""
    ranks: tuple[int, ...] = ()
    stages: tuple[int, ...] = ()
    hosts: tuple[str, ...] = ()
    at_ns: int | None = None
    hang_ns: int | None = None
    step: int | None = None
    phase: str | None = None
    evidence: tuple[Evidence, ...] = ()
    consequences: tuple[dict[str, Any], ...] = ()
    missing: tuple[str, ...] = ()
    advice: tuple[Advice, ...] = ()
    roles: pd.DataFrame = field(default_factory=pd.DataFrame, repr=False)
    trouble: str | None = None
    label: str | None = None


@table("death", needs=("errors", "endings", "chosen", "hang", "heard", "inputs", "here", "placed", "topology", "identities", "config", "facts"))
def death(
    errors: pd.DataFrame,
    endings: list[Ending],
    chosen: int,
    hang: Hang | None,
    heard: frozenset[int],
    inputs: list[Input],
    here: pa.Table,
    placed: pa.Table,
    topology: Topology,
    identities: Identities,
    config: Config,
    facts: pd.DataFrame,
) -> Death:
    """The verdict of the attempt."""
    ending = endings[chosen]
    work = frame(placed, ("step", "progress", "iteration"), ("step", "file", "line", "start_ns", "clock"))
    roles = survived(errors, work, ending)
    begun = frame(placed, ("start", "process"), ("name", "file", "line"))
    before_the_start(roles, begun[begun["name"].isin(["launcher", "node", "torchrun", "spawned"])])
    late_launches(roles, work)
    of_launchers(roles)
    harmless_alone(roles)
    of_other_hosts(roles, topology)
    not_missed(roles)
    if ending.status == "completed":
        roles["role"], roles["why"] = Role.BENIGN.value, "the run came to its end"
        return Death(chosen, "completed", roles=roles)
    by_signal = ending.unsent and primary_of(roles, bad_end=False, weakest=Strength.SYMPTOM) is not None  # something was wrong before it
    if ending.status in ("cancelled", "time-limit", "preempted") and ending.file is not None and not by_signal:
        first = roles.index[(roles["file"] == ending.file) & (roles["line"] == ending.line)]
        return _of_scheduler(chosen, ending, roles, first, work, hang, topology, facts, (ending.file or "", *(i.path for i in inputs)))
    primary = primary_of(roles, bad_end=ending.status == "failed")
    strength = Strength.WORD if primary is None else Strength(roles.at[primary, "strength"])
    if hang is not None and hang.evidence and strength > (Strength.SYMPTOM if hang.confidence is Confidence.HIGH else Strength.TIMEOUT):
        return _recorded(chosen, hang, roles, topology, placed, work)
    if primary is None:
        gone = left_over(placed, identities, work) if ending.status == "incomplete" else None
        return Death(chosen, ending.status, roles=roles, step=last_step(work)) if gone is None else _gone_before(chosen, gone, roles, topology, work)
    verdict = _verdict(chosen, ending, roles, primary, hang, heard, placed, topology, config, facts, work)
    told = () if verdict.category == "hang" else told_by(verdict.evidence, verdict.ranks, verdict.hosts, roles, inputs, here, placed, topology)
    return replace(verdict, evidence=(*verdict.evidence, *told))


@table("deaths", needs=("attempts", "chosen", "endings", "tables"))
def deaths(attempts: Attempts, chosen: int, endings: list[Ending], tables: Tables) -> list[Death]:
    """The verdicts of all attempts, in order. One that fails costs its attempt the verdict, not the report: the rules say so."""
    found: list[Death] = []
    for number in range(attempts.count):
        try:
            found.append((tables if number == chosen else tables.of_attempt(number))["death"])
        except Exception as error:
            log.debug("the post-mortem of attempt %d failed", number, exc_info=True)
            found.append(Death(number, endings[number].status, trouble=f"{type(error).__name__}: {error}"))
    found = _of_one_agent(found)
    return [*found[:-1], _explained(found[-1], found[:-1])]


@table("ended", needs=("deaths", "wanted_attempt"))
def ended(deaths: list[Death], wanted_attempt: int | None) -> Death:
    """The verdict that is told: of the start that was asked for, else of the last."""
    return deaths[-1 if wanted_attempt is None else wanted_attempt]


_STATUS = {
    "hang": "hung",
    "scheduler.cancelled": "cancelled",
    "scheduler.preempted": "preempted",
    "scheduler.time-limit": "time-limit",
}
"""Status of a run whose end has this category; that of every other is failed."""

_FEW_STEPS, _SILENT_TIMES, _SILENT_NS = 4, 10, 1800 * 10**9
"""Silence is told where it is ten times the longest time between two steps, and half an hour: evaluations and checkpoints take less."""
_WEAK = frozenset(
    {
        "gpu-oom-plain",
        "cuda-async",
        "gpu-unknown-error",
        "gpu-fault",
        "killed",
        "crashed",
        "aborted",
        "left-with-code",
        "peer-gone",
        "transport",
        "timeout-nccl",
        "timeout-gloo",
        "timeout-hccl",
    }
)
"""Ends that a broken device or node explains, where one showed itself on the same host in an earlier attempt."""


def _of_one_agent(found: list[Death]) -> list[Death]:
    """The verdicts; where one names a local rank alone, with the rank and host that it has in another attempt of the same log.

    torchrun restarts its workers itself, and says only at the end on which host and which ranks they were. Only where no other host is named.
    """
    hosts = {h for d in found if len(d.roles) for h in d.roles["host"] if isinstance(h, str)}
    told = {(d.label, d.evidence[0].file): d for d in found if d.label and len(d.ranks) == 1 and len(d.hosts) == 1 and d.evidence}
    out = []
    for death in found[:-1]:
        same = told.get((death.label, death.evidence[0].file)) if death.label and death.evidence and not (death.ranks or death.hosts) else None
        if same is not None and len(hosts) == 1:
            title = death.title.replace("the log does not say of which host", same.hosts[0])
            death = replace(death, ranks=same.ranks, stages=same.stages, hosts=same.hosts, title=title)  # noqa: PLW2901
        out.append(death)
    return [*out, *found[-1:]]


def _explained(last: Death, earlier: list[Death]) -> Death:
    """The end of the last attempt, put down to the hardware that an earlier attempt named on the same host."""
    if last.kind not in _WEAK or last.status not in ("failed", "hung"):
        return last
    for before in reversed(earlier):
        same = set(before.hosts) & set(last.hosts)
        if (before.category or "").startswith("hardware.") and same:
            return replace(
                last,
                category=before.category,
                kind=before.kind,
                known=True,
                confidence=Confidence.MEDIUM,
                title=f"{listed(sorted(same))} fails again: {before.title[:1].lower()}{before.title[1:]} in attempt {before.attempt}; now {last.title[:1].lower()}{last.title[1:]}",
                hosts=tuple(sorted(same)),
                evidence=(*before.evidence[:2], *last.evidence),
                advice=before.advice,
                missing=(),
            )
    return last


def _verdict(
    attempt: int,
    ending: Ending,
    roles: pd.DataFrame,
    primary: int,
    hang: Hang | None,
    heard: frozenset[int],
    placed: pa.Table,
    topology: Topology,
    config: Config,
    facts: pd.DataFrame,
    work: pd.DataFrame,
) -> Death:
    first = roles.loc[primary]
    kind = KINDS[first["error"]]
    same = alike(roles, first)
    whom, lines = whom_of(roles, same, kind, hang, heard, placed, topology)
    ranks, stages, hosts = whom.ranks, whom.stages, whom.hosts
    inferred = kind.category != "hang" and len(lines) > len(same)  # from what its neighbours say
    again = told_again(roles, same, first, kind, lines, ranks)
    worded, of_loader, limit = killed_for_memory(kind, first, roles, ranks, hosts)
    lines = with_those([*lines[:2], *of_loader, *lines[2:]], again, roles)
    roles = folded(roles, same.index.union(again), first, kind)
    case = Case(
        first["text"],
        ranks[0] if len(ranks) == 1 else None,
        stages[0] if len(stages) == 1 else None,
        hosts[0] if len(hosts) == 1 else None,
        first["own"] if isinstance(first["own"], str) else None,
        topology,
        config,
        facts,
        hosts[0] if kind.job and ranks and len(hosts) == 1 and len(set(topology.ranks["host"].dropna())) > 1 else None,
        limit,
    )
    hung = kind.category == "hang"
    begun = evaluation(placed, work, first) if hung else None
    before = (((begun.file, begun.line),) if begun is not None else ()) + (hang.evidence[:2] if hang is not None and hung else ())
    port, of_port = around_the_loss(roles, first)
    of_others = bool(whom.title) and kind.strength is Strength.TRANSPORT  # why it is not reached any more, its own logs tell
    known = kind.known and not of_others
    missing = missing_of(kind, first, whom, known=known)
    return Death(
        attempt,
        status=_STATUS.get(kind.category, "failed"),
        category=kind.category,
        kind=kind.name,
        known=known,
        confidence=Confidence.HIGH if known and not inferred else Confidence.LOW if kind.strength is Strength.WORD else Confidence.MEDIUM,
        title=title_of(worded, first, whom, topology) + of_the_last(first, whom) + port + (f"; {begun.said}" if begun is not None else ""),
        ranks=ranks,
        stages=stages,
        hosts=hosts,
        at_ns=None if pd.isna(first["at_ns"]) else int(first["at_ns"]),
        hang_ns=hang.begin_ns if hang is not None and hung else None,
        step=last_step(work),
        phase=phase_of(placed, work, first),
        evidence=(*_evidence(roles, lines, ending, whom, (*before, *seen_by(kind, placed, ranks))), *of_port),
        consequences=consequences_of(roles, () if hung else ranks),
        missing=still_missing(hang if hung else None, missing),
        advice=tuple(look_first(hang if hung else None, kind.advice(case))),
        roles=roles,
        label=whom.label,
    )


def _recorded(attempt: int, hang: Hang, roles: pd.DataFrame, topology: Topology, placed: pa.Table, work: pd.DataFrame) -> Death:
    """A hang that flight-recorder dumps or stacks show, or GPUs that stay busy."""
    whom = Whom(
        hang.ranks, stages_of(hang.ranks, roles.iloc[:0], topology), hosts_of(hang.ranks, roles.iloc[:0], topology), hang.why, doing=hang.doing
    )
    follows = roles["role"] != Role.BENIGN.value
    roles.loc[follows, ["role", "why"]] = [Role.CASCADE.value, "the run hung before"]
    kind = KINDS["timeout-nccl"]
    who = subject(whom, topology)
    head = (
        "The run hung" if not whom.ranks else f"{who} {hang.doing}" if hang.doing else f"{who} {'was' if len(whom.ranks) == 1 else 'were'} waited for"
    )
    begun = evaluation(placed, work, None)
    return Death(
        attempt,
        "hung",
        kind.category,
        kind.name,
        known=False,
        confidence=hang.confidence,
        title=f"{head}: {hang.why}{f'; {begun.said}' if begun is not None else ''}",
        ranks=whom.ranks,
        stages=whom.stages,
        hosts=whom.hosts,
        at_ns=hang.begin_ns,
        hang_ns=hang.begin_ns,
        step=last_step(work),
        phase=phase_of(placed, work, None),
        evidence=tuple(Evidence(file, line) for file, line in (*hang.evidence, *(((begun.file, begun.line),) if begun is not None else ()))),
        consequences=consequences_of(roles),
        missing=(f"why they did not come: their own logs, {'' if hang.stood else 'a stack of them (py-spy dump), '}the kernel log of their hosts",)
        if whom.ranks
        else tuple(m for m in kind.missing if not (hang.stood and "py-spy" in m)),
        advice=tuple(look_at(hang, whom)),
        roles=roles,
    )


def _gone_before(attempt: int, gone: LeftOver, roles: pd.DataFrame, topology: Topology, work: pd.DataFrame) -> Death:
    hosts = hosts_of((gone.rank,), roles.iloc[:0], topology) or ((gone.host,) if gone.host else ())
    whom = Whom((gone.rank,), stages_of((gone.rank,), roles.iloc[:0], topology), hosts)
    return Death(
        attempt,
        "failed",
        "unknown",
        known=False,
        confidence=Confidence.MEDIUM,
        title=f"{subject(whom, topology)} had ended when the launcher took down the {len(gone.lines)} other processes; the log stops before it says how",
        ranks=whom.ranks,
        stages=whom.stages,
        hosts=whom.hosts,
        step=last_step(work),
        evidence=tuple(Evidence(f, n) for f, n in (*sorted(gone.lines[:_MOST_SHOWN]), *((gone.map,) if gone.map is not None else ()))),
        consequences=consequences_of(roles),
        missing=(f"how it ended: the rest of the log, the exit code of rank {gone.rank}, its own output, the kernel log of its host",),
        advice=(Advice(f"look for the end of that process: the launcher's line behind these, `dmesg -T` on {hosts[0] if hosts else 'its host'}"),),
        roles=roles,
    )


_MOST_SHOWN = 4


def _of_scheduler(
    attempt: int,
    ending: Ending,
    roles: pd.DataFrame,
    first: pd.Index,
    work: pd.DataFrame,
    hang: Hang | None,
    topology: Topology,
    facts: pd.DataFrame,
    files: tuple[str, ...],
) -> Death:
    outside = ending.unsent
    case = Case(ending.text or "", None, None, None, None, Topology(), Config(), facts, files=files)
    limits = said(facts, ("limit.active_deadline_s",)) if ending.status == "time-limit" else []
    limit = limits[0] if len(limits) == 1 else None
    words = {
        "cancelled": "was ended by a signal from outside; the files do not say who sent it" if outside else "was cancelled",
        "time-limit": f"reached its time limit{f' of {limit.value:,.0f} s (activeDeadlineSeconds)' if limit is not None else ''}",
        "preempted": "was preempted",
    }
    name = ending.status
    roles.loc[roles["role"] != Role.BENIGN.value, ["role", "why"]] = [Role.TEARDOWN.value, f"the job {words[ending.status]}"]
    again = roles.index[roles["error"].isin(roles.loc[first, "error"])] if not outside else first  # events repeat what the status says
    roles.loc[again, ["role", "why"]] = [Role.INITIATING.value, "a signal ended it" if outside else "the scheduler says so"]
    since, silent = _silence_before(ending, work)
    whom = (
        Whom() if hang is None else Whom(hang.ranks, stages_of(hang.ranks, roles.iloc[:0], topology), hosts_of(hang.ranks, roles.iloc[:0], topology))
    )
    taken = hosts_of((), roles.loc[again], topology) if ending.status == "preempted" else ()  # the machines that were taken, where they are named
    stood = (
        ""
        if hang is None
        else "; ".join(w for w in (f"{subject(whom, topology)} {hang.doing}" if whom.ranks and hang.doing else hang.doing, hang.why) if w)
    )
    hung = f"; it hung before that: {stood}" if stood else ""
    stated = [(limit.file, limit.line, None)] if limit is not None else []
    shown = [(ending.file, ending.line, ending.text), *stated] + [(f, n, None) for f, n in (hang.evidence[:3] if hang is not None and hung else ())]
    look = [Advice(f"see why rank {listed(whom.ranks)} stood still before you start it again: its stack, its log, its host")] if whom.ranks else []
    return Death(
        attempt,
        ending.status,
        ending.category,
        name,
        known=not outside,
        confidence=Confidence.MEDIUM if outside else Confidence.HIGH,
        title=f"The job {words[ending.status]}{what_was_taken(taken, roles.loc[again, 'text'])}{silent}{hung}",
        ranks=whom.ranks,
        stages=whom.stages,
        hosts=whom.hosts or taken,
        at_ns=ending.at_ns,
        hang_ns=(hang.begin_ns if hang is not None and hang.begin_ns is not None else since) if silent or hung else None,
        step=last_step(work),
        evidence=tuple(Evidence(str(f), n, t) for f, n, t in shown),
        consequences=consequences_of(roles),
        missing=("the scheduler's accounting (sacct, kubectl describe), the logs of the other nodes",) if outside else (),
        advice=(*look, *KINDS[name].advice(case)),
        roles=roles,
    )


def _silence_before(ending: Ending, work: pd.DataFrame) -> tuple[int | None, str]:
    """When the last step was made, and in words how long nothing was, where that is far longer than steps take: an end that somebody waited for."""
    times = np.unique(work["start_ns"].dropna().to_numpy(dtype=np.int64))
    if ending.at_ns is None or len(times) < _FEW_STEPS:
        return None, ""
    usual, gap = int(np.diff(times).max()), ending.at_ns - int(times[-1])
    if gap < max(_SILENT_TIMES * usual, _SILENT_NS):
        return None, ""
    return int(times[-1]), f"; no step was made in the {seconds(gap)} before"


def _evidence(roles: pd.DataFrame, lines: list[int], ending: Ending, whom: Whom, before: tuple[tuple[str, int], ...] = ()) -> tuple[Evidence, ...]:
    """What came before, the first lines of those that show it, and the launcher's or scheduler's word for the end."""
    out: dict[tuple[str, int], Evidence] = {(file, line): Evidence(file, line, None) for file, line in before}
    for nth, place in enumerate(lines[:4]):
        row = roles.loc[place]
        for line in dict.fromkeys((int(row["proof"]), int(row["line"])) if not nth else (int(row["proof"]),)):
            out.setdefault((row["file"], line), Evidence(str(row["file"]), line, None))
        if row["name"] == "traceback-cut" and not pd.isna(row["value"]):  # the last frame that is there
            out.setdefault((row["file"], int(row["value"])), Evidence(str(row["file"]), int(row["value"]), None))
    row = of_its_end(roles, whom.ranks, whom.hosts)
    if row is not None:
        last = row["name"] == "exit-code" and "exits with return code" in row["text"]
        if not (last and len(out) > len(before)):  # it names the command of the last local rank, whichever failed: no proof where others speak
            out.setdefault((row["file"], int(row["line"])), Evidence(str(row["file"]), int(row["line"]), None))
    elif ending.file is not None and ending.line is not None and not of_another(roles, ending):
        out.setdefault((ending.file, ending.line), Evidence(ending.file, ending.line, None))
    return tuple(out.values())
