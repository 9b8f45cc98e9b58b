"""PL001 missing-ranks: the folder lacks ranks that the run had.

What it does: compares the ranks that have a file of their own (a log named after its rank, a trace) with the world size, and the nodes
whose launcher wrote into the folder with the number of nodes; the ranks that came to the store-based barrier at the start; and the ranks
that say where they run with those of which there is any line.
Why it matters: the rank that began a failure, or the slowest one, may be the one whose file is not there.
What to do: collect the missing files before you conclude anything about other ranks.
When it is wrong: one merged log of all ranks is whole, whatever else lies beside it; recording a trace on some ranks only is common
and only noted.
Thresholds: none.
"""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd
import pyarrow as pa

from pipelog._text import count, listed
from pipelog.events import Input
from pipelog.findings import Advice, Confidence, Evidence, Finding, Severity, Where, cite, detector
from pipelog.tables import CannotTell, frame, of_kind
from pipelog.tables.topology import Topology


@detector("PL001", "missing-ranks", needs=("inputs", "topology", "facts", "placed"))
def missing_ranks(inputs: list[Input], topology: Topology, facts: pd.DataFrame, placed: pa.Table) -> Iterator[Finding]:
    """One finding for logs, one for traces, one for nodes, one for those who say where they run."""
    world = topology.world_size
    if not world:
        raise CannotTell("the world size is not known")
    logs = {i.notes["rank_from_name"]: i.path for i in inputs if i.kind == "log" and i.notes.get("rank_from_name") is not None}
    if _merged(inputs, placed):
        logs = {}
    traces = {i.notes["rank"]: i.path for i in inputs if i.kind == "trace" and i.notes.get("rank") is not None}
    for have, what, severity in ((logs, "log", Severity.WARNING), (traces, "trace", Severity.INFO)):
        missing = [r for r in range(world) if r not in have]
        if have and missing and max(have) < world:
            yield Finding(
                "PL001",
                "missing-ranks",
                f"{count(len(have), f'{what} of a rank', f'{what}s of ranks')} for a world of {world}: {listed(missing)} {'is' if len(missing) == 1 else 'are'} missing",
                severity,
                Confidence.HIGH,
                Where(ranks=tuple(missing) if len(missing) <= 64 else ()),
                tuple(Evidence(path) for path in list(have.values())[:2]),
                (Advice(f"add the {what}s of these ranks to the folder"),),
            )
    told = [*_nodes(facts, topology, placed), *_barrier(placed, world)]
    yield from told
    if not told and not logs:
        yield from _silent(placed, world)


def _silent(placed: pa.Table, world: int) -> Iterator[Finding]:
    """Ranks of which no line was read, where all those of some hosts, equally many on each, say at the start where they run."""
    rows = frame(placed, ("place",), ("name", "rank", "host", "file", "line"))
    own = rows[(rows["name"] == "introduced") & rows["rank"].notna() & rows["host"].notna()].drop_duplicates("rank")
    many = own["host"].value_counts()
    missing = sorted(set(range(world)) - set(own["rank"].astype(int)))
    if (
        not missing
        or not len(own)
        or len(set(many)) != 1
        or int(many.iloc[0]) < _FEWEST
        or world % int(many.iloc[0])
        or not _spoke(placed).isdisjoint(missing)
    ):
        return
    yield Finding(
        "PL001",
        "missing-ranks",
        f"The ranks of {listed(sorted(many.index))} say where they run; of the other {count(len(missing), 'rank')} ({listed(missing)}) no line is in the files",
        Severity.WARNING,
        Confidence.MEDIUM,
        Where(ranks=tuple(missing) if len(missing) <= 64 else ()),
        cite(own.iloc[[0, -1]]),
        (Advice("add the logs of the other nodes to the folder"),),
    )


_FEWEST = 2
"""Ranks of a host that all say where they run: one a host may be the only one that does."""


def _barrier(placed: pa.Table, world: int) -> Iterator[Finding]:
    """Ranks that no line of the store-based barrier names, where as many are named as it says have come: the others never came."""
    waits = frame(placed, ("error",), ("name", "rank", "value", "file", "line"))
    waits = waits[waits["name"] == "store-wait"]
    came = {int(r) for r in waits["rank"].dropna()}
    missing = [r for r in range(world) if r not in came]
    if not missing or not came or waits["value"].isna().all() or int(waits["value"].max()) != len(came) or _joined(placed):
        return
    yield Finding(
        "PL001",
        "missing-ranks",
        f"{len(came)} of {world} ranks came to the store-based barrier, where the job begins; {listed(missing)} never came",
        Severity.WARNING,
        Confidence.HIGH,
        Where(ranks=tuple(missing) if len(missing) <= 64 else ()),
        cite(waits.drop_duplicates("rank")),
        (Advice("see whether these ranks were started: their node's launcher, its output, MASTER_ADDR and the number of nodes"),),
    )


def _joined(placed: pa.Table) -> bool:
    """Whether the job went on behind its start: then the barrier was passed."""
    return bool(len(frame(placed, ("step", "iteration", "progress", "timer"), ("line",))))


def _spoke(placed: pa.Table) -> set[int | str]:
    """Ranks and hosts of which a line of their own was read."""
    rows = of_kind(
        placed.select(["kind", "rank", "host"]), "error", "step", "progress", "iteration", "memory", "memory_usage", "overflow", "comm_init"
    )
    return {who for name in ("rank", "host") for who in rows.column(name).unique().to_pylist() if who is not None}


def _merged(inputs: list[Input], placed: pa.Table) -> bool:
    """Whether a log of no single rank holds what ranks print, not only what a launcher prints."""
    several = {i.path for i in inputs if i.kind == "log" and i.notes.get("rank_from_name") is None}
    printed = of_kind(placed.select(["kind", "file"]), "step", "iteration", "scalar", "timer", "memory")
    return not several.isdisjoint(printed.column("file").unique().to_pylist())


def _nodes(facts: pd.DataFrame, topology: Topology, placed: pa.Table) -> Iterator[Finding]:
    """The launcher of each node prints `nnodes=2, num_local_procs=4, node_rank=1`."""
    total, seen = facts[facts["name"] == "launch.nnodes"], facts[facts["name"] == "launch.node_rank"]
    if not len(total) or not len(seen):
        return
    stated, present = total["value"].max(), {int(v) for v in seen["value"].dropna()}  # torchrun's `1:4` is no number
    nodes = int(stated) if stated == stated else 0  # noqa: PLR0124
    missing = [n for n in range(nodes) if n not in present]
    if not missing or not present:
        return
    hosts = list(dict.fromkeys(h for h in topology.ranks["host"] if isinstance(h, str)))
    names = [hosts[n] for n in missing if n < len(hosts)] if len(hosts) == nodes else []
    per_node = (topology.world_size or 0) // nodes
    ranks = (
        topology.ranks[topology.ranks["host"].isin(names)]["rank"].tolist()
        if names
        else [r for n in missing for r in range(n * per_node, (n + 1) * per_node)]
    )
    if _spoke(placed) & {*ranks, *names}:
        return  # their output is here, only not its beginning
    yield Finding(
        "PL001",
        "missing-ranks",
        f"the launcher of {count(len(present), 'node')} of {nodes} wrote here; the output of {'node' if len(missing) == 1 else 'nodes'} {listed(missing)} "
        f"(ranks {listed(ranks)}) is missing",
        Severity.WARNING,
        Confidence.HIGH,
        Where(ranks=tuple(int(r) for r in ranks) if len(ranks) <= 64 else (), hosts=tuple(names)),
        cite(seen),
        (Advice("add the output of these nodes to the folder"),),
    )
