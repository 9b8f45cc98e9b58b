"""Ranks and hosts of processes whose folders, made by torchrun, say their number within the node only."""

from __future__ import annotations

from pipelog.reading.log_dirs import with_ranks_of_folders
from tests.making import Row, table


def said(file: str, rank: int | None = None, kind: str = "error") -> Row:
    return {"kind": kind, "name": "python-exception", "file": file, "rank": rank, "text": "x"}


def told(*rows: Row) -> list[tuple[int | None, str | None]]:
    made = with_ranks_of_folders(table(rows))
    return [(row["rank"], row["host"]) for row in made.select(["rank", "host"]).to_pylist()]


def all_of(*nodes: str, many: int = 8) -> list[Row]:
    """A fact of each process, which names nobody's rank."""
    return [said(f"{node}/attempt_0/{local}/stderr.log", kind="fact") for node in nodes for local in range(many)]


NODES = ("logs/n0/none_8xq2", "logs/n1/none_k2p1")


def test_one_rank_tells_those_of_its_node() -> None:
    rows = [said(f"{NODES[1]}/attempt_0/6/error.json"), said(f"{NODES[1]}/attempt_0/3/stderr.log", 11), *all_of(*NODES)]
    assert told(*rows)[:2] == [(14, "n1"), (11, "n1")]
    assert told(*rows)[2] == (None, None), "of the other node nobody says a rank, and facts are of no rank"


def test_nothing_is_told_where_the_ranks_of_a_node_do_not_fit() -> None:
    wanted = said(f"{NODES[1]}/attempt_0/6/stderr.log")
    assert told(wanted, *all_of(*NODES))[0] == (None, None)
    for ranks in ((11, 12), (10,), (3,)):  # each its own node; no multiple of eight; below the local rank of the second
        rows = [said(f"{NODES[1]}/attempt_0/{4 - n}/stderr.log", rank) for n, rank in enumerate(ranks)]
        assert told(wanted, *rows, *all_of(*NODES))[0] == (None, None)


def test_two_starts_of_one_node_are_no_two_hosts() -> None:
    rows = [said(f"{run}/attempt_0/{local}/stderr.log", rank) for run in ("may/none_a", "june/none_b") for local, rank in ((0, 0), (1, None))]
    assert told(*rows, *all_of("may/none_a", "june/none_b"))[:4] == [(0, None), (1, None), (0, None), (1, None)]


def test_agents_that_write_into_one_folder_are_told_apart_by_the_folders_that_they_make() -> None:
    rows = [said("out/none_a/attempt_0/1/stderr.log", 1), said("out/none_b/attempt_0/1/stderr.log", 9), said("out/none_b/attempt_0/7/stderr.log")]
    assert told(*rows, *all_of("out/none_a", "out/none_b"))[2] == (15, None)
