"""What the parsers of facts share: the number in a printed word, a time of day as nanoseconds, one of many equal records."""

from __future__ import annotations

import math
import re

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelog.parsing import Records, Row

_NUMBER = r"^[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?$"
_NUMBER_RE = re.compile(_NUMBER, re.ASCII)
_TRUTH = {"true": 1.0, "True": 1.0, "false": 0.0, "False": 0.0}


def number(word: str) -> float | None:
    """Return the finite number in a printed word, 1 for true, 0 for false, else None."""
    if not _NUMBER_RE.match(word):
        return _TRUTH.get(word)
    value = float(word)
    return value if math.isfinite(value) else None


def numbers(words: pa.Array) -> pa.Array:
    """Return for each word what `number` gives for one, as float64."""
    plain = pc.if_else(pc.match_substring_regex(words, _NUMBER), words, pa.scalar(None, words.type))
    value = pc.cast(plain, pa.float64())
    value = pc.if_else(pc.is_finite(value), value, pa.scalar(None, pa.float64()))
    truth = pa.array(list(_TRUTH.values())).take(pc.index_in(words, pa.array(list(_TRUTH))))
    return pc.coalesce(value, truth)


def fact(name: str, text: str | None, line: int | None = None) -> Row:
    """Return the row of a fact in a block; *line* where it is not the line of the mark."""
    if text is not None:
        text = text.encode("utf-8", "replace").decode()
    row: Row = {"kind": "fact", "name": name, "value": None if text is None else number(text), "text": text}
    return row if line is None else row | {"line": line}


def times(stamps: pa.Array) -> pa.Array:
    """Return nanoseconds since the epoch of `2021-05-23T08:46:06` (or a blank for the T), taken as UTC; null where it is no time."""
    text = pc.replace_substring(stamps, " ", "T")
    text = pc.if_else(pc.match_substring_regex(text, r"^(?:19[7-9]|20)\d+-"), text, pa.scalar(None, text.type))
    seconds = pc.strptime(text, format="%Y-%m-%dT%H:%M:%S", unit="s", error_is_null=True)
    return pc.multiply(pc.cast(seconds, pa.int64()), 1_000_000_000)


def joined(*parts: pa.Array | str) -> pa.Array:
    """Return the parts written one after another; null where one of them is null."""
    return pc.binary_join_element_wise(*(pa.scalar(p) if isinstance(p, str) else p for p in parts), "")


def first_of_each(found: Records, *names: str) -> Records:
    """Return of records that are equal in these groups the first."""
    keys = pc.binary_join_element_wise(*(found.groups[name] for name in names), "\0").dictionary_encode().indices
    keep = np.zeros(len(found), bool)
    keep[np.unique(keys.to_numpy(), return_index=True)[1]] = True
    return found.where(pa.array(keep))


def thinned(found: Records, most: int) -> Records:
    """Return at most about *most* of the records, evenly spaced, the first among them."""
    step = -(-len(found) // most)
    return found.where(pa.array(np.arange(len(found)) % step == 0)) if step > 1 else found
