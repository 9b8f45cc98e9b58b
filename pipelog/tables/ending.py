"""How each attempt ended, as far as its lines say so plainly."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

import numpy as np
import pandas as pd
import pyarrow as pa

from pipelog.events import ACCOUNTING, Input
from pipelog.tables import frame, table
from pipelog.tables.accounting import of_other_jobs
from pipelog.tables.attempts import Attempts
from pipelog.tables.pods import of_other_pods

_SCHEDULER = {
    "slurm-time-limit": ("time-limit", "scheduler.time-limit"),
    "slurm-preempted": ("preempted", "scheduler.preempted"),
    "slurm-requeue": ("preempted", "scheduler.preempted"),
    "slurm-cancelled": ("cancelled", "scheduler.cancelled"),
    "slurm-node-failure": ("failed", "hardware.node"),
    "k8s-deadline": ("time-limit", "scheduler.time-limit"),
    "k8s-preempted": ("preempted", "scheduler.preempted"),
    "k8s-scale-down": ("preempted", "scheduler.preempted"),
    "cloud-preempted": ("preempted", "scheduler.preempted"),
    "batch-time-limit": ("time-limit", "scheduler.time-limit"),
    "batch-preempted": ("preempted", "scheduler.preempted"),
    "batch-requeue": ("preempted", "scheduler.preempted"),
    "batch-cancelled": ("cancelled", "scheduler.cancelled"),
    "batch-node-failure": ("failed", "hardware.node"),
}
_CANCELLED = ("slurm-cancelled", "batch-cancelled")
_LATE = ("batch-cancelled", "k8s-scale-down")
"""Words for an end that also comes to a job that has failed and is still there."""
REQUEUED = ("slurm-requeue", "batch-requeue")
"""Words for an end that a job script or the controller also makes after the job has failed, so that it starts again."""
_CRASHES = frozenset({-4, -6, -7, -8, -11, 132, 134, 135, 136, 139})
"""Signals of a process that broke by itself: SIGILL, SIGABRT, SIGBUS, SIGFPE, SIGSEGV. No scheduler sends them."""
_LONG_AFTER, _SOON = 20, 2
"""Steps after a scheduler's word from which on it was not this job's end: within the grace time a few may still be made."""
_BY_HAND = re.compile(r"^KeyboardInterrupt")
_STOPPED = re.compile(r"^(?:KeyboardInterrupt|SystemExit|[\w.]*SignalException)")
"""Exceptions that a signal from outside raises."""
_BY_SIGNAL = frozenset({-15, -2, -1, 143, 130, 129})


LAUNCHER = re.compile(r"/bin/(?:deepspeed|ds|torchrun|accelerate|colossalai|horovodrun)(?:\.\w+)?:")
"""The outermost frame of what a launcher itself raises."""


@dataclass(frozen=True, slots=True)
class Ending:
    """status as in report.json; category where a scheduler's line gives one; file, line and text of the line that says so.

    at_ns: time of that line where it has one. unsent: a signal from outside ended it, and nobody says who sent it. A status and a category
    of the scheduler's agree: cancelled and scheduler.cancelled, preempted and scheduler.preempted, time-limit and scheduler.time-limit.
    """

    attempt: int
    status: str
    category: str | None = None
    file: str | None = None
    line: int | None = None
    text: str | None = None
    at_ns: int | None = None
    hosts: tuple[str, ...] = field(default=())
    unsent: bool = False


@table("endings", needs=("rows", "attempts", "inputs"))
def endings(rows: pa.Table, attempts: Attempts, inputs: list[Input]) -> list[Ending]:
    """One ending an attempt, first that applies:

    a scheduler's line that no failure comes before (a cancelled step may be the consequence of one; what an accounting says has no place in the order, and
    counts where the run neither came to its end nor failed by itself); an exit code other than 0 or a
    failed child, unless the training said that it was done before; every process exited successfully; the training says it is done; a
    traceback after the last step; the user's script says it is done; the planned number of steps is reached. Else incomplete.
    """
    order = {i.path: n for n, i in enumerate(inputs)}
    found = frame(
        rows,
        ("end", "error", "process", "step", "iteration", "progress"),
        ("kind", "name", "attempt", "step", "value", "host", "stream", "group", "file", "line", "text", "start_ns"),
    )
    found = found[~_of_a_launcher_late(found)]
    found = found[(found["kind"] != "error") | ((found["name"] == "python-exception") & (found["stream"] != "ignored"))]
    found = found[~of_other_pods(found, inputs)]
    facts = frame(rows, ("fact",), ("name", "text", "attempt"))
    found["order"] = found["file"].map(order).fillna(0)
    found = found.sort_values(["order", "line"], kind="stable")
    of = {}
    for n, mine in found.dropna(subset=["attempt"]).groupby("attempt"):
        files = attempts.segments.loc[attempts.segments["attempt"] == n, "file"]
        of[int(n)] = mine[~of_other_jobs(mine, files, facts[facts["attempt"] == n])]
    return [_of_attempt(n, of.get(n, found.iloc[:0]), last=n == attempts.count - 1) for n in range(attempts.count)]


def _of_attempt(number: int, rows: pd.DataFrame, *, last: bool) -> Ending:
    ends = rows[rows["kind"] == "end"]
    traces = rows[rows["kind"] == "error"]
    work = rows[rows["kind"].isin(["step", "iteration"])]
    made = rows[rows["kind"].isin(["step", "iteration", "progress"])]
    uncaught = _after_work(traces, work, rows)
    own = _of_its_own(uncaught)
    scheduler = _by_weight(_not_survived(ends[ends["name"].isin(_SCHEDULER)], made))
    failed = ["exit-code", "child-failed", "slurm-task", "k8s-failed"] + ([] if len(work) else ["slurm-launch-failed"])
    bad = ends[ends["name"].isin(failed) & ~(ends["value"] == 0)]
    done = ends[ends["name"] == "training-done"]
    successes = ends[ends["name"] == "exit-success"]
    spawned = rows[(rows["kind"] == "process") & (rows["name"] == "spawned")]["value"].nunique()
    left_well = len(successes) > 0 and len(successes["value"].unique()) >= spawned
    if len(done) or left_well:  # with steps behind it, it was none of this run's, or a quotation
        scheduler = scheduler[scheduler["stream"] != ACCOUNTING]
        scheduler = _not_survived(scheduler, made, _SOON)
    if len(scheduler):
        row = scheduler.iloc[0]
        before = _before(pd.concat([own, bad[~bad["value"].isin(_BY_SIGNAL)]]), row)
        # a step is also cancelled because one of its tasks failed
        if row["name"] == "slurm-cancelled":
            failed_itself = bool(len(before)) or _because_of_a_task(ends, own, row)
        else:
            failed_itself = _deleted_late(own, row) or (row["name"] in REQUEUED and _crashed(before))
        if not failed_itself:
            status, category = _SCHEDULER[row["name"]]
            return _ending(number, status, row, category)
    signals = ends[(ends["name"] == "signal") & (ends["stream"] != ACCOUNTING)]
    if len(bad) and not len(done):
        stopped = len(uncaught) and not len(own)
        if stopped or (bad["value"].isin(_BY_SIGNAL).all() and not len(own)):
            return _stopped(number, uncaught, signals, bad)
        return _ending(number, "failed", (own if len(own) else bad).iloc[0])
    if left_well:
        return _ending(number, "completed", successes.iloc[-1])
    if len(done):
        return _ending(number, "completed", done.iloc[-1])
    if len(own):
        return _ending(number, "failed", own.iloc[0])
    if len(uncaught) or len(signals):
        return _stopped(number, uncaught, signals, bad)
    said = _not_survived(ends[ends["name"].isin(["script-done", "exiting", "k8s-succeeded"])], made)
    if len(said):
        return _ending(number, "completed", said.iloc[-1])
    planned = rows[(rows["kind"] == "iteration") & rows["value"].notna()]
    if len(planned) and (planned["step"] >= planned["value"]).any():
        return _ending(number, "completed", planned.iloc[-1])
    noted = _not_survived(ends[(ends["stream"] == ACCOUNTING) & ends["name"].isin(["signal", "batch-failed"])], made)
    if len(noted):
        row = noted.iloc[-1]
        return _stopped(number, uncaught, noted, bad) if row["name"] == "signal" else _ending(number, "failed", row)
    return Ending(number, "incomplete" if last else "failed" if len(rows[rows["name"] == "killed"]) else "incomplete")


def _of_a_launcher_late(rows: pd.DataFrame) -> pd.Series:
    """Exceptions out of a launcher's script that stand below an interrupt in its file: it takes the ranks down, and what fails in that is its own affair."""
    by_hand = rows["text"].fillna("").str.match(_BY_HAND.pattern) | ((rows["name"] == "signal") & rows["value"].isin([2, -2]))
    frames = rows[(rows["name"] == "python-frame") & (rows["stream"] == "own")]
    frames = frames[frames["text"].fillna("").str.contains(LAUNCHER.pattern)]
    keys = rows["file"].astype(str) + "\0" + rows["group"].astype(str)
    theirs = (rows["name"] == "python-exception") & keys.isin(keys[frames.index])
    return theirs & ~by_hand & (rows["line"] > rows["file"].map(rows[by_hand].groupby("file")["line"].min())).fillna(False)


