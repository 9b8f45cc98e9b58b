"""One verdict an attempt: what began its end, what followed, what is not known."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from pipelog._text import count, listed
from pipelog.findings import Advice, Confidence, Evidence
from pipelog.postmortem.case import Case
from pipelog.postmortem.hangs import Hang, silent_targets
from pipelog.postmortem.kinds import KINDS, Kind, Role, Strength
from pipelog.tables import Tables, frame, table
from pipelog.tables.attempts import Attempts
from pipelog.tables.config import Config
from pipelog.tables.ending import Ending
from pipelog.tables.topology import Topology

_TIER = {Strength.CAUSE: 0, Strength.SYMPTOM: 0, Strength.SIGNAL: 1, Strength.TRANSPORT: 1, Strength.TIMEOUT: 1, Strength.ECHO: 2, Strength.WORD: 3}
"""Within a tier the earliest decides: a signal before a timeout is its cause, one after it its consequence."""
_SURVIVED = 2
"""Steps made after an error from which on it was survived: one line may have been under way when it came."""
_MOST_GROUPS = 60


@dataclass(frozen=True, slots=True)
class Death:
    """How an attempt ended. status, category, known (cause_known), confidence, title, … as in report.json's `failure`.

    at_ns: when (local time); hang_ns: when the wait began. consequences: groups of lines that followed: what, count, ranks, file, line, text. roles: the table of errors with role and reason.
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


@table("death", needs=("errors", "endings", "chosen", "hang", "heard", "placed", "topology", "config", "facts"))
def death(
    errors: pd.DataFrame,
    endings: list[Ending],
    chosen: int,
    hang: Hang | None,
    heard: frozenset[int],
    placed: pa.Table,
    topology: Topology,
    config: Config,
    facts: pd.DataFrame,
) -> Death:
    """The verdict of the attempt."""
    ending = endings[chosen]
    work = frame(placed, ("step", "progress", "iteration"), ("step", "file", "line", "start_ns", "clock"))
    roles = _survived(errors, work, ending)
    if ending.status == "completed":
        roles["role"], roles["why"] = Role.BENIGN.value, "the run came to its end"
        return Death(chosen, "completed", roles=roles)
    if ending.status in ("cancelled", "time-limit", "preempted") and ending.file is not None:
        first = roles.index[(roles["file"] == ending.file) & (roles["line"] == ending.line)]
        return _of_scheduler(chosen, ending, roles, first, work)
    primary = _primary(roles, bad_end=ending.status == "failed")
    if primary is None or (hang is not None and hang.evidence and roles.at[primary, "strength"] > int(Strength.SYMPTOM)):
        if hang is None or not hang.evidence:
            return Death(chosen, ending.status, roles=roles, step=_last_step(work))
        return _recorded(chosen, hang, roles, topology, work)
    return _verdict(chosen, ending, roles, primary, hang, heard, placed, topology, config, facts, work)


@table("deaths", needs=("attempts", "chosen", "tables"))
def deaths(attempts: Attempts, chosen: int, tables: Tables) -> list[Death]:
    """The verdicts of all attempts, in order."""
    found: list[Death] = [(tables if number == chosen else tables.of_attempt(number))["death"] for number in range(attempts.count)]
    return [*found[:-1], _explained(found[-1], found[:-1])]


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
    }
)
"""Ends that a broken device or node explains, where one showed itself on the same host in an earlier attempt."""


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
                title=f"{listed(sorted(same))} fails again: {before.title[:1].lower()}{before.title[1:]} in attempt {before.attempt + 1}; now {last.title[:1].lower()}{last.title[1:]}",
                hosts=tuple(sorted(same)),
                evidence=(*before.evidence[:2], *last.evidence),
                advice=before.advice,
                missing=(),
            )
    return last


# ---- roles


