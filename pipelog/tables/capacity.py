"""The memory of a device, and the line that states it."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd
import pyarrow as pa

from pipelog.tables import CannotTell, frame, table

FULL = 0.92
"""Share of a device's memory above which a rank is close to its end: what the allocator cannot use for its pieces, and a longer sequence, need the rest."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """size_bytes: memory of the smallest device that is stated, largest_bytes: of the largest, by file and line (null: a trace's header)."""

    size_bytes: int
    largest_bytes: int
    file: str
    line: int | None


@table("capacity", needs=("placed", "facts"))
def capacity(placed: pa.Table, facts: pd.DataFrame) -> Capacity:
    """From a table of the devices (nvidia-smi, rocm-smi, npu-smi), an error of lack of memory or the header of a trace; else from the device's own name."""
    stated = frame(placed, ("memory_capacity",), ("name", "bytes", "file", "line")).dropna(subset=["bytes"])
    exact = stated[stated["name"] != "nominal"]
    stated = exact if len(exact) else stated
    devices = facts[facts["name"].str.match(r"device\.\d+\.memory_bytes")] if len(facts) else facts
    if not len(stated) and not len(devices):
        raise CannotTell("nothing states the capacity of the devices: an nvidia-smi table in the log or a profiler trace would")
    sizes = stated["bytes"] if len(stated) else devices["value"]
    where = (stated if len(stated) else devices).loc[sizes.idxmax()]
    return Capacity(int(sizes.min()), int(sizes.max()), str(where["file"]), int(where["line"]) if pd.notna(where["line"]) else None)
