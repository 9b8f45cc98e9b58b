"""What LSF, PBS and Grid Engine say of a job that is over: `bjobs -l`, `bhist -l` and `bacct -l`, `qstat -xf`, `qacct -j`.

    Wed Mar  6 15:20:05: Completed <exit>; TERM_RUNLIMIT: job killed after reaching
                          LSF run time limit.

As in slurm_accounting.py, `group` is the job's id, `stream` is `accounting`, and every job told of is a fact `job.listed`. Where the time that a job
used has reached its limit and a signal ended it, that was the limit.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from pipelog.parsers._accounting import ended, listed
from pipelog.parsers.batch_systems import TERM
from pipelog.parsing import Block, Row, block

_SHORT = 128
"""Codes above it are signals: 137 and, from PBS, 265 are SIGKILL."""
_KILL, _TERM = 9, 15


def _by_code(code: int, job: str, line: int, text: str, *, at_limit: bool) -> Iterator[Row]:
    """A job that left with *code*, negative for a signal; SIGTERM comes from whoever ends it, or because it is at its limit."""
    code = -(code % 128) if code > _SHORT else code
    if code in (-_KILL, -_TERM) and at_limit:
        yield ended("batch-time-limit", job, line, text)
    elif code == -_TERM:
        yield ended("signal", job, line, text, value=float(_TERM))
    elif code:
        yield ended("batch-failed", job, line, text, value=float(code))


_LSF_JOB = re.compile(r"^Job <(?P<id>\d{1,12}(?:\[\d{1,7}\])?)>, ")
_LSF_LINE = re.compile(r"^(?:[A-Z][a-z]{2} ){1,2} ?\d{1,2} \d\d:\d\d:\d\d(?: \d{4})?: (?P<words>.*)$")
_LSF_EXIT = re.compile(r"Exited (?:with exit code (?P<code>\d{1,3})|by signal (?P<signal>\d{1,3}))\b")
_LSF_TERM = re.compile(r"Completed <exit>; (?P<words>TERM_(?P<why>[A-Z_]{2,24}): .*)")


# Job <771278>, User <user>, Project <default>, Status <EXIT>, Queue <short>, Command <sleep 120>
# Mon Nov 23 10:17:33: Exited with exit code 140. The CPU time used is 0.1 seconds.
# Mon Nov 23 10:17:33: Completed <exit>; TERM_RUNLIMIT: job killed after reaching
#                      LSF run time limit.
@block("lsf-job", mark="Job <", head=r"^\s*$", most=400, whole=True)
def lsf_job(found: Block) -> Iterator[Row]:
    """Give the termination reason of a job, else the code it left with; lines that are broken at 80 columns are joined."""
    job, code, reason, known = None, None, None, 0
    words, begun = "", found.line
    for number, text in [*found.lines(), (found.line, "Job <0>, ")]:
        if text.startswith(" ") and words:
            words += text[21:] if text.startswith(" " * 21) else f" {text.strip()}"
            continue
        if match := _LSF_EXIT.search(words):
            code = begun, -int(match["signal"]) if match["signal"] else int(match["code"]), words
        if match := _LSF_TERM.search(words):
            reason = begun, match["why"], match["words"]
        if new := _LSF_JOB.match(text):
            if job is not None:
                yield listed(job, known)
                if reason is not None:
                    yield ended(TERM.get(reason[1], "batch-killed"), job, reason[0], reason[2])
                elif code is not None:
                    yield from _by_code(code[1], job, code[0], code[2], at_limit=False)
            job, code, reason, known = new["id"], None, None, number
        line = _LSF_LINE.match(text)
        words, begun = (line["words"] if line else "", number)


_FIELD = re.compile(r"^\s+(?P<key>[\w.]+) = (?P<value>.*?)\s*$")
_PBS_CODES = {-29: "batch-time-limit", -28: "batch-time-limit", -27: "batch-memory", -26: "batch-memory"}
"""PBS's own: walltime, cput, mem and vmem beyond what was asked for."""


# Job Id: 812345.pbs01
#     resources_used.walltime = 24:00:31
#     Exit_status = 271
#     Resource_List.walltime = 24:00:00
@block("pbs-job", mark="Job Id: ", head=r"^\s*$", most=200, whole=True)
def pbs_job(found: Block) -> Iterator[Row]:
    """Give how the server has a finished job."""
    job = re.match(r"Job Id: (?P<id>\d{1,12}(?:\[\d{1,7}\])?)(?:\.\S+)?\s*$", found.first)
    if job is None:
        return
    yield listed(job["id"], found.line)
    fields: dict[str, tuple[int, str]] = {}
    for number, text in found.lines():
        if number != found.line and not text.strip():
            break
        if match := _FIELD.match(text):
            fields.setdefault(match["key"].lower(), (number, match["value"]))
    line, code = fields.get("exit_status", (0, ""))
    if not re.fullmatch(r"-?\d{1,3}", code):
        return
    text = f"Exit_status = {code}"
    if (name := _PBS_CODES.get(int(code))) is not None:
        yield ended(name, job["id"], line, text)
    elif int(code) > 0:
        used, limit = (_seconds(fields.get(f"{what}.walltime", (0, ""))[1]) for what in ("resources_used", "resource_list"))
        yield from _by_code(int(code), job["id"], line, text, at_limit=_reached(used, limit))


# jobnumber    812345
# failed       100 : assumedly after job
# exit_status  137                  (Killed)
# ru_wallclock 86402s
# category     -l h_rt=86400
# deleted_by   user@login1
@block("sge-job", mark="jobnumber ", head=r"^$", most=60, whole=True)
def sge_job(found: Block) -> Iterator[Row]:
    """Give how Grid Engine's accounting has a job."""
    job = re.match(r"jobnumber +(?P<id>\d{1,12})\s*$", found.first)
    if job is None:
        return
    yield listed(job["id"], found.line)
    fields: dict[str, tuple[int, str]] = {}
    for number, text in found.lines():
        key, _, value = text.partition(" ")
        if text.startswith("====") or (number != found.line and not value):
            break
        fields.setdefault(key, (number, value.strip()))
    line, failed = fields.get("failed", (0, ""))
    who = fields.get("deleted_by", (0, "NONE"))
    if who[1] not in ("NONE", ""):
        yield ended("batch-cancelled", job["id"], who[0], f"deleted_by {who[1]}")
        return
    at, code = fields.get("exit_status", (0, ""))
    limit = re.search(r"\bh_rt=(?P<limit>[\d:]+)", fields.get("category", (0, ""))[1])
    over = _reached(_seconds(fields.get("ru_wallclock", (0, ""))[1].removesuffix("s")), _seconds(limit["limit"]) if limit else None)
    if number_ := re.match(r"\d{1,3}\b", code):
        yield from _by_code(int(number_[0]), job["id"], at, f"failed {failed}, exit_status {code}", at_limit=over)
    elif not failed.startswith("0"):
        yield ended("batch-killed", job["id"], line, f"failed {failed}")


def _seconds(text: str) -> float | None:
    """`24:00:31`, `86400`, `86402.1` in seconds."""
    if not re.fullmatch(r"\d{1,9}(?:\.\d{1,9})?|\d{1,5}:\d\d:\d\d", text):
        return None
    total = 0.0
    for part in text.split(":"):
        total = total * 60 + float(part)
    return total


def _reached(used: float | None, limit: float | None) -> bool:
    return used is not None and limit is not None and 0 < limit <= used
