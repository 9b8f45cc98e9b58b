"""Every line that speaks of a failure: what it means, whose it is, when it was."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray

import pipelog.postmortem.kinds
from pipelog.events import ZONES_NS, Input
from pipelog.postmortem.continued import continue_records, last_errors
from pipelog.postmortem.identities import Identities
from pipelog.postmortem.kinds import KINDS, Kind, Role
from pipelog.registry import load
from pipelog.tables import frame, table
from pipelog.tables.accounting import of_other_jobs
from pipelog.tables.attempts import Attempts
from pipelog.tables.pods import of_other_pods
from pipelog.tables.topology import Topology

_COLUMNS = (
    "kind",
    "name",
    "rank",
    "stage",
    "replica",
    "host",
    "label",
    "step",
    "clock",
    "start_ns",
    "dur_ns",
    "value",
    "peer",
    "group",
    "device",
    "stream",
    "file",
    "line",
    "text",
)
_FINE = frozenset({"exit-success", "training-done", "script-done", "exiting", "k8s-succeeded"})
"""Ends that are none of a failure."""
_COPIES = ("level", "bare-exception", "torch-log", "torch-warning")
"""Names that give way where another parser has named the same line."""
_CODES = ("batch-failed", "exit-code", "child-failed", "child-root-cause", "slurm-task", "k8s-exit-code", "shell-signal", "signal")


@dataclass(frozen=True, slots=True)
class Frames:
    """Where an exception was raised: innermost frame, innermost of the user's own files, innermost `_exec_…` of the pipeline engine; where it was caught;
    the line of its message that stands below `Last error:`.
    """

    raised: str | None = None
    own: str | None = None
    pipe: str | None = None
    caught: str | None = None
    told: int | None = field(default=None, compare=False)


@table("errors", needs=("placed", "topology", "identities", "inputs", "attempts", "chosen"))
def errors(placed: pa.Table, topology: Topology, identities: Identities, inputs: list[Input], attempts: Attempts, chosen: int) -> pd.DataFrame:
    """One row a line: name, kind (of `postmortem.kinds`), category, role, strength, rank, stage, replica, host, label, at_ns, since_ns, until_ns, code, value,
    peer, group, stream, dur_ns, chain, by, file, line, order (place of the file among the inputs), below (lines of the file behind it), text, own, pipe.

    at_ns: its own time (ns, local), null where it has none; since_ns and until_ns: times of the stamped lines before and after it in
    its file. proof: the line of its message that says most: that below `Last error:`, else the first. code: exit code, negative for a signal. by: what its rank follows from where another line ties that to one: `process 4302`, `local 3`, `bus 0000:c3:00`.
    Of a chain of exceptions one is kept (see `_causes`).
    """
    load(pipelog.postmortem.kinds)
    rows = frame(placed, ("error", "end", "process"), _COLUMNS)
    rows = rows[~((rows["kind"] == "end") & rows["name"].isin(_FINE))]
    rows = rows[(rows["kind"] != "process") | (rows["name"] == "killed")]
    frames = _frames(rows)
    rows = rows[rows["name"] != "python-frame"].copy()
    rows["order"] = rows["file"].map({i.path: n for n, i in enumerate(inputs)}).fillna(len(inputs)).astype("int64")
    rows["below"] = rows["file"].map({i.path: i.notes["lines"] for i in inputs if "lines" in i.notes}).astype("float64") - rows["line"].astype(
        "float64"
    )
    rows["text"] = rows["text"].fillna("")
    rows = _once(rows)
    _chains(rows)
    rows["code"] = [_code(n, v) for n, v in zip(rows["name"], rows["value"], strict=True)]
    rows = rows[~(rows["name"].isin(_CODES) & (rows["code"] == 0))]
    _times(rows, placed)
    continue_records(rows)
    rows = last_errors(rows)
    _whose(rows, identities, topology)
    _meanings(rows, frames)
    _elsewhen(rows, placed)
    rows.loc[rows["stream"] == "ignored", "role"] = Role.BENIGN.value  # raised where python can only print it: nothing ends of it
    files = attempts.segments.loc[attempts.segments["attempt"] == chosen, "file"]
    others = of_other_jobs(rows, files, frame(placed, ("fact",), ("name", "text")))
    rows.loc[of_other_pods(rows, inputs) | others | _of_other_units(rows, placed), "role"] = Role.BENIGN.value
    rows = _causes(rows, frames)
    return rows.sort_values(["order", "line"], kind="stable").reset_index(drop=True)


def _frames(rows: pd.DataFrame) -> dict[tuple[str, str, int], Frames]:
    """(file, chain, place in the chain) → frames."""
    mine = rows[rows["name"] == "python-frame"]
    out: dict[tuple[str, str, int], dict[str, Any]] = {}
    columns = ("file", "group", "value", "stream", "line", "text")
    for file, chain, place, stream, line, text in zip(*(mine[c] for c in columns), strict=True):
        if isinstance(chain, str) and stream in ("raised", "own", "pipe", "caught", "told") and isinstance(text, str):
            out.setdefault((file, chain, _whole(place)), {})[stream] = int(line) if stream == "told" else text
    return {key: Frames(**found) for key, found in out.items()}


def _whole(value: Any) -> int:
    return 0 if pd.isna(value) else int(value)


def _once(rows: pd.DataFrame) -> pd.DataFrame:
    """One row a line: what is told apart by more than one parser goes to the one that says most; of rows of one name, to the longest text."""
    weight = np.select([rows["name"].isin(_CODES), rows["name"] == "python-exception", rows["name"].isin(_COPIES)], [0, 1, 3], 2)
    size = rows["text"].str.len().fillna(0)
    shorter = size < size.groupby([rows["file"], rows["line"], rows["name"]], observed=True).transform("max")
    ranked = rows.assign(_weight=weight + np.where(shorter, 0.5, 0.0)).sort_values(["file", "line", "_weight"], kind="stable")
    several = ranked["name"].isin(["nccl-enqueued", "nccl-completed", "nccl-desync", "slurm-task"])  # these give several rows a line
    first = ~ranked.duplicated(["file", "line"])
    return ranked[first | several].drop(columns="_weight")


def _chains(rows: pd.DataFrame) -> None:
    """Fill in chain and place: exceptions that were raised one from another, the cause first."""
    raised = rows["name"] == "python-exception"
    rows["chain"] = rows["group"].where(raised & rows["group"].notna())
    rows["place"] = rows["value"].where(raised).fillna(0).astype("int64")


def _causes(rows: pd.DataFrame, frames: dict[tuple[str, str, int], Frames]) -> pd.DataFrame:
    """Of each chain the exception that tells most: the first that means something by itself, else the first; `shown_line` is that of the last.

    A resource that is short, or a peer that is gone, while an exception of the user's code is handled, is no better word for that exception: then the first counts.
    """
    chained = rows["chain"].notna()
    mine = rows[chained].sort_values(["file", "chain", "place"], kind="stable")
    chains = list(zip(mine["file"], mine["chain"], strict=True))
    befell = {chain for chain, category in zip(chains, mine["category"], strict=True) if _OF_ITSELF.match(str(category))}
    unsaid = {k.name for k in KINDS.values() if k.first >= _VAGUE or k.role is Role.TEARDOWN}
    vague = [
        error in unsaid and not (error == "code" and chain in befell and _own_failure(frames.get((*chain, place), Frames())))
        for chain, error, place in zip(chains, mine["error"], mine["place"], strict=True)
    ]
    best = mine.assign(_vague=vague).sort_values(["file", "chain", "_vague", "place"], kind="stable").drop_duplicates(["file", "chain"]).index
    last = mine.groupby(["file", "chain"])["line"].max()
    rows["shown_line"] = [last.get((f, c), n) if isinstance(c, str) else n for f, c, n in zip(rows["file"], rows["chain"], rows["line"], strict=True)]
    return rows[~chained | rows.index.isin(best)]


_OF_ITSELF = re.compile(r"memory\.|host\.|hardware\.|network|storage|hang")
"""Failures that no exception is turned into by whoever handles it."""


def _own_failure(where: Frames) -> bool:
    """Whether an exception came out of the user's own code and was caught outside the function that raised it: within it, it may be the way to ask."""
    return bool(where.raised) and where.raised == where.own and bool(where.caught) and _function(where.raised) != _function(where.caught)


