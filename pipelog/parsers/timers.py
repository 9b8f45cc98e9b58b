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

import pyarrow.compute as pc

from pipelog.parsers._fields import fields, renamed
from pipelog.parsing import Records, Rows, records

_FIELD = r"\| [A-Za-z][^:|]*: -?[0-9]+\.[0-9][0-9]"
_SETUP = r"(?:setup|iterators|load-checkpoint|save-checkpoint|model and optimizer): "


@records(
    "timers",
    mark="time (ms)",
    # RE2 can match this in one pass, which halves its time. What follows the fields is another writer's text, unless it goes on
    # with ` |`: then the record is broken off. A line without fields ends, or one of those follows that were seen glued to it.
    pattern=rf"^time \(ms\) *(?:(?P<fields>{_FIELD}(?: (?:{_FIELD})?)*|\|)(?:[^ |]|$)|\[Rank|iteration|after|samples|$)",
    head=r"(?P<deepspeed>\[Rank -?\d+\] |rank=\d+ )?$",
    torn=r"^time \(ms\) \| [A-Za-z][^:|]*: ",
    shadows=("time (ms): ",),  # the comms logger: `comm op: recv | time (ms): 7.12 | msg size: 8.0 KB`
)
def timers(found: Records) -> Iterator[Rows]:
    """One row per field; a `timer_line` row for a line that measured nothing."""
    text = found.groups["fields"]
    alone = pc.match_substring_regex(text, r"^\| (?:fwd|bwd|forward|backward): [^|]+$")
    spelt = pc.match_substring_regex(text, r"^\| [^:|]*[ /-]")  # Megatron's names have hyphens or blanks
    known = pc.match_substring_regex(text, r"^\| (?:[a-z]+_|[fb]wd: )")  # DeepSpeed's have underscores
    deepspeed = pc.and_(pc.invert(spelt), pc.or_(found.has("deepspeed"), known))
    full = pc.match_substring(text, ":")
    yield _each(found.where(alone), "checkpoint_timer")
    yield _each(found.where(pc.and_not(deepspeed, alone)), "timer")
    yield _each(found.where(pc.and_not(pc.and_not(full, deepspeed), alone)), "megatron_timer")

    nothing = found.where(pc.and_not(pc.match_substring_regex(text, r"^(?:\| [^|]+: -?0\.00 ?)+$"), alone))
    yield nothing.where(pc.invert(pc.match_substring_regex(nothing.groups["fields"], _SETUP))).rows("timer_line", "zero")
    yield found.where(pc.invert(full)).rows("timer_line", "empty")


def _each(found: Records, kind: str) -> Rows:
    """One row per timer, under the names of v0.10.1 (DeepSpeed) or with hyphens (Megatron)."""
    each = fields(found, "fields")
    changes = ((" ", "-"),) if kind == "megatron_timer" else (("^forward", "fwd"), ("^backward", "bwd"))
    return each.rows(kind, renamed(each.groups["name"], *changes), dur_ns=each.ms("value"))
