"""torchrun and its elastic agent (also inside `accelerate launch` and DeepSpeed's elastic training): starts, restarts, deaths.

    W0603 07:50:01.219000 20390 torch/distributed/run.py:793] Setting OMP_NUM_THREADS environment variable for each process to be 1 in default
    E0603 08:12:41.884000 20390 torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: -9) local_rank: 1 (pid: 20418) of binary: /opt/py311/bin/python
    ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: 1) local_rank: 0 (pid: 4410) of binary: /usr/bin/python3

The prefix has the first form since torch 2.2, the second before. Times of the prefix have no year: they are left alone.
"""

import re
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from pipelog.parsers._facts import joined, times
from pipelog.parsing import Block, Records, Row, Rows, block, lines, records


@records(
    "torchrun-start",
    mark="Setting OMP_NUM_THREADS environment variable for each process to be ",
    pattern=r"^Setting OMP_NUM_THREADS environment variable for each process to be \d",
)
def start(found: Records) -> Iterator[Rows]:
    """Give the start of a node's agent: it prints this where nobody has set the number of threads."""
    yield found.rows("start", "torchrun")


# [2024-01-16 21:40:06,000] torch.distributed.elastic.agent.server.api: [INFO]   global_ranks=[8, 9, 10, 11, 12, 13, 14, 15]
@block("torchrun-ranks", mark="global_ranks=[", head=r"\s$", most=1)
def ranks(found: Block) -> Iterator[Row]:
    """Give the ranks of an agent's processes, in the order of their local ranks, as it prints them after each rendezvous."""
    listed = re.match(r"global_ranks=\[(\d{1,7}(?:, \d{1,7})*)\]\s*$", found.first)
    for local, rank in enumerate(listed.group(1).split(", ") if listed else ()):
        yield {"kind": "process", "name": "agent", "rank": int(rank), "label": f"local {local}"}


@records(
    "torchrun-failed",
    mark="failed (exitcode: ",
    pattern=r"^(?P<words>failed \(exitcode: (?P<code>-?\d{1,10})\) local_rank: (?P<local>\d{1,9}) \(pid: (?P<pid>\d{1,12})\) of binary: .*\S)",
)
def failed(found: Records) -> Iterator[Rows]:
    """Give the first process that an agent saw die: exit code (negative is a signal) and local rank."""
    yield found.rows("end", "exit-code", value=found.float("code"), label=joined("local ", found["local"]), text=found["words"])


# Sending process 20417 closing signal SIGTERM
@records("torchrun-closing", mark=" closing signal SIG", head=r"Sending process (?P<pid>\d{1,12})$", pattern=r"^ closing signal SIG[A-Z]+")
def closing(found: Records) -> Iterator[Rows]:
    """Give a process that the agent ends because another one died."""
    yield found.rows("process", "killed", value=found.float("pid"))


# [2024-04-10 16:04:34,970] torch.distributed.elastic.multiprocessing.api: [WARNING] Unable to shutdown process 264 via Signals.SIGTERM, forcefully exiting via Signals.SIGKILL
# W0227 17:39:41.936000 293814 torch/distributed/elastic/multiprocessing/api.py:766] Closing process 293866 via signal SIGTERM
@lines(
    "torchrun-killing",
    mark=(", forcefully exit", " via signal SIG"),
    pattern=r"(?:Unable to shutdown process (?P<forced>\d{1,12}) via \S+, forcefully exitt?ing via \S+|Closing process (?P<closed>\d{1,12}) via signal SIG[A-Z]+)",
)
def killing(found: Records) -> Iterator[Rows]:
    """Give a process that the agent kills because it did not end, or, started by fork, because another one died."""
    yield found.rows("process", "killed", value=pc.coalesce(found.float("forced"), found.float("closed")))


# torch.distributed.elastic.multiprocessing.api.SignalException: Process 4021 got signal: 15
@lines(
    "torchrun-signal-exception",
    mark="SignalException: Process ",
    pattern=r"(?P<words>[\w.]*SignalException: Process \d{1,12} got signal: (?P<number>\d{1,3}))",
)
def signal_exception(found: Records) -> Iterator[Rows]:
    """Give the signal that the agent got from outside, as the exception that it ends with."""
    yield found.rows("end", "signal", value=found.float("number"), text=found["words"])


# Child process 12345 (local_rank 0) FAILED (exitcode 1)
@lines(
    "torchrun-child-process",
    mark=") FAILED (exitcode ",
    pattern=r"(?P<words>Child process \d{1,12} \(local_rank (?P<local>\d{1,9})\) FAILED \(exitcode (?P<code>-?\d{1,10})\))",
)
def child_process(found: Records) -> Iterator[Rows]:
    """Give a dead process as torch 1.9 and 1.10 banner it."""
    yield found.rows("end", "child-failed", value=found.float("code"), label=joined("local ", found["local"]), text=found["words"])


# W0620 03:40:50.011000 7000 torch/distributed/elastic/agent/server/api.py:741] Received 15 death signal, shutting down workers
@records("torchrun-signal", mark=" death signal, shutting down workers", head=r"(?P<words>Received (?P<number>\d{1,3}))$", pattern=r"^ death signal")
def signal(found: Records) -> Iterator[Rows]:
    """Give the signal that the agent itself got from outside (value: its number)."""
    yield found.rows("end", "signal", value=found.float("number"), text=joined(found["words"], " death signal, shutting down workers"))


