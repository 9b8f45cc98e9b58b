"""PL103 batch-arithmetic: the batch sizes do not multiply.

What it does: checks train batch = micro-batch x accumulation steps x data-parallel replicas, with replicas = world / (stages x
tensor-parallel ranks), on the configuration and on DeepSpeed's own assertion.
Why it matters: DeepSpeed refuses to start, or the run has another number of micro-batches than people think: m is of one replica.
What to do: set two of the three values and let DeepSpeed derive the third.
When it is wrong: a configuration in the folder that this job did not use; elastic jobs change the number of replicas. A job that made
steps passed DeepSpeed's own check, so then the files are at odds, not the job, and nothing is claimed; nor where the batch grows during
the run (rampup_batch_size).
Thresholds: none; it is arithmetic.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import pandas as pd
import pyarrow as pa

from pipelog.findings import Advice, Confidence, Evidence, Finding, Severity, Where, cite, detector
from pipelog.postmortem.nodes import speaking
from pipelog.tables import CannotTell, frame
from pipelog.tables.config import Config
from pipelog.tables.steps import Steps
from pipelog.tables.topology import Topology

_ASSERTION = re.compile(r"train_batch_size is not equal to micro_batch_per_gpu \* gradient_acc_step \* world_size ?(\d+) != (\d+) \* (\d+) \* (\d+)")


@detector("PL103", "batch-arithmetic", needs=("config", "topology", "placed", "facts", "steps"))
def batch_arithmetic(config: Config, topology: Topology, placed: pa.Table, facts: pd.DataFrame, steps: Steps) -> Iterator[Finding]:
    """One finding: from the assertion, or from the values."""
    raised = frame(placed, ("error",), ("name", "text", "host", "file", "line"))
    raised = raised[raised["name"] == "python-exception"]
    refused = raised[[_ASSERTION.search(t or "") is not None for t in raised["text"]]]
    advice = (Advice("leave one of train_batch_size, train_micro_batch_size_per_gpu and gradient_accumulation_steps out; DeepSpeed derives it"),)
    if len(refused):
        match = _ASSERTION.search(refused["text"].iloc[0])
        assert match is not None
        hosts = set(refused["host"])
        apart = hosts.pop() if len(hosts) == 1 else None
        alone = isinstance(apart, str) and bool(speaking(placed) - {apart})
        of_one = f"; only {apart} says so" if alone else ""
        compared = (
            Advice(f"compare the configuration that {apart} reads with that of the other hosts; no number has to change where they run with theirs"),
        )
        a, b, c, d = (int(g) for g in match.groups())
        yield Finding(
            "PL103",
            "batch-arithmetic",
            f"train batch {a} is not micro-batch {b} x {c} accumulation steps x {d} data-parallel replicas = {b * c * d}{of_one}",
            Severity.WARNING,
            Confidence.HIGH,
            where=Where(hosts=(str(apart),) if alone else ()),
            evidence=cite(refused),
            advice=compared if alone else advice,
        )
        return
    train, micro, m, dp = config.train_batch_size, config.micro_batch_size, config.micro_batches, topology.dp
    if not (train and micro and dp):
        raise CannotTell("train batch, micro-batch and number of replicas are not all known")
    stated = m and "micro_batches" in config.said and config.said["micro_batches"].file is not None
    if m and stated and train != micro * m * dp:
        problem = f"train batch {train} is not micro-batch {micro} x {m} micro-batches x {dp} data-parallel replicas = {micro * m * dp}"
    elif train % (micro * dp):
        problem = f"train batch {train} cannot be divided by micro-batch {micro} x {dp} data-parallel replicas = {micro * dp}"
    else:
        return
    if len(steps.rows):
        raise CannotTell(f"{problem}; but the job made steps, so it ran with other values than these files state")
    ramp = facts[(facts["name"] == "args.rampup_batch_size") & ~facts["text"].fillna("None").isin(["None", "null", ""])]
    if len(ramp):
        raise CannotTell("the batch grows during the run (rampup_batch_size), so no one product holds")
    said = [s for name in ("train_batch_size", "micro_batch_size", "micro_batches") if (s := config.said.get(name)) is not None]
    yield Finding(
        "PL103",
        "batch-arithmetic",
        problem,
        Severity.WARNING,
        Confidence.MEDIUM,
        evidence=tuple(Evidence(s.file, s.line) for s in said if s.file is not None),
        advice=advice,
    )
