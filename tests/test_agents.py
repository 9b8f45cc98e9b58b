"""The ranks of local ranks, as torchrun's agents list them and as their tables of failures name them."""

from __future__ import annotations

import pytest

from tests.telling import read, traceback

TOPOLOGY = "Using topology: {ProcessCoord(pipe=0, data=0): 0, ProcessCoord(pipe=0, data=1): 1, ProcessCoord(pipe=1, data=0): 2, ProcessCoord(pipe=1, data=1): 3}"
AGENT = "[2024-01-16 21:40:06,000] torch.distributed.elastic.agent.server.api: [INFO]   global_ranks=[{}, {}]"
FRAME = "=" * 60
TABLE = [
    "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
    FRAME,
    "t.py FAILED",
    "Root Cause (first observed failure):",
    "[0]:",
    "  time      : 2024-01-16_23:26:11",
    "  host      : gpu-b",
    "  rank      : 3 (local_rank: 1)",
]
CODE = [
    "  exitcode  : 1 (pid: 88125)",
    "  error_file: <N/A>",
    "  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html",
    FRAME,
]


def teed(local: int, *lines: str) -> list[str]:
    return [f"[default{local}]:{line}" for line in lines]


def started() -> list[str]:
    return [*teed(0, TOPOLOGY, "loading the tokens", "waiting"), *teed(1, "loading the tokens", "waiting")]


def ranks(files: dict[str, list[str]]) -> tuple[int, ...]:
    found: tuple[int, ...] = read(files)["deaths"][-1].ranks
    return found


def test_the_agent_of_a_file_lists_the_ranks_of_its_processes() -> None:
    raised = teed(1, *traceback("IndexError: index 513 is out of bounds"))
    files = {"a.log": [AGENT.format(0, 1), *started()], "b.log": [AGENT.format(2, 3), *started()[1:], *raised]}
    assert ranks(files) == (3,)
    assert ranks({"a.log": [*files["a.log"], *raised], "b.log": files["b.log"][:-3]}) == (1,)


def test_two_agents_in_one_stream_are_told_apart_by_their_hosts_alone() -> None:
    raised = teed(1, *traceback("IndexError: index 513 is out of bounds"))
    first, second = [AGENT.format(0, 1), *started()], [AGENT.format(2, 3), *started()[1:], *raised]
    assert ranks({"all.log": [*first, *second]}) == ()
    assert ranks({"all.log": [*(f"gpu-a: {line}" for line in first), *(f"gpu-b: {line}" for line in second)]}) == (3,)


def test_an_agent_that_began_anew_with_other_ranks_tells_none() -> None:
    raised = teed(1, *traceback("IndexError: index 513 is out of bounds"))
    assert ranks({"a.log": [AGENT.format(0, 1), AGENT.format(2, 3), *started(), *raised]}) == ()


@pytest.mark.parametrize(("host", "found"), [("gpu-b", (3,)), ("gpu-a", ())])
def test_the_table_of_a_host_names_the_rank_of_a_local_one(host: str, found: tuple[int, ...]) -> None:
    raised = [f"{host}: {line}" for line in teed(1, *traceback("IndexError: index 513 is out of bounds"), "a", "b", "c", "d")]
    other = [f"{'gpu-a' if host == 'gpu-b' else 'gpu-b'}: {line}" for line in started()]
    table = [f"gpu-b: {line}" for line in (*TABLE, *CODE)]
    assert ranks({"all.log": [*other, *raised, *table]}) == found
