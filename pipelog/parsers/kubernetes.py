"""Ends of pods in `kubectl describe`, `kubectl get -o yaml` and events, beside the plain words of job_ends.py.

Last State:     Terminated
  Reason:       Error
  Exit Code:    137
  Started:      Tue, 05 Mar 2024 15:10:01 +0100
  Finished:     Tue, 05 Mar 2024 15:20:09 +0100
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from pipelog.parsers._facts import joined
from pipelog.parsers._stamps import iso_ns, rfc_ns
from pipelog.parsing import Block, Records, Row, Rows, block, lines, records

_FIELD = re.compile(r"^\s*(?P<key>Reason|Exit Code|Signal|Finished):\s+(?P<value>\S.*?)\s*$")


@block("kubernetes-terminated", mark=("State: Terminated", "State:     Terminated", "State:          Terminated"), most=8)
def terminated(found: Block) -> Iterator[Row]:
    """Give the exit code of a container that has ended (above 128 it is a signal), with its reason and the time it ended, at the code's line."""
    fields: dict[str, tuple[int, str]] = {}
    lines_ = found.lines()
    next(lines_)
    for number, text in lines_:
        match = _FIELD.match(text)
        if match is None and not text.lstrip().startswith(("Message:", "Started:")):
            break
        if match is not None:
            fields.setdefault(match["key"], (number, match["value"]))
    line, code = fields.get("Exit Code", (0, ""))
    if not re.fullmatch(r"\d{1,9}", code):
        return
    words = [f"{key}: {fields[key][1]}" for key in ("Reason", "Exit Code", "Signal") if key in fields]
    row: Row = {"kind": "end", "name": "k8s-exit-code", "value": float(code), "line": line, "text": "State: Terminated, " + ", ".join(words)}
    ended = rfc_ns(pa.array([fields.get("Finished", (0, ""))[1]]))[0].as_py()
    yield row if ended is None else row | {"start_ns": ended, "clock": "log"}


#       exitCode: 137
#       finishedAt: "2024-03-05T14:20:09Z"
@block("kubernetes-exit-code", mark="exitCode: ", head=r"^\s*(?:- )?$", most=6)
def exit_code(found: Block) -> Iterator[Row]:
    """Give the exit code of a container in the YAML of its pod; times are in UTC."""
    code = re.match(r"exitCode: (\d{1,9})\s*$", found.first)
    if code is None:
        return
    row: Row = {"kind": "end", "name": "k8s-exit-code", "value": float(code.group(1)), "text": found.first.strip()}
    for _, text in found.lines():
        if reason := re.match(r"\s*reason: (\w+)\s*$", text):
            row["text"] += f", reason: {reason.group(1)}"
        if (ended := re.match(r"\s*finishedAt: \"?(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)Z", text)) and (
            when := iso_ns(pa.array([ended.group(1)]))[0].as_py()
        ) is not None:
            row |= {"start_ns": when, "clock": "utc"}
    yield row


_LOST = re.compile(r"^\s*[Mm]essage:\s+\"?Node (?P<node>[\w.-]+) which was running pod ")


# Reason:           NodeLost
# Message:          Node node7 which was running pod trainer-1 is unresponsive
@block("kubernetes-node-lost", mark="NodeLost", head=r"^\s*[Rr]eason:\s+\"?$", most=3)
def node_lost(found: Block) -> Iterator[Row]:
    """Give the end of a pod whose node is silent, with the node of the message below it."""
    row: Row = {"kind": "end", "name": "k8s-node-not-ready", "text": (found.before + found.first).strip()}
    node = next((match["node"] for _, text in found.lines() if (match := _LOST.match(text))), None)
    yield row if node is None else row | {"host": node}


_NAMES = {
    "Preempted by ": "k8s-preempted",
    "PreemptionByScheduler": "k8s-preempted",
    "Preempting": "k8s-preempted",
    "Preempted to accommodate ": "k8s-preempted",
    "Pod is evicted, because of preempt": "k8s-preempted",
    "Pod is evicted, because of reclaim": "k8s-preempted",
    "deleting pod for node scale down": "k8s-scale-down",
    "was terminated in response to imminent node shutdown": "k8s-scale-down",
    "Node is shutting, evicting pods": "k8s-scale-down",
    "TaintManagerEviction": "k8s-evicted",
    "DeletionByTaintManager": "k8s-evicted",
    "EvictionByEvictionAPI": "k8s-evicted",
    "The node had condition: ": "k8s-evicted",
    "NodeNotReady": "k8s-node-not-ready",
    "Node is not ready": "k8s-node-not-ready",
    "which was running pod ": "k8s-node-not-ready",
    "BackoffLimitExceeded": "k8s-backoff-limit",
    "reached the specified backoff limit": "k8s-backoff-limit",
}


