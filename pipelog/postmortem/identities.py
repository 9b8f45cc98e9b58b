"""Who is who: the rank of a process, of a device's bus address, of a local rank on a host, as launchers, NCCL and the ranks themselves tell it."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pandas as pd
import pyarrow as pa

from pipelog.tables import frame, table
from pipelog.tables.topology import Topology

_LISTED = re.compile(r"['\"]([^'\"]+)['\"]: \[([\d, ]*)\]")
"""A host and its devices in the launcher's `WORLD INFO DICT: {'lab-big': [4, 5, 6, 7]}`: the k-th is that of local rank k."""
_LOADERS = re.compile(r"DataLoader worker \(pid(?:\(s\))? (\d{1,9}(?:, \d{1,9})*)\)")
"""Workers of a rank's data loader: the kernel kills them by their own number."""
XID_OF = re.compile(r"\bpid='?(\d{1,9})\b")
"""The process that the kernel names beside a device."""
_BUS = re.compile(r"(?i)^(?:(?P<domain>[0-9a-f]{4,8}):)?(?P<bus>[0-9a-f]{2}):(?P<device>[0-9a-f]{2})(?:\.[0-7])?$")


def bus_of(address: str | None) -> str | None:
    """`0000:c3:00` of `PCI:0000:c3:00`, `00000000:C3:00.0`, `c3:00.0`."""
    match = _BUS.match(address.removeprefix("PCI:")) if isinstance(address, str) else None
    return f"{(match['domain'] or '0')[-4:]:0>4}:{match['bus']}:{match['device']}".lower() if match else None


class Ranked:
    """Ranks by host and key: a process, a bus address. The host is null where there is one, or none is named."""

    __slots__ = ("by_host", "by_key")

    def __init__(self) -> None:
        """Nothing is known yet."""
        self.by_host: dict[str | None, dict[Any, int]] = {}
        self.by_key: dict[Any, dict[str | None, int]] = {}

    def put(self, host: str | None, key: Any, rank: int, *, over: bool = False) -> None:
        """Note the rank of a key on a host; over: also where another one is noted."""
        if over or key not in self.by_host.get(host, {}):
            self.by_host.setdefault(host, {})[key] = rank
            self.by_key.setdefault(key, {})[host] = rank

    def find(self, host: str | None, key: Any) -> int | None:
        """The rank of a key on a host; also without its host where it is known on one alone, or where there is one host, whatever its name."""
        known = self.by_key.get(key, {})
        if host in known:
            return known[host]
        one = len(self.by_host) <= 1 or (host is None and len(known) == 1)
        return next(iter(known.values()), None) if one else None


@dataclass(frozen=True, slots=True)
class Identities:
    """Ranks of processes, of the workers of their data loaders, of bus addresses and local ranks.

    counted: hosts whose local ranks nobody states: they follow from which ranks are there. only: the one host whose are stated, null where there are several.
    """

    processes: Ranked
    workers: Ranked
    buses: Ranked
    locals: dict[tuple[str | None, Any], int]
    counted: frozenset[str | None] = frozenset()
    only: str | None = None

    def of_process(self, host: str | None, pid: int) -> int | None:
        """The rank of a process; of a number that is used once also where its host is not known, or has another name."""
        known = self.processes.find(host, pid)
        return self.workers.find(host, pid) if known is None else known

    def of_bus(self, host: str | None, address: str | None) -> int | None:
        """The rank whose device has a bus address, which hosts of one make have in common: on the host named, or where there is one."""
        known = bus_of(address)
        return None if known is None else self.buses.find(host, known)

    def of_local(self, host: str | None, label: str) -> int | None:
        """The rank of `local 3` on a host; where only one has local ranks, also where it is not named."""
        return self.locals.get((host or self.only, label))

    def of_gpu(self, host: str | None, number: str) -> int | None:
        """The rank that calls a GPU by this number: its local rank, but for a 0 that each process may have for the only device that it sees."""
        return None if number == "0" and host in self.counted else self.of_local(host, f"local {number}")


@table("identities", needs=("placed", "topology"))
def identities(placed: pa.Table, topology: Topology) -> Identities:
    """Put together what says it: processes that a launcher spawned for a local rank, that name themselves, that NCCL counts (in the communicator
    that has all ranks), or that load data for a rank; devices that NCCL names, that a kernel's Xid ties to a process, or whose number a table of nvidia-smi and the launcher's
    list of devices tie to a local rank.
    """
    local = _stated(placed)
    rows = frame(placed, ("process",), ("name", "rank", "host", "label", "value", "steps", "text"))
    sizes = rows.loc[rows["name"] == "nccl", "steps"].dropna()
    processes, buses = _told(rows, local, topology.world_size or len(topology.ranks) or (int(sizes.max()) if len(sizes) else None))
    xid = frame(placed, ("error",), ("name", "host", "group", "text")).query("name == 'kernel-xid'")
    counted = _counted(topology, local)
    stated = {host for host, _ in local}
    workers = _workers(placed)
    only = next(iter(stated)) if len(stated) == 1 else None
    made = Identities(processes, workers, buses, local | counted, frozenset(host for host, _ in counted), only)
    for host, address, text in zip(xid["host"], xid["group"], xid["text"], strict=True):
        if (said := XID_OF.search(text or "")) and (bus := bus_of(address)) is not None:
            rank = made.of_process(_word(host), int(said[1]))
            if rank is not None:
                buses.put(_word(host), bus, rank)
    for host, bus, rank in _numbered(placed, local):
        buses.put(host, bus, rank)
    return made


