"""Stacks of threads that stand inside a log: what faulthandler prints when a process dies or is asked, what py-spy printed into it.

    Fatal Python error: Segmentation fault

    Current thread 0x00007f1c2b7fe700 (most recent call first):
      File "/home/user/train/model.py", line 88 in forward

Files that hold nothing else are read by reading/stack_dumps.py.
"""

from __future__ import annotations

from collections.abc import Iterator

from pipelog.parsers._stacks import MOST_FRAMES, frame_of, stack_of
from pipelog.parsing import Block, Records, Row, Rows, block, lines


@block("stack", mark=("(most recent call first)", '(idle): "', '(active): "', '(idle+gil): "', '(active+gil): "'), most=MOST_FRAMES)
def stack(found: Block) -> Iterator[Row]:
    """Give the frames of a thread, innermost first; of what stands between other lines those that follow at once."""
    lines = found.lines()
    number, text = next(lines)
    begun = stack_of(number, found.before + text)
    if begun is None:
        return
    for at, text in lines:
        frame = frame_of(text)
        if frame is None:
            break
        begun.add(at, frame)
    if begun.frames:
        yield begun.row()


# Timeout (0:15:00)!
@lines("stack-timeout", mark="Timeout (", pattern=r"^Timeout \((?P<words>\d{1,4}:\d\d:\d\d(?:\.\d+)?)\)!\s*$")
def asked(found: Records) -> Iterator[Rows]:
    """Give where faulthandler begins the stacks of a process that lives: its timer ran out (`dump_traceback_later`)."""
    yield found.rows("stack_head", "timeout", text=found["words"])
