"""`pipelog.read`: files → events whose rows know their attempt, rank, stage, replica and host as far as the files tell."""

from __future__ import annotations

import os

import pipelog.tables
from pipelog.events import Events, join
from pipelog.reading import Progress
from pipelog.reading import read as read_files
from pipelog.registry import load
from pipelog.tables import Tables
from pipelog.tables.folders import apart

_KEPT = ("attempts",)
"""Tables from which rows are placed, and which placed rows give again. Not the topology: rows that have their rank by it tell the hosts of more ranks."""


def read(*paths: str | os.PathLike[str], jobs: int | None = None, progress: Progress | None = None) -> Events:
    """Read files and folders into one event table, never from the cache.

    jobs: processes to read with (None: as many as there are cores, where the files are large). progress: called with bytes done and
    bytes in all. Raises PipelogError where a path does not exist or nothing could be read; what a file holds never raises.
    """
    return placed(read_files(*paths, jobs=jobs, progress=progress))


def placed(events: Events) -> Events:
    """The same events with attempt, rank, stage, replica, tensor and host filled in, once, from the topology that they tell.

    Different jobs below one folder are placed each by itself.
    """
    load(pipelog.tables)
    jobs = apart(events)
    if len(jobs) > 1:
        return Events(join([placed(job).table for job in jobs]), events.inputs, events.roots)
    tables = Tables(events)
    return Events(tables["all_placed"], events.inputs, events.roots, {name: tables[name] for name in _KEPT})
