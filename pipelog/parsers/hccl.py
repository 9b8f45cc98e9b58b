"""Ascend's collective library: the error of a call that waited in vain for another NPU.

    EI0002: [PID: 4312] 2024-03-05-15:20:08.123.456 The wait execution of the Notify register times out. Reason: The Notify register has not received the
    Notify record from remote rank: [5]. base information: […]. … group information: [group:[group_name_7], …, rankSize[8], rankId[1 5]]

The exception of the process that waited stands in a traceback of its own (`ACL stream synchronize failed, error code:507048`).
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow.compute as pc

from pipelog.parsing import Records, Rows, lines

_MOST_CHARACTERS = 2000


@lines(
    "hccl-notify",
    mark="The Notify register has not received the Notify record from remote rank",
    pattern=r"^(?:\S.*[\] ])?The wait execution of the Notify register times out\. .*Notify record from remote rank:? ?\[(?P<peer>\d{1,9})\]",
)
def notify(found: Records) -> Iterator[Rows]:
    """Give the rank that was waited for (peer), as it counts in the group that the text names."""
    yield found.rows("error", "hccl-notify", peer=found.int("peer"), text=pc.utf8_slice_codeunits(found["line"], 0, _MOST_CHARACTERS))
