"""Crashes outside Python, as faulthandler, torch's signal handlers of DataLoader workers and the C library report them.

    Fatal Python error: Segmentation fault
    ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory (shm).
    double free or corruption (!prev)

The stacks that faulthandler prints below are read in stacks.py.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow.compute as pc

from pipelog.parsing import Records, Rows, lines


@lines("fatal-python", mark="Fatal Python error: ", pattern=r"^(?:Fatal Python error: \S|\S[^'\"]*[\]:>|] ?Fatal Python error: \S)")
def fatal_python(found: Records) -> Iterator[Rows]:
    """Give what the interpreter died of."""
    yield found.rows("error", "fatal-python", text=found["line"])


# ERROR: Unexpected segmentation fault encountered in worker.
# RuntimeError: DataLoader worker (pid 4400) is killed by signal: Killed.       (this one is a traceback's last line, and left to it)
# ERROR train.py: caught DataLoader worker (pid(s) 4400, 4401) exited unexpectedly
@lines(
    "loader-worker",
    mark=(" encountered in worker.", "DataLoader worker (pid"),
    pattern=r"^(?:ERROR: Unexpected [\w -]+ encountered in worker\.|(?P<before>.*)DataLoader worker \(pid(?:\(s\))? (?P<pid>\d{1,12})[\d, ]*\) (?:is killed by signal|exited unexpectedly))",
)
def loader_worker(found: Records) -> Iterator[Rows]:
    """Give a message about a DataLoader's worker (value: its pid, of several the first) that is no exception's own line."""
    before = found.groups["before"]
    raised = pc.match_substring_regex(before, r"^[\w.]*(?:Error|Exception): |['\"]|^\s")
    found = found.where(pc.invert(raised))
    yield found.rows("error", "loader-worker", value=found.float("pid"), text=found["line"])


# *** Error in `python': double free or corruption (out): 0x00007f3c5a1b2c3d ***
# free(): invalid pointer
# *** buffer overflow detected ***: terminated
# python: ../csrc/foo.cc:12: int foo(int): Assertion `x > 0' failed.
@lines(
    "heap-corruption",
    mark=(
        "*** Error in `",
        "free(): ",
        "malloc(): ",
        "realloc(): ",
        "munmap_chunk(): ",
        "double free or corruption (",
        "corrupted size vs. prev_size",
        "corrupted double-linked list",
        "malloc_consolidate(): ",
        " detected ***: terminated",
        " detected ***: ",
        ": Assertion `",
    ),
    pattern=(
        r"^(?:(?:free|malloc|realloc|munmap_chunk|malloc_consolidate)\(\): (?:invalid|corrupted|unaligned|memory corruption|mismatching|unsorted|smallbin|largebin|double free|too many)[^'\"]*$"
        r"|double free or corruption \(|corrupted (?:size vs\. prev_size|double-linked list)|\*\*\* Error in `[^']+': |\*\*\* [a-z ]+ detected \*\*\*: "
        r"|\S+: \S+:\d{1,7}: .+: Assertion `.+' failed\.?\s*$)"
    ),
)
def heap_corruption(found: Records) -> Iterator[Rows]:
    """Give the C library's last words before it aborts: broken heap, broken stack, an assertion of C or C++ code on the host."""
    yield found.rows("error", "level", stream="fatal", text=found["line"])
