"""Python tracebacks: every exception with its place in its chain, and the frames that tell where it was raised.

    [rank2]: Traceback (most recent call last):
    [rank2]:   File "/home/user/train/train.py", line 412, in <module>
    [rank2]:     main()
    [rank2]: ValueError: bad sample in shard 17

torch prefixes every line with the rank since 2.2; before, those of several ranks stand one in another when they die together. Of
chained exceptions the first is the cause (value 0), and so is the `Original Traceback` of a DataLoader worker, and what stands in a
group of exceptions. rich's boxes, loggers' prefixes and the tables of torchrun are read, too (stream `logged` and `repeated`; `ignored` after
`Exception ignored in`). A mark within quotes or indented is another log that is quoted, and none.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from pipelog.events import Skipped
from pipelog.parsers._raised import Chain, Frame, Raised
from pipelog.parsers._traceback_lines import IGNORED, MARK, UNTRACED
from pipelog.parsers._traceback_region import Region
from pipelog.parsing import Block, Row, block

ENDS_WITHIN = "python-traceback: there is no line behind it, and its last one was not found"
_MOST_CHARACTERS = 2000
_LIBRARY = re.compile(r"[/\\](?:site-packages|dist-packages)[/\\]|[/\\]lib(?:64)?[/\\]python\d+\.\d+[/\\]|^<(?!stdin>|string>)")
_PIPE = re.compile(r"deepspeed[/\\]runtime[/\\]pipe[/\\]engine\.py$")
_TORCH_PREFIX = re.compile(r"\[rank\d+\]: ?$")
_LOGGED_RANK = re.compile(r"\[[Rr]ank \d+\]|\brank=\d+ $")
_BARRIER = re.compile(r"in store based barrier on rank: (?P<rank>\d{1,9})\b")
_UNREACHED = re.compile(
    r" but host=(?P<host>[\w.-]{1,200}) was not reachable via ssh|CalledProcessError: Command 'ssh [^']{0,400}?(?P<asked>[\w.-]{1,200}) hostname' returned"
)
"""DeepSpeed's launcher asks every host of the host file for its name before it starts anything."""
_BAD_LEVEL = re.compile(r"(?i)\b(?:error|critical|fatal|exception|warning)\b")


@block("python-traceback", mark=(MARK, IGNORED, *UNTRACED), most=100_000, whole=True)
def traceback(found: Block) -> Iterator[Row | Skipped]:
    """Give exceptions, their frames, and the last exception of each chain as a `message`."""
    before = found.head.removesuffix(found.before)
    region = Region(strict=_TORCH_PREFIX.search(before) is not None)
    lines = found.lines()
    next(lines)
    if not region.feed(found.line, found.before + found.first) or not region.begun:
        return
    last, whole = found.line, False
    for last, text in lines:
        if whole := not region.feed(last, text):
            break
    region.close()
    of_head = _LOGGED_RANK.search(found.before) is not None
    logged = of_head and _BAD_LEVEL.search(found.before) is not None
    used: set[str] = set()
    for chain in region.chains:
        name = str(chain.line)
        while name in used:  # several tracebacks begin on one line
            name += "'"
        used.add(name)
        known: Row = {"rank": None} if of_head and not (logged and chain.first) else {}
        if chain.rank is not None:
            known = {"rank": chain.rank, "host": chain.host}
        elif found.rank is None and chain.raised and (match := _BARRIER.search(chain.raised[0].text[0])):
            known = {"rank": int(match["rank"])}
        if host := next((m["host"] or m["asked"] for raised in chain.raised if (m := _UNREACHED.search(raised.text[0]))), None):
            known = {**known, "host": host}
        yield from _rows(chain, name, known)
    cut = region.unfinished[-1] if region.unfinished and not whole and last > region.unfinished[-1] else None
    for line in region.unfinished:
        yield Skipped(last, ENDS_WITHIN) if line == cut else Skipped(line, "python-traceback: its last line was not found")
    if cut is not None:
        of_cut: Row = {"rank": None} if of_head and not logged else {}
        if (frame := region.reached.get(cut)) is None:
            yield {"kind": "error", "name": "traceback-cut", "line": cut, "text": f"{MARK}:"} | of_cut
        else:
            at = f"{frame.path}:{frame.at} {frame.function}".rstrip()[:_MOST_CHARACTERS]
            yield {"kind": "error", "name": "traceback-cut", "line": cut, "value": float(frame.line), "text": f"{MARK}:\n{at}"} | of_cut


def _rows(chain: Chain, group: str, known: Row) -> Iterator[Row]:
    ordered = chain.ordered()
    for place, raised in enumerate(ordered):
        same: Row = {**known, "kind": "error", "group": group, "value": float(place)}
        text = "\n".join(raised.text).rstrip()[:_MOST_CHARACTERS]
        yield {**same, "name": "python-exception", "line": raised.line, "text": text, "stream": chain.stream}
        for stream, frame in _telling(raised, caught=place + 1 < len(ordered)):
            text = f"{frame.path}:{frame.at} {frame.function}".rstrip()[:_MOST_CHARACTERS]
            yield {**same, "name": "python-frame", "line": frame.line, "text": text, "stream": stream}
        if raised.told is not None:
            yield {**same, "name": "python-frame", "line": raised.told[0], "text": raised.told[1][:_MOST_CHARACTERS], "stream": "told"}


def _telling(raised: Raised, *, caught: bool) -> Iterator[tuple[str, Frame]]:
    """The innermost frame, the innermost outside libraries, the innermost of the pipeline engine's instructions; of one that was caught also where.

    A traceback of an exception that another one followed begins where it was caught.
    """
    inside_out = raised.frames[::-1]
    own = (f for f in inside_out if not _LIBRARY.search(f.path))
    pipe = (f for f in inside_out if f.function.startswith("_exec_") and _PIPE.search(f.path))
    for stream, frames in (("raised", iter(inside_out)), ("own", own), ("pipe", pipe)):
        if (frame := next(frames, None)) is not None:
            yield stream, frame
    if caught and raised.frames:
        yield "caught", raised.frames[0]
