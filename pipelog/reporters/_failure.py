"""How a run ended, in the same words in every output: who, when, what it cost, how sure, what followed, where the time went."""

from __future__ import annotations

import re
from dataclasses import dataclass

from pipelog._text import count, listed, of_several, percent
from pipelog.findings import Evidence
from pipelog.report import JSON, Report
from pipelog.reporters._numbers import duration, moment

VERDICTS = ("run-failed", "run-hung")
"""Rules whose finding is the verdict itself: outputs that begin with the verdict do not repeat it."""


@dataclass(frozen=True, slots=True)
class Fact:
    """One line of the verdict: its name, what is known, and whether anything is known."""

    name: str
    value: str
    known: bool = True


def facts(report: Report) -> list[Fact]:
    """Who, when, what is lost; nothing where nothing failed."""
    failure = report.failure
    if failure is None:
        return []
    return [_who(report, failure), _when(failure), _lost(report)]


def labels(report: Report) -> list[Fact]:
    """The three labels of a verdict: category, confidence, and whether the files show the cause."""
    failure = report.failure
    if failure is None:
        return []
    shown = failure["cause_known"]
    cause = "known: the lines below name it" if shown else "not known: the lines show the symptom only"
    return [Fact("Category", failure["category"]), Fact("Confidence", failure["confidence"]), Fact("Cause", cause, known=shown)]


def _who(report: Report, failure: JSON) -> Fact:
    """Rank 3 of 8 · stage 3 of 4 · node-1."""
    world, stages = report.topology["world_size"], report.topology["pp"]
    parts = []
    if failure["ranks"]:
        parts.append(_of("rank", failure["ranks"], world))
    if failure["stages"] and (stages or 2) > 1:
        parts.append(_of("stage", failure["stages"], stages))
    if failure["hosts"]:
        parts.append(f"{'host' if len(failure['hosts']) == 1 else 'hosts'} {listed(failure['hosts'])}")
    if parts:
        return Fact("Where", " · ".join(parts))
    if failure["category"].startswith("scheduler."):
        return Fact("Where", "the whole job: the scheduler ended it")
    hosts = {r.get("host") for r in report.topology.get("ranks") or []}
    if len(hosts) == 1 and (host := hosts.pop()):
        return Fact(
            "Where", f"on {host}, the only host; these files do not tell which of its {world:,} ranks" if world else f"on {host}", known=False
        )
    return Fact("Where", "these files do not tell which rank or host", known=False)


def _of(word: str, some: list[int], every: int | None) -> str:
    """rank 3 of 8; ranks 3 and 5 (of 8); all 8 ranks; rank 3 where the number of all is not known."""
    if len(some) == 1:
        return f"{word} {some[0]}{f' of {every:,}' if every and every > 1 else ''}"
    if every == len(some):
        return f"all {every:,} {word}s"
    return f"{word}s {listed(some)}{f' (of {every:,})' if every else ''}"


def _when(failure: JSON) -> Fact:
    bare = failure.get("at_without_year")
    at = moment(failure["at"]) if failure.get("at") else f"{bare} (no line tells the year)" if bare else _around(failure)
    step, phase = failure["step"], failure.get("phase")
    if since := failure.get("hung_since"):
        at = f"{at} (it stood still from {moment(since)[11 if since[:10] == failure['at'][:10] else 0 :]} on)"
    if step:
        where = f"after step {step:,}"
        where += {"checkpoint": " while a checkpoint was written", "evaluation": ", when an evaluation had begun"}.get(phase or "", "")
    elif step == 0 or phase == "start-up":
        where = "during start-up, before a step was printed" if phase == "start-up" else "before the first step was done"
    else:
        where = ""
    text = ", ".join(t for t in (at, where) if t)
    return Fact("When", text, known=True) if text else Fact("When", "no line tells the time or the step", known=False)


def _around(failure: JSON) -> str | None:
    """Between which times it was, by the lines around it, where its own line has none."""
    since, until = (moment(failure[name]) if failure.get(name) else None for name in ("not_before", "not_after"))
    if since and until:
        return f"at {since}" if since == until else f"between {since} and {until[11:] if since[:10] == until[:10] else until}"
    return f"not before {since}" if since else f"not after {until}" if until else None


