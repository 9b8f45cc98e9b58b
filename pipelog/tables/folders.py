"""Different jobs below one folder: which files are of which, told before anything else is made of them.

A job is what one submission trains, with all its nodes, ranks and restarts. Folders of hosts, ranks or attempts are one job.
"""

from __future__ import annotations

import itertools
import os
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import PurePosixPath

import numpy as np
import pandas as pd
import pyarrow as pa

from pipelog._text import listed
from pipelog.events import Events, Input, Skipped
from pipelog.tables import Tables, frame, of_kind, table
from pipelog.tables.attempts import STREAM, printed, times_by_file

_SETTINGS = re.compile(r"(?:config|args)\.|topology\.(?:world_size|pp|dp|tp|unique_params)$")
"""Facts that make a job: its layout, its model, its settings; not the hosts and versions it finds."""
_OF_THE_MOMENT = re.compile(
    r"port|rank$|_rank|time|stamp|iteration|consumed|run_?(?:name|id)|job_?id|\bpid|exp_?name|uuid|wandb|load|resume|save|exit"
    r"|key|token|secret|passw|credential|interval|print|profil|breakdown|tensorboard|dump|hostfile|nodes$|num_gpus|nproc"
)
"""Settings that a script changes by itself at every start, or that people change when they look closer: where from, what is printed."""
_LAYOUT = re.compile(r"topology\.(?:world_size|pp|dp|tp)$")
"""What is kept of a folder even where it states several: other starts of one job, or of several."""
_MODEL = re.compile(r"topology\.unique_params$|args\.(?:num_layers|hidden_size|ffn_hidden_size|num_attention_heads)$")
"""What no job that goes on changes: its checkpoints would not fit."""
_ATTEMPT = re.compile(r"(?i)(?:attempt|re-?try|re-?start|resum|incarnation|requeue)|^(?:try|start)?[-_. ]?\d+$|\d{4}[-_.]?\d{2}[-_.]?\d{2}")
"""Names that a launcher gives to the folders of one job's starts: attempt_1, restart-2, 0, 2024-03-05_14-02-10."""
_RANK_OR_HOST = re.compile(r"(?i)(?:node|rank|host|worker|gpu|task|pod|proc)[-_. ]?\d+")
_NOTHING_TIES = "nothing ties them to one another"
_ENOUGH = 3
"""Settings that two folders state alike, and none differently: fewer are alike by chance."""
_DEEPEST = 4
"""Folders of jobs in folders of jobs; deeper ones stay together."""
_PRINTED_EVERY = 10
"""DeepSpeed's steps_per_print, where one step alone was printed."""
_LONG_NS = 14 * 24 * 3600 * 10**9
"""Two weeks: a job that waits so long and comes back on other ranks is rather another one."""
_MOST = 256
"""More folders or files with starts of their own are ranks or hosts rather than jobs."""


@dataclass(slots=True)
class Job:
    """One job: the folders or files that hold it, as shown; all its files; differs: why it is none of those before it."""

    places: list[str]
    files: set[str]
    end_ns: float = np.nan
    differs: str = ""
    units: list[_Unit] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Unit:
    """A folder below the common one, or a log right in it, and what it says of itself."""

    place: str
    files: set[str]
    folder: bool
    settings: dict[str, frozenset[str]]
    begin_ns: float
    end_ns: float
    stepped: bool
    goes_on: bool
    done: bool
    planned: float
    times: dict[tuple[str, int], float]


@table("jobs", needs=("events", "inputs"))
def jobs(events: pa.Table, inputs: list[Input]) -> list[Job]:
    """The jobs in order of their beginning; a single one without places where nothing says that there are more.

    Two folders (or logs side by side) hold different jobs where both have a start or steps of their own, the later one goes on from no
    checkpoint, and they differ in what a job keeps: for folders layout, batch or settings, for logs of one folder the model; or
    the first had come to its end. At the same time: where they give the same steps different durations, or plan different numbers.
    """
    units, others = _units(events, inputs)
    found: list[Job] = []
    for unit in sorted(units, key=lambda u: (np.isnan(u.begin_ns), u.begin_ns)):
        reasons = [next((why for other in job.units if (why := _differs(other, unit))), "") for job in found]
        same = next((job for job, why in zip(reversed(found), reversed(reasons), strict=True) if not why), None)
        if same is None:
            same = Job([], set(), differs=reasons[-1] if reasons else "")
            found.append(same)
        same.places.append(unit.place)
        same.files |= unit.files
        same.end_ns = float(np.fmax(same.end_ns, unit.end_ns))
        same.units.append(unit)
    if len(found) < 2:
        return [Job([], {i.path for i in inputs})]
    parts = [part for job in found for part in _untied(job)]
    return parts + others if any(unit.folder for unit in units) else parts


