"""What Megatron-LM, Megatron-DeepSpeed, BigScience and gpt-neox say while they start: sizes, arguments, parameters, phases.

    using world size: 64, data-parallel-size: 8, tensor-model-parallel size: 2, pipeline-model-parallel size: 4
    using world size: 64, data-parallel size: 4, context-parallel size: 1, … Nonetensor-model-parallel size: 4, …       Megatron-LM core
    using world size: 64 and model-parallel size: 4                                                                    v1.0
    > initializing tensor model parallel with size 4
    > initialized pipeline model parallel with size 2
    setting number of micro-batches to constant 32                  (`microbatches` in Megatron-LM core_v0.8.0 on)
    setting global batch size to 512
     > number of parameters on (tensor, pipeline) model parallel rank (2, 12): 805560320         rank 0 of each data-parallel group
     > number of parameters on model parallel rank 3            52.005 Billion                    v1.0
    [before the start of training step] datetime: 2021-06-10 20:47:54
    Number of parameters in most loaded shard in billions: 1.2000
    Theoretical memory footprints: weight and optimizer=20123.11 MB, activation=31002.54 MB, total=51125.65 MB        MB is MiB

and the arguments, names padded with dots to 48 characters, in v1.0 and gpt-neox to 32; gpt-neox puts a word behind the value:

    ------------------------ arguments ------------------------
      pipeline_model_parallel_size .................... 4
    -------------------- end of arguments ---------------------
    -------------------- arguments --------------------
      pipe_parallel_size .............. 4...........................updated
    ---------------- end of arguments ----------------
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from pipelog.parsers._facts import fact, first_of_each, times
from pipelog.parsing import Block, Records, Row, Rows, block, lines, records

_SIZES = {
    "world size": "topology.world_size",
    "data-parallel-size": "topology.dp",
    "data-parallel size": "topology.dp",
    "tensor-model-parallel size": "topology.tp",
    "model-parallel size": "topology.tp",
    "pipeline-model-parallel size": "topology.pp",
    "sequence-parallel size": "topology.sp",
    "context-parallel size": "topology.cp",
}
_WANTED = """
    accumulate_allreduce_grads_in_fp32 activations_checkpoint_method batch_size bf16 checkpoint_activations checkpoint_num_layers
    clip_grad context_parallel_size data_parallel_size deepspeed deepspeed_activation_checkpointing deepspeed_config
    distributed_backend dynamic_loss_scale eval_interval eval_iters exit_duration_in_mins exit_interval ffn_hidden_size finetune fp16
    fp32_residual_connection global_batch_size gradient_accumulation_steps hidden_size hysteresis initial_loss_scale load
    log_interval loss_scale loss_scale_window lr lr_decay_iters lr_warmup_iters max_position_embeddings micro_batch_size
    min_loss_scale min_scale model_parallel_size moe_expert_parallel_size num_attention_heads num_experts num_layers
    num_layers_per_virtual_pipeline_stage num_workers overlap_p2p_comm padded_vocab_size params_dtype partition_activations
    pipe_parallel_size pipe_partition_method pipeline_model_parallel_size precision rampup_batch_size recompute_granularity
    recompute_method recompute_num_layers save save_interval seq_length sequence_parallel split_transformers standalone_embedding_stage
    steps_per_print tensor_model_parallel_size timing_log_level timing_log_option train_batch_size train_iters
    train_micro_batch_size_per_gpu train_samples untie_embeddings_and_output_weights use_distributed_optimizer
    virtual_pipeline_model_parallel_size vocab_size wall_clock_breakdown world_size zero_stage
