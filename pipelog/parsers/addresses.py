"""Which host has which address: what NCCL takes for a process, what DeepSpeed's launcher takes for the first node, and /etc/hosts.

    node-2:450:450 [0] NCCL INFO Bootstrap : Using docker0:172.17.0.1<0>
    node-2:450:480 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB ib0:10.0.0.1<0>
    [2024-03-05 14:02:10,101] [INFO] [runner.py:555:main] Using IP address of 10.1.1.2 for node node-0
    127.0.0.1 localhost
    10.20.0.6 node-2 node-2-ib

One fact a host and address, `host.address`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from pipelog.parsers._facts import first_of_each
from pipelog.parsing import Block, Records, Row, Rows, block, lines

_NAME = r"[A-Za-z0-9][\w.-]*"
_ADDRESS = r"(?:\d{1,3}\.){3}\d{1,3}|[0-9a-fA-F]*:[0-9a-fA-F:]+"


@lines(
    "host-address",
    mark=("Bootstrap : Using ", "Bootstrap: Using ", "; OOB ", "Using IP address of "),
    pattern=(
        rf"(?P<host>{_NAME}):\d{{1,9}}:\d{{1,9}} (?:\[-?\d{{1,4}}\] )?NCCL INFO (?:Bootstrap ?: Using|NET/\w+ ?: Using .*; OOB) (?:\[\d+\])?[\w.-]+:(?P<address>{_ADDRESS})<\d+>"
        rf"|Using IP address of (?P<first>{_ADDRESS}) for node (?P<node>{_NAME})"
    ),
)
def address(found: Records) -> Iterator[Rows]:
    """Give the address of a host, once however many of its processes say it."""
    for host, told in (("host", "address"), ("node", "first")):
        each = first_of_each(found.where(found.has(told)), host, told)
        yield each.rows("fact", "host.address", host=each[host], text=each[told])


_ENTRY = re.compile(rf"^\s*(?P<address>{_ADDRESS})\s+(?P<names>{_NAME}(?:\s+{_NAME})*)\s*(?:#.*)?$")
_LOCAL = ("127.", "::1", "fe00:", "ff00:", "ff02:", "0.0.0.0")  # noqa: S104


@block(
    "etc-hosts",
    mark=("127.0.0.1 localhost", "127.0.0.1\tlocalhost", "127.0.0.1   localhost", "127.0.0.1       localhost"),
    head=r"^$",
    most=5000,
    whole=True,
)
def hosts(found: Block) -> Iterator[Row]:
    """Give the addresses of a table of hosts, one row a name, from the line of the local one on."""
    following = found.lines()
    next(following)
    for number, text in following:
        entry = _ENTRY.match(text)
        if entry is None and text.strip() and not text.lstrip().startswith("#"):
            break
        if entry is not None and not entry["address"].startswith(_LOCAL):
            for name in entry["names"].split():
                yield {"kind": "fact", "name": "host.address", "host": name, "text": entry["address"], "line": number}
