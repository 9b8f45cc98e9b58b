"""How much work a step is: samples and tokens of each, where a batch that grows or a curriculum of lengths changes them."""

from __future__ import annotations

import numpy as np
import pandas as pd

from pipelog.tables.steps import series

_LENGTHS = ("actual_seqlen", "curriculum_seqlen", "seqlen", "seq_len", "seq_length", "sequence_length")
"""Names of an iteration line's field for the length of its samples; the first that is there counts."""


def lengths(scalars: pd.DataFrame) -> pd.DataFrame:
    """Tokens of one sample in order of step, as printed, else consumed tokens by consumed samples between two lines: step, value."""
    for name in _LENGTHS:
        printed = series(scalars, name)
        if len(printed):
            return printed[["step", "value"]]
    tokens, samples = series(scalars, "consumed_tokens"), series(scalars, "consumed_samples")
    if not len(tokens) or not len(samples):
        return tokens[["step", "value"]].iloc[:0]
    both = tokens.merge(samples, on="step", suffixes=("", "_samples"))
    each = both.assign(value=(both["value"].diff() / both["value_samples"].diff()).round())
    return each.loc[np.isfinite(each["value"]) & (each["value"] > 0), ["step", "value"]]


def work(scalars: pd.DataFrame, step: pd.Series) -> pd.DataFrame:
    """Samples (global batch), tokens of a sample and tokens that random layer-wise dropping leaves at each of these steps, from the line nearest to it:
    samples, tokens, kept; 1 where none says it.
    """
    out = pd.DataFrame({"samples": 1.0, "tokens": 1.0, "kept": 1.0}, index=range(len(step)))
    wanted = pd.DataFrame({"step": step.to_numpy(dtype=np.int64)})
    stated_of = {"samples": series(scalars, "global_batch_size"), "tokens": lengths(scalars), "kept": series(scalars, "random_ltd_reserved_length")}
    for name, stated in stated_of.items():
        if len(stated):
            order = np.argsort(wanted["step"].to_numpy(), kind="stable")
            near = pd.merge_asof(wanted.iloc[order], stated[["step", "value"]].astype({"step": "int64"}), on="step", direction="nearest")
            out.loc[order, name] = near["value"].to_numpy(dtype=float)
    return out


def levels(done: pd.DataFrame) -> np.ndarray:
    """Number of the run of equal steps that each row of `work` belongs to, from 0."""
    changed = (done.diff().iloc[1:] != 0).any(axis=1)
    return np.concatenate(([0], np.cumsum(changed.to_numpy()))) if len(done) else np.zeros(0, int)


def most_cost(done: pd.DataFrame) -> np.ndarray:
    """How many times as long a step may take for its work alone, relative to others: samples times tokens², as attention has it; all else costs less."""
    samples, tokens, kept = (done[name].to_numpy(dtype=float) for name in ("samples", "tokens", "kept"))
    return np.asarray(samples * (tokens * kept) ** 2)
