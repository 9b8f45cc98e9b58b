"""The role of every error in the end of an attempt: initiating, cascade, teardown or benign, with the reason."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from pipelog._text import NAMELESS, count, short_host
from pipelog.postmortem.hangs import told_of_others
from pipelog.postmortem.kinds import KINDS, Kind, Role, Strength
from pipelog.postmortem.wording import filled, unstamped
from pipelog.tables.ending import LAUNCHER, REQUEUED, Ending
from pipelog.tables.topology import Topology

_TIER = {Strength.CAUSE: 0, Strength.SYMPTOM: 0, Strength.SIGNAL: 1, Strength.TRANSPORT: 1, Strength.TIMEOUT: 1, Strength.ECHO: 2, Strength.WORD: 3}
"""Within a tier the earliest decides: a signal before a timeout is its cause, one after it its consequence."""
_SURVIVED = 2
"""Steps made after an error from which on it was survived: one line may have been under way when it came."""
_MOST_GROUPS = 60
_NUMBERED = r"\bXid(?: \([^)]*\): |=)(\d+)"
"""Of what a number tells apart (its number is its meaning) each is a group of its own."""
_WRITER = re.compile(r"^(?:\s*(?:\[[^\]]{0,120}\]|[\w.-]{1,60}:))+\s*")
"""What stands before the words of a line: `node-1: [rank3]: [PG ID 0 PG GUID 0(default_pg) Rank 3] `."""
_SAME = 40
"""Characters in which such lines agree."""
AWAITED = frozenset({"rendezvous", "store-barrier"})
"""Kinds that those who wait for others say."""
_FEW_LINES = 12
"""Lines that others may still write behind the last one of a process."""
_WORDS = frozenset({"level", "bare-exception"})
"""A traceback beats what a logger calls an error; and what no step follows beats what one step followed."""
_UNEXPLAINED = frozenset({"nccl-abort", "left-with-code"})
"""An end that says nothing gives way to what the same process said just before it."""
_LAST_WORDS = frozenset({"bare-exception", "traceback-cut"})
"""What a process prints when it dies, in part."""
_HALF_HOUR_NS, _NEAR_NS = 1800 * 10**9, 90 * 10**9
"""Zones differ by whole half hours; a kernel's line and the end that it caused stand within a minute or so."""
_FATAL = frozenset({"python-exception", "cpp-terminate", "nccl-abort", "fatal-python"})
"""Rows after which a process is gone, whether a launcher says so or not."""


def survived(errors: pd.DataFrame, work: pd.DataFrame, ending: Ending) -> pd.DataFrame:
    """The errors with `why`; those after which training went on are benign."""
    roles = errors.copy()
    roles["why"], roles["went_on"] = "", 0
    work = work.dropna(subset=["step"])
    for file, unordered in work.groupby("file"):
        spots = np.flatnonzero((roles["file"] == file).to_numpy() & (roles["strength"] != int(Strength.SIGNAL)).to_numpy())
        if not len(spots):
            continue
        mine = unordered.sort_values("line")
        steps = mine["step"].to_numpy(dtype=np.int64)
        stamps = np.fmax.accumulate(mine["start_ns"].astype("Float64").to_numpy(dtype=float, na_value=np.nan))
        after = np.searchsorted(mine["line"].to_numpy(), roles["line"].to_numpy()[spots], side="right")
        # what was held back in a buffer bears an earlier time than what was written before it
        held = roles["since_ns"].to_numpy(dtype=float)[spots]
        known = np.nan_to_num(stamps, nan=np.inf if np.isnan(stamps).all() else -np.inf)
        after = np.where(np.isnan(held), after, np.maximum(after, np.searchsorted(known, held)))
        went_on = _distinct_from(steps)[after]
        roles.loc[roles.index[spots], "went_on"] = went_on
        for place, steps_after in zip(roles.index[spots], went_on.tolist(), strict=True):
            if steps_after >= _SURVIVED or (steps_after and ending.status == "completed"):
                roles.loc[place, ["role", "why"]] = [Role.BENIGN.value, f"training went on: {count(steps_after, 'step line')} after it"]
    _elsewhere(roles, work, ending)
    if ending.status == "failed":  # then the job is started again because it failed
        again = roles["name"].isin(REQUEUED) & (roles["file"] == ending.file) & (roles["line"] > (ending.line or 0))
        roles.loc[again, ["role", "why"]] = [Role.TEARDOWN.value, "the job was put back into the queue after it had failed"]
    return roles