def _survived(errors: pd.DataFrame, work: pd.DataFrame, ending: Ending) -> pd.DataFrame:
    """The errors with `why`; those after which training went on are benign."""
    roles = errors.copy()
    roles["why"] = ""
    work = work.dropna(subset=["step"])
    for file, unordered in work.groupby("file"):
        spots = np.flatnonzero((roles["file"] == file).to_numpy() & (roles["strength"] != int(Strength.SIGNAL)).to_numpy())
        if not len(spots):
            continue
        mine = unordered.sort_values("line")
        lines, steps = mine["line"].to_numpy(), mine["step"].to_numpy(dtype=np.int64)
        stamps = mine["start_ns"].astype("Float64").to_numpy(dtype=float, na_value=np.nan)
        held, at = roles["since_ns"].to_numpy(dtype=float), roles["line"].to_numpy()
        for spot in spots.tolist():
            since = held[spot]
            later = lines > at[spot]
            if not pd.isna(since):  # what was held back in a buffer bears an earlier time than what was written before it
                later &= np.isnan(stamps) | (stamps >= float(since))
            went_on = len(np.unique(steps[later]))
            if went_on >= _SURVIVED or (went_on and ending.status == "completed"):
                place = roles.index[spot]
                roles.loc[place, ["role", "why"]] = [Role.BENIGN.value, f"training went on: {count(went_on, 'step line')} after it"]
    return roles


def _primary(roles: pd.DataFrame, *, bad_end: bool) -> int | None:
    """Place of the line that began it: of the strongest tier that there is, the earliest."""
    found = _earliest(roles[roles["role"] == Role.INITIATING.value], Strength.TIMEOUT)
    if found is None and bad_end:  # nothing else explains the end: an error that seemed survived, held-back lines behind it
        found = _earliest(
            roles[(roles["role"] == Role.BENIGN.value) & (roles["why"] != "") & (roles["name"] == "python-exception")], Strength.SYMPTOM, last=True
        )
    if found is None:
        found = _earliest(roles[roles["role"] == Role.CASCADE.value], Strength.ECHO)
    if found is None and bad_end:
        found = _earliest(roles[roles["role"].isin([Role.INITIATING.value, Role.CASCADE.value])], Strength.WORD)
    return found


def _earliest(rows: pd.DataFrame, weakest: Strength, *, last: bool = False) -> int | None:
    rows = rows[rows["strength"] <= int(weakest)]
    if not len(rows):
        return None
    tier = rows["strength"].map({int(k): v for k, v in _TIER.items()})
    rows = rows[tier == tier.min()]
    several = len(set(rows["file"])) > 1
    if (rows["name"] == "child-root-cause").any():  # of its children an agent knows which one it saw first
        rows = rows[rows["name"] != "child-failed"]
    when = rows["at_ns"].astype("Float64").to_numpy(dtype=float, na_value=np.nan)
    when = np.where(np.isnan(when), rows["since_ns"].to_numpy(dtype=float), when)
    ranked = rows.assign(_when=np.where(np.isnan(when), np.inf, when) if several else 0.0)
    ranked = ranked.sort_values(["_when", "strength", "order", "line"] if several else ["order", "line"], kind="stable")
    return int(ranked.index[-1 if last else 0])


# ---- the verdict


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
    alike = _alike(roles, first)
    ranks = () if kind.job else _ranks(alike)
    lines = list(alike.index)
    why, confidence = "", Confidence.HIGH if kind.known else Confidence.MEDIUM
    status = "failed"
    if kind.category == "hang":
        status = "hung"
        ranks, why = (hang.ranks, hang.why) if hang is not None else ((), "")
        lines = list(hang.lines) if hang is not None and hang.lines else lines
    elif kind.category == "launch" and kind.name == "rendezvous":
        ranks, why = _never_came(placed, topology)
    elif not ranks and not kind.job and kind.strength in (Strength.SIGNAL, Strength.ECHO):
        echoes = roles[(roles["error"] == "peer-gone") & (roles["role"] != Role.BENIGN.value)]
        ranks, _, shown = silent_targets(echoes, heard, topology)
        if ranks:
            why, confidence = "its neighbours lost it, and it said nothing", Confidence.MEDIUM
            lines += list(shown)
    stages = _stages(ranks, alike, topology)
    hosts = _hosts(ranks, alike, topology)
    if not ranks and not kind.job and kind.category != "hang":
        ranks, hosts = _by_exit(roles, hosts)
        stages = _stages(ranks, alike, topology)
        hosts = hosts or _hosts(ranks, alike.iloc[:0], topology)
    roles = _folded(roles, alike.index, first, kind)
    step = _last_step(work)
    case = Case(
        first["text"],
        ranks[0] if len(ranks) == 1 else None,
        stages[0] if len(stages) == 1 else None,
        hosts[0] if len(hosts) == 1 else None,
        first["own"] if isinstance(first["own"], str) else None,
        topology,
        config,
        facts,
    )
    title = _title(kind, first, ranks, stages, hosts, topology, why)
    phase = _phase(placed, work, first)
    missing = () if kind.known else kind.missing
    if not ranks and not kind.job and kind.category != "hang":
        missing += ("which rank it was: logs by rank (deepspeed --enable_each_rank_log DIR, torchrun --log-dir DIR --tee 3)",)
    at = first["at_ns"]
    return Death(
        attempt,
        status,
        kind.category,
        kind.name,
        kind.known,
        confidence,
        title,
        ranks,
        stages,
        hosts,
        None if pd.isna(at) else int(at),
        hang.begin_ns if hang is not None and status == "hung" else None,
        step,
        phase,
        _evidence(roles, lines, ending),
        _consequences(roles),
        missing,
        tuple(kind.advice(case)),
        roles,
    )


