"""Processes that say who they are in words of their own: host, process, local rank, place in the mesh; what only looks like it is left alone."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest

from pipelog.tables.topology import Topology
from tests.making import Row, tables
from tests.telling import read

FORMS = {
    "[rank 5] pid 4415 host c1-n17 device cuda:5 ready": {"rank": 5, "host": "c1-n17", "pid": 4415},
    "[rank 4] started on ib-b": {"rank": 4, "host": "ib-b"},
    "[mesh] rank=3 dp=0 pp=1 tp=2": {"rank": 3, "replica": 0, "stage": 1, "tensor": 2},
    "process group up: rank=9 host=cw-212 local_rank=1 pp=2 dp=3": {"rank": 9, "host": "cw-212", "label": "local 1", "stage": 2, "replica": 3},
    "rank: 3, hostname: gpu-07, pid: 88123": {"rank": 3, "host": "gpu-07", "pid": 88123},
    "node rank 1 local rank 3 global rank 11 running on gpu-b-2": {"rank": 11, "host": "gpu-b-2", "label": "local 3"},
    "[rank 0] pipeline stage 2 data parallel rank 1 host=10.0.0.7": {"rank": 0, "stage": 2, "replica": 1, "host": "10.0.0.7"},
    "[rank18] start attempt 0 pid 3082 host w-063": {"rank": 18, "host": "w-063", "pid": 3082},
    "[rank18]: connecting to host w-061": {},  # no word of its own place
    # siblings: DeepSpeed's own line, two ranks, trouble, no word of a place, a rank of a group alone
    "(Worker pid=4390) RANK=3 STAGE=1 LAYERS=6 [6, 12) STAGE_PARAMS=1 (0.0M) TOTAL_PARAMS=2 (0.0M) UNIQUE_PARAMS=2 (0.0M)": {},
    "[rank 3] lost its peer rank 5 on host b1": {},
    "[rank 3] error: host=b1 is gone, pid 77": {},
    "[rank 3] loaded the checkpoint, local time 12": {},
    "local_rank=3 host=b1": {},
    "[rank 0] building data on gpu0": {},
}


@pytest.mark.parametrize("line", FORMS)
def test_what_a_line_says(line: str) -> None:
    rows = read({"train.log": [line]})["rows"].to_pandas()
    rows = rows[((rows["kind"] == "place") & (rows["name"] == "introduced")) | (rows["name"] == "worker")]
    found: dict[str, Any] = {}
    for row in rows.to_dict("records"):
        found |= {k: row[k] for k in ("rank", "host", "label", "stage", "replica", "tensor") if not pd.isna(row[k])}
        found |= {} if pd.isna(row["value"]) else {"pid": row["value"]}
    assert found == FORMS[line]


def shape(rows: list[Row]) -> Topology:
    found: Topology = tables(rows)["topology"]
    return found


def says(rank: int, **what: Any) -> Row:
    return {"kind": "place", "name": "introduced", "rank": rank, **what}


def sizes(world: int, pp: int) -> list[Row]:
    return [{"kind": "fact", "name": f"topology.{n}", "value": float(v)} for n, v in (("world_size", world), ("pp", pp), ("tp", 1))]


def test_a_mesh_of_another_order() -> None:
    """Colossal-AI's and others': data slowest, pipeline next. Of 8 ranks with 2 stages DeepSpeed would have ranks 0 to 3 on stage 0."""
    found = shape([*sizes(8, 2), *(says(r, replica=r // 4, stage=r // 2 % 2, tensor=r % 2) for r in range(8))])
    assert [found.stage_of(r) for r in range(8)] == [0, 0, 1, 1, 0, 0, 1, 1]


def test_the_shape_in_the_words_of_each_rank() -> None:
    """Where all of them say their stage the depth follows, and the replicas from it; where one is missing it may be deeper."""
    world: Row = {"kind": "fact", "name": "topology.world_size", "value": 8.0}
    found = shape([world, *(says(r, stage=r // 2) for r in range(8))])
    assert (found.pp, found.dp, found.tp) == (4, 2, 1)
    assert shape([world, *(says(r, stage=r // 2) for r in range(7))]).pp is None


def test_a_size_is_no_place() -> None:
    """`pp=2` of every rank is how many stages there are."""
    found = shape([*sizes(4, 2), *(says(r, stage=2) for r in range(4))])
    assert [found.stage_of(r) for r in range(4)] == [0, 0, 1, 1]
    found = shape([*sizes(4, 2), *(says(r, stage=1) for r in range(4))])
    assert [found.stage_of(r) for r in range(4)] == [0, 0, 1, 1]


def test_who_says_two_things_of_himself_is_not_believed() -> None:
    found = shape([*sizes(4, 2), *(says(r, host="a" if r < 2 else "b") for r in range(4)), says(1, host="b")])
    assert [found.host_of(r) for r in range(4)] == [None] * 4


@pytest.mark.parametrize(
    ("known", "host_of_5"),
    [
        ({0: "a", 1: "a", 2: "a", 3: "a", 4: "b", 6: "b", 7: "b"}, "b"),  # seven of eight: blocks of four
        ({0: "a", 3: "a", 4: "b", 7: "b"}, "b"),  # the first and the last of each
        ({0: "a", 1: "a", 6: "b", 7: "b"}, None),  # there may be two more hosts between them
        ({0: "a", 1: "a", 2: "a", 3: "a"}, None),  # of the others nobody says that they are on this one
        ({0: "a", 7: "b"}, None),  # one of each is not: there may be a third host between them
        ({0: "a", 2: "a", 4: "a", 1: "b", 3: "b", 7: "b"}, None),  # round robin: the place says nothing
        ({0: "a", 1: "a", 2: "b", 3: "b", 6: "c", 7: "c"}, None),  # eight ranks do not fill three hosts alike
    ],
)
def test_a_silent_rank_is_where_its_block_is(known: dict[int, str], host_of_5: str | None) -> None:
    assert shape([*sizes(8, 8), *(says(r, host=h) for r, h in known.items())]).host_of(5) == host_of_5


@pytest.mark.parametrize(("last", "host"), [(6, "gx"), (4, "gx"), (3, None)])
def test_the_only_host_of_a_table_of_failures(last: int, host: str | None) -> None:
    """Of eight ranks: rank 4 as local rank 4 leaves no room for a second host; rank 3 as local rank 3 may be one of four on this one."""
    failed: Row = {"kind": "end", "name": "child-failed", "value": -6.0, "host": "gx", "text": "exitcode  : -6 (pid: 3)"}
    found = shape([*sizes(8, 4), *({**failed, "rank": r, "label": f"local {r}"} for r in (0, last))])
    assert [found.host_of(r) for r in (0, 7)] == ["gx", host]


@pytest.mark.parametrize(("hosts", "ranks"), [(("orin",), (4,)), (("orin", "vega"), ())])
def test_on_a_single_host_a_local_rank_is_the_rank(hosts: tuple[str, ...], ranks: tuple[int, ...]) -> None:
    """The error file of local rank 4: it is rank 4 where all eight ranks say that they are on one host."""
    rows = [*sizes(8, 4), *(says(r, host=hosts[r * len(hosts) // 8]) for r in range(8))]
    error: Row = {"kind": "error", "name": "python-exception", "label": "local 4", "group": "a", "value": 0.0, "text": "KeyError: 'x'"}
    left: Row = {"kind": "end", "name": "exit-code", "value": 1.0, "text": "exits with return code = 1"}
    assert tables([*rows, error, left])["death"].ranks == ranks


def test_a_table_of_all_ranks_behind_one_host() -> None:
    """Rank 0 prints where everybody is in the mesh: its prefix is its own host. A process that says its number speaks of itself."""
    lines = [f"w{n % 2}: [2025-06-02 19:10:00,000] [INFO] step {n} begins" for n in range(8)]
    table = read({"a.log": [*lines, *(f"w0: [mesh] rank={r} pp={r // 2} dp={r % 2}" for r in range(4))]})["topology"]
    assert [table.host_of(r) for r in range(4)] == [None] * 4
    own = read({"a.log": [*lines, *(f"w{r // 2}: rank={r} pid={70 + r}" for r in range(4))]})["topology"]
    assert [own.host_of(r) for r in range(4)] == ["w0", "w0", "w1", "w1"]
