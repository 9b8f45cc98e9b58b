"""Checkpoints written and read. The step is that of the tag (`global_step500`) or of the line; loads also state `resume.step`.

DeepSpeed. `begin` … `complete` by its checkpoint engine (v0.7.0 on), one line a file and rank in between:

    [2023-06-02 00:47:16,187] [INFO] [logging.py:96:log_dist] [Rank 0] [Torch] Checkpoint global_step500 is about to be saved!
    [2023-06-02 00:47:16,224] [INFO] [torch_checkpoint_engine.py:21:save] [Torch] Saving output/pp2/ckpt/global_step500/layer_00-model_states.pt...
    [2023-06-02 00:47:17,324] [INFO] [torch_checkpoint_engine.py:23:save] [Torch] Saved output/pp2/ckpt/global_step500/layer_00-model_states.pt.
    [2023-08-15 07:22:31,774] [INFO] [torch_checkpoint_engine.py:33:commit] [Torch] Checkpoint global_step2500 is ready now!
    [2023-11-18 07:44:02,261] [INFO] [torch_checkpoint_engine.py:29:load] [Torch] Loaded checkpoint from /data/ckpt/run7/global_step2000/mp_rank_00_model_states.pt.
    [Rank 0] [Torch] End Load checkpoint from /data/ckpt/run7/global_step2000/mp_rank_00_model_states.pt                     v0.17.1 on

The engine itself, and what it does not find:

    [2026-11-30 01:23:10,862] [INFO] [logging.py:107:log_dist] [Rank 0] Saving model checkpoint: checkpoints/global_step5/mp_rank_00_model_states.pt
    zero checkpoint saved ckpt/global_step500/zero_pp_rank_0_mp_rank_02_optim_states.pt                                      up to v0.17.0
    rank: 3 loading checkpoint: ckpt/global_step500/mp_rank_01_model_states.pt                                               v0.3.0 - v0.5.3
    loading 4 zero partition checkpoints for rank 3
    successfully read 4 ZeRO state_dicts for rank 3
    Unable to find latest file at ckpt/latest, if trying to load latest checkpoint please ensure this file exists or pass an explicit …

Megatron, rank 0:

    saving checkpoint at iteration    2500 to ./tmp
      successfully saved checkpoint at iteration    2500 to ./tmp
      successfully saved checkpoint from iteration    5000 to ckpt [ t 1/4, p 1/4 ]                    Megatron-LM core
     loading checkpoint from ckpt at iteration 5000
      successfully loaded checkpoint from ckpt [ t 1/4, p 1/4 ] at iteration 5000
    WARNING: could not find the metadata file /data/scratch/checkpoints/gpt2-1-node/latest_checkpointed_iteration.txt
    Checkpoint Save GB: 12.34, GB/Sec: 1.2, Latency(second): 10.3                                      Megatron-DeepSpeed
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelog.parsing import Records, Rows, records

_TAG = r"^(?:.*[/\\])?(?:global_step|checkpoint-|iter_0*)(?P<step>\d{1,9})(?:[/\\]|$)"
"""The step in a path or tag: `ckpt/global_step500/mp_rank_00_model_states.pt`, `global_step500`."""

_APART = 100
"""Lines between two loads from which on they are two starts of the job: the ranks of one load close together."""

_WORDS = {
    "Saving": "saving",
    "Saved": "saved",
    "Loading checkpoint from": "loading",
    "Begin Load checkpoint from": "loading",
    "Loaded checkpoint from": "loaded",
    "End Load checkpoint from": "loaded",
}


def _step(texts: pa.Array) -> pa.Array:
    """Return the step that a path or tag names, null where it names none."""
    found = pc.extract_regex(texts, _TAG)
    return pc.cast(pc.if_else(pc.is_valid(found), found.field("step"), pa.scalar(None, pa.string())), pa.int64())


def _resumed(found: Records) -> Rows:
    """Return the fact `resume.step` for the first of the records that follow one another with the same step."""
    known = found.where(pc.is_valid(_step(found.groups["path"])))
    step, line = _step(known.groups["path"]).to_numpy(), known.columns["line"].to_numpy()
    again = (step[1:] == step[:-1]) & (line[1:] - line[:-1] < _APART)
    known.groups["step"] = pa.array(step).cast(pa.string())
    first = known.where(pa.array(np.concatenate(([True], ~again))[: len(step)]))
    return first.rows("fact", "resume.step", value=first.float("step"), text=first["path"])


@records(
    "checkpoint-file",
    mark=("[Torch] ", "[Nebula] ", "[Fast] "),
    pattern=rf"^\[\w+\] (?P<what>{'|'.join(_WORDS)}) (?P<path>[^ \[][^\[]*?)(?:\.\.\.|\.)?\s*(?:\[|$)",
)
def file(found: Records) -> Iterator[Rows]:
    """One file about to be written or read, or done."""
    words = found.groups["what"].dictionary_encode()
    names = pa.array([_WORDS[w] for w in words.dictionary.to_pylist()], pa.string()).take(words.indices)
    yield found.rows("checkpoint", names, step=_step(found.groups["path"]), text=found["path"])
    yield _resumed(found.where(pc.equal(names, "loaded")))


@records(
    "checkpoint-tag",
    mark=("[Torch] Checkpoint ", "[Nebula] Checkpoint ", "[Fast] Checkpoint "),
    pattern=r"^\[\w+\] Checkpoint (?P<tag>\S+) is (?P<what>about to be saved|begin to save|ready now)!",
)
def tag(found: Records) -> Iterator[Rows]:
    """The whole checkpoint: about to be saved, or there; the second is printed by every rank."""
    name = pc.if_else(pc.equal(found.groups["what"], "ready now"), "complete", "begin")
    yield found.rows("checkpoint", name, step=_step(found.groups["tag"]), text=found["tag"])


@records("checkpoint-model", mark="Saving model checkpoint", pattern=r"^Saving model checkpoint(?: to|:) (?P<path>[^\s\[][^\[]*?)\s*(?:\[|$)")
def model(found: Records) -> Iterator[Rows]:
    """The engine, or Hugging Face's Trainer, begins to save."""
    yield found.rows("checkpoint", "begin", step=_step(found.groups["path"]), text=found["path"])


