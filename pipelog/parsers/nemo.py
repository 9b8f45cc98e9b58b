"""What NeMo prints: steps as lines or as Lightning's progress bar, how it cuts the job. It counts steps from 0, the event table from 1.

    Training epoch 0, iteration 98/99 | lr: 1.484e-05 | global_batch_size: 128 | global_step: 98 | reduced_train_loss: 6.181 | train_step_timing in s: 12.21
    Epoch 0: :  47%|████▋     | 7/15 [06:19<07:13, v_num=, reduced_train_loss=11.50, global_step=6.000, consumed_samples=12288.0, train_step_timing in s=49.50]
    Epoch 0:   1%|          | 795/77225 [9:07:58<878:01:48, 41.36s/it, loss=3.1, v_num=, reduced_train_loss=3.090, global_step=794.0]       NeMo before 1.21
    [NeMo I 2023-09-25 08:43:12 megatron_init:294] All pipeline model parallel group ranks: [[0, 2], [1, 3]]
          pipeline_model_parallel_size: 2                                   its configuration, as YAML

The time is that of the last step alone. The bar writes numbers with three digits where that is shorter: 2e+3 is any step from 1,995 to 2,004.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from pipelog.parsers._fields import fields
from pipelog.parsing import Records, Rows, lines, records

_NUMBER = r"(?:[-+]?\d[\d.]*(?:e[-+]?\d+)?|nan|-?inf)"
_SCALARS = {
    "reduced_train_loss": "loss",
    "lr": "learning_rate",
    "grad_norm": "grad_norm",
    "consumed_samples": "consumed_samples",
    "global_batch_size": "global_batch_size",
    "tokens_per_sec_per_gpu": "tokens_per_gpu_per_s",
}
_MEMORY = {"max_memory_allocated": "max_allocated", "max_memory_reserved": "max_reserved"}
_FIELD = r" [a-z][\w ]*: [^ |]+(?: \||\s*$)"


@records(
    "nemo-step",
    mark="Training epoch ",
    pattern=rf"^Training epoch \d{{1,9}}, iteration (?P<number>\d{{1,9}})/\d{{1,12}} \|(?P<fields>(?:{_FIELD})+)$",
    torn=r"^Training epoch \d+, iteration \d+/\d+ \| lr: ",
)
def step(found: Records) -> Iterator[Rows]:
    """A step, its scalars, the peaks of the printing rank's memory; validation losses are printed again at every step and left out."""
    printed = pc.struct_field(pc.extract_regex(found.groups["fields"], r"\bglobal_step: (?P<step>\d{1,9})\b"), "step")
    found.groups["step"] = pc.coalesce(printed, found["number"])
    found.columns |= {"step": pc.add(found.int("step"), 1)}
    found.groups["seconds"] = pc.struct_field(
        pc.extract_regex(found.groups["fields"], rf"\btrain_step_timing in s: (?P<seconds>{_NUMBER})(?: |$)"), "seconds"
    ).fill_null("")
    yield found.rows("step", "nemo", dur_ns=found.seconds("seconds"))
    yield from _values(fields(found, "fields"))


def _values(each: Records) -> Iterator[Rows]:
    for table, kind in ((_SCALARS, "scalar"), (_MEMORY, "memory")):
        place = pc.index_in(each.groups["name"], pa.array(list(table)))
        mine = each.where(pc.is_valid(place))
        names = pa.array(list(table.values())).take(place.drop_null())
        if kind == "scalar":
            yield mine.rows("scalar", names, value=mine.float("value"))
        else:
            yield mine.rows("memory", names, bytes=mine.bytes("value", "B"))


