"""Memory that ranks report. Every MB and GB in these lines is a binary unit (MiB, GiB).

Megatron, one rank per model-parallel position, after the first printed interval; gpt-neox and v1.0 print it without the rank.
The peaks are since the start of training. Records of several ranks often stand on one line:

    [Rank 4] (after 100 iterations) memory (MB) | allocated: 10823.4 | max allocated: 15203.1 | reserved: 17022.0 | max reserved: 17022.0
    after 1 iterations memory (MB) | allocated: 10857.5625 | max allocated: 26118.2294921875 | reserved: 28234.0 | max reserved: 28234.0

Megatron-Bridge's, whose gigabytes are decimal, and ms-swift's in its Trainer's figures, whose memory is the peak of what is reserved:

    [Rank 1] (after 2 iterations) memory (GB) | mem-allocated-gigabytes: 63.66 | … | mem-max-allocated-gigabytes: 153.4 | … | mem-max-reserved-gigabytes: 182.2 | …
    {'loss': 1.461, …, 'global_step/max_steps': '1/189', 'elapsed_time': '2m 41s', 'remaining_time': '8h 25m 20s', 'memory(GiB)': 67.95, 'train_speed(s/it)': 161.3}

DeepSpeed's `see_memory_usage`, rank 0, three lines: a free text, the device, the host. The peaks are reset at every call. From
v0.18.3 on they are plain prints, whose free text cannot be told from other text:

    [2023-08-15 06:31:34,957] [INFO] [utils.py:785:see_memory_usage] After Building Model
    [2023-08-15 06:31:34,958] [INFO] [utils.py:786:see_memory_usage] MA 0.65 GB         Max_MA 0.66 GB         CA 0.68 GB         Max_CA 1 GB
    [2023-08-15 06:31:34,958] [INFO] [utils.py:793:see_memory_usage] CPU Virtual Memory:  used = 53.4 GB, percent = 5.3%

`memory_status` of forks and user code, every rank, and the table of nvidia-smi:

    RANK=0 STAGE=0 STEP=12 MEMSTATS BEFORE FWD device=cuda:0 current alloc=1.2345GB (delta=0.1000GB max=2.5000GB) current cache=3.0000GB (delta=0.0000GB max=3.5000GB)
    | N/A   45C    P0    44W / 300W |      0MiB / 32510MiB |      0%      Default |
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelog.events import Skipped
from pipelog.parsers._fields import fields, renamed
from pipelog.parsing import Records, Rows, lines, records

_MB = r"\d+(?:\.\d+)?"
_GB = r"-?\d+(?:\.\d+)?"
_NEAR = 8
"""Lines between a free text and the figures that belong to it: other writers may print in between."""


@records(
    "memory-megatron",
    mark="memory (MB) | ",
    pattern=rf"^memory \(MB\) \| (?P<fields>allocated: {_MB} \| max allocated: {_MB} \| (?:reserved|cached): {_MB} \| max (?:reserved|cached): {_MB})",
    head=r"(?:\[Rank (?P<rank>\d{1,9})\] )?\(?after (?P<step>\d{1,9}) iterations\)? $",
    torn=r"^memory \(MB\) \| allocated: ",
)
def megatron(found: Records) -> Iterator[Rows]:
    """Four figures a rank; torch before 1.4 called reserved memory cached. Numbers have a point by pairs, or whole ones are printed: a line may break off in its last."""
    points = pc.count_substring(found.groups["fields"], ".")
    whole = pc.is_in(points, pa.array([0, 2, 4], points.type))
    torn = pc.invert(whole)
    found.skipped += [
        Skipped(line, f"memory-megatron: the record is broken off: {f'memory (MB) | {text}'[:80]!r}")
        for line, text in zip(found.columns["line"].filter(torn).to_pylist(), found.groups["fields"].filter(torn).to_pylist(), strict=True)
    ]
    found = found.where(whole)
    found.columns |= {"step": found.int("step"), "rank": pc.coalesce(found.int("rank").cast(pa.int32()), found.columns["rank"])}
    each = fields(found, "fields")
    yield each.rows("memory", renamed(each.groups["name"], ("cached", "reserved"), (" ", "_")), bytes=each.bytes("value", "MB"))


_BRIDGE = {f"mem-{word}-gigabytes": name for word, name in (("allocated", "allocated"), ("reserved", "reserved"))} | {
    f"mem-max-{name}-gigabytes": f"max_{name}" for name in ("allocated", "reserved")
}


@records(
    "memory-bridge",
    mark="memory (GB) | mem-",
    pattern=r"^memory \(GB\) \| (?P<fields>mem-[a-z-]+: \d[\d.]*(?: \| mem-[a-z-]+: \d[\d.]*)* \| mem-max-reserved-gigabytes: \d+(?:\.\d+)?)",
    head=r"\[Rank (?P<rank>\d{1,9})\] \(after (?P<step>\d{1,9}) iterations\) $",
    torn=r"^memory \(GB\) \| mem-",
)
def bridge(found: Records) -> Iterator[Rows]:
    """The four figures among the allocator's that all others print."""
    found.columns |= {"step": found.int("step"), "rank": found.int("rank").cast(pa.int32())}
    each = fields(found, "fields")
    place = pc.index_in(each.groups["name"], pa.array(list(_BRIDGE)))
    mine = each.where(pc.is_valid(place))
    yield mine.rows("memory", pa.array(list(_BRIDGE.values())).take(place.drop_null()), bytes=mine.scaled("value", 1e9))


