"""NCCL's own lines (RCCL's are the same): warnings, which process is which rank, and the ranks that torch's desync report accuses.

    node-2:11200:11390 [0] misc/socket.cc:49 NCCL WARN socketProgress: Connection closed by remote peer node-3<39124>
    [2025-05-20 12:34:56] node-2:11200:11390 [0] transport/net_ib.cc:1237 NCCL WARN NET/IB: Got completion from peer 10.0.0.7<49321> with status=12 opcode=0
    worker-2:17470:17590 [0] NCCL INFO comm 0x5580f01160f0 rank 4 nranks 8 cudaDev 0 busId 07000 - Init COMPLETE
    worker-2:17470:17590 [0] NCCL INFO ncclCommInitRankConfig comm 0x5580f01160f0 rank 4 nranks 8 cudaDev 0 nvmlDev 0 busId 7000 commId 0x2114bc51af4fb978 - Init COMPLETE

Times stand in front of warnings since NCCL 2.26. The INFO lines name the rank in a communicator: which of them has all ranks of the job is
told by `nranks` (column `steps`).
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from pipelog.parsers._facts import first_of_each, joined
from pipelog.parsers._stamps import when
from pipelog.parsers.torch_cpp import MOST_CHARACTERS
from pipelog.parsing import Records, Rows, lines


@lines(
    "nccl-warn",
    mark=" NCCL WARN ",
    pattern=(
        r"^ ?(?:[^\s\"'`][^\"'`]*?)??(?:(?:\[(?P<stamp>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)\] )?(?P<host>[A-Za-z0-9][\w.-]*):(?P<pid>\d{1,9}):\d{1,9} "
        r"(?:\[(?P<device>-?\d{1,4})\] )?(?:[\w./+-]+:\d{1,9} (?:\(\w{1,80}\) )?)?|(?:\[(?P<only>\d{1,4})\] )?[\w./+-]+\.(?:cc|h|cpp|cu):\d{1,9} (?:\(\w{1,80}\) )?)NCCL WARN "
    ),
)
def warn(found: Records) -> Iterator[Rows]:
    """Give a warning with host, process (value) and device."""
    text = pc.utf8_slice_codeunits(found["line"], 0, MOST_CHARACTERS)
    host = pc.coalesce(found["host"], pc.cast(found.columns["host"], "string"))
    device = pc.coalesce(found["device"], found["only"])
    device = joined("gpu ", pc.if_else(pc.equal(device, "-1"), None, device))
    yield found.rows("error", "nccl-warn", value=found.float("pid"), host=host, device=device, text=text, **when(found, iso="stamp"))


# NET/IB : mlx5_2:1 async fatal event: local catastrophic error
# [rank3]: NET/IB : Got completion from peer 10.0.0.7<49321> with status=12 opcode=0 len=0 vendor err 129
@lines(
    "nccl-last-error",
    mark=("async event", "async fatal event", "async error event", "Got completion from peer "),
    pattern=r"^ *NET/\w+ ?: .*(?:async (?:fatal |error )?event|Got completion from peer )",
)
def last_error(found: Records) -> Iterator[Rows]:
    """Give the adapter's own word where it stands below `Last error:`, as torch repeats NCCL's last warning."""
    yield found.rows("error", "nccl-last-error", text=pc.utf8_slice_codeunits(found["line"], 0, MOST_CHARACTERS))


@lines(
    "nccl-rank",
    mark=" nranks ",
    pattern=(
        r"^(?:[^\s\"'].*?)??(?P<host>[A-Za-z0-9][\w.-]*):(?P<pid>\d{1,9}):\d{1,9} (?:\[-?\d{1,4}\] )?NCCL INFO (?:\w+ )?comm 0x[0-9a-f]+ rank (?P<rank>\d{1,9}) "
        r"nranks (?P<size>\d{1,9})(?: cudaDev (?P<device>\d{1,4}))?\b(?:(?: nvmlDev \d{1,4})? busId (?P<bus>[0-9a-f]{1,12})\b)?"
    ),
    once=True,
)
def rank(found: Records) -> Iterator[Rows]:
    """Give the rank of a process (value: pid) in a communicator of so many (steps), once however often it is printed."""
    each = first_of_each(found, "host", "pid", "rank", "size")
    device = joined("gpu ", each["device"])
    bus = pa.array([bus_address(word) for word in each.groups["bus"].to_pylist()], pa.string())
    yield each.rows(
        "process", "nccl", value=each.float("pid"), rank=each.int("rank"), steps=each.int("size"), host=each["host"], device=device, text=bus
    )


def bus_address(word: str) -> str | None:
    """`0000:c3:00` from NCCL's busId, in hexadecimal: domain << 20 | bus << 12 | device << 4 | function (busIdToInt64 in NCCL's src/misc/utils.cc)."""
    if not word:
        return None
    number = int(word, 16)
    return f"{number >> 20:04x}:{number >> 12 & 0xFF:02x}:{number >> 4 & 0xFF:02x}"


# Not all ranks joining collective, sequence number: 31117
# missing ranks: {3}
@lines("flight-recorder-report", mark="missing ranks: {", pattern=r"^\s*missing ranks: \{(?P<ranks>\d{1,9}(?:, \d{1,9})*)\}")
def missing_ranks(found: Records) -> Iterator[Rows]:
    """Give each rank that torchfrtrace, which reads the dumps of flight recorders, finds missing: ranks of the job, whatever the group."""
    each = found.split("ranks", ", ", r"^(?P<rank>\d{1,9})$")
    yield each.rows("error", "nccl-desync", rank=each.int("rank"), text=pc.utf8_slice_codeunits(each["line"], 0, MOST_CHARACTERS))


# missing ranks: {3}
# expected ranks: {2, 3}
@lines("flight-recorder-group", mark="expected ranks: {", pattern=r"^\s*expected ranks: \{(?P<ranks>\d{1,9}(?:, \d{1,9})*)\}")
def expected_ranks(found: Records) -> Iterator[Rows]:
    """Give who had to join the collective of which torchfrtrace has named those who did not, above."""
    yield found.rows("flight_group", "expected", text=found["ranks"])


#   	   - [1, 2] joined but didn't finish collective #2 (count from 1)
#   	     [0] finished collective #1, but didn't join collective #2 (count from 1)
#   	 - To our best knowledge, ranks [3] are the lagging ranks that caused this timeout. They never joined any collectives
@lines(
    "nccl-desync",
    mark=("] joined but didn't finish collective #", ", but didn't join collective #", "] are the lagging ranks that caused this timeout"),
    pattern=(
        r"^\s*(?:- )?(?:To our best knowledge, ranks )?\[(?P<ranks>\d{1,9}(?:, \d{1,9})*)\] "
        r"(?:joined but didn't finish|finished collective #\d+, but didn't join|are the lagging ranks)"
    ),
)
def desync(found: Records) -> Iterator[Rows]:
    """Give each rank that the desync report of the watchdog accuses: of its process group, whose ranks are the job's in the default one."""
    each = found.split("ranks", ", ", r"^(?P<rank>\d{1,9})$")
    yield each.rows("error", "nccl-desync", rank=each.int("rank"), text=pc.utf8_slice_codeunits(each["line"], 0, MOST_CHARACTERS))