def _workers(placed: pa.Table) -> Ranked:
    found = Ranked()
    errors = frame(placed, ("error",), ("rank", "host", "text")).dropna(subset=["rank", "text"])
    loaders = errors[errors["text"].str.contains("DataLoader worker", regex=False)]
    for rank, host, text in zip(loaders["rank"], loaders["host"], loaders["text"], strict=True):
        for listed in _LOADERS.findall(text):
            for pid in listed.split(", "):
                found.put(_word(host), int(pid), int(rank), over=True)
    return found


def _stated(placed: pa.Table) -> dict[tuple[str | None, str], int]:
    """(host, `local 3`) → rank, as launchers told it: when they started it, or when it had failed on a host that they name."""
    places = frame(placed, ("place", "process", "end"), ("kind", "rank", "host", "label"))
    places = places[(places["kind"] != "end") | places["host"].notna()].dropna(subset=["rank", "label"])
    found: dict[tuple[str | None, str], set[int]] = {}
    for host, label, rank in zip(places["host"], places["label"], places["rank"], strict=True):
        found.setdefault((host if isinstance(host, str) else None, str(label)), set()).add(int(rank))
    return {key: ranks.pop() for key, ranks in found.items() if len(ranks) == 1}


def _counted(topology: Topology, local: dict[tuple[str | None, str], int]) -> dict[tuple[str | None, Any], int]:
    """(host, `local 3`) → rank on hosts of which none is stated, where it is known of every rank where it is and each has one block of them, all as many."""
    hosts = topology.ranks.groupby("host")["rank"].agg(["min", "max", "count"]) if len(topology.ranks) else pd.DataFrame()
    if (
        len(hosts) < 2
        or topology.ranks["host"].isna().any()
        or hosts["count"].min() != hosts["count"].max()
        or (hosts["max"] - hosts["min"] + 1 != hosts["count"]).any()
    ):
        return {}
    named = {host for host, _ in local}
    return {
        (str(host), f"local {n}"): int(first) + n
        for host, first, count in zip(hosts.index, hosts["min"], hosts["count"], strict=True)
        if host not in named
        for n in range(int(count))
    }


def _told(rows: pd.DataFrame, local: dict[tuple[str | None, str], int], world: int | None) -> tuple[Ranked, Ranked]:
    """(processes, buses)"""
    processes, buses = Ranked(), Ranked()
    columns = ("name", "rank", "host", "label", "value", "steps", "text")
    for name, rank, host, label, pid, size, text in zip(*(rows[c] for c in columns), strict=True):
        if pd.isna(pid):
            continue
        on = _word(host)
        if name == "nccl" and not pd.isna(rank) and (world is None or pd.isna(size) or int(size) == world):
            processes.put(on, int(pid), int(rank), over=True)
            if isinstance(text, str):
                buses.put(on, text, int(rank), over=True)
        elif name in ("spawned", "worker"):
            known = rank if not pd.isna(rank) else local.get((on, label)) if isinstance(label, str) else None
            if known is not None and not pd.isna(known):
                processes.put(on, int(pid), int(known))
    return processes, buses


def _numbered(placed: pa.Table, local: dict[tuple[str | None, str], int]) -> Iterable[tuple[str | None, str, int]]:
    """(host, bus address, rank) of devices that nvidia-smi numbers, where the launcher lists the devices of each host."""
    listed = frame(placed, ("device",), ("name", "host", "device", "text"))
    listed = listed[listed["name"] == "bus"].dropna(subset=["device", "text"])
    if not len(listed):
        return
    facts = frame(placed, ("fact",), ("name", "text"))
    devices: dict[str, list[str]] = defaultdict(list)
    for text in facts.loc[facts["name"] == "launch.world_info", "text"].dropna().unique():
        devices |= {host: numbers.split(", ") for host, numbers in _LISTED.findall(text)}
    for host, device, address in zip(listed["host"], listed["device"], listed["text"], strict=True):
        known = _word(host) or (next(iter(devices)) if len(devices) == 1 else None)
        number = device.removeprefix("gpu ")
        if known in devices and number in devices[known] and (bus := bus_of(address)) is not None:
            rank = local.get((known, f"local {devices[known].index(number)}"))
            if rank is not None:
                yield known, bus, rank


def _word(host: Any) -> str | None:
    return host if isinstance(host, str) else None
