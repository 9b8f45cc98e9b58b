"""`a: 1.20 | b: 3.40`: the lists of fields that training frameworks print, cut without a regular expression per field."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelog.parsing import Records, taken


def fields(found: Records, group: str) -> Records:
    """One record per field of *group*, with the groups `name` and `value` alone; head and line are kept.

    The pattern of the parser must have let whole fields through only, as `name: value | name: value`. About five times as
    fast as `Records.split`, which timers and memory reports need: they are most of what a long log holds.
    """
    trimmed = pc.ascii_trim(found.groups[group], "| ")
    lists = pc.split_pattern(pc.replace_substring(trimmed, " | ", ": "), ": ")
    lengths = pc.list_value_length(lists).to_numpy(zero_copy_only=False)
    if (lengths % 2).any():  # a field without a colon, or with two: never seen
        return found.split(group, " | ", r"^ *(?P<name>[^:]+): +(?P<value>\S+) *$")
    pairs = pc.list_flatten(lists)
    even = np.arange(0, len(pairs), 2)
    groups = {"name": pairs.take(pa.array(even)), "value": pc.ascii_trim_whitespace(pairs.take(pa.array(even + 1)))}
    parent = pa.array(np.repeat(np.arange(len(lists)), lengths // 2))
    return Records(groups, {k: taken(v, parent) for k, v in found.columns.items()}, found.skipped)


def renamed(names: pa.Array, *changes: tuple[str, str]) -> pa.DictionaryArray:
    """*names* with each regular expression replaced by what stands beside it; only the different names are touched."""
    words = names.dictionary_encode()
    spelt = words.dictionary
    for old, new in changes:
        spelt = pc.replace_substring_regex(spelt, old, new)
    return pa.DictionaryArray.from_arrays(words.indices, spelt)