def _untied(job: Job) -> list[Job]:
    """Where several jobs lie side by side, nothing that contradicts is not enough: what nothing ties to the rest of a job is one of its own."""
    parts: list[Job] = []
    for unit in job.units:
        home = next((p for p in parts if any(_tied(other, unit) for other in p.units)), None)
        if home is None:
            home = Job([], set(), differs=job.differs if not parts else _NOTHING_TIES)
            parts.append(home)
        home.places.append(unit.place)
        home.files |= unit.files
        home.end_ns = float(np.fmax(home.end_ns, unit.end_ns))
        home.units.append(unit)
    return parts


def apart(events: Events) -> list[Events]:
    """The events of each job; what belongs to no job in particular is with the newest, which comes last."""
    found: list[Job] = Tables(events)["jobs"]
    if len(found) < 2:
        return [events]
    last = _newest(found)
    nobody = Job([], {i.path for i in events.inputs} - {file for job in found for file in job.files})
    rest = [job for job in found if job is not last]
    return [*(_alone(events, job, [*found, nobody]) for job in rest), _alone(events, last, rest)]


def of_newest(events: Events) -> tuple[Events, list[str]]:
    """The events of the newest job alone, with a note for the reader; all of them, and none, where there is one job."""
    notes = []
    for _ in range(_DEEPEST):
        found: list[Job] = Tables(events)["jobs"]
        if len(found) < 2:
            break
        last = _newest(found)
        events = _alone(events, last, found)
        notes.append(_note(found, last))
    return events, notes


def _note(found: list[Job], last: Job) -> str:
    rest = [job for job in found if job is not last]
    why = next((j.differs for j in found if j.differs), "")
    which = "the last by name" if any(np.isnan(j.end_ns) for j in found if j.units) else "which ended last"
    out = listed((place for job in rest for place in job.places), 4)
    return (
        f"These files look like those of {sum(bool(j.units) for j in found)} different jobs, which are not mixed: this report speaks of {listed(last.places, 3)} alone, {which}. "
        f"Left out: {out} ({why}). For another job, name it: pipelog analyze …/{rest[-1].places[0]}"
    )


def _newest(found: list[Job]) -> Job:
    """The job that ended last, of those with a start or steps; the last by name where the times of some are not known."""
    found = [job for job in found if job.units]
    if any(np.isnan(j.end_ns) for j in found):
        return max(found, key=lambda j: [(0, int(w), "") if w.isdecimal() else (1, 0, w) for w in re.split(r"(\d{1,18})", j.places[-1])])
    return max(found, key=lambda j: j.end_ns)


def _alone(events: Events, job: Job, others: list[Job]) -> Events:
    """The events of one job, and of what belongs to none of the others. Files of those are listed as ignored, with the reason."""
    owner = {file: j for j in others if j is not job for file in j.files}
    inputs = [_left_out(i, owner[i.path]) if i.path in owner else i for i in events.inputs]
    names = events.table.column("file").combine_chunks()
    names = names.chunk(0) if isinstance(names, pa.ChunkedArray) else names
    codes = [n for n, name in enumerate(names.dictionary.to_pylist()) if name in owner]
    keep = ~np.isin(names.indices.to_numpy(zero_copy_only=False), codes)
    return Events(events.table.filter(pa.array(keep)), inputs, events.roots)


def _left_out(given: Input, job: Job) -> Input:
    why = f"ignored, because it is of another job ({listed(job.places, 3)})"
    return given if given.kind == "ignored" else Input(given.path, "ignored", given.bytes, skipped=[Skipped(None, why)])


# ---- what folders and logs say of themselves


