"""How a job says itself that it is over, and how Kubernetes says so.

    [after training is done] datetime: 2023-08-15 07:22:31
    [exiting program at iteration 7240] datetime: 2024-08-05 04:08:09
    [exiting program after receiving SIGTERM.] datetime: 2024-08-05 04:08:09
    {'train_runtime': 919.097, 'train_samples_per_second': 1.088, 'train_steps_per_second': 0.017, 'epoch': 1.0}
    training finished

What ends it from outside stands elsewhere too: slurm.py, torchrun.py, deepspeed_launcher.py, tracebacks.py.
"""

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from pipelog.parsers._facts import joined, times
from pipelog.parsing import Records, Rows, lines, records


def _when(found: Records, stamp: pa.Array) -> dict[str, pa.Array]:
    when = times(stamp)
    return {
        "start_ns": pc.coalesce(when, found.columns["start_ns"]),
        "clock": pc.if_else(pc.is_valid(when), pa.scalar("log"), found.columns["clock"]),
    }


@records(
    "megatron-training-done",
    mark="[after training is done] datetime: ",
    pattern=r"^(?P<words>\[after training is done\] datetime: (?P<when>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d))",
)
def megatron_done(found: Records) -> Iterator[Rows]:
    """Give the end of Megatron's training loop; its time is local. Evaluation and a last checkpoint may follow."""
    yield found.rows("end", "training-done", text=found["words"], **_when(found, found["when"]))


_EXITS = (
    "[exiting program at iteration ",
    "[exiting program after ",
    "[exiting program ",
)


# [exiting program after 1190.2 minutes] datetime: 2024-08-05 04:08:09
@records(
    "megatron-exiting",
    mark=_EXITS,
    pattern=(
        r"^(?P<words>\[exiting program (?:at iteration (?P<step>\d{1,9})|after [\d.]+ minutes|after receiving \w+\.?|[^\]]{1,200})"
        r"(?:\] datetime: (?P<when>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)|\]|$))"
    ),
)
def megatron_exiting(found: Records) -> Iterator[Rows]:
    """Give an end that Megatron was told to make: by --exit-interval, --exit-duration-in-mins or a signal; the text says which."""
    yield found.rows("end", "exiting", step=found.int("step"), text=found["words"], **_when(found, found["when"]))


# Training completed. Do not forget to share your model on huggingface.co/models =)
@records("hf-completed", mark="Training completed. Do not forget", pattern=r"^(?P<words>Training completed\. Do not forget.*?)\s*$")
def hf_completed(found: Records) -> Iterator[Rows]:
    """Give the end of HF Trainer's loop: once per process that logs."""
    yield found.rows("end", "training-done", text=found["words"])


@records(
    "hf-train-runtime",
    mark="{'train_runtime': ",
    pattern=r"^(?P<words>\{'train_runtime': '?(?P<seconds>[\d.eE+-]+)'?, 'train_samples_per_second': '?(?P<rate>[\d.eE+-]+|nan|inf)'?,[^}]*\}?)",
)
def hf_runtime(found: Records) -> Iterator[Rows]:
    """Give the end of HF Trainer's training with its mean throughput over the whole run (samples/s)."""
    yield found.rows("end", "training-done", dur_ns=found.seconds("seconds"), text=found["words"])
    yield found.rows("scalar", "samples_per_s", value=found.float("rate"))


# [INFO:swift] End time of running main: 2026-03-25 01:45:12.100231
@records(
    "swift-done",
    mark="End time of running main: ",
    head=r"^\[INFO:swift\] $|^$",
    pattern=r"^(?P<words>End time of running main: (?P<when>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d))",
)
def swift_done(found: Records) -> Iterator[Rows]:
    """Give the end of what ms-swift was started for: it is printed when that came back without an exception."""
    yield found.rows("end", "script-done", text=found["words"], **_when(found, found["when"]))


