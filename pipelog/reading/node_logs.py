"""The host of a kernel's log, and of what could not be started, where only the file's name tells it: `dmesg-gpu17.txt`, `gpu17.dmesg`, `gpu17.log`."""

from __future__ import annotations

import bisect
import re
from dataclasses import dataclass
from pathlib import PurePosixPath

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelog._text import short_host
from pipelog.events import WORD
from pipelog.reading.words import worded

_WHAT = re.compile(r"(?i)(?:^|(?<=[-_.]))(?:dmesg|kern(?:el)?|messages|syslog|journal(?:ctl)?|sol|bmc|ipmi(?:tool)?|serial|console)(?=[-_.]|$)")
_SUFFIX = re.compile(r"(?i)(?:\.(?:txt|log|out|gz|zst|xz|bz2))+$")
_DIGITS = re.compile(r"\d+")


def with_hosts(table: pa.Table) -> pa.Table:
    """The event table with the host filled in for the kernel's rows that name none, where their file's name is that of a host.

    That it is one is known from other lines: it must be a host that they name, or be built like one (`q9` beside `q1` and `q2`: a host that
    is none of the job's).
    """
    table = _of_pods(_of_nodes(table))
    mine = pc.and_(pc.is_null(table.column("host")), worded(table.column("name"), pc.starts_with, "kernel", "storage"))
    if not pc.any(mine).as_py():
        return table
    known = [host for host in table.column("host").unique().to_pylist() if host]
    found = {file: host for file in table.column("file").filter(mine).unique().to_pylist() if file and (host := host_of_name(file, known))}
    return filled(table, "host", found, mine)


def filled(table: pa.Table, name: str, of_file: dict[str, int] | dict[str, str], mask: pa.ChunkedArray) -> pa.Table:
    """The table with a column, `rank` or `host`, filled in where it is null and *mask* holds, from what is known of each file."""
    if not of_file:
        return table
    place = pc.index_in(table.column("file").cast(pa.string()), pa.array(list(of_file), pa.string())).combine_chunks()
    dtype = pa.int32() if name == "rank" else pa.string()
    values = pa.chunked_array([pa.array(list(of_file.values()), dtype).take(place)])
    made = pc.coalesce(table.column(name).cast(dtype), pc.if_else(mask, values, pa.scalar(None, dtype)))
    return _with(table, name, made)


def _with(table: pa.Table, name: str, made: pa.ChunkedArray) -> pa.Table:
    """The table with a column, `rank` or `host`, in place of the one that it has."""
    made = made if name == "rank" else made.combine_chunks().dictionary_encode().cast(WORD)
    return table.set_column(table.schema.get_field_index(name), table.schema.field(name), made)


def _of_nodes(table: pa.Table) -> pa.Table:
    """The host of a command that could not be started, where the log is one of several, one a node: `a.log`, `b.log`, `c.log`.

    Names of at least two of the files must be hosts that lines name (`remote=[a]:29400`), and all of one form.
    """
    mine = pc.and_(pc.is_null(table.column("host")), worded(table.column("name"), pc.equal, "shell-command"))
    if not pc.any(mine).as_py():
        return table
    texts = pc.filter(table.column("text"), worded(table.column("kind"), pc.equal, "error")).drop_null().to_pylist()
    known = {short_host(host) for host in table.column("host").unique().to_pylist() if host}
    known |= {short_host(m.group(1)) for text in texts for m in _ADDRESS.finditer(text)}
    stems = {file: _SUFFIX.sub("", PurePosixPath(file).name) for file in table.column("file").unique().to_pylist() if file}
    hosts = [stem for stem in stems.values() if short_host(stem) in known]
    forms = {_form(stem) for stem in hosts}
    if len(set(hosts)) < 2 or len(forms) != 1:
        return filled(table, "host", _by_number(table, stems), mine)
    return filled(table, "host", {file: stem for file, stem in stems.items() if _form(stem) in forms}, mine)


_ADDRESS = re.compile(r"\b(?:addr|remote)=\[([A-Za-z][\w.-]*)\]:\d")
_OWN_ADDRESS = re.compile(r"\baddr=\[([A-Za-z][\w.-]*)\]:\d")


def _by_number(table: pa.Table, stems: dict[str, str]) -> dict[str, str]:
    """File → host, where logs of one form (`node-#.out`) are of hosts of one form with the same number: `node-1.out` of q1, `node-3.out` of q3.

    At least two files must say so, none otherwise (each by the address of its sockets, or by the one host of its lines), and somebody must
    name the host.
    """
    columns = table.select(["file", "host", "kind", "text"])
    rows = columns.filter(pc.and_(pc.is_valid(columns.column("file")), worded(columns.column("kind"), pc.equal, "error", "end", "process")))
    own: dict[str, set[str]] = {}
    for file, host, text in zip(*(rows.column(c).to_pylist() for c in ("file", "host", "text")), strict=True):
        own.setdefault(file, set()).update([host] if host else [], _OWN_ADDRESS.findall(text or ""))
    known = {host for host in table.column("host").unique().to_pylist() if host}
    found: dict[str, str] = {}
    for form in {_form(stem) for stem in stems.values() if _NUMBERED.fullmatch(stem)}:
        mine = {file: _DIGITS.findall(stem)[0] for file, stem in stems.items() if _form(stem) == form}
        pairs = {(mine[file], host) for file, hosts in own.items() if file in mine and len(hosts) == 1 for host in hosts}
        ends = {(number, _LAST_NUMBER.sub("#", host)) for number, host in pairs if (m := _LAST_NUMBER.search(host)) and m.group() == number}
        if len(ends) < 2 or len(ends) != len(pairs) or len({shape for _, shape in ends}) != 1:
            continue
        shape = ends.pop()[1]
        found |= {file: host for file, number in mine.items() if (host := shape.replace("#", number)) in known}
    return found


