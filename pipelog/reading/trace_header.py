"""What a trace's file says of itself outside its events: rank, host, base time, devices. An allow-list: the rest is dropped unseen."""

from __future__ import annotations

import re
from typing import Any

import msgspec


class Device(msgspec.Struct):
    """A device of the machine."""

    id: Any = None
    name: Any = None
    total_memory: Any = msgspec.field(name="totalGlobalMem", default=None)


class Header(msgspec.Struct):
    """The top-level keys that are kept; any other is dropped unseen."""

    base: Any = msgspec.field(name="baseTimeNanoseconds", default=None)
    distributed: Any = msgspec.field(name="distributedInfo", default=None)
    devices: list[Device] | None = msgspec.field(name="deviceProperties", default=None)
    trace_id: Any = None
    host_name: Any = None
    record_shapes: Any = None
    with_stack: Any = None
    cupti_version: Any = None
    roctracer_version: Any = None
    hip_runtime_version: Any = None


def header(head: bytes, tail: bytes) -> Header:
    """The header of what stands before and after the list of events."""
    head, tail = head.strip(), tail.strip()
    begin = (head if head.startswith(b"{") else b"{") + (b"" if head.endswith((b",", b"{")) or not head else b",") + b'"traceEvents":[]'
    for end in (tail or b"}", b"}"):
        try:
            return msgspec.json.decode(begin + end, type=Header)
        except (msgspec.MsgspecError, ValueError):
            continue
    return _loose_header(head + tail)


def _loose_header(text: bytes) -> Header:
    """The few scalars that matter, of a header that is no JSON (log lines with quotes in it)."""
    header = Header()
    if base := re.search(rb'"baseTimeNanoseconds"\s*:\s*(\d{1,19})', text):
        header.base = int(base.group(1))
    if host := re.search(rb'"host_name"\s*:\s*"([^"\\]{1,200})"', text):
        header.host_name = host.group(1).decode("utf-8", "replace")
    info = {}
    for key in (b"rank", b"world_size"):
        if found := re.search(rb'"distributedInfo"\s*:\s*\{[^{}\[\]]*"' + key + rb'"\s*:\s*(\d{1,9})', text):
            info[key.decode()] = int(found.group(1))
    header.distributed = info or None
    return header
