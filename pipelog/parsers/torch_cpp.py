"""Lines of torch's C++ log at the levels W, E and F, and C++ exceptions that nobody catches.

    [rank5]:[E1218 20:27:21.426415540 ProcessGroupNCCL.cpp:629] [Rank 5] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=17, OpType=RECV, NumelIn=3145728, NumelOut=3145728, Timeout(ms)=600000) ran for 600080 milliseconds before timing out.
    [rank1]:[E ProcessGroupNCCL.cpp:1537] [PG 0 Rank 1] Timeout at NCCL work: 8127, last enqueued NCCL work: 8129, last completed NCCL work: 8126.
    [E ProcessGroupNCCL.cpp:475] [Rank 5] Watchdog caught collective operation timeout: WorkNCCL(OpType=ALLREDUCE, Timeout(ms)=1800000) ran for 1803308 milliseconds before timing out.
    E0228 17:37:21.488888  9191 ProcessGroupNCCL.cpp:1405] [PG 3 Rank 4] NCCL watchdog thread terminated with exception: CUDA error: uncorrectable ECC error encountered

The rank outside is global (torch 2.2+), the one inside counts in its process group: it is taken for the global one in the default group, and
in lines that have neither group nor time (up to torch 2.1). Times (2.4+) have month and day, and no year: they get 1970. The watchdog of
2.5+ does not say its group; it is taken from what the same rank says of the same work. A dump signal `from this local rank` names itself.
`monitoredBarrier` of gloo accuses ranks as the desync report does, and gives the same rows.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pipelog.parsers._facts import joined
from pipelog.parsers._stamps import YEARLESS, iso_ns
from pipelog.parsers._traceback_lines import GOES_ON, MOST_TEXT
from pipelog.parsing import Block, Records, Row, Rows, block, lines

MOST_CHARACTERS = 2000

_PREFIX = (
    r"^ ?(?:[^\s\"'`][^\"'`]*?)??(?:\[rank(?P<outer>\d{1,9})\]:)?(?:\[(?P<level>[EWF])(?:(?P<day>\d{3,4}) (?P<time>\d\d:\d\d:\d\d\.\d{1,9}))? "
    r"|\b(?P<glog>[EWF])(?P<glog_day>\d{4}) (?P<glog_time>\d\d:\d\d:\d\d\.\d{6}) +\d{1,9} )(?P<where>[\w./-]+\.(?:cpp|hpp|h|cu|cc)):\d{1,9}\] (?P<words>.*)$"
)
_WHO = r"^\s*(?:\[PG (?:ID \d+ PG GUID )?(?P<group>[^\]]*?) Rank (?P<inner>\d{1,9})\]|\[Rank (?P<alone>\d{1,9})\])"
_DEFAULT = r"^0$|default_pg"

_WATCHDOG = (
    r"^\s*(?:\[[^\]]*\] *)*Watchdog caught collective operation timeout: \w+\((?:SeqNum=(?P<seq>\d{1,15}), )?(?:OpType=(?P<op>\w+))?"
    r".*?(?: ran for (?P<ms>\d{1,15}) milliseconds.*)?$"
)
_STATUS = r"[Ll]ast enqueued (?:\w*CCL )?work: (?P<enqueued>-?\d{1,15}), last completed (?:\w*CCL )?work: (?P<completed>-?\d{1,15})"
_WORK = r"(?:SeqNum=|work sequence id: |detected by watchdog at work: |Timeout at \w*CCL work: )(?P<seq>\d{1,15})"
_DUMP = r"Received a dump signal|Received a timeout signal|Received a global timeout|Observed flight recorder dump signal|First PG on this rank to signal dumping"
_DUMP_BY = r"from (?: *rank (?P<peer>\d{1,9})|(?P<own>this local rank))"
_HEARTBEAT = r"Heartbeat monitor timed out|watchdog got stuck|no heartbeat of its watchdog|watchdog (?:thread )?hang|Could not acquire GIL"
_ABORT = (
    r"watchdog thread terminated with|taking the entire process down|Some \w+ operations have failed or timed out|has aborted its \w+ communicators"
    r"|communicators? (?:was|were) aborted|raised the following async exception|communicator encountered error|watchdog detected a collective timeout"
    r"|aborting appropriate communicators|Terminating the process after attempting to dump|aborting the NCCL communicator"
)
_BARRIER = r"(?:\bRanks? (?P<failed>\d+(?:, \d+)*) failed to pass monitoredBarrier|waiting for send/recv from rank (?P<silent>\d+))"
_CLIENTS = r"waiting for clients\. (?P<came>\d{1,9})/\d+ clients joined"
_SOCKET = (
    r"failed to bind|failed to listen|socket has timed out|errno: (?:98|111|113) |EADDRINUSE|Connection refused|No route to host|cannot be retrieved"
    r"|failed to connect to any network address|TCP client failed to connect|connectFullMesh failed"
)


@lines("torch-cpp", mark=(".cpp:", ".hpp:", "Impl.h:", "Utils.h:"), pattern=_PREFIX)
def log(found: Records) -> Iterator[Rows]:
    """Give watchdogs, aborts, heartbeats, dump signals, sockets, and all other errors and warnings of torch's C++ log."""
    found = _known(found)
    words, warning = found.groups["words"], pc.equal(found.groups["level"], "W")
    text = pc.utf8_slice_codeunits(found["line"], 0, MOST_CHARACTERS)
    left = pa.repeat(pa.scalar(True), len(found))
    watchdog = _matched(found, _WATCHDOG)
    yield from _watchdogs(found, watchdog, text)
    status = _matched(found, _STATUS)
    has = pc.is_valid(status)
    for name, group in (("nccl-enqueued", "enqueued"), ("nccl-completed", "completed")):
        value = pc.cast(_group(status, group), pa.float64())
        yield from _some(found, has, name, text, value=value, group=found["group"])
    left = pc.and_not(left, pc.is_valid(watchdog))
    barrier = _matched(found, _BARRIER)
    yield from _accused(found, barrier)
    left = pc.and_not(left, pc.is_valid(barrier))
    clients = _matched(found, _CLIENTS)
    yield from _some(found, pc.and_(left, pc.is_valid(clients)), "store-wait", text, value=pc.cast(_group(clients, "came"), pa.float64()))
    left = pc.and_not(left, pc.is_valid(clients))
    peer = _peer(found)
    for name, pattern, more in (
        ("nccl-dump-signal", _DUMP, {"peer": peer}),
        ("nccl-heartbeat", _HEARTBEAT, {}),
        ("nccl-abort", _ABORT, {}),
        ("socket", _SOCKET, {}),
    ):
        mask = pc.and_(left, pc.match_substring_regex(words, pattern))
        yield from _some(found, mask, name, text, group=found["group"], **more)
        left = pc.and_not(left, mask)
    left = pc.and_not(left, has)
    yield from _some(found, pc.and_(left, warning), "torch-warning", text, group=found["group"])
    yield from _some(found, pc.and_not(left, warning), "torch-log", text, group=found["group"])