def _lost(report: Report) -> Fact:
    """Steps and time since the last checkpoint, of the attempt that the figures speak of."""
    run = report.run
    several = len(run["attempts"]) > 1
    of = f" (attempt {run['attempt']})" if several and run.get("attempt") not in (None, run["attempts"][-1]["index"]) else ""
    saved, lost = run["last_checkpoint_step"], run["lost_steps"]
    if lost is None and run["last_step"] is None:
        logs = any(i["kind"] == "log" for i in report.inputs)
        return Fact("Lost", f"no step was printed{of}" if logs else "cannot be told: no log is among the files", known=logs)
    if lost is None:
        return Fact("Lost", "cannot be told: no line says that a checkpoint was written", known=False)
    since = f"since the checkpoint of step {saved:,}" if saved is not None else "no checkpoint was written"
    if lost == 0:
        return Fact("Lost", f"no step: the checkpoint of step {saved:,} is the last step{of}" if saved is not None else f"no step{of}")
    time = f" ({duration(run['lost_s'])})" if run["lost_s"] else ""
    return Fact("Lost", f"{count(lost, 'step')}{time} {since}{of}" if saved is not None else f"{count(lost, 'step')}{time}: {since}{of}")


# ---- what followed


@dataclass(frozen=True, slots=True)
class Followed:
    """Lines that the verdict explains, folded: in words, how many lines, the first of them."""

    says: str
    lines: int
    file: str
    line: int | None
    text: str | None


def place(evidence: Evidence, report: Report) -> str:
    """Where a line stands: file:line; the number of the event in a trace, of the entry in a flight recorder's dump."""
    if evidence.line is None:
        return evidence.file
    kind = next((i["kind"] for i in report.inputs if i["path"] == evidence.file), "log")
    word = {"trace": "event", "flight-recorder": "entry"}.get(kind)
    return f"{evidence.file}, {word} {evidence.line:,}" if word else f"{evidence.file}:{evidence.line}"


def followed(report: Report) -> list[Followed]:
    """The consequences: `255 ranks were taken down with the rest (1,020 lines)`."""
    given = (report.failure or {}).get("consequences") or []
    return [Followed(_said(c), c.get("count", 1), c["file"], c.get("line"), c.get("text")) for c in given]


def _said(given: JSON) -> str:
    """A report of an older version folds nothing, and says not what a line means."""
    lines, ranks, what = given.get("count", 1), given.get("ranks") or [], given.get("what")
    if not what:
        return f"{_ranks(ranks)} said" if ranks else "a line said"
    if what.startswith("said: "):
        of = f" of {_ranks(ranks)}" if ranks else ""
        return f"{count(lines, 'line')}{of} like “{what.removeprefix('said: ')}”"
    if not ranks:
        return f"{f'{lines:,} lines' if lines > 1 else 'one line'}: {what.removeprefix('was ')}"
    plural = of_several(what) if len(ranks) > 1 else what
    more = f" ({count(lines, 'line')})" if lines > len(ranks) else ""
    return f"{_ranks(ranks)} {plural}{more}"