_NUMBERED = re.compile(r"[^\d]*\d+[^\d]*")
_LAST_NUMBER = re.compile(r"\d+(?=\D*$)")


def _of_pods(table: pa.Table) -> pa.Table:
    """The host of what descriptions of pods, or events of one, say of its end or of its containers: the node on which it was placed."""
    nodes = table.filter(worded(table.column("name"), pc.equal, "pod.node")).select(["file", "text"]).to_pylist()
    if not nodes:
        return table
    of: dict[str, set[str]] = {}
    for row in nodes:
        of.setdefault(row["file"], set()).add(row["text"])
    mine = pc.and_(pc.is_null(table.column("host")), worded(table.column("name"), pc.starts_with, "k8s-", "container"))
    table = filled(table, "host", {file: min(hosts) for file, hosts in of.items() if len(hosts) == 1}, mine)
    several = [file for file, hosts in of.items() if len(hosts) > 1]
    return _of_each_pod(table, pc.and_(mine, pc.is_in(table.column("file").cast(pa.string()), pa.array(several, pa.string())))) if several else table


def _of_each_pod(table: pa.Table, mine: pa.ChunkedArray) -> pa.Table:
    """The table with the host of the rows of *mine*, which describe several pods on several nodes, filled in: that of the pod between whose lines each stands."""
    borders: dict[str, tuple[list[int], list[Pod]]] = {}
    for pod in pods(table):
        starts, some = borders.setdefault(pod.file, ([], []))
        starts.append(pod.first)
        some.append(pod)
    spots = np.flatnonzero(mine.to_numpy())
    rows = table.select(["file", "line", "host"]).take(pa.array(spots)).to_pylist()
    nodes = np.full(table.num_rows, None, dtype=object)
    for spot, row in zip(spots.tolist(), rows, strict=True):
        starts, some = borders.get(row["file"], ([], []))
        place = bisect.bisect_right(starts, row["line"]) - 1
        if row["host"] is None and place >= 0 and row["line"] < some[place].end:
            nodes[spot] = some[place].node
    return _with(table, "host", pc.coalesce(table.column("host").cast(pa.string()), pa.chunked_array([pa.array(nodes, pa.string())])))


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod that is described in a file, from line *first* up to before *end*, and the one node on which it was placed, null where none or several are named."""

    name: str
    node: str | None
    file: str
    first: int
    end: int


def pods(table: pa.Table) -> list[Pod]:
    """The pods that `kubectl describe` describes in the files."""
    rows = table.filter(worded(table.column("name"), pc.equal, "pod.name", "pod.node")).select(["name", "file", "line", "text"]).to_pylist()
    rows.sort(key=lambda row: (row["file"], row["line"]))
    named = [row for row in rows if row["name"] == "pod.name"]
    begins = [(row["file"], row["line"]) for row in named]
    nodes: list[set[str]] = [set() for _ in named]
    for row in rows:
        place = bisect.bisect_right(begins, (row["file"], row["line"])) - 1
        if row["name"] == "pod.node" and place >= 0 and named[place]["file"] == row["file"]:
            nodes[place].add(row["text"])
    out = []
    for row, after, some in zip(named, [*named[1:], None][: len(named)], nodes, strict=True):
        end = after["line"] if after is not None and after["file"] == row["file"] else _NO_END
        out.append(Pod(row["text"], min(some) if len(some) == 1 else None, row["file"], row["line"], end))
    return out[:_MOST_PODS]


_NO_END = 1 << 62
_MOST_PODS = 1 << 10


def _form(name: str) -> str:
    """What names of one row have in common: `node-#` of node-1 and node-12, one letter of a, b and c."""
    return "@" if len(name) == 1 else _DIGITS.sub("#", name)


def host_of_name(shown: str, known: list[str]) -> str | None:
    """The host that the name of a kernel's log (`dmesg-c7.txt`, `dmesg/c7.txt`) or its folder states; null where neither is one that is known, or built like one."""
    path = PurePosixPath(shown)
    stem = _SUFFIX.sub("", path.name)
    if not _WHAT.search(stem) and not _WHAT.fullmatch(path.parent.name):
        return None
    own = _WHAT.sub("", stem).strip("-_.")
    short = {short_host(host): host for host in known}
    shapes = {_DIGITS.sub("#", host) for host in short if _DIGITS.search(host)}
    for word in (own, path.parent.name):
        if host := short.get(short_host(word)):
            return host
    return next((word for word in (own, path.parent.name) if _DIGITS.sub("#", short_host(word)) in shapes), None)
