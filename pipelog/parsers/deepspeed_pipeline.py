"""How DeepSpeed's pipeline is laid out: topology, stages and layers, parameters, micro-batches.

    SEED_LAYERS=False BASE_SEED=1234 SEED_FN=None
    Using topology: {ProcessCoord(pipe=0, data=0): 0, ProcessCoord(pipe=0, data=1): 1, ProcessCoord(pipe=1, data=0): 2, ProcessCoord(pipe=1, data=1): 3}
    [2026-11-30 01:12:52,936] [INFO] [module.py:398:_partition_layers] Partitioning pipeline stages with method type:Block
    stage=0 layers=3
         0: Embed
    [2021-06-10 20:47:51,888] [INFO] [engine.py:76:__init__] CONFIG: micro_batches=256 micro_batch_size=4
    [2021-06-10 20:47:52,226] [INFO] [engine.py:134:__init__] RANK=0 STAGE=0 LAYERS=7 [0, 7) STAGE_PARAMS=917757952 (917.758M) TOTAL_PARAMS=52453507072 (52453.507M) UNIQUE_PARAMS=52004716544 (52004.717M)

Same form since v0.3.0. Topology, stages and layers are prints of rank 0 and always there; the rest are logger lines, hidden by
default since v0.17.6. `RANK=` comes from every rank of the first data-parallel replica, in any order.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelog.events import Skipped
from pipelog.parsers._facts import fact, first_of_each, joined, numbers
from pipelog.parsing import Block, Records, Row, Rows, block, records


@records("deepspeed-seed-layers", mark="SEED_LAYERS=", pattern=r"^SEED_LAYERS=\w+ BASE_SEED=")
def seed_layers(found: Records) -> Iterator[Rows]:
    """Give the start of a pipeline module: its first line."""
    yield found.rows("start", "engine")


_COORD = re.compile(r"ProcessCoord\((?P<axes>[a-z_]\w*=\d{1,9}(?:, [a-z_]\w*=\d{1,9})*)\): (?P<rank>\d{1,9})", re.IGNORECASE)
_COLUMNS = {"pipe": "stage", "data": "replica", "model": "tensor", "tensor": "tensor"}
_SIZES = {"stage": "topology.pp", "replica": "topology.dp", "tensor": "topology.tp"}


# Using topology: {ProcessCoord(pipe=0, data=0, model=0): 0, ProcessCoord(pipe=0, data=0, model=1): 1, …}
@block("deepspeed-topology", mark="Using topology: {", most=1)
def topology(found: Block) -> Iterator[Row | Skipped]:
    """Give stage, replica and tensor index of every rank, and the size of each axis; axes of other names are only named."""
    matches = [(m["axes"], int(m["rank"])) for m in _COORD.finditer(found.first)]
    largest: dict[str, int] = {}
    axes: list[str] = []
    for text, rank in matches:
        coord = dict(part.split("=") for part in text.split(", "))
        axes = axes or list(coord)
        row: Row = {"kind": "place", "name": "topology", "rank": rank, "host": None, "label": None}  # the writer's are not this rank's
        for axis, index in coord.items():
            if axis in _COLUMNS:
                row[_COLUMNS[axis]] = int(index)
                largest[_COLUMNS[axis]] = max(largest.get(_COLUMNS[axis], 0), int(index))
        yield row
    if matches and "}" in found.first:
        for column, last in largest.items():
            yield fact(_SIZES[column], str(last + 1))
        yield fact("topology.world_size", str(len(matches)))
        yield fact("topology.axes", ",".join(axes))
    else:
        yield Skipped(found.line, "deepspeed-topology: the record is broken off, so the sizes of the axes are not known from it")


@records(
    "deepspeed-partition-method",
    mark="Partitioning pipeline stages with method ",
    pattern=r"^Partitioning pipeline stages with method (?P<method>\S(?:.*\S)?)\s*$",
)
def partition_method(found: Records) -> Iterator[Rows]:
    """Give the partition method: `parameters`, `uniform`, `type:<regular expression>`."""
    yield found.rows("fact", "topology.partition_method", text=found["method"])


_STAGE = re.compile(r"(?:^|[^A-Za-z_])stage=(?P<stage>\d{1,9})$")
_LAYERS = re.compile(r"^ layers=(?P<layers>\d{1,9})")
_LAYER = re.compile(r"^ {3,5}(?P<index>\d{1,9}): (?P<name>.*\S)")
_LOSS = re.compile(r"^ {1,2}loss: (?P<name>\S.*)$")
_LOOK_AHEAD = 20


# stage=3 layers=3
#      7: Block
#      8: Block
#      9: Head
#   loss: loss_fn
@block("deepspeed-stage", mark=" layers=", head=r"stage=\d+$", most=3000)
def stage(found: Block) -> Iterator[Row | Skipped]:
    """Give a stage's number of layers and each of them (class, or function, or whatever str() made of it), and the loss after the last."""
    number, count = _STAGE.search(found.head), _LAYERS.match(found.first)
    if number is None or count is None:
        return
    index, left = number["stage"], int(count["layers"])
    yield {"kind": "stage", "name": "layers", "stage": int(index), "value": float(left)}
    lines = found.lines()
    next(lines)
    after, expected = 0, None
    for line, text in lines:
        layer = _LAYER.match(text)
        if layer and left and expected in {None, int(layer["index"])}:
            expected, left, after = int(layer["index"]) + 1, left - 1, 0
            yield {"kind": "layer", "name": layer["name"][:200], "stage": int(index), "value": float(layer["index"]), "line": line}
            continue
        if not left and (loss := _LOSS.match(text)):
            yield fact("topology.loss_fn", loss["name"].strip()[:200], line)
            return
        after += 1
        if _STAGE.search(text.partition(" layers=")[0]) or text.startswith("steps: ") or after > (_LOOK_AHEAD if left else 3):
            break
    if left and expected is not None:
        yield Skipped(found.line, f"deepspeed-stage: {left} of the {count['layers']} layers of stage {index} are not listed")


