"""What kernels of GPUs and their runtime say outside tracebacks: assertions on the device, faults. Drivers: gpu_driver.py.

../aten/src/ATen/native/cuda/Indexing.cu:1292: indexSelectLargeIndex: block: [12,0,0], thread: [0,0,0] Assertion `srcIndex < srcSelectDimSize` failed.
/tmp/torchinductor_user/ab/cab.py:26: unknown: block: [0,0,0], thread: [32,0,0] Assertion `index out of bounds: 0 <= tmp4 < 50257` failed.
Memory access fault by GPU node-4 (Agent handle: 0x5602c41d7e90) on address (nil). Reason: Unknown.
:0:rocdevice.cpp            :2660: 1234567 us: 12345: [tid:0x7f1] Device::callbackQueue aborting with error : HSA_STATUS_ERROR_EXCEPTION: An HSAIL operation resulted in a hardware exception. code: 0x1016
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelog.parsers.torch_cpp import MOST_CHARACTERS
from pipelog.parsing import Records, Rows, lines

_APART = 1000
"""Lines between two equal assertions from which on they are two runs."""


@lines(
    "gpu-assert",
    mark=("], thread: [", "Device-side assertion `"),
    pattern=(
        r"^(?:\[[^\]\"]{0,60}\]:? ?)?(?P<place>[^\s\"'`:]+:\d{1,9}): (?:.*?: block: \[\d+,\d+,\d+\], thread: \[\d+,\d+,\d+\] Assertion (?P<what>.*?) failed"
        r"|.*?Device-side assertion `(?P<hip>.*?)['`] failed)"
    ),
)
def assertion(found: Records) -> Iterator[Rows]:
    """Give the first of a run of equal assertions, and how many threads failed it (value): every thread prints its own."""
    parts = [found.groups["place"], found.groups["what"], found.groups["hip"]]
    parts += [pc.fill_null(pc.cast(found.columns[name], pa.string()), "") for name in ("rank", "host", "label")]
    key = pc.binary_join_element_wise(*parts, "\0").dictionary_encode().indices.to_numpy()
    line = found.columns["line"].to_numpy(zero_copy_only=False)
    order = np.lexsort((line, key))
    begins = np.ones(len(order), bool)
    begins[1:] = (key[order][1:] != key[order][:-1]) | (np.diff(line[order]) > _APART)
    first = order[begins]
    count = np.diff(np.append(np.flatnonzero(begins), len(order)))
    take = np.argsort(first)
    keep = np.zeros(len(order), bool)
    keep[first] = True
    some = found.where(pa.array(keep))
    yield some.rows("error", "gpu-assert", value=pa.array(count[take].astype(float)), text=pc.utf8_slice_codeunits(some["line"], 0, MOST_CHARACTERS))


_FAULTS = (
    "Memory access fault by GPU",
    "HSA_STATUS_ERROR",
    "HW Exception by GPU",
    "an illegal memory access was encountered",
    "uncorrectable ECC error encountered",
    "uncorrectable NVLink error",
    "unspecified launch failure",
)


# CUDA error (csrc/flash_fwd.cu:123): an illegal memory access was encountered
# Failed: Cuda error /workspace/csrc/custom_all_reduce.cuh:368 'an illegal memory access was encountered'
# HW Exception by GPU node-1 (Agent handle: 0x55d0) reason :GPU Hang
#  33%|███▎Memory access fault by GPU node-3 (Agent handle: 0x5a5c587a51c0) on address 0x709843600000. Reason: Unknown.:54:01, 26.24s/it]
@lines(
    "gpu-fault",
    mark=_FAULTS,
    pattern=(
        r"^(?:(?:\[[^\]\"']{0,80}\] ?){0,3}|[^\"'`]{0,200}\d%\|[^\"'`]{0,300}?)(?:Memory access fault by GPU|HW Exception by GPU|(?::\d:[^\"'`]{1,300}|Queue error[^\"'`]{0,100})\bHSA_STATUS_ERROR"
        r"|(?:(?:Failed: |Error:? )?(?:CUDA|Cuda|HIP|cuda|hip)[ _]?(?:[Ee]rror|[Ff]ailure|[Rr]untime)|Error an|GPUassert: ).{0,400}"
        r"(?:illegal memory access was encountered|uncorrectable ECC error encountered|uncorrectable NVLink error|unspecified launch failure))"
    ),
)
def fault(found: Records) -> Iterator[Rows]:
    """Give a fault of a GPU that stands outside tracebacks and logs which have rows of their own."""
    yield found.rows("error", "gpu-fault", text=pc.utf8_slice_codeunits(found["line"], 0, MOST_CHARACTERS))