# Normal   Preempted  2m  default-scheduler  Preempted by pod 5f0c on node node7
# Warning  NodeNotReady  5m  node-controller  Node is not ready
# Pod The node had condition: [DiskPressure].
# Warning  BackoffLimitExceeded  1m  job-controller  Job has reached the specified backoff limit
# 39m   Normal   NodeNotReady   node/node7   Node node7 status is now: NodeNotReady
# Message:          Node node7 which was running pod trainer-1 is unresponsive
# 3m   Normal   Preempted   workload/pytorchjob-pp-7c1a1   Preempted to accommodate a workload (UID: …) due to reclamation within the cohort   (Kueue)
# 2m   Normal   ScaleDown   pod/pp-worker-1   deleting pod for node scale down                                                               (cluster autoscaler)
# Message:          Pod was terminated in response to imminent node shutdown.
@lines(
    "kubernetes-event",
    mark=tuple(_NAMES),
    pattern=(
        r"^(?:\s*(?:Normal|Warning) +.*?|\S* +(?:Normal|Warning) +.*?|\s*(?:- )?['\"]?(?:Reason|Message|Status|reason|message)['\"]?: +['\"]?(?:Pod )?|Pod |Job has )"
        rf"(?:Node (?P<lost>[\w.-]+) )?(?P<what>{'|'.join(_NAMES)})"
        r"(?:.*? on node (?P<node>[\w.-]+)|.*? node/(?P<object>[\w.-]+)|.*? Node (?P<named>[\w.-]+) (?:status is now|event): )?"
    ),
)
def event(found: Records) -> Iterator[Rows]:
    """Give an event that ends a pod from outside, named after its reason, with the node where named."""
    name = pa.array(list(_NAMES.values())).take(pc.index_in(found["what"], pa.array(list(_NAMES))))
    host = pc.coalesce(*(found[group] for group in ("node", "object", "named", "lost")), found.columns["host"])
    yield found.rows("end", name, host=host, text=pc.utf8_trim_whitespace(found["line"]))


# Node:             node7/10.0.0.7
#   Normal   Scheduled  18m   default-scheduler  Successfully assigned team/trainer-0 to node7
#   message: Successfully assigned team/trainer-0 to node7
@lines(
    "kubernetes-node",
    mark=("Node:  ", "Successfully assigned "),
    pattern=r"^(?:Node: +(?P<node>[\w.-]+)/[0-9a-fA-F.:]+|(?:\S* *(?:Normal) +|\s*(?:- )?['\"]?[Mm]essage['\"]?: +)[^%]*?\bSuccessfully assigned \S+ to (?P<to>[\w.-]+))['\",]*\s*$",
)
def placed(found: Records) -> Iterator[Rows]:
    """Give the node on which a pod was placed, as a fact: the file may be of one pod, and its name is none of the host."""
    yield found.rows("fact", "pod.node", text=pc.coalesce(found["node"], found["to"]))


# Status:           Succeeded
#   phase: Succeeded
@records("kubernetes-succeeded", mark="Succeeded", head=r"^(?:Status:\s+|\s*\"?phase\"?: \"?)$", pattern=r"^(?P<word>Succeeded)\"?,?\s*$")
def succeeded(found: Records) -> Iterator[Rows]:
    """Give a pod whose containers have all ended well."""
    yield found.rows("end", "k8s-succeeded", text=joined("Status: ", found["word"]))


# Active Deadline Seconds:  1800s
#   activeDeadlineSeconds: 1800
@records(
    "kubernetes-active-deadline",
    mark=("Active Deadline Seconds:", "activeDeadlineSeconds"),
    head=r"^\s*(?:- )?\"?$",
    pattern=r"^\w[\w ]*\"?: *(?P<seconds>\d{1,9})s?,?\s*$",
)
def active_deadline(found: Records) -> Iterator[Rows]:
    """Give the time that a Job or a pod may take, s, as a fact."""
    yield found.rows("fact", "limit.active_deadline_s", value=found.float("seconds"), text=found["seconds"])
