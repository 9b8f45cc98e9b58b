"""DeepSpeed's comms logger (v0.7.0 on), rank 0. Sizes in binary units (1 KB = 1024 B), latencies in ms.

One line per operation (`verbose`; hidden by default from v0.17.6 on). From v0.18.3 on the time is the sum of all calls of that
operation so far, which the tables must know:

    [Rank 0] rank=0 | comm op: all_reduce | time (ms): 4.21 | msg size: 96.0 MB | algbw (Gbps): 382.10  | busbw (Gbps): 334.34      v0.7.0 - v0.10.0
    [Rank 0] comm op: recv | time (ms): 7.12 | msg size: 8.0 KB | algbw (Gbps): 0.01 | busbw (Gbps): 0.01                          v0.10.1 on
    [Rank 0] comm op: all_reduce | [Caller Func: _allreduce_grads] | time (ms): 4.21 | …                                           with `debug`

The table of `log_summary()`, columns of 20 characters, an operation's name above its rows; with `show_straggler` a second one:

    Comm. Op            Message Size        Count               Total Latency(ms)   Avg Latency(ms)     tput_avg (Gbps)     busbw_avg (Gbps)
    broadcast
                        8.0 B               6                   3.90                0.60                0.00                0.00
    Comm. Op            Message Size        Count               Total comm lat(ms)  Total straggler(ms) Avg comm lat(ms)    Avg straggler(ms)
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from pipelog.events import Skipped
from pipelog.parsing import Block, Records, Row, Rows, block, records

_SIZE = re.compile(r"^(\d+(?:\.\d+)?) ?([KMGTP]?)B$", re.ASCII)
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40, "P": 2**50}
_OPERATION = re.compile(r"^([a-z]\w*)(?: \| \[Caller Func: [^\]]*\])?\s*$", re.ASCII)
_COUNT = re.compile(r"^\d{1,15}$", re.ASCII)
_MS = re.compile(r"^\d{1,12}\.\d+$", re.ASCII)
_WIDTH = 20


@records(
    "deepspeed-comm",
    mark="comm op: ",
    pattern=r"^comm op: (?P<op>[A-Za-z]\w*) \| (?:\[Caller Func: [^\]|]*\] \| )?time \(ms\): (?P<ms>\d+\.\d+)"
    r" \| msg size: (?P<size>\d+(?:\.\d+)?) ?(?P<unit>[KMGT]?B) \| algbw \(Gbps\): \d+\.\d+ *\| busbw \(Gbps\): \d+\.\d\d",
    torn=r"^comm op: [a-z_]+ \| (?:\[Caller|time \(ms\))",
)
def comm(found: Records) -> Iterator[Rows]:
    """One operation: how long it took and how much it moved."""
    yield found.rows("comm", found.groups["op"], dur_ns=found.ms("ms"), bytes=found.bytes("size", "unit"))


@block("deepspeed-comm-summary", mark="Comm. Op            Message Size        Count               ", most=20_000)
def summary(block: Block) -> Iterator[Row | Skipped]:
    """A row per operation and message size; two where the time is split: `text` says `communication` and `straggler`."""
    split = "straggler" in block.first
    operation = ""
    for number, text in block.lines():
        if number == block.line:
            continue
        cells = [text[at : at + _WIDTH].strip() for at in range(0, 7 * _WIDTH, _WIDTH)]
        size = _SIZE.match(cells[1])
        if not cells[0] and size and operation:
            if not (len(text.rstrip()) > 6 * _WIDTH and _COUNT.match(cells[2]) and _MS.match(cells[3]) and _MS.match(cells[4])):
                yield Skipped(number, f"deepspeed-comm-summary: the row is broken off: {text[:80]!r}")
                return
            row = {"kind": "comm_summary", "name": operation, "line": number, "value": float(cells[2])}
            row["bytes"] = round(float(size.group(1)) * _UNITS[size.group(2)])
            yield row | {"dur_ns": round(float(cells[3]) * 1e6), "text": "communication" if split else None}
            if split:
                yield row | {"dur_ns": round(float(cells[4]) * 1e6), "text": "straggler"}
        elif name := _OPERATION.match(text):
            operation = name.group(1)
        else:
            return
