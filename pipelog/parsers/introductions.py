"""Lines in which a process says who it is, in whatever words a script has for it.

    [rank 5] pid 4415 host c1-n17 device cuda:5 ready
    [rank 4] started on ib-b
    [mesh] rank=3 dp=0 pp=1 tp=1
    2025-06-02 19:10:00.083 | INFO | trainer.setup:init_dist:48 - rank=9 host=cw-212 local_rank=1 pp=2 dp=1
    rank: 3, hostname: gpu-07, pid: 88123

No framework prints these: what makes one is the number of one rank, and beside it the name of its host, its process, its local rank or its place in the
mesh. A line that speaks of trouble or of two ranks is none.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from pipelog.parsers._facts import joined
from pipelog.parsing import Records, Rows, lines

_IS = r"(?:[ =:#]{1,3}|\" ?: ?)"
_AXES = {
    "stage": r"(?i)\b(?:pp|pipe(?:line)?(?:[ _-](?:model[ _-])?parallel)?|stage)(?:[ _-](?:rank|id|idx|index|stage))?" + _IS,
    "replica": r"(?i)\b(?:dp|data(?:[ _-]parallel)?)(?:[ _-](?:rank|id|idx|index))?" + _IS,
    "tensor": r"(?i)\b(?:tp|tensor(?:[ _-](?:model[ _-])?parallel)?)(?:[ _-](?:rank|id|idx|index))?" + _IS,
}
_LOCAL = r"(?i)\blocal[ _-]?rank" + _IS
_PID = r"(?i)\bpid" + _IS
_NAME = r"[A-Za-z0-9][A-Za-z0-9_-]*(?:\.[A-Za-z0-9_-]+)*"
_HOST = r"(?i)\b(?:host[ _-]?name|host|node[ _-]?name|node|machine)(?:[=:]{1,2} ?| |\" ?: ?)['\"]?(?P<v>" + _NAME + r")"
_ON = r"\b(?:on|at) (?:(?:host|node) )?(?P<v>[A-Za-z][\w.-]*[\d-][\w.-]*)"
_BEFORE = r"^(?P<v>[A-Za-z][\w.-]*[\d-][\w.-]*): (?i:global[ _-]?)?(?i:rank)[ =:#]{1,3}\d"
_NO_HOST = r"(?i)^(?:\d{1,9}|rank|ranks|id|is|name|size|count|local|world|not|with|and|of|for|in|on)$"
_NO_PLACE = r"(?i)^(?:cuda|gpu|device|cpu|port|step|iter\w*|stage|rank|epoch|node|worker|line|attempt)_?\d+$"
"""What something may run on besides a host."""
_OTHER_RANKS = (
    r"(?i)\b(?:local|node|group|machine|dp|tp|pp|mp|cp|ep|sp|data|pipe\w*|tensor|model|expert|sequence|context)[ _-](?:(?:model[ _-])?parallel[ _-])?rank"
    + _IS
    + r"\d+"
)
_TWO = r"(?i)\brank[ =:#]{0,3}\d+\b.*\brank[ =:#]{1,3}\d"
_FIRST = r"(?i)^\W{0,3}(?:global[ _-]?)?rank[ =:#]{1,3}\d"
_TROUBLE = (
    r"(?i)error|fail|time(?:d )?out|lost|abort|exit|kill|wait|peer|remote|from rank|to rank|between|except|watchdog|nccl(?:[^_]|$)|died|dead|crash|terminat|traceback|caught|"
    r"dump|slow|stuck|missing|unreach|refus|clos|signal|warn|last |bad |broken|xid|busid|layers="
)


@lines(
    "introductions",
    # not `rank `, which NCCL writes in hundreds of thousands of lines
    mark=("[rank ", "rank=", "rank: ", " pid ", " pid=", " pid: ", " host ", "host=", "hostname", " running on ", " started on ", "local_rank "),
    # where a log has its ranks in front of every line, they have been taken away
    pattern=r"(?i)\b(?:global[ _-]?)?rank[ =:#]{1,3}\d{1,6}\b|\[rank\d{1,6}\]:? .*\bpid[ =:]{1,3}\d|^\W{0,3}(?:pid|host(?:[ _-]?name)?|local[ _-]?rank|(?:started|running) on)(?:[ =:]|$)",
    once=True,
)
def introduction(found: Records) -> Iterator[Rows]:
    """Give the place of a rank as it tells it (host, local rank, stage, replica, tensor-parallel rank), and its process."""
    line = found["line"]
    calm = pc.invert(pc.or_(pc.match_substring_regex(line, _TROUBLE), pc.match_substring_regex(_without_others(line), _TWO)))
    found = found.where(calm)
    line = found["line"]
    rank = pc.coalesce(
        _number(_without_others(line), r"(?i)\b(?:global[ _-]?)?rank[ =:#]{1,3}"),
        _number(line, r"\[rank"),
        pc.cast(found.columns["rank"], pa.int64()),
    )
    local, pid = _number(line, _LOCAL), _number(line, _PID)
    # behind Ray's prefix, which names the process, it speaks of itself where the rank is the first that it says, or its local rank is there
    begins = pc.or_(pc.match_substring_regex(line, _FIRST), pc.is_valid(local))
    pid = pc.coalesce(pid, pc.if_else(begins, _number(pc.cast(found.columns["label"], pa.string()), r"^pid "), None))
    axes = {name: _number(line, expression) for name, expression in _AXES.items()}
    host = pc.coalesce(_name(line, _HOST, _NO_HOST), _name(line, _ON, _NO_PLACE), _name(line, _BEFORE, _NO_PLACE))
    # a process speaks of itself where it says its number; a table of all ranks is printed by one, and stands behind its host alone
    own = pc.or_(pc.is_valid(pid), pc.is_valid(local))
    host = pc.coalesce(host, pc.if_else(own, pc.cast(found.columns["host"], pa.string()), None))
    told = pc.is_valid(pid)
    for column in (host, *axes.values()):  # a local rank alone ties it to nothing
        told = pc.or_(told, pc.is_valid(column))
    told = pc.and_(told, pc.is_valid(rank))
    prefixed = pc.cast(found.columns["label"], pa.string())
    prefixed = pc.if_else(pc.starts_with(prefixed, "local "), prefixed, None)
    label = pc.if_else(pc.is_valid(host), pc.coalesce(joined("local ", pc.cast(local, pa.string())), prefixed), None)
    places = found.rows("place", "introduced", rank=rank, host=host, label=label, **{n: pc.cast(c, pa.int32()) for n, c in axes.items()})
    yield places.filter(told)
    yield found.rows("process", "worker", rank=rank, host=host, value=pc.cast(pid, pa.float64())).filter(pc.and_(told, pc.is_valid(pid)))


def _without_others(line: pa.Array) -> pa.Array:
    """The line without ranks that are none of the whole job."""
    return pc.replace_substring_regex(line, _OTHER_RANKS, "")


def _number(line: pa.Array, before: str) -> pa.Array:
    found = pc.struct_field(pc.extract_regex(line, before + r"(?P<v>\d{1,9})\b"), "v")
    return pc.cast(found, pa.int64())


def _name(line: pa.Array, expression: str, none: str) -> pa.Array:
    found = pc.struct_field(pc.extract_regex(line, expression), "v")
    return pc.if_else(pc.match_substring_regex(found, none), None, found)
