"""What ninja says of an extension that it could not build while the job started.

    FAILED: multi_tensor_adam.cuda.o
    ninja: build stopped: subcommand failed.

The imports and loads of what was to be built fail behind it, of every rank.
"""

from __future__ import annotations

from collections.abc import Iterator

from pipelog.parsing import Records, Rows, lines


@lines("ninja-failed", mark="FAILED: ", pattern=r"^(?P<words>FAILED: (?:\[code=\d+\] )?[\w./+-]+\.(?:o|so|cubin)\b)")
def ninja_failed(found: Records) -> Iterator[Rows]:
    """Give the object at which the compiler failed."""
    yield found.rows("error", "build-failed", text=found["words"])
