"""What a line of a traceback is: frame, exception, part of a message, or something else.

[rank2]:   File "/home/user/train/train.py", line 412, in <module>
[rank2]: torch.distributed.DistBackendError: NCCL error in: …/ProcessGroupNCCL.cpp:1333, unhandled system error, NCCL version 2.18.6
[rank2]: ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error.
"""

from __future__ import annotations

import re

MARK = "Traceback (most recent call last)"
UNTRACED = ("SyntaxError: ", "IndentationError: ", "TabError: ")
"""Exceptions that Python prints without a traceback where the script itself cannot be read."""
IGNORED = "Exception ignored "
CONNECTORS = ("During handling of the above exception, another exception", "The above exception was the direct cause of the following")
MOST_TEXT = 12
"""Lines of a message after the exception's own."""

FRAME = re.compile(r'^(?P<margin>.{0,120}?)  File "(?P<path>[^"]{1,1000})", line (?P<at>\d{1,9})(?:, in (?P<function>.{1,200}))?\s*$')
GATHERED = re.compile(r"^: \(RANK (?P<rank>\d{1,9})\)\s*$")
"""Behind the mark where torch.distributed.checkpoint repeats on every rank what was raised on some: `Traceback (most recent call last): (RANK 2)`."""
RICH_FRAME = re.compile(r"^(?P<path>\S.{0,400}?):(?P<at>\d{1,9}) in (?P<function>\S{1,200})$")
BOX = re.compile(r"^\s?[╭+][─-]+ $")
SUB = re.compile(r"^ +\+[-+]{2,} (?P<number>\d+|\.\.\.) -{2,}$|^ +\+-{8,}$")
SUB_EXCEPTION = re.compile(r"^(?P<margin> +\| )(?P<own>\S.*)$")
STAMP = re.compile(r"\d+(?:[-:.,/T ]\d+)+Z?")
"""What changes from line to line in a margin: dates and times."""

_NAMED = re.compile(r"^(?P<name>[A-Za-z_][\w.]{0,200}(?:<locals>[\w.]{1,200})?)(?:\([\w.]{1,200}\))?(?::(?: .*)?)?$")
_HUMPS = re.compile(r"[a-z\d][A-Z]")
_SURE = re.compile(
    r"^_*[A-Z]\w+(?:Error|Exception|Interrupt|Exit|Iteration|Warning|Timeout|Expired|Group|Failure|Failed|Fault)$|^Exception$|^BaseException$"
)
_DOTTED = re.compile(r"^(?:_*[A-Z]\w*|error|timeout|gaierror|herror)$")
_NO_NAME = re.compile(
    r"^(?:[a-z_]\w*|[A-Z]+|nccl\w+|Traceback|Loading|Saving|Time|Epoch|Step|Loss|Note|Warning|Error|Info|Debug|Setting|Using|Killed|Terminated|Aborted)$"
)
"""Words before a colon that are no exception: those in small letters without a dot (`steps: 5`), log levels, and the like."""

GOES_ON = re.compile(
    r"^(?:nccl[A-Z]\w+: |Last error:|(?:CUDA|HIP) kernel errors might|For debugging consider passing|Compile with `|Search for `(?:cuda|hip)Error"
    r"|Device-side assertion tracking|Exception raised from |To execute this test|Run with |Set TORCH_|Hint: )"
)
STOPS = re.compile(
    r"^(?:\[?\d{4}-\d\d-\d\d|\[[EWIF]\d* |\[rank\d+\]:|[EWIF]\d{4} |frame #\d+|Killing subprocess|terminate called|srun: |slurmstepd|wandb: |INFO:|WARNING:|ERROR:"
    r"|DEBUG:|Exception ignored|Fatal Python|Sending process|Main process|=====|Original Traceback| *\d+%\|)"
)
UNFINISHED = re.compile(r"[:,({\[\\]$")
LONG = re.compile(r"Error building extension|validation errors? for|Error\(s\) in loading state_dict")
TABLE_RANK = re.compile(r"^  rank +: (?P<rank>\d{1,9})\b")
TABLE_HOST = re.compile(r"^  host +: (?P<host>\S{1,200})\s*$")
TABLE_TRACE = "traceback : "
_NOT_QUOTES = re.compile(r"(?<=\w)'(?=\w)")


def is_quoted(before: str) -> bool:
    """Whether a string is open before the mark."""
    plain = _NOT_QUOTES.sub("", before.replace("\\'", "").replace('\\"', ""))
    return any(plain.count(quote) % 2 for quote in "\"'`")


def is_quoted_after(after: str) -> bool:
    """Whether the string that holds the mark goes on or ends behind it."""
    return after.removeprefix(":").lstrip().startswith(("\\n", '"', "'", "`", ",", ")"))


def is_exception(text: str, *, sure: bool = False) -> bool:
    """Whether a line names an exception; sure: also where it stands alone among other lines."""
    match = _NAMED.match(text)
    if match is None:
        return False
    path, _, name = match["name"].rpartition(".")
    if path:
        return _DOTTED.match(name) is not None
    if _SURE.match(name):
        return True
    if sure or _NO_NAME.match(name):
        return False
    return _HUMPS.search(name) is not None or re.match(r"[-+.\d]", text.partition(":")[2].strip()) is None
