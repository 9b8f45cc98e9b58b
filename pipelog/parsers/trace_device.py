"""Device work in a trace: kernels, copies, fills; communication kernels told by name.

    {"ph": "X", "cat": "kernel", "name": "ncclDevKernel_AllReduce_Sum_f32_RING_LL(…)", "pid": 0, "tid": 40, "ts": …, "dur": …, "args": {…}}

Decided by category, not by the presence of `stream`: cuda_sync and some cpu_ops carry a stream and are no work. On MTIA
`event_wait` and `event_record` are no work either, and `dma_request` is a copy. What a communication kernel did (all_reduce,
send, …) is settled by the reader at the end of the file, with the annotations at hand.
"""

from __future__ import annotations

import functools
import re
from typing import Any

import pyarrow as pa

from pipelog.events import WORD, constant
from pipelog.tracing import Slice, TraceArgs, integers, message_bytes, trace_events, words

COMMUNICATION = re.compile(r"nccl|rccl|oneccl|\bccl_|hcom_|hccl|cross_device_reduce|multimem_all_reduce|deep_ep::|nvshmem|mscclpp", re.IGNORECASE)
"""Names of communication kernels, in and outside the libraries (torch-traces.md section 10). Not anchored: `void rcclGenericKernel<…>`."""

_NO_WORK = frozenset({"event_wait", "event_record"})
_COPIES = frozenset({"dma_request"})


@trace_events("device-kernels", categories=("kernel", "hpu_op", "mtia_ccp_events", "collective_comm"))
def kernels(found: Slice) -> pa.Table | None:
    """Kind `kernel`, `memcpy` (MTIA's dma_request) or `communication`, which the reader resolves."""
    keep = [i for i, e in enumerate(found.events) if e.name not in _NO_WORK]
    found = found if len(keep) == len(found.events) else found.where(keep)
    kinds = ["communication" if e.cat == "collective_comm" else _kind(e.name) for e in found.events]
    columns = _device(found, words(kinds))
    if "communication" in kinds:
        args = found.args()
        columns |= {
            "operation": words([a.collective for a in args]),
            "group": words([a.group for a in args]),
            "peer": integers([_peer(a) for a in args]),
            "bytes": pa.array([message_bytes(a.elements, a.dtype) if a.collective is not None else None for a in args], pa.int64()),
            "external": integers([a.external if a.external is not None else a.external_old for a in args]),
        }
    return pa.table(columns)


@functools.lru_cache(1 << 16)
def _kind(name: Any) -> str:
    text = str(name)
    return "memcpy" if text in _COPIES else "communication" if COMMUNICATION.search(text) else "kernel"


@trace_events("device-copies", categories=("gpu_memcpy",))
def copies(found: Slice) -> pa.Table:
    """Kind `memcpy`, with its bytes."""
    return pa.table(_device(found, constant("memcpy", WORD, len(found.events))) | {"bytes": integers([a.bytes for a in found.args()])})


@trace_events("device-fills", categories=("gpu_memset",))
def fills(found: Slice) -> pa.Table:
    """Kind `memset`, with its bytes."""
    return pa.table(_device(found, constant("memset", WORD, len(found.events))) | {"bytes": integers([a.bytes for a in found.args()])})


@trace_events("device-annotations", categories=("gpu_user_annotation",))
def device_annotations(found: Slice) -> pa.Table | None:
    """Ranges of communication calls as projected on a stream: they name the kernels inside. Not work, dropped at the end."""
    keep = [i for i, e in enumerate(found.events) if isinstance(e.name, str) and ":" in e.name and "::" not in e.name]
    found = found.where(keep)
    return pa.table(_device(found, constant("_device_annotation", WORD, len(keep)))) if keep else None


def _device(found: Slice, kind: pa.Array) -> dict[str, pa.Array]:
    args = found.args()
    devices = [a.device if a.device is not None else e.pid for a, e in zip(args, found.events, strict=True)]
    streams = [a.stream if a.stream is not None else e.tid for a, e in zip(args, found.events, strict=True)]
    return {
        "kind": kind,
        "name": found.names(),
        "device": words([f"gpu {d}" for d in devices]),
        "stream": words([f"stream {s}".replace("stream stream", "stream") for s in streams]),
        "start_ns": pa.array(found.ts_ns()),
        "dur_ns": pa.array(found.dur_ns()),
        "line": pa.array(found.index),
        "correlation": integers([a.correlation for a in args]),
    }


def _peer(args: TraceArgs) -> int | None:
    """The other end as far as the kernel says: for a send the target, for a receive the source."""
    operation = str(args.collective or "").lower()
    value = args.target if "send" in operation else args.source if "recv" in operation else None
    return value if isinstance(value, int) and value >= 0 else None
