"""Python tracebacks: the line that names the exception.

    [rank2]: Traceback (most recent call last):
    [rank2]:   File "/home/user/train/train.py", line 412, in <module>
    [rank2]:     main()
    [rank2]: ValueError: bad sample in shard 17

torch prefixes every line with the rank since 2.2. Before, those of several ranks stand one in another when they die together: then
the exceptions are given to the tracebacks from the last begun to the first. Chained exceptions are tracebacks of their own, the
first is the cause.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from pipelog.events import Skipped
from pipelog.parsing import Block, Row, block

_MARK = "Traceback (most recent call last)"
_FRAME = re.compile(r"^(?P<before>.{0,120}?)  File \"")
_EXCEPTION = re.compile(r"^(?P<name>[A-Za-z_][\w.]{0,200})(?:: .*|:)?$")
_WORDS = re.compile(r"^(?:[a-z_]\w*|[A-Z]+|Traceback|Loading|Saving|Time|Epoch|Step|Loss|Note|Warning|Error|Info|Debug|Setting|Using)$")
"""Words before a colon that are no exception: those in small letters without a dot (`steps: 5`), log levels, and the like."""
_MOST_OTHERS = 8


@block("python-traceback", mark=_MARK, most=2000)
def traceback(found: Block) -> Iterator[Row | Skipped]:
    """Give the exception's line as a `message` of the rank that raised it."""
    lines = found.lines()
    next(lines)
    before: str | None = None
    others = 0
    for number, text in lines:
        if _MARK in text:
            others += 1
            if others > _MOST_OTHERS:
                break
            continue
        if before is None and (frame := _FRAME.match(text)):
            before = frame["before"]
        own = text.removeprefix(before) if before else text
        if before and own is text:
            continue
        if not _is_exception(own):
            continue
        if others:
            others -= 1
            continue
        yield {"kind": "message", "name": "traceback", "line": number, "text": own.strip()}
        return
    yield Skipped(found.line, "python-traceback: its last line was not found")


def _is_exception(text: str) -> bool:
    match = _EXCEPTION.match(text.rstrip())
    return match is not None and not _WORDS.match(match["name"])