def _function(frame: str | None) -> str:
    """`/job/train.py:40 main` without the number of the line."""
    return re.sub(r":\d+(?= |$)", "", frame or "")


_VAGUE = 70
"""Kinds tried from here on only say that there was an exception."""


def _code(name: str, value: Any) -> int | None:
    """Exit code, negative for a signal: shells and containers add 128."""
    if name not in _CODES or pd.isna(value):
        return None
    code = -abs(int(value)) if name in ("signal", "shell-signal") else int(value)
    return 128 - code if 128 < code < 160 else 256 * -1 + code if 240 <= code <= 255 else code


def _times(rows: pd.DataFrame, placed: pa.Table) -> None:
    """Fill in at_ns, since_ns and until_ns. C++ logs print no year: it is that of the stamps around, or of the files' other stamps."""
    clock = placed.column("clock").cast(pa.string())
    stamped = pa.compute.and_(pa.compute.is_in(clock, pa.array(["log", "utc"])), pa.compute.is_valid(placed.column("start_ns")))
    known = placed.select(["file", "line", "start_ns"]).filter(pa.compute.fill_null(stamped, False))
    names, lines, times = known.column("file").cast(pa.string()).to_pandas(), known.column("line").to_numpy(), known.column("start_ns").to_numpy()
    middle = int(np.median(times)) if len(times) else None
    at = rows["start_ns"].astype("Float64").to_numpy(dtype=float, na_value=np.nan)
    yearless = (rows["clock"] == "log-yearless").to_numpy()
    if middle is not None:
        begin = pd.to_datetime(pd.Series(np.where(yearless, at, 0)), unit="ns")
        shifted = [_with_year(b, middle) if y and not np.isnan(a) else a for b, y, a in zip(begin, yearless, at, strict=True)]
        at = np.where(yearless, np.array(shifted, float), at)
    rows["at_ns"] = pd.array(np.where(np.isnan(at), 0, at).astype(np.int64), dtype="Int64")
    rows.loc[np.isnan(at), "at_ns"] = pd.NA
    since, until = np.full(len(rows), np.nan), np.full(len(rows), np.nan)
    place = rows.groupby("file", sort=False).indices
    by_file = pd.Series(np.arange(len(names))).groupby(names.to_numpy()) if len(names) else []
    for file, index in by_file:
        mine = place.get(file)
        if mine is None:
            continue
        order = np.argsort(lines[index], kind="stable")
        where, when = lines[index][order], times[index][order]
        reach = np.maximum.accumulate(when)
        spot = np.searchsorted(where, rows["line"].to_numpy()[mine], side="right")
        since[mine] = np.where(spot > 0, reach[np.maximum(spot - 1, 0)], np.nan)
        until[mine] = np.where(spot < len(when), when[np.minimum(spot, len(when) - 1)], np.nan)
    rows["since_ns"], rows["until_ns"] = np.fmax(since, _reached(rows, at)), until


