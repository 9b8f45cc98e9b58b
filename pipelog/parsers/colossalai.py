"""How Colossal-AI and InternLM, which was made of it, cut a job: the sizes of the grid, and the device of each rank.

2023-09-07 08:31:40,007 INFO launch.py:329 in launch -- Distributed environment is initialized, data parallel size: 1, pipeline parallel size: 4, tensor parallel size: 1
2023-09-07 08:31:02,614 INFO parallel_context.py:508 in set_device -- process rank 2 is bound to host:a71c device: 2
[04/18/23 18:43:09] INFO colossalai - colossalai - INFO: process rank 2 is bound to device 2

Their pipelines are the slowest axis, as those of Megatron.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from pipelog.parsers._facts import first_of_each, joined
from pipelog.parsing import Records, Rows, lines


@lines(
    "colossalai-mesh",
    mark="Distributed environment is initialized, data parallel size: ",
    pattern=r"Distributed environment is initialized, data parallel size: (?P<dp>\d{1,7}), pipeline parallel size: (?P<pp>\d{1,7}), tensor parallel size: (?P<tp>\d{1,7})\b",
    once=True,
)
def mesh(found: Records) -> Iterator[Rows]:
    """Give the sizes of the grid."""
    each = first_of_each(found, "dp", "pp", "tp")
    for axis in ("dp", "pp", "tp"):
        yield each.rows("fact", f"topology.{axis}", value=each.float(axis), text=each[axis])


@lines(
    "colossalai-device",
    mark=(" is bound to host:", " is bound to device "),
    pattern=r"\bprocess rank (?P<rank>\d{1,7}) is bound to (?:host:(?P<host>[\w.-]+) device: ?|device )(?P<local>\d{1,3})\s*$",
)
def device(found: Records) -> Iterator[Rows]:
    """Give the host of a rank, as the line or its prefix tells it, and its device, which is its local rank."""
    host = pc.coalesce(found["host"], pc.cast(found.columns["host"], pa.string()))
    yield found.rows("place", "discovery", rank=found.int("rank"), host=host, label=joined("local ", found["local"]))