def _recorded(attempt: int, hang: Hang, roles: pd.DataFrame, topology: Topology, work: pd.DataFrame) -> Death:
    """A hang that flight-recorder dumps show."""
    stages, hosts = _stages(hang.ranks, roles.iloc[:0], topology), _hosts(hang.ranks, roles.iloc[:0], topology)
    follows = roles["role"] != Role.BENIGN.value
    roles.loc[follows, ["role", "why"]] = [Role.CASCADE.value, "the run hung before"]
    return Death(
        attempt,
        "hung",
        "hang",
        "timeout-nccl",
        known=False,
        confidence=Confidence.HIGH,
        title=f"{_subject(hang.ranks, stages, hosts, topology)} {'is' if len(hang.ranks) == 1 else 'are'} waited for: {hang.why}",
        ranks=hang.ranks,
        stages=stages,
        hosts=hosts,
        at_ns=hang.begin_ns,
        hang_ns=hang.begin_ns,
        step=_last_step(work),
        phase="training" if len(work) else None,
        evidence=tuple(Evidence(file, line) for file, line in hang.evidence),
        consequences=_consequences(roles),
        missing=("why they did not come: their own logs, a stack of them (py-spy dump), the kernel log of their hosts",),
        advice=(
            Advice(f"look at rank {listed(hang.ranks)}: its log's last line, py-spy dump if it still runs, `dmesg -T` of its host"),
            Advice("if the same host stands out again, take it out of the pool"),
        ),
        roles=roles,
    )


def _of_scheduler(attempt: int, ending: Ending, roles: pd.DataFrame, first: pd.Index, work: pd.DataFrame) -> Death:
    words = {"cancelled": "was cancelled", "time-limit": "reached its time limit", "preempted": "was preempted"}
    name = {"cancelled": "cancelled", "time-limit": "time-limit", "preempted": "preempted"}[ending.status]
    roles.loc[roles["role"] != Role.BENIGN.value, ["role", "why"]] = [Role.TEARDOWN.value, f"the job {words[ending.status]}"]
    roles.loc[first, ["role", "why"]] = [Role.INITIATING.value, "the scheduler says so"]
    return Death(
        attempt,
        ending.status,
        ending.category,
        name,
        known=True,
        confidence=Confidence.HIGH,
        title=f"The job {words[ending.status]}",
        at_ns=ending.at_ns,
        step=_last_step(work),
        evidence=(Evidence(str(ending.file), ending.line, ending.text),),
        consequences=_consequences(roles),
        advice=tuple(KINDS[name].advice(Case(ending.text or "", None, None, None, None, Topology(), Config(), pd.DataFrame()))),
        roles=roles,
    )


def _alike(roles: pd.DataFrame, first: pd.Series) -> pd.DataFrame:
    """The first line and those of other ranks that say the same, but for numbers."""
    mine = roles[(roles["error"] == first["error"]) & (roles["name"] == first["name"]) & (roles["role"] == first["role"])]
    form = mine["text"].map(_form)
    alike = mine[form == _form(first["text"])]
    return pd.concat([alike.loc[[first.name]], alike.drop(index=first.name)])


def _form(text: str) -> str:
    return re.sub(r"0x[0-9a-f]+|\d+(?:\.\d+)?", "#", text.partition("\n")[0])


