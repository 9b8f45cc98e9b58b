"""Columns of words, asked word by word and not row by row."""

from __future__ import annotations

import functools
from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc


def worded(names: pa.ChunkedArray, test: Callable[..., pa.Array], *words: str) -> pa.ChunkedArray:
    """Where a name is one of *words*, or begins like them; each name is looked at once."""
    masks = []
    for chunk in names.chunks:
        each = chunk.dictionary.cast(pa.string())
        known = functools.reduce(pc.or_, (test(each, word) for word in words))
        masks.append(pc.fill_null(known.take(chunk.indices), False))
    return pa.chunked_array(masks, pa.bool_())
