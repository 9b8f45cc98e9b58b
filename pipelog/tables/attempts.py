"""Starts of the job: which rows belong to which attempt, in one file or over many."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import pandas as pd
import pyarrow as pa

from pipelog.events import Input
from pipelog.tables import coded, frame, matching, of_kind, table

_STRONG = frozenset({"launcher", "torchrun", "restart"})
_OVER = frozenset({"exit-code", "exit-success"})
_OF_SSH = 255
"""What ssh leaves with where it could not reach a node, or lost it."""
_ACTIVITY = ("step", "progress", "iteration", "end", "error")
_DEADLY = frozenset({"python-exception", "cpp-terminate", "nccl-watchdog", "gpu-fault", "fatal-python"})
"""Errors that are a sign that something ran and broke: warnings and words are not."""
_LAUNCHED = frozenset({*_STRONG, "shell", "node"})
_SETTING_UP = ("start", "comm_init", "place", "stage", "fact", "checkpoint")
_SET_UP = re.compile(r"^(?:accelerator|backend|version|topology|config|args|resume)(?:\.|$)")
_LOADED = frozenset({"loading", "loaded", "missing"})
_STAMP_IN_NAME = re.compile(r"(?:^|/)(\d{14})_rank\d+\.log$")
_ATTEMPT_IN_NAME = re.compile(r"(?:^|/)attempt_(\d+)/")
STREAM = re.compile(r"(?:std)?(?:out|err)(?:or|put)?(?=[._-]|\d*$)|(?<=\.)[oe](?=\d+$)")
"""What tells the two outputs of one process apart: slurm-7.out and slurm-7.err, stdout.log and stderr.log, train.o812 and train.e812."""
_LINES = 2**40
"""More lines than a file has: number of the file times this plus the line sorts rows by file and line."""
_GAP_NS = 120 * 10**9
"""Files of one start begin within two minutes of one another: the launcher of each node stamps its own start."""


_FEW_ABOVE, _LAUNCHING_NS, _PAUSE_NS = 12, 30 * 10**9, 60 * 10**9
"""A launcher says what it imports and does not find within seconds, before the command that it runs; so soon nobody starts a job again."""
_WAIT_NS = 3600 * 10**9
"""Rendezvous and store barriers wait for 10 to 30 minutes unless told otherwise."""


@dataclass(frozen=True, slots=True)
class Attempts:
    """segments: one row a file and attempt: file, first_line, last_line (null: to the end), attempt, begin_ns, end_ns. count: how many.

    jobs: whether the files speak of different jobs, by what they say of themselves; then each is an attempt of its own.
    """

    segments: pd.DataFrame
    count: int
    jobs: bool = False


@table("attempts", needs=("events", "inputs"))
def attempts(events: pa.Table, inputs: list[Input]) -> Attempts:
    """Cut each log where a start-up line follows work, or where the step number goes back; join the pieces of files by time.

    A start is a launcher's first line, or the engine's after steps were made. Pieces of different files belong together where
    their times overlap; files without times follow the names that launchers give (`20240305140210_rank3.log`, `attempt_1/`).
    """
    logs = [i.path for i in inputs if i.kind == "log"]
    rows = frame(events, ("start", *_ACTIVITY), ("kind", "name", "step", "value", "dur_ns", "rank", "host", "file", "line", "start_ns"))
    worked = rows.loc[rows["kind"] != "start", ["kind", "step", "file", "line"]]
    rows = rows[(rows["kind"] != "error") | rows["name"].isin(_DEADLY)].sort_values(["file", "line"], kind="stable")
    by_file = dict(tuple(rows.groupby("file", sort=False)))
    times, ends = times_by_file(events), times_by_file(events, bare=True)
    pieces = []
    for path in logs:
        cuts = [0, *(_cuts(by_file[path]) if path in by_file else [])]
        if len(cuts) > 1:
            cuts[1:] = _set_up_before(cuts[1:], worked[worked["file"] == path], by_file[path], events, path, times.get(path))
        for first, last in zip(cuts, [*cuts[1:], None], strict=True):
            begin, end = _span(times.get(path), first, last)
            if begin is None and (match := _STAMP_IN_NAME.search(path)):
                begin = end = pd.Timestamp(match.group(1)).value
            named = _ATTEMPT_IN_NAME.search(path)
            begun, over = _begun_and_over(by_file.get(path), first, last)
            number = int(named.group(1)) if named else None
            host = _waiting_host(by_file.get(path), times.get(path), first) if len(cuts) == 1 else None
            pieces.append((path, first, last, begin, end, *_span(ends.get(path), first, last), number, begun, over, host))
    columns = ["file", "first_line", "last_line", "begin_ns", "end_ns", "least_ns", "most_ns", "named", "begun", "over_ns", "waiting"]
    table_ = pd.DataFrame(pieces, columns=columns).astype({"first_line": "int64"})
    numbers = _numbers(table_)
    named_ranks = {i.path for i in inputs if i.notes.get("rank_from_name") is not None}
    table_["attempt"], jobs = _apart(table_, numbers, by_file, named_ranks)
    count = int(table_["attempt"].max()) + 1 if len(table_) else 1
    for name, known in (("begin_ns", "least_ns"), ("end_ns", "most_ns")):
        table_[name] = table_[known].where(table_[known].notna(), table_[name])
    return Attempts(table_.drop(columns=["least_ns", "most_ns", "named", "begun", "over_ns", "waiting"]), count, jobs)


def _cuts(rows: pd.DataFrame) -> list[int]:
    """Lines at which a new attempt begins in one file."""
    rows = _by_printer(rows)
    if _at_one_go(rows):
        return []
    cuts: list[int] = []
    strong = weak = begun = False  # seen since the last cut: any sign of work; steps or ends; a start
    last_step: dict[str, int] = {}
    traced: int | None = None  # the shell's trace of the command that starts: it belongs to the start that follows, and is none by itself
    for kind, name, step, value, line in zip(*(rows[c] for c in ("kind", "name", "step", "value", "line")), strict=True):
        if kind == "start" and name == "shell":
            traced = int(line)
            continue
        if kind == "start":
            # words before the first start are the script's around it (a check of the machine), not a start that failed
            if (strong and begun and name in _STRONG) or weak:
                cuts.append(int(line) if traced is None else traced)
                strong = weak = False
                last_step = {}
            begun, traced = True, None
            continue
        strong, traced = True, None
        weak = weak or (kind != "error" and not (name == "exit-code" and value == _OF_SSH))  # the launchers of other nodes start after it
        if kind == "step" and not pd.isna(step):
            if int(step) < last_step.get(name, -1):
                cuts.append(int(line))
                last_step = {}
            last_step[name] = int(step)
    return cuts


def _set_up_before(cuts: list[int], worked: pd.DataFrame, rows: pd.DataFrame, events: pa.Table, path: str, times: pd.DataFrame | None) -> list[int]:
    """The cuts, moved up to the first line of the start-up that each follows: what the processes say of themselves after the last sign of work.

    The word of a launcher that begins the attempt is its first line already, but for the lines right above it that are within seconds of it
    while a pause lies above them (see `_with_its_launcher`): other lines there may be the end of the attempt before.
    """
    setting_up = frame(events.filter(pa.compute.equal(events.column("file").cast(pa.string()), path)), _SETTING_UP, ("kind", "name", "line"))
    kind, name = setting_up["kind"], setting_up["name"].astype(str)
    said = ~kind.isin(["fact", "checkpoint"]) | ((kind == "fact") & name.str.match(_SET_UP)) | ((kind == "checkpoint") & name.isin(_LOADED))
    lines = np.sort(setting_up.loc[said, "line"].to_numpy())
    launched = set(rows.loc[(rows["kind"] == "start") & rows["name"].isin(_LAUNCHED), "line"])
    return [
        _with_its_launcher(cut, times) if cut in launched else _begun_above(cut, worked[worked["line"] < cut].sort_values("line"), lines)
        for cut in cuts
    ]


def _with_its_launcher(cut: int, times: pd.DataFrame | None) -> int:
    """The first of the stamped lines right above a launcher's first word that are within a few seconds of it, where a pause lies above them."""
    if times is None:
        return cut
    above = times[times["line"] <= cut].sort_values("line").drop_duplicates("line").tail(_FEW_ABOVE)
    lines, at = above["line"].to_numpy(), above["start_ns"].to_numpy(dtype=np.int64)
    if not len(lines) or lines[-1] != cut:
        return cut
    near = at[-1] - at <= _LAUNCHING_NS
    first = len(near) - int(np.argmin(near[::-1])) if not near.all() else len(near)
    return int(lines[first]) if 0 < first < len(lines) and at[first] - at[first - 1] > _PAUSE_NS else cut


