"""The shape of the job from each source alone, from several, and where they disagree."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelog.events import Input
from pipelog.tables.topology import Topology
from tests.making import Row, Trace, fact, of_traces, tables, topology_map


def topology(rows: list[Row], **more: Any) -> Topology:
    found: Topology = tables(rows, **more)["topology"]
    return found


def shape(found: Topology) -> tuple[int | None, ...]:
    return found.world_size, found.pp, found.dp, found.tp


def megatron(world: int | None = None, pp: int | None = None, tp: int | None = None, dp: int | None = None) -> list[Row]:
    """Megatron's dump of its arguments."""
    named = {"world_size": world, "pipeline_model_parallel_size": pp, "tensor_model_parallel_size": tp, "data_parallel_size": dp}
    return [fact(f"args.{name}", value) for name, value in named.items() if value is not None]


def stage_list(*layers: int) -> list[Row]:
    return [{"kind": "stage", "name": "layers", "stage": s, "value": float(n)} for s, n in enumerate(layers)]


# ---- each source alone


def test_a_map_alone_tells_everything() -> None:
    found = topology(topology_map(4, 2))
    assert shape(found) == (8, 4, 2, 1)
    assert found.ranks[["rank", "stage", "replica"]].to_numpy().tolist() == [[r, r // 2, r % 2] for r in range(8)]
    assert (found.said["pp"].file, found.said["pp"].line) == ("train.log", 1)


def test_the_places_of_a_map_without_its_facts() -> None:
    found = topology([row for row in topology_map(3, 2, 2) if row["kind"] == "place"])
    assert shape(found) == (12, 3, 2, 2)
    assert found.said["pp"].source == "topology map"


def test_a_map_of_axes_in_another_order() -> None:
    """ProcessCoord(data=d, pipe=s): the data axis is the slow one, so neighbours in rank are neighbours in the pipeline."""
    places = [{"kind": "place", "name": "topology", "rank": d * 4 + s, "stage": s, "replica": d} for d in range(2) for s in range(4)]
    found = topology([fact("topology.pp", 4), fact("topology.dp", 2), fact("topology.world_size", 8), *places])
    assert [found.stage_of(r) for r in range(8)] == [0, 1, 2, 3, 0, 1, 2, 3]
    assert found.ranks_of(3) == [3, 7]
    assert not found.conflicts


@given(st.integers(1, 5), st.integers(1, 4), st.integers(1, 4))
def test_megatron_s_arguments_give_its_order_of_ranks(pp: int, dp: int, tp: int) -> None:
    """Pipe is the slowest axis, then data, tensor the fastest."""
    found = topology(megatron(pp * dp * tp, pp, tp))
    assert shape(found) == (pp * dp * tp, pp, dp, tp)
    want = [[(s * dp + d) * tp + t, s, d, t] for s in range(pp) for d in range(dp) for t in range(tp)]
    assert found.ranks[["rank", "stage", "replica", "tensor"]].to_numpy().tolist() == want


def test_ranks_that_count_stages_before_replicas() -> None:
    """Megatron with --use-tp-pp-dp-mapping: 32 ranks of 4 stages, 4 replicas, 2 tensor-parallel ranks; rank 19 = tensor 1, stage 1, replica 2."""
    mapped = fact("args.use_tp_pp_dp_mapping", 1.0)
    found = topology([*megatron(32, 4, 2, 4), mapped]).ranks.set_index("rank")
    assert found.loc[[0, 2, 8, 19, 31], ["stage", "replica", "tensor"]].to_numpy().tolist() == [[0, 0, 0], [1, 0, 0], [0, 1, 0], [1, 2, 1], [3, 3, 1]]
    usual = topology([*megatron(32, 4, 2, 4), fact("args.use_tp_pp_dp_mapping", 0.0)])
    assert usual.stage_of(19) == 2
    both = topology([*megatron(32, 4, 2, 4), mapped, fact("args.use_tp_pp_dp_mapping", 0.0)])
    assert both.stage_of(19) is None


def test_ranks_that_share_a_sequence_count_within_a_replica() -> None:
    """16 ranks of 2 stages, 2 replicas, 2 context-parallel and 2 tensor-parallel ranks: of 8 ranks a stage, of 4 a replica."""
    shared = fact("topology.cp", 2.0)
    found = topology([*megatron(16, 2, 2), shared])
    assert (shape(found), found.conflicts) == ((16, 2, 2, 2), [])
    ranks = found.ranks.set_index("rank").loc[[3, 4, 7, 8, 13], ["stage", "replica", "tensor"]]
    assert ranks.to_numpy().tolist() == [[0, 0, 1], [0, 1, 0], [0, 1, 1], [1, 0, 0], [1, 1, 1]]
    mapped = topology([*megatron(16, 2, 2), shared, fact("args.use_tp_pp_dp_mapping", 1.0)])
    assert [mapped.stage_of(r) for r in (3, 4, 7, 8, 13)] == [0, 1, 1, 0, 1]


def test_the_list_of_stages_alone() -> None:
    found = topology(stage_list(3, 2, 2, 2))
    assert shape(found) == (None, 4, None, None)
    assert found.said["pp"].source == "list of stages"
    assert len(found.ranks) == 0


def test_the_command_line_alone() -> None:
    assert shape(topology([fact("args.stages", 4), fact("launch.dist_world_size", 8)])) == (8, 4, 2, 1)


def test_lines_of_ranks_alone() -> None:
    """`RANK=4 STAGE=1 LAYERS=6 [7, 13)`, of four ranks on two stages: their number is the least that the world can be."""
    rows = [{"kind": "place", "name": "rank-line", "rank": r, "stage": r // 2} for r in range(4)]
    rows += [{"kind": "stage", "name": "layer_range", "stage": s, "value": 6.0 * s, "steps": 6} for s in range(2)]
    found = topology(rows)
    assert [found.stage_of(r) for r in range(4)] == [0, 0, 1, 1]
    assert found.pp == 2
    assert found.stages[["first_layer", "layers"]].to_numpy().tolist() == [[0, 6], [6, 6]]


def test_nothing_said_is_nothing_known() -> None:
    found = topology([{"kind": "step", "name": "deepspeed", "step": 1}])
    assert shape(found) == (None, None, None, None)
    assert len(found.ranks) == 0
    assert (found.stage_of(0), found.host_of(0), found.ranks_of(0)) == (None, None, [])


def chain(rank: int, p: int, world: int, m: int = 2, base: int = 0) -> Trace:
    """The messages of one stage of a pipeline of *p* whose ranks begin at *base*; stage 0 sends first, others receive first."""
    trace = Trace(rank, world)
    trace.step(0, 0, 1000)
    s, at = rank - base, 10.0
    for _ in range(m):
        for what, peer, exists in (
            ("recv", rank - 1, s > 0),
            ("send", rank + 1, s < p - 1),
            ("recv", rank + 1, s < p - 1),
            ("send", rank - 1, s > 0),
        ):
            if exists:
                trace.message(what, peer, at, 8)
                at += 10
    return trace


def test_stages_from_messages_where_nothing_else_tells() -> None:
    found = of_traces([chain(r, 4, 4) for r in range(4)])["topology"]
    assert shape(found) == (4, 4, 1, 1)
    assert [found.stage_of(r) for r in range(4)] == [0, 1, 2, 3]


def test_stages_from_messages_of_two_replicas() -> None:
    found = of_traces([chain(r, 2, 4, base=r // 2 * 2) for r in range(4)])["topology"]
    assert shape(found) == (4, 2, 2, 1)
    assert [found.stage_of(r) for r in range(4)] == [0, 1, 0, 1]


def test_a_gap_in_the_chain_tells_no_stages() -> None:
    """Ranks 0 and 2 of three: rank 2 receives from one that was not recorded."""
    found = of_traces({"traces/rank0.json": chain(0, 3, 3), "traces/rank2.json": chain(2, 3, 3)})["topology"]
    assert found.pp is None
    assert found.stage_of(2) is None


# ---- what is missing follows from the rest


@pytest.mark.parametrize(
    ("rows", "want"),
    [
        (megatron(16, 4, 4), (16, 4, 1, 4)),
        (megatron(16, pp=4, dp=2), (16, 4, 2, 2)),
        (megatron(16, tp=4, dp=2), (16, 2, 2, 4)),
        (megatron(pp=4, dp=2, tp=2), (16, 4, 2, 2)),
        (megatron(pp=4, dp=2), (8, 4, 2, 1)),
        (megatron(8, pp=4), (8, 4, 2, 1)),
        (megatron(world=8), (8, None, None, None)),
        (megatron(world=8, tp=2), (8, None, None, 2)),
        (megatron(pp=4), (None, 4, None, None)),
    ],
)
def test_a_missing_factor_follows(rows: list[Row], want: tuple[int | None, ...]) -> None:
    found = topology(rows)
    assert shape(found) == want
    assert not found.conflicts


def test_factors_that_do_not_divide_the_world_are_no_guess() -> None:
    found = topology(megatron(10, pp=4))
    assert shape(found) == (10, 4, None, None)
    assert found.ranks["stage"].isna().all()


# ---- who is believed, and what is a contradiction


def test_the_map_is_believed_before_the_arguments() -> None:
    found = topology([*megatron(8, pp=2), *topology_map(4, 2)])
    assert found.pp == 4
    assert [(what, sorted(int(s.value) for s in values)) for what, values in found.conflicts] == [("pp", [2, 4])]
    assert {s.source for s in found.conflicts[0][1]} == {"topology.pp", "args.pipeline_model_parallel_size"}


def test_the_command_line_s_stages_contradict_nothing() -> None:
    """A script may read `--stages` as it likes; the engine's map is what ran."""
    found = topology([fact("args.stages", 2), *topology_map(4)])
    assert found.pp == 4
    assert not found.conflicts


def test_the_same_value_from_many_sources_is_no_contradiction() -> None:
    assert not topology([*megatron(8, pp=4, dp=2), *topology_map(4, 2), fact("config.world_size", 2)]).conflicts


def test_a_world_that_is_not_the_product_is_a_contradiction() -> None:
    found = topology(megatron(16, pp=4, dp=2, tp=4))
    assert [what for what, _ in found.conflicts] == ["world_size = pp x dp x tp"]
    assert found.ranks["stage"].isna().all()


def test_the_word_of_a_rank_is_believed_before_the_usual_order() -> None:
    rows = [*megatron(4, pp=2), *({"kind": "place", "name": "rank-line", "rank": r, "stage": r % 2} for r in range(4))]
    assert [topology(rows).stage_of(r) for r in range(4)] == [0, 1, 0, 1]


# ---- hosts and labels


def test_hosts_from_the_launcher_s_map_and_from_prefixes() -> None:
    rows = [
        *topology_map(4),
        *({"kind": "place", "name": "launcher", "rank": r, "host": f"node-{r // 2}"} for r in range(3)),
        {"kind": "memory", "name": "allocated", "rank": 3, "host": "node-9", "bytes": 1},
    ]
    found = topology(rows)
    assert [found.host_of(r) for r in range(4)] == ["node-0", "node-0", "node-1", "node-9"]


def labelled(labels: list[str], shape_rows: list[Row], **more: Any) -> list[int | None]:
    """Ranks that rows with these labels get."""
    made = tables([*shape_rows, *({"kind": "memory", "name": "allocated", "label": w} for w in labels)], **more)["placed"]
    kinds = made.column("kind").to_pylist()
    return [r for k, r in zip(kinds, made.column("rank").to_pylist(), strict=True) if k == "memory"]


def test_local_ranks_are_global_ones_on_a_single_host() -> None:
    assert labelled([f"local {i}" for i in range(4)], topology_map(4)) == [0, 1, 2, 3]


def test_local_ranks_of_two_hosts_stay_unknown() -> None:
    """`[default3]:` of both nodes in one file, eight ranks: which node a line is of cannot be told."""
    assert labelled([f"local {i}" for i in range(4)], topology_map(4, 2)) == [None] * 4


def test_tasks_are_ranks_where_there_are_as_many() -> None:
    assert labelled([f"task {i}" for i in range(4)], topology_map(4)) == [0, 1, 2, 3]


def test_tasks_that_srun_lists_count() -> None:
    assert labelled(["task 2", "task 0-1,3", "task 4-7"], topology_map(8)) == [2, None, None]
    assert labelled(["task 2", "task 0-1", "task 9-"], topology_map(8)) == [None, None, None]


def test_tasks_that_are_nodes_stay_unknown() -> None:
    assert labelled(["task 0", "task 1"], topology_map(4, 2)) == [None, None]


MPIRUN = {"inputs": [Input("train.log", "log", 1, notes={"prefixes": ["mpi"]})]}


def test_tasks_of_mpirun_are_ranks_though_few_of_them_speak() -> None:
    assert labelled(["task 0", "task 5"], topology_map(4, 2), **MPIRUN) == [0, 5]
    assert labelled(["task 0", "task 8"], topology_map(4, 2), **MPIRUN) == [None, None]


@pytest.mark.parametrize(
    "row",
    [
        pytest.param({"kind": "start", "name": "torchrun"}, id="torchrun"),
        pytest.param({"kind": "process", "name": "spawned", "value": 100.0}, id="deepspeed"),
        pytest.param({"kind": "error", "name": "python-exception", "rank": 5, "label": "task 1"}, id="another-rank"),
    ],
)
def test_tasks_of_mpirun_that_are_nodes_stay_unknown(row: Row) -> None:
    assert labelled(["task 0", "task 1"], [*topology_map(4, 2), row], **MPIRUN) == [None, None]


def test_rows_get_stage_replica_tensor_and_host_of_their_rank() -> None:
    rows = [
        *topology_map(2, 2, 2),
        {"kind": "place", "name": "launcher", "rank": 6, "host": "node-1"},
        {"kind": "memory", "name": "allocated", "rank": 6},
        {"kind": "memory", "name": "allocated"},
        {"kind": "memory", "name": "allocated", "rank": 99},
    ]
    made = tables(rows)["placed"].to_pylist()[-3:]
    assert [(r["stage"], r["replica"], r["tensor"], r["host"]) for r in made] == [(1, 1, 0, "node-1"), (None,) * 4, (None,) * 4]


# ---- stages


def test_first_layers_add_up_from_the_list() -> None:
    found = topology([*topology_map(4), *stage_list(7, 4, 4, 8)])
    assert found.stages["first_layer"].tolist() == [0, 7, 11, 15]
    assert found.stages["layers"].tolist() == [7, 4, 4, 8]


def test_the_ranks_own_ranges_are_believed_before_the_list() -> None:
    rows = [
        *topology_map(2),
        *stage_list(9, 9),
        *({"kind": "stage", "name": "layer_range", "stage": s, "value": 5.0 * s, "steps": 5} for s in (0, 1)),
    ]
    assert topology(rows).stages[["first_layer", "layers"]].to_numpy().tolist() == [[0, 5], [5, 5]]


def test_parameters_of_a_stage_are_those_of_its_fullest_rank() -> None:
    rows = [
        *topology_map(2),
        *({"kind": "stage", "name": "params", "stage": s, "rank": r, "value": v} for s, r, v in ((0, 0, 10.0), (0, 1, 12.0), (1, 2, 7.0))),
    ]
    assert topology(rows).stages["params"].tolist() == [12, 7]


def test_a_stage_missing_from_the_list_leaves_the_first_layers_unknown() -> None:
    found = topology([*topology_map(3), *stage_list(4, 4)])
    assert found.stages["layers"].isna().tolist() == [False, False, True]
    assert pd.isna(found.stages["first_layer"]).all()


def test_the_partition_method_is_as_printed() -> None:
    assert topology([fact("topology.partition_method", "type:transformer"), *topology_map(2)]).partition_method == "type:transformer"


@pytest.mark.parametrize(("last", "host"), [("24-31", "n3"), ("24-30", None)])
def test_hosts_of_the_tasks_that_srun_lists(last: str, host: str | None) -> None:
    """Of 32 ranks: where task 31 is among those listed a task is a rank; else it may be a whole node's launcher."""
    world: Row = {"kind": "fact", "name": "topology.world_size", "value": 32.0}
    ended: Row = {"kind": "end", "name": "slurm-task", "value": 16.0, "text": "Exited with exit code 16"}
    rows = [{**ended, "host": f"n{n}", "label": f"task {label}"} for n, label in enumerate(("0-7", "8-15", "16-23", last))]
    assert tables([world, *rows])["topology"].host_of(29) == host
