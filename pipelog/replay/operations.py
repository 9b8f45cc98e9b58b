"""Tables of operations as a graph: which operations start together, which wait for which, and how long each takes in itself."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
import pyarrow as pa

from pipelog.replay.dag import Dag, dag
from pipelog.tables import CannotTell, of_kind, table, whole_numbers

P2P = {"forward-send": ("forward", 1), "forward-recv": ("forward", 0), "backward-send": ("backward", 0), "backward-recv": ("backward", 1)}
"""Direction, and whether the edge is the one behind the stage (1) or before it (0)."""
_OVER_REPLICAS = frozenset({"params-all-gather", "grads-reduce-scatter", "grads-all-reduce"})
_OVER_ENDS = frozenset({"embedding-grads-all-reduce"})
_OVER_ALL = frozenset({"optimizer-clip-main-grad"})
"""Collectives by who takes part: the replicas of a stage, the first and last stage of a replica, everybody (the norm of all gradients)."""
_AT_ONCE_NS = 20_000
"""Messages of a worker that start within this of each other were posted as one batch; float32 seconds tell 1 microsecond at 10 s."""


@dataclass(frozen=True, slots=True, eq=False)
class Operations:
    """The operations of one file, those of every step alike. Arrays are in the order of `dag`: (operations,) and (operations, steps).

    name, stage, replica, number (among its like on its worker); start, end: as recorded, ns from the step's beginning; own: ns from when
    the last of those who take part had started to its end, so without waiting for them. dropped: steps that hold other operations.
    """

    file: str
    steps: np.ndarray
    name: np.ndarray
    stage: np.ndarray
    replica: np.ndarray
    number: np.ndarray
    start: np.ndarray
    end: np.ndarray
    own: np.ndarray
    dag: Dag
    dropped: int

    def length(self, durations: np.ndarray) -> np.ndarray:
        """Length of each step where every operation starts as soon as it can and takes *durations* (operations, steps), ns."""
        return np.asarray(self.dag.run(durations)[1].max(axis=0))

    def observed(self) -> np.ndarray:
        """Length of each step as recorded, ns: last end - first start over all workers."""
        return np.asarray(self.end.max(axis=0) - self.start.min(axis=0))


@table("operations", needs=("events",))
def operations(events: pa.Table) -> list[Operations]:
    """The operations of each table of operations (`reading/operations.py`), one entry a file."""
    rows = of_kind(events, "operation")
    if not rows.num_rows:
        raise CannotTell("no table of operations (step, stage, dp_rank, optype, start_ts, duration) was given")
    words = {n: rows.column(n).cast(pa.string()).to_pandas().astype(object) for n in ("file", "name")}
    numbers = {n: whole_numbers(rows.column(n)) for n in ("step", "stage", "replica", "start_ns", "dur_ns")}
    found = pd.DataFrame(words | numbers | {"number": rows.column("value").to_numpy(zero_copy_only=False)})
    return [_of_file(str(file), mine.drop(columns="file")) for file, mine in found.groupby("file", sort=True)]


_KEY = ["replica", "stage", "name", "number"]


def _of_file(file: str, rows: pd.DataFrame) -> Operations:
    rows = rows.sort_values(["step", "replica", "stage", "start_ns"], kind="stable")
    if rows["number"].isna().any():
        rows["number"] = rows.groupby(["step", *_KEY[:3]]).cumcount()
    rows, dropped = _alike(rows.astype({"number": np.int64}))
    # one order for all steps: by the usual place of an operation on its stage, which noise of a microsecond does not turn round
    rows["place"] = rows.groupby(["step", "replica", "stage"])["start_ns"].rank(method="min")
    places = rows.groupby(["stage", "name", "number"])["place"].median().rename("usual").reset_index()
    keys = rows[_KEY].drop_duplicates().merge(places, on=["stage", "name", "number"])
    keys = keys.sort_values(["replica", "stage", "usual"], kind="stable").reset_index(drop=True)
    at = rows.merge(keys.assign(node=keys.index)[[*_KEY, "node"]], on=_KEY)
    steps, column = np.unique(at["step"].to_numpy(), return_inverse=True)
    start, length = (np.zeros((len(keys), len(steps)), np.int64) for _ in range(2))
    start[at["node"], column], length[at["node"], column] = at["start_ns"], at["dur_ns"]
    groups = _groups(keys)
    together = np.full(len(keys), -1, np.int64)
    own = length.copy()
    for members in groups.values():
        together[members] = members[0]
        own[members] = np.maximum(start[members] + length[members] - start[members].max(axis=0), 0)
    made = dag(len(keys), *_edges(_before(keys, start, groups, together)))
    back = np.argsort(made.order)
    name, stage, replica, number = (keys[n].to_numpy()[back] for n in ("name", "stage", "replica", "number"))
    return Operations(file, steps, name, stage, replica, number, start[back], (start + length)[back], own[back], made, dropped)


def _alike(rows: pd.DataFrame) -> tuple[pd.DataFrame, int]:
    """The steps that hold the operations that most steps hold, each once; how many do not."""
    rows = rows.drop_duplicates(["step", *_KEY])
    marks = pd.util.hash_pandas_object(rows[_KEY], index=False)
    sums = marks.groupby(rows["step"].to_numpy()).sum()
    good = sums.index[sums == sums.mode().iloc[0]]
    return rows[rows["step"].isin(good)].copy(), len(sums) - len(good)


def _groups(keys: pd.DataFrame) -> dict[tuple[object, ...], np.ndarray]:
    """Operations that start only when all of them can: both ends of a message, the members of a collective."""
    count = int(keys["stage"].max()) + 1
    found: dict[tuple[object, ...], list[int]] = {}
    for i, (replica, stage, name, number) in enumerate(zip(*(keys[n] for n in _KEY), strict=True)):
        if name in P2P:
            way, behind = P2P[name]
            found.setdefault((way, (stage - 1 + behind) % count, replica, number), []).append(i)
        elif name in _OVER_REPLICAS:
            found.setdefault((name, stage, number), []).append(i)
        elif name in _OVER_ENDS:
            found.setdefault((name, replica, number), []).append(i)
        elif name in _OVER_ALL:
            found.setdefault((name, number), []).append(i)
    return {key: np.array(members) for key, members in found.items()}


def _edges(before: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    counts = [len(nodes) for nodes in before]
    return np.array([node for nodes in before for node in nodes], np.int64), np.repeat(np.arange(len(before)), counts)


def _before(keys: pd.DataFrame, start: np.ndarray, groups: dict[tuple[object, ...], np.ndarray], together: np.ndarray) -> list[list[int]]:
    """Every operation waits for what the worker did before it, and where others take part, for what they did before it."""
    p2p = keys["name"].isin(P2P).to_numpy()
    worker = (keys["replica"] * (int(keys["stage"].max()) + 1) + keys["stage"]).to_numpy()
    apart = np.median(np.abs(np.diff(start, axis=0)), axis=1)
    batch = np.concatenate(([True], ~(p2p[1:] & p2p[:-1] & (worker[1:] == worker[:-1]) & (apart <= _AT_ONCE_NS)))).cumsum()
    earlier: list[list[int]] = []
    last: list[int] = []
    now: list[int] = []
    for i in range(len(keys)):
        if i and worker[i] != worker[i - 1]:
            last, now = [], []
        elif i and batch[i] != batch[i - 1]:
            last, now = now, []
        now.append(i)
        earlier.append(last)
    members = {int(m[0]): m for m in groups.values()}
    return [sorted({e for j in members[t] for e in earlier[j]}) if (t := int(together[i])) >= 0 else earlier[i] for i in range(len(keys))]
