"""Slurm's words about the end of a job or a step, as slurmstepd and srun write them into the job's output.

    slurmstepd: error: *** STEP 1650377.0 ON h6-04-3 CANCELLED AT 2021-05-24T09:14:22 DUE TO TIME LIMIT ***
    slurmstepd: error: *** JOB 5521907 ON cn0409 CANCELLED AT 2024-06-20T03:40:28 DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***
    slurmstepd: error: *** STEP 1650377.0 CANCELLED AT 2021-05-24T09:14:22 DUE TO TIME LIMIT on h6-04-3 ***
    slurmstepd-nx20-15: error: *** STEP 7730416.0 ON nx20-15 CANCELLED AT 2023-04-07T13:09:01 ***

Older releases put the node last. Both daemons write at once and into progress bars, so a line's beginning may be torn away: the
marks stand in the middle of the text, and what is missing before them is null. Times are local, to the second.
"""

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from pipelog.parsers._facts import joined, times
from pipelog.parsers._signals import signals
from pipelog.parsing import Records, Rows, lines, records

_LEAD = (
    r"^(?:(?: ?(?:\[[\d:.,T+-]+Z?\]|\d[\d:.,T+-]*Z?:?|[A-Za-z][A-Za-z.-]*\d[\w.-]*:) )*?(?:error: )??"
    r"|.*[^\s\"'`“‘«(\[{<>:=,-])"
)
"""What may stand before Slurm's words: stamps, labels and hosts that are no prefix of the whole file, or text of another that they are glued to.

Words and blanks before them are somebody's who cites them: `sample 3: slurmstepd: error: …`.
"""
_STEP = r"(?:slurmstepd(?:-\S+?)?: error: )?\*{3} (?:STEP|JOB) \S+(?: ON (?P<host>\S+))?"
_WHO = rf"(?:{_LEAD}(?P<before>{_STEP})|^\S{{0,100}})$"
"""A head whose beginning is torn away has no blanks."""
_REASONS = {
    "TIME LIMIT": "slurm-time-limit",
    "PREEMPTION": "slurm-preempted",
    "NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS": "slurm-node-failure",
    "JOB REQUEUE": "slurm-requeue",
}


@records(
    "slurm-cancelled",
    mark=" CANCELLED AT ",
    head=_WHO,
    pattern=(
        r"^(?P<words> CANCELLED AT (?P<when>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?: (?:DUE TO|DUE to) (?P<reason>[A-Z][A-Za-z, ]*?[A-Za-z]))?"
        r"(?: on (?P<node>\S+))?(?: \*{3}|$))"
    ),
)
def cancelled(found: Records) -> Iterator[Rows]:
    """Give the end of a job or step from outside, named after its reason, with the node and the time that the text states."""
    name = pa.array(list(_REASONS.values())).take(pc.index_in(found["reason"], pa.array(list(_REASONS))))
    yield found.rows("end", pc.fill_null(name, "slurm-cancelled"), text=_text(found), **_where(found, pc.coalesce(found["host"], found["node"])))


# slurmstepd: error: *** STEP 812345.0 ON node7 FAILED (non-zero exit code or other failure mode) ***
@records(
    "slurm-step-failed",
    mark=" FAILED (non-zero exit code or other failure mode)",
    head=_WHO,
    pattern=r"^(?P<words> FAILED \(non-zero exit code or other failure mode\)(?: \*{3})?)",
)
def step_failed(found: Records) -> Iterator[Rows]:
    """Give the end of a step because another of its tasks failed."""
    yield found.rows("end", "slurm-step-failed", text=_text(found), host=pc.coalesce(found["host"], found.columns["host"]))


# slurmstepd: error: *** STEP 812345.0 ON node7 UNCORRECTABLE MEMORY ERROR AT 2024-03-05T16:00:00 ***
@records(
    "slurm-memory-error",
    mark=" UNCORRECTABLE MEMORY ERROR AT ",
    head=_WHO,
    pattern=r"^(?P<words> UNCORRECTABLE MEMORY ERROR AT (?P<when>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?: \*{3})?)",
)
def memory_error(found: Records) -> Iterator[Rows]:
    """Give the end of a step by an error of the host's memory."""
    yield found.rows("end", "slurm-memory-error", text=_text(found), **_where(found, found["host"]))