def _begun_above(cut: int, before: pd.DataFrame, lines: np.ndarray) -> int:
    """The first line above a cut that is none of the attempt before. lines: what processes say of themselves while they start.

    DeepSpeed prints a step twice, `step=205, skipped=0, …` and `steps: 205 loss: …`: the first of the two has gone back, too.
    """
    reached = before.loc[before["kind"] == "step", "step"].max()
    for kind, step, line in zip(*(before[c].to_numpy()[::-1] for c in ("kind", "step", "line")), strict=True):
        if kind not in ("progress", "iteration") or pd.isna(step) or not step < reached:
            since = lines[(lines < cut) & (lines > line)]
            return int(since[0]) if len(since) else cut
        cut = int(line)
    return cut


def _by_printer(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows with the rank in the name of step lines that several ranks print (torchtitan): they go forward rank by rank."""
    steps = rows[(rows["kind"] == "step") & rows["rank"].notna()]
    ranks = steps.groupby("name", observed=True)["rank"].nunique()
    mine = steps.index[steps["name"].isin(ranks[ranks > 1].index)]
    if not len(mine):
        return rows
    rows = rows.astype({"name": object})
    rows.loc[mine, "name"] = rows.loc[mine, "name"].astype(str) + " " + rows.loc[mine, "rank"].astype(str)
    return rows


def _at_one_go(rows: pd.DataFrame) -> bool:
    """Whether nothing starts after something was done, and no step goes back: as in nearly every file, however long."""
    kind = rows["kind"].to_numpy()
    worked = np.flatnonzero(kind != "start")
    if len(worked) and (kind[worked[0] :] == "start").any():
        return False
    steps = rows.loc[(kind == "step") & rows["step"].notna().to_numpy(), ["name", "step"]]
    return not len(worked) or not (steps.groupby("name", dropna=False)["step"].diff().astype("float64") < 0).any()


def times_by_file(events: pa.Table, *, bare: bool = False) -> dict[str, pd.DataFrame]:
    """Line and time of every stamped row, by file; not of errors, which kernel logs have from long before the job, and error files in UTC.

    bare: with the times of lines that nothing but their time is known of. What starts together is told without them: anything may stand around a job.
    """
    stamped = events.select(["kind", "file", "line", "start_ns", "clock"])
    other = ("error",) if bare else ("error", "stamp")
    of_log = matching(coded(stamped.column("clock")), ("log", "utc").__contains__) & ~matching(coded(stamped.column("kind")), other.__contains__)
    stamped = stamped.filter(pa.array(of_log & stamped.column("start_ns").is_valid().to_numpy()))
    data = pd.DataFrame(
        {
            "file": stamped.column("file").cast(pa.string()).to_pandas(),
            "line": stamped.column("line").to_numpy(),
            "start_ns": stamped.column("start_ns").to_numpy(),
        }
    )
    return dict(tuple(data.groupby("file", sort=False)))


def _span(rows: pd.DataFrame | None, first: int, last: int | None) -> tuple[int | None, int | None]:
    if rows is None:
        return None, None
    line = rows["line"].to_numpy()
    times = rows["start_ns"].to_numpy()[(line >= first) & (line < (last if last is not None else np.iinfo(np.int64).max))]
    return (int(times.min()), int(times.max())) if len(times) else (None, None)


def _begun_and_over(rows: pd.DataFrame | None, first: int, last: int | None) -> tuple[bool, float]:
    """Whether a launcher starts a job in a piece of a file, and when (ns) the last process of it ended; NaN where nothing says so."""
    if rows is None:
        return False, np.nan
    mine = rows[(rows["line"] >= first) & (rows["line"] < (np.inf if last is None else last))]
    begun = ((mine["kind"] == "start") & mine["name"].isin(_STRONG)).any()
    over = mine.loc[(mine["kind"] == "end") & mine["name"].isin(_OVER), "start_ns"].dropna()
    return bool(begun), float(over.max()) if len(over) else np.nan


def _waiting_host(rows: pd.DataFrame | None, times: pd.DataFrame | None, first: int) -> str | None:
    """The host that wrote a file in which the first time that is told is of an end: when it began is not known, and it may have waited long for others."""
    if rows is None or times is None:
        return None
    ends = rows.loc[rows["kind"] == "end", "line"]
    hosts = rows["host"].dropna().unique()
    waited = len(ends) and len(hosts) == 1 and not (rows["kind"].isin(["step", "iteration", "progress"])).any()
    return str(hosts[0]) if waited and (times["line"] >= max(first, ends.min())).all() else None


def _numbers(pieces: pd.DataFrame) -> list[int]:
    """The attempt of each piece."""
    order = pieces.groupby("file").cumcount().to_numpy()  # the how-manieth of its own file
    if not len(pieces):
        return []
    named = pieces["named"]
    if named.notna().any():
        return [int(n) if not pd.isna(n) else int(o) for n, o in zip(named, order, strict=True)]
    timed = pieces["begin_ns"].notna().to_numpy()
    per_file = pieces["file"].map(pieces["file"].value_counts()).to_numpy()
    if not timed.any() or (per_file.max() == 1 and timed.sum() <= 1):
        return [int(o) for o in order]
    clusters = _clusters(pieces[timed])
    numbers = []
    for i, o in enumerate(order.tolist()):
        if timed[i]:
            begin = int(pieces["begin_ns"].iloc[i])
            numbers.append(max((n for n, (first, _) in enumerate(clusters) if first <= begin), default=0))
        else:  # without times: by its place in the file where the file has a piece for every attempt, else the last
            numbers.append(o if per_file[i] == len(clusters) else len(clusters) - 1)
    return numbers


def _apart(pieces: pd.DataFrame, numbers: list[int], by_file: dict[str, pd.DataFrame], named_ranks: set[str]) -> tuple[list[int], bool]:
    """The attempts, with files of different jobs told apart: they plan different numbers of steps, or give one step two durations."""
    groups: dict[int, list[tuple[float, dict[tuple[str, int], float], list[int]]]] = {}
    for place, (file, first, last, number) in enumerate(zip(pieces["file"], pieces["first_line"], pieces["last_line"], numbers, strict=True)):
        planned, times = printed(by_file.get(file), int(first), last)
        times = {} if file in named_ranks else times
        for index, (total, known, members) in enumerate(groups.setdefault(number, [])):
            differ = [k for k in known.keys() & times.keys() if known[k] != times[k]]
            if (np.isnan(planned) or np.isnan(total) or planned == total) and len(differ) < 2:
                groups[number][index] = (total if np.isnan(planned) else planned, known | times, [*members, place])
                break
        else:
            groups[number].append((planned, times, [place]))
    if all(len(g) <= 1 for g in groups.values()):
        return numbers, False
    out = list(numbers)
    order = [members for number in sorted(groups) for _, _, members in groups[number]]
    for attempt, members in enumerate(order):
        for place in members:
            out[place] = attempt
    return out, True


def printed(rows: pd.DataFrame | None, first: int, last: float | None) -> tuple[float, dict[tuple[str, int], float]]:
    """(planned number of steps, duration of each step) as a piece of a file prints them."""
    if rows is None:
        return np.nan, {}
    inside = rows[(rows["line"] >= first) & (rows["line"] < (np.inf if last is None or pd.isna(last) else last))]
    planned = inside.loc[inside["kind"] == "iteration", "value"].dropna().unique()
    one_prints = inside["name"].isin(["deepspeed", "megatron", "neox"])  # of lines that every rank prints, each has its own duration
    steps = inside[(inside["kind"] == "step") & one_prints].dropna(subset=["step", "dur_ns"])
    times = {(str(n), int(s)): float(d) for n, s, d in zip(steps["name"], steps["step"], steps["dur_ns"], strict=True)}
    return (float(planned[0]) if len(planned) == 1 else np.nan), times


def _clusters(timed: pd.DataFrame) -> list[tuple[int, int]]:
    """Spans of time of the attempts. Pieces of one file are never of one attempt, the two outputs of one process are, however late one begins.

    Where a launcher starts a job after all processes of another piece have ended, that is the next attempt, however soon it is. A host that waited in
    vain for others says so when its time is up: its file belongs to theirs.
    """
    spans: list[tuple[int, int, set[str], set[str], float]] = []
    columns = ("file", "begin_ns", "end_ns", "begun", "over_ns", "waiting")
    hosts: set[str] = set()
    for file, begin, end, begun, over, host in sorted(zip(*(timed[c] for c in columns), strict=True), key=lambda p: int(p[1])):
        process = STREAM.sub("", file)
        waited = isinstance(host, str) and bool(hosts) and host not in hosts and bool(spans) and int(begin) <= spans[-1][1] + _WAIT_NS
        near = bool(spans) and (waited or (int(begin) <= spans[-1][1] + _GAP_NS and not (begun and int(begin) > spans[-1][4])))
        if spans and file not in spans[-1][2] and (near or process in spans[-1][3]):
            first, last, files, processes, done = spans[-1]
            spans[-1] = (first, max(last, int(end)), files | {file}, processes | {process}, float(np.fmax(done, over)))
        else:
            spans.append((int(begin), int(end), {file}, {process}, float(over)))
            hosts = set()
        hosts |= {host} if isinstance(host, str) else set()
    return [(first, last) for first, last, *_ in spans]


@table("rows", needs=("events", "attempts"))
def rows(events: pa.Table, attempts: Attempts) -> pa.Table:
    """The event table with `attempt` filled in for the rows of logs; those of traces and configurations belong to none yet."""
    if attempts.count == 1:
        files = set(attempts.segments["file"])
        names = events.column("file").combine_chunks()
        codes = [i for i, n in enumerate(names.dictionary.to_pylist()) if n in files]
        of_logs = np.isin(names.indices.to_numpy(zero_copy_only=False), codes)
        return _with_attempt(events, pa.array(np.zeros(events.num_rows, np.int16), mask=~of_logs)) if of_logs.any() else events
    names = events.column("file").combine_chunks()
    file_code = names.indices.to_numpy(zero_copy_only=False)
    line = pa.compute.fill_null(events.column("line"), -1).to_numpy()
    codes_of = {n: i for i, n in enumerate(names.dictionary.to_pylist())}
    pieces = attempts.segments.assign(code=attempts.segments["file"].map(codes_of)).dropna(subset=["code"])
    pieces = pieces.astype({"code": "int64"}).sort_values(["code", "first_line"])
    code, end = pieces["code"].to_numpy(), pieces["last_line"].astype("float64").fillna(np.inf).to_numpy()
    # pieces of one file do not overlap: the last that begins at or before a row is the row's, if it reaches so far
    at = np.searchsorted(code * _LINES + pieces["first_line"].to_numpy(), file_code * np.int64(_LINES) + line, side="right") - 1
    number = np.full(events.num_rows, -1, np.int16)
    inside = np.flatnonzero(at >= 0)
    inside = inside[(code[at[inside]] == file_code[inside]) & (line[inside] < end[at[inside]])]
    number[inside] = pieces["attempt"].to_numpy()[at[inside]]
    return _with_attempt(events, pa.array(number, mask=number < 0))


def _with_attempt(events: pa.Table, values: pa.Array) -> pa.Table:
    place = events.schema.get_field_index("attempt")
    known = events.column("attempt")  # an event table that was written and read again
    return events.set_column(place, events.schema.field("attempt"), pa.compute.coalesce(known, values))


@table("chosen", needs=("rows", "attempts", "wanted_attempt"))
def chosen(rows: pa.Table, attempts: Attempts, wanted_attempt: int | None) -> int:
    """The attempt that metrics speak of: the one asked for, else the last that made steps, else the last."""
    if wanted_attempt is not None:
        return wanted_attempt
    trained = of_kind(rows, "step", "progress", "iteration").column("attempt").drop_null()
    return int(max(trained.to_pylist())) if len(trained) else attempts.count - 1


@table("here", needs=("rows", "chosen", "attempts"))
def here(rows: pa.Table, chosen: int, attempts: Attempts) -> pa.Table:
    """The rows that metrics speak of: those of the chosen attempt, and those that belong to no attempt."""
    if attempts.count == 1:
        return rows
    mine = rows.filter(pa.compute.fill_null(pa.compute.equal(rows.column("attempt"), chosen), True))
    return mine if attempts.jobs else _with_shape(mine, rows, chosen)


def _with_shape(mine: pa.Table, rows: pa.Table, chosen: int) -> pa.Table:
    """The rows of an attempt that one and the same agent (torchrun) started again, with the shape of the job as the attempt before it states it.

    Only where this one states none, and where as many ranks as there were then, and no others, say something: an agent may go on with fewer.
    """
    started = of_kind(mine, "start").column("name").to_pylist()
    before = rows.filter(pa.compute.less(rows.column("attempt"), chosen)) if "restart" in started and not _shape(mine).num_rows else mine.slice(0, 0)
    shape = _shape(before)
    if not shape.num_rows:
        return mine
    last = shape.filter(pa.compute.equal(shape.column("attempt"), pa.compute.max(shape.column("attempt"))))
    named = pa.compute.equal(last.column("name").cast(pa.string()), "topology.world_size")
    world = set(last.filter(named).column("value").to_pylist())
    ranks = mine.column("rank").unique().drop_null().to_pylist()
    if world != {len(ranks)} or max(ranks, default=0) + 1 != len(ranks):
        return mine
    place = last.schema.get_field_index("attempt")
    again = pa.array([chosen] * last.num_rows, last.schema.field(place).type)
    return pa.concat_tables([mine, last.set_column(place, last.schema.field(place), again)], promote_options="permissive")


def _shape(rows: pa.Table) -> pa.Table:
    """What is stated of the shape of the job: its facts, and a map of all ranks."""
    found = of_kind(rows, "fact", "place")
    return found.filter(pa.compute.match_substring_regex(found.column("name").cast(pa.string()), r"^topology(?:\.|$)|^args\.\w*parallel_size$"))