def _known(found: Records) -> Records:
    """The records with rank, time, level and group as their prefixes say."""
    groups, columns = dict(found.groups), dict(found.columns)
    groups["level"] = pc.if_else(found.has("level"), groups["level"], groups["glog"])
    day, time = (pc.coalesce(found[name], found[f"glog_{name}"]) for name in ("day", "time"))
    padded = pc.utf8_lpad(day, 4, "0")
    stamp = joined("1970-", pc.utf8_slice_codeunits(padded, 0, 2), "-", pc.utf8_slice_codeunits(padded, 2, 4), " ", time)
    when = iso_ns(pc.if_else(pc.equal(padded, "0229"), pa.scalar(None, pa.string()), stamp))
    columns["start_ns"] = pc.coalesce(when, columns["start_ns"])
    columns["clock"] = pc.if_else(pc.is_valid(when), pa.scalar(YEARLESS), columns["clock"])
    who = pc.extract_regex(groups["words"], _WHO)
    group, inner, alone = (_group(who, name) for name in ("group", "inner", "alone"))
    in_default = pc.if_else(pc.match_substring_regex(group, _DEFAULT), inner, pa.scalar(None, pa.string()))
    old = pc.if_else(pc.is_null(time), alone, pa.scalar(None, pa.string()))
    guess = pc.cast(pc.coalesce(in_default, old), pa.int32())
    columns["rank"] = pc.coalesce(pc.cast(found["outer"], pa.int32()), columns["rank"], guess)
    groups["group"] = pc.fill_null(group, "")
    return Records(groups, columns, found.skipped)


def _matched(found: Records, pattern: str) -> pa.Array:
    return pc.extract_regex(found.groups["words"], pattern)


def _group(match: pa.Array, name: str) -> pa.Array:
    """A group of a match, null where it took no part."""
    values = match.field(name)
    return pc.if_else(pc.and_(pc.is_valid(match), pc.not_equal(values, "")), values, pa.scalar(None, pa.string()))


def _some(found: Records, mask: pa.Array, name: str, text: pa.Array, **columns: pa.Array) -> Iterator[Rows]:
    """Rows of the records where *mask* is true."""
    keep = pc.fill_null(mask, False)
    if pc.any(keep).as_py():
        yield found.where(keep).rows("error", name, text=text.filter(keep), **{k: v.filter(keep) for k, v in columns.items()})


