"""Storage that fails, said outside tracebacks: by programs, by loggers that caught an exception, by file systems themselves.

    tee: /workspace/logs/run.log: No space left on device
    [2024-03-05 15:20:08,123] [WARNING] [ckpt.py:88:save] could not save: [Errno 122] Disk quota exceeded: '/scratch/ckpt'
    [123456.789012] nfs: server nas1 not responding, still trying
    LustreError: 11-0: scratch-OST0012-osc-ffff8f: operation ost_write to node 10.0.0.7@o2ib failed: rc = -28

An exception's own line (`OSError: [Errno 28] …`) is left to its traceback.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow.compute as pc

from pipelog.parsers._stamps import SYSLOG
from pipelog.parsers.kernel import BEFORE, when_and_where
from pipelog.parsing import Records, Rows, lines

_WORDS = (
    "No space left on device",
    "Disk quota exceeded",
    "Stale file handle",
    "Stale NFS file handle",
    "Read-only file system",
    "Input/output error",
    "Remote I/O error",
    "Transport endpoint is not connected",
    "Cannot send after transport endpoint shutdown",
)


@lines(
    "storage",
    mark=_WORDS,
    pattern=(
        rf"^(?P<before>\S.*?(?:: |\] |= ?'|\(28\) ))?(?:{'|'.join(_WORDS)})"
        r"(?:\s*$|: ?['\"/<\[{{(]|: \d|[.,;](?:\s|$)|'? \((?:os error )?\d+\)|'(?:\s|$|,)|\)| -|: \S+\s*$| while | when )"
    ),
)
def storage(found: Records) -> Iterator[Rows]:
    """Give a line in which a program says that the storage refused."""
    before = found.groups["before"]
    # a traceback's last line; a list of samples; NCCL, which speaks of /dev/shm, and the kernel, which is read elsewhere
    other = pc.match_substring_regex(
        before, r"^[\w.]*(?:Error|Exception|Warning|Failure|Exit): |^\s*(?:\S+: )?[\[{(]['\"]|NCCL (?:WARN|INFO)|/dev/shm|shared memory"
    )
    found = found.where(pc.invert(other))
    yield found.rows("error", "storage", text=found["line"])


# Lustre: 4312:0:(client.c:2114:ptlrpc_expire_one_request()) @@@ Request sent has timed out for slow reply: [sent 1709651900/real 1709651900]
# LNetError: 131-3: Received notification of device removal
# mmfs: [E] Disk failure from node 10.0.0.7. Volume scratch. Physical volume nsd12.
# nfs: server nas1 not responding, timed out
@lines(
    "storage-client",
    mark=("LustreError: ", "LNetError: ", "Lustre: ", "mmfs: [", "nfs: server ", "NFS: ", "beegfs: ", "ceph: ", "libceph: "),
    pattern=(
        rf"^(?:(?:{SYSLOG} \S+ )?mmfs: \[[EXA]\] |{BEFORE}(?:LustreError: |LNetError: |Lustre: .*(?:timed out|was evicted by|Connection to .+ was lost|lost connection|haven't heard from)"
        r"|nfs: server \S+ not responding|NFS: .*(?:error|failed|lost)|beegfs: .*(?:[Ee]rror|failed|timed out)"
        r"|(?:lib)?ceph: .*(?:hung|socket closed|session lost|evicted|error)))"
    ),
)
def client(found: Records) -> Iterator[Rows]:
    """Give a line of the client of a parallel or network file system in the kernel's log: lost servers, evictions, errors."""
    yield found.rows("error", "storage", value=found.float("uptime"), text=found["line"], **when_and_where(found))
