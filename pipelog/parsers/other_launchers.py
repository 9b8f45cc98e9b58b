"""Exit codes as launchers beside DeepSpeed's and torchrun's word them: Lightning, Composer, SageMaker.

[rank: 2] Child process with PID 345671 terminated with code -9. Forcefully terminating all other processes to avoid zombies
ERROR:composer.cli.launcher:Rank 3 crashed with exit code -9.
Global rank 3 (PID 4312) exited with code 1
ExitCode 137
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow.compute as pc

from pipelog.parsing import Records, Rows, lines


@lines(
    "launcher-exit-code",
    mark=("Child process with PID ", " crashed with exit code ", "Global rank ", "ExitCode "),
    pattern=(
        r"^(?:(?:\[rank: (?P<lightning>\d{1,9})\] )?Child process with PID \d+ terminated with code (?P<code>-?\d{1,9})\b"
        r"|(?:[\w.]+:[\w.]+:|.*[ \]])?Rank (?P<composer>\d{1,9}) crashed with exit code (?P<crashed>-?\d{1,9})\b"
        r"|(?:.*[ \]:])?Global rank (?P<global>\d{1,9}) \(PID \d+\) exited with code (?P<exited>-?\d{1,9})\b|ExitCode (?P<sagemaker>\d{1,3})\s*$)"
    ),
)
def exit_code(found: Records) -> Iterator[Rows]:
    """Give the exit code (negative is a signal) of a process, with its global rank where the line says it."""
    code = pc.coalesce(*(found.float(name) for name in ("code", "crashed", "exited", "sagemaker")))
    rank = pc.coalesce(*(found.int(name) for name in ("lightning", "composer", "global")))
    yield found.rows("end", "exit-code", value=code, rank=rank, text=found["line"])
