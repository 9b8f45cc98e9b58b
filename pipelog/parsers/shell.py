"""What a shell says when a command dies of a signal or cannot be started, and what python says without a traceback.

    /var/spool/slurmd/job812345/slurm_script: line 28:  8156 Killed                  python3 train.py --deepspeed
    Segmentation fault (core dumped)
    bash: deepspeed: command not found
    /usr/bin/python: can't open file '/home/user/trian.py': [Errno 2] No such file or directory

A word alone counts only as a whole line.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow.compute as pc

from pipelog.parsers._signals import WORDS, signals
from pipelog.parsing import Records, Rows, lines


# [1]+  Killed                  nohup deepspeed train.py > out.log
# zsh: segmentation fault (core dumped)  python train.py
# make: *** [Makefile:3: train] Killed
# Command terminated by signal 9
@lines(
    "shell-signal",
    mark=(
        "Killed",
        "Terminated",
        "Aborted",
        "Segmentation fault",
        "Bus error",
        "Illegal instruction",
        "Floating point exception",
        "Trace/breakpoint trap",
        "Bad system call",
        "Hangup",
        "zsh: ",
        "Command terminated by signal ",
    ),
    pattern=(
        rf"^(?:(?P<bare>{WORDS})(?: \(core dumped\))?\s*$"
        rf"|\S.*?: line \d{{1,6}}: *\d{{1,12}} (?P<script>{WORDS})(?:\s+\(core dumped\))?(?:\s|$)"
        rf"|\[\d{{1,4}}\][+-]? {{1,3}}(?:\d{{1,12}} )?(?P<job>{WORDS})(?: \(core dumped\))? {{2,}}\S"
        rf"|(?: {{2,}}|make(?:\[\d+\])?: \*\*\* \[[^\]]+\] )(?:\d{{1,12}} )?(?P<other>{WORDS})(?:\s+\(core dumped\))?(?:\s+\||\s*$)"
        r"|zsh: (?P<zsh>killed|terminated|abort|bus error|segmentation fault)(?: \(core dumped\))? +\S"
        r"|Command terminated by signal (?P<number>\d{1,3})\s*$)"
    ),
)
def died(found: Records) -> Iterator[Rows]:
    """Give the signal (negative) that a command died of; who sent it, a shell does not know."""
    words = pc.coalesce(*(found[name] for name in ("bare", "script", "job", "other", "zsh")))
    yield found.rows("error", "shell-signal", value=pc.coalesce(signals(words), pc.negate(found.float("number"))), text=found["line"])


_SHELL = r"(?:-?(?:/\S*/)?(?:ba|da|z|k|tc)?sh|(?:\S*/)?[\w.-]+\.s(?:h|batch|lurm)|(?:/\S*/)?slurm_script|(?:/usr/bin/)?env|nohup|sudo|exec|xargs|\S*orterun|\S*mpirun|\S*mpiexec)"


# train.sh: line 12: deepspeed: command not found
# /bin/sh: 1: deepspeed: not found
# /usr/bin/env: ‘python’: No such file or directory
# /usr/bin/python: No module named deepspeed
# slurmstepd: error: execve(): deepspeed: No such file or directory
# deepspeed: error while loading shared libraries: libcudart.so.11.0: cannot open shared object file: No such file or directory
@lines(
    "shell-command",
    mark=(
        "command not found",
        ": not found",
        ": Permission denied",
        ": No such file or directory",
        "can't open file '",
        ": No module named ",
        ": Error while finding module specification for ",
        ": cannot execute",
        ": Exec format error",
        ": Argument list too long",
        "fork: retry: ",
        "fork: Cannot allocate memory",
        "execve(): ",
        ": error while loading shared libraries: ",
    ),
    pattern=(
        rf"^(?:(?:\S.*?: )?(?:line \d+: )?\S+: command not found\s*$|zsh: command not found: \S"
        rf"|{_SHELL}: (?:line \d+: |\d+: )?(?:\S+: ){{0,2}}\S+: (?:not found|Permission denied|No such file or directory|cannot execute\b.*|Exec format error"
        r"|Argument list too long|fork: (?:retry: .*|Cannot allocate memory))\s*$"
        rf"|{_SHELL}: (?:line \d+: )?fork: (?:retry: |Cannot allocate memory)"
        r"|(?:/\S*/)?python[\d.]*: (?:can't open file '|No module named |Error while finding module specification for )"
        r"|(?:slurmstepd\S*|srun): error: (?:\S+: )?(?:task \d+: )?execve\(\): |\S+: error while loading shared libraries: )"
    ),
)
def command(found: Records) -> Iterator[Rows]:
    """Give a command that could not be started: not there, not allowed, not runnable."""
    yield found.rows("error", "shell-command", text=found["line"])


# Running scope as unit: pp-train.scope
# Running as unit: run-u812.service; invocation ID: 3f0c…
@lines(
    "systemd-run",
    mark=("Running scope as unit: ", "Running as unit: "),
    pattern=r"^Running (?:scope )?as unit: (?P<unit>[\w@.:\\-]+\.(?:scope|service))(?:;.*|\s*)$",
)
def systemd_run(found: Records) -> Iterator[Rows]:
    """Give the unit of systemd in which the job runs (fact `job.unit`)."""
    yield found.rows("fact", "job.unit", text=found["unit"])
