"""The host of a kernel's log where only the file's name tells it: `dmesg-gpu17.txt`, `gpu17.dmesg`, `gpu17/dmesg.log`."""

from __future__ import annotations

import re
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
    mine = pc.and_(pc.is_null(table.column("host")), _of_kernel(table.column("name")))
    if not pc.any(mine).as_py():
        return table
    known = [host for host in table.column("host").unique().to_pylist() if host]
    found = {file: host for file in table.column("file").filter(mine).unique().to_pylist() if file and (host := host_of_name(file, known))}
    if not found:
        return table
    files = pc.index_in(table.column("file").cast(pa.string()), pa.array(list(found), pa.string())).combine_chunks()
    hosts = pa.chunked_array([pa.array(list(found.values()), pa.string()).take(files)])
    filled = pc.coalesce(table.column("host").cast(pa.string()), pc.if_else(mine, hosts, None))
    return table.set_column(table.schema.get_field_index("host"), table.schema.field("host"), filled.combine_chunks().dictionary_encode().cast(WORD))


def _of_kernel(names: pa.ChunkedArray) -> pa.ChunkedArray:
    """Where a name is one of the kernel's rows; words are looked at once each."""
    masks = []
    for chunk in names.chunks:
        words = chunk.dictionary.cast(pa.string())
        masks.append(pc.fill_null(pc.or_(pc.starts_with(words, "kernel"), pc.equal(words, "storage")).take(chunk.indices), False))
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