@records("checkpoint-zero", mark="zero checkpoint saved ", pattern=r"^zero checkpoint saved (?P<path>[^\s\[][^\[]*?)\s*(?:\[|$)")
def zero(found: Records) -> Iterator[Rows]:
    """The optimizer states of one rank are written."""
    yield found.rows("checkpoint", "saved", step=_step(found.groups["path"]), text=found["path"])


@records(
    "checkpoint-rank",
    mark="loading checkpoint: ",
    head=r"\brank: (?P<rank>\d{1,9}) $",
    pattern=r"^loading checkpoint: (?P<path>[^\s\[][^\[]*?)\s*(?:\[|$)",
)
def rank(found: Records) -> Iterator[Rows]:
    """A rank of an old release begins to load."""
    yield found.rows("checkpoint", "loading", rank=found.int("rank"), step=_step(found.groups["path"]), text=found["path"])


@records(
    "checkpoint-partitions",
    mark=(" zero partition checkpoints for rank ", " ZeRO state_dicts for rank ", "loaded universal zero checkpoints from "),
    head=r"(?:\b(?:loading|successfully read) \d+|^|[^a-z])$",
    pattern=r"^(?: zero (?P<loading>partition) checkpoints| ZeRO state_dicts|loaded universal zero checkpoints from (?P<path>\S.*?)) for rank (?P<rank>\d{1,9})\s*$",
)
def partitions(found: Records) -> Iterator[Rows]:
    """The optimizer states of a rank: about to be read, or read."""
    name = pc.if_else(found.has("loading"), "loading", "loaded")
    yield found.rows("checkpoint", name, rank=found.int("rank"), step=_step(found.groups["path"]), text=found["path"])


@records(
    "checkpoint-megatron",
    mark=("saving checkpoint at iteration ", "successfully saved checkpoint ", "scheduled an async checkpoint save "),
    pattern=r"^(?P<what>\w+) (?:saved |an async )?checkpoint (?:save )?(?:at|from) iteration +(?P<step>\d{1,9}) to (?P<path>\S+)",
    torn=r"^\w+ (?:saved )?checkpoint (?:at|from) iteration *\d*$",
)
def megatron(found: Records) -> Iterator[Rows]:
    """The whole checkpoint: about to be saved, or there."""
    name = pc.if_else(pc.equal(found.groups["what"], "successfully"), "complete", "begin")
    yield found.rows("checkpoint", name, step=found.int("step"), text=found["path"])


@records(
    "checkpoint-megatron-load",
    mark=("loading checkpoint from ", "successfully loaded checkpoint from "),
    pattern=r"^(?P<done>successfully )?load(?:ing|ed) checkpoint from (?P<path>\S+)(?: \[[^\]]*\])? at iteration +(?P<step>\d{1,9})\b",
)
def megatron_load(found: Records) -> Iterator[Rows]:
    """About to be read, or read: then training goes on after that iteration."""
    yield found.rows("checkpoint", pc.if_else(found.has("done"), "loaded", "loading"), step=found.int("step"), text=found["path"])
    done = found.where(found.has("done"))
    yield done.rows("fact", "resume.step", value=done.float("step"), text=done["path"])


@records(
    "checkpoint-missing",
    mark=("Unable to find latest file at ", "could not find the metadata file "),
    pattern=r"^(?:Unable to find latest file at|could not find the metadata file) (?P<path>[^ ,]+)",
)
def missing(found: Records) -> Iterator[Rows]:
    """There is nothing to load: training begins anew."""
    yield found.rows("checkpoint", "missing", text=found["path"])


@records(
    "checkpoint-throughput",
    mark=("Checkpoint Save GB: ", "Checkpoint Load GB: "),
    pattern=r"^Checkpoint (?P<what>Save|Load) GB: (?P<size>\d[\d.]*), GB/Sec: [\d.]+, Latency\(second\): (?P<seconds>\d+\.\d+)",
)
def throughput(found: Records) -> Iterator[Rows]:
    """How long the whole checkpoint took, and its size."""
    text = pc.utf8_lower(found.groups["what"])
    yield found.rows("checkpoint", "timed", dur_ns=found.seconds("seconds"), bytes=found.bytes("size", "GB"), text=text)
