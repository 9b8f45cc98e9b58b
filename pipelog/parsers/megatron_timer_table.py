"""Megatron's timers over ranks, a table of several lines, printed by the last rank. Milliseconds, means per iteration.

Megatron-LM from August 2022 on and Megatron-DeepSpeed. A rank without a value greater than 0 is left out of minimum and maximum:

    (min, max) time across ranks (ms):
        model-and-optimizer-setup ......................: (2449.71, 2515.91)
        train/valid/test-data-iterators-setup ..........: (1430.08, 1704.59)

`--timing-log-option max` (Megatron-DeepSpeed keeps the heading of the form above), and `all`:

    max time across ranks (ms):
        forward-backward ...............................: 4377.80

    times across ranks (ms):
      forward-backward:
         rank  0: 4310.22
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from pipelog.events import Skipped
from pipelog.parsing import Block, Row, block

_MS = r"(-?\d+\.\d\d)"
_ROW = re.compile(rf"^ {{2,8}}([a-z][\w/ -]*?) ?\.*: (?:\({_MS}, {_MS}\)|{_MS})\s*$", re.ASCII)
_NAME = re.compile(r"^ {1,6}([a-z][\w/ -]*):\s*$", re.ASCII)
_RANK = re.compile(rf"^ {{3,9}}rank *(\d{{1,9}}): {_MS}\s*$", re.ASCII)
_NEXT = re.compile(r" across ranks \(ms\)|iteration[ =]+\d")
"""What follows a table at the latest: the next one, or the next iteration."""
_FOREIGN = 3
"""So many lines in a row, of others who write into the same file, may stand within a table, which is larger than what a pipe keeps together."""
_TORN = re.compile(r"^ {2,8}[a-z][\w/ -]* \.{2,}", re.ASCII)


@block("megatron-timer-table", mark=("time across ranks (ms):", "times across ranks (ms):"), most=20_000)
def timer_table(block: Block) -> Iterator[Row | Skipped]:
    """Two rows a timer (`min` and `max`), one row (`max`), or one row a rank (`all`)."""
    name, foreign = "", 0
    for number, text in block.lines():
        if number == block.line:
            continue
        foreign += 1
        if rank := _RANK.match(text):
            yield _timer(name, number, rank.group(2)) | {"text": "all", "rank": int(rank.group(1))}
        elif row := _ROW.match(text):
            low, high, only = row.group(2), row.group(3), row.group(4)
            for word, ms in (("min", low), ("max", high or only)):
                if ms:
                    yield _timer(row.group(1), number, ms) | {"text": word}
        elif heading := _NAME.match(text):
            name = heading.group(1)
        elif _TORN.match(text):
            yield Skipped(number, f"megatron-timer-table: the row is broken off: {text[:80]!r}")
        elif foreign > _FOREIGN or _NEXT.search(text):
            return
        else:
            continue
        foreign = 0


def _timer(name: str, line: int, ms: str) -> Row:
    return {"kind": "megatron_timer", "name": name.replace(" ", "-"), "line": line, "dur_ns": round(float(ms) * 1e6)}