# slurmstepd: error: Detected 1 oom_kill event in StepId=812345.0. Some of the step tasks have been OOM Killed.
# slurmstepd-nx20-15: error: Detected 1 oom-kill event(s) in StepId=7730416.0. Some of your processes may have been killed by the cgroup out-of-memory handler.
@records(
    "slurm-oom",
    mark=(" oom-kill event", " oom_kill event"),
    head=rf"{_LEAD}(?P<before>(?:slurmstepd(?:-(?P<host>\S+?))?: error: )?Detected (?P<count>\d{{1,9}}))$",
    pattern=r"^(?P<words> oom[-_]kill event.*?)\s*$",
)
def oom(found: Records) -> Iterator[Rows]:
    """Give kills for want of host memory (value: how many) that the cgroup of a step saw."""
    yield found.rows("end", "slurm-oom", value=found.float("count"), text=_text(found), host=pc.coalesce(found["host"], found.columns["host"]))


_DEATHS = r"Out [Oo]f [Mm]emory|Hangup|Interrupt|Quit|Illegal instruction|Trace/breakpoint trap|Aborted|Bus error|Floating point exception|Killed|Segmentation fault|Broken pipe|Terminated"


# srun: error: nx20-15: tasks 0-1,3: Terminated
# srun: error: gpu-b07: task 5: Exited with exit code 1
# srun: error: node7: task 4: Segmentation fault (core dumped)
# srun: error: nx20-15: task 2: Out Of Memory
# srun: error: Node failure on cn0417
@records(
    "slurm-task",
    mark="srun: error: ",
    head=rf"(?:{_LEAD}|^)$",
    pattern=(
        r"^(?P<words>srun: error: (?:(?P<host>[^\s:]+): tasks? (?P<tasks>[\d,\[\]-]+): (?:Exited with exit code (?P<code>\d{1,9})"
        rf"|(?P<signal>{_DEATHS})(?: \(core dumped\))?|(?P<other>[A-Z][A-Za-z ]*[a-z])\s*$)|Node failure on (?P<node>\S+)))"
    ),
)
def task(found: Records) -> Iterator[Rows]:
    """Give how tasks ended: value is the exit code, negative for a signal, null for `Out Of Memory`; the label names the tasks.

    A task is a whole node's launcher where there is one launcher per node.
    """
    tasks = found.where(found.has("tasks"))
    yield tasks.rows(
        "end",
        "slurm-task",
        value=pc.coalesce(tasks.float("code"), signals(tasks["signal"])),
        host=tasks["host"],
        label=joined("task ", tasks["tasks"]),
        text=tasks["words"],
    )
    nodes = found.where(found.has("node"))
    yield nodes.rows("end", "slurm-node-failure", host=nodes["node"], text=nodes["words"])


_FOLLOWING = {
    "Job step aborted: ": "slurm-step-aborted",
    "First task exited ": "slurm-first-exit",
    "Terminating ": "slurm-terminating",
    "Force Terminated ": "slurm-terminating",
    "Timed out waiting for job step to complete": "slurm-timeout",
    "interrupt (one more": "signal",
    "sending Ctrl-C to ": "signal",
}


# srun: Job step aborted: Waiting up to 62 seconds for job step to finish.
# srun: First task exited 30s ago
# srun: launch/slurm: _step_signal: Terminating StepId=7730416.0
@lines(
    "slurm-following",
    mark=(
        "srun: Job step aborted: ",
        "srun: First task exited ",
        "Terminating StepId=",
        "Terminating job step ",
        "srun: Force Terminated ",
        "srun: error: Timed out waiting for job step",
        "srun: interrupt (one more",
        "srun: sending Ctrl-C to ",
    ),
    pattern=(
        rf"{_LEAD}(?P<words>srun: (?:error: )?(?:launch/slurm: _?\w+: )?"
        r"(?P<what>Job step aborted: |First task exited |Terminating |Force Terminated |Timed out waiting for job step to complete|interrupt \(one more|sending Ctrl-C to )(?:(?P<ago>\d{1,9})s ago)?.*?)\s*$"
    ),
)
def following(found: Records) -> Iterator[Rows]:
    """Give what srun says once a step is ending: value is the seconds since the first task's exit, or the signal (2) that srun itself got."""
    names = pa.array(list(_FOLLOWING.values())).take(pc.index_in(found["what"], pa.array(list(_FOLLOWING))))
    value = pc.if_else(pc.equal(names, "signal"), pa.scalar(2.0), found.float("ago"))
    yield found.rows("end", names, value=value, text=found["words"])