@lines(
    "memory-swift",
    mark="'memory(GiB)': ",
    pattern=rf"\{{'loss': [^{{}}]*'global_step(?:/max_steps)?': '?(?P<step>\d{{1,9}})[^{{}}]*'memory\(GiB\)': '?(?P<late>{_GB})'?[,}}]"
    rf"|\{{'loss': [^{{}}]*'memory\(GiB\)': '?(?P<early>{_GB})'?,[^{{}}]*'global_step(?:/max_steps)?': '?(?P<number>\d{{1,9}})",
)
def swift(found: Records) -> Iterator[Rows]:
    """The peak of a step; before or behind it the line names its step."""
    step = pc.coalesce(found.int("step"), found.int("number"))
    yield found.rows("memory", "max_reserved", step=step, bytes=pc.coalesce(found.bytes("late", "GiB"), found.bytes("early", "GiB")))


@records(
    "memory-usage",
    mark=("see_memory_usage] ", "Max_MA ", "CPU Virtual Memory: "),
    pattern=rf"^(?:see_memory_usage\] (?P<message>.*)|Max_MA (?P<max_allocated>{_GB}) GB +CA (?P<reserved>{_GB}) GB +Max_CA (?P<max_reserved>{_GB}) GB"
    rf"|CPU Virtual Memory: +used = (?P<host_used>{_GB}) GB, percent = )",
    head=rf"(?:MA (?P<allocated>{_GB}) GB +)?$",
    torn=r"^Max_MA [\d.]",
)
def usage(found: Records) -> Iterator[Rows]:
    """The figures of a call, each with the free text above it."""
    found.groups["text"] = _text_above(found)
    for name in ("allocated", "max_allocated", "reserved", "max_reserved", "host_used"):
        mine = found.where(found.has(name))
        yield mine.rows("memory_usage", name, bytes=mine.bytes(name, "GB"), text=mine["text"])


def _text_above(found: Records) -> pa.Array:
    """The free text of the call that a record belongs to: the nearest line above, unless another call stands in between."""
    line, number = found.columns["line"].to_numpy(), np.arange(len(found))
    text = found.groups["message"]
    free = pc.and_(found.has("message"), pc.invert(pc.match_substring_regex(text, r"^MA [\d.]+ GB +$")))
    device = found.has("max_allocated").to_numpy(zero_copy_only=False)
    last_text = np.maximum.accumulate(np.where(free.to_numpy(zero_copy_only=False), number, -1))
    last_call = np.maximum.accumulate(np.where(device, number, -1))
    call_before = np.concatenate(([-1], last_call[:-1]))
    own = np.where(device, number, last_call)  # the host's line follows the device's
    good = (last_text >= 0) & (line - line[last_text] <= _NEAR) & (own >= 0) & (call_before[own] < last_text)
    return text.take(pa.array(np.where(good, last_text, 0), mask=~good))


@records(
    "memory-status",
    mark="MEMSTATS ",
    pattern=rf"^MEMSTATS (?P<text>.*?) *device=(?P<device>\S+) current alloc=(?P<allocated>{_GB})GB \(delta=\S+ max=(?P<max_allocated>{_GB})GB\)"
    rf" current cache=(?P<reserved>{_GB})GB \(delta=\S+ max=(?P<max_reserved>{_GB})GB\)",
    head=r"RANK=(?P<rank>\d{1,9}) (?:STAGE=(?P<stage>\d{1,4}) STEP=(?P<step>\d{1,9}) )?$",
)
def status(found: Records) -> Iterator[Rows]:
    """Four figures a call."""
    for name in ("allocated", "max_allocated", "reserved", "max_reserved"):
        at = {"rank": found.int("rank"), "stage": found.int("stage"), "step": found.int("step")}
        yield found.rows("memory_usage", name, bytes=found.bytes(name, "GB"), text=found["text"], **at)


@records("memory-nvidia-smi", mark="MiB / ", pattern=r"^MiB / +(?P<all>\d+)MiB \|", head=r"\| +(?P<used>\d+)$")
def capacity(found: Records) -> Iterator[Rows]:
    """The memory of one device, and how much of it was in use (value: bytes)."""
    text = pc.binary_join_element_wise(found["used"], " MiB in use", "")
    yield found.rows("memory_capacity", "gpu", bytes=found.bytes("all", "MiB"), value=pc.cast(found.bytes("used", "MiB"), pa.float64()), text=text)


# GPU[0]		: VRAM Total Memory (B): 68702699520
# GPU[0]		: VRAM Total Used Memory (B): 67510177792
@records(
    "memory-rocm-smi",
    mark=("VRAM Total Memory (B): ", "VRAM Total Used Memory (B): "),
    pattern=r"^VRAM Total (?P<used>Used )?Memory \(B\): (?P<size>\d{1,18})\s*$",
    head=r"GPU\[(?P<gpu>\d{1,4})\]\s*: $",
)
def rocm(found: Records) -> Iterator[Rows]:
    """The memory of one device, and in a row of its own how much of it was in use."""
    device = pc.binary_join_element_wise("gpu", found["gpu"], " ")
    for used, kind, name in ((False, "memory_capacity", "gpu"), (True, "gpu_use", "memory_used")):
        mask = pc.equal(found.has("used"), pa.scalar(used))
        mine = found.where(mask)
        yield mine.rows(kind, name, bytes=mine.bytes("size", "B"), device=device.filter(mask))