def _ranks(ranks: list[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {listed(ranks)}" if len(ranks) <= 3 else f"{len(ranks):,} ranks ({listed(ranks)})"


# ---- where the time went


@dataclass(frozen=True, slots=True)
class Spent:
    """A part of the time of a start: its key, its words, its seconds."""

    key: str
    words: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Start:
    """A start of the job: number (that of --attempt, 0 first), how it ended, its steps, its wall clock and the parts that are known of it, s; gap: since the start before; changed: what was since then."""

    number: int
    status: str
    category: str
    steps: str
    wall: float | None
    gap: float | None
    parts: tuple[Spent, ...]
    changed: tuple[str, ...] = ()

    @property
    def whole(self) -> bool:
        """Whether the parts make up the wall clock."""
        return self.wall is not None and bool(self.parts) and abs(sum(p.seconds for p in self.parts) - self.wall) <= max(0.01, 0.005 * self.wall)


PARTS = (
    ("productive_s", "productive", "steps that were kept"),
    ("lost_s", "lost", "steps made since the last checkpoint"),
    ("hang_s", "hanging", "waiting in vain before the end"),
    ("after_s", "after the last step", "no step was printed any more before the end"),
    ("other_s", "start-up and other", "starting, saving, evaluating, ending"),
)
GAP = ("gap_s", "between starts", "nothing ran")


def starts(report: Report) -> list[Start]:
    """The starts with their time; nothing where no clock tells it, or where one start came to its end."""
    ledger = report.run.get("ledger")
    if not ledger or (report.failure is None and len(ledger["attempts"]) < 2):
        return []
    ends = {a["index"]: a for a in report.run["attempts"]}
    return [_start(row, ends.get(row["attempt"], {})) for row in ledger["attempts"]]


def _start(row: JSON, end: JSON) -> Start:
    first, last = end.get("first_step"), end.get("last_step")
    steps = "" if first is None or last is None else f"{first:,}" if first == last else f"{first:,} to {last:,}"
    parts = tuple(Spent(key, words, row[key]) for key, words, _ in PARTS if row.get(key))
    return Start(
        row["attempt"],
        end.get("status") or "",
        end.get("category") or "",
        steps,
        row.get("wall_s"),
        row.get("gap_s"),
        parts,
        changed(end.get("changed") or []),
    )


def spent(start: Start) -> str:
    """What a start's time went into: failed, 12 min: 6 min productive, 4 min lost, …; its steps and the time before it."""
    of = f"{start.status} ({start.category})" if start.category else start.status
    wall = f", {duration(start.wall)}" if start.wall is not None else ""
    parts = ", ".join(f"{duration(p.seconds)} {p.words}" for p in start.parts)
    steps = f"; steps {start.steps}" if start.steps else "; no step"
    gap = f"; {duration(start.gap)} after the one before" if start.gap and start.gap > 0 else ""
    other = f"; changed: {', '.join(start.changed)}" if start.changed else ""
    return f"{of}{wall}{': ' if parts else ''}{parts}{steps}{gap}{other}"


_TOLD_TWICE = {"gradient_accumulation_steps": "micro_batches", "train_micro_batch_size_per_gpu": "micro_batch_size"}
"""Settings that pipelog has under a name of its own, too."""
_MOST_CHANGED = 4


def changed(given: list[str]) -> tuple[str, ...]:
    """What a start changed, as `train_batch_size 128 → 256`: the shape of the job first, then versions and settings; how many more there are."""
    words = [re.sub(r"^(?:config|args|launch|topology)\.([^:]+): ", r"\1 ", re.sub(r"^version\.([^:]+): ", r"\1 ", line)) for line in given]
    names = {word.partition(" ")[0] for word in words}
    told = [word for word in dict.fromkeys(words) if _TOLD_TWICE.get(word.partition(" ")[0]) not in names]
    return tuple(told if len(told) <= _MOST_CHANGED + 1 else [*told[:_MOST_CHANGED], f"{len(told) - _MOST_CHANGED} settings more"])


def ratio(report: Report) -> str:
    """The effective training time ratio as a sentence, or why there is none."""
    ledger = report.run.get("ledger")
    if not ledger or not starts(report):
        return ""
    value = ledger["effective_ratio"]
    wall = sum((r["wall_s"] or 0) + max(0, r["gap_s"] or 0) for r in ledger["attempts"])
    if value is None:
        return f"How much of the {duration(wall)} was productive cannot be told: {_unmeasured(report)}." if wall else ""
    return f"{percent(value)} of the {duration(wall)} from the first line to the last was productive (effective training time ratio)."


def _unmeasured(report: Report) -> str:
    run = report.run
    if run["last_step"] is None:
        return "no step was printed"
    if all(r["productive_s"] is None for r in run["ledger"]["attempts"]) and report.metrics["step_time_s"]["median"] is None:
        return "no line gives the step time"
    return "no line says which steps a checkpoint kept"