def _units(events: pa.Table, inputs: list[Input]) -> tuple[list[_Unit], list[Job]]:
    """Folders and logs that have a start or steps of their own, whatever stands in such a folder belonging to it; and the other folders."""
    logs = {i.path for i in inputs if i.kind == "log"}
    if len(logs) < 2:
        return [], []
    base = os.path.commonpath([os.path.join("/", os.path.dirname(p)) for p in logs])  # noqa: PTH118, PTH120
    working = logs & set(of_kind(events, "start", "step", "iteration").column("file").unique().to_pylist())
    for _ in range(_DEEPEST):
        groups: dict[str, list[str]] = {}
        for given in inputs:
            if given.kind != "ignored" and (key := _key(given, base)) is not None:
                groups.setdefault(key, []).append(given.path)
        alive = {place: files for place, files in groups.items() if not working.isdisjoint(files)}
        folder = next(iter(alive), "")
        if len(alive) != 1 or not folder.endswith("/"):
            break
        base = f"/{folder.rstrip('/')}"  # notes beside the only folder
    numbered = Counter(re.sub(r"\d+", "#", name) for p in alive if _RANK_OR_HOST.search(name := PurePosixPath(p).name))
    if not 2 <= len(alive) <= _MOST or max(numbered.values(), default=0) > max(1, len(alive) // 2):
        return [], []
    named = {i.path for i in inputs if i.notes.get("rank_from_name") is not None}
    kinds = ("start", "step", "progress", "iteration", "end", "checkpoint")
    rows = dict(tuple(frame(events, kinds, ("kind", "name", "step", "value", "dur_ns", "file", "line")).groupby("file")))
    facts = frame(events, ("fact",), ("name", "text", "file")).dropna(subset=["name", "text"]).drop_duplicates()
    stated, times = dict(tuple(facts.groupby("file"))), times_by_file(events)
    made = []
    for place, files in alive.items():
        mine = [rows[f] for f in files if f in rows]
        alone = [printed(rows[f], 0, None) for f in files if f in rows and f not in named]
        spans = [times[f]["start_ns"] for f in files if f in times and len(times[f])]
        settings = _settings(stated[f] for f in files if f in stated)
        unit = _unit(place, files, pd.concat(mine), alone, spans, settings) if mine else None
        made += [unit] if unit else []
    own = {u.place for u in made}
    return made, [Job([place], set(files), differs=_NOTHING_TIES) for place, files in groups.items() if place.endswith("/") and place not in own]


def _key(given: Input, base: str) -> str | None:
    """The folder right below the common one; a log right in it itself, both outputs of a process being one; None for what belongs to no job alone."""
    whole = PurePosixPath("/") / given.path
    if not whole.is_relative_to(base):
        return None
    below = whole.relative_to(base)
    above = PurePosixPath(base).relative_to("/")
    if len(below.parts) > 1:
        return f"{above / below.parts[0]}/"
    return str(above / STREAM.sub("", below.name)) if given.kind == "log" and given.notes.get("rank_from_name") is None else None


def _unit(
    place: str,
    files: list[str],
    rows: pd.DataFrame,
    alone: list[tuple[float, dict[tuple[str, int], float]]],
    spans: list[pd.Series],
    settings: dict[str, frozenset[str]],
) -> _Unit | None:
    """None where nothing started or made a step."""
    steps = sorted(int(s) for s in rows[rows["kind"].isin(["step", "iteration"])]["step"].dropna().unique())
    if not steps and not (rows["kind"] == "start").any():
        return None
    planned = {p for p, _ in alone if not np.isnan(p)}
    every = min((b - a for a, b in itertools.pairwise(steps)), default=_PRINTED_EVERY)
    first = rows[rows["kind"].isin(["step", "iteration"])].groupby("file")["line"].min()
    loaded = rows[(rows["kind"] == "checkpoint") & rows["name"].isin(["loaded", "loading"])]
    return _Unit(
        place=place if place.endswith("/") or len(files) > 1 else files[0],
        files=set(files),
        folder=place.endswith("/"),
        settings=settings,
        begin_ns=float(min((s.min() for s in spans), default=np.nan)),
        end_ns=float(max((s.max() for s in spans), default=np.nan)),
        stepped=bool(steps),
        goes_on=bool((loaded["line"] < loaded["file"].map(first).fillna(np.inf)).any()) or bool(steps and steps[0] > every),
        done=_done(rows),
        planned=planned.pop() if len(planned) == 1 else np.nan,
        times={key: value for _, own in alone for key, value in own.items()},
    )


def _settings(stated: Iterable[pd.DataFrame]) -> dict[str, frozenset[str]]:
    """What a unit states with one value, and its layout whatever it states: two jobs may lie in one folder. 16 and 16.0 are the same."""
    every = list(stated)
    if not every:
        return {}
    facts = pd.concat(every)
    facts = facts[facts["name"].str.match(_SETTINGS) & ~facts["name"].str.contains(_OF_THE_MOMENT)]
    facts = facts.assign(text=facts["text"].str.strip().str.lower().str.replace(r"^(-?\d+)\.0$", r"\1", regex=True))
    facts = facts.drop_duplicates(["name", "text"])
    facts = facts[~facts["name"].duplicated(keep=False) | facts["name"].str.match(_LAYOUT)]
    return {str(name): frozenset(texts) for name, texts in facts.groupby("name")["text"]}


def _done(rows: pd.DataFrame) -> bool:
    """Whether all that is said of the end is that it was reached."""
    ends = rows[rows["kind"] == "end"]
    good = ends["name"].isin(["exit-success", "training-done"]) | ((ends["name"] == "exit-code") & (ends["value"] == 0))
    return len(ends) > 0 and bool(good.all())


# ---- whether two of them are one job


def _differs(a: _Unit, b: _Unit) -> str:
    """Why *b* is another job than *a*, which began before it; empty where nothing shows it."""
    timed = not (np.isnan(a.begin_ns) or np.isnan(b.begin_ns))
    if timed and b.begin_ns > a.end_ns:
        if all(u.folder and _ATTEMPT.search(PurePosixPath(u.place).name) for u in (a, b)):
            return ""
        if b.begin_ns - a.end_ns > _LONG_NS and (names := [n for n in _contradicted(a, b) if n.startswith("topology.")]):
            return _said(a, b, names)
        if a.done and a.stepped and b.stepped and not b.goes_on:
            return f"{a.place} had come to its end before {b.place} began with the first step"
        return _differing(a, b, model_alone=b.goes_on)
    twice = [k for k in a.times.keys() & b.times.keys() if a.times[k] != b.times[k]]
    if len(twice) > 1:
        return f"each gives step {min(step for _, step in twice):,} a time of its own"
    if not (np.isnan(a.planned) or np.isnan(b.planned)) and a.planned != b.planned:
        return f"{a.place} plans {a.planned:,.0f} steps, {b.place} {b.planned:,.0f}"
    return _differing(a, b, model_alone=not timed and (a.goes_on or b.goes_on))


def _tied(a: _Unit, b: _Unit) -> bool:
    """Whether something shows that two units without a contradiction are one job: settings that both state, the same hours of which one made the steps."""
    if len(a.settings.keys() & b.settings.keys()) >= _ENOUGH or all(_ATTEMPT.search(PurePosixPath(u.place).name) for u in (a, b)):
        return True
    together = a.begin_ns <= b.end_ns and b.begin_ns <= a.end_ns
    return together and not (a.stepped and b.stepped)


def _differing(a: _Unit, b: _Unit, *, model_alone: bool) -> str:
    """The setting that differs and says most; where it could be one job going on, or files of one folder: of the model alone."""
    names = _contradicted(a, b)
    if model_alone or not (a.folder and b.folder):
        names = [n for n in names if _MODEL.search(n)]
    return _said(a, b, names) if names else ""


def _contradicted(a: _Unit, b: _Unit) -> list[str]:
    return [n for n in a.settings.keys() & b.settings.keys() if a.settings[n].isdisjoint(b.settings[n])]


def _said(a: _Unit, b: _Unit, names: list[str]) -> str:
    stated = {n: (" and ".join(sorted(a.settings[n])), " and ".join(sorted(b.settings[n]))) for n in names}
    name = min(names, key=lambda n: (not n.startswith("topology."), not _MODEL.search(n), len("".join(stated[n])) > 40, n))
    short = name.partition(".")[2] or name
    return f"{short} is {_short(stated[name][0])} in {a.place} and {_short(stated[name][1])} in {b.place}"


def _short(value: str) -> str:
    return value if len(value) <= 30 else f"{value[:29]}…"
