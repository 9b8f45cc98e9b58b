"""Lines of stack dumps: which one begins the stack of a thread, which one is a frame of it.

Thread 4312 (idle): "MainThread"                              py-spy dump
    wait (threading.py:320)
Current thread 0x00007f1c2b7fe700 (most recent call first):   faulthandler
  File "/usr/lib/python3.10/threading.py", line 320 in wait
Thread 3 (Thread 0x7f1c2b7fe700 (LWP 4315) "python"):         gdb -batch -ex 'thread apply all bt'
#0  0x00007f1c5a1b2c3d in __futex_abstimed_wait_common64 () from /lib/x86_64-linux-gnu/libc.so.6
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from pipelog.parsing import Row

MOST_FRAMES = 200
_PY_SPY = re.compile(r"^Thread (?P<id>0x[0-9A-Fa-f]+|\d+) \((?P<state>(?:active|idle)(?:\+gil)?)\)(?:: \"(?P<name>[^\"]*)\")?\s*$")
_PY_SPY_FRAME = re.compile(r"^    (?P<function>\S.*?) \((?P<place>[^()]*(?:\([^()]*\)[^()]*)*)\)\s*$")
_FAULT = re.compile(r"^(?P<which>Current thread|Thread|Stack)(?: (?P<id>0x[0-9A-Fa-f]+))?(?: \[(?P<name>[^\]]*)\])? \(most recent call first\):\s*$")
_FAULT_FRAME = re.compile(r"^  File \"(?P<path>[^\"]*)\", line (?P<line>\d+|\?\?\?) in (?P<function>.*?)\s*$")
_GDB = re.compile(r"^Thread \d+ \((?:Thread 0x[0-9A-Fa-f]+ )?\(?LWP (?P<pid>\d+)\)?(?: \"?(?P<name>[^\"()]*)\"?)?(?: \(.*\))?\):\s*$")
_GDB_FRAME = re.compile(r"^#\d+ +(?:0x[0-9A-Fa-f]+ in )?(?P<function>\S.*?) \(.*?\)(?: at (?P<at>\S+)| from (?P<library>\S+))?\s*$")
_PROCESS = re.compile(r"^Process (?P<pid>\d+): (?P<command>\S.*)$")
_LOCAL = re.compile(r"--local[_-]rank[= ](?P<local>\d{1,6})\b")
_ENVIRONMENT = re.compile(r"(?<![A-Za-z0-9_])(?P<local>LOCAL_)?RANK=(?P<rank>\d{1,7})\b")
_RANK = re.compile(r"(?i)\brank[ =:_#]{0,3}(?P<rank>\d{1,7})\b")
_PID = re.compile(r"(?i)\b(?:pid|process)[ =:_#]{1,3}(?P<pid>\d{1,10})\b")


@dataclass(slots=True)
class Stack:
    """The stack of one thread while it is read. line: of its head. frames: innermost first; numbers: their lines."""

    line: int
    state: str
    thread: str | None
    pid: int | None
    frames: list[str] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)

    def add(self, number: int, frame: str) -> None:
        """Take one more frame."""
        self.frames.append(frame)
        self.numbers.append(number)

    def row(self) -> Row:
        """The row of the event table."""
        row: Row = {"kind": "stack", "name": self.state, "line": self.line, "text": "\n".join(self.frames)}
        row |= {} if self.thread is None else {"stream": self.thread}
        if self.numbers != list(range(self.line + 1, self.line + 1 + len(self.frames))):  # other lines stand between them
            row["group"] = " ".join(map(str, self.numbers))
        return row if self.pid is None else row | {"value": float(self.pid)}


def stack_of(number: int, text: str) -> Stack | None:
    """The stack that a line begins. py-spy names threads by their number in the system, which of the main thread is that of the process."""
    if match := _PY_SPY.match(text):
        main = match["name"] == "MainThread" and match["id"].isdecimal()
        return Stack(number, match["state"], match["name"] or match["id"], int(match["id"]) if main else None)
    if match := _FAULT.match(text):
        return Stack(number, "current" if match["which"] == "Current thread" else "thread", match["name"] or match["id"], None)
    if match := _GDB.match(text):
        return Stack(number, "thread", (match["name"] or "").strip() or match["pid"], int(match["pid"]))
    return None


def frame_of(text: str) -> str | None:
    """`path:line function` of a frame, null where a line is none."""
    if match := _FAULT_FRAME.match(text):
        return f"{match['path']}:{match['line']} {match['function']}"
    if match := _PY_SPY_FRAME.match(text):
        return f"{match['place']} {match['function']}"
    if match := _GDB_FRAME.match(text):
        return f"{match['at'] or match['library'] or '?'} {match['function']}"
    return None


def process_of(text: str) -> Row | None:
    """Columns value (pid), label (`local 3`) and rank of the line with which py-spy begins a process; scripts write its environment behind the command."""
    match = _PROCESS.match(text)
    if match is None:
        return None
    said = {found["local"] or "": found["rank"] for found in _ENVIRONMENT.finditer(match["command"])}
    local = found["local"] if (found := _LOCAL.search(match["command"])) else said.get("LOCAL_")
    row: Row = {"value": float(match["pid"])}
    row |= {} if local is None else {"label": f"local {local}"}
    return row if "" not in said else row | {"rank": int(said[""])}


def said_of(text: str) -> Row:
    """What a line between two dumps says of the next one: `==== rank 3, pid 4312 ====`."""
    rank, pid = _RANK.search(text), _PID.search(text)
    return ({} if rank is None else {"rank": int(rank["rank"])}) | ({} if pid is None else {"value": float(pid["pid"])})
