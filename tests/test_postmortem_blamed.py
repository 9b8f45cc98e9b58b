"""A host that many others name: accused is the host, not those who complain; and where none is."""

from __future__ import annotations

import pytest

from pipelog.postmortem.deaths import Death
from tests.telling import read

MAP = ", ".join(f"ProcessCoord(pipe={s}, data={d}): {2 * s + d}" for s in range(4) for d in range(2))
HOSTS = {f"node-{n}": [0, 1] for n in range(4)}
GIVEN = {f"node-{n}": [2 * n, 2 * n + 1] for n in range(4)}
LAUNCHED = [
    f"[2025-05-28 00:30:00,019] [INFO] [launch.py:145:main] WORLD INFO DICT: {HOSTS}",
    "[2025-05-28 00:30:00,020] [INFO] [launch.py:151:main] nnodes=4, num_local_procs=2, node_rank=0",
    f"[2025-05-28 00:30:00,027] [INFO] [launch.py:162:main] global_rank_mapping=defaultdict(<class 'list'>, {GIVEN})",
    "[2025-05-28 00:30:00,037] [INFO] [launch.py:163:main] dist_world_size=8",
    f"Using topology: {{{MAP}}}",
]
TABLE = ["127.0.0.1 localhost", *(f"10.20.0.{4 + n} node-{n} node-{n}-ib" for n in range(4))]
CODE = "[2025-05-28 00:55:28,235] [ERROR] [launch.py:325:sigkill_handler] ['/usr/bin/python', '-u', 'train.py', '--local_rank=1'] exits with return code = -6"


def retries(host: int, peer: str) -> str:
    said = f"NET/IB : Got completion from peer {peer}<45001> with status=12 opcode=1 len=0 vendor err 129 (Send) localGid .. remoteGids.."
    return f"node-{host}:90{host}:2001 [1] transport/net_ib.cc:1295 NCCL WARN {said}"


def death(*lines: str, table: list[str] = TABLE) -> Death:
    found: Death = read({"train.log": [*LAUNCHED, *lines, CODE], "hosts.txt": table})["deaths"][-1]
    return found


def test_the_host_that_all_others_name_is_accused_and_nobody_knows_why() -> None:
    found = death(*(retries(n, "10.20.0.6") for n in (0, 1, 3)))
    assert (found.hosts, found.stages, found.ranks, found.known) == (("node-2",), (2,), (), False)
    assert found.title.startswith("node-2 (ranks 4 and 5, stage 2) is no longer reached over InfiniBand")
    assert "node-0, node-1 and node-3 name its address 10.20.0.6" in found.title
    assert found.missing[0].startswith("why: the kernel log of node-2")


def test_an_address_that_nobody_knows_is_named_as_such() -> None:
    found = death(*(retries(n, "10.99.0.9") for n in (0, 1, 3)))
    assert (found.hosts, found.stages, found.known) == ((), (), False)
    assert found.title.startswith("The host at 10.99.0.9")


@pytest.mark.parametrize(
    "complaints",
    [
        [(0, "10.20.0.6")],  # one host that cannot reach another may be at fault itself
        [(0, "10.20.0.6"), (1, "10.20.0.6"), (2, "10.20.0.4")],  # the accused complains, too
        [(0, "10.20.0.6"), (1, "10.20.0.7")],
    ],
)
def test_complaints_that_accuse_nobody(complaints: list[tuple[int, str]]) -> None:
    found = death(*(retries(host, peer) for host, peer in complaints))
    assert (found.kind, set(found.hosts)) == ("ib-retry-exceeded", {f"node-{host}" for host, _ in complaints})


def test_an_address_of_a_bridge_is_that_of_the_host_which_gives_it_out() -> None:
    refused = [
        f"node-{n}:90{n}:2001 [0] misc/socket.cc:484 NCCL WARN socketStartConnect: Connect to 172.17.0.1<5021> failed : Connection refused"
        for n in (0, 1)
    ]
    chosen = "node-{n}:95{n}:950 [0] NCCL INFO Bootstrap : Using docker0:172.17.0.1<0>"
    found = death(chosen.format(n=2), *refused)
    assert (found.kind, found.hosts, found.stages, found.known) == ("own-interface", ("node-2",), (2,), True)
    every = death(*(chosen.format(n=n) for n in range(4)), *refused)
    assert every.hosts == ("node-0", "node-1")


def test_two_names_of_one_host_are_no_two_hosts() -> None:
    table = ["127.0.0.1 localhost", "10.20.0.6 gpu-c gpu-c.cluster"]
    found = death(*(retries(n, "10.20.0.6") for n in (0, 1, 3)), table=table)
    assert (found.hosts, found.stages) == (("gpu-c",), ())