# [trainer] Worker group FAILED. 97/100 attempts left; will restart worker group
# [default] Detected 1 new nodes from group_rank=0; will restart worker group
@records(
    "torchrun-restart",
    mark="; will restart worker group",
    head=r"(?P<words>(?:Worker group \w+\. (?P<left>\d{1,9})/\d+ attempts left|Detected \d+ new nodes from group_rank=\S+))$",
    pattern=r"^; will restart worker group",
)
def restart(found: Records) -> Iterator[Rows]:
    """Give a restart of all workers of a node (value: attempts left)."""
    yield found.rows("start", "restart", value=found.float("left"), text=found["words"])


# I0504 15:09:41.456020 41 torch/distributed/elastic/agent/server/api.py:896] [default] worker group successfully finished. Waiting 300 seconds for other agents to finish.
# INFO:torch.distributed.elastic.agent.server.api:Local worker group finished (WorkerState.SUCCEEDED). Waiting 300 seconds for other agents to finish
@records(
    "torchrun-finished",
    mark=("worker group successfully finished. Waiting ", "Local worker group finished ("),
    head=r"(?P<role>\[[^\[\]]{1,80}\] )?$",
    pattern=r"^(?P<words>(?:worker group successfully finished\. |Local worker group finished \((?:WorkerState\.)?SUCCEEDED\)\. )Waiting \d.*?)\s*$",
)
def finished(found: Records) -> Iterator[Rows]:
    """Give an agent all of whose processes left with 0."""
    yield found.rows("end", "exit-success", text=joined(found.groups["role"], found["words"]))


_BEFORE = 20
"""Lines, those of other writers among them, in which the table must begin."""
_ENTRY = re.compile(r"^\[\d+\]:\s*$")
_SECTION = re.compile(r"^(?:Root Cause|Failures:|Other Failures:)")
_FIELD = re.compile(r"^  (?P<key>time|host|rank|exitcode|error_file|traceback|msg) *: (?P<value>.*)$")
_RANK = re.compile(r"^(?P<rank>\d{1,9}) \(local_rank: (?P<local>\d{1,9})\)")
_CODE = re.compile(r"^(?P<code>-?\d{1,10})\b")


# torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
# ============================================================
# src/rl/run.py FAILED
# Root Cause (first observed failure):
# [0]:
#   time      : 2025-06-03_08:12:39
#   host      : node7.example.net
#   rank      : 1 (local_rank: 1)
#   exitcode  : -9 (pid: 20418)
#   error_file: <N/A>
#   traceback : Signal 9 (SIGKILL) received by PID 20418
@block("torchrun-child-failed", mark=".ChildFailedError:", most=600)
def child_failed(found: Block) -> Iterator[Row]:
    """Give each process in the table of a node's failures, at the line of its exit code (stream: its error file, where it wrote one).

    `child-root-cause` repeats the one that died first by the agent's whole seconds, on this node: often a victim of another node.
    """
    fields: dict[str, str] = {}
    line, root, frame, borders = found.line, False, "", 0
    table = found.lines()
    next(table)
    for number, text in table:
        if ".ChildFailedError:" in text or (not borders and number > found.line + _BEFORE):
            break
        frame = frame or next((mark for mark in ("=====", "*****") if text.startswith(mark)), "")  # torch 1.9 draws its frame with stars
        borders += bool(frame) and text.startswith(frame)
        if _SECTION.match(text) or _ENTRY.match(text) or borders == 2:
            yield from _failure(fields, line, root=root)
            fields, root = {}, text.startswith("Root Cause") or (root and not _SECTION.match(text))
        if borders == 2:
            return
        if field := _FIELD.match(text):
            fields.setdefault(field["key"], field["value"].strip().strip('"'))
            line = number if field["key"] == "exitcode" else line
        elif text.strip() and fields.get("traceback"):  # with @record the traceback follows: its last line says what it was
            fields["traceback"] = text.strip() if text.startswith("  ") else fields["traceback"]
    yield from _failure(fields, line, root=root)  # the table is cut off


def _failure(fields: dict[str, str], line: int, *, root: bool) -> Iterator[Row]:
    rank, code = _RANK.match(fields.get("rank", "")), _CODE.match(fields.get("exitcode", ""))
    if rank is None or code is None:
        return
    row: Row = {"kind": "end", "value": float(code["code"]), "line": line, "rank": int(rank["rank"]), "label": f"local {rank['local']}"}
    if fields.get("host"):
        row["host"] = fields["host"]
    if text := fields.get("traceback") or fields.get("msg"):
        row["text"] = text
    if fields.get("error_file", "<N/A>") != "<N/A>":
        row["stream"] = fields["error_file"]
    when = times(pa.array([fields.get("time", "").replace("_", " ")]))
    if pc.is_valid(when)[0].as_py():
        row |= {"start_ns": when[0].as_py(), "clock": "log"}
    yield row | {"name": "child-failed"}
    if root:
        yield row | {"name": "child-root-cause"}