"""
_ARGUMENTS = frozenset(_WANTED.split())
"""The arguments that say how the job is cut, what a step is, and what to expect of it."""

_ARGUMENT = re.compile(r"^ {2}([A-Za-z_]\w*) \.* (.*)$", re.ASCII)
_NEOX = ("default", "updated")
_PHASES = (
    "[after megatron is initialized] datetime: ",
    "[after model, optimizer, and learning rate scheduler are built] datetime: ",
    "[after dataloaders are built] datetime: ",
    "[before the start of training step] datetime: ",
    "[before training] datetime: ",
)


@records("megatron-world", mark="using world size: ", pattern=r"^using (?P<sizes>world size: \d+(?:,| and ).*)")
def world(found: Records) -> Iterator[Rows]:
    """The sizes of the grid, read key by key: which there are, and how they are spelt, differs."""
    yield found.rows("start", "megatron")
    texts = pc.replace_substring(pc.replace_substring(found.groups["sizes"], " and ", ", "), "None", "None, ")
    found.groups["sizes"] = texts
    keys = "|".join(re.escape(key) for key in _SIZES)
    each = found.split("sizes", ", ", rf"^(?P<key>{keys}): (?P<size>\d{{1,9}})\s*$")
    names = pa.array(list(_SIZES.values())).take(pc.index_in(each.groups["key"], pa.array(list(_SIZES))))
    yield each.rows("fact", names, value=each.float("size"), text=each["size"])


# Megatron initialized: tensor-model-parallel size 4, pipeline-model-parallel size 4, data-parallel size 2
@lines(
    "megatron-sizes",
    mark="pipeline-model-parallel size ",
    pattern=r"(?P<sizes>(?:[a-z-]+-parallel size \d{1,6}, )*pipeline-model-parallel size \d{1,6}(?:, [a-z-]+-parallel size \d{1,6})*)(?:[\s.;)]|$)",
)
def sizes(found: Records) -> Iterator[Rows]:
    """The same in the words of those who build upon Megatron: the word size tells them from a rank's place."""
    each = first_of_each(found, "sizes").split("sizes", ", ", rf"^(?P<key>{'|'.join(re.escape(key) for key in _SIZES)}) (?P<size>\d{{1,6}})$")
    names = pa.array(list(_SIZES.values())).take(pc.index_in(each.groups["key"], pa.array(list(_SIZES))))
    yield each.rows("fact", names, value=each.float("size"), text=each["size"])


@records(
    "megatron-grid",
    mark=tuple(f"> {done} {what}model parallel with size " for done in ("initialized", "initializing") for what in ("tensor ", "pipeline ", "")),
    pattern=r"^> initializ(?:ed|ing) (?P<pipeline>pipeline )?(?:tensor )?model parallel with size (?P<size>\d{1,9})\s*$",
)
def grid(found: Records) -> Iterator[Rows]:
    """The tensor- and the pipeline-parallel degree; where no word says which, it is the tensor-parallel one."""
    name = pc.if_else(found.has("pipeline"), "topology.pp", "topology.tp")
    yield found.rows("fact", name, value=found.float("size"), text=found["size"])


@records(
    "megatron-batch",
    mark=("setting number of micro-batches to constant ", "setting number of microbatches to constant ", "setting global batch size to "),
    pattern=r"^setting (?:number of (?P<micro>micro-?batches) to constant|global batch size to) (?P<size>\d{1,12})\s*$",
)
def batch(found: Records) -> Iterator[Rows]:
    """The number of micro-batches, and the batch of a step over all replicas."""
    name = pc.if_else(found.has("micro"), "config.micro_batches", "config.train_batch_size")
    yield found.rows("fact", name, value=found.float("size"), text=found["size"])


@records(
    "megatron-parameters",
    mark=("number of parameters on (tensor, pipeline) model parallel rank ", "number of parameters on model parallel rank "),
    pattern=r"^number of parameters on (?:\(tensor, pipeline\) model parallel rank \((?P<tensor>\d{1,4}), (?P<stage>\d{1,4})\): (?P<count>\d{1,15})"
    r"|model parallel rank (?P<only>\d{1,4})(?:: (?P<whole>\d{1,15})| +(?P<billion>\d+\.\d{3}) Billion))",
    head=r"> $",
    torn=r"^number of parameters on (?:\(tensor, pipeline\) )?model parallel rank [\d(]",
)
def parameters(found: Records) -> Iterator[Rows]:
    """Parameters of a rank; v1.0 names the tensor-parallel rank only, and rounds to a million."""
    tensor = pc.coalesce(found.int("tensor"), found.int("only"))
    count = pc.coalesce(found.float("count"), found.float("whole"), pc.multiply(found.float("billion"), 1e9))
    yield found.rows("stage", "params", stage=found.int("stage"), tensor=tensor, value=count)


