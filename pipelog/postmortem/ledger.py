"""Where the time of the attempts went: productive, lost since the last checkpoint, starting, hanging, between attempts."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from pipelog.events import ZONES_NS
from pipelog.postmortem.deaths import Death
from pipelog.postmortem.kinds import Role
from pipelog.tables import coded, frame, matching, table
from pipelog.tables.attempts import Attempts
from pipelog.tables.config import Config
from pipelog.tables.steps import between_stamps
from pipelog.tables.topology import said

_STILL_NS, _STILL_TIMES = 60 * 10**9, 3
"""From a minute, and three of the longest intervals between step lines, on, what comes after the last of them is told apart from the start-up."""
_ENOUGH = 100_000
"""So many times of lines show whether a log goes back by days."""
_FITS = 1.1
"""A median is this far from the mean where a few steps are fast. Above it the stamps do not cover the steps: the log has times in part of its lines only."""


@table("spans", needs=("rows", "config", "chosen", "steps"))
def spans(rows: pa.Table, config: Config, chosen: int, steps: object) -> pd.DataFrame:
    """First and last step of each attempt, as printed (from traces where no line was), and the median of its step times: attempt (index), first, last, step_ns.

    An attempt that went on from a checkpoint within the first printed interval began with the step after it.
    """
    found = frame(rows, ("step", "iteration", "progress"), ("kind", "attempt", "rank", "step", "steps", "dur_ns", "start_ns", "file", "line"))
    found = found.dropna(subset=["attempt", "step"])
    timed = found["kind"] == "step"
    if timed.any() and found["dur_ns"].isna().all():
        found = pd.concat([between_stamps(found[timed]), found[~timed]])
    found = found[found["step"] > 0]  # DeepSpeed prints step=0 before the first
    printed = config.steps_per_print or 1
    resumed = _resumed(rows)
    out = {}
    for attempt, mine in found.groupby("attempt"):
        numbers = np.unique(mine["step"].to_numpy(dtype=np.int64))
        gap = int(np.diff(numbers).min()) if len(numbers) > 1 else min(printed, int(numbers[0]))
        times = mine["dur_ns"].dropna()
        loaded = [int(s) for s in resumed.loc[resumed["attempt"] == attempt, "value"] if s < numbers[0]]
        out[int(attempt)] = (
            max(1, int(numbers[0]) - gap + 1, *(s + 1 for s in loaded)),
            int(numbers[-1]),
            float(times.median()) if len(times) else np.nan,
        )
    traced = getattr(steps, "rows", None)
    if chosen not in out and getattr(steps, "source", None) == "trace" and traced is not None:
        out[chosen] = (int(traced["step"].min()), int(traced["step"].max()), float(traced["dur_ns"].median()))
    return pd.DataFrame.from_dict(out, orient="index", columns=["first", "last", "step_ns"]).sort_index()


def _resumed(rows: pa.Table) -> pd.DataFrame:
    """Steps of the checkpoints that attempts loaded: attempt, value."""
    stated = frame(rows, ("fact",), ("name", "attempt", "value"))
    return stated[stated["name"] == "resume.step"].dropna()


@table("losses", needs=("spans", "checkpoints", "attempts", "facts", "endings", "rows"))
def losses(
    spans: pd.DataFrame, checkpoints: pd.DataFrame, attempts: Attempts, facts: pd.DataFrame, endings: list[object], rows: pa.Table
) -> pd.DataFrame:
    """One row an attempt: saved (step of the last complete checkpoint up to its end), lost_steps (made after it; null where that is not known).

    A checkpoint that was loaded is complete, too. All steps of an attempt are lost where it is known to have written no checkpoint: its save
    interval was not reached, or the first that it began was not finished, and it had loaded none.
    """
    begun = frame(rows, ("checkpoint",), ("name", "attempt", "step"))
    begun = begun[begun["name"] == "begin"]
    loaded = _resumed(rows)
    interval = said(facts, ("args.save_interval",))
    every = float(interval[0].value) if interval and isinstance(interval[0].value, float) else None
    out = []
    for number in range(attempts.count):
        until = checkpoints["attempt"].fillna(0)
        before = checkpoints[(until == number) if attempts.jobs else (until <= number)]
        known = [int(before["step"].iloc[-1])] if len(before) else []
        resumed = loaded.loc[loaded["attempt"] == number, "value"]
        known += [int(resumed.iloc[-1])] if len(resumed) else []
        saved = max(known) if known else None
        status = getattr(endings[number], "status", "incomplete")
        lost = None
        if number in spans.index and status != "completed":
            first, last = int(spans.at[number, "first"]), int(spans.at[number, "last"])
            if saved is not None:
                lost = max(0, last - saved)
            elif first == 1 and ((every is not None and every > last) or (begun["attempt"].fillna(0) == number).any()):
                lost = last - first + 1
        out.append((saved, lost))
    return pd.DataFrame(out, columns=["saved", "lost_steps"]).astype("Int64")


def last_word(death: Death, end_ns: float) -> float:
    """Time of the last line of an attempt: *end_ns*, that of its stamped lines, or of an error after it. NaN stays NaN.

    What the kernel and the disks say has a clock of its own and goes on after the job; what is benign may be of another.
    """
    roles = death.roles
    if pd.isna(end_ns) or not len(roles) or "at_ns" not in roles:
        return end_ns
    mine = roles["clock"].isin(["log", "log-yearless"]) & (roles["role"] != Role.BENIGN.value) & ~roles["name"].str.startswith(("kernel", "storage"))
    at = roles.loc[mine, "at_ns"].dropna().to_numpy(dtype=float)
    return float(max(end_ns, at[at < end_ns + ZONES_NS].max(initial=end_ns)))


def untimed(rows: pa.Table, *clocks: str) -> tuple[bool, bool]:
    """Whether steps were printed above the first line, and below the last, that bears a time of these clocks: then the begin, or the end, is not known.

    One step may stand before the stamp of its own line, and one behind it. The begin is that of the file that begins first. Neither is known where a file
    goes back by days: it is put together of others.
    """
    known = matching(coded(rows.column("clock")), clocks.__contains__) & rows.column("start_ns").is_valid().to_numpy()
    if not known.any():
        return False, False
    file, line = coded(rows.column("file")).codes, rows.column("line").fill_null(-1).to_numpy()
    works = matching(coded(rows.column("kind")), ("step", "iteration").__contains__)
    at = rows.column("start_ns").fill_null(0).to_numpy()
    stamped = pd.DataFrame({"file": file[known], "line": line[known], "at": at[known]})
    some = stamped.iloc[:: max(1, len(stamped) // _ENOUGH)].sort_values(["file", "line"])
    if (some.groupby("file")["at"].cummax() - some["at"] > ZONES_NS).any():
        return True, True
    steps = pd.DataFrame({"file": file[works], "line": line[works]}).drop_duplicates()
    ends = stamped.groupby("file").agg(first=("line", "min"), last=("line", "max"), begin=("at", "min"))
    began = ends["begin"].idxmin()
    above = (steps["file"] == began) & (steps["line"] < ends.at[began, "first"])
    below = steps["line"] > steps["file"].map(ends["last"]).fillna(np.inf)
    over = known & matching(coded(rows.column("kind")), "end".__eq__) & (at == at[known].max())
    below &= not over.any() or steps["file"].isin(np.unique(file[over]))  # what says in another file that a process ended comes after its steps
    return bool(above.sum() > 1), bool(below.sum() > 1)


@table("ledger", needs=("attempts", "spans", "losses", "deaths", "rows"))
def ledger(attempts: Attempts, spans: pd.DataFrame, losses: pd.DataFrame, deaths: list[Death], rows: pa.Table) -> pd.DataFrame:
    """One row an attempt, times in s, null where no clock tells: wall_s (first to last stamp), productive_s (steps that were kept), lost_s (steps made again),
    hang_s (waiting before the end), after_s (from the last step line to the end, where that is long), other_s (start-up and what is left), gap_s (from the
    end of the attempt before to its begin).

    The parts sum to wall_s. Steps are kept up to the last complete checkpoint; all of them where the run came to its end, none are known to be kept where no
    checkpoint line is.
    """
    out = []
    end_before: float | None = None
    local = not pa.compute.any(pa.compute.equal(rows.column("clock").cast(pa.string()), "utc")).as_py()
    begins = attempts.segments.groupby("attempt")["begin_ns"].min()
    work = frame(rows, ("step", "progress", "iteration"), ("attempt", "start_ns")).dropna()
    spoken = rows.select(["kind", "attempt", "clock", "start_ns", "file", "line"])
    for number in range(attempts.count):
        mine = attempts.segments[attempts.segments["attempt"] == number]
        begin, end = mine["begin_ns"].dropna().min(), mine["end_ns"].dropna().max()
        if local:
            said = last_word(deaths[number], end)
            end = said if not (begins.drop(index=number, errors="ignore").between(end, said)).any() else end
        above, below = untimed(spoken if attempts.count == 1 else spoken.filter(pc.equal(spoken.column("attempt"), number)), "log", "utc")
        begin, end = (np.nan if above else begin), (np.nan if below else end)
        wall = (float(end) - float(begin)) / 1e9 if not (pd.isna(begin) or pd.isna(end)) else np.nan
        productive = lost = np.nan
        if number in spans.index and not np.isnan(spans.at[number, "step_ns"]):
            step = float(spans.at[number, "step_ns"]) / 1e9
            made = int(spans.at[number, "last"]) - int(spans.at[number, "first"]) + 1
            gone = losses.at[number, "lost_steps"]
            if deaths[number].status == "completed":
                productive, lost = made * step, 0.0
            elif not pd.isna(gone):
                again = min(int(gone), made)
                productive, lost = (made - again) * step, again * step
        hanging = _hanging(deaths[number], begin, end)
        productive, lost = _fitted(productive, lost, wall - np.nan_to_num(hanging))
        other = max(0.0, wall - np.nansum([productive, lost, hanging])) if not np.isnan(wall) and not np.isnan(productive) else np.nan
        after = min(np.nan_to_num(other), max(0.0, _after(work.loc[work["attempt"] == number, "start_ns"], end) - np.nan_to_num(hanging)))
        other -= after
        gap = (float(begin) - end_before) / 1e9 if end_before is not None and not pd.isna(begin) else np.nan
        out.append((number, deaths[number].status, deaths[number].category, wall, productive, lost, hanging, after, other, gap))
        end_before = float(end) if not pd.isna(end) else end_before
    return pd.DataFrame(out, columns=["attempt", "status", "category", "wall_s", "productive_s", "lost_s", "hang_s", "after_s", "other_s", "gap_s"])


def _after(stepped: pd.Series, end: float) -> float:
    """Seconds from the last step line to the end of an attempt; 0 where they are no more than steps, a save or an evaluation take."""
    times = np.unique(stepped.to_numpy(dtype=np.int64))
    if pd.isna(end) or len(times) < 2:
        return 0.0
    gap = float(end) - float(times[-1])
    return gap / 1e9 if gap >= max(_STILL_NS, _STILL_TIMES * int(np.diff(times).max())) else 0.0


def _hanging(death: Death, begin: float, end: float) -> float:
    """Seconds from the begin of the wait to the last stamp; null where the attempt hung and no clock tells since when."""
    if death.hang_ns is not None and not pd.isna(end) and begin <= death.hang_ns <= end:
        return float(end - death.hang_ns) / 1e9
    return np.nan if death.status == "hung" or death.hang_ns is not None else 0.0


def _fitted(productive: float, lost: float, room_s: float) -> tuple[float, float]:
    """Times of the steps, which are their median times their number, made to fit into the time that there was; null where they are far from it."""
    steps = productive + lost
    if np.isnan(steps) or np.isnan(room_s) or steps <= room_s:
        return productive, lost
    if steps > _FITS * room_s:
        return np.nan, np.nan
    return productive * room_s / steps, lost * room_s / steps


def effective_ratio(ledger: pd.DataFrame) -> float | None:
    """Effective training time ratio: productive time over all time from the first stamp to the last (Meta, Revisiting Reliability, 2024)."""
    if not len(ledger) or ledger["productive_s"].isna().any() or ledger["wall_s"].isna().any():
        return None
    total = float(ledger["wall_s"].sum() + ledger["gap_s"].fillna(0).clip(lower=0).sum())
    return float(ledger["productive_s"].sum()) / total if total > 0 else None
