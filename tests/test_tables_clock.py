"""Clocks of several hosts: tied by messages both ways, within the error that is published, and not tied otherwise."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelog.tables.clock import Clocks
from tests.host_pipeline import Pipeline, bubble, simulate, traces
from tests.making import Trace, of_traces, topology_map


def two(messages: list[tuple[str, float, float]], offset: float = 0.0) -> Any:
    """Ranks 0 and 1 on hosts of their own; *messages*: (direction, sent, received) in true µs; rank 1's clock is ahead by *offset*."""
    ranks = [Trace(0, 2, host="node-0"), Trace(1, 2, host="node-1")]
    ranks[0].step(3, 0, 10_000)
    ranks[1].step(3, offset, 10_000)
    for way, sent, received in messages:
        a, b = (ranks[0], ranks[1]) if way == "down" else (ranks[1], ranks[0])
        shift = (0.0, offset) if way == "down" else (offset, 0.0)
        a.message("send", ranks.index(b), sent + shift[0], 3)
        b.message("recv", ranks.index(a), received - 5 + shift[1], 5)
    return of_traces(ranks, topology_map(2))


def clocks(*args: Any, **more: Any) -> Clocks:
    found: Clocks = two(*args, **more)["clocks"]
    return found


IN_ORDER = st.lists(st.tuples(st.integers(0, 40), st.integers(6, 50)), min_size=1, max_size=5)
"""(begin, delay) of messages 100 us apart: none overtakes another."""


@given(
    st.integers(-10_000_000, 10_000_000),
    IN_ORDER,
    IN_ORDER,
)
@settings(max_examples=40, deadline=None)
def test_the_offset_lies_within_the_published_error(offset: int, down: list[tuple[int, int]], up: list[tuple[int, int]]) -> None:
    """Messages both ways with any delays: a message is not received before it is sent."""
    messages = [
        (way, 100.0 * i + begin, 100.0 * i + begin + delay) for way, each in (("down", down), ("up", up)) for i, (begin, delay) in enumerate(each)
    ]
    found = clocks(messages, offset=float(offset))
    assert found.reference == "host:node-0"
    assert abs(found.offset_ns["host:node-1"] - 1000 * offset) <= found.error_ns + 1
    fastest = min(d for _, d in down) + min(d for _, d in up)
    assert found.error_ns <= 1000 * fastest / 2 + 1


def test_messages_one_way_tie_nothing() -> None:
    found = clocks([("down", 100.0, 150.0), ("down", 300.0, 350.0)], offset=5000.0)
    assert found.offset_ns == {"host:node-0": 0}


def test_hosts_without_a_message_between_them_are_not_tied() -> None:
    found = clocks([], offset=5000.0)
    assert set(found.offset_ns) == {"host:node-0"}


def test_messages_that_contradict_causality_tie_nothing() -> None:
    """A clock that stepped between the two directions: each message arrives before it was sent, whatever the offset."""
    found = clocks([("down", 1000.0, 900.0), ("up", 2000.0, 1900.0)])
    assert set(found.offset_ns) == {"host:node-0"}


def test_one_host_needs_no_offset() -> None:
    found = of_traces(traces(Pipeline(p=2, m=2)), topology_map(2))["clocks"]
    assert (found.offset_ns, found.error_ns) == ({"host:node-0": 0}, 0)


def test_traces_without_a_host_have_a_clock_each() -> None:
    ranks = [Trace(r, 2, host=None) for r in (0, 1)]
    for trace in ranks:
        trace.step(3, 0, 100)
    assert list(of_traces(ranks)["clocks"].offset_ns) == ["trace:traces/rank0.json"]


def test_no_trace_at_all_has_no_clock() -> None:
    found = of_traces([])["clocks"]
    assert (found.reference, found.offset_ns) == (None, {})


def test_a_chain_of_hosts_is_tied_edge_by_edge() -> None:
    """Four stages on four hosts, each a second further ahead: offsets add up, and so do errors, each at most a message's time."""
    line = Pipeline(p=4, m=4, offset={s: 1e6 * s for s in range(4)})
    found = of_traces(traces(line), topology_map(4))
    made = found["clocks"]
    for s in range(4):
        assert made.offset_ns[f"host:node-{s}"] == pytest.approx(s * 1e9, abs=3 * 20_000)
    assert 0 < made.error_ns <= 3 * 20_000
    assert found["bubble"].scope == "run"
    assert found["bubble"].measured == pytest.approx(bubble(simulate(line)), abs=1e-3)


# ---- replicas on hosts of their own


def on_own_hosts(line: Pipeline, later: float = 5e6, *, split: bool = False) -> list[Trace]:
    """Each replica on a host of its own (split: each of its stages), whose clock is *later* µs ahead of that of the replica before."""
    made = traces(line)
    for trace, (stage, replica) in zip(made, [(s, r) for s in range(line.p) for r in range(line.replicas)], strict=True):
        trace.header["host_name"] = f"node-{replica}{f'-{stage}' if split else ''}"
        for event in trace.events:
            event["ts"] += replica * later + (stage * 1e6 if split else 0)
    return made