def _watchdogs(found: Records, match: pa.Array, text: pa.Array) -> Iterator[Rows]:
    hit = pc.is_valid(match)
    if not pc.any(hit).as_py():
        return
    seq = pc.cast(_group(match, "seq"), pa.float64())
    ran = pc.multiply(pc.cast(_group(match, "ms"), pa.int64()), 1_000_000)
    group = pc.coalesce(found["group"], pa.array(_groups_of_work(found, seq), pa.string()))
    yield from _some(found, hit, "nccl-watchdog", text, value=seq, stream=_group(match, "op"), dur_ns=ran, group=group)


def _groups_of_work(found: Records, seq: pa.Array) -> list[str | None]:
    """For each record the group that the same rank names with the same work; null where it names several."""
    said: dict[tuple[Any, float], str | None] = {}
    work = pc.cast(_group(_matched(found, _WORK), "seq"), pa.float64()).to_pylist()
    ranks = found.columns["rank"].to_pylist()
    for rank, number, group in zip(ranks, work, found["group"].to_pylist(), strict=True):
        if group is not None and number is not None and rank is not None:
            said[rank, number] = group if said.setdefault((rank, number), group) == group else None
    return [said.get((rank, number)) for rank, number in zip(ranks, seq.to_pylist(), strict=True)]


def _peer(found: Records) -> pa.Array:
    by = _matched(found, _DUMP_BY)
    named = pc.cast(_group(by, "peer"), pa.int32())
    return pc.coalesce(named, pc.if_else(pc.is_valid(_group(by, "own")), found.columns["rank"], pa.scalar(None, pa.int32())))


def _accused(found: Records, match: pa.Array) -> Iterator[Rows]:
    hit = pc.is_valid(match)
    if not pc.any(hit).as_py():
        return
    accused = found.where(hit)
    accused.groups["accused"] = pc.coalesce(_group(match, "failed"), _group(match, "silent")).filter(hit)
    each = accused.split("accused", ", ", r"^(?P<rank>\d{1,9})$")
    yield each.rows("error", "nccl-desync", rank=each.int("rank"), text=pc.utf8_slice_codeunits(each["line"], 0, MOST_CHARACTERS))


_WHAT = "  what():  "
_RANK = re.compile(r"^\[PG (?:ID \d+ PG GUID )?(?:0|[^\]]*default_pg[^\]]*) Rank (?P<rank>\d{1,9})\]|^\[Rank (?P<old>\d{1,9})\] NCCL watchdog")
_MOST_OTHERS = 60
"""Lines of the same writer after which no `what():` is awaited any more."""


@block(
    "cpp-terminate", mark=("terminate called after", "terminate called without an active", "terminate called recursively"), most=20_000, whole=True
)
def terminate(found: Block) -> Iterator[Row]:
    """Give an uncaught C++ exception, with its `what():` lines in the text; those of several ranks are given out in order.

    terminate called after throwing an instance of 'c10::DistBackendError'
      what():  [PG ID 0 PG GUID 0(default_pg) Rank 5] Process group watchdog thread terminated with exception: [Rank 5] Watchdog caught …
    """
    following = found.lines()
    next(following)
    for line, parts in _terminations(itertools.chain([(found.line, found.first)], following)):
        row: Row = {"kind": "error", "name": "cpp-terminate", "line": line, "text": "\n".join(parts)[:MOST_CHARACTERS]}
        match = _RANK.match(parts[1].removeprefix(_WHAT)) if len(parts) > 1 and found.rank is None else None
        yield row | ({"rank": int(match["rank"] or match["old"])} if match else {})


def _terminations(given: Iterator[tuple[int, str]]) -> list[tuple[int, list[str]]]:
    """(line, lines of its text) of each `terminate called`; the line is that of the `what():` where there is one."""
    begun: list[tuple[int, list[str]]] = []
    done: list[tuple[int, list[str]]] = []
    others = 0
    for number, text in given:
        others += 1
        _, *calls = text.split("terminate called ")
        for words in calls:
            awaits = words.startswith("after") and "what():" not in words
            (begun if awaits else done).append((number, [f"terminate called {words.strip()}"]))
        said = text.split("what():")[1:] if not calls else []
        done.extend((number, [*begun.pop(0)[1], f"{_WHAT}{words.strip()}"]) for words in said[: len(begun)])
        message = done[-1][1] if done and len(done[-1][1]) > 1 else None
        if not calls and not said and message is not None and (GOES_ON.match(text) or message[-1] == "Last error:"):
            message += [text.rstrip()] if len(message) <= MOST_TEXT + 1 else []
            others = 0
        elif calls or said:
            others = 0
        elif others > (_MOST_OTHERS if begun else 4):
            break
    return sorted([*done, *begun])
