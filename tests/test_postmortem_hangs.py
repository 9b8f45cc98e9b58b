"""Who is waited for: watchdogs, the pipeline's timeouts, and flight recorders, each against a case that is small enough to reason out."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pipelog
from pipelog.events import Input
from pipelog.postmortem.deaths import Death
from pipelog.postmortem.flights import Flights
from pipelog.postmortem.hangs import Hang
from pipelog.postmortem.wording import _call
from pipelog.tables import Tables
from tests.making import LOG, Row, fact, step, tables, topology_map

SECOND = 10**9
T0 = 1_709_650_000 * SECOND
DEFAULT = "0(default_pg)"
ENGINE = "/opt/venv/lib/python3.11/site-packages/deepspeed/runtime/pipe/engine.py:1000"


def watchdog(rank: int, seq: int = 5, op: str = "ALLREDUCE", group: str = DEFAULT, *, at_s: float = 600.0, ran_s: int = 600, size: int = 2) -> Row:
    """`Watchdog caught collective operation timeout` of one rank."""
    work = f"WorkNCCL(SeqNum={seq}, OpType={op}, NumelIn={size}, NumelOut={size}, Timeout(ms)={ran_s}000)"
    text = f"[Rank {rank}] Watchdog caught collective operation timeout: {work} ran for {ran_s}000 milliseconds before timing out."
    told = {"rank": rank, "value": float(seq), "group": group, "stream": op, "dur_ns": ran_s * SECOND, "text": text}
    return {"kind": "error", "name": "nccl-watchdog", "clock": "log", "start_ns": T0 + round(at_s * SECOND), **told}


def counted(rank: int, seq: int, group: str = DEFAULT) -> Row:
    """The number of the last completed work of a rank, as its watchdog prints it."""
    text = f"[Rank {rank}] Timeout at NCCL work: {seq + 1}, last enqueued NCCL work: {seq + 2}, last completed NCCL work: {seq}."
    return {"kind": "error", "name": "nccl-completed", "rank": rank, "value": float(seq), "group": group, "text": text}


def gloo(rank: int, instruction: str, way: str = "recv") -> list[Row]:
    """A rank's traceback: a message of the pipeline engine that timed out."""
    chain: Row = {"kind": "error", "rank": rank, "group": f"t{rank}", "value": 0.0}
    text = f"RuntimeError: [gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 1800000ms for {way} operation to complete"
    return [
        {**chain, "name": "python-frame", "stream": "pipe", "text": f"{ENGINE} {instruction}"},
        {**chain, "name": "python-exception", "text": text},
    ]


def alive(*ranks: int) -> list[Row]:
    """A step line of each rank: it was heard of."""
    return [step(3, 1.0, rank=rank) for rank in ranks]


def hang_of(rows: list[Row]) -> Hang | None:
    found: Hang | None = tables(rows)["hang"]
    return found


def hung(rows: list[Row]) -> Hang:
    found = hang_of(rows)
    assert found is not None
    return found


# ---- when


def test_the_wait_began_before_the_first_timeout_by_its_length() -> None:
    """The first reporter began to wait at 700 - 600 s, another one at 650 - 500 s."""
    rows = [*topology_map(1, 4), *alive(0, 1, 2, 3), watchdog(0, at_s=700, ran_s=600), watchdog(1, at_s=650, ran_s=500)]
    assert hung(rows).begin_ns == T0 + 100 * SECOND


def test_without_a_length_nobody_knows_when_it_began() -> None:
    assert hung([*topology_map(4), *alive(0, 1, 2, 3), *gloo(1, "_exec_recv_grads")]).begin_ns is None


# ---- who: watchdogs of one group


def test_who_is_silent_while_all_others_complain_is_waited_for() -> None:
    found = hung([*topology_map(1, 4), *alive(0, 1, 2, 3), watchdog(0), watchdog(1), watchdog(3)])
    assert (found.ranks, found.arrived) == ((2,), False)
    assert len(found.lines) == 3


def test_silence_of_a_rank_whose_log_is_not_there_means_nothing() -> None:
    rows = [*topology_map(1, 4), *({**row, "file": f"rank{row['rank']}.log"} for row in (watchdog(0), watchdog(1), watchdog(3)))]
    assert hung(rows).ranks == ()