def _of_its_own(uncaught: pd.DataFrame) -> pd.DataFrame:
    """Without those that a signal from outside raised, and what was raised while one of them was handled (an emergency save that failed)."""
    stopped = uncaught["text"].fillna("").str.match(_STOPPED.pattern)
    chains = set(zip(uncaught.loc[stopped, "file"], uncaught.loc[stopped, "group"].dropna(), strict=False))
    follows = [(f, g) in chains for f, g in zip(uncaught["file"], uncaught["group"], strict=True)]
    return uncaught[~stopped & ~np.array(follows, dtype=bool)]


def _not_survived(scheduler: pd.DataFrame, work: pd.DataFrame, many: int = _LONG_AFTER) -> pd.DataFrame:
    """A scheduler's lines after which no row of so many steps stands in the same file."""
    if not len(scheduler):
        return scheduler
    after = [
        work.loc[(work["file"] == file) & (work["line"] > line), "step"].nunique()
        for file, line in zip(scheduler["file"], scheduler["line"], strict=True)
    ]
    # an accounting in the job's own log, with work behind it, tells of the job before
    return scheduler[np.array(after) < np.where(scheduler["stream"] == ACCOUNTING, 1, many)]


def _by_weight(scheduler: pd.DataFrame) -> pd.DataFrame:
    """In their order, what an accounting says behind the job's own lines; but a cancellation gives way to a reason that an accounting states."""
    noted, vague = scheduler["stream"] == ACCOUNTING, scheduler["name"].isin(_CANCELLED)
    weight = np.where(noted, np.where(vague, 3, 1), np.where(vague & bool((noted & ~vague).any()), 2, 0))
    return scheduler.iloc[np.argsort(weight, kind="stable")]


