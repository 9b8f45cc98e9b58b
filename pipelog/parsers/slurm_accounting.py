"""What Slurm's accounting and controller say of a job that is over: tables of `sacct`, `scontrol show job`, `seff`.

    JobID           JobName  Partition      State ExitCode
    ------------ ---------- ---------- ---------- --------
    812345         pp-train        gpu    TIMEOUT      0:0
    812345.batch      batch               TIMEOUT      0:0

Such a table may tell of other jobs, too: `group` is the id of the job (tables/accounting.py), and every job it tells of is a fact `job.listed`; `stream` is
`accounting`: the line has no place in the order of the job's own lines.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from pipelog.parsers._accounting import ended, listed
from pipelog.parsing import Block, Records, Row, Rows, block, lines

_STATES = {
    "TIMEOUT": "batch-time-limit",
    "DEADLINE": "batch-time-limit",
    "CANCELLED": "batch-cancelled",
    "PREEMPTED": "batch-preempted",
    "NODE_FAIL": "batch-node-failure",
    "BOOT_FAIL": "batch-node-failure",
    "OUT_OF_MEMORY": "batch-memory",
    "FAILED": "batch-failed",
}
_FINE = ("COMPLETED", "RUNNING", "PENDING", "COMPLETING", "REQUEUED", "RESIZING", "SUSPENDED", "REVOKED", "CONFIGURING")
_STATE = rf"(?P<state>{'|'.join((*_STATES, *_FINE))}|OUT_OF_M[A-Z]{{1,4}})(?: by \d{{1,12}}| by \S{{0,20}}(?=\+))?\+?"
_JOB = r"(?P<id>\d{1,12}(?:[_+]\d{1,7})?)"
_AFTER = rf"(?<=[ |,]){_STATE}(?=[ |,]|$)(?:.*?(?<=[ |,])(?P<code>\d{{1,3}}):(?P<signal>\d{{1,3}})(?=[ |,]|$))?"
_ROW, _STATE_FIRST = (re.compile(rf"^\s*{_JOB}(?P<step>\.[\w+]+)?[ |,]{between}{_AFTER}") for between in (".*", ".*?"))
"""The state stands behind the name of the job, which may be such a word, or before it."""
_TERM = 15
_HIDDEN = ("job.listed", "batch-failed")
_RULE = re.compile(r"^[-\s]+$")


# 4400         pp-llama     gpu-a100 CANCELLED by 1034      0:0   01:00:21    tg[01-02]
# 4400|pp-llama|gpu-a100|OUT_OF_ME+|0:125
@block("slurm-sacct", mark="JobID", head=r"^\s*$", most=3000, whole=True)
def sacct(found: Block) -> Iterator[Row]:
    """Give the state of each job of the table, from its own row, or from its first step where it has none; of a job that was requeued the last.

    A script may hide from Slurm that a step of it ran out of memory: then the job is FAILED or COMPLETED, and the step's row has it.
    """
    head = re.match(r"JobID(?:Raw)?[ |,](?P<name>.*\bJobName\b)?.*\bState\b", found.first)
    if head is None:
        return
    form = _STATE_FIRST if head["name"] is None else _ROW
    jobs: dict[str, tuple[bool, list[Row]]] = {}
    for number, text in found.lines():
        match = form.match(text)
        if match is None:
            if number != found.line and not _RULE.match(text):
                break
            continue
        whole = match["step"] is None
        if not whole and match["id"] in jobs and match["state"].startswith("OUT_OF_M") and jobs[match["id"]][1][-1].get("name") in _HIDDEN:
            jobs[match["id"]] = (True, _rows(match["id"], match["state"], number, text.strip(), None, None))
        if whole or match["id"] not in jobs or not jobs[match["id"]][0]:
            jobs[match["id"]] = (whole, _rows(match["id"], match["state"], number, text.strip(), match["code"], match["signal"]))
    yield from (row for _, rows in jobs.values() for row in rows)


# JobId=4400 JobName=pp-llama
#    JobState=TIMEOUT Reason=TimeLimit Dependency=(null)
#    Requeue=0 Restarts=0 BatchFlag=1 Reboot=0 ExitCode=0:15
@block("slurm-scontrol", mark="JobId=", head=r"^\s*$", most=60, whole=True)
def scontrol(found: Block) -> Iterator[Row]:
    """Give the state in which the controller has the job."""
    job = re.match(rf"JobId={_JOB} ", found.first)
    state: tuple[str, int, str] | None = None
    code: re.Match[str] | None = None
    for number, text in found.lines() if job else ():
        if match := re.search(r"(?:^|\s)JobState=(?P<state>[A-Z_]+)", text):
            state = match["state"], number, text.strip()
        code = code or re.search(r"\bExitCode=(?P<code>\d{1,3}):(?P<signal>\d{1,3})", text)
        if not text.strip() or (state and code):
            break
    if job and state:
        yield from _rows(job["id"], *state, code and code["code"], code and code["signal"])


# Job ID: 4400
# State: OUT_OF_MEMORY (exit code 0)
@block("slurm-seff", mark="Job ID: ", head=r"^\s*$", most=8, whole=True)
def seff(found: Block) -> Iterator[Row]:
    """Give the state that `seff` and the mails of a cluster repeat."""
    job = re.match(rf"Job ID: {_JOB}\s*$", found.first)
    for number, text in found.lines() if job else ():
        if match := re.match(rf"State: {_STATE} \(exit code (?P<code>\d{{1,3}})\)", text):
            yield from _rows(job["id"] if job else "", match["state"], number, text.strip(), match["code"], None)
            return


def _rows(job: str, state: str, line: int, text: str, code: str | None, signal: str | None) -> list[Row]:
    """The fact that the job is told of, and how it ended where that is not well."""
    name = "batch-memory" if state.startswith("OUT_OF_M") else _STATES.get(state)  # a column of ten letters has OUT_OF_ME+
    if name is None:
        return [listed(job, line)]
    row = ended(name, job, line, text)
    if name == "batch-failed":
        row["value"] = -float(signal) if signal and int(signal) else float(code) if code and int(code) else None
        if signal and int(signal) == _TERM:  # it was ended, and Slurm does not say by whom
            row |= {"name": "signal", "value": float(_TERM)}
    return [listed(job, line), row]


# SLURM_JOB_ID=812345
# export PBS_JOBID='812345.pbs01'
@lines(
    "job-id",
    mark=("SLURM_JOB_ID", "SLURM_JOBID", "PBS_JOBID", "LSB_JOBID"),
    pattern=r"(?:^|[\s'\"(,{])(?:SLURM_JOB_?ID|PBS_JOBID|LSB_JOBID)['\"]?(?:=| ?[:=] ?)['\"]?(?P<id>\d{1,12})\b",
)
def job_id(found: Records) -> Iterator[Rows]:
    """Give the id under which the batch system has the job (fact `job.id`)."""
    yield found.rows("fact", "job.id", text=found["id"])
