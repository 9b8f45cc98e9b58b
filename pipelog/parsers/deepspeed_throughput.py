"""Throughput lines of DeepSpeed's engine without pipeline, rank 0; a pipeline engine never prints them. GB means GiB.

    0/120, SamplesPerSec=101.2                                                                            v0.3.0 - v0.5.10
    0/120, SamplesPerSec=101.2, MemAllocated=12.31GB, MaxMemAllocated=20.11GB                             v0.6.x
    0/120, RunningAvgSamplesPerSec=101.2, CurrSamplesPerSec=102.3, MemAllocated=12.31GB, MaxMemAllocated=20.11GB     v0.7.0 - v0.7.7
    epoch=0/micro_step=1920/global_step=120, RunningAvgSamplesPerSec=101.2, CurrSamplesPerSec=102.3, MemAllocated=…  v0.8.0 on

The running average leaves out the first two steps and is what all versions have; the second number of the short form counts steps.
"""

from __future__ import annotations

from collections.abc import Iterator

from pipelog.parsing import Records, Rows, records

_NUMBER = r"(?:\d[\d.]*(?:[eE][-+]?\d+)?|nan|inf)"


@records(
    "deepspeed-throughput",
    mark=("SamplesPerSec=", "RunningAvgSamplesPerSec="),
    pattern=rf"^(?:RunningAvg)?SamplesPerSec=(?P<mean>{_NUMBER})(?:, CurrSamplesPerSec=(?P<now>{_NUMBER}))?"
    r"(?:, MemAllocated=(?P<allocated>\d[\d.]*)GB, MaxMemAllocated=(?P<max_allocated>\d[\d.]*)GB)?\s*$",
    head=r"(?:\bglobal_step=|\b\d+/)(?P<step>\d{1,9}), $",
    torn=r"^(?:RunningAvg)?SamplesPerSec=\d",
)
def throughput(found: Records) -> Iterator[Rows]:
    """Samples per second: the running mean, and the last step's where it is printed; the memory of the device."""
    step = found.int("step")
    yield found.rows("scalar", "samples_per_s", step=step, value=found.float("mean"))
    current = found.where(found.has("now"))
    yield current.rows("scalar", "samples_per_s_now", step=current.int("step"), value=current.float("now"))
    measured = found.where(found.has("allocated"))
    for name in ("allocated", "max_allocated"):
        yield measured.rows("memory_usage", name, step=measured.int("step"), bytes=measured.bytes(name, "GB"), text="throughput")