_SUBJECTS = ("training", "Training", "TRAINING", "fine-tuning", "Fine-tuning", "finetuning", "Finetuning", "fit", "Fit", "run", "Run", "job", "Job")
_WORDS = tuple(f"{subject} {is_}{done}" for subject in _SUBJECTS for is_ in ("", "is ") for done in ("finished", "done", "complete"))
_ALONE = r"^(?:\[[^\]]*\]:?|[a-z_]\w*(?:\.[a-z_]\w*)+ +\||[\w.]+ - (?i:info|debug|warning|notice) - |[\w./-]+:|\d[\d:.,/T+-]*Z?|std(?:out|err) F|(?i:info|debug|warning|notice)|-|\||[=*#>~!]+|\s)*$"  # stamps, levels, rules


_OF = r"(?:steps?|iterations?|epochs?|samples|tokens)"


# 0: training finished
# [trainer] training finished
# training finished: 200 steps, final loss 3.1182, model written to out/final
# Training complete!
# run complete: 300 steps
# `Trainer.fit` stopped: `max_steps=1000` reached.
@records(
    "script-done",
    mark=(
        *_WORDS,
        "TRAINING FINISHED",
        "TRAINING DONE",
        "TRAINING COMPLETE",
        "`Trainer.fit` stopped: `max_",
        "Finished training",
        "finished training",
        "done training in ",
    ),
    head=_ALONE,
    pattern=(
        r"^(?P<words>(?:(?i:(?:training|fine-?tuning|fit) (?:is )?(?:finished|done|completed?))(?:(?: successfully)?(?: (?:in|after) [\d.,:]+ ?[a-z]{0,10}\.?)?(?:: [^%]+|, [\d,]+ (?:steps?|iterations?|epochs?)\b[^%]*)?)"
        # a job script says "job done" and "run finished" of a run that crashed as well: only with what was done
        rf"|(?i:(?:run|job) (?:is )?(?:finished|done|completed?))(?: successfully|(?:,? after|:) [^%]{{0,80}}?\b\d[\d,]* {_OF}\b[^%]*)"
        rf"|[Ff]inished training(?: (?:at|after) (?:{_OF} [\d,]+|[\d,]+ {_OF})\b[^%]*|, [^%]{{0,80}}?\b\d[\d,]* {_OF}\b[^%]*)?"
        r"|done training in [\d.]+ seconds"
        r"|`Trainer\.fit` stopped: `max_(?:steps|epochs)=\d+` reached)[\s.!=*#~-]*)$"
    ),
)
def script_done(found: Records) -> Iterator[Rows]:
    """Give the end in the user script's own words: only where they are the whole of a line, but for stamps and prefixes."""
    yield found.rows("end", "script-done", text=pc.utf8_trim_whitespace(found["words"]))


# exit status of torchrun: 0
# 	Exit status: 0                           (/usr/bin/time -v)
# train exit code=1
@lines(
    "exit-status",
    mark=("exit status", "Exit status", "exit code", "EXIT_CODE", "exit_code"),
    pattern=_ALONE.removesuffix("$")
    + r"(?:[\w./-]{1,60} )?(?:exit|Exit|EXIT)[ _](?:status|code|CODE)(?: of (?:the )?[\w./-]{1,80}(?: [\w./-]{1,80})?)?(?: is| was)? ?[:=]? ?(?P<code>\d{1,3})\s*$",
)
def exit_status(found: Records) -> Iterator[Rows]:
    """Give the status that a script prints of the command that it ran: its end where that is 0, else a process that left with it."""
    good = pc.equal(found.int("code"), 0)
    done = found.where(good)
    yield done.rows("end", "script-done", text=joined("exit status ", done["code"]))
    left = found.where(pc.invert(good))
    yield left.rows("end", "exit-code", value=left.float("code"), text=joined("exit status ", left["code"]))


# all 400 steps done; uploading
@records(
    "script-all-done",
    mark=tuple(f"{what} {done}" for what in ("steps", "iterations", "epochs") for done in ("done", "finished", "completed")),
    head=_ALONE.removesuffix("$") + r"(?P<all>[Aa]ll \d[\d,]* (?:training )?)$",
    pattern=r"^(?P<words>(?:steps|iterations|epochs) (?:done|finished|completed)(?:[.!;,][^%]{0,120})?)\s*$",
)
def script_all_done(found: Records) -> Iterator[Rows]:
    """Give the end in the user script's own words, where it counts all of its steps."""
    yield found.rows("end", "script-done", text=joined(found["all"], found["words"]))