def _stopped(number: int, uncaught: pd.DataFrame, signals: pd.DataFrame, bad: pd.DataFrame) -> Ending:
    """Ended from outside: from the keyboard it was somebody; of any other signal the files do not tell who sent it."""
    by_hand = uncaught[uncaught["text"].fillna("").str.match(_BY_HAND.pattern)]
    interrupt = pd.concat([signals[signals["value"].isin([2, -2])], bad[bad["value"].isin([-2, 130])]])
    by_hand = by_hand if len(by_hand) else interrupt
    if len(by_hand):
        return _ending(number, "cancelled", by_hand.iloc[0], "scheduler.cancelled")
    row = next(rows.iloc[0] for rows in (signals, uncaught, bad) if len(rows))
    return replace(_ending(number, "cancelled", row, "scheduler.cancelled"), unsent=True)


def _after_work(traces: pd.DataFrame, work: pd.DataFrame, rows: pd.DataFrame) -> pd.DataFrame:
    """Tracebacks that were not survived: no step of the same file, and no sign of a good end, comes after them.

    Only where they stand in a file that has steps can that be told; others (a rank's own file) count as they are.
    """
    if not len(traces):
        return traces
    good = rows[(rows["kind"] == "end") & rows["name"].isin(["exit-success", "training-done", "script-done"])]
    last_work = pd.concat([work, good]).groupby("file")["line"].max()
    limit = traces["file"].map(last_work)
    bad_end = rows[(rows["kind"] == "end") & rows["name"].isin(["exit-code", "child-failed"]) & ~(rows["value"] == 0)]
    if len(bad_end):  # the launcher says that a rank failed: steps that stand after its traceback came from another stream
        return traces
    return traces[limit.isna() | (traces["line"] > limit)]


def _before(rows: pd.DataFrame, row: pd.Series) -> pd.DataFrame:
    same = rows[rows["file"] == row["file"]]
    return same[same["line"] < row["line"]]


_STEP, _JOB = re.compile(r"\*{3} STEP "), re.compile(r"\*{3} JOB ")
_OF_A_PEER = re.compile(
    r"(?i)nccl|gloo|\bDist\w*Error|peer|Connection|Broken ?Pipe|timed out|worker\b.*\bexited unexpectedly|by signal: (?:Terminated|Interrupt|Hangup)|SIGTERM"
)
"""Exceptions that are made where others are gone, or where a signal ends the processes that a rank has started."""


