"""What one asks the batch system whose word ended a job: who it was, why a node is gone, how it warns before its limit."""

from __future__ import annotations

import re

import pandas as pd

from pipelog._text import listed

_SYSTEMS = {
    "condor": re.compile(r"^Job was (?:aborted|evicted|held)\b"),
    "flux": re.compile(r"job\.exception type=|broker\.\w+\[\d+\]: "),
    "lsf": re.compile(r"\bTERM_[A-Z]|\bLSF\b"),
    "pbs": re.compile(r"\bPBS: |^Job (?:to be )?deleted at request of "),
    "slurm": re.compile(
        r"slurm|\bsrun\b|\bscancel\b|\*{3} (?:STEP|JOB) \d|StepId=|\bDUE TO (?:TIME LIMIT|NODE FAILURE|PREEMPTION|JOB REQUEUE)|NODE_FAIL|BOOT_FAIL"
    ),
}
"""System → how its own words are known. First that fits."""
_JOB = re.compile(r"(?:\*{3} (?:STEP|JOB)|[Ss]tepId=|[Jj]obId=) ?(?P<id>\d{1,12}(?:_\d+)?)\b")
_NUMBERED = re.compile(r"(?:^|/)(?:(?:lsf|job|out|output)[._-])?(?P<id>\d{1,12})\.(?:out|err|log)$|\.(?P<of>\d{3,12})\.(?:out|err)$")
_FILES = {
    "condor": _NUMBERED,
    "flux": re.compile(r"(?:^|/)flux-(?P<id>[fƒ][1-9A-HJ-NP-Za-km-z]{4,16})\.(?:out|err|log)$"),
    "lsf": _NUMBERED,
    "pbs": re.compile(r"\.(?:[oe]|OU|ER)(?P<id>\d{1,12})$"),
    "slurm": re.compile(r"(?:^|/)slurm-(?P<id>\d{1,12}(?:_\d+)?)\.(?:out|err|log)$"),
}
"""System → the number of the job in the name that it gives to the job's output: `flux-f9a4aD2X.out`, `lsf.4471.out`, `gpt.o77120`, `slurm-812345.out`."""

_WHO = {
    "condor": "`condor_history -l JOBID`: RemoveReason names the user",
    "flux": "`flux job eventlog JOBID`: its exception names the user",
    "lsf": "`bhist -l JOBID`",
    "pbs": "`tracejob JOBID` on the server, `qstat -xf JOBID`",
    "slurm": "`sacct -j JOBID --format=JobID,State%40,End`: its state names the user (CANCELLED by UID)",
}
_LIMIT = {
    "flux": "; `flux run --signal=USR1@300s` warns the processes",
    "lsf": "; `bsub -wa USR1 -wt 5` warns the job",
    "pbs": "; PBS gives no early warning: start the launch with `timeout -s USR1`, some minutes shorter than the walltime",
    "slurm": "; `sbatch --signal=B:USR1@300` warns the job script",
}
_NODE = {"flux": "flux resource status, flux dmesg", "lsf": "bhosts -l", "pbs": "pbsnodes -l", "slurm": "slurmctld, sinfo -R"}


def system(text: str) -> str | None:
    """flux, lsf, pbs or slurm, whose line *text* is; None where it is nobody's whose commands are known here."""
    return next((name for name, words in _SYSTEMS.items() if words.search(text)), None)


def who(text: str, files: tuple[str, ...] = (), stated: tuple[str, ...] = ()) -> str:
    """How to ask who ended the job, with its number where the line has it, the job *stated* one, or the line's file (the first) or a single other one is named after it."""
    name = system(text)
    if name is None:
        return f"whoever started it, or the scheduler (Slurm: {_WHO['slurm'].partition(':')[0]})"
    in_text = _JOB.search(text)
    own, others = (_named_after(name, some) for some in (files[:1], files[1:]))
    known = next((found for found in ({in_text["id"]} if in_text else set(), set(stated), own, others) if found), set())
    job = min(known) if len(known) == 1 else None
    return _WHO[name].replace("JOBID", job) if job else _WHO[name]


def _named_after(system_: str, files: tuple[str, ...]) -> set[str]:
    """The numbers of jobs after which a system names its output."""
    return {match.group(match.lastindex or 0) for file in files if system_ in _FILES and (match := _FILES[system_].search(file))}


def warning(text: str) -> str:
    """How the system is asked to warn before its limit, as the end of a sentence; empty where it is not known which system it is."""
    return _LIMIT.get(system(text) or "", "")


def of_a_node(text: str) -> str:
    """Where the system says why a node is gone, before the node's own logs; empty where it is not known which system it is."""
    name = system(text)
    return f"{_NODE[name]}, " if name else ""


_POD_TAKEN = re.compile(r"\bpod/(?P<pod>[a-z0-9][a-z0-9.-]*)\s+(?:\S+\s+)*?Preempted by ")
"""Kubernetes takes a pod for another one, and leaves the node."""


def what_was_taken(hosts: tuple[str, ...], texts: pd.Series) -> str:
    """In brackets, what was taken from a job that was preempted: the pod that the events name, or the host; empty where it was not one."""
    pods = {match["pod"] for text in texts.dropna() if (match := _POD_TAKEN.search(text))}
    if len(hosts) != 1 or len(pods) > 1:
        return ""
    return f" (pod {pods.pop()} was taken from it, on {hosts[0]})" if pods else f" ({listed(hosts)} was taken from it)"
