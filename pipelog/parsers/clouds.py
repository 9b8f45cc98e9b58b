"""Notices of cloud providers that they take a machine back: AWS, Google and Azure, and the programs that repeat them in a cluster.

    2024/03/05 15:16:16 INF Adding new event to the event store event={"EventID":"spot-itn-1a2b","Kind":"SPOT_ITN","NodeName":"node7", …}
    2m   Warning   SpotInterruption   node/node7   Spot ITN received. Instance will be interrupted at 2024-03-05T15:18:16Z
    Instance was preempted.
    {"DocumentIncarnation":2,"Events":[{"EventId":"C7061BAC","EventType":"Preempt","ResourceType":"VirtualMachine","Resources":["node7"], …}]}

A recommendation to rebalance and maintenance that is announced end nothing by themselves.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow.compute as pc

from pipelog.parsing import Records, Rows, lines

_LOGGER = r"(?:[\w.-]+: )?(?:[\d/:.,T+Z-]+ )*(?:time=\S+ )?(?:level=\w+ )?(?:\[?(?:INF|INFO|WRN|WARN|WARNING|info|warn)\]?:? )?"
_EVENT = r"(?:[\w.-]+ +)??(?:\S+ +)?(?:Normal|Warning) +"
"""Columns of `kubectl get events` and `describe` before the reason."""


# 2024/03/05 15:16:16 INF Adding new event to the event store event={"AutoScalingGroupName":"","Description":"Spot ITN received. Instance will be interrupted at …","Kind":"SPOT_ITN","NodeName":"node7"}
# 2m   Warning   SpotInterrupted   node/node7   Spot interruption warning was triggered
# "instance/preempted": TRUE
# 5m   Warning   PreemptScheduled   node/node7   Preempt Scheduled: Tue, 05 Mar 2024 15:20:00 GMT
@lines(
    "cloud-preempted",
    mark=(
        '"SPOT_ITN"',
        "Spot ITN received",
        "SpotInterrupt",
        "Spot interruption warning was triggered",
        "nstance was preempted",
        "compute.instances.preempted",
        "compute.instances.terminateOnHostMaintenance",
        "instance/preempted",
        '"Preempt"',
        "PreemptScheduled",
    ),
    pattern=(
        rf"^(?:\s*{_EVENT}(?:SpotInterrupt(?:ion|ed)|PreemptScheduled) +.*?|{_LOGGER}.*\bevent={{.*\"Kind\": ?\"SPOT_ITN\"|{_LOGGER}Spot ITN received\. "
        rf"|{_LOGGER}(?:Compute Engine )?[Ii]nstance was preempted|\s*(?:[\"{{\[].*)?\"?(?:protoPayload\.)?methodName\"?[:=] ?\"?compute\.instances\.(?:preempted|terminateOnHostMaintenance)\b|\s*\"?(?:computeMetadata/v1/)?instance/preempted\"?[:=] ?\"?TRUE\b"
        rf"|\s*\"EventType\": ?\"Preempt\"|{_LOGGER}[^'\"{{]*{{.*\"EventType\": ?\"Preempt\".*\"ResourceType\")"
        r"(?:.*?\bnode/(?P<object>[\w.-]+)|.*\"NodeName\": ?\"(?P<node>[\w.-]+)\"|.*\"Resources\": ?\[ ?\"(?P<machine>[\w.-]+)\" ?\])?"
    ),
)
def preempted(found: Records) -> Iterator[Rows]:
    """Give a machine (host, where named) that is about to be taken back."""
    host = pc.coalesce(found["object"], found["node"], found["machine"], found.columns["host"])
    yield found.rows("end", "cloud-preempted", host=host, text=pc.utf8_trim_whitespace(found["line"]))


# "methodName": "compute.instances.hostError"
# Status Reason: Host EC2 (instance i-08784105ffff56b4f) terminated.                                                   (AWS Batch)
@lines(
    "cloud-host-error",
    mark=("compute.instances.hostError", "Host EC2 (instance "),
    pattern=(
        r"^\s*(?:(?:[\"{\[].*)?\"?(?:protoPayload\.)?methodName\"?[:=] ?\"?compute\.instances\.hostError\b(?:.*\binstances/(?P<node>[\w-]+))?"
        r"|[\"']?[Ss]tatus ?[Rr]eason[\"']?: ?[\"']?Host EC2 \(instance (?P<ec2>i-[0-9a-f]{4,20})\) terminated)"
    ),
)
def host_error(found: Records) -> Iterator[Rows]:
    """Give a machine of Google's whose hardware failed, as its audit log has it, and one that AWS Batch no longer has."""
    host = pc.coalesce(found["node"], found["ec2"], found.columns["host"])
    yield found.rows("end", "batch-node-failure", host=host, text=pc.utf8_trim_whitespace(found["line"]))