def _because_of_a_task(ends: pd.DataFrame, own: pd.DataFrame, row: pd.Series) -> bool:
    """Whether srun cancelled the step because one task failed (--kill-on-bad-exit), where that task's words are only written after it.

    Told where it was the step and nowhere the job, a single task left with an exit code of its own while all others were ended by a signal, and a
    traceback that is no echo of a peer's end stands behind it. Somebody who cancels a step ends all tasks alike.
    """
    tasks = ends[(ends["name"] == "slurm-task") & (ends["file"] == row["file"])]
    codes = tasks[tasks["value"] > 0]
    job = ends.loc[ends["name"] == "slurm-cancelled", "text"].fillna("").str.contains(_JOB.pattern).any()
    if (
        job
        or not _STEP.search(str(row["text"]))
        or len(codes) != 1
        or not tasks["value"].isin(_BY_SIGNAL).any()
        or codes["value"].isin(_BY_SIGNAL).any()
    ):
        return False
    late = own[(own["file"] == row["file"]) & (own["line"] > row["line"])]
    return bool((~late["text"].fillna("").str.contains(_OF_A_PEER.pattern)).any())


def _crashed(before: pd.DataFrame) -> bool:
    """Whether a process had crashed, or raised what is no echo of a peer's end."""
    raised = before[before["kind"] == "error"]["text"].fillna("")
    return bool(before["value"].isin(_CRASHES)[before["kind"] == "end"].any() or (~raised.str.contains(_OF_A_PEER.pattern)).any())


def _deleted_late(own: pd.DataFrame, row: pd.Series) -> bool:
    """Whether what somebody deleted, or an accounting has as ended from outside, had failed: its traceback, in whichever file, is no echo of a peer's end."""
    late = row["name"] in _LATE or (row["stream"] == ACCOUNTING and _SCHEDULER[row["name"]][0] != "time-limit")
    return late and bool((~own["text"].fillna("").str.contains(_OF_A_PEER.pattern)).any())


def _ending(number: int, status: str, row: pd.Series, category: str | None = None) -> Ending:
    at = row["start_ns"]
    host = (str(row["host"]),) if isinstance(row["host"], str) and row["name"] == "slurm-node-failure" else ()
    text = row["text"] if isinstance(row["text"], str) else None
    return Ending(number, status, category, str(row["file"]), int(row["line"]), text, None if pd.isna(at) else int(at), host)


@table("checkpoints", needs=("rows",))
def checkpoints(rows: pa.Table) -> pd.DataFrame:
    """Checkpoints that were written to the end: attempt, step, file, line (the one that proves it best: that it is there, that its last file was saved, that it was begun).

    `complete` lines say so; releases that print no such line (v0.17.1+) leave `begin`, which counts where steps were made after it. `finished` lines
    name no step: the checkpoint is that of the step printed last.
    """
    found = frame(rows, ("checkpoint",), ("name", "attempt", "step", "file", "line"))
    found = pd.concat([found.dropna(subset=["step"]), _after_their_steps(rows, found[found["name"] == "finished"])])
    complete = found[found["name"].isin(["complete", "finished"])]
    steps = frame(rows, ("step", "iteration"), ("attempt", "step")).dropna()
    last = steps.groupby("attempt")["step"].max()
    begun = found[found["name"] == "begin"]
    later = begun[(begun["attempt"].map(last).fillna(-1) > begun["step"]).to_numpy()] if len(begun) else begun
    keys = ["attempt", "step"]
    files = found[found["name"] == "saved"].sort_values("line").drop_duplicates(keys, keep="last").merge(later[keys].drop_duplicates(), on=keys)
    out = pd.concat([mine.assign(_weight=n) for n, mine in enumerate((complete, files, later))])
    return out.sort_values([*keys, "_weight", "line"]).drop_duplicates(keys)[[*keys, "file", "line"]].reset_index(drop=True)


def _after_their_steps(rows: pa.Table, finished: pd.DataFrame) -> pd.DataFrame:
    """The checkpoints with the step that stands last before them in the same file and attempt; without those that none precedes."""
    steps = frame(rows, ("step",), ("attempt", "step", "file", "line")).dropna() if len(finished) else finished
    if not len(finished) or not len(steps):
        return finished.iloc[:0]
    keys = ["attempt", "file"]
    sides = [
        side.astype({"line": "int64", "attempt": "int64", "file": object}).sort_values("line")
        for side in (finished.dropna(subset=["attempt"]), steps)
    ]
    return pd.merge_asof(sides[0].drop(columns="step"), sides[1], on="line", by=keys).dropna(subset=["step"])