def before_the_start(roles: pd.DataFrame, starts: pd.DataFrame) -> None:
    """An exception that nobody's prefix claims, above the first line of the launcher in its file: the job was started after it, so anything else counts more.

    Notices of modules that were built for another version are printed like this, and so is a step before the training that failed.
    """
    first = starts.groupby("file")["line"].min()
    early = (roles["name"] == "python-exception") & roles["rank"].isna() & roles["host"].isna() & (roles["line"] < roles["file"].map(first))
    roles.loc[early.fillna(False), "went_on"] = roles["went_on"].clip(lower=1)


def _elsewhere(roles: pd.DataFrame, work: pd.DataFrame, ending: Ending) -> None:
    """Of kernel logs and the like: what training survived, and what came when the run had already ended, is benign.

    Such a log may be in another zone than the job's; where the two differ by whole half hours, nothing is concluded from the order.
    """
    foreign = roles["name"].str.startswith(("kernel", "storage")) & roles["at_ns"].notna() & ~roles["file"].isin(work["file"])
    if not foreign.any():
        return
    at = roles["at_ns"].astype("Float64").to_numpy(dtype=float, na_value=np.nan)
    steps = np.sort(work.dropna(subset=["start_ns"]).drop_duplicates("step")["start_ns"].to_numpy(dtype=np.int64))
    ends = roles.loc[roles["code"].notna() & roles["at_ns"].notna(), "at_ns"]
    over = float(ending.at_ns if ending.at_ns is not None else ends.min() if len(ends) else np.nan)
    if np.isnan(over):
        # the step after the last that was printed was under way for as long as steps take to be printed
        over = float(steps[-1]) + (float(np.median(np.diff(steps))) if len(steps) > 1 else 0.0) if len(steps) else np.nan
        said = at[~foreign.to_numpy() & ~np.isnan(at)]  # or stood still until somebody complained
        over = float(np.fmax(over, said.max(initial=-np.inf))) if len(steps) else np.nan
    off = (at - over) % _HALF_HOUR_NS
    shifted = (np.abs(at - over) > _NEAR_NS) & (np.minimum(off, _HALF_HOUR_NS - off) <= _NEAR_NS)
    went_on = len(steps) - np.searchsorted(steps, np.nan_to_num(at, nan=np.inf))
    mine = foreign.to_numpy() & ~shifted
    roles.loc[mine & (at > over + _NEAR_NS), ["role", "why"]] = [Role.BENIGN.value, "it came after the end"]
    roles.loc[mine & (went_on >= _SURVIVED), ["role", "why"]] = [Role.BENIGN.value, "training went on after it"]


def of_other_hosts(roles: pd.DataFrame, topology: Topology) -> None:
    """What the kernel of a host says on which no rank of the job runs is benign. Full names and short ones are the same host."""
    known = {short_host(h) for h in topology.ranks["host"] if isinstance(h, str)} if len(topology.ranks) else set()
    if not known or topology.ranks["host"].isna().any() or known & NAMELESS:
        return
    away = roles["name"].str.startswith(("kernel", "storage")) & roles["host"].map(
        lambda h: isinstance(h, str) and short_host(h) not in known
    ).astype(bool)
    roles.loc[away, ["role", "why"]] = [Role.BENIGN.value, "no rank of the job runs on that host"]


def late_launches(roles: pd.DataFrame, work: pd.DataFrame) -> None:
    """What could not be started after steps were made, or after the run had failed (`command not found` of the script's next line), is no cause."""
    begins = roles["role"] == Role.INITIATING.value
    launch = begins & (roles["category"] == "launch")
    others = roles[begins & ~launch & (roles["strength"] <= int(Strength.TIMEOUT))]
    first = pd.concat([others.groupby("file")["line"].min(), work.dropna(subset=["step"]).groupby("file")["line"].min()]).groupby(level=0).min()
    late = roles["line"] > roles["file"].map(first)
    roles.loc[launch & late.fillna(False), ["role", "why"]] = [Role.CASCADE.value, "the run had started, or had failed, before"]


def of_launchers(roles: pd.DataFrame) -> None:
    """What a launcher's own script raises behind the end of a rank in its file is no cause: it fails while it takes the others down."""
    ended = roles[roles["code"].notna() | (roles["name"] == "killed")]
    theirs = (roles["name"] == "python-exception") & roles["own"].astype("string").str.contains(LAUNCHER.pattern).fillna(False)
    late = theirs & (roles["line"] > roles["file"].map(ended.groupby("file")["line"].min())).fillna(False)
    roles.loc[late & (roles["role"] == Role.INITIATING.value), ["role", "why"]] = [Role.CASCADE.value, "the launcher's own, while it took ranks down"]