@records(
    "deepspeed-micro-batches",
    mark="CONFIG: micro_batches=",
    pattern=r"^CONFIG: micro_batches=(?P<batches>\d{1,9}) micro_batch_size=(?P<size>\d{1,9})",
    torn=r"^CONFIG: micro_batches=",
)
def micro_batches(found: Records) -> Iterator[Rows]:
    """Give micro-batches per step and replica (gradient_accumulation_steps), and samples per micro-batch."""
    yield found.rows("fact", "config.micro_batches", value=found.float("batches"), text=found["batches"])
    yield found.rows("fact", "config.micro_batch_size", value=found.float("size"), text=found["size"])


# CONFIG: activation_checkpoint_func=non_reentrant_checkpoint
@records("deepspeed-checkpoint-func", mark="CONFIG: activation_checkpoint_func=", pattern=r"^CONFIG: activation_checkpoint_func=(?P<name>\S+)")
def checkpoint_func(found: Records) -> Iterator[Rows]:
    """Give the function that recomputes activations where it is not the default (v0.10.3+)."""
    yield found.rows("fact", "config.activation_checkpoint_func", text=found["name"])


# [2026-11-30 01:12:52,946] [INFO] [engine.py:146:__init__] is_pipe_partitioned= False is_grad_partitioned= False
@records(
    "deepspeed-pipe-partitioned",
    mark="is_pipe_partitioned= ",
    pattern=r"^is_pipe_partitioned= (?P<pipe>True|False) is_grad_partitioned= (?P<grad>True|False)",
)
def partitioned(found: Records) -> Iterator[Rows]:
    """Give whether activations and gradients are split over tensor ranks when sent: every rank (v0.12.3+)."""
    yield found.rows("fact", "config.is_pipe_partitioned", value=numbers(found["pipe"]), text=found["pipe"])
    yield found.rows("fact", "config.is_grad_partitioned", value=numbers(found["grad"]), text=found["grad"])


@records(
    "deepspeed-rank-line",
    mark=" LAYERS=",
    head=r"(?:^|[^A-Za-z_])RANK=(?P<rank>\d{1,9}) STAGE=(?P<stage>\d{1,9})$",
    pattern=(
        r"^ LAYERS=(?P<layers>\d{1,9}) \[(?P<start>\d{1,9}), \d{1,9}\) STAGE_PARAMS=(?P<params>\d{1,18}) \([^)]*\)"
        r" TOTAL_PARAMS=(?P<total>\d{1,18}) \([^)]*\) UNIQUE_PARAMS=(?P<unique>\d{1,18})"
    ),
    torn=r"^ LAYERS=\d+ \[",
)
def rank_line(found: Records) -> Iterator[Rows]:
    """Give a rank's stage, layers and trainable parameters (of its tensor shard), and the sums over pipeline and tensor ranks.

    In TOTAL_PARAMS what tensor ranks hold alike counts as often as there are tensor ranks; UNIQUE_PARAMS leaves out tied copies.
    """
    rank, index = found.int("rank"), found.int("stage")
    found.columns["label"] = _own_labels(found.columns["label"], rank)
    yield found.rows("place", "rank-line", rank=rank, stage=index)
    yield found.rows("stage", "layer_range", rank=rank, stage=index, value=found.float("start"), steps=found.int("layers"))
    yield found.rows("stage", "params", rank=rank, stage=index, value=found.float("params"))
    yield found.rows("fact", "topology.total_params", rank=rank, value=found.float("total"), text=found["total"])
    yield found.rows("fact", "topology.unique_params", rank=rank, value=found.float("unique"), text=found["unique"])


