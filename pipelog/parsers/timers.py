"""`time (ms) | a: 1.20 | b: 3.40`: the timer lines of DeepSpeed, Megatron-LM, gpt-neox and their kin. Milliseconds, two decimals.

DeepSpeed, rank 0; a sum over the interval of `steps_per_print` steps (the last call only in v0.4.0 - v0.5.6):

    rank=0 time (ms) | forward_microstep: 293.60 | backward_microstep: 558.29                                       v0.3.0 - v0.3.11
    [2026-11-30 01:36:31,836] [INFO] [logging.py:96:log_dist] [Rank 0] rank=0 time (ms) | forward: 293.70 | step: 6.86    - v0.10.0
    [2026-11-30 01:33:48,464] [INFO] [logging.py:107:log_dist] [Rank 0] time (ms) | fwd: 117.44 | bwd: 262.19             - v0.17.6
    [Rank 0] time (ms) | fwd: 61.37 | bwd: 114.65 | bwd_inner: 114.61 | bwd_allreduce: 0.00 | step: 8.85                  v0.18.0 on
    [2021-08-17 21:05:40,101] [INFO] [logging.py:60:log_dist] [Rank 0] rank=0 time (ms) | forward: 3.21    profile of activation checkpointing

Megatron, last rank, and gpt-neox, rank 0; the mean of one iteration:

    time (ms) | forward-compute: 264.79 | forward-recv: 2365.31 | optimizer: 85.49 | batch-generator: 3.05    Megatron-LM until 2022, BigScience
    time (ms) | forward: 35650.91 | backward: 85861.86 | optimizer: 386.53 | batch generator: 13.17           Megatron-LM v1, gpt-neox
    time (ms) | model and optimizer: 11002.57 | train/valid/test data iterators: 1280.95                      set-up, once
    time (ms)                                                               the pipeline engine runs the step: nothing was measured
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from pipelog.parsing import Records, Rows, records

_NAME = r"[A-Za-z][\w /-]*"
_FIELD = rf" \| {_NAME}: -?\d+\.\d\d"
_SETUP = r"(?:setup|iterators|load-checkpoint|save-checkpoint|model and optimizer): "
_GLUED = r"(?:\[Rank \d| ?iteration |after \d|samples/sec: )"
"""How the records begin that were seen glued to a line without a field."""


@records(
    "timers",
    mark="time (ms)",
    # what follows the last field is another writer's text, unless it goes on with ` |`: then the record is broken off
    pattern=rf"^time \(ms\)(?:(?P<fields>(?:{_FIELD})+)(?:[^ ].*| [^|].*| ?)|(?P<bare> ?\|? *)(?:{_GLUED}.*)?)$",
    head=r"(?P<deepspeed>\[Rank -?\d+\] )?(?:rank=(?P<rank>\d{1,9}) )?$",
    torn=rf"^time \(ms\) \| {_NAME}: ",
    shadows=("time (ms): ",),  # the comms logger: `comm op: recv | time (ms): 7.12 | msg size: 8.0 KB`
)
def timers(found: Records) -> Iterator[Rows]:
    """One row per field; a `timer_line` row for a line that measured nothing."""
    fields = found.groups["fields"]
    alone = pc.match_substring_regex(fields, r"^ \| (?:fwd|bwd|forward|backward): [^|]+$")
    spelt = pc.match_substring_regex(fields, r"\| [^:|]*[ -][^:|]*: ")  # Megatron spells names with hyphens or blanks
    known = pc.match_substring_regex(fields, r"\| (?:[a-z]+_|[fb]wd: )")  # DeepSpeed with underscores
    headed = pc.or_(found.has("deepspeed"), found.has("rank"))
    deepspeed = pc.and_(pc.invert(spelt), pc.or_(headed, known))
    yield _each(found.where(alone), "checkpoint_timer")
    yield _each(found.where(pc.and_not(deepspeed, alone)), "timer")
    yield _each(found.where(pc.invert(pc.or_(deepspeed, alone))), "megatron_timer")

    zero = pc.and_(pc.match_substring_regex(fields, r"^(?: \| [^|]+: -?0\.00)+$"), pc.invert(pc.match_substring_regex(fields, _SETUP)))
    nothing = found.where(pc.and_not(zero, alone))
    yield nothing.rows("timer_line", "zero", rank=nothing.int("rank"))
    yield found.where(pc.invert(found.has("fields"))).rows("timer_line", "empty")


def _each(found: Records, kind: str) -> Rows:
    """One row per timer, under the names of v0.10.1 (DeepSpeed) or with hyphens (Megatron)."""
    each = found.split("fields", " | ", r"^(?P<name>[^:]+): (?P<ms>\S+)$")
    names = each["name"].dictionary_encode()
    words = names.dictionary
    if kind == "megatron_timer":
        words = pc.replace_substring(words, " ", "-")
    else:
        words = pc.replace_substring_regex(pc.replace_substring_regex(words, r"^forward", "fwd"), r"^backward", "bwd")
    return each.rows(kind, pa.DictionaryArray.from_arrays(names.indices, words), rank=each.int("rank"), dur_ns=each.ms("ms"))