def harmless_alone(roles: pd.DataFrame) -> None:
    """What only counts together with something else is benign without it."""
    met = set(roles["error"])
    lone = [error for error in met if (follows := KINDS[error].only_with) is not None and follows not in met]
    roles.loc[roles["error"].isin(lone), ["role", "why"]] = [Role.BENIGN.value, "said on healthy machines too, and nothing followed from it"]


def _distinct_from(steps: NDArray[np.int64]) -> NDArray[np.int64]:
    """How many different steps stand at each place and behind it, and none behind the last: one number more than steps."""
    _, back = np.unique(steps[::-1], return_index=True)
    lasts = np.zeros(len(steps) + 1, dtype=np.int64)
    lasts[len(steps) - 1 - back] = 1
    return lasts[::-1].cumsum()[::-1]


def primary_of(roles: pd.DataFrame, *, bad_end: bool, weakest: Strength = Strength.TIMEOUT) -> int | None:
    """Place of the line that began it: of the strongest tier that there is, the earliest."""
    if not bad_end:  # what stands in the midst of a log, without the traceback that it would be the end of, is told or quoted by somebody
        roles = roles[~((roles["name"] == "bare-exception") & (roles["below"] > _FEW_LINES))]
    found = _earliest(roles[roles["role"] == Role.INITIATING.value], weakest)
    if weakest is not Strength.TIMEOUT:
        return found
    if found is None and bad_end:  # nothing else explains the end: an error that seemed survived, held-back lines behind it
        found = _earliest(
            roles[(roles["role"] == Role.BENIGN.value) & (roles["why"] != "") & (roles["name"] == "python-exception")], Strength.SYMPTOM, last=True
        )
    if found is None:
        echoes = roles[roles["role"] == Role.CASCADE.value]
        found = _earliest(echoes if bad_end else echoes[echoes["name"].isin(_FATAL)], Strength.ECHO)
    left = roles[roles["role"].isin([Role.INITIATING.value, Role.CASCADE.value])]
    if found is None:  # a process that prints the name of an exception, and nothing after it, has mostly died of it
        found = _earliest(left if bad_end else left[left["name"].isin(_LAST_WORDS) & (left["went_on"] == 0)], Strength.WORD)
    return found


def _earliest(rows: pd.DataFrame, weakest: Strength, *, last: bool = False) -> int | None:
    rows = rows[rows["strength"] <= int(weakest)]
    if not len(rows):
        return None
    less = rows["name"].isin(_WORDS) | (rows["went_on"] > 0) | rows["error"].isin(_UNEXPLAINED)
    least = (rows["name"] == "level") | ((rows["name"] == "bare-exception") & (rows["went_on"] > 0))
    tier = rows["strength"].map({int(k): v for k, v in _TIER.items()}) + 0.5 * less + 0.25 * least
    rows = rows[tier == tier.min()]
    several = len(set(rows["file"])) > 1
    if (rows["name"] == "child-root-cause").any():  # of its children an agent knows which one it saw first
        rows = rows[rows["name"] != "child-failed"]
    when = rows["at_ns"].astype("Float64").to_numpy(dtype=float, na_value=np.nan)
    cause = (rows["strength"] == int(Strength.CAUSE)).to_numpy()  # without a time of its own: as early as may be, a symptom as late
    when = np.where(np.isnan(when), np.where(cause, rows["since_ns"].to_numpy(dtype=float), rows["until_ns"].to_numpy(dtype=float)), when)
    if several and np.isnan(when).any():  # a clock that counts from the start of the machine: a cause on a rank is as old as the symptom it explains
        of_rank = pd.Series(np.where(cause, np.nan, when), rows.index).groupby(rows["rank"]).transform("min").to_numpy(dtype=float, na_value=np.nan)
        when = np.where(np.isnan(when) & cause, of_rank, when)
    bounds_alone = several and rows["at_ns"].isna().all() and not np.isnan(when).all()  # what stands in a file without any time may be as old as they
    unknown = np.nanmin(when) if bounds_alone else np.inf
    until = np.where(np.isnan(when), rows["until_ns"].to_numpy(dtype=float), 0.0)  # where nothing says how old a cause is: whose file went on first
    until = np.zeros(len(rows)) if np.isnan(until).any() else until
    ranked = rows.assign(_when=np.where(np.isnan(when), unknown, when) if several else 0.0, _until=until, _bare=np.isnan(when))
    ranked["_awaits"] = rows["error"].isin(AWAITED)  # who did not come has a reason
    ranked = ranked.sort_values(["_when", "_until", "strength", "_awaits", "_bare", "order", "line"] if several else ["order", "line"], kind="stable")
    return int(ranked.index[-1 if last else 0])


