"""What ssh and pdsh say when a host cannot be reached or refuses, and what pdsh says of a command that failed there.

node7: ssh: connect to host node7 port 22: Connection refused
Host key verification failed.
user@node7: Permission denied (publickey,password).
pdsh@login1: node7: ssh exited with exit code 255
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow.compute as pc

from pipelog.parsing import Records, Rows, lines

_HOST = r"[A-Za-z0-9][\w.-]*"


# ssh: Could not resolve hostname node7: Name or service not known
# kex_exchange_identification: Connection closed by remote host
# client_loop: send disconnect: Broken pipe
# Connection to node7 closed by remote host.
@lines(
    "ssh",
    mark=(
        "ssh: connect to host ",
        "ssh: Could not resolve hostname ",
        "Host key verification failed",
        "Permission denied (",
        "REMOTE HOST IDENTIFICATION HAS CHANGED",
        "_exchange_identification: ",
        "client_loop: send disconnect: ",
        "packet_write_wait: Connection to ",
        " closed by remote host",
        " not responding.",
        "Connection closed by ",
        "Connection reset by ",
        "Too many authentication failures",
        "pdsh@",
    ),
    pattern=(
        rf"^(?:(?P<said>{_HOST}): )?(?:ssh: connect to host (?P<connect>\S+) port \d+: \S|ssh: Could not resolve hostname (?P<resolve>[^\s:]+): \S|Host key verification failed"
        rf"|(?:{_HOST}@(?P<refused>[\w.-]+): )?Permission denied \((?:publickey|password|gssapi|hostbased|keyboard)|@ +WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED"
        r"|(?:kex|ssh)_exchange_identification: |client_loop: send disconnect: |packet_write_wait: Connection to (?P<written>\S+) port \d+: "
        r"|Connection to (?P<closed>\S+) closed by remote host|Timeout, server (?P<silent>\S+) not responding\.|Connection (?:closed|reset) by (?:\w+ user \S+ )?(?P<peer>\S+) port \d+"
        r"|Received disconnect from (?P<left>\S+) port \d+.*Too many authentication failures"
        rf"|pdsh@{_HOST}: (?P<pdsh>{_HOST}): (?:ssh exited with exit code (?P<code>\d{{1,9}})|connect: |mcmd: |rcmd: |command timeout)|pdsh@{_HOST}: (?:no remote hosts|module|rcmd))"
    ),
)
def ssh(found: Records) -> Iterator[Rows]:
    """Give a host (where named) that ssh did not reach or that refused; of pdsh's exit codes (value) 255 is ssh's own, others are the command's."""
    host = pc.coalesce(*(found[name] for name in ("connect", "resolve", "refused", "written", "closed", "silent", "peer", "left", "pdsh")))
    yield found.rows("error", "ssh", host=pc.coalesce(host, found["said"], found.columns["host"]), value=found.float("code"), text=found["line"])
