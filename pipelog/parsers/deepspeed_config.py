"""The configuration that DeepSpeed prints when the engine is made (logger, rank 0; hidden by default since v0.17.6).

    [2026-11-30 01:12:52,950] [INFO] [config.py:1007:print]   gradient_accumulation_steps .. 24
    [2026-11-30 01:12:52,950] [INFO] [config.py:1007:print]   train_micro_batch_size_per_gpu  1
    [2021-06-10 20:47:51,887] [INFO] [config.py:906:print]   json = {
        "steps_per_print": 2.000000e+03,

First a line per attribute, by name: two blanks, the name, dots up to column 29 (none for long names), the value as Python writes it.
Values can be dicts (`pipeline`), `key=value` words (`zero_config` since v0.8, `float16_config` since v0.17.6) or JSON over several
lines (`zero_config` before). Then the user's own ds_config.json, numbers above 1000 in exponent form; `:print]` stands before it
up to about v0.7, `:print_user_config]` later; the exponent form has seven digits, so 67108864 comes back as 67108860. Facts have the names of ds_config.json in both: `config.fp16.enabled`.
"""

import re
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from pipelog.events import Skipped
from pipelog.parsers._config_facts import INNER, PRINTED, Reader
from pipelog.parsers._facts import joined, numbers
from pipelog.parsing import Block, Records, Row, Rows, block, records

_HEAD = r"config\.py:\d+$"
_NAMES, _KEYS = pa.array(list(PRINTED)), pa.array(list(PRINTED.values()))
_INNER = pa.array([f"{outer}.{key}" for outer, keys in INNER.items() for key in keys])
_FIRST = re.compile(r"^\S+\]   (?P<name>\w+) (?:\.* |= )")


@records("deepspeed-config", mark=":print]   ", head=_HEAD, pattern=r"^:print\]   (?P<name>\w+) \.* (?P<text>.*\S)\s*$")
def printed(found: Records) -> Iterator[Rows]:
    """Give the facts of the dotted lines: one of a plain value, one per key of a dict or of `key=value` words."""
    known = found.where(pc.is_in(found["name"], _NAMES))
    key = _KEYS.take(pc.index_in(known["name"], _NAMES))
    holds_several = pc.is_in(key, pa.array(list(INNER)))
    one = known.where(pc.invert(holds_several))
    yield one.rows("fact", joined("config.", key.filter(pc.invert(holds_several))), value=numbers(one["text"]), text=one["text"])
    several = known.where(holds_several)
    # {'stages': 'auto', 'partition': 'best', 'seed_layers': False, 'activation_checkpoint_interval': 0, 'pipe_partitioned': True}
    yield from _inner(several.split("text", ", ", r"^\{?'(?P<key>\w+)': '?(?P<value>[^'{}]+)'?\}?$"))
    # stage=0 contiguous_gradients=True reduce_scatter=True reduce_bucket_size=500000000 use_multi_rank_bucket_allreduce=True
    yield from _inner(several.split("text", " ", r"^(?P<key>[a-z]\w*)=(?P<value>[^\s(]+)$"))


def _inner(found: Records) -> Iterator[Rows]:
    outer = _KEYS.take(pc.index_in(found["name"], _NAMES))
    name = joined(outer, ".", found["key"])
    wanted = pc.is_in(name, _INNER)
    found, name = found.where(wanted), name.filter(wanted)
    value = pc.replace_substring(found["value"], ",", "")  # v0.8 to v0.13 write 500,000,000 in zero_config
    yield found.rows("fact", joined("config.", name), value=numbers(value), text=found["value"])


@block(
    "deepspeed-config-json",
    mark=(
        ":print]   json = {",
        ":print_user_config]   json = {",
        ":print]   activation_checkpointing_config  {",
        ":print]   zero_config .................. {",
    ),
    head=_HEAD,
    most=2000,
)
def json_block(found: Block) -> Iterator[Row | Skipped]:
    """Give the values of the user's JSON, and of the printed values that are JSON over several lines."""
    begin = _FIRST.match(found.first)
    if begin is None:
        return
    name = begin["name"]
    lines = found.lines()
    number, first = next(lines)
    reader = Reader(strict=True)
    entries = reader.entries(_chain((number, first[begin.end() :]), lines))
    if name == "json":
        yield from (entry.row() for entry in entries)
    else:
        outer = PRINTED[name]
        yield from (entry.row(f"config.{outer}.") for entry in entries if entry.path[0] in INNER[outer])
    yield from reader.trouble


def _chain(first: tuple[int, str], rest: Iterator[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    """Yield the lines up to the next one of the configuration's dotted lines."""
    yield first
    for number, text in rest:
        if ":print" in text and "]   " in text:
            return
        yield number, text