def _reached(rows: pd.DataFrame, at: NDArray[np.float64]) -> NDArray[np.float64]:
    """The latest own time of the errors above each in its file: stamps without a year are none of those that all rows are compared with."""
    ordered = pd.DataFrame({"file": rows["file"].to_numpy(), "line": rows["line"].to_numpy(), "at": at}).sort_values(["file", "line"], kind="stable")
    reached = ordered.groupby("file")["at"].cummax().groupby(ordered["file"]).ffill()
    return np.asarray(reached.sort_index(), dtype=np.float64)


def _elsewhen(rows: pd.DataFrame, placed: pa.Table) -> None:
    """What the kernel said long before the first or long after the last line of the attempt is benign: its log goes back for months."""
    kinds, clock = placed.column("kind").cast(pa.string()), placed.column("clock").cast(pa.string())
    mine = pa.compute.and_(pa.compute.not_equal(kinds, "error"), pa.compute.fill_null(pa.compute.equal(clock, "log"), False))
    spoken = placed.column("start_ns").filter(mine).drop_null().to_numpy()
    if not len(spoken):
        return
    at = rows["at_ns"].astype("Float64").to_numpy(dtype=float, na_value=np.nan)
    away = (at < float(spoken.min()) - ZONES_NS) | (at > float(spoken.max()) + ZONES_NS)
    rows.loc[away & rows["name"].str.startswith(("kernel", "storage")).to_numpy(), "role"] = Role.BENIGN.value


_UNIT = r"Killed (?P<path>/\S+) due to memory|(?P<unit>\S+): A process of this unit has been killed"


