"""The configuration that the job ran with, each value with its source."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

import pandas as pd

from pipelog.events import Input
from pipelog.tables import Tables, table
from pipelog.tables.topology import Said, Topology, said


@dataclass(slots=True)
class Config:
    """What the engine was told. micro_batches is m: of one pipeline replica and optimizer step (DeepSpeed's accumulation steps).

    said: source of each value. conflicts: (what, the values that disagree).
    """

    train_batch_size: int | None = None
    micro_batch_size: int | None = None
    micro_batches: int | None = None
    zero_stage: int | None = None
    precision: str | None = None
    activation_checkpoint_interval: int | None = None
    schedule: str | None = None
    virtual_stages: int | None = None
    steps_per_print: int | None = None
    wall_clock_breakdown: bool | None = None
    memory_breakdown: bool | None = None
    deepspeed: str | None = None
    said: dict[str, Said] = field(default_factory=dict)
    conflicts: list[tuple[str, list[Said]]] = field(default_factory=list)


_ORDER = {  # value → facts that state it, most trusted first: what the engine prints before what it was given
    "train_batch_size": ("config.train_batch_size", "args.global_batch_size", "args.train_batch_size"),
    "micro_batch_size": (
        "config.micro_batch_size",
        "config.train_micro_batch_size_per_gpu",
        "args.micro_batch_size",
        "args.train_micro_batch_size_per_gpu",
    ),
    "micro_batches": ("config.micro_batches", "config.gradient_accumulation_steps", "args.gradient_accumulation_steps"),
    "zero_stage": ("config.zero_optimization.stage", "args.zero_stage"),
    "activation_checkpoint_interval": ("config.pipeline.activation_checkpoint_interval",),
    "steps_per_print": ("config.steps_per_print",),
    "virtual_stages": ("args.virtual_pipeline_model_parallel_size",),
}
_MAY_BE_ZERO = frozenset(("zero_stage", "activation_checkpoint_interval"))
_MOST = 1 << 40
"""What is larger, or less than 1, is a damaged line: no batch size and no number of steps."""


@table("config", needs=("facts", "topology", "inputs", "tables"))
def config(facts: pd.DataFrame, topology: Topology, inputs: list[Input], tables: Tables) -> Config:
    """Collect the values; derive m from train batch / (micro-batch x replicas) where nothing states it.

    Of several ds_config.json the one that the command line names counts; where none is named and they disagree, neither does.
    """
    known = Config()
    facts = _one_config(facts, inputs, known)
    for name, sources in _ORDER.items():
        least = 0 if name in _MAY_BE_ZERO else 1
        values = [s for s in said(facts, sources) if isinstance(s.value, int | float) and float(s.value).is_integer() and least <= s.value <= _MOST]
        if values:
            setattr(known, name, int(values[0].value))
            known.said[name] = values[0]
    for name in ("wall_clock_breakdown", "memory_breakdown"):
        if values := said(facts, (f"config.{name}",)):
            setattr(known, name, bool(values[0].value == 1 or str(values[0].value).lower() == "true"))
            known.said[name] = values[0]
    if version := said(facts, ("version.deepspeed",)):
        known.deepspeed = str(version[0].value)
        known.said["deepspeed"] = version[0]
    known.precision = _precision(facts)
    if known.train_batch_size is None:
        _from_iterations(known, tables["scalars"])
    _derive(known, topology)
    if known.micro_batches is None and any(i.kind == "trace" for i in inputs):
        _count(known, tables["instructions"])
    if known.micro_batches is None and (told := tables.get("operation_time")) is not None:
        _count_passes(known, told)
    if known.micro_batches is None:
        _default(known, facts, inputs, topology)
    if topology.pp and topology.pp > 1:
        _schedule(known, facts, topology.pp)
    return known


_NAMES = {"1F1B": "1f1b", "GPipe": "gpipe", "Interleaved1F1B": "interleaved-1f1b", "LoopedBFS": "looped-bfs"}
"""Schedules of torch's pipelining that idle as the closed form says: all that do not split the backward pass."""


def _schedule(known: Config, facts: pd.DataFrame, pp: int) -> None:
    """The schedule and the chunks of a rank; 1F1B where no line names another. Null is the number of chunks where the closed form is not the schedule's."""
    named = said(facts, ("schedule.name",))
    if not named:
        known.virtual_stages = known.virtual_stages or 1
        known.schedule = "interleaved-1f1b" if known.virtual_stages > 1 else "1f1b"
        return
    name = str(named[0].value)
    known.schedule, known.said["schedule"] = _NAMES.get(name, name), named[0]
    stages = [int(s.value) for s in said(facts, ("schedule.stages",)) if isinstance(s.value, float) and s.value % pp == 0]
    known.virtual_stages = stages[0] // pp if name in _NAMES and stages else None


def _from_iterations(known: Config, scalars: pd.DataFrame) -> None:
    """`global batch size:` of Megatron's iteration lines, where it is one and the same all along: a batch that grows is none."""
    rows = scalars[(scalars["name"] == "global_batch_size") & scalars["value"].notna()]
    sizes = rows["value"].unique()
    if len(sizes) == 1 and float(sizes[0]).is_integer() and 1 <= sizes[0] <= _MOST:
        known.train_batch_size = int(sizes[0])
        known.said["train_batch_size"] = Said(known.train_batch_size, str(rows["file"].iloc[0]), int(rows["line"].iloc[0]), "iteration lines")


def _one_config(facts: pd.DataFrame, inputs: list[Input], known: Config) -> pd.DataFrame:
    files = [i.path for i in inputs if i.kind == "config"]
    if len(files) < 2:
        return facts
    named = {PurePosixPath(str(s.value)).name for s in said(facts, ("args.deepspeed_config",))}
    chosen = [f for f in files if PurePosixPath(f).name in named]
    if len(chosen) == 1:
        return facts[~facts["file"].isin(set(files) - set(chosen))]
    of_files = facts[facts["file"].isin(files) & facts["name"].str.startswith("config.")]
    shown = of_files.assign(shown=of_files["text"].fillna("").astype(str))
    counts = shown.groupby("name")["shown"].nunique()
    doubtful = set(counts[counts > 1].index)
    for name in sorted(doubtful):
        rows = of_files[of_files["name"] == name]
        values = [Said(t, f, None if pd.isna(n) else int(n), name) for t, f, n in zip(rows["text"], rows["file"], rows["line"], strict=True)]
        known.conflicts.append((name, values))
    return facts[~(facts["file"].isin(files) & facts["name"].isin(doubtful))]


def _precision(facts: pd.DataFrame) -> str | None:
    for word, names in (("bf16", ("config.bf16.enabled", "args.bf16")), ("fp16", ("config.fp16.enabled", "args.fp16"))):
        values = said(facts, names)
        if values and _true(values[0].value):
            return word
    stated = said(facts, ("config.fp16.enabled", "config.bf16.enabled", "args.fp16", "args.bf16", "config.train_micro_batch_size_per_gpu"))
    return "fp32" if stated else None


def _count(known: Config, instructions: pd.DataFrame) -> None:
    """M from the traces: forward passes of a rank in a step, where all recorded ranks and steps agree."""
    forward = instructions[instructions["instruction"] == "forward"]
    counts = forward.groupby(["rank", "window"]).size().unique() if len(forward) else []
    if len(counts) == 1:
        known.micro_batches = int(counts[0])
        known.said["micro_batches"] = Said(
            known.micro_batches, str(forward["file"].iloc[0]), int(forward["line"].iloc[0]), "forward passes a step in the traces"
        )


def _count_passes(known: Config, operation_time: pd.DataFrame) -> None:
    """M from a table of operations, where all workers and steps agree."""
    row = operation_time.iloc[0]
    if (operation_time["micro_batches"] == row["micro_batches"]).all() and row["micro_batches"] > 0:
        known.micro_batches = int(row["micro_batches"])
        known.said["micro_batches"] = Said(
            known.micro_batches, str(row["file"]), int(row["line"]), "forward passes a step in the table of operations"
        )


def _true(value: Any) -> bool:
    return value == 1 or str(value).lower() == "true"


def _derive(known: Config, topology: Topology) -> None:
    """DeepSpeed: train batch = micro-batch x m x replicas; any one may be missing."""
    train, micro, m, dp = known.train_batch_size, known.micro_batch_size, known.micro_batches, topology.dp
    source = "train batch = micro-batch x micro-batches x replicas"
    if m is None and train and micro and dp and train % (micro * dp) == 0:
        known.micro_batches = train // (micro * dp)
        known.said["micro_batches"] = Said(known.micro_batches, None, None, source)
    elif m and micro is None and train and dp and train % (m * dp) == 0:
        known.micro_batch_size = train // (m * dp)
        known.said["micro_batch_size"] = Said(known.micro_batch_size, None, None, source)
    elif m and micro and train is None and dp:
        known.train_batch_size = m * micro * dp
        known.said["train_batch_size"] = Said(known.train_batch_size, None, None, source)


def _default(known: Config, facts: pd.DataFrame, inputs: list[Input], topology: Topology) -> None:
    """DeepSpeed takes m = 1 where its configuration gives neither m nor the train batch, not even as "auto". Only a whole file shows that."""
    micro, given = known.said.get("micro_batch_size"), {i.path for i in inputs if i.kind == "config" and not i.skipped}
    if micro is None or micro.file not in given or facts["name"].isin(["config.gradient_accumulation_steps", "config.train_batch_size"]).any():
        return
    known.micro_batches = 1
    known.said["micro_batches"] = Said(1, micro.file, None, "DeepSpeed's default: no accumulation steps, no train batch given")
    if known.train_batch_size is None and topology.dp:
        known.train_batch_size = (known.micro_batch_size or 0) * topology.dp