def alike(roles: pd.DataFrame, first: pd.Series) -> pd.DataFrame:
    """The first line and those of other ranks that say the same, but for numbers."""
    mine = roles[(roles["error"] == first["error"]) & (roles["name"] == first["name"]) & (roles["role"] == first["role"])]
    form = mine["text"].map(_form)
    same = mine[form == _form(first["text"])]
    return pd.concat([same.loc[[first.name]], same.drop(index=first.name)])


def _form(text: str) -> str:
    return re.sub(r"0x[0-9a-f]+|\d+(?:\.\d+)?|\b[KMGT]i?B\b|\bbytes\b", "#", text.partition("\n")[0])


def _worded(name: str, text: str) -> str:
    """What lines that say no more than that something is wrong have in common: "like" the first of them are those that say the same."""
    return f"{name} {_form(_WRITER.sub('', unstamped(text)))[:_SAME]}"


def folded(roles: pd.DataFrame, same: pd.Index, first: pd.Series, kind: Kind) -> pd.DataFrame:
    """Everything that the first line explains follows from it."""
    rest = roles.index.difference(same)
    above = (roles["went_on"] > 0) & (roles["file"] == first["file"]) & (roles["line"] < first["line"])
    earlier = roles.index.isin(rest) & (roles["role"] == Role.INITIATING.value) & above
    roles.loc[earlier, ["role", "why"]] = [Role.BENIGN.value, "it stands above the first error, and the run went on after it"]
    begins = roles.index.isin(rest) & (roles["role"] == Role.INITIATING.value)
    roles.loc[begins, ["role", "why"]] = [Role.CASCADE.value, f"after the first error ({kind.name}, {first['file']}:{first['line']})"]
    roles.loc[same, ["role", "why"]] = [Role.INITIATING.value, "the earliest of the lines that explain most"]
    follows = roles.index.isin(rest) & (roles["role"] == Role.CASCADE.value) & (roles["why"] == "")
    roles.loc[follows, "why"] = "what others notice when one is gone"
    ends = roles.index.isin(rest) & (roles["role"] == Role.TEARDOWN.value) & (roles["why"] == "")
    roles.loc[ends, "why"] = "taken down with the rest"
    return roles


def consequences_of(roles: pd.DataFrame, began: tuple[int, ...] = ()) -> tuple[dict[str, Any], ...]:
    """Cascade and teardown, grouped by what they are: how many lines, of which ranks, the first of them.

    A launcher says of every process that it kills it, also of those that had ended: who *began* it was not taken down with the rest.

    Those who wait in vain are never the ones who began it: all of them are counted, also where their lines prove that it hangs.
    """
    rest = roles[roles["role"].isin([Role.CASCADE.value, Role.TEARDOWN.value])]
    rest = rest[~((rest["name"] == "killed") & rest["rank"].isin(began))]
    out = []
    meant = rest["text"].str.extract(_NUMBERED, expand=False).where(rest["error"] == "xid-application").fillna("")
    words = rest[rest["error"] == "word"]
    meant[words.index] = [_worded(name, text) for name, text in zip(words["name"], words["text"], strict=True)]
    for (role, error, _), found in rest.groupby(["role", "error", meant], sort=False):
        row, mine = found.iloc[0], found
        says = KINDS[str(error)].says
        if KINDS[str(error)].category == "hang":
            mine = pd.concat([roles[(roles["role"] == Role.INITIATING.value) & (roles["error"] == error)], mine])
            mine = mine[mine["name"] != "nccl-desync"]  # a report names those who are waited for
            if not len(mine):
                continue
            told = told_of_others(mine)
            mine = mine if told.all() else mine[~told]
            row = mine.iloc[0]
        out.append(
            {
                "what": filled(says, KINDS[str(error)], row["said"]),
                "role": role,
                "count": len(mine.drop_duplicates(["file", "line"])),  # of one line there may be several rows
                "ranks": sorted(set(mine["rank"].dropna().astype(int).tolist())),
                "file": row["file"],
                "line": int(row["line"]),
                "text": None,
            }
        )
    return tuple(out[:_MOST_GROUPS])