def test_where_all_are_in_the_same_call_nobody_is_missing() -> None:
    found = hung([*topology_map(1, 4), *(watchdog(rank) for rank in range(4))])
    assert (found.ranks, found.arrived) == ((), True)
    assert "nobody was missing" in found.why


def test_half_of_the_ranks_in_another_call_accuse_nobody() -> None:
    found = hung([*topology_map(1, 4), *(watchdog(rank, seq=5 + rank // 2) for rank in range(4))])
    assert (found.ranks, found.arrived) == ((), None)


def test_who_completed_less_than_most_is_behind() -> None:
    rows = [*topology_map(1, 4), *(watchdog(rank) for rank in range(4)), *(counted(rank, 4 if rank != 1 else 3) for rank in range(4))]
    assert hung(rows).ranks == (1,)


def test_numbers_of_different_groups_are_never_compared() -> None:
    """Two pipelines, each with a group of its own: 5 of one is not behind 900 of the other."""
    rows = [*topology_map(2, 2)]
    rows += [watchdog(rank, seq=5, group="3") for rank in (0, 1)] + [watchdog(rank, seq=900, group="4") for rank in (2, 3)]
    rows += [counted(rank, 4, "3") for rank in (0, 1)] + [counted(rank, 899, "4") for rank in (2, 3)]
    assert hung(rows).ranks == ()


def test_members_of_a_group_that_is_not_the_default_one_are_not_guessed() -> None:
    assert hung([*topology_map(1, 4), *alive(0, 1, 2, 3), watchdog(0, group="3"), watchdog(1, group="3"), watchdog(3, group="3")]).ranks == ()


def told(rank: int, enqueued: int, completed: int) -> list[Row]:
    """How far a rank was when the call of another one timed out."""
    words = f"Received a dump signal due to a collective timeout from  rank 0. Last enqueued NCCL work: {enqueued}, last completed NCCL work: {completed}."
    row: Row = {"kind": "error", "rank": rank, "group": DEFAULT, "text": words}
    return [row | {"name": "nccl-enqueued", "value": float(enqueued)}, row | {"name": "nccl-completed", "value": float(completed)}]


def test_who_has_nothing_open_while_all_others_wait() -> None:
    rows = [*topology_map(4), *alive(0, 1, 2, 3), watchdog(0, op="COALESCED", group="7"), *told(1, 2102, 2100), *told(2, 2102, 2101)]
    found = hung([*rows, *told(3, 2041, 2041)])
    assert (found.ranks, found.why) == ((3,), "it had nothing open, and all other ranks waited in a call")
    assert hung([*rows, *told(3, 2103, 2102)]).ranks == ()
    assert hung(rows).ranks == ()  # nothing is known of rank 3
    assert hung([*rows[:-2], *told(2, 2102, 2102), *told(3, 2041, 2041)]).ranks == ()  # two of four


def test_who_tells_of_anothers_timeout_has_none() -> None:
    rows = [*topology_map(4), *alive(0, 1, 2, 3), *(watchdog(r, op="RECV", group=DEFAULT) for r in range(3)), *told(3, 5279, 5279)]
    assert hung(rows).ranks == (3,)


def spawned(rank: int, pid: int) -> Row:
    return {"kind": "process", "name": "spawned", "rank": rank, "value": float(pid), "line": rank + 1}


def test_who_left_with_0_before_the_others_timed_out() -> None:
    left: Row = {"kind": "end", "name": "exit-success", "value": 103.0, "line": 40}
    rows = [*topology_map(4), *(spawned(r, 100 + r) for r in range(4)), *(watchdog(r, group=f"g{r}") | {"line": 50 + r} for r in range(3))]
    found = hung([*rows, left])
    assert (found.ranks, found.evidence[0][1], found.left) == ((3,), 40, True)
    (death,) = tables([*rows, left])["deaths"]
    assert death.advice[0].action.startswith("see why the script of rank 3 came to its end before the others")
    assert hung([*rows, left | {"line": 60}]).ranks == ()  # when all is over
    assert hung([*rows, left | {"value": 999.0}]).ranks == ()  # whoever that is
    named = hung(
        [*topology_map(1, 4), *alive(0, 1, 2, 3), *(spawned(r, 100 + r) for r in range(4)), *(watchdog(r) | {"line": 50 + r} for r in range(3)), left]
    )
    assert (named.why, named.left) == ("all other members of the group complained; it had left with exit code 0", True)
    assert not hung(rows).left


def test_ranks_of_one_stream_of_which_some_have_a_host() -> None:
    """The table of a torchrun agent gives two of eight ranks a host: the others write into the same stream."""
    rows = [*topology_map(8), *(watchdog(r, op="RECV", group=f"{r}") for r in range(7))]
    ends: list[Row] = [{"kind": "end", "name": "child-failed", "rank": r, "host": "node-a", "value": -6.0, "text": "x"} for r in (2, 4)]
    assert hung([*rows, *ends]).ranks == (7,)


def test_all_in_a_send_or_receive_miss_nobody() -> None:
    found = hung([*topology_map(4), *(watchdog(rank, op="RECV" if rank else "SEND", group=f"{rank}") for rank in range(4))])
    assert (found.ranks, found.arrived) == ((), True)


def death_of(rows: list[Row]) -> Death:
    found: Death = tables(rows)["death"]
    return found


def test_one_in_a_collective_while_its_peers_receive() -> None:
    waiting = [watchdog(rank, seq=64004 if rank == 0 else 64011, op="BROADCAST" if rank == 0 else "RECV") for rank in (3, 2, 1, 0)]
    rows = [*topology_map(4), *alive(0, 1, 2, 3), *waiting]
    death = death_of(rows)
    assert (death.status, death.ranks, death.known) == ("hung", (0,), False)
    assert death.title == "Rank 0 (stage 0) waited in BROADCAST while ranks 1, 2 and 3 waited in RECV, for 10.0 min"
    first = len(topology_map(4)) + 4
    assert [e.line for e in death.evidence] == [first + 4, first + 1, first + 2, first + 3]  # its own line and those of its peers
    assert death.advice[0].action.startswith("see how rank 0 came to that call")


def test_who_is_behind_in_a_collective_while_its_neighbours_send_and_receive() -> None:
    calls = {0: "BROADCAST", 1: "SEND", 2: "ALLREDUCE", 3: "RECV"}
    rows = [*topology_map(4), *(watchdog(rank, op=op) for rank, op in calls.items())]
    death = death_of([*rows, *(counted(rank, 90344 if rank == 2 else 91020) for rank in range(4))])
    assert death.ranks == (2,)
    assert death.title.startswith(
        "Rank 2 (stage 2) waited in ALLREDUCE while rank 0 waited in BROADCAST, rank 1 in SEND and rank 3 in RECV, for 10.0 min; its last completed"
    )
    assert death_of([*rows, *(counted(rank, 90344 if rank == 1 else 91020) for rank in range(4))]).ranks == ()  # messages are counted by stage


def test_two_in_a_collective_while_two_receive_name_nobody() -> None:
    rows = [*topology_map(4), *(watchdog(rank, op="ALLREDUCE" if rank < 2 else "RECV") for rank in range(4))]
    death = death_of(rows)
    assert death.ranks == ()
    assert death.title == "The run hung: ranks 0 and 1 waited in ALLREDUCE while ranks 2 and 3 waited in RECV, for 10.0 min"


def test_calls_of_several_groups_name_nobody() -> None:
    """The reduction of a stage's replicas waits as well for the one that a message of its pipeline holds up."""
    rows = [*topology_map(2, 2), *(watchdog(rank, op="RECV" if rank else "ALLREDUCE", group="3" if rank else "1") for rank in range(4))]
    assert death_of(rows).ranks == ()


def test_a_silent_rank_is_waited_for_whatever_the_others_wait_in() -> None:
    calls = {0: "RECV", 1: "RECV", 3: "BROADCAST"}
    found = hung([*topology_map(4), *alive(0, 1, 2, 3), *(watchdog(rank, op=op, group=DEFAULT) for rank, op in calls.items())])
    assert found.ranks == (2,)


def evaluation(at: int | None = 3) -> Row:
    return {"kind": "evaluation", "name": "begin", "step": at, "text": "evaluation at step 3"}


def test_an_evaluation_that_had_begun_is_told() -> None:
    waits = [watchdog(0), watchdog(1), watchdog(3)]
    began = [*topology_map(1, 4), *alive(0, 1, 2, 3), evaluation()]
    death = death_of([*began, *waits])
    assert death.phase == "evaluation"
    assert death.title.endswith(f"; evaluation had begun at step 3 ({LOG}:{len(began)})")
    assert death.evidence[0].line == len(began)
    assert death_of([*began[:-1], evaluation(None), *waits]).title.endswith(f"; evaluation had begun ({LOG}:{len(began)})")


@pytest.mark.parametrize(
    "over",
    [step(4, 1.0), {"kind": "scalar", "name": "eval_loss", "value": 2.5}, {"kind": "scalar", "name": "validation_loss", "step": 3, "value": 2.5}],
)
def test_an_evaluation_that_was_over_is_not(over: Row) -> None:
    death = death_of([*topology_map(1, 4), *alive(0, 1, 2, 3), evaluation(), over, watchdog(0), watchdog(1), watchdog(3)])
    assert death.phase == "training"
    assert "evaluation" not in death.title


def test_the_desync_report_is_believed() -> None:
    text = "\t - To our best knowledge, ranks [2] are the lagging ranks that caused this timeout. They never joined any collectives"
    rows = [*topology_map(1, 4), watchdog(0), watchdog(1), watchdog(3), {"kind": "error", "name": "nccl-desync", "rank": 2, "text": text}]
    assert hung(rows).ranks == (2,)


# ---- who: along the pipeline


@pytest.mark.parametrize("missing", [1, 2])
def test_neighbours_of_a_silent_stage_point_at_it(missing: int) -> None:
    """The stage before waits for gradients, the stage behind for activations."""
    rows = [*topology_map(4), *alive(0, 1, 2, 3), *gloo(missing - 1, "_exec_recv_grads"), *gloo(missing + 1, "_exec_recv_activations")]
    found = hung(rows)
    assert (found.ranks, found.arrived) == ((missing,), False)


def test_one_neighbour_is_enough() -> None:
    assert hung([*topology_map(4), *alive(0, 1, 2, 3), *gloo(2, "_exec_send_activations", "send")]).ranks == (3,)


def test_a_partner_that_complains_itself_is_a_victim() -> None:
    """0 waits for 1, 1 for 2, and 2 says nothing."""
    rows = [*topology_map(4), *alive(0, 1, 2, 3), *gloo(0, "_exec_recv_grads"), *gloo(1, "_exec_recv_grads")]
    assert hung(rows).ranks == (2,)


def test_the_partner_is_that_of_the_same_replica() -> None:
    """Ranks 2 s and 2 s + 1 are the replicas of stage s: rank 3 (stage 1, replica 1) waits for rank 5."""
    assert hung([*topology_map(4, 2), *alive(*range(8)), *gloo(3, "_exec_recv_grads")]).ranks == (5,)


def test_a_partner_without_a_log_is_not_accused() -> None:
    rows = [*topology_map(4), *({**row, "file": "rank1.log"} for row in gloo(1, "_exec_recv_grads"))]
    assert hung(rows).ranks == ()


def test_without_a_map_of_the_stages_there_are_no_neighbours() -> None:
    assert hung([*alive(0, 1, 2, 3), *gloo(1, "_exec_recv_grads")]).ranks == ()


def test_nobody_waits_in_a_run_without_timeouts() -> None:
    assert hang_of([*topology_map(4), *alive(0, 1, 2, 3)]) is None


# ---- the verdict


def test_a_hang_is_a_symptom() -> None:
    death: Death = tables([*topology_map(1, 4), *alive(0, 1, 2, 3), watchdog(0), watchdog(1), watchdog(3)])["death"]
    assert (death.status, death.category, death.ranks, death.known) == ("hung", "hang", (2,), False)
    assert death.hang_ns == T0
    assert death.step == 3
    assert "Rank 2" in death.title
    assert death.missing
    assert death.advice
    assert {e.line for e in death.evidence} == set(range(len(topology_map(1, 4)) + 5, len(topology_map(1, 4)) + 8))


OOM: Row = {"kind": "error", "name": "python-exception", "rank": 2, "group": "c", "value": 0.0}


def test_a_rank_that_says_why_it_did_not_come_is_the_cause() -> None:
    """The timeouts of the others come ten minutes later, and are louder."""
    oom = {**OOM, "text": "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has 1 GiB free."}
    death: Death = tables([*topology_map(1, 4), *alive(0, 1, 2, 3), watchdog(0), watchdog(1), watchdog(3), oom])["death"]
    assert (death.status, death.category, death.ranks, death.known) == ("failed", "memory.gpu-oom", (2,), True)
    assert death.hang_ns is None


# ---- flight recorders

CALL = "nccl:all_reduce"


def call(rank: int, number: int, state: str = "completed", group: str = "0", name: str = CALL) -> Row:
    return {
        "kind": "flight",
        "name": name,
        "group": group,
        "value": float(number),
        "text": state,
        "rank": rank,
        "file": f"dump_{rank}",
        "line": number,
    }


def group(name: str, ranks: list[int], rank: int = 0, what: str = "default_pg") -> Row:
    members = ",".join(map(str, ranks))
    return {"kind": "fact", "name": f"group.{name}", "value": float(len(ranks)), "text": f"{what}:{members}", "rank": rank, "file": f"dump_{rank}"}


def recorded(rows: list[Row]) -> Tables:
    return tables(rows, [Input(f, "flight-recorder", 1) for f in dict.fromkeys(str(r["file"]) for r in rows)])


def flights_of(rows: list[Row]) -> Flights | None:
    found: Flights | None = recorded(rows)["flights"]
    return found


def who(rows: list[Row]) -> tuple[int, ...]:
    found = flights_of(rows)
    return found.ranks if found is not None else ()


def joined(size: int, late: set[int], number: int = 7) -> list[Row]:
    """All of a group completed number - 1; all but *late* wait in *number*."""
    rows = [group("0", list(range(size)), rank) for rank in range(size)]
    rows += [call(rank, number - 1) for rank in range(size)]
    return rows + [call(rank, number, "started") for rank in range(size) if rank not in late]


def test_who_has_not_begun_a_call_is_waited_for() -> None:
    found = flights_of(joined(4, {2}))
    assert found is not None
    assert (found.ranks, found.absent, found.waiters) == ((2,), (), 3)
    assert found.evidence == (("dump_0", 7),)
    assert found.calls == (f"{CALL} 7 of group 0",)


def test_several_may_be_late() -> None:
    assert who(joined(4, {1, 2})) == (1, 2)


def test_where_all_have_begun_nobody_is_missing() -> None:
    assert flights_of(joined(4, set())) is None


def test_what_is_completed_waits_for_nobody() -> None:
    assert flights_of([group("0", [0, 1]), call(0, 7), call(1, 6)]) is None


def test_a_member_that_left_no_dump_is_waited_for_and_said_to_be_absent() -> None:
    found = flights_of([r for r in joined(4, {2}) if r["rank"] != 2])
    assert found is not None
    assert (found.ranks, found.absent) == ((2,), (2,))


def test_numbers_of_two_groups_stand_alone() -> None:
    """Group 0 is at 100, group 1 of ranks 2 and 3 at 3, where rank 3 is late: that it is far below 100 means nothing."""
    rows = [group("0", [0, 1, 2, 3]), group("1", [2, 3], what="dp"), *(call(rank, 100) for rank in range(4)), call(2, 3, "started", "1")]
    assert who([*rows, call(3, 2, "completed", "1")]) == (3,)


def test_a_laggard_that_waits_itself_is_a_victim() -> None:
    """0 and 1 wait for 2 in the default group; 2 waits for 3 in theirs; 3 waits for nobody."""
    rows = [group("0", [0, 1, 2]), group("1", [2, 3], what="dp"), call(0, 7, "started"), call(1, 7, "started"), call(2, 6)]
    assert who([*rows, call(2, 4, "started", "1"), call(3, 3, "completed", "1")]) == (3,)


def test_messages_are_numbered_by_pair() -> None:
    """Rank 4 is place 0 of its pipeline group, rank 6 place 1: 6 waits for what 4 has not sent. What 4 sent to others does not count."""
    rows = [group("2", [4, 6, 8], what="pipe"), call(6, 3, "scheduled", "2", "nccl:recv 1<-0"), call(4, 2, "completed", "2", "nccl:send 0->1")]
    assert who([*rows, call(4, 9, "completed", "2", "nccl:send 0->2")]) == (4,)


def test_a_message_that_both_have_begun_misses_nobody() -> None:
    rows = [group("2", [4, 6], what="pipe"), call(6, 3, "started", "2", "nccl:recv 1<-0"), call(4, 3, "started", "2", "nccl:send 0->1")]
    assert flights_of(rows) is None


def test_a_ring_of_waits_names_nobody() -> None:
    rows = [
        group("0", [0, 1]),
        group("1", [0, 1], what="dp"),
        call(0, 7, "started"),
        call(1, 6),
        call(1, 4, "started", "1"),
        call(0, 3, "completed", "1"),
    ]
    assert flights_of(rows) is None


@given(
    st.integers(3, 8).flatmap(lambda n: st.tuples(st.permutations(range(n)), st.sets(st.integers(0, n - 1), min_size=1, max_size=n - 1))),
    st.randoms(),
)
@settings(max_examples=25, deadline=None)
def test_renumbering_ranks_renumbers_who_is_missing(case: tuple[list[int], set[int]], random: Any) -> None:
    """The order of rows and the numbers of ranks mean nothing."""
    names, late = case
    rows = joined(len(names), late)
    renamed = [{**row, "rank": names[row["rank"]], "file": f"dump_{names[row['rank']]}"} for row in rows]
    random.shuffle(renamed)
    assert who(renamed) == tuple(sorted(names[r] for r in late))


def dump(folder: Path, rank: int, entries: list[tuple[int, str]], size: int) -> None:
    """A flight-recorder dump as torch writes it: the entries' numbers and states in the default group."""
    made = [
        {
            "record_id": n,
            "pg_id": 0,
            "process_group": ("0", "default_pg"),
            "collective_seq_id": number,
            "p2p_seq_id": 0,
            "op_id": number,
            "profiling_name": CALL,
            "time_created_ns": T0 + number * SECOND,
            "state": state,
            "is_p2p": False,
        }
        for n, (number, state) in enumerate(entries)
    ]
    config = {"0": {"name": "0", "desc": "default_pg", "ranks": str(list(range(size)))}}
    document = {"version": "2.5", "pg_config": config, "pg_status": {"0": {"last_enqueued_collective": entries[-1][0]}}, "entries": made}
    (folder / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(document, protocol=2))


def test_a_set_of_dumps_gives_the_verdict(tmp_path: Path) -> None:
    """Three of four ranks stand in call 8; rank 2 completed 7 and never came."""
    for rank in range(4):
        dump(tmp_path, rank, [(6, "completed"), (7, "completed"), *([] if rank == 2 else [(8, "started")])], 4)
    report = pipelog.diagnose(pipelog.read(tmp_path, jobs=1))
    failure = report.failure
    assert failure is not None
    assert (report.run["status"], failure["category"], failure["ranks"]) == ("hung", "hang", [2])
    assert not failure["cause_known"]
    assert "3 ranks waited in calls that it had not begun" in failure["title"]
    assert failure["missing"]
    assert any("rank 2" in a["action"] for a in failure["advice"])
    (finding,) = [f for f in report.findings if f.name == "run-hung"]
    assert finding.where.ranks == (2,)


def test_dumps_of_ranks_that_wait_for_nobody_are_no_hang(tmp_path: Path) -> None:
    for rank in range(2):
        dump(tmp_path, rank, [(6, "completed"), (7, "completed")], 2)
    report = pipelog.diagnose(pipelog.read(tmp_path, jobs=1))
    assert report.failure is None
    assert report.run["status"] == "incomplete"


# ---- groups in which ranks have other numbers


def placed_watchdog(rank: int, place: int, seq: int = 441, op: str = "_REDUCE_SCATTER_BASE") -> Row:
    """The watchdog of a rank that says its place in the process group."""
    row = watchdog(rank, seq, op, group="")
    return row | {"text": str(row["text"]).replace(f"[Rank {rank}]", f"[Rank {place}]")}


def test_the_replica_of_a_stage_that_is_missing_among_its_group() -> None:
    """Stage 1 of 2 has ranks 4 to 7: those with the places 0, 1 and 3 wait."""
    mine = [placed_watchdog(4, 0), placed_watchdog(5, 1), placed_watchdog(7, 3)]
    assert hung([*topology_map(2, 4), *alive(*range(8)), *mine]).ranks == (6,)
    assert hung([*topology_map(2, 4), *alive(*range(8)), *mine[:2]]).ranks == ()  # half of a group is no exception
    assert hung([*topology_map(2, 4), *apart([*alive(4, 5, 7), *mine])]).ranks == ()  # of rank 6 nothing was given
    assert hung([*topology_map(2, 4), *alive(*range(8)), *mine[:2], placed_watchdog(7, 3, seq=440)]).ranks == ()
    assert hung([*topology_map(2, 4), *alive(*range(8)), *mine[:2], placed_watchdog(3, 3)]).ranks == ()  # no stage, no replica


def test_the_replica_that_is_missing_among_those_of_one_place() -> None:
    """Two stages, four replicas, two tensor-parallel ranks each: of stage 1, tensor-parallel place 1, the replicas 0, 1 and 3 wait (ranks 9, 11, 15)."""
    rows = [*topology_map(2, 4, 2), *alive(*range(16))]
    mine = [placed_watchdog(9, 0), placed_watchdog(11, 1), placed_watchdog(15, 3)]
    assert hung([*rows, *mine]).ranks == (13,)
    echoes = [row for r in range(16) if r != 13 for row in told(r, 460640, 460640)]
    found = hung([*rows, *echoes, *mine])
    assert (found.ranks, len(found.lines)) == ((13,), 33)
    assert found.why.endswith("(ranks 9, 11 and 15), and of all ranks it alone printed nothing when that timed out")
    (death,) = tables([*rows, *echoes, *mine])["deaths"]
    waited = [c["ranks"] for c in death.consequences if c["what"].startswith("waited")]
    assert waited == [[9, 11, 15]]  # not those who were told of it
    assert hung([*rows, *mine[:2], placed_watchdog(14, 3)]).ranks == ()  # they are of no row


def test_a_group_whose_members_are_equally_far_apart() -> None:
    world = [fact("topology.world_size", 16), *alive(*range(16))]
    assert hung([*world, placed_watchdog(1, 0), placed_watchdog(5, 1), placed_watchdog(13, 3)]).ranks == (9,)
    assert hung([*world, placed_watchdog(1, 0), placed_watchdog(5, 1), placed_watchdog(12, 3)]).ranks == ()
    assert hung([*world, placed_watchdog(1, 0), placed_watchdog(13, 3)]).ranks == ()  # two are always


def apart(rows: list[Row]) -> list[Row]:
    """The rows in files of their ranks."""
    return [row | {"file": f"rank{row['rank']}.log"} for row in rows]


def accuse(*ranks: int) -> list[Row]:
    return [{"kind": "error", "name": "nccl-desync", "rank": r, "text": f"- [{r}] joined but didn't finish collective #330"} for r in ranks]


def test_the_desync_report_counts_within_its_group() -> None:
    mine = [placed_watchdog(4, 0), placed_watchdog(5, 1), placed_watchdog(7, 3)]
    assert hung([*topology_map(2, 4), *mine, *accuse(2)]).ranks == (6,)
    assert hung([*topology_map(2, 4), *(watchdog(r) for r in (4, 5, 7)), *accuse(2)]).ranks == (2,)  # all ranks
    assert hung([*topology_map(2, 4), placed_watchdog(4, 0), placed_watchdog(3, 1), *accuse(2)]).ranks == ()


def plain_gloo(rank: int) -> Row:
    """A rank's message that timed out, without a frame of the engine."""
    return gloo(rank, "")[1]


def test_the_only_rank_that_did_not_complain_of_gloo() -> None:
    rows = [*topology_map(4), *alive(0, 1, 2, 3)]
    assert hung([*rows, *(plain_gloo(r) for r in (0, 1, 3))]).ranks == (2,)
    assert hung([*rows, *(plain_gloo(r) for r in (0, 1))]).ranks == ()
    assert hung([*topology_map(4), *apart([*alive(0, 1, 3), *(plain_gloo(r) for r in (0, 1, 3))])]).ranks == ()


def test_who_watches_a_monitored_barrier_is_not_who_did_not_come() -> None:
    barrier: Row = {"kind": "error", "name": "nccl-desync"}
    watched = [barrier | {"rank": 5, "line": 1, "text": "[Rank 0]: Rank 5 failed to pass monitoredBarrier in 1800000 ms"}]
    text = "Rank {} successfully reached monitoredBarrier, but received errors while waiting for send/recv from rank 0. Please check rank 0 logs for faulty rank."
    others = [barrier | {"rank": 0, "line": 2 + r, "text": text.format(r)} for r in (1, 2, 3)]
    assert hung([*topology_map(4, 2), *watched, *others]).ranks == (5,)


def joining(*calls: tuple[str, str]) -> list[Row]:
    """What torchfrtrace says of calls: who is missing in each, and who had to join it."""
    rows: list[Row] = []
    for n, (missing, expected) in enumerate(calls):
        text = f"missing ranks: {{{missing}}}"
        rows += [
            {"kind": "error", "name": "nccl-desync", "rank": int(r), "line": 10 * n + 5, "text": text, "file": "fr.txt"} for r in missing.split(", ")
        ]
        rows += [{"kind": "flight_group", "name": "expected", "line": 10 * n + 9, "text": expected, "file": "fr.txt"}] if expected else []
    return rows


@pytest.mark.parametrize(
    ("calls", "ranks"),
    [
        ([("1", "1, 3"), ("1", "0, 1"), ("0", "0, 2")], (1,)),  # 0 waits for 1 itself
        ([("0", "0, 2"), ("1", "0, 1"), ("3", "1, 3")], (3,)),  # 2 for 0, 0 for 1, 1 for 3
        ([("1", "1, 3"), ("0", "0, 2")], (0, 1)),  # nothing shows that one waits for the other
        ([("0, 1", "0, 1, 2, 3")], (0, 1)),
        ([("1", ""), ("0", "")], (0, 1)),  # who had to join is not told
        ([("1", "0, 1"), ("0", "0, 1")], (0, 1)),  # each for the other
    ],
)
def test_of_those_a_flight_recorder_s_report_misses_who_waits_in_another_call_is_a_victim(
    calls: list[tuple[str, str]], ranks: tuple[int, ...]
) -> None:
    assert hung([*topology_map(2, 2), *joining(*calls)]).ranks == ranks


def notify(rank: int, peer: int, size: int) -> Row:
    words = "The wait execution of the Notify register times out. Reason: The Notify register has not received the Notify record from remote rank"
    text = f"{words}: [{peer}]. group information: [group:[g], rankSize[{size}], rankId[{rank} {peer}]]"
    return {"kind": "error", "name": "hccl-notify", "rank": rank, "peer": peer, "text": text}


def test_the_npu_of_which_all_others_wait_for_a_record() -> None:
    assert hung([*topology_map(2, 4), notify(1, 5, 8), notify(2, 5, 8), notify(3, 5, 8)]).ranks == (5,)
    assert hung([*topology_map(2, 4), notify(1, 5, 8), notify(2, 6, 8)]).ranks == ()  # they do not agree
    assert hung([*topology_map(2, 4), notify(1, 5, 8), notify(5, 1, 8)]).ranks == ()  # nor do these
    assert hung([*topology_map(2, 4), notify(1, 2, 4)]).ranks == ()  # of a group


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "ProcessGroupNCCL's watchdog got stuck for 480 seconds without making progress in monitoring enqueued collectives.",
            "watchdog itself was stuck for 480 s",
        ),
        (
            "WorkNCCL(SeqNum=4084, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600077 milliseconds",
            "ALLREDUCE 4084 timed out after 600 s",
        ),
        ("Received a dump signal due to a collective timeout", "a call timed out"),
    ],
)
def test_what_timed_out_is_said_only_where_something_did(text: str, said: str) -> None:
    assert said in _call(pd.Series({"text": text}))


def test_the_lines_of_those_next_to_the_one_waited_for_come_first() -> None:
    """Four stages of one replica: 0, 1 and 3 wait for rank 2; its neighbours' lines point to it, rank 0's only to rank 1."""
    rows = [*topology_map(4, 1), *alive(*range(4))]
    waits = [watchdog(r, op="RECV") for r in (0, 1, 3)]
    (death,) = tables([*rows, *waits])["deaths"]
    assert death.ranks == (2,)
    assert [e.line for e in death.evidence[:3]] == [len(rows) + 2, len(rows) + 3, len(rows) + 1]
