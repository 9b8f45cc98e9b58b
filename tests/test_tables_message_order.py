"""Messages of traces that say not whom they go to (no record_shapes): matched by the order of the schedule, or not at all, with the reason."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pandas as pd
import pytest

from pipelog.schedule import compute_order, order
from pipelog.tables import Tables
from pipelog.tables.message_order import _FORWARD, _RECEIVE, _SEND, _tensors
from tests import host_pipeline
from tests.host_pipeline import Pipeline, traces
from tests.making import Trace, of_traces, topology_map

_OF_SHAPES = ("Input Dims", "Concrete Inputs", "Input type")
COLUMNS = ["step", "source", "target", "number", "send_ns", "receive_ns", "receive_end_ns", "transfer_ns"]


def without_shapes(given: Iterable[Trace]) -> list[Trace]:
    """The same traces, as the profiler writes them without record_shapes."""
    made = list(given)
    for trace in made:
        for event in trace.events:
            for name in _OF_SHAPES:
                event.get("args", {}).pop(name, None)
    return made


def rows(tables: Tables) -> list[list[int]]:
    found: pd.DataFrame = tables["messages"][COLUMNS]
    return sorted(found.to_numpy().tolist())


def light(line: Pipeline) -> Tables:
    return of_traces(without_shapes(traces(line)), topology_map(line.p, line.replicas))


@pytest.mark.parametrize(
    "line",
    [
        Pipeline(p=2, m=1),
        Pipeline(p=4, m=6),
        Pipeline(p=3, m=2),
        Pipeline(p=3, m=4, replicas=2, factor={(1, 2): 1.5}),
        Pipeline(p=3, m=4, transfer=300, slow={(1, 2): 5000}, offset={1: 7_000_000.0, 2: -3_000_000.0}),
    ],
)
def test_the_same_messages_and_clocks_as_with_shapes(line: Pipeline) -> None:
    full, found = of_traces(traces(line), topology_map(line.p, line.replicas)), light(line)
    assert rows(found) == rows(full)
    assert len(rows(found)) == line.steps * line.replicas * 2 * (line.p - 1) * line.m
    assert (found["matched"].by_order, full["matched"].by_order) == (len(rows(found)), 0)
    assert found["clocks"] == full["clocks"]
    assert found["matched"].why_not is None


def test_releases_that_send_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before v0.8.3 the engine sends an activation before it receives a gradient, and receives an activation before it sends a gradient."""
    short = {"forward": "F", "backward": "B"}
    monkeypatch.setattr(host_pipeline, "program", lambda s, p, m: [(short.get(w, w), k) for w, k in order(s, p, m, receive_first=False)])
    line = Pipeline(p=4, m=5)
    assert rows(light(line)) == rows(of_traces(traces(line), topology_map(4)))
    assert len(rows(light(line))) == 2 * 2 * 3 * 5


def test_another_order_is_not_matched(monkeypatch: pytest.MonkeyPatch) -> None:
    """GPipe: all forward passes, then all backward passes. As many messages, in another order."""

    def gpipe(stage: int, p: int, m: int) -> list[tuple[str, int]]:
        out: list[tuple[str, int]] = []
        for k in range(m):
            out += [("recv_activation", k)] * (stage > 0) + [("F", k)] + [("send_activation", k)] * (stage < p - 1)
        for k in range(m):
            out += [("recv_grad", k)] * (stage < p - 1) + [("B", k)] + [("send_grad", k)] * (stage > 0)
        return out

    monkeypatch.setattr(host_pipeline, "program", gpipe)
    found = light(Pipeline(p=3, m=4))["matched"]
    assert len(found.messages) == 0
    assert found.why_not == "rank 0 does not send, receive and compute in step 4 in the order of 1F1B with 3 stages and 4 micro-batches"


def test_a_step_with_an_evaluation_in_it_is_left_out() -> None:
    """One more forward pass and its message on the first two stages, in the second step alone."""
    made = without_shapes(traces(Pipeline(p=2, m=3, steps=2)))
    for trace, way in zip(made, ("send", "recv"), strict=True):
        last = max((e for e in trace.events if e["name"].startswith("ProfilerStep")), key=lambda e: e["ts"])
        at = last["ts"] + last["dur"] - 900
        trace.op("aten::linear", at, 50, 10_001)
        trace.op("aten::relu", at + 50, 50, 10_002)
        trace.message(way, 0, at + 100 if way == "send" else at - 100, 80)
    found = of_traces(without_shapes(made), topology_map(2))["matched"]
    assert found.messages["step"].unique().tolist() == [4]
    assert found.by_order == 2 * 3
    assert "in step 5 in the order of 1F1B" in found.why_not


def test_messages_that_would_arrive_before_they_are_sent_are_not_believed() -> None:
    """Ranks that share a clock, one of them 20 ms early: the order fits, the times do not."""
    made = without_shapes(traces(Pipeline(p=2, m=3)))
    for event in made[1].events:
        event["ts"] -= 20_000.0
    found = of_traces(made, topology_map(2))["matched"]
    assert (len(found.messages), found.by_order) == (0, 0)
    assert found.why_not == "in the order of the schedule a message of step 4 from rank 0 would come to rank 1 before it was sent"


def test_without_stages_nothing_is_matched() -> None:
    found = of_traces(without_shapes(traces(Pipeline(p=2, m=3))))["matched"]
    assert len(found.messages) == 0
    assert "nor a log which stage each rank is" in found.why_not


def test_a_stage_that_was_not_recorded_leaves_the_others() -> None:
    line = Pipeline(p=3, m=4)
    made = without_shapes(traces(line))
    found = of_traces(made[:2], topology_map(3))
    assert {(s, t) for _, s, t, *_ in rows(found)} == {(0, 1), (1, 0)}
    assert len(rows(found)) == line.steps * 2 * 4


def test_tensors_of_a_message_follow_from_the_first_stage() -> None:
    """Two tensors down each edge, one up: stage 0 sends 2 m, stage 1 sends 2 m + m and receives 2 m + m, stage 2 receives 2 m; by hand for m = 2."""

    def tokens(sends: int, receives: int) -> list[int]:
        return [_FORWARD, _FORWARD, _FORWARD + 1, _FORWARD + 1, *[_SEND] * sends, *[_RECEIVE] * receives]

    found = _tensors({0: np.array(tokens(4, 2)), 1: np.array(tokens(6, 6)), 2: np.array(tokens(2, 4))}, 3)
    assert [found[s, w] for s, w in ((0, "send_activation"), (0, "recv_grad"), (1, "send_activation"), (1, "send_grad"), (2, "recv_activation"))] == [
        2,
        1,
        2,
        1,
        2,
    ]
    assert _tensors({0: np.array(tokens(4, 2)), 1: np.array(tokens(6, 5)), 2: np.array(tokens(2, 4))}, 3) == {}
    assert _tensors({0: np.array(tokens(4, 2)), 1: np.array(tokens(6, 6)), 2: np.array(tokens(2, 2))}, 3) == {}


@pytest.mark.parametrize(("p", "m"), [(1, 2), (2, 3), (4, 4), (5, 2)])
def test_passes_stand_in_the_whole_order_as_alone(p: int, m: int) -> None:
    for s in range(p):
        assert [one for one in order(s, p, m) if one[0] in ("forward", "backward")] == compute_order(s, p, m)