def _own_labels(labels: pa.Array, rank: pa.Array) -> pa.Array:
    """Labels that tell a rank: null where several ranks come under the same one (the task of a whole node's launcher, a log put together later)."""
    if labels.null_count == len(labels):
        return labels
    codes = pc.fill_null(labels.dictionary_encode().indices, -1).to_numpy(zero_copy_only=False)
    pairs = np.unique(np.stack((codes, pc.fill_null(rank, -1).to_numpy(zero_copy_only=False))), axis=1)
    shared, ranks = np.unique(pairs[0], return_counts=True)
    return pc.if_else(pa.array(np.isin(codes, shared[ranks > 1])), pa.scalar(None, labels.type), labels)


_SETTINGS = {
    "Partition Activations": "partition_activations",
    "contiguous Memory Checkpointing": "contiguous_memory_optimization",
    "Synchronization": "synchronize_checkpoint_boundary",
    "Profiling time in checkpointing": "profile",
}


# [2021-06-10 20:47:54,339] [INFO] [checkpointing.py:408:forward] Activation Checkpointing Information
# [2021-06-10 20:47:54,339] [INFO] [checkpointing.py:409:forward] ----Partition Activations False, CPU CHECKPOINTING False
# [2021-06-10 20:47:54,339] [INFO] [checkpointing.py:412:forward] ----contiguous Memory Checkpointing False with 64 total layers
# [2021-06-10 20:47:54,339] [INFO] [checkpointing.py:415:forward] ----Synchronization False
# [2021-06-10 20:47:54,339] [INFO] [checkpointing.py:416:forward] ----Profiling time in checkpointing False
@records(
    "deepspeed-checkpointing",
    mark=tuple(f"----{name} " for name in _SETTINGS),
    pattern=(
        r"^----(?P<name>Partition Activations|contiguous Memory Checkpointing|Synchronization|Profiling time in checkpointing) (?P<on>True|False)(?:, CPU CHECKPOINTING (?P<cpu>True|False)| with (?P<layers>\d{1,9}|None) total layers)?\s*$"
    ),
)
def checkpointing(found: Records) -> Iterator[Rows]:
    """Give the options of activation checkpointing in force, by their names in ds_config.json but without `config.`: arguments may override it.

    Printed when checkpointing is first used, and when it is configured.
    """
    names = pa.array(list(_SETTINGS.values())).take(pc.index_in(found["name"], pa.array(list(_SETTINGS))))
    yield found.rows("fact", joined("activation_checkpointing.", names), value=numbers(found["on"]), text=found["on"])
    for group, key in (("cpu", "cpu_checkpointing"), ("layers", "number_checkpoints")):
        also = found.where(found.has(group))
        yield also.rows("fact", f"activation_checkpointing.{key}", value=numbers(also[group]), text=also[group])


# RANK=0 PIPE-ID=0 DATA-ID=0 MBATCH-ID=3 STEP-ID=12 :: forward
@records(
    "deepspeed-device-line",
    mark=" PIPE-ID=",
    head=r"(?:^|[^A-Za-z_])RANK=(?P<rank>\d{1,9})$",
    pattern=r"^ PIPE-ID=(?P<stage>\d{1,9}) DATA-ID=(?P<replica>\d{1,9}) ",
)
def device_line(found: Records) -> Iterator[Rows]:
    """Give a rank's place from the debugging lines that forks switch on (`log_for_device`); they come by the thousand."""
    found = first_of_each(found, "rank", "stage", "replica")
    yield found.rows("place", "rank-line", rank=found.int("rank"), stage=found.int("stage"), replica=found.int("replica"))
