"""That an evaluation begins, as Megatron, Hugging Face's Trainer and training scripts say it.

    Evaluating on 640 samples
    Evaluating iter 1/10
    ***** Running Evaluation *****
    begin evaluation at step 500 (64 batches)
    [2024-05-27 12:00:04] starting validation at step 500

That it is over is told by its loss (megatron_iteration.py, script_steps.py), or by the next step.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow.compute as pc

from pipelog.parsing import Records, Rows, records

_VERBS = r"(?i)(?:^|[\]:|>\s-])(?:beginning|begin|starting|start|started|running|run|entering|doing)(?: the| an?)? $"


@records(
    "evaluation-begins",
    mark=("Evaluating on ", "Evaluating iter ", "Running Evaluation *", "Running evaluation *"),
    head=r"(?:^|[\]:|>-] ?)\s*(?:\*+ )?$",
    pattern=r"^(?P<words>Evaluating on [\d,]+ samples\b|Evaluating iter 1/\d+|Running [Ee]valuation \*+)",
)
def begins(found: Records) -> Iterator[Rows]:
    """Give the beginning of an evaluation of Megatron (of its batches the first alone) or of Hugging Face's Trainer."""
    yield found.rows("evaluation", "begin", text=found["words"])


# begin evaluation at step 500 (64 batches)
@records(
    "evaluation-at-step",
    mark=tuple(f"{what} at {unit} " for what in ("evaluation", "validation") for unit in ("step", "iteration")),
    head=_VERBS,
    pattern=r"^(?P<words>\w+ at (?:step|iteration) (?P<step>\d{1,9}))(?:,? \([^)]{0,80}\)|,? on [^:=]{1,60}|,? with [^:=]{1,60})?[\s.…]*$",
)
def at_step(found: Records) -> Iterator[Rows]:
    """Give the beginning of an evaluation in the script's own words, where they name the step; `skipping` and `finished` are none."""
    yield found.rows("evaluation", "begin", step=found.int("step"), text=pc.utf8_trim_whitespace(found["words"]))
