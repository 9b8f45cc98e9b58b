"""ds_config.json files: told by content, read into facts `config.<key>` with their lines."""

from __future__ import annotations

import codecs
import re

import pyarrow as pa

from pipelog.events import WORD, Input, Skipped, conform, constant, of_rows
from pipelog.parsers._config_facts import Entry, Reader
from pipelog.reading.files import Source
from pipelog.reading.streams import Stream

_LARGEST = 8 << 20
"""A configuration is a few KB; what is larger is something else, and is not read to its end."""

_OWN = frozenset(
    (
        "aio",
        "autotuning",
        "comms_logger",
        "compression_training",
        "csv_monitor",
        "data_efficiency",
        "data_types",
        "elasticity",
        "flops_profiler",
        "gradient_predivide_factor",
        "hybrid_engine",
        "nebula",
        "prescale_gradients",
        "sparse_attention",
        "sparse_gradients",
        "train_micro_batch_size_per_gpu",
        "zero_allow_untested_optimizer",
        "zero_force_ds_cpu_optimizer",
        "zero_optimization",
    )
)
"""Top-level keys that nobody else uses."""

_INSIDE = {
    "activation_checkpointing": ("partition_activations", "cpu_checkpointing", "contiguous_memory_optimization", "number_checkpoints", "profile"),
    "amp": ("enabled",),
    "bf16": ("enabled",),
    "bfloat16": ("enabled",),
    "fp16": ("enabled",),
    "pipeline": ("stages", "partition", "activation_checkpoint_interval", "pipe_partitioned", "grad_partitioned"),
    "tensor_parallel": ("autotp_size",),
    "torch_autocast": ("enabled",),
}
"""Keys that are DeepSpeed's by what they hold: HF's arguments have `fp16` and `bf16` too, as plain values."""

_TELLING = frozenset(("train_batch_size", "steps_per_print", "wall_clock_breakdown", "memory_breakdown", "dump_state", "communication_data_type"))
_COMMON = frozenset(("gradient_accumulation_steps", "gradient_clipping", "optimizer", "scheduler"))
"""Keys that others use as well (trainer_state.json has train_batch_size): enough where they are half of all or more, and one is telling."""

_BEGIN = re.compile(r"(?:\s++|//[^\n]*+\n|\#[^\n]*+\n|(?>/\*.*?\*/))*+\{", re.DOTALL)


def is_config(head: bytes) -> bool:
    """Return whether a file that begins with *head* holds a DeepSpeed configuration."""
    text = _text(head)
    if not _BEGIN.match(text[:20_000]):
        return False
    entries = list(Reader(strict=False).entries(_lines(text)))
    if any(entry.path[0] in _OWN or _tells(entry) for entry in entries):
        return True
    keys = {entry.path[0] for entry in entries}
    return bool(keys & _TELLING) and 2 * len(keys & (_TELLING | _COMMON)) >= len(keys)


def _tells(entry: Entry) -> bool:
    return len(entry.path) > 1 and entry.path[1] in _INSIDE.get(entry.path[0], ())


def read_config(source: Source) -> tuple[pa.Table, Input]:
    """Return the facts of a ds_config.json, and what was skipped. Never raises for what the file holds."""
    stream = Stream(source.path)
    data = bytearray()
    for piece in stream.text():
        data += piece
        if len(data) > _LARGEST:
            break
    given = Input(source.shown, "config", source.bytes)
    reader = Reader(strict=False)
    entries = reader.entries(_lines(_text(bytes(data[:_LARGEST]))))
    rows = [entry.row() for entry in entries if entry.path != ("world_size",)]  # DeepSpeed's, printed, counts replicas; here it is somebody else's
    table = of_rows(rows, ("kind", "name", "value", "text", "line"))
    table = conform(table.append_column("file", constant(source.shown, WORD, len(rows))))
    given.events = table.num_rows
    given.skipped = [*reader.trouble[:200], *stream.trouble]
    if len(data) > _LARGEST:
        given.skipped.append(Skipped(None, "only the first 8 MiB were read: no DeepSpeed configuration is as large"))
    return table, given


def _text(data: bytes) -> str:
    for mark, coding in ((codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"), (codecs.BOM_UTF8, "utf-8")):
        if data.startswith(mark):
            return data[len(mark) :].decode(coding, "replace")
    return data.decode("utf-8", "replace")


def _lines(text: str) -> list[tuple[int, str]]:
    return list(enumerate(text.split("\n"), 1))
