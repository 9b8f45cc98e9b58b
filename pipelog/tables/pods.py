"""Pods of the job and pods of others: the events of a namespace tell of all of them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import PurePath
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pipelog.events import Input

_OBJECT = (
    r"^\S+ +(?:Normal|Warning) +\S+ +(?:pod|(?:[a-z]+job|job|jobset|podgroup|rayjob|raycluster)(?:\.[a-z.]+)?|workload/(?:[a-z]+job|job|jobset|pod|raycluster))"
    r"[/-](?P<pod>[a-z0-9][a-z0-9.-]*)\s"
)
"""`39m   Normal   Preempted   pod/eval-7   Preempted by pod 1c1b on node node7`: what an event is about, in `kubectl get events`."""
_POD = re.compile(r"(?P<job>[a-z0-9][a-z0-9-]*?)(?:-(?:master|worker|launcher|chief|leader|head|ps))?(?:-\d{1,5})?(?:-(?:\d{1,5}|[a-z0-9]{5}))")
"""Operators name a pod after its job, its role and its number; jobs add five letters."""
_NO_POD = re.compile(r"(?:global|local|rank|node|worker|host|gpu|logs?|out|std\w*|err|slurm|attempt|launcher|run|part|job|step|events?)(?:-|$)")


def of_other_pods(rows: pd.DataFrame, inputs: Iterable[Input]) -> NDArray[Any]:
    """Whether the text of a row is an event of a pod that is none of the job's.

    That is told only where a log is named after a pod of the job, and neither it nor any file, folder or host has the name of the
    event's pod or is of the same job.
    """
    about = pc.extract_regex(pa.array(rows["text"], pa.string(), from_pandas=True), _OBJECT)  # rows are many, events few
    if about.null_count == len(rows):
        return np.zeros(len(rows), bool)
    objects = pc.if_else(pc.is_valid(about), about.field("pod"), None).to_pylist()
    paths = [PurePath(i.path) for i in inputs]
    named = {word for path in paths for word in re.split(r"[_.]", path.name.removeprefix("describe-"))}
    jobs = {match["job"] for word in named if not _NO_POD.match(word) and (match := _POD.fullmatch(word))}
    known = named | {part for path in paths for part in path.parts} | {h for h in rows["host"] if isinstance(h, str)}
    return np.array([isinstance(pod, str) and bool(jobs) and pod not in known and not _of_job(pod, jobs) for pod in objects], bool)


def _of_job(pod: str, jobs: set[str]) -> bool:
    return any(pod == job or pod.startswith(f"{job}-") for job in jobs)
