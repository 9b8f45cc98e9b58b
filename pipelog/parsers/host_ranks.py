"""Lines that say which ranks are on which hosts, or in which stages, in a script's own words.

nodes: ga-01 (ranks 0-3) ga-02 (ranks 4-7)
node-a: ranks 0-7, node-b: ranks 8-15
hosts: hx-1[ranks 0..7] hx-2[ranks 8..15]
pipeline stages: 4 (ranks 0-3 | 4-7 | 8-11 | 12-15)
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import pyarrow as pa

from pipelog.parsers._stage_ranks import repeated, stage_ranks
from pipelog.parsing import Records, Rows, lines

_HOST = r"(?P<host>[A-Za-z][\w-]*\d[\w-]*(?:\.[\w-]+)*)"
_RANGE = r"ranks[ =:]{1,2}\[?(?P<first>\d{1,6})(?: ?- ?|\.\.\.?| to )(?P<last>\d{1,6})"
_EACH = re.compile(rf"{_HOST}(?: ?[(\[]| ?[:=] ?|  ?){_RANGE}")
_NO_HOST = re.compile(r"(?i)(?:stage|pp|dp|tp|ep|cp|sp|vpp|pipe\w*|replica|group|pg|chunk|gpu|cuda|device|shard|switch|rack|rail|leaf)[-_]?\d+")
"""What ranks are counted by besides hosts."""
_MOST = 4096
"""Ranks of one host that are believed; a longer range is none."""


@lines(
    "host-ranks",
    mark=("ranks 0-", "rank 0-", "ranks 0..", "ranks 0 -", "ranks 0 to ", "ranks: 0-", "ranks=0-"),
    pattern=rf"(?:^|[\s:,;(\[]){_HOST.replace('?P<host>', '?:')}(?: ?[(\[]| ?[:=] ?|  ?){re.sub(r'[?]P<[a-z]+>', '?:', _RANGE)}|\b[Ss]tages?\b.*\d",
    once=True,
)
def host_ranks(found: Records) -> Iterator[Rows]:
    """Give the stage of each rank where a line tells that, and the host of each, where two hosts or more are told and no rank is on two of them."""
    yield from stage_ranks(found)
    where: list[int] = []
    ranks: list[int] = []
    hosts: list[str] = []
    for at, text in enumerate(found["line"].to_pylist()):
        told = {m["host"]: range(int(m["first"]), int(m["last"]) + 1) for m in _EACH.finditer(text) if not _NO_HOST.fullmatch(m["host"])}
        every = [r for some in told.values() for r in some[:_MOST]]
        if len(told) > 1 and len(set(every)) == len(every) and all(0 < len(some) <= _MOST for some in told.values()):
            for host, some in told.items():
                where += [at] * len(some)
                ranks += some
                hosts += [host] * len(some)
    if not where:
        return
    yield repeated(found, where).rows("place", "introduced", rank=pa.array(ranks, pa.int32()), host=pa.array(hosts, pa.string()))
