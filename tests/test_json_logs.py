"""Logs of JSON lines: text, time, rank and host of each record, the numbers of their lines, and what is no such log."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pipelog import reading
from pipelog.errors import NoInput
from pipelog.events import Events
from pipelog.reading import cite, json_lines
from tests.telling import traceback

RAISED = "\n".join(traceback("ZeroDivisionError: integer division or modulo by zero", "/w/aug.py:12 crop"))
STEP = "steps: 10 loss: 8.8409 iter time (s): 1.819 samples/sec: 35.181"


def read(tmp_path: Path, lines: list[dict[str, Any] | str], name: str = "trainer.jsonl") -> Events:
    path = tmp_path / name
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return reading.read(path)


def rows(events: Events, kind: str, *columns: str) -> list[tuple[Any, ...]]:
    table = events.table.filter([k == kind for k in events.table["kind"].to_pylist()])
    return [tuple(row[c] for c in columns) for row in table.to_pylist()]


@pytest.mark.parametrize("key", ["exc_info", "exception", "stack_trace", "traceback"])
def test_a_traceback_in_a_field_stands_on_the_line_of_its_record(tmp_path: Path, key: str) -> None:
    logged = [
        {"timestamp": "2025-07-01T10:00:00.000Z", "level": "INFO", "rank": 0, "message": STEP},
        {"timestamp": "2025-07-01T10:00:07.000Z", "level": "ERROR", "rank": 2, "message": "step failed", key: RAISED},
        {"timestamp": "2025-07-01T10:00:08.000Z", "level": "INFO", "rank": 1, "message": STEP.replace("10", "20")},
    ]
    events = read(tmp_path, logged)
    ten = 1751364000 * 10**9  # 2025-07-01 10:00:00 UTC
    assert rows(events, "step", "step", "line", "rank", "start_ns") == [(10, 1, 0, ten), (20, 3, 1, ten + 8 * 10**9)]
    raised = [row for row in rows(events, "error", "name", "line", "rank", "text", "start_ns") if row[0] == "python-exception"]
    assert raised == [("python-exception", 2, 2, "ZeroDivisionError: integer division or modulo by zero", ten + 7 * 10**9)]
    assert events.inputs[0].notes["lines"] == 3
    shown = cite(events, [(events.inputs[0].path, 2)])
    assert list(shown.values()) == ["2025-07-01T10:00:07.000Z [rank2]: step failed … ZeroDivisionError: integer division or modulo by zero"]


@pytest.mark.parametrize(
    ("when", "head"),
    [
        ({"time": "2024-03-05T14:10:02.101Z"}, "2024-03-05T14:10:02.101Z "),
        ({"timestamp": "2024-03-05 14:10:02.101+08:00"}, "2024-03-05T14:10:02.101+08:00 "),
        ({"asctime": "2024-03-05 14:10:02,101"}, "2024-03-05 14:10:02,101 "),
        ({"ts": 1709647802.5}, "2024-03-05T14:10:02.500000Z "),
        ({"ts": 1709647802500}, "2024-03-05T14:10:02.500000Z "),
        ({"level": "INFO", "time": "yesterday"}, ""),
        ({"level": "INFO"}, ""),
    ],
)
def test_times(when: dict[str, Any], head: str) -> None:
    data = b"\n".join([json.dumps(when | {"msg": "hello"}).encode()] * 2)
    written = json_lines.form(data)
    assert written is not None
    assert b"".join(json_lines.unwrapped(iter([data]), written)).decode().split("\n") == [f"{head}hello"] * 2


@pytest.mark.parametrize(
    ("record", "head"),
    [
        ({"global_rank": 3}, "[rank3]: "),
        ({"rank": "3", "hostname": "node-1"}, "node-1: [rank3]: "),
        ({"extra": {"rank": 3}}, "[rank3]: "),
        ({"local_rank": 3}, "[default3]:"),
        ({"kubernetes": {"pod_name": "trainer-1", "host": "n7"}}, "[pod/trainer-1/-] "),
        ({"rank": -1}, ""),
        ({"rank": True}, ""),
        ({"node_rank": 3}, ""),
        ({"host": "a b"}, ""),
    ],
)
def test_who_wrote(record: dict[str, Any], head: str) -> None:
    data = b"\n".join([json.dumps(record | {"level": "info", "message": "hello"}).encode()] * 3)
    written = json_lines.form(data)
    assert written is not None
    assert b"".join(json_lines.unwrapped(iter([data]), written)).decode().split("\n") == [f"{head}hello"] * 3


def test_a_rank_that_few_records_have_is_none_of_a_process() -> None:
    records = [{"level": "info", "message": "LoRA", "rank": 8}, *[{"level": "info", "message": "hello"}] * 4]
    written = json_lines.form(b"\n".join(json.dumps(r).encode() for r in records))
    assert written is not None
    assert written.rank is None


def test_broken_lines_stay_and_are_listed(tmp_path: Path) -> None:
    good = {"time": "2024-03-05T14:10:02.1Z", "level": "INFO", "message": "hello"}
    two = good | {"level": "ERROR", "message": "failed", "exc_info": RAISED}
    events = read(tmp_path, [good, two, '{"time": "2024-03-05T14:1', good, STEP, good])
    assert rows(events, "step", "step", "line") == [(10, 5)]
    assert [(s.line, s.why) for s in events.inputs[0].skipped] == [(3, "no record: read as plain text"), (5, "no record: read as plain text")]


def test_docker_joins_what_it_cut(tmp_path: Path) -> None:
    long = "x" * 16000 + " "
    at = {"stream": "stdout", "time": "2024-03-05T14:10:02.1Z"}
    lines = [at | {"log": "a\n"}, at | {"log": long}, at | {"log": "2\n"}, at | {"log": STEP + "\n"}, at | {"log": "Traceback (most recent"}]
    events = read(tmp_path, [json.dumps(line) for line in lines], "c1-json.log")
    assert rows(events, "step", "step", "line") == [(10, 4)]
    assert events.inputs[0].notes["lines"] == 5


def test_an_error_without_an_error_word_keeps_its_level(tmp_path: Path) -> None:
    info = {"level": "INFO", "message": "hello"}
    events = read(tmp_path, [info, info | {"level": "critical", "message": "giving up"}, info | {"message": "giving up"}])
    assert rows(events, "error", "line", "text") == [(2, "ERROR: giving up")]


@pytest.mark.parametrize(
    "lines",
    [
        [{"text": "Traceback (most recent call last):", "id": 1}] * 3,  # training data
        [{"step": 1, "loss": 3.4}] * 3,  # a metrics file
        [{"message": {"role": "user"}, "level": "x"}] * 3,
        [{"message": "hello"}] * 3,
        [["a", "b"]] * 3,
    ],
)
def test_no_log(tmp_path: Path, lines: list[Any]) -> None:
    with pytest.raises(NoInput):
        read(tmp_path, [json.dumps(line) for line in lines])


def test_a_log_that_prints_some_json_is_read_as_it_is(tmp_path: Path) -> None:
    events = read(tmp_path, [STEP, {"level": "INFO", "message": "hello"}, "a", "b", STEP.replace("10", "20")], "train.log")
    assert rows(events, "step", "step", "line") == [(10, 1), (20, 5)]


def test_loguru_and_structlog(tmp_path: Path) -> None:
    time = {"repr": "2025-07-01 10:00:00+00:00", "timestamp": 1751364000.0}
    record = {"elapsed": {}, "level": {"name": "ERROR"}, "message": "failed", "time": time, "extra": {"rank": 1}}
    events = read(tmp_path, [{"text": f"10:00 | ERROR | failed\n{RAISED}\n", "record": record}] * 2)
    assert [r for r in rows(events, "error", "name", "line", "rank") if r[0] == "python-exception"] == [("python-exception", n, 1) for n in (1, 2)]
    frames = [{"filename": "/w/aug.py", "lineno": 12, "name": "crop"}]
    chain = [{"exc_type": "KeyError", "exc_value": "'labels'", "frames": frames}]
    events = read(tmp_path, [{"event": "failed", "level": "error", "rank": 1, "exception": chain}] * 2)
    assert ("python-exception", "KeyError: 'labels'") in rows(events, "error", "name", "text")


def test_the_place_of_a_rank_is_told_once(tmp_path: Path) -> None:
    begun: list[dict[str, Any] | str] = [
        {
            "event": "dist.init",
            "level": "info",
            "timestamp": "2025-07-19T05:00:00Z",
            "rank": r,
            "host": f"n{r // 2}",
            "pp": 2,
            "dp": 2,
            "stage": r // 2,
            "dp_rank": r % 2,
        }
        for r in range(4)
    ]
    events = read(tmp_path, [*begun, *begun, {"event": "step", "level": "info", "rank": 3, "stage": 1, "dp_rank": 1, "host": "n1"}])
    told = [(r, s, d, h, line) for r, s, d, h, line in rows(events, "place", "rank", "stage", "replica", "host", "line")]
    assert told == [(0, 0, 0, "n0", 1), (1, 0, 1, "n0", 2), (2, 1, 0, "n1", 3), (3, 1, 1, "n1", 4)]
    sizes: list[dict[str, Any] | str] = [{"event": "init", "level": "info", "rank": r, "pp": 2, "dp": 2} for r in range(4)]
    assert "place" not in read(tmp_path, sizes).table["kind"].to_pylist()
