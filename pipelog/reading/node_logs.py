"""The host of a kernel's log, and of what could not be started, where only the file's name tells it: `dmesg-gpu17.txt`, `gpu17.dmesg`, `gpu17.log`."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from pathlib import PurePosixPath

import pyarrow as pa
import pyarrow.compute as pc

from pipelog.events import WORD

_WHAT = re.compile(r"(?i)(?:^|(?<=[-_.]))(?:dmesg|kern(?:el)?|messages|syslog|journal(?:ctl)?)(?=[-_.]|$)")
_SUFFIX = re.compile(r"(?i)(?:\.(?:txt|log|out|gz|zst|xz|bz2))+$")
_DIGITS = re.compile(r"\d+")


def with_hosts(table: pa.Table) -> pa.Table:
    """The event table with the host filled in for the kernel's rows that name none, where their file's name is that of a host.

    That it is one is known from other lines: it must be a host that they name, or be built like one (`q9` beside `q1` and `q2`: a host that
    is none of the job's).
    """
    table = _of_nodes(table)
    mine = pc.and_(pc.is_null(table.column("host")), _named(table.column("name"), pc.starts_with, "kernel", "storage"))
    if not pc.any(mine).as_py():
        return table
    known = [host for host in table.column("host").unique().to_pylist() if host]
    found = {file: host for file in table.column("file").filter(mine).unique().to_pylist() if file and (host := host_of_name(file, known))}
    return _filled(table, mine, found)


def _filled(table: pa.Table, mine: pa.ChunkedArray, found: dict[str, str]) -> pa.Table:
    """The table with the host of a file for the rows in question."""
    if not found:
        return table
    files = pc.index_in(table.column("file").cast(pa.string()), pa.array(list(found), pa.string())).combine_chunks()
    hosts = pa.chunked_array([pa.array(list(found.values()), pa.string()).take(files)])
    filled = pc.coalesce(table.column("host").cast(pa.string()), pc.if_else(mine, hosts, None))
    return table.set_column(table.schema.get_field_index("host"), table.schema.field("host"), filled.combine_chunks().dictionary_encode().cast(WORD))


def _of_nodes(table: pa.Table) -> pa.Table:
    """The host of a command that could not be started, where the log is one of several, one a node: `a.log`, `b.log`, `c.log`.

    Names of at least two of the files must be hosts that lines name (`remote=[a]:29400`), and all of one form.
    """
    mine = pc.and_(pc.is_null(table.column("host")), _named(table.column("name"), pc.equal, "shell-command"))
    if not pc.any(mine).as_py():
        return table
    texts = pc.filter(table.column("text"), _named(table.column("kind"), pc.equal, "error")).drop_null().to_pylist()
    known = {_short(host) for host in table.column("host").unique().to_pylist() if host}
    known |= {_short(m.group(1)) for text in texts for m in _ADDRESS.finditer(text)}
    stems = {file: _SUFFIX.sub("", PurePosixPath(file).name) for file in table.column("file").unique().to_pylist() if file}
    hosts = [stem for stem in stems.values() if _short(stem) in known]
    forms = {_form(stem) for stem in hosts}
    if len(set(hosts)) < 2 or len(forms) != 1:
        return table
    return _filled(table, mine, {file: stem for file, stem in stems.items() if _form(stem) in forms})


_ADDRESS = re.compile(r"\b(?:addr|remote)=\[([A-Za-z][\w.-]*)\]:\d")


def _form(name: str) -> str:
    """What names of one row have in common: `node-#` of node-1 and node-12, one letter of a, b and c."""
    return "@" if len(name) == 1 else _DIGITS.sub("#", name)


def _named(names: pa.ChunkedArray, test: Callable[..., pa.Array], *words: str) -> pa.ChunkedArray:
    """Where a name is one of *words*, or begins like them; each name is looked at once."""
    masks = []
    for chunk in names.chunks:
        each = chunk.dictionary.cast(pa.string())
        known = functools.reduce(pc.or_, (test(each, word) for word in words))
        masks.append(pc.fill_null(known.take(chunk.indices), False))
    return pa.chunked_array(masks, pa.bool_())


def host_of_name(shown: str, known: list[str]) -> str | None:
    """The host that the name of a kernel's log or its folder states; null where neither is one that is known, or built like one."""
    path = PurePosixPath(shown)
    stem = _SUFFIX.sub("", path.name)
    if not _WHAT.search(stem):
        return None
    own = _WHAT.sub("", stem).strip("-_.")
    short = {_short(host): host for host in known}
    shapes = {_DIGITS.sub("#", host) for host in short if _DIGITS.search(host)}
    for word in (own, path.parent.name):
        if host := short.get(_short(word)):
            return host
    return next((word for word in (own, path.parent.name) if _DIGITS.sub("#", _short(word)) in shapes), None)


def _short(host: str) -> str:
    """A host's name without its domain; an address stays whole."""
    return host.lower() if host.replace(".", "").isdigit() else host.lower().partition(".")[0]
