"""Which ranks are in which stage, as a line of a script's own words says it that host_ranks.py was given.

pipeline stages: 4 (ranks 0-3 | 4-7 | 8-11 | 12-15), data parallel 4
stage 0: ranks 0-3, stage 1: ranks 4-7
rank 0-3 on worker0 (stages 0, 1), rank 4-7 on worker1 (stages 2, 3)
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import pyarrow as pa

from pipelog.parsing import Records, Rows

_TO = r"(?: ?- ?|\.\.\.?| to )"
_LISTED = re.compile(
    rf"\bstages?(?: ?[:=])? ?(?P<count>\d{{1,4}}) ?[(\[:,] ?ranks?:? ?(?P<ranges>\d{{1,6}}{_TO}\d{{1,6}}(?: ?[|,;/] ?\d{{1,6}}{_TO}\d{{1,6}})+)[)\]]?(?:[,;. ]|$)"
)
_NAMED = re.compile(rf"\bstage[ _-]?(?P<stage>\d{{1,4}})(?: ?[(\[]| ?[:=] ?|  ?)ranks?[ =:]{{1,2}}\[?(?P<first>\d{{1,6}}){_TO}(?P<last>\d{{1,6}})")
_ON_HOST = re.compile(
    rf"\branks? (?P<first>\d{{1,6}}){_TO}(?P<last>\d{{1,6}})(?: (?:on|at))? (?P<host>[A-Za-z][\w.-]*\d[\w-]*) ?[(\[]stages? (?P<stages>\d{{1,4}}(?:(?:, ?|-)\d{{1,4}})*)[)\]]"
)
_RANGE = re.compile(rf"(\d{{1,6}}){_TO}(\d{{1,6}})")
_MOST = 4096
"""Ranks of one stage that are believed; a longer range is none."""
Told = list[tuple[int, int, str | None]]
"""(rank, stage, host)"""


def stage_ranks(found: Records) -> Iterator[Rows]:
    """Give the stage of each rank, and how many stages there are, where a line tells of all stages from the first on and puts no rank into two."""
    for at, text in enumerate(found["line"].to_pylist()):
        told = _by_list(text) or _by_name(text) or _by_host(text)
        if not _sound(told):
            continue
        each = repeated(found, [at] * len(told))
        ranks, stages, hosts = zip(*told, strict=True)
        rank, stage = pa.array(ranks, pa.int32()), pa.array(stages, pa.int32())
        yield each.rows("place", "rank-line", rank=rank, stage=stage)
        if hosts[0] is not None:
            yield each.rows("place", "introduced", rank=rank, host=pa.array(hosts, pa.string()))
        count = len(set(stages))
        yield repeated(found, [at]).rows("fact", "topology.pp", value=pa.array([float(count)]), text=pa.array([str(count)]))


def _range(first: str, last: str) -> range:
    return range(int(first), int(last) + 1)[: _MOST + 1]


def _by_list(text: str) -> Told:
    """`stages: 4 (ranks 0-3 | 4-7 | 8-11 | 12-15)`: as many ranges as stages."""
    if (match := _LISTED.search(text)) is None:
        return []
    ranges = _RANGE.findall(match["ranges"])
    return [(rank, stage, None) for stage, ends in enumerate(ranges) for rank in _range(*ends)] if len(ranges) == int(match["count"]) else []


def _by_name(text: str) -> Told:
    return [(rank, int(m["stage"]), None) for m in _NAMED.finditer(text) for rank in _range(m["first"], m["last"])]


def _by_host(text: str) -> Told:
    """`rank 4-7 on worker1 (stages 2, 3)`: the ranks of a host fill its stages one after the other, which stand on no other host."""
    told: Told = []
    for match in _ON_HOST.finditer(text):
        ranks = _range(match["first"], match["last"])
        stages = [int(n) for n in re.findall(r"\d+", match["stages"])]
        stages = [*range(stages[0], stages[-1] + 1)] if "-" in match["stages"] and len(stages) == 2 else stages
        if not stages or len(ranks) % len(stages):
            return []
        if {stage for _, stage, _ in told} & set(stages):
            return []
        told += [(rank, stages[n * len(stages) // len(ranks)], match["host"]) for n, rank in enumerate(ranks)]
    return told


def _sound(told: Told) -> bool:
    """Whether it is of two stages or more, all from 0 on, of equally many ranks each, and of every rank from 0 on once."""
    stages = [stage for _, stage, _ in told]
    counts = {stages.count(stage) for stage in set(stages)} if len(stages) <= _MOST else set()
    ranks = sorted(rank for rank, _, _ in told)
    return len(set(stages)) > 1 and len(counts) == 1 and sorted(set(stages)) == [*range(len(set(stages)))] and ranks == [*range(len(ranks))]


def repeated(found: Records, where: list[int]) -> Records:
    """The records at these places, each as often as its place stands there; without groups."""
    return Records({}, {k: v.take(pa.array(where, pa.int64())) for k, v in found.columns.items()}, found.skipped)
