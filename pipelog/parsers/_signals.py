"""Signals by the words that shells and launchers have for them."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

_NUMBERS = {
    "Hangup": 1,
    "Interrupt": 2,
    "Quit": 3,
    "Illegal instruction": 4,
    "Trace/breakpoint trap": 5,
    "Aborted": 6,
    "Bus error": 7,
    "Floating point exception": 8,
    "Killed": 9,
    "Segmentation fault": 11,
    "Broken pipe": 13,
    "Alarm clock": 14,
    "Terminated": 15,
    "CPU time limit exceeded": 24,
    "File size limit exceeded": 25,
    "Bad system call": 31,
    "SIGHUP": 1,
    "SIGINT": 2,
    "SIGQUIT": 3,
    "SIGILL": 4,
    "SIGTRAP": 5,
    "SIGABRT": 6,
    "SIGBUS": 7,
    "SIGFPE": 8,
    "SIGKILL": 9,
    "SIGUSR1": 10,
    "SIGSEGV": 11,
    "SIGUSR2": 12,
    "SIGPIPE": 13,
    "SIGALRM": 14,
    "SIGTERM": 15,
    "abort": 6,
    "bus error": 7,
    "killed": 9,
    "segmentation fault": 11,
    "terminated": 15,
}
WORDS = r"(?:Killed|Terminated|Aborted|Segmentation fault|Bus error|Illegal instruction|Floating point exception|Trace/breakpoint trap|Bad system call|Hangup)"
"""Words of a shell for the death of a process, those that nobody writes for something else."""


def signals(words: pa.Array) -> pa.Array:
    """Return the number of the signal that each word means, negative as exit codes have it; null where it means none."""
    numbers = pa.array([-float(n) for n in _NUMBERS.values()])
    return numbers.take(pc.index_in(words, pa.array(list(_NUMBERS))))
