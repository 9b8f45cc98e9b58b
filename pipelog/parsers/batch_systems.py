"""How LSF, PBS and Flux say that they ended a job, or how it ended.

    TERM_RUNLIMIT: job killed after reaching LSF run time limit.
    Exited with exit code 140.
    =>> PBS: job killed: walltime 3630 exceeded limit 3600

Slurm's words are in slurm.py.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from pipelog.parsing import Records, Rows, lines

TERM = {
    "RUNLIMIT": "batch-time-limit",
    "DEADLINE": "batch-time-limit",
    "WINDOW": "batch-time-limit",
    "CPULIMIT": "batch-time-limit",
    "MEMLIMIT": "batch-memory",
    "SWAP": "batch-memory",
    "OWNER": "batch-cancelled",
    "FORCE_OWNER": "batch-cancelled",
    "ADMIN": "batch-cancelled",
    "FORCE_ADMIN": "batch-cancelled",
    "BUCKET_KILL": "batch-cancelled",
    "PREEMPT": "batch-preempted",
    "REQUEUE_OWNER": "batch-requeue",
    "REQUEUE_ADMIN": "batch-requeue",
    "RMS": "batch-requeue",
    "LOAD": "batch-preempted",
    "RC": "batch-preempted",
    "REQUEUE_RC": "batch-requeue",
}
"""LSF's termination reasons; RC: the cloud took the host back."""


# TERM_MEMLIMIT: job killed after reaching LSF memory usage limit.
# TERM_OWNER: job killed by owner.
@lines("lsf-term", mark="TERM_", pattern=r"^(?P<words>TERM_(?P<why>[A-Z_]{2,24}): [a-zA-Z].*?)\s*$")
def lsf(found: Records) -> Iterator[Rows]:
    """Give LSF's reason for ending a job; what it does not say more of is `batch-killed`."""
    names = pa.array(list(TERM.values())).take(pc.index_in(found["why"], pa.array(list(TERM))))
    yield found.rows("end", pc.fill_null(names, "batch-killed"), text=found["words"])


# Exited with exit code 140.
# Exited with signal termination: Killed.
@lines("lsf-exit", mark="Exited with exit code ", pattern=r"^(?P<words>Exited with exit code (?P<code>\d{1,9})\.)\s*$")
def lsf_exit(found: Records) -> Iterator[Rows]:
    """Give the exit code of an LSF job as its summary has it; above 128 it is a signal."""
    yield found.rows("end", "exit-code", value=found.float("code"), text=found["words"])


# =>> PBS: job killed: mem 12345678kb exceeded limit 12345000kb
# =>> PBS: job killed: node 3 (node7) requested job terminate, 'EOF' (code 1099) - received SISTER_EOF attempting to communicate with sister MOM's
@lines(
    "pbs-killed", mark="PBS: job killed: ", pattern=r"^(?:=>> )?(?P<words>PBS: job killed: (?P<what>[a-z_]+)\b(?: \d+ \((?P<node>[\w.-]+)\))?.*?)\s*$"
)
def pbs(found: Records) -> Iterator[Rows]:
    """Give PBS's or Torque's reason for ending a job."""
    what = found["what"]
    time, memory = pc.is_in(what, pa.array(["walltime", "cput", "pcput"])), pc.is_in(what, pa.array(["mem", "vmem", "pmem", "pvmem", "memory"]))
    node = pc.equal(what, "node")
    names = pc.if_else(time, "batch-time-limit", pc.if_else(memory, "batch-memory", pc.if_else(node, "batch-node-failure", "batch-killed")))
    yield found.rows("end", names, host=pc.coalesce(found["node"], found.columns["host"]), text=found["words"])


# 04/01/2025 01:13:20  S    Job to be deleted at request of user@login-02
# 04/01/2025 01:13:20;0008;PBS_Server;Job;812345.pbs01;Job deleted at request of user@login-02
@lines(
    "pbs-deleted",
    mark=("Job to be deleted at request of ", "Job deleted at request of "),
    pattern=r"^\d\d/\d\d/\d{4} \d\d:\d\d:\d\d(?:\.\d+)?(?:  S +|;.*;)(?P<words>Job (?:to be )?deleted at request of \S+)\s*$",
)
def pbs_deleted(found: Records) -> Iterator[Rows]:
    """Give the end of a job by qdel, as the server's log and tracejob have it."""
    yield found.rows("end", "batch-cancelled", text=found["words"])


_FLUX = {"timeout": "batch-time-limit", "cancel": "batch-cancelled"}


# 3600.121s: job.exception type=timeout severity=0 resource allocation expired
# 412.121s: job.exception type=cancel severity=0 user cancelled
@lines(
    "flux-exception",
    mark="job.exception type=",
    pattern=r"^(?:\d+\.\d+s: )?(?P<words>job\.exception type=(?P<type>timeout|cancel) severity=0\b.*?)\s*$",
)
def flux(found: Records) -> Iterator[Rows]:
    """Give Flux's exception of severity 0, which ends a job: its limit, or a cancellation."""
    yield found.rows("end", pa.array(list(_FLUX.values())).take(pc.index_in(found["type"], pa.array(list(_FLUX)))), text=found["words"])
