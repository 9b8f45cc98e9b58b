"""HPE's PALS (mpiexec of Cray systems): who died, how, and which node's daemon is gone; what PBS says of the state of nodes.

    x4213c4s7b0n0.hsn.cm.example.org: rank 77 died from signal 9
    x4006c0s0b0n0.hsn.cm.example.org: rank 5 exited with code 1
    x1921c1s0b0n0: shepherd died from signal 9

PALS starts a shepherd on each node, which starts the ranks there: where it dies, mostly the node has. Once a rank is gone, PALS ends the
others with signal 15 and says so of each. `rank 5 exited with code 139` is a shell's word for signal 11.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

import pyarrow.compute as pc

from pipelog.parsers._facts import fact
from pipelog.parsers.deepspeed_launcher import arguments
from pipelog.parsing import Block, Records, Row, Rows, block, lines

_HOST = r"[A-Za-z0-9][A-Za-z0-9_.-]*"


@lines(
    "pals-died",
    mark=(" died from signal ", " exited with code "),
    pattern=(
        rf"^(?P<words>(?:(?P<host>{_HOST}): )?(?:rank (?P<rank>\d{{1,9}})|(?P<shepherd>shepherd)) "
        r"(?:died from signal (?P<signal>\d{1,3})(?: and dumped core)?|exited with code (?P<code>\d{1,3})))\s*$"
    ),
)
def died(found: Records) -> Iterator[Rows]:
    """Give how a rank ended on a host: value is the exit code, negative for a signal; and a node's shepherd that died of a signal."""
    host = pc.coalesce(found["host"], found.columns["host"])
    found.groups["where"] = pc.fill_null(host, "")
    found = found.where(pc.is_valid(host))
    ranks = found.where(found.has("rank"))
    code = pc.coalesce(pc.negate(ranks.float("signal")), ranks.float("code"))
    yield ranks.rows("end", "child-failed", value=code, rank=ranks.int("rank"), host=ranks["where"], text=ranks["words"])
    nodes = found.where(pc.and_(found.has("shepherd"), found.has("signal")))
    yield nodes.rows("end", "batch-node-failure", host=nodes["where"], text=nodes["words"])


_MOST_RANKS = 1_000_000
_MPIEXEC = re.compile(r"(?:^|\s)(?:/\S*/)?(?:mpiexec|mpirun)(?:\.hydra)? .*$")


# mpiexec -n 48 --ppn 12 --hosts node-1,node-2,node-3,node-4 --cpu-bind none python3 train.py
# mpiexec --verbose --envall -n 96 -ppn 12 --hostfile /var/spool/pbs/aux/4417823 python3 train.py
@block("mpiexec-command", mark=(" -ppn ", " --ppn "), most=1)
def command(found: Block) -> Iterator[Row]:
    """Give the number of ranks of a command and its arguments, and where each rank is: hosts are filled one after the other, in the order in which they are
    listed.
    """
    match = _MPIEXEC.search(found.head + found.first)
    if match is None or "] cmd = " in found.head:  # DeepSpeed's launcher, which has a parser of its own
        return
    options = itertools.takewhile(lambda pair: not pair[0].rpartition("/")[2].startswith("python"), itertools.pairwise(match.group().split()))
    said = {name.lstrip("-"): value for name, value in options if name.startswith("-")}
    each, count = said.get("ppn", ""), next((said[name] for name in ("n", "np") if name in said), "")
    hosts = [host for host in said.get("hosts", said.get("host", "")).split(",") if re.fullmatch(_HOST, host)]
    if not re.fullmatch(r"\d{1,4}", each) or not re.fullmatch(r"\d{1,7}", count) or not 0 < int(count) <= _MOST_RANKS:
        return
    yield fact("topology.world_size", count)
    yield from arguments(match.group().split(), found.line)
    if int(each) * len(hosts) >= int(count):
        for rank in range(int(count)):
            yield {"kind": "place", "name": "launcher", "rank": rank, "host": hosts[rank // int(each)], "label": f"local {rank % int(each)}"}


_STATE = re.compile(r"^\s+state = (?P<state>[\w,<>*-]+)\s*$")


# x1921c1s0b0n0
#      Mom = x1921c1s0b0n0.hsn.cm.example.org
#      state = down,offline
@block("pbs-node-state", mark="Mom = ", head=r"^\s+$", most=12)
def node_state(found: Block) -> Iterator[Row]:
    """Give a node that PBS has as down, as `pbsnodes` prints it, under the name of its daemon's host."""
    host = found.first.removeprefix("Mom = ").strip().partition(".")[0]
    for number, text in itertools.islice(found.lines(), 1, None):
        if not text.strip():
            return
        if (state := _STATE.match(text)) and "down" in state["state"].split(","):
            yield {"kind": "error", "name": "node-state", "host": host, "line": number, "text": text.strip()}