@records("megatron-phase", mark=_PHASES, pattern=r"^\[(?P<phase>[^\]]+)\] datetime: (?P<stamp>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)")
def phase(found: Records) -> Iterator[Rows]:
    """When the job came to a point of its start; local time of the writer."""
    found.columns["start_ns"] = times(found["stamp"])
    dated = found.where(pc.is_valid(found.columns["start_ns"]))
    yield dated.rows("phase", dated.groups["phase"], clock="log")


@records(
    "megatron-theory",
    mark=("Number of parameters in most loaded shard in billions: ", "Theoretical memory footprints: "),
    pattern=r"^(?:Number of parameters in most loaded shard in billions: (?P<billions>\d+\.\d+)\s*$"
    r"|Theoretical memory footprints: weight and optimizer=(?P<weights>\d+\.\d\d) MB(?:, activation=(?P<activations>\d+\.\d\d) MB, total=(?P<total>\d+\.\d\d) MB)?)",
)
def theory(found: Records) -> Iterator[Rows]:
    """What Megatron-LM works out for the rank that holds most."""
    shard = found.where(found.has("billions"))
    yield shard.rows("fact", "theory.parameters", value=pc.round(pc.multiply(shard.float("billions"), 1e9)), text=shard["billions"])
    for name in ("weights", "activations", "total"):
        mine = found.where(found.has(name))
        size = mine.bytes(name, "MB")
        yield mine.rows("fact", f"theory.{name}_bytes", value=size.cast(pa.float64()), bytes=size, text=mine[name])


@block("megatron-arguments", mark="-- arguments --", head=r"-{10,}$", most=3000)
def arguments(block: Block) -> Iterator[Row]:
    """A start, and one fact per argument that matters; other writers' lines in between are passed over."""
    found: list[tuple[int, str, str]] = []
    for number, text in block.lines():
        if "-- end of arguments --" in text or ("-- arguments --" in text and number != block.line):
            break
        if row := _ARGUMENT.match(text):
            found.append((number, row.group(1), row.group(2).rstrip()))
    if found:
        yield {"kind": "start", "name": "megatron"}
    neox = any(len(value) > 7 and value.endswith((".updated", ".default")) for _, _, value in found)
    for number, name, value in found:
        if name in _ARGUMENTS:
            yield fact(f"args.{name}", value[:-7].rstrip(".") if neox and value.endswith(_NEOX) else value, number)


# [NeMo I 2024-09-03 07:07:07 nemo_logging:381] Rank 1 has pipeline model parallel group: [0, 1, 2, 3]
@records(
    "nemo-groups",
    mark=("pipeline model parallel group: [", "tensor model parallel group: [", "data parallel group : ["),
    head=r"\bRank \d{1,9} has $",
    pattern=r"^(?P<what>pipeline|tensor|data) (?:model )?parallel group ?: \[(?P<ranks>\d{1,9}(?:, \d{1,9})*)\]",
)
def nemo_groups(found: Records) -> Iterator[Rows]:
    """Give the sizes of a rank's groups, which are those of all: stages, tensor-parallel ranks, replicas."""
    each = first_of_each(found, "what")
    size = pc.cast(pc.add(pc.count_substring(each["ranks"], ","), 1), pa.float64())
    names = pa.array(list(_GROUPS.values())).take(pc.index_in(each["what"], pa.array(list(_GROUPS))))
    yield each.rows("fact", names, value=size, text=each["ranks"])


_GROUPS = {"pipeline": "topology.pp", "tensor": "topology.tp", "data": "topology.dp"}