# Detected KeyboardInterrupt, attempting graceful shutdown ...
@records(
    "lightning-interrupt",
    mark="Detected KeyboardInterrupt, attempting ",
    head=_ALONE,
    pattern=r"^(?P<words>Detected KeyboardInterrupt, attempting graceful shutdown\b.*?)\s*$",
)
def lightning_interrupt(found: Records) -> Iterator[Rows]:
    """Give the interrupt (value: signal 2) that Lightning's trainer caught."""
    yield found.rows("end", "signal", value=2.0, text=found["words"])


_K8S = {
    "OOMKilled": "k8s-oom-killed",
    "Evicted": "k8s-evicted",
    "DeadlineExceeded": "k8s-deadline",
}


#     Reason:       OOMKilled
# trainer-0   0/1     Evicted   0          12m
@records(
    "kubernetes-reason",
    mark=tuple(_K8S),
    head=r"(?:(?:^\s*(?:- )?|[{,]\s*)\"?|^(?:[\w.-]+\s+)?[\w.-]+)(?P<before>[Rr]eason\"?[:=]\s*\"?|\s+\d+/\d+\s+)$|^\s*(?P<event>Warning\s+|Failed\s+True\s+)$",
    pattern=r"^(?P<reason>OOMKilled|Evicted|DeadlineExceeded)\b",
)
def k8s_reason(found: Records) -> Iterator[Rows]:
    """Give the end of a pod as `kubectl describe`, `get pods` and events word it."""
    names = pa.array(list(_K8S.values())).take(pc.index_in(found["reason"], pa.array(list(_K8S))))
    yield found.rows("end", names, text=pc.utf8_trim_whitespace(joined(found.groups["before"], found.groups["event"], found["reason"])))


# The node was low on resource: memory. Threshold quantity: 100Mi, available: 88Mi. Container trainer was using 210Gi, request is 200Gi
# Pod ephemeral local storage usage exceeds the total limit of containers 500Gi.
# Container trainer exceeded its local ephemeral storage limit "100Gi".
@records(
    "kubernetes-evicted",
    mark=(
        "The node was low on resource: ",
        "Pod ephemeral local storage usage exceeds the total limit",
        " exceeded its local ephemeral storage limit ",
    ),
    head=r"(?:\bpod/(?P<pod>[\w.-]{1,253})\s+)?$",
    pattern=(
        r"^(?P<words>The node was low on resource: \S.*?|Pod ephemeral local storage usage exceeds the total limit of containers \S+"
        r"| exceeded its local ephemeral storage limit \S+)\s*$"
    ),
)
def k8s_evicted(found: Records) -> Iterator[Rows]:
    """Give an eviction with the resource that was short (memory, ephemeral-storage, inodes), of a table of events with its pod in place of a host."""
    host = pc.coalesce(pc.cast(found.columns["host"], pa.string()), found["pod"])
    yield found.rows("end", "k8s-evicted", host=host, text=pc.utf8_trim_whitespace(found["words"]))


# Pod was active on the node longer than the specified deadline
@records(
    "kubernetes-deadline",
    mark="Pod was active on the node longer than the specified deadline",
    head=r"^(?:\s*(?:- )?\"?[Mm]essage\"?:\s+\"?|.*(?:Normal|Warning) .*|.*\"message\": ?\")?$",
    pattern=r"^(?P<words>Pod was active on the node longer than the specified deadline)",
)
def k8s_deadline(found: Records) -> Iterator[Rows]:
    """Give the end of a pod by its activeDeadlineSeconds."""
    yield found.rows("end", "k8s-deadline", text=found["words"])


# command terminated with exit code 137
@records(
    "kubernetes-exec",
    mark="command terminated with exit code ",
    pattern=r"^(?P<words>command terminated with exit code (?P<code>\d{1,9}))\b",
)
def k8s_exec(found: Records) -> Iterator[Rows]:
    """Give the exit code of a command under `kubectl exec`; above 128 it is a signal (137: SIGKILL)."""
    yield found.rows("end", "k8s-exit-code", value=found.float("code"), text=found["words"])