def _ranks(rows: pd.DataFrame) -> tuple[int, ...]:
    return tuple(sorted(set(rows["rank"].dropna().astype(int))))


def _stages(ranks: tuple[int, ...], rows: pd.DataFrame, topology: Topology) -> tuple[int, ...]:
    found = {s for r in ranks if (s := topology.stage_of(r)) is not None} or set(rows["stage"].dropna().astype(int))
    return tuple(sorted(found)) if ranks else ()


def _hosts(ranks: tuple[int, ...], rows: pd.DataFrame, topology: Topology) -> tuple[str, ...]:
    found = {h for r in ranks if (h := topology.host_of(r)) is not None}
    return tuple(sorted(found or {h for h in rows["host"] if isinstance(h, str)}))


def _by_exit(roles: pd.DataFrame, hosts: tuple[str, ...]) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """The one process that left with an error code of its own while all others were taken down by a signal: rank and host, as far as told."""
    own = roles[roles["code"].notna() & roles["name"].isin(["child-failed", "child-root-cause", "slurm-task"])]
    own = own[(own["code"] > 0) | own["code"].isin([-4, -7, -8, -9, -11])]
    ranks = set(own["rank"].dropna().astype(int))
    named = {h for h in own["host"] if isinstance(h, str)}
    return (tuple(ranks) if len(ranks) == 1 and len(own["line"].unique()) == 1 else ()), (tuple(named) if len(named) == 1 else hosts)


def _never_came(placed: pa.Table, topology: Topology) -> tuple[tuple[int, ...], str]:
    """Ranks that did not join the store-based barrier, where those that did are all known."""
    waits = frame(placed, ("error",), ("name", "rank", "value")).query("name == 'store-wait'")
    came = set(waits["rank"].dropna().astype(int))
    joined = waits["value"].dropna()
    world = topology.world_size
    if not world or not len(joined) or len(came) != int(joined.max()) or len(came) >= world:
        return (), ""
    return tuple(r for r in range(world) if r not in came), f"{len(came)} of {world} joined"


def _folded(roles: pd.DataFrame, alike: pd.Index, first: pd.Series, kind: Kind) -> pd.DataFrame:
    """Everything that the first line explains follows from it."""
    rest = roles.index.difference(alike)
    begins = roles.index.isin(rest) & (roles["role"] == Role.INITIATING.value)
    roles.loc[begins, ["role", "why"]] = [Role.CASCADE.value, f"after the first error ({kind.name}, {first['file']}:{first['line']})"]
    roles.loc[alike, ["role", "why"]] = [Role.INITIATING.value, "the earliest of the lines that explain most"]
    follows = roles.index.isin(rest) & (roles["role"] == Role.CASCADE.value) & (roles["why"] == "")
    roles.loc[follows, "why"] = "what others notice when one is gone"
    ends = roles.index.isin(rest) & (roles["role"] == Role.TEARDOWN.value) & (roles["why"] == "")
    roles.loc[ends, "why"] = "taken down with the rest"
    return roles


def _evidence(roles: pd.DataFrame, lines: list[int], ending: Ending) -> tuple[Evidence, ...]:
    """The first lines of those that show it, and the launcher's or scheduler's word for the end."""
    out: dict[tuple[str, int], Evidence] = {}
    for place in lines[:4]:
        row = roles.loc[place]
        out.setdefault((row["file"], int(row["line"])), Evidence(str(row["file"]), int(row["line"]), None))
    codes = roles[roles["code"].notna()]
    if len(codes):
        row = codes.iloc[0]
        out.setdefault((row["file"], int(row["line"])), Evidence(str(row["file"]), int(row["line"]), None))
    elif ending.file is not None and ending.line is not None:
        out.setdefault((ending.file, ending.line), Evidence(ending.file, ending.line, None))
    return tuple(out.values())


