"""The shape of a job from a row that gives a number for each axis: its sizes, or the place of a rank."""

from __future__ import annotations

import pytest

from tests.making import Row, fact, tables


def seen(ranks: int) -> list[Row]:
    return [{"kind": "process", "name": "worker", "rank": rank, "value": 100.0 + rank} for rank in range(ranks)]


def shape(*rows: Row) -> tuple[int | None, int | None, int | None]:
    found = tables(rows)["topology"]
    return found.pp, found.dp, found.tp


WORDS = fact("grid.words", "2 4 2 1")


def test_sizes_whose_product_is_the_number_of_ranks() -> None:
    assert shape(WORDS, fact("topology.world_size", 16)) == (2, 4, 2)
    assert shape(WORDS, *seen(16)) == (2, 4, 2)
    assert tables([WORDS, *seen(16)])["topology"].stage_of(15) == 1, "the later half of the ranks is the last stage"


@pytest.mark.parametrize(
    "rows",
    [
        (WORDS, fact("topology.world_size", 32)),  # of another job, or a rank's place
        (WORDS, *seen(15)),
        (WORDS,),
        (WORDS, fact("grid.words", "4 2 2 1"), fact("topology.world_size", 16)),  # which of them?
        (WORDS, fact("grid.words", "0 3 1 1"), *seen(16)),  # places of ranks, of which not all are seen
    ],
)
def test_nothing_is_told_where_the_product_is_another(rows: tuple[Row, ...]) -> None:
    assert shape(*rows)[0] is None


def test_what_is_stated_is_believed_before() -> None:
    assert shape(WORDS, fact("topology.world_size", 16), fact("topology.pp", 4))[0] == 4
    assert shape(WORDS, fact("topology.world_size", 16), fact("topology.tp", 8))[0] is None