@records(
    "nemo-bar",
    mark="reduced_train_loss=",
    head=r"\bEpoch (?P<epoch>\d{1,9}): (?:.*\| *(?P<number>\d{1,9})/(?:\d{1,12}|\?)|: *\d{1,9}it) \[[^\]]*$",
    pattern=rf"^reduced_train_loss=(?P<loss>{_NUMBER})(?:, [^\]]*?\bglobal_step=(?P<step>\d[\d.]*(?P<rounded>e\+\d+)?))?(?:, [^\]]*?train_step_timing in s=(?P<seconds>{_NUMBER}))?[,\]]",
)
def bar(found: Records) -> Iterator[Rows]:
    """A step and its loss; of one whose number is rounded the bar's own count, which is the same in the first epoch only."""
    counted = pc.if_else(pc.equal(found.int("epoch"), 0), found.int("number"), pa.scalar(None, pa.int64()))
    exact = pc.and_(found.has("step"), pc.invert(found.has("rounded")))
    number = pc.if_else(exact, pc.add(pc.cast(pc.floor(found.float("step")), pa.int64(), safe=False), 1), counted)
    found.columns |= {"step": number}
    known = found.where(pc.is_valid(number))
    yield known.rows("step", "nemo", dur_ns=known.seconds("seconds"))
    yield known.rows("scalar", "loss", value=known.float("loss"))


# the same of one rank alone: megatron_setup.py
@records(
    "nemo-ranks",
    mark=tuple(f"All {what} model parallel group ranks: " for what in ("tensor", "pipeline")),
    pattern=r"^All (?P<what>\w+) model parallel group ranks: \[(?P<groups>\[(?P<first>\d{1,9}(?:, \d{1,9})*)\](?:, \[\d{1,9}(?:, \d{1,9})*\])*)\]\s*$",
)
def ranks(found: Records) -> Iterator[Rows]:
    """Give the size of the groups, which is the number of stages or of tensor-parallel ranks, and that of all ranks."""
    names = pc.if_else(pc.equal(found.groups["what"], "pipeline"), "topology.pp", "topology.tp")
    for name, listed in ((names, "first"), ("topology.world_size", "groups")):
        size = pc.cast(pc.add(pc.count_substring(found.groups[listed], ", "), 1), pa.float64())
        yield found.rows("fact", name, value=size, text=pc.utf8_slice_codeunits(found[listed], 0, 60))


# [NeMo I 2025-06-18 16:53:08 nemo_logging:393] Successfully saved checkpoint from iteration      49 to /ckpt/evo2--val_loss=0.0000-epoch=0-last.ckpt
# [NeMo I 2025-06-18 16:53:08 nemo_logging:393] Async checkpoint save for step 50 (/ckpt/evo2--val_loss=0.0000-epoch=0-last.ckpt) finalized successfully.
@lines(
    "nemo-checkpoint",
    mark=("Successfully saved checkpoint from iteration ", "Async checkpoint save for step "),
    pattern=r"(?:Successfully saved checkpoint from iteration +(?P<last>\d{1,9}) to (?P<path>\S+)"
    r"|Async checkpoint save for step (?P<step>\d{1,9}) \((?P<file>[^)]+)\) finalized successfully)",
)
def checkpoint(found: Records) -> Iterator[Rows]:
    """A checkpoint that is whole; the first form names the last step in it as counted from 0, the second how many there were."""
    made = pc.coalesce(found.int("step"), pc.add(found.int("last"), 1))
    yield found.rows("checkpoint", "complete", step=made, text=pc.coalesce(found["path"], found["file"]))


@records(
    "nemo-config",
    mark=("tensor_model_parallel_size: ", "pipeline_model_parallel_size: ", " micro_batch_size: "),
    head=r"(?:^|[\]:>] ?)\s*(?P<virtual>virtual_)?$",
    pattern=r"^ ?(?P<name>(?:tensor_model_parallel|pipeline_model_parallel|micro_batch)_size): (?P<value>\d{1,7})\s*$",
)
def config(found: Records) -> Iterator[Rows]:
    """Give what the configuration says of the grid and the micro-batch."""
    names = pc.binary_join_element_wise("args.", found.groups["virtual"], found["name"], "")
    yield found.rows("fact", names, value=found.float("value"), text=found["value"])