def _consequences(roles: pd.DataFrame) -> tuple[dict[str, Any], ...]:
    """Cascade and teardown, grouped by what they are: how many lines, of which ranks, the first of them."""
    rest = roles[roles["role"].isin([Role.CASCADE.value, Role.TEARDOWN.value])]
    out = []
    for (role, error), mine in rest.groupby(["role", "error"], sort=False):
        row = mine.iloc[0]
        says = KINDS[str(error)].says
        out.append(
            {
                "what": _filled(says, KINDS[str(error)], row["said"]),
                "role": role,
                "count": len(mine),
                "ranks": sorted(set(mine["rank"].dropna().astype(int).tolist())),
                "file": row["file"],
                "line": int(row["line"]),
                "text": None,
            }
        )
    return tuple(out[:_MOST_GROUPS])


# ---- words


def _title(
    kind: Kind, first: pd.Series, ranks: tuple[int, ...], stages: tuple[int, ...], hosts: tuple[str, ...], topology: Topology, why: str
) -> str:
    says = _filled(kind.says, kind, first["said"])
    if kind.category == "hang":
        who = _subject(ranks, stages, hosts, topology) if ranks else ""
        waited = {"timeout-gloo": "a p2p or collective call timed out", "timeout-nccl": _call(first)}.get(kind.name, "the run hangs")
        return (
            f"{who} {'is' if len(ranks) == 1 else 'are'} waited for: {waited}; {why}"
            if who
            else f"The run hangs: {waited}" + (f"; {why}" if why else "; who is missing cannot be told")
        )
    subject = "The job" if kind.job else _subject(ranks, stages, hosts, topology)
    tail = f"; {why}" if why else ""
    if kind.name == "rendezvous" and ranks:
        return f"{_subject(ranks, stages, hosts, topology)} never came to the rendezvous{tail}"
    return f"{subject} {says}{tail}"


def _call(first: pd.Series) -> str:
    op = first["stream"] if isinstance(first["stream"], str) else None
    seq = "" if pd.isna(first["value"]) else f" {int(first['value'])}"
    waited = "" if pd.isna(first["dur_ns"]) else f" after {int(first['dur_ns']) // 10**9} s"
    return f"{op or 'a call'}{seq} timed out{waited}"


def _subject(ranks: tuple[int, ...], stages: tuple[int, ...], hosts: tuple[str, ...], topology: Topology) -> str:
    """Rank 7 (stage 3, replica 1, node-3)."""
    if not ranks:
        return f"A rank on {listed(hosts)}" if hosts else "A rank (the log does not say which)"
    if topology.world_size and len(ranks) == topology.world_size > 1:
        return f"All {len(ranks)} ranks"
    inside = []
    if stages and (topology.pp or 0) > 1:
        inside.append(f"stage{'s' if len(stages) > 1 else ''} {listed(stages)}")
    if len(ranks) == 1 and (topology.dp or 0) > 1:
        mine = topology.ranks.loc[topology.ranks["rank"] == ranks[0], "replica"].dropna()
        inside += [f"replica {int(mine.iloc[0])}"] if len(mine) else []
    if hosts and len(hosts) < 4:
        inside.append(listed(hosts))
    where = f" ({', '.join(inside)})" if inside else ""
    return f"Rank{'s' if len(ranks) > 1 else ''} {listed(ranks)}{where}"


def _filled(says: str, kind: Kind, text: str) -> str:
    match = kind.pattern.search(text)
    groups: dict[str, Any] = {k: v or "" for k, v in match.groupdict().items()} if match else {}
    line = text.partition("\n")[0].strip()
    groups |= {"line": line if len(line) <= 160 else line[:159] + "…", "matched": " ".join(match.group(0).split())[:80] if match else line[:80]}
    try:
        return says.format(**groups)
    except (KeyError, IndexError):
        return says


def _phase(placed: pa.Table, work: pd.DataFrame, first: pd.Series) -> str:
    """Start-up, training, evaluation or checkpoint: what was last begun before the line."""
    if not len(work):
        return "start-up"
    saved = frame(placed, ("checkpoint",), ("name", "file", "line"))
    same = saved[(saved["file"] == first["file"]) & (saved["line"] < first["line"])]
    last = work.loc[(work["file"] == first["file"]) & (work["line"] < first["line"]), "line"].max()
    if len(same) and same["name"].iloc[-1] in ("begin", "saving") and (pd.isna(last) or same["line"].iloc[-1] > last):
        return "checkpoint"
    return "training"


def _last_step(work: pd.DataFrame) -> int | None:
    steps = work["step"].dropna()
    return int(steps.max()) if len(steps) else None