def _of_other_units(rows: pd.DataFrame, placed: pa.Table) -> pd.Series:
    """Whether systemd speaks of a unit that is not the job's, where the job says in which unit it runs."""
    facts = frame(placed, ("fact",), ("name", "text"))
    mine = set(facts.loc[facts["name"] == "job.unit", "text"].dropna())
    named = rows["text"].str.extract(_UNIT)
    units = named["path"].fillna(named["unit"])
    ours = units.map(lambda path: isinstance(path, str) and not mine.isdisjoint(path.split("/"))).astype(bool)
    return (rows["name"] == "kernel-oom") & units.notna() & ~ours & bool(mine)


def _with_year(stamp: pd.Timestamp, near: int) -> float:
    """*stamp* (of 1970) in the year in which it is nearest to *near*."""
    year = pd.Timestamp(near).year
    best = min(
        (stamp.replace(year=y) for y in (year - 1, year, year + 1) if not (stamp.month == 2 and stamp.day == 29 and y % 4)),
        key=lambda t: abs(t.value - near),
    )
    return float(best.value)


def _whose(rows: pd.DataFrame, who: Identities, topology: Topology) -> None:
    """Ranks of lines that name a process, a local rank on a host, or a GPU; then stage, replica and host of the ranks."""
    of_pid = _by_device(rows, who.locals)
    said, named = _of_one_host(rows), {h for h in rows["host"] if isinstance(h, str)}
    whose: list[Any] = rows["rank"].to_list()
    by = [""] * len(rows)
    hosts: list[Any] = rows["host"].to_list()
    columns = ("name", "host", "label", "value", "group", "text")
    for i, (name, host, label, value, group, text) in enumerate(zip(*(rows[c] for c in columns), strict=True)):
        if not pd.isna(whose[i]):
            continue
        host = host if isinstance(host, str) else None  # noqa: PLW2901
        gpu = _GPU.search(text)
        if isinstance(label, str) and (host, label) in who.locals:
            whose[i], by[i] = who.locals[host, label], label
        elif name in _OF_PROCESSES and not pd.isna(value):
            known = who.of_process(host, int(value))
            whose[i], by[i] = of_pid.get((host, int(value))) if known is None else known, f"process {int(value)}"
        elif name in _OF_DEVICES and isinstance(group, str):
            whose[i], by[i] = who.of_bus(host, group), f"bus {group}"
        elif name == "python-exception" and (said_by := _SPEAKER.search(text)):
            whose[i] = int(said_by["rank"])
            if host is None and (on := _ON_NODE.search(text)):
                hosts[i] = on["host"]
        elif dead := _ACTOR.search(text):
            whose[i], by[i] = who.of_process(dead["ip"], int(dead["pid"])), f"process {int(dead['pid'])}"
        elif gpu and (known := who.of_gpu(host, gpu.group(1))) is not None:
            whose[i], by[i] = known, f"local {gpu.group(1)}"
        elif gpu and host is None and len(named) <= 1:
            whose[i], by[i] = said.get(f"local {gpu.group(1)}"), f"local {gpu.group(1)}"
    rows["by"] = by
    rows["host"] = pd.Series(hosts, rows.index, dtype=object)
    rows["rank"] = pd.array([pd.NA if r is None or pd.isna(r) else int(r) for r in whose], dtype="Int64")
    of = topology.ranks.set_index("rank") if len(topology.ranks) else None
    for column in ("stage", "replica", "host"):
        if of is None:
            continue
        found = rows["rank"].map(of[column].to_dict())
        rows[column] = rows[column].where(rows[column].notna(), found)


def _of_one_host(rows: pd.DataFrame) -> dict[str, int]:
    """`local 7` → rank, as lines of failed processes have both; none where a local rank has several."""
    both = rows.dropna(subset=["rank", "label"])
    both = both[both["label"].str.startswith("local ")][["label", "rank"]].drop_duplicates()
    return {label: int(rank) for label, rank in zip(both["label"], both["rank"], strict=True)} if both["label"].is_unique else {}


