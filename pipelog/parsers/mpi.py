"""MPI launchers: who died, and why nothing could be started. Open MPI (mpirun, prterun), MPICH and Intel MPI (mpiexec.hydra).

    --------------------------------------------------------------------------
    mpirun noticed that process rank 3 with PID 12345 on node node7 exited on signal 9 (Killed).
    --------------------------------------------------------------------------

DeepSpeed's launchers openmpi, mpich and impi start one process a rank, so their process ranks are global ranks.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import pyarrow.compute as pc

from pipelog.parsers._signals import signals
from pipelog.parsing import Block, Records, Row, Rows, block, lines

_NOTICED = re.compile(r" noticed that process rank (?P<rank>\d{1,9}) with PID \d+ on node (?P<host>\S+) exited on\s+signal (?P<signal>\d{1,3})")
_PROCESS = re.compile(r"^\s*Process name: \[.*?(?P<rank>\d{1,9})\]+\s*$")
_CODE = re.compile(r"^\s*Exit code: +(?P<code>\d{1,9})\s*$")
_RUNNING = re.compile(r"^=\s+(?:RANK (?P<rank>\d{1,9}) )?PID \d+ RUNNING AT (?P<host>\S+)")
_LEFT = re.compile(r"^=\s+(?:EXIT CODE|EXIT STATUS|KILLED BY (?P<signal>SIGNAL)): (?P<number>\d{1,9})")
_EXIT_STRING = re.compile(r"^YOUR APPLICATION TERMINATED WITH THE EXIT STRING: .*\(signal (?P<signal>\d{1,3})\)")


# mpiexec noticed that process rank 0 with PID 10313 on node proton exited on
# signal 6 (Aborted).
@block("mpi-noticed", mark=" noticed that process rank ", most=3)
def noticed(found: Block) -> Iterator[Row]:
    """Give the process that Open MPI saw die of a signal; the sentence may be broken over two lines."""
    words = " ".join(text.strip(" ") if n > found.line else text.rstrip() for n, text in found.lines())
    if (match := _NOTICED.match(words)) and re.search(r"(?:mpirun|mpiexec|orterun|prterun|prun)(?:\.real)?$", found.head):
        yield _dead(found, -int(match["signal"]), int(match["rank"]), match["host"], found.head.rsplit(None, 1)[-1] + match.group())


# mpirun detected that one or more processes exited with non-zero status, thus causing
# the job to be terminated. The first process to do so was:
#
#   Process name: [[12345,1],3]
#   Exit code:    1
@block("mpi-detected", mark=" detected that one or more processes exited with non-zero status", most=10)
def detected(found: Block) -> Iterator[Row]:
    """Give the first process that left with an exit code."""
    rank = None
    for number, text in found.lines():
        if process := _PROCESS.match(text):
            rank = int(process["rank"])
        if code := _CODE.match(text):
            yield _dead(found, int(code["code"]), rank, None, text.strip()) | {"line": number}
            return


# ===================================================================================
# =   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES
# =   RANK 3 PID 12345 RUNNING AT node7
# =   KILLED BY SIGNAL: 9 (Killed)
# ===================================================================================
# YOUR APPLICATION TERMINATED WITH THE EXIT STRING: Killed (signal 9)
@block("mpi-bad-termination", mark="BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES", most=10)
def bad_termination(found: Block) -> Iterator[Row]:
    """Give a dead process as MPICH and Intel MPI word it; MPICH writes the number of a signal as an exit code."""
    rank, host, code, line, shown = None, None, None, found.line, found.first
    closed = 0
    for number, text in found.lines():
        if where := _RUNNING.match(text):
            rank, host = None if where["rank"] is None else int(where["rank"]), where["host"]
        if said := _LEFT.match(text):
            code, line, shown = int(said["number"]) * (-1 if said["signal"] else 1), number, text
        if by := _EXIT_STRING.match(text):
            code = -int(by["signal"])
        closed += bool(closed) or (code is not None and text.startswith("====="))
        if closed == 2:  # the line below the frame may name the signal
            break
    if code is not None:
        yield _dead(found, code, rank, host, shown.strip()) | {"line": line}


def _dead(found: Block, code: int, rank: int | None, host: str | None, text: str) -> Row:
    row: Row = {"kind": "end", "name": "exit-code", "value": float(code), "line": found.line, "text": text}
    row |= {} if rank is None else {"rank": rank, "label": f"task {rank}"}
    return row if host is None else row | {"host": host}


# ORTE has lost communication with a remote daemon.
#
#   HNP daemon   : [[43015,0],0] on node launcher
#   Remote daemon: [[43015,0],2] on node node7
@block("mpi-daemon-lost", mark=("ORTE has lost communication with ", "PRTE has lost communication with "), most=8)
def daemon_lost(found: Block) -> Iterator[Row]:
    """Give the host whose daemon of Open MPI (ORTE, PRRTE) answers no more: the host, or the way to it, is gone."""
    row: Row = {"kind": "error", "name": "mpi-daemon-lost", "text": found.first.strip()}
    where = (re.search(r"Remote daemon: .*\bon node (?P<host>[\w.-]+)\s*$", text) for _, text in found.lines())
    host = next((match["host"] for match in where if match), None)
    yield row if host is None else row | {"host": host}


# [node7:04757] PMIX ERROR: UNREACHABLE in file ptl_tcp.c at line 790
# MPI_ABORT was invoked on rank 3 in communicator MPI_COMM_WORLD
# There are not enough slots available in the system to satisfy the 8
# Abort(1) on node 3 (rank 3 in comm 0): application called MPI_Abort(MPI_COMM_WORLD, 1) - process 3
@lines(
    "mpi",
    mark=(
        "ORTE was unable to ",
        "PRTE was unable to ",
        "RTE daemon has unexpectedly failed ",
        "There are not enough slots available ",
        "PMIX ERROR: ",
        "PMIx ERROR: ",
        "ORTE_ERROR_LOG: ",
        "PRTE ERROR: ",
        "OPAL ERROR: ",
        "*** An error occurred in MPI_",
        "It looks like orte_init failed",
        "It looks like MPI_INIT failed",
        "MPI_ABORT was invoked on rank ",
        "application called MPI_Abort(",
        "Fatal error in PMPI_",
        "Fatal error in internal_",
        "unable to launch the specified application",
        "was unable to start the specified application",
    ),
    pattern=(
        r"^(?:[OP]RTE was unable to |An [OP]RTE daemon has unexpectedly failed |There are not enough slots available |\[[^\]\s]+:\d+\] .*(?:PMI[Xx] ERROR|ORTE_ERROR_LOG|PRTE ERROR"
        r"|OPAL ERROR): |(?:\[[^\]\s]+:\d+\] )?\*\*\* An error occurred in MPI_|It looks like (?:orte_init|MPI_INIT) failed|MPI_ABORT was invoked on rank (?P<rank>\d{1,9}) in communicator "
        r"|Abort\(-?\d+\) on node \d+ \(rank (?P<mpich>\d{1,9}) in comm \d+\): |(?:\[[^\]]*\] )?application called MPI_Abort\(|Fatal error in (?:PMPI|internal)_|\S+ (?:was )?unable to (?:launch|start) the specified application)"
    ),
)
def failed(found: Records) -> Iterator[Rows]:
    """Give a line in which an MPI launcher or library says that it could not start, reach or go on."""
    rank = pc.coalesce(found.int("rank"), found.int("mpich"))
    yield found.rows("error", "mpi", rank=rank, text=found["line"])


# [node7:12345] Signal: Segmentation fault (11)
@lines("mpi-signal", mark="] Signal: ", pattern=r"^\[(?P<host>[^\]\s:]+):\d+\] Signal: (?P<word>[A-Z][A-Za-z ]+) \((?P<number>\d{1,3})\)")
def signal(found: Records) -> Iterator[Rows]:
    """Give the signal (negative) that Open MPI's handler caught in a process, before its backtrace."""
    yield found.rows("error", "shell-signal", value=signals(found["word"]), host=found["host"], text=found["line"])


# ERROR:  One or more process (first noticed rank 6) terminated with signal 11 (core dumped)
@lines(
    "jsrun-terminated",
    mark="One or more process (first noticed rank ",
    pattern=r"^(?P<words>ERROR: +One or more process \(first noticed rank (?P<rank>\d{1,9})\) terminated with signal (?P<signal>\d{1,3}))\b",
)
def jsrun(found: Records) -> Iterator[Rows]:
    """Give the process that IBM's jsrun saw die of a signal first."""
    yield found.rows("end", "exit-code", value=pc.negate(found.float("signal")), rank=found.int("rank"), text=found["words"])
