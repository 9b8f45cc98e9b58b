"""How LSF, PBS and Flux say that they ended a job, or how it ended.

    TERM_RUNLIMIT: job killed after reaching LSF run time limit.
    Exited with exit code 140.
    =>> PBS: job killed: walltime 3630 exceeded limit 3600

Slurm's words are in slurm.py.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from pipelog.parsing import Block, Records, Row, Rows, block, lines

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


_FLUX = {"timeout": "batch-time-limit", "cancel": "batch-cancelled", "node-failure": "batch-node-failure"}


# 3600.121s: job.exception type=timeout severity=0 resource allocation expired
# 412.121s: job.exception type=cancel severity=0 user cancelled
# 612.744s: job.exception type=node-failure severity=0 node failure on node7 (shell rank 5)
@lines(
    "flux-exception",
    mark="job.exception type=",
    pattern=(
        r"^(?:\d+\.\d+s: )?(?P<words>job\.exception type=(?P<type>timeout|cancel|node-failure) severity=0\b"
        r"(?:.*? on (?:broker )?(?P<host>[A-Za-z0-9][\w.-]*) \((?:shell |broker )?rank \d{1,9}\))?.*?)\s*$"
    ),
)
def flux(found: Records) -> Iterator[Rows]:
    """Give Flux's exception of severity 0, which ends a job: its limit, a cancellation, or a node (host) that is gone.

    A shell's rank is that of a node among those of the job, and none of a process.
    """
    name = pa.array(list(_FLUX.values())).take(pc.index_in(found["type"], pa.array(list(_FLUX))))
    yield found.rows("end", name, host=pc.coalesce(found["host"], found.columns["host"]), text=found["words"])


# 2025-05-06T18:50:33.118223Z broker.err[0]: node7 (rank 5) has disconnected unexpectedly, marking it LOST
# broker.err[0]: node7 (rank 5) transitioning to LOST due to EHOSTUNREACH error on send
@lines(
    "flux-broker-lost",
    mark=(" has disconnected unexpectedly, marking it LOST", " transitioning to LOST due to "),
    pattern=r"(?P<words>broker\.\w+\[\d+\]: (?P<host>[A-Za-z0-9][\w.-]*) \(rank \d{1,9}\) (?:has disconnected unexpectedly, marking it LOST|transitioning to LOST due to .*?))\s*$",
)
def flux_lost(found: Records) -> Iterator[Rows]:
    """Give a node (host) whose broker answers Flux no more; brokers of all jobs' nodes, and of those that are shut down."""
    yield found.rows("error", "node-state", host=found["host"], text=found["words"])


_RUN = re.compile(r"(?:^|\s)flux (?:mini )?run\s(?P<options>.*)$")
_COUNT = re.compile(r"(?:^|\s)(?:-(?P<short>[Nn]) ?|--(?P<long>nodes|ntasks)[= ])(?P<count>\d{1,7})(?=\s|$)")
_SHORT = {"nodes": "N", "ntasks": "n"}
_HOSTS = re.compile(r"(?P<before>[A-Za-z0-9][A-Za-z0-9.-]*?)\[(?P<listed>[\d,-]+)\]")


# # flux run -N8 -n32 -g1 --label-io python3 -u train.py
# $ flux hostlist local
# node[1180-1187]
@block("flux-run", mark=("flux run ", "flux mini run "), most=8)
def flux_run(found: Block) -> Iterator[Row]:
    """Give the number of ranks of a command, and where each is, where the list of its hosts follows: tasks fill nodes one after the other."""
    match = _RUN.search(found.head + found.first)
    said = {m["short"] or _SHORT[m["long"]]: int(m["count"]) for m in reversed([*_COUNT.finditer(match["options"])])} if match else {}
    nodes, tasks = said.get("N", 0), said.get("n", 0)
    if not (0 < nodes <= tasks <= 1_000_000) or tasks % nodes:
        return
    yield {"kind": "fact", "name": "topology.world_size", "value": float(tasks), "text": str(tasks)}
    hosts: list[str] = []
    for _, text in itertools.islice(found.lines(), 1, None):
        if listed := _HOSTS.fullmatch(text.strip()):
            hosts = [f"{listed['before']}{number}" for number in _numbers(listed["listed"], nodes)]
            break
    if len(hosts) == nodes:
        each = tasks // nodes
        for rank in range(tasks):
            yield {"kind": "place", "name": "launcher", "rank": rank, "host": hosts[rank // each], "label": f"local {rank % each}"}


def _numbers(listed: str, most: int) -> list[str]:
    """The numbers of `1180-1183,1190`, with the zeros that they have; none where there are more than *most*."""
    out: list[str] = []
    for part in listed.split(","):
        first, _, last = part.partition("-")
        if not first.isdecimal() or not (last or first).isdecimal() or int(last or first) - int(first) > most:
            return []
        out += [f"{number:0{len(first)}d}" for number in range(int(first), int(last or first) + 1)]
    return out if len(out) <= most else []


# 112.4s: job.exception type=exec severity=0 rank 5 exited and exit-timeout=30s has expired
# flux-job: task(s) exited with exit code 1
@block("flux-doom", mark="job.exception type=exec severity=0 rank ", head=r"(?:^|\ds: )$", most=60)
def doom(found: Block) -> Iterator[Row]:
    """Give the task whose end made Flux end the others, with the exit code that `flux-job` prints behind it."""
    match = re.match(r"job\.exception type=exec severity=0 rank (?P<rank>\d{1,9}) (?:failed and exit-on-error|exited and exit-timeout)", found.first)
    code = next((m for _, text in found.lines() if (m := re.match(r"flux-job: task\(s\) exited with exit code (?P<code>\d{1,3})\s*$", text))), None)
    if match and code:
        task = int(match["rank"])
        yield {"kind": "end", "name": "exit-code", "value": float(code["code"]), "rank": task, "label": f"task {task}", "text": found.first.strip()}
