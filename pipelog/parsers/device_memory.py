"""How much memory the devices have, as tools, libraries and out-of-memory errors state it; nvidia-smi's and rocm-smi's tables: memory.py.

    index, name, memory.total [MiB], driver_version                             nvidia-smi --query-gpu=… --format=csv
    0, NVIDIA H100 80GB HBM3, 81559 MiB, 550.90.07
    NVIDIA A100-SXM4-80GB, 81920 MiB                                            the same without its header
    GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-5c5c1ab2-…)                         nvidia-smi -L: the size in its name
        FB Memory Usage                                                         nvidia-smi -q
            Total                             : 81559 MiB
    [0] NVIDIA A100-SXM4-80GB | 45'C,  72 % | 34447 / 81920 MB |                gpustat
    | 0         | 0000:C1:00.0  | 0    0 / 0    3197 / 65536 |                  npu-smi info, below HBM-Usage(MB)
    GPU 0 has a total capacity of 79.11 GiB of which 1.25 GiB is free.          torch
    (GPU 0; 79.35 GiB total capacity; 76.01 GiB already allocated; …)           torch before 2.1
    _CudaDeviceProperties(name='NVIDIA A100-SXM4-80GB', major=8, minor=0, total_memory=81050MB, multi_processor_count=108)
    CUDA capacity: NVIDIA H100 with 95.04GiB memory                             torchtitan
      Total amount of global memory:                 40339 MBytes (42298834944 bytes)       deviceQuery

A table that names its columns is believed; without them the one figure is capacity that the device's own name states.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from pipelog.parsing import Block, Records, Row, Rows, block, lines

_MIB = 2**20
_UNITS = {"": _MIB, "[MiB]": _MIB, "[KiB]": 2**10, "[GiB]": 2**30, "[MB]": _MIB}
_SIZE = re.compile(r"(\d{1,9}(?:\.\d+)?)(?: [KMG]iB)?$")
_MOST_DEVICES = 64
_NEAR = (0.97, 1.01)
"""Share of its nominal size that a device has: 81,559 MiB of 80 GiB, 32,510 MiB of 32 GiB."""


@block("device-query", mark=("memory.total [", "memory.total,"), most=_MOST_DEVICES + 1, whole=True)
def query(found: Block) -> Iterator[Row]:
    """Give the memory of each device that a table with its header lists, and how much was in use where it has that column (value: bytes)."""
    rows = found.lines()
    next(rows)
    header = [field.strip() for field in f"{found.before}{found.first}".rstrip().split(",")]
    names = [field.partition(" ")[0] for field in header]
    if len(names) < 2 or not all(re.fullmatch(r"[a-z][a-z_.]*", name) for name in names):
        return
    total, used = names.index("memory.total"), names.index("memory.used") if "memory.used" in names else None
    unit = _UNITS.get(header[total].partition(" ")[2])
    for number, text in rows:
        cells = [cell.strip() for cell in text.split(",")]
        size = _SIZE.match(cells[total]) if len(cells) == len(names) else None
        if not size or not unit or ("index" in names and not cells[names.index("index")].isdigit()):
            return
        taken = _SIZE.match(cells[used]) if used is not None else None
        in_use = float(taken[1]) * unit if taken else None
        shown = f"{taken[0]} in use" if taken else None
        yield {"kind": "memory_capacity", "name": "gpu", "bytes": int(float(size[1]) * unit), "value": in_use, "text": shown, "line": number}


@block("device-details", mark="FB Memory Usage", most=8)
def details(found: Block) -> Iterator[Row]:
    """Give the memory of a device as `nvidia-smi -q` shows it."""
    sizes: dict[str, tuple[int, int]] = {}
    for number, text in found.lines():
        if part := re.match(r"\s*(Total|Used)\s+: (\d{1,9}) MiB\s*$", text):
            sizes.setdefault(part[1], (int(part[2]) * _MIB, number))
    if "Total" in sizes:
        size, number = sizes["Total"]
        used = float(sizes["Used"][0]) if "Used" in sizes else None
        yield {"kind": "memory_capacity", "name": "gpu", "bytes": size, "value": used, "line": number}


@block("device-npu", mark="HBM-Usage(MB)", most=4 * _MOST_DEVICES)
def npu(found: Block) -> Iterator[Row]:
    """Give the memory of each Ascend device, and how much of it was in use (value: bytes)."""
    for number, text in found.lines():
        if part := re.search(r"\| +[0-9A-Fa-f]{4}:\S+ +\| .*?(\d{1,9}) */ *(\d{1,9}) +\|\s*$", text):
            used, size = int(part[1]) * _MIB, int(part[2]) * _MIB
            if size:
                yield {"kind": "memory_capacity", "name": "gpu", "bytes": size, "value": float(used), "line": number}


@lines(
    "device-gpustat",
    mark="'C, ",
    pattern=r"^\[(?P<gpu>\d{1,3})\] [^|]{3,60}\|\s*\d+'C, [^|]*\|\s*(?P<used>\d{1,9}) / +(?P<size>\d{1,9}) MB",
)
def gpustat(found: Records) -> Iterator[Rows]:
    """Give the memory of a device, and how much of it was in use (value: bytes)."""
    yield found.rows("memory_capacity", "gpu", bytes=found.bytes("size", "MiB"), value=pc.cast(found.bytes("used", "MiB"), pa.float64()))


@lines(
    "device-named",
    mark=("NVIDIA A", "NVIDIA H", "Tesla V100"),  # not GH200, whose name says the host's memory
    pattern=r"^(?:[^,]{1,40}, ){0,3}(?:NVIDIA |Tesla )(?P<name>[A-Z][\w -]{0,30}?(?P<nominal>\d{2,3}) ?GB\b[\w -]{0,12}), (?:[^,]{1,20}, ){0,4}(?P<size>\d{4,6}) MiB(?:,|\s*$)"
    r"|^GPU \d{1,3}: (?:NVIDIA |Tesla )?[A-Z][\w -]{0,30}?(?P<listed>\d{2,3}) ?GB\b[\w -]{0,12} \(UUID: ",
    once=True,
)
def named(found: Records) -> Iterator[Rows]:
    """Give the memory of a device whose name says its size: as printed beside it where the two agree, else the nominal size."""
    share = pc.divide(found.float("size"), pc.multiply(found.float("nominal"), 1024.0))
    stated = found.where(pc.and_(pc.greater_equal(share, _NEAR[0]), pc.less_equal(share, _NEAR[1])))
    yield stated.rows("memory_capacity", "gpu", bytes=stated.bytes("size", "MiB"))
    listed = found.where(found.has("listed"))
    yield listed.rows("memory_capacity", "nominal", bytes=listed.bytes("listed", "GiB"))


@lines(
    "device-stated",
    mark=("has a total capacity of ", "iB total capacity", ", total_memory=", "GiB memory", "amount of global memory: "),
    pattern=r"(?:has a total capacity of (?P<size>\d[\d.]*) (?P<unit>[MG]iB)|[GN]PU \d{1,4}; (?P<older>\d[\d.]*) (?P<older_unit>[MG]iB) total capacity"
    r"|, total_memory=(?P<mb>\d{3,9})MB\b|capacity: [^:]{2,60} with (?P<gib>\d[\d.]*)GiB memory|amount of global memory: +\d+ MBytes \((?P<whole>\d{8,15}) bytes\))",
    once=True,
)
def stated(found: Records) -> Iterator[Rows]:
    """Give the memory of a device as torch, torchtitan and CUDA's sample state it; of a run of equal lines one."""
    sizes = (found.bytes("size", "unit"), found.bytes("older", "older_unit"), found.bytes("mb", "MiB"), found.bytes("gib", "GiB"))
    yield found.rows("memory_capacity", "gpu", bytes=pc.coalesce(*sizes, found.bytes("whole", "B")))