@pytest.mark.parametrize("split", [False, True])
def test_each_is_measured_on_its_own_clock(split: bool) -> None:
    """No message passes between replicas, so nothing ties their hosts; phases and bubbles need only the stages of one replica."""
    line = Pipeline(p=2, m=3, replicas=2, factor={(1, 1): 1.5})
    found = of_traces(on_own_hosts(line, split=split), topology_map(2, 2))
    wanted = of_traces(traces(line), topology_map(2, 2))
    assert all(name.startswith("host:node-0") for name in found["clocks"].offset_ns)
    assert len(found["clocks"].apart) == (2 if split else 1)
    assert found["stage_time"]["complete"].all()
    lengths = [t["stage_time"].sort_values(["step", "rank"])["phase_ns"].tolist() for t in (found, wanted)]
    assert lengths[0] == pytest.approx(lengths[1], abs=2 * found["clocks"].error_ns + 1)
    assert len(found["messages"]) == len(wanted["messages"]) == 2 * 2 * 2 * 3
    assert found["messages"]["transfer_ns"].max() < 30_000


def test_a_replica_of_another_day_is_not_taken_in() -> None:
    found = of_traces(on_own_hosts(Pipeline(p=2, m=3, replicas=2), later=86_400e6), topology_map(2, 2))
    assert found["clocks"].apart == {}
    assert found["stage_time"].groupby("replica")["complete"].all().to_dict() == {0: True, 1: False}


def test_a_replica_whose_hosts_nothing_ties_is_not_whole() -> None:
    """Its stages are on two hosts, and of what it receives down a message of each step is missing: messages up alone tie nothing."""
    line = Pipeline(p=2, m=3, replicas=2)
    made = on_own_hosts(line, split=True)
    events = made[3].events
    missing = [[e for e in events if e["name"] == name][:: line.m] for name in ("c10d::recv_", "gloo:recv")]
    made[3].events = [e for e in events if all(e is not m for some in missing for m in some)]
    found = of_traces(made, topology_map(2, 2))
    assert len(found["clocks"].apart) == 2
    assert found["stage_time"].groupby("replica")["complete"].all().to_dict() == {0: True, 1: False}


# ---- messages


def test_messages_are_matched_first_in_first_out() -> None:
    found = two([("down", 100.0, 150.0), ("down", 300.0, 380.0), ("up", 500.0, 520.0)])["messages"]
    rows = found.sort_values("send_ns")[["step", "source", "target", "number", "bytes", "transfer_ns", "on_device"]].to_numpy().tolist()
    # the receive is posted 5 us before it ends, so that is all that the transfer can have taken
    assert rows == [[4, 0, 1, 0, 16, 5000, False], [4, 0, 1, 1, 16, 5000, False], [4, 1, 0, 0, 16, 5000, False]]


def test_a_transfer_lasts_from_the_later_of_its_calls() -> None:
    """The receiver waits from 40 on, the sender calls at 100: received at 130 means 30 us."""
    ranks = [Trace(r, 2) for r in (0, 1)]
    for trace in ranks:
        trace.step(3, 0, 1000)
    ranks[0].message("send", 1, 100, 3)
    ranks[1].message("recv", 0, 40, 90)
    found = of_traces(ranks)["messages"]
    assert found["transfer_ns"].tolist() == [30_000]


def test_a_late_send_is_idle_time_of_the_sender() -> None:
    ranks = [Trace(r, 2) for r in (0, 1)]
    for trace in ranks:
        trace.step(3, 0, 1000)
    ranks[0].op("aten::linear", 10, 50)
    ranks[0].message("send", 1, 100, 3)
    ranks[1].message("recv", 0, 40, 90)
    assert of_traces(ranks)["messages"]["gap_ns"].tolist() == [40_000]


def test_steps_whose_counts_differ_are_left_out() -> None:
    """A receive is missing from a cut trace: first in, first out would pair the wrong ones."""
    ranks = [Trace(r, 2) for r in (0, 1)]
    for trace in ranks:
        trace.step(3, 0, 1000)
        trace.step(4, 1000, 1000)
    for at in (100, 200, 1100):
        ranks[0].message("send", 1, at, 3)
    for at in (90, 1090):
        ranks[1].message("recv", 0, at, 20)
    assert of_traces(ranks)["messages"]["step"].tolist() == [5]


def test_messages_of_clocks_that_are_not_tied_are_left_out() -> None:
    assert len(two([("down", 100.0, 150.0)], offset=5000.0)["messages"]) == 0


def test_traces_of_two_runs_are_not_put_on_one_clock() -> None:
    """Rank 1's trace is yesterday's: its messages pair with today's, but no clock is a day wrong."""
    found = clocks([("down", 100.0, 150.0), ("up", 200.0, 250.0)], offset=-86_400e6)
    assert set(found.offset_ns) == {"host:node-0"}