# srun: StepId=812345.0 task 1: running
# srun: StepId=812345.0 tasks 2-3: exited abnormally
# srun: step:704112.0 tasks 0-4,6-15: running                         (older)
@lines(
    "slurm-task-state",
    mark=("srun: StepId=", "srun: step:"),
    pattern=rf"{_LEAD}(?P<words>srun: (?:StepId=|step:)\S+ tasks? (?P<tasks>[\d,\[\]-]+): (?P<state>running|exited abnormally|exited|unknown state|not started))",
)
def task_state(found: Records) -> Iterator[Rows]:
    """Give which tasks had left and which had not when the first one was gone (stream: the state)."""
    yield found.rows("end", "slurm-task-state", label=joined("task ", found["tasks"]), stream=found["state"], text=found["words"])


# slurmstepd: error: Exceeded job memory limit at some point.
# slurmstepd: error: Job 812345 exceeded memory limit (220200960 > 209715200), being killed
@lines(
    "slurm-memory-limit",
    mark=("xceeded job memory limit", "xceeded step memory limit", " exceeded memory limit ("),
    pattern=rf"{_LEAD}(?P<words>(?:slurmstepd(?:-(?P<host>\S+?))?: error: )(?:Exceeded (?:job|step) memory limit|(?:Job|Step|StepId=|JobId=)\S* ?\S* exceeded memory limit \().*?)\s*$",
)
def memory_limit(found: Records) -> Iterator[Rows]:
    """Give the limit of memory that older releases enforce themselves."""
    yield found.rows("end", "slurm-oom", host=pc.coalesce(found["host"], found.columns["host"]), text=found["words"])


# srun: error: Task launch for StepId=812345.0 failed on node node7: Communication connection failure
# srun: error: Application launch failed: Communication connection failure
# srun: error: Unable to create step for job 812345: Requested node configuration is not available
# srun: error: Unable to confirm allocation for job 812345: Invalid job id specified
# srun: error: Unable to resolve "node7": Unknown host
@lines(
    "slurm-launch-failed",
    mark=("srun: error: Task launch for ", "srun: error: Application launch failed: ", "srun: error: Unable to "),
    pattern=(
        rf"{_LEAD}(?P<words>srun: error: (?:Task launch for \S+ failed on node (?P<node>[^\s:]+): |Application launch failed: "
        r"|Unable to (?:create step for job|confirm allocation for job|allocate resources: |resolve \"(?P<unknown>[^\s\"]+)\")).*?)\s*$"
    ),
)
def launch_failed(found: Records) -> Iterator[Rows]:
    """Give a step that srun could not start, with the node that it could not reach."""
    found = found.where(pc.invert(pc.match_substring(found.groups["words"], "already completing")))  # its job was over before
    yield found.rows("end", "slurm-launch-failed", host=pc.coalesce(found["node"], found["unknown"], found.columns["host"]), text=found["words"])


def _text(found: Records) -> pa.Array:
    return pc.utf8_ltrim_whitespace(joined(found.groups["before"], found["words"]))


def _where(found: Records, host: pa.Array) -> dict[str, pa.Array]:
    """Return host, time and clock: what the text states goes before what stands in front of the line."""
    when = times(found["when"])
    stated = pc.is_valid(when)
    return {
        "host": pc.coalesce(host, found.columns["host"]),
        "start_ns": pc.coalesce(when, found.columns["start_ns"]),
        "clock": pc.if_else(stated, pa.scalar("log"), found.columns["clock"]),
    }
