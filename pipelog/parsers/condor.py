"""HTCondor's user log: what became of a job, event by event.

    001 (4711.000.000) 2025-04-02 08:00:31 Job executing on host: <10.1.7.22:9618?addrs=10.1.7.22-9618>
    ...
    012 (4711.000.000) 2025-04-02 08:52:10 Job was held.
        Job has gone over cgroup memory limit of 65536 megabytes.
        Code 34 Subcode 102
    ...
    009 (4711.000.000) 04/02 08:52:10 Job was aborted.
        via condor_rm (by user mkoch)

A job that was evicted or held may run again: only its last event says how it ended.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import pyarrow as pa

from pipelog.parsers._accounting import ended, listed
from pipelog.parsers._stamps import iso_ns
from pipelog.parsing import Block, Row, block

_EVENT = re.compile(
    r"^(?P<what>\d{3}) \((?P<id>\d{1,12})\.(?P<proc>\d{3,9})\.\d{3}\) (?P<when>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d|\d\d/\d\d \d\d:\d\d:\d\d)\S* (?P<words>\S.*?)\s*$"
)
_BEGUN, _EVICTED, _TERMINATED, _ABORTED, _HELD, _RELEASED = "001", "004", "005", "009", "012", "013"
_TELLING = (_BEGUN, _EVICTED, _TERMINATED, _ABORTED, _HELD, _RELEASED)
_MEMORY = re.compile(r"(?i)\bmemory\b.*\b(?:limit|exceed|over)|\b(?:over|exceed\w*)\b.*\bmemory\b|RequestMemory")
_TIME = re.compile(r"(?i)exceeded (?:the )?(?:allowed|maximum) (?:job|execute|run)\w* ?(?:duration|time)|wall ?(?:clock )?time.*(?:exceed|limit)")
_BY_USER = re.compile(r"(?i)via condor_(?:rm|hold)\b|by (?:the )?user\b")
_RESULT = re.compile(r"\(\d\) (?:Normal termination \(return value (?P<code>\d{1,9})\)|Abnormal termination \(signal (?P<signal>\d{1,3})\))")


@block(
    "condor-log",
    mark=("Job submitted from host: <", "Job executing on host: "),
    head=r"^00[01] \(\d+\.\d+\.\d+\) [\d/-]+ [\d:.]+ $",
    most=200_000,
    whole=True,
)
def user_log(found: Block) -> Iterator[Row]:
    """Give the end of each job of the log, from its last event (group: the cluster's id); none where it ended well or still runs."""
    last: dict[str, tuple[str, int, str, list[tuple[int, str]], str]] = {}
    seen: dict[str, int] = {}
    inside: list[tuple[int, str]] = []
    first = True
    for number, text in found.lines():
        event = _EVENT.match(found.before + found.first if first else text)
        first = False
        if event is not None:
            inside = []
            seen.setdefault(event["id"], number)
            if event["what"] in _TELLING:
                last[event["id"]] = (event["what"], number, event["words"], inside, event["when"])
        elif text.strip():
            inside.append((number, text.strip()))
    for job, line in seen.items():
        yield listed(job, line)
    for job, (what, line, words, details, when) in last.items():
        row = _ended(what, line, words, details)
        if row is None:
            continue
        ns = iso_ns(pa.array([when]))[0].as_py()
        yield ended(job=job, **row, **({} if ns is None else {"start_ns": ns, "clock": "accounting"}))


def _ended(what: str, line: int, words: str, details: list[tuple[int, str]]) -> Row | None:
    told = " ".join(text for _, text in details)
    text = f"{words} {details[0][1] if details else ''}".strip()
    if what == _EVICTED:
        return {"name": "batch-preempted", "line": line, "text": words}
    if what == _TERMINATED:
        result = _RESULT.search(told)
        code = None if result is None else -float(result["signal"]) if result["signal"] else float(result["code"])
        return None if not code else {"name": "batch-failed", "value": code, "line": line, "text": text}
    if what not in (_ABORTED, _HELD):
        return None
    if _MEMORY.search(told):
        name = "batch-memory"
    elif _TIME.search(told):
        name = "batch-time-limit"
    elif _BY_USER.search(told):
        name = "batch-cancelled"
    else:
        name = "batch-failed" if what == _HELD else "batch-cancelled"  # what is removed by nobody is by a rule of the pool
    return {"name": name, "line": line, "text": text}
