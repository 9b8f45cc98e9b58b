"""What the kernel says of a network port around its loss: a cable that was pulled, a link that came back."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pandas as pd

from pipelog._text import seconds
from pipelog.findings import Evidence

_DEVICE = re.compile(r"mlx5_core (?P<pci>[0-9a-f:.]+?):? ")
_UNPLUGGED = "Cable unplugged"
_NEAR_NS = 60 * 10**9
"""A cable that was pulled takes its link down at once."""


def around_the_loss(roles: pd.DataFrame, first: pd.Series) -> tuple[str, tuple[Evidence, ...]]:
    """Words for the title (`; its cable was unplugged; the link was up again 23.0 s later`) and the lines, of the same device in the same file as *first*."""
    device = _DEVICE.search(first["text"])
    if first["error"] != "ib-port" or device is None or pd.isna(first["at_ns"]):
        return "", ()
    same = roles[(roles["name"] == "kernel-port") & (roles["file"] == first["file"]) & roles["at_ns"].notna()]
    same = same[same["text"].str.extract(_DEVICE.pattern)["pci"] == device["pci"]]
    said = list(_said(same, int(first["at_ns"])))
    return "".join(words for words, _ in said), tuple(line for _, line in said)


def _said(rows: pd.DataFrame, at: int) -> Iterator[tuple[str, Evidence]]:
    pulled = rows["text"].str.contains(_UNPLUGGED, regex=False).astype(bool)
    for row in rows[pulled & (rows["at_ns"] <= at) & (rows["at_ns"] >= at - _NEAR_NS)].tail(1).to_dict("records"):
        yield "; its cable was unplugged", Evidence(str(row["file"]), int(row["line"]), None)
    for row in rows[~pulled & (rows["at_ns"] > at)].head(1).to_dict("records"):
        yield f"; the link was up again {seconds(int(row['at_ns']) - at)} later", Evidence(str(row["file"]), int(row["line"]), None)
