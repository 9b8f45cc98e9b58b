"""Inputs for the benchmarks: a mix of log lines, and a torch profiler trace of any size. Seeded, so every run makes the same bytes.

python bench/generate.py log FILE BYTES
python bench/generate.py trace FILE BYTES
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

_STAMP = "[2026-03-05 10:%02d:%02d,%03d] [INFO] [logging.py:107:log_dist] "
_CHATTER = (
    "  warnings.warn(",
    "node-3:1234:1300 [3] NCCL INFO Channel 02/0 : 3[3] -> 11[3] [send] via NET/IB/2/GDRDMA",
    "Time to load fused_adam op: 0.11 seconds",
    "/opt/conda/lib/python3.10/site-packages/torch/utils/checkpoint.py:429: UserWarning: please pass in use_reentrant=True or False explicitly.",
    "[INFO|trainer.py:123] some other framework speaks of loss and of a step in its own way",
    "node-7:77:99 [1] NCCL INFO comm 0x5581 rank 1 nranks 64 cudaDev 1 busId 41000 - Init COMPLETE",
)
"""What four of five lines of a job's log are: NCCL, warnings, other frameworks."""


def log_lines(seed: int = 7) -> Iterator[str]:
    """One line of interest in five: steps, progress, timers, memory of a rank."""
    pick = random.Random(seed)
    wanted: tuple[Callable[[int, str], str], ...] = (_steps, _progress, _timers, _memory)
    number = 0
    while True:
        number += 1
        stamp = _STAMP % (number // 60 % 60, number % 60, number % 1000)
        yield pick.choice(wanted)(number, stamp) if pick.random() < 0.2 else pick.choice(_CHATTER)


def _steps(i: int, _: str) -> str:
    return f"steps: {i} loss: {9 - i % 700 / 100:.4f} iter time (s): {0.5 + i % 97 / 1000:.3f} samples/sec: {64 / (0.5 + i % 97 / 1000):.3f}"


def _progress(i: int, stamp: str) -> str:
    return f"{stamp}[Rank 0] step={i}, skipped=0, lr=[0.0001], mom=[(0.9, 0.999)]"


def _timers(i: int, stamp: str) -> str:
    names = ("fwd_microstep", "bwd_microstep", "bwd_inner_microstep", "bwd_allreduce_microstep", "step_microstep")
    return f"{stamp}[Rank 0] time (ms) | " + " | ".join(f"{n}: {i % 991 + k * 100.25:.2f}" for k, n in enumerate(names))


def _memory(i: int, _: str) -> str:
    used = 9000 + i % 977
    return f"[Rank {i % 64}] (after {i} iterations) memory (MB) | allocated: {used}.25 | max allocated: {used + 4000}.5 | reserved: 20000.0 | max reserved: 20000.0"


def write_log(path: Path, size: int) -> None:
    """Write about *size* bytes of the mix."""
    written = 0
    with path.open("w") as file:
        for line in log_lines():
            written += file.write(line + "\n")
            if written >= size:
                return


def write_trace(path: Path, size: int) -> None:
    """Write a trace of about *size* bytes: steps of operators, launches, kernels and collectives, shaped as Kineto writes them."""
    with path.open("w") as file:
        file.write(_HEADER)
        written, step, clock, event = len(_HEADER), 0, 1000.0, 0
        while written < size:
            begin = clock
            for _ in range(400):
                event += 1
                clock += 9.5
                block = _kernel(event, clock, collective=event % 40 == 0)
                written += file.write(block)
            written += file.write(_STEP % (step, begin, clock - begin))
            step += 1
        file.write(_TAIL)


_HEADER = """{
  "schemaVersion": 1,
  "deviceProperties": [ { "id": 0, "name": "NVIDIA H100 80GB HBM3", "totalGlobalMem": 85017755648 } ],
  "distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 8},
  "displayTimeUnit": "ms", "baseTimeNanoseconds": 1790857026000000000,
  "traceEvents": [
"""
_STEP = '  {\n    "ph": "X", "cat": "user_annotation", "name": "ProfilerStep#%d", "pid": 1, "tid": 1,\n    "ts": %.3f, "dur": %.3f,\n    "args": {}\n  },\n'
_TAIL = '  {\n    "ph": "i", "name": "Record Window End", "pid": "", "tid": "", "ts": 1.0, "s": "g"\n  }\n  ],\n  "traceName": "generated.json"\n}\n'
_OPERATOR = (
    '  {\n    "ph": "X", "cat": "cpu_op", "name": "aten::addmm", "pid": 1, "tid": 1,\n    "ts": %.3f, "dur": 8.250,\n    "args": {\n'
    '      "External id": %d,"Sequence number": %d, "Fwd thread id": 0, "Record function id": 0, "Concrete Inputs": ["", "", ""], '
    '"Input type": ["float", "float", "float"], "Input Dims": [[4096], [2048, 1024], [1024, 4096]], "Ev Idx": %d\n    }\n  },\n'
)
_LAUNCH = (
    '  {\n    "ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1,\n    "ts": %.3f, "dur": 3.125,\n    "args": {\n'
    '      "External id": %d, "cbid": 211, "correlation": %d\n    }\n  },\n'
)
_DEVICE = (
    '  {\n    "ph": "X", "cat": "kernel", "name": "%s", "pid": 0, "tid": %d,\n    "ts": %.3f, "dur": 9.125,\n    "args": {\n'
    '      "External id": %d, "queued": 0, "device": 0, "context": 1, "stream": %d, "correlation": %d, "registers per thread": 128, '
    '"shared memory": 49152, "blocks per SM": 1.5, "warps per SM": 12, "grid": [128, 1, 1], "block": [256, 1, 1], "est. achieved occupancy %%": 25%s\n    }\n  },\n'
)
_FLOW = '  {\n    "ph": "%s", "id": %d, "pid": %d, "tid": %d, "ts": %.3f,\n    "cat": "ac2g", "name": "ac2g"%s\n  },\n'


def _kernel(event: int, clock: float, *, collective: bool) -> str:
    name, stream, more = "ampere_bf16_s16816gemm_bf16_128x256_ldg8_f2f_stages_64x3_tn", 7, ""
    if collective:
        name, stream = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", 20
        more = ', "Collective name": "allreduce", "In msg nelems": 1048576, "Out msg nelems": 1048576, "Group size": 8, "dtype": "BFloat16", "Process Group Name": "0"'
    operator = _OPERATOR % (clock, event, event, event)
    launch = _LAUNCH % (clock + 2, event, event)
    device = _DEVICE % (name, stream, clock + 20, event, stream, event, more)
    return operator + launch + device + _FLOW % ("s", event, 1, 1, clock + 2, "") + _FLOW % ("f", event, 0, stream, clock + 20, ', "bp": "e"')


def main() -> None:
    """Write one input."""
    kind, path, size = sys.argv[1], Path(sys.argv[2]), int(float(sys.argv[3]))
    path.parent.mkdir(parents=True, exist_ok=True)
    {"log": write_log, "trace": write_trace}[kind](path, size)


if __name__ == "__main__":
    main()
