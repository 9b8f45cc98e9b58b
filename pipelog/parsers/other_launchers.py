"""What launchers beside DeepSpeed's and torchrun's say of the processes they start, and how these ended: Lightning, Composer, SageMaker, Ray, ColossalAI.

[rank: 2] Child process with PID 345671 terminated with code -9. Forcefully terminating all other processes to avoid zombies
ERROR:composer.cli.launcher:Rank 3 crashed with exit code -9.
Global rank 3 (PID 4312) exited with code 1
ExitCode 137
Initializing distributed: GLOBAL_RANK: 3, MEMBER: 4/8
- (node_id=aa01, ip=10.0.4.16, pid=4391) world_rank=1, local_rank=1, node_rank=0
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow.compute as pc

from pipelog.parsers._facts import joined
from pipelog.parsing import Records, Rows, lines, records


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


# Initializing distributed: GLOBAL_RANK: 3, MEMBER: 4/8
@records(
    "lightning-member",
    mark="Initializing distributed: GLOBAL_RANK: ",
    pattern=r"^Initializing distributed: GLOBAL_RANK: (?P<rank>\d{1,7}), MEMBER: \d{1,7}/(?P<size>\d{1,7})",
)
def member(found: Records) -> Iterator[Rows]:
    """Give the place of the process that prints it, and the number of ranks."""
    rank = found.int("rank")
    yield found.rows("place", "discovery", rank=rank)
    yield found.rows("fact", "topology.world_size", rank=rank, value=found.float("size"), text=found["size"])


# colossalai - colossalai - INFO: Distributed environment is initialized, world size: 8
@records(
    "colossalai-world",
    mark="Distributed environment is initialized, world size: ",
    pattern=r"^Distributed environment is initialized, world size: (?P<size>\d{1,7})",
)
def world(found: Records) -> Iterator[Rows]:
    """Give the number of ranks."""
    yield found.rows("fact", "topology.world_size", value=found.float("size"), text=found["size"])


# (TorchTrainer pid=4200) - (node_id=aa01, ip=10.0.4.16, pid=4391) world_rank=1, local_rank=1, node_rank=0
@records(
    "ray-worker",
    mark=("(node_id=", "(ip="),
    pattern=r"^\((?:node_id=\w+, )?ip=(?P<ip>[\w.:]+), pid=(?P<pid>\d{1,12})\) world_rank=(?P<rank>\d{1,7}), local_rank=(?P<local>\d{1,7}), node_rank=",
)
def worker(found: Records) -> Iterator[Rows]:
    """Give each process that Ray's trainer started: rank, pid, address of its host (a line of the trainer's own process)."""
    local = joined("local ", found["local"])
    yield found.rows("process", "worker", value=found.float("pid"), rank=found.int("rank"), host=found["ip"], label=local)


# Memory on the node (IP: 10.0.4.17, ID: 8c5a…) where the task (actor ID: 4161…, name=RayTrainWorker.__init__, pid=4471, memory used=212.18GB) was running was 479.91GB / 503.28GB
@lines(
    "ray-memory-monitor",
    mark=" where the task (",
    pattern=r"Memory on the node \(IP: (?P<ip>[\w.:]+),.{0,200}? where the task \([^()]{0,200}\bpid=(?P<pid>\d{1,12})",
)
def memory_monitor(found: Records) -> Iterator[Rows]:
    """Give the process that Ray killed because its node ran low on memory."""
    yield found.rows("error", "ray-killed", value=found.float("pid"), host=found["ip"], text=found["line"])


# Error: failed to run torchrun --nproc_per_node=8 --nnodes=4 train.py on node7, is localhost: False, exception: No authentication methods available
@lines(
    "colossalai-unreached",
    mark=", is localhost: ",
    pattern=r"^Error: failed to run .* on (?P<host>\S+), is localhost: (?:True|False), exception: (?P<why>\S.*?)\s*$",
)
def unreached(found: Records) -> Iterator[Rows]:
    """Give a host on which ColossalAI's launcher could not run its command; one that ran and failed is none."""
    found = found.where(pc.invert(pc.starts_with(found.groups["why"], "Encountered a bad command exit code")))
    yield found.rows("error", "ssh", host=found["host"], text=found["line"])


# [2023-11-08 08:39:38,000] [INFO] [training.py:213:next_rendezvous] The node job-worker-4 attempts to join the next round of the rendezvous 'network-check' with timeout 600.
@records(
    "dlrover-node",
    mark=" attempts to join the next round of the rendezvous ",
    head=r"The node (?P<node>[A-Za-z][\w.-]*)$",
    pattern=r"^ attempts to join the next round",
)
def node(found: Records) -> Iterator[Rows]:
    """Give the name of the node (host) whose agent speaks."""
    yield found.rows("process", "node-agent", host=found["node"])