def _by_device(rows: pd.DataFrame, local: dict[tuple[str | None, str], int]) -> dict[tuple[Any, int], int]:
    """(host, process) → rank of NCCL's warnings, whose device is the local rank where the processes of a host see all of its devices.

    That they do is told by a device above 0, and by no two processes that use the same one. The name that NCCL has for the host may differ from
    the launcher's where there is only one.
    """
    warned = rows[(rows["name"] == "nccl-warn") & rows["device"].notna() & rows["value"].notna()]
    used = warned[["host", "value", "device"]].drop_duplicates()
    used = used.assign(device=used["device"].str.removeprefix("gpu "))
    launched, warning = {h for h, _ in local}, set(used["host"])
    found: dict[tuple[Any, int], int] = {}
    for key, mine in used.groupby("host", dropna=False):
        host = key if isinstance(key, str) else None
        if mine["device"].duplicated().any() or mine["value"].duplicated().any() or (mine["device"] == "0").all():
            continue
        name = host if host in launched else next(iter(launched)) if len(launched) == len(warning) == 1 else None
        for pid, device in zip(mine["value"].astype(int), mine["device"], strict=True):
            if (rank := local.get((name, f"local {device}"))) is not None:
                found[host, pid] = rank
    return found


_OF_PROCESSES = frozenset({"nccl-warn", "killed", "kernel-oom", "kernel-segfault", "kernel-hung", "kernel-gpu-process", "ray-killed"})
_OF_DEVICES = frozenset({"kernel-xid", "gpu-driver", "kernel"})
"""Rows whose value is a process, whose group is a bus address."""
_SPEAKER = re.compile(r"^[\w.]+: \[?[Rr]ank (?P<rank>\d{1,6})\]?(?::|, node\b|, iteration\b)")
"""The rank in an exception of Megatron's guards: `AssertionError: Rank 11: found NaN in local grad norm`."""
_ON_NODE = re.compile(r", node:? (?P<host>[A-Za-z0-9][\w.-]*)")
_ACTOR = re.compile(r"\bpid: (?P<pid>\d{1,12})\s(?:\s*namespace: \S*\s)?\s*ip: (?P<ip>\S+)")
"""The process of Ray's ActorDiedError."""
_GPU = re.compile(r"out of memory\. Tried to allocate [\d.]+ \w+[. (]+[GN]PU (\d+)")


def _meanings(rows: pd.DataFrame, frames: dict[tuple[str, str, int], Frames]) -> None:
    """The kind of each line; lines that are alike but for their numbers are looked at once."""
    shown: list[Frames] = []
    for file, chain, place in zip(rows["file"], rows["chain"], rows["place"], strict=True):
        shown.append(frames.get((file, chain, place), Frames()) if isinstance(chain, str) else Frames())
    known: dict[tuple[Any, ...], Kind] = {}
    kinds = sorted(KINDS.values(), key=lambda k: (k.first, k.name))
    found: list[Kind] = []
    said: list[str] = []
    for name, text, code, where in zip(rows["name"], rows["text"], rows["code"], shown, strict=True):
        worded = f"{text}\nrow {name}" if code is None or pd.isna(code) else f"{text}\ncode {int(code)}"
        key = (name, _DIGITS.sub("0", worded) if name not in _CODES else worded, where)
        if key not in known:
            known[key] = _kind(kinds, name, worded, where)
        found.append(known[key])
        said.append(worded)
    rows["said"] = said
    rows["error"] = [k.name for k in found]
    rows["category"] = [k.category for k in found]
    rows["role"] = [k.role.value for k in found]
    rows["strength"] = [int(k.strength) for k in found]
    rows["own"] = [w.own for w in shown]
    rows["pipe"] = [w.pipe for w in shown]
    rows["raised"] = [w.raised for w in shown]
    rows["proof"] = [line if w.told is None else w.told for line, w in zip(rows["line"], shown, strict=True)]


_DIGITS = re.compile(r"(?<!\d)\d{3,}|(?<=[Rr]ank )\d+|(?<=\[rank)\d+|(?<=GUID )\d+|(?<=[A-Za-z]-)\d+(?=[\]:<])|(?<=:\d{4} \[)\d+(?=\] )|0x[0-9a-f]+")
"""Long numbers, ranks and hosts: `error 12` and `Signal 9` mean something."""


def _kind(kinds: list[Kind], name: str, text: str, where: Frames) -> Kind:
    frames = "\n".join(f"{what} {frame}" for what, frame in (("raised", where.raised), ("own", where.own), ("pipe", where.pipe)) if frame)
    for kind in kinds:
        if kind.rows and name not in kind.rows:
            continue
        if kind.frame is not None and not kind.frame.search(frames):
            continue
        if kind.pattern.search(text):
            return kind
    return KINDS["word"]
