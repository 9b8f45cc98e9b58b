"""Ranks that wait for one another at the start, and rendezvous that fail, in the words of torch's Python loggers.

    INFO:torch.distributed.distributed_c10d:Waiting in store based barrier to initialize process group for rank: 4, key: store_based_barrier_key:32 (world_size=8, worker_count=4, timeout=0:00:30)
    I0305 15:20:11.110000 4021 torch/distributed/distributed_c10d.py:1069] Waiting in store based barrier to initialize process group for 10 seconds, rank: 4, key: store_based_barrier_key:1 (world_size=8, num_workers_joined=4, timeout=0:30:00 error=Timed out)
    W0305 15:20:11.110000 4021 torch/distributed/elastic/rendezvous/dynamic_rendezvous.py:1307] The node 'node7_4021_0' has failed to send a keep-alive heartbeat to the rendezvous 'job7' due to an error of type RendezvousTimeoutError.

Sockets have lines in torch's C++ log (torch_cpp.py); what ends in an exception is in tracebacks.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow.compute as pc

from pipelog.parsers._facts import first_of_each
from pipelog.parsers.torch_cpp import MOST_CHARACTERS
from pipelog.parsing import Records, Rows, lines


@lines(
    "store-barrier",
    mark="Waiting in store based barrier",
    pattern=(
        r"^ ?(?:[^\s\"'`][^\"'`]*)?\bWaiting in store based barrier to initialize process group for (?:\d+ seconds, )?rank: (?P<rank>\d{1,9}), key: \S+ "
        r"\(world_size=(?P<world>\d{1,9}), (?:worker_count|num_workers_joined)=(?P<came>\d{1,9}),"
    ),
)
def barrier(found: Records) -> Iterator[Rows]:
    """Give a rank that waits in the store-based barrier, how many came so far (value), and once how many are expected."""
    text = pc.utf8_slice_codeunits(found["line"], 0, MOST_CHARACTERS)
    yield found.rows("error", "store-wait", rank=found.int("rank"), value=found.float("came"), text=text)
    # later barriers are those of groups, which may expect fewer ranks
    size = found.float("world")
    whole = first_of_each(found.where(pc.equal(size, pc.max(size))), "world")
    yield whole.rows("fact", "topology.world_size", value=whole.float("world"), text=whole["world"])


@lines(
    "elastic-rendezvous",
    mark=" the rendezvous '",
    pattern=r"^ ?(?:[^\s\"'`][^\"'`]*)?\bThe node '[^']{1,200}' has failed to [a-z -]{1,60} the rendezvous '[^']{0,200}' due to an error of type \w+",
)
def rendezvous(found: Records) -> Iterator[Rows]:
    """Give a node that loses the rendezvous of torchrun."""
    yield found.rows("error", "socket", text=pc.utf8_slice_codeunits(found["line"], 0, MOST_CHARACTERS))
