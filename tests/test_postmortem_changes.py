"""What differs from one start of a job to the next."""

from __future__ import annotations

from typing import Any

from tests.making import Row, tables


def start(number: int) -> list[Row]:
    """Two starts stand in one file: the launcher's line, then a step."""
    return [{"kind": "start", "name": "launcher"}, *({"kind": "step", "name": "step", "step": n} for n in (number, number + 1))]


def fact(name: str, text: str, **more: Any) -> Row:
    return {"kind": "fact", "name": name, "text": text, **more}


def changed(first: list[Row], second: list[Row]) -> list[tuple[int, str, str, str]]:
    one, two = start(1), start(1)
    found = tables([one[0], *first, *one[1:], two[0], *second, *two[1:]])["changes"]
    return list(found[["attempt", "name", "before", "after"]].itertuples(index=False, name=None))


def test_layout_before_versions_before_settings() -> None:
    first = [fact("config.train_batch_size", "256"), fact("version.torch", "2.1.0"), fact("topology.pp", "4"), fact("args.lr", "0.1")]
    second = [fact("args.lr", "0.2"), fact("config.train_batch_size", "128"), fact("version.torch", "2.2.0"), fact("topology.pp", "2")]
    assert changed(first, second) == [
        (1, "topology.pp", "4", "2"),
        (1, "version.torch", "2.1.0", "2.2.0"),
        (1, "config.train_batch_size", "256", "128"),
        (1, "args.lr", "0.1", "0.2"),
    ]


def test_hosts_in_words() -> None:
    first, second = (
        fact("launch.world_info", "{'node-1': [0, 1], 'node-2': [0, 1]}"),
        fact("launch.world_info", "{'node-1': [0, 1], 'node-9': [0, 1]}"),
    )
    assert changed([first], [second]) == [(1, "launch.hosts", "node-1, node-2", "node-1, node-9")]


def test_what_is_no_change() -> None:
    """The same value, a value that only one start states, one that a start states twice, ports and times, and what may be a secret."""
    first = [fact("config.zero_optimization.stage", "1"), fact("args.seed", "7"), fact("args.dropout", "0.1"), fact("args.dropout", "0.2")]
    second = [fact("config.zero_optimization.stage", "1"), fact("args.layers", "24"), fact("args.dropout", "0.3")]
    moment = [fact("args.master_port", "{}"), fact("args.local_rank", "{}"), fact("args.iteration", "{}"), fact("args.wandb_api_key", "{}")]
    for number, rows in enumerate((first, second)):
        rows += [{**row, "text": str(number)} for row in moment]
    assert changed(first, second) == []


def test_one_start_has_no_changes() -> None:
    assert not len(tables([*start(1), fact("topology.pp", "4")])["changes"])
