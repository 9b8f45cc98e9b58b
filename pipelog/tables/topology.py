"""Ranks, stages, replicas, hosts: what the files say of the shape of the job, each with its source."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from pipelog._text import NAMELESS
from pipelog.tables import frame, of_kind, table, whole_numbers
from pipelog.tables.environment import places as places_of_environment
from pipelog.tables.labels import hosts_of_tasks
from pipelog.tables.nodes import with_nodes


@dataclass(frozen=True, slots=True)
class Said:
    """A value, and the line that says it. source: how it was come by, in words."""

    value: Any
    file: str | None
    line: int | None
    source: str


@dataclass(slots=True)
class Topology:
    """Shape of the job. ranks: rank, stage, replica, tensor, host (null where not known). stages: stage, first_layer, layers, params.

    cp: ranks that share a sequence (Megatron's context parallelism), which count within a replica. stages_first: whether ranks count stages before replicas;
    null where the files contradict one another. said: where world_size, pp, dp and tp come from. conflicts: (what, the values that disagree).
    Ranks are looked up by the thousand once they are all known: what was asked for is kept (column → rank → value; columns → coordinates → rank).
    """

    world_size: int | None = None
    pp: int | None = None
    dp: int | None = None
    tp: int | None = None
    cp: int = 1
    stages_first: bool | None = False
    partition_method: str | None = None
    ranks: pd.DataFrame = field(default_factory=pd.DataFrame)
    stages: pd.DataFrame = field(default_factory=pd.DataFrame)
    said: dict[str, Said] = field(default_factory=dict)
    conflicts: list[tuple[str, list[Said]]] = field(default_factory=list)
    _known: dict[str, dict[int, Any]] = field(default_factory=dict, init=False, repr=False, compare=False)
    _at: dict[tuple[str, ...], dict[tuple[int, ...], int | None]] = field(default_factory=dict, init=False, repr=False, compare=False)

    def stage_of(self, rank: int) -> int | None:
        """Stage of a global rank, null where not known."""
        return self.place_of(rank, "stage")

    def host_of(self, rank: int) -> str | None:
        """Host of a global rank, null where not known."""
        found = self._of(rank, "host")
        return found if isinstance(found, str) else None

    def ranks_of(self, stage: int) -> list[int]:
        """Global ranks of a stage."""
        return self.ranks.loc[self.ranks["stage"] == stage, "rank"].astype(int).tolist() if len(self.ranks) else []

    def rank_at(self, **place: int) -> int | None:
        """The only rank with these coordinates (stage, replica, tensor: as many as are given), null where none or several have them."""
        columns = tuple(sorted(place))
        if columns not in self._at:
            known = self.ranks.dropna(subset=list(columns)) if len(self.ranks) else self.ranks
            found: dict[tuple[int, ...], int | None] = {}
            for rank, *coordinates in known[["rank", *columns]].astype("int64").to_numpy().tolist() if len(known) else ():
                key = tuple(coordinates)
                found[key] = None if key in found else rank
            self._at[columns] = found
        return self._at[columns].get(tuple(place[c] for c in columns))

    def place_of(self, rank: int, column: str) -> int | None:
        """Stage, replica or tensor-parallel place of a global rank, null where not known."""
        found = self._of(rank, column)
        return None if found is None else int(found)

    def _of(self, rank: int, column: str) -> Any:
        if column not in self._known:
            known = self.ranks.dropna(subset=["rank", column]).drop_duplicates("rank") if len(self.ranks) else self.ranks
            self._known[column] = dict(zip(known["rank"].astype("int64").tolist(), known[column].tolist(), strict=True)) if len(known) else {}
        return self._known[column].get(int(rank))


FACT_ORDER = {  # quantity → names of facts that state it, most trusted first
    "world_size": ("topology.world_size", "launch.dist_world_size", "args.world_size"),
    "pp": ("topology.pp", "args.pipeline_model_parallel_size", "args.pipe_parallel_size", "args.stages", "args.num_stages"),
    "tp": ("topology.tp", "args.tensor_model_parallel_size", "args.model_parallel_size"),
    "dp": ("topology.dp", "args.data_parallel_size", "config.world_size"),
}
MOST_RANKS = 1 << 20
"""More than any job has: a larger number is a damaged line."""
_COMMAND_LINE = frozenset({"args.stages", "args.num_stages"})


@table("facts", needs=("here",))
def facts(here: pa.Table) -> pd.DataFrame:
    """All facts of the attempt: name, value, text, rank, file, line."""
    return frame(here, ("fact",), ("name", "value", "text", "rank", "file", "line"))


def said(facts: pd.DataFrame, names: tuple[str, ...]) -> list[Said]:
    """The different values of a quantity, most trusted source first."""
    out: list[Said] = []
    known = facts["name"].to_numpy()
    for name in names:
        if not (stated := known == name).any():
            continue
        mine = facts[stated]
        for value, text, file, line in zip(mine["value"], mine["text"], mine["file"], mine["line"], strict=True):
            shown = text if pd.isna(value) else value
            if shown is not None and all(s.value != shown or s.source != name for s in out):
                out.append(Said(shown, file, None if pd.isna(line) else int(line), name))
    return out


@table("topology", needs=("here", "facts"))
def topology(here: pa.Table, facts: pd.DataFrame) -> Topology:
    """Put together what is said of world size, stages, replicas and tensor-parallel ranks.

    Explicit maps (ProcessCoord, `RANK= STAGE=`) come first; a factor that is missing follows from world = pp * dp * tp; the place of
    a rank that no line states follows from the order that DeepSpeed and Megatron use (pipe slowest, then data, tensor fastest; Megatron
    can be told to count data slowest).
    """
    shape = Topology()
    places = frame(here, ("place",), ("name", "rank", "stage", "replica", "tensor", "host", "label", "file", "line"))
    places = places[~(places["rank"] >= MOST_RANKS).fillna(False)]
    for quantity, names in FACT_ORDER.items():
        values = [s for s in said(facts, names) if isinstance(s.value, int | float) and 1 <= s.value <= MOST_RANKS]
        if not values:
            continue
        setattr(shape, quantity, int(values[0].value))
        shape.said[quantity] = values[0]
        others = {int(s.value): s for s in reversed(values) if s.source not in _COMMAND_LINE}
        if len(others) > 1:
            shape.conflicts.append((quantity, list(others.values())))
    shape.cp = next((int(s.value) for s in said(facts, ("topology.cp", "args.context_parallel_size")) if isinstance(s.value, float)), 1)
    orders = set(facts.loc[facts["name"] == "args.use_tp_pp_dp_mapping", "value"].dropna() == 1)
    shape.stages_first = (orders == {True}) if len(orders) < 2 else None
    if not len(places):
        places = _from_groups(facts)
        _from_places(shape, places, absent=None)
    else:
        _from_places(shape, places, absent=1)
    _from_own_words(shape, places)
    _from_grid_words(shape, facts, here)
    stage_of = _from_messages(here) if shape.pp is None else {}
    _take_stages(shape, stage_of)
    _complete(shape, here)
    method = said(facts, ("topology.partition_method",))
    shape.partition_method = str(method[0].value) if method else None
    shape.ranks = _ranks(shape, places, here)
    for rank, stage in stage_of.items():
        shape.ranks.loc[shape.ranks["rank"] == rank, "stage"] = stage
    shape.stages = _stages(here, shape)
    return shape


def _from_places(shape: Topology, places: pd.DataFrame, *, absent: int | None) -> None:
    """A map of ranks tells the shape as well. absent: size of an axis that the map does not have."""
    mapped = places[places["name"] == "topology"]
    if len(mapped):
        for quantity, column in (("pp", "stage"), ("dp", "replica"), ("tp", "tensor")):
            values = mapped[column].dropna()
            found = int(values.max()) + 1 if len(values) else absent
            if getattr(shape, quantity) is None and found is not None:
                setattr(shape, quantity, found)
                row = mapped.iloc[0]
                shape.said[quantity] = Said(found, row["file"], None if pd.isna(row["line"]) else int(row["line"]), "topology map")
        shape.world_size = shape.world_size or len(mapped["rank"].dropna().unique())


def _from_own_words(shape: Topology, places: pd.DataFrame) -> None:
    """The shape where each rank says its own place, and their number is known."""
    own = places[places["name"] == "introduced"]
    if not shape.world_size or not len(own):
        return
    own = _without_doubt(own, shape, shape.world_size)
    for quantity, column in (("pp", "stage"), ("dp", "replica"), ("tp", "tensor")):
        mine = own[own[column].notna()].drop_duplicates("rank")
        if getattr(shape, quantity) is None and len(mine) == shape.world_size:
            setattr(shape, quantity, int(mine[column].max()) + 1)
            row = mine.iloc[0]
            shape.said[quantity] = Said(
                getattr(shape, quantity), row["file"], None if pd.isna(row["line"]) else int(row["line"]), "words of each rank"
            )


def _from_grid_words(shape: Topology, facts: pd.DataFrame, here: pa.Table) -> None:
    """The shape from a row of all axes, whose product is the number of ranks: that of a rank's place in the grid is less."""
    words = facts[facts["name"] == "grid.words"]
    if shape.pp is not None or not len(words):
        return
    ranks = here.column("rank").unique().drop_null().to_pylist()
    world = shape.world_size or (len(ranks) if ranks and max(ranks) + 1 == len(ranks) else None)
    sizes = [[int(n) for n in str(text).split()] for text in words["text"]]  # pp, dp, tp, cp
    good = [n for n, size in enumerate(sizes) if world and np.prod(size) == world]
    told = [sizes[n] for n in good] if shape.world_size else sizes  # ranks that are seen need not be all
    if not good or len({tuple(size) for size in told}) > 1:
        return
    row, (pp, dp, tp, cp) = words.iloc[good[0]], sizes[good[0]]
    stated = {"pp": pp, "dp": dp, "tp": tp}
    if any(getattr(shape, quantity) not in (None, size) for quantity, size in stated.items()):
        return
    shape.cp = cp
    for quantity, size in stated.items():
        setattr(shape, quantity, size)
        shape.said.setdefault(quantity, Said(size, row["file"], None if pd.isna(row["line"]) else int(row["line"]), "sizes of the grid in one row"))


_GROUPS = {"PIPELINE_MODEL_PARALLEL_GROUP": "stage", "DATA_PARALLEL_GROUP": "replica", "TENSOR_MODEL_PARALLEL_GROUP": "tensor"}
"""Process groups of Megatron, as traces and flight recorders list them: a rank's place in its group is its stage, replica, …"""


def _from_groups(facts: pd.DataFrame) -> pd.DataFrame:
    """A map of ranks from the members of Megatron's process groups, where its pipeline groups are listed."""
    found: dict[int, dict[str, Any]] = {}
    for name, text, file, line in zip(facts["name"], facts["text"], facts["file"], facts["line"], strict=True):
        if not (isinstance(name, str) and name.startswith("group.") and isinstance(text, str)):
            continue
        what, _, ranks = text.rpartition(":")
        if what not in _GROUPS:
            continue
        for place, rank in enumerate(int(r) for r in ranks.split(",") if r.isdecimal() and int(r) < MOST_RANKS):
            found.setdefault(rank, {"name": "topology", "rank": rank, "file": file, "line": line})[_GROUPS[what]] = place
    columns = ["name", "rank", "stage", "replica", "tensor", "host", "label", "file", "line"]
    table_ = pd.DataFrame(list(found.values()), columns=columns)
    if not len(table_) or table_["stage"].isna().any():
        return table_.iloc[:0]
    return table_.astype(dict.fromkeys(("rank", "stage", "replica", "tensor", "line"), "Int64"))


def _from_messages(here: pa.Table) -> dict[int, int]:
    """Rank → stage from who receives from whom first in a step (traces alone): stage 0 sends before it receives, every other stage
    first receives from the one before it. Empty where a rank of a chain was not recorded.
    """
    rows = of_kind(here.select(["kind", "rank", "peer", "start_ns", "launch_ns"]), "send", "recv", "profiler_step")
    began = pa.compute.equal(rows.column("kind").cast(pa.string()), "profiler_step").to_numpy()
    ranks, peers = (whole_numbers(rows.column(n)) for n in ("rank", "peer"))
    at = pa.compute.coalesce(rows.column("launch_ns"), rows.column("start_ns"), pa.scalar(0, pa.int64())).to_numpy()
    begin = np.full(int(ranks.max(initial=-1)) + 2, np.iinfo(np.int64).max)  # the last for those without a rank
    np.minimum.at(begin, ranks[began], at[began])
    begin = np.where(begin == np.iinfo(np.int64).max, np.iinfo(np.int64).min, begin)
    places = np.flatnonzero(~began & (ranks >= 0) & (peers >= 0) & (at >= begin[ranks]))
    if not len(places):
        return {}
    firsts = places[pd.Series(at[places]).groupby(ranks[places]).idxmin().to_numpy()]
    kinds = rows.column("kind").cast(pa.string()).take(pa.array(firsts)).to_pylist()
    first = pd.DataFrame({"rank": ranks[firsts], "peer": peers[firsts], "kind": kinds})
    before = {int(r): int(p) for r, p, k in zip(first["rank"], first["peer"], first["kind"], strict=True) if k == "recv"}
    stage_of = {int(r): 0 for r, k in zip(first["rank"], first["kind"], strict=True) if k == "send"}
    for rank in before:
        chain = [rank]
        while chain[-1] not in stage_of and chain[-1] in before and len(chain) <= len(before):
            chain.append(before[chain[-1]])
        if chain[-1] not in stage_of:
            return {}
        base = stage_of[chain[-1]]
        stage_of |= {r: base + i for i, r in enumerate(reversed(chain))}
    return stage_of


def _take_stages(shape: Topology, stage_of: dict[int, int]) -> None:
    """Shape of a job of which only traces are known, all of them: as many chains of equal length as there are replicas."""
    if not stage_of:
        return
    sizes = pd.Series(stage_of).value_counts()
    pp = len(sizes)
    if sizes.min() != sizes.max() or (shape.world_size and len(stage_of) != shape.world_size):
        return
    shape.pp = pp
    shape.said["pp"] = Said(pp, None, None, "messages between the ranks' traces")


def _complete(shape: Topology, here: pa.Table) -> None:
    """What is still missing: the stage list, then the product. The ranks that share a sequence are counted with the tensor-parallel ones."""
    listed = frame(here, ("stage",), ("name", "stage", "file", "line")).dropna(subset=["stage"])
    if shape.pp is None and len(listed) and _whole_list(listed, here, shape.tp):
        row = listed.loc[listed["stage"].astype(int).idxmax()]
        shape.pp = int(row["stage"]) + 1
        shape.said["pp"] = Said(shape.pp, row["file"], int(row["line"]), "list of stages")
    world, pp, dp, inner = shape.world_size, shape.pp, shape.dp, (shape.tp or 1) * shape.cp
    if world is None and pp and dp and pp * dp * inner <= MOST_RANKS:
        shape.world_size = pp * dp * inner
    elif world and pp and dp is None and world % (pp * inner) == 0:
        shape.dp = world // (pp * inner)
        shape.said["dp"] = Said(shape.dp, None, None, "world size / (stages x tensor-parallel ranks)")
    elif world and dp and pp is None and shape.tp and world % (dp * inner) == 0:
        shape.pp = world // (dp * inner)
        shape.said["pp"] = Said(shape.pp, None, None, "world size / (replicas x tensor-parallel ranks)")
    world, pp, dp = shape.world_size, shape.pp, shape.dp
    if shape.tp is None and world and pp and dp and world % (pp * dp * shape.cp) == 0:
        shape.tp = world // (pp * dp * shape.cp)
    if world and pp and dp and world != pp * dp * (shape.tp or 1) * shape.cp:
        known = [s for q in ("world_size", "pp", "dp", "tp") if (s := shape.said.get(q)) is not None]
        shape.conflicts.append(("world_size = pp x dp x tp", known))


def _whole_list(listed: pd.DataFrame, here: pa.Table, tp: int | None) -> bool:
    """Whether the stages seen are all there are: the model's own list is whole; lines of ranks are where their parameters add up."""
    if (listed["name"] == "layers").any():
        return True
    sizes = frame(here, ("stage",), ("name", "stage", "value"))
    sizes = sizes[sizes["name"] == "params"].dropna()
    total = frame(here, ("fact",), ("name", "value"))
    total = total.loc[total["name"] == "topology.total_params", "value"].dropna()
    if not len(sizes) or not len(total):
        return not len(total)
    seen = float(sizes.groupby("stage")["value"].max().sum()) * (tp or 1)
    return seen >= 0.98 * float(total.max())


def _ranks(shape: Topology, places: pd.DataFrame, here: pa.Table) -> pd.DataFrame:
    """One row a rank."""
    columns = ["rank", "stage", "replica", "tensor", "host"]
    known = places.dropna(subset=["rank"])
    if not shape.world_size and not len(known):
        return pd.DataFrame({c: pd.Series(dtype=object if c == "host" else "Int64") for c in columns})
    size = shape.world_size or int(known["rank"].max()) + 1
    ranks = pd.DataFrame({"rank": np.arange(size)})
    for column in ("stage", "replica", "tensor"):
        ranks[column] = pd.array([pd.NA] * size, dtype="Int64")
    ranks["host"] = None
    pp, dp, tp = shape.pp, shape.dp, shape.tp or 1
    if pp and dp and pp * dp * tp * shape.cp == size:
        inner, every = tp * shape.cp, np.arange(size)
        stages, replicas = (every // inner % pp, every // (inner * pp)) if shape.stages_first else (every // (dp * inner), every // inner % dp)
        if shape.stages_first is not None or 1 in (pp, dp):
            ranks["stage"], ranks["replica"] = pd.array(stages, dtype="Int64"), pd.array(replicas, dtype="Int64")
        ranks["tensor"] = pd.array(every % tp, dtype="Int64")
    ranks = ranks.set_index("rank")
    known = _without_doubt(known, shape, size)
    for name in ("introduced", "discovery", "launcher", "rank-line", "topology"):  # the most trusted last, so that it stays
        mine = known[known["name"] == name]
        if not len(mine):
            continue
        mine = mine.drop_duplicates("rank", keep="last").set_index("rank")
        mine = mine[mine.index < size]
        told = ("stage", "replica", "tensor") if name in ("rank-line", "topology") else ("stage", "replica", "tensor", "host")
        for column in told:  # what one rank prints of another stands behind its own host
            values = mine[column].dropna()
            ranks.loc[values.index, column] = values
    hosts = {p.rank: p.host for p in places_of_environment(here, size) if p.host} | _hosts(here)
    for rank, host in hosts.items():
        if rank in ranks.index and (not isinstance(ranks.at[rank, "host"], str) or ranks.at[rank, "host"] in NAMELESS):
            ranks.at[rank, "host"] = host
    if len(silent := ranks.index[ranks["host"].isna()]):
        of_task = hosts_of_tasks(here, size, {int(rank): host for rank, host in ranks["host"].dropna().items()})
        ranks.loc[silent, "host"] = [of_task.get(int(rank)) for rank in silent]
    if ranks["host"].isin(NAMELESS).all():  # the launcher's word for a single host, which other lines may name
        named = set(here.column("host").unique().drop_null().to_pylist()) - NAMELESS
        ranks["host"] = named.pop() if len(named) == 1 else ranks["host"]
    return with_nodes(ranks.reset_index()[columns], here)


def _without_doubt(places: pd.DataFrame, shape: Topology, size: int) -> pd.DataFrame:
    """The places without what ranks say of themselves in words of their own and what cannot be: a host or a place that one rank gives twice, an axis
    that is no axis (`pp=4` of every rank is how many there are).
    """
    own = places["name"] == "introduced"
    if not own.any():
        return places
    out = places.copy()
    for column, given in (("stage", shape.pp), ("replica", shape.dp), ("tensor", shape.tp), ("host", None)):
        mine = out.loc[own & out[column].notna(), ["rank", column]].drop_duplicates()
        good = not mine["rank"].duplicated().any()
        if good and column != "host" and len(mine):
            counts = mine[column].value_counts()
            good = int(counts.index.max()) < (given or size) and int(counts.index.min()) == 0 and len(counts) > 1
            good = good and (len(mine) < size or len(set(counts)) == 1)
        if not good:
            out.loc[own, column] = pd.NA if column != "host" else None
    return out


_OF_OTHERS = frozenset({"place", "megatron_timer", "straggler_figure"})
"""Kinds of rows that one rank prints of others: they stand behind its own host."""


def _hosts(here: pa.Table) -> dict[int, str]:
    """Host of each rank as prefixes and traces say, on lines of its own: a topology is printed by one rank for all."""
    counted = here.select(["rank", "host", "kind"]).group_by(["rank", "host", "kind"]).aggregate([([], "count_all")]).to_pandas()
    counted = counted[counted["rank"].notna() & counted["host"].notna() & ~counted["kind"].isin(_OF_OTHERS)]
    if not len(counted):
        return {}
    pairs = counted.groupby(["rank", "host"], observed=True)["count_all"].sum().reset_index().to_dict("records")
    pairs.sort(key=lambda p: (p["host"] not in NAMELESS, p["count_all"]))
    started = frame(here, ("process",), ("name", "rank", "host")).query("name == 'worker'").dropna()
    listed = {int(r): str(h) for r, h in zip(started["rank"], started["host"], strict=True)}  # by the launcher: the best source
    return {int(p["rank"]): str(p["host"]) for p in pairs} | listed


def _stages(here: pa.Table, shape: Topology) -> pd.DataFrame:
    """stage, first_layer, layers (list entries, not transformer blocks), params (of one rank), from the partition lines."""
    rows = frame(here, ("stage",), ("name", "stage", "tensor", "value", "steps"))
    rows = rows.dropna(subset=["stage"])
    count = shape.pp or (int(rows["stage"].max()) + 1 if len(rows) else 0)
    if not len(rows):
        return pd.DataFrame({"stage": np.arange(count), **{c: pd.array([pd.NA] * count, dtype="Int64") for c in ("first_layer", "layers", "params")}})
    stages = pd.DataFrame({"stage": np.arange(count)}).set_index("stage")
    for column in ("first_layer", "layers", "params"):
        stages[column] = pd.array([pd.NA] * count, dtype="Int64")
    params = rows[rows["name"] == "params"].groupby("stage")["value"].max()
    ranges = rows[rows["name"] == "layer_range"].drop_duplicates("stage").set_index("stage")
    listed = rows[rows["name"] == "layers"].drop_duplicates("stage").set_index("stage")["value"]
    for stated, column in ((params, "params"), (listed, "layers")):
        values = stated[stated.index < count].dropna()
        stages.loc[values.index, column] = values.astype("int64")
    if len(ranges):
        ranges = ranges[ranges.index < count]
        stages.loc[ranges.index, "first_layer"] = ranges["value"].astype("int64")
        stages.loc[ranges.index, "layers"] = ranges["steps"].astype("int64")
    elif stages["layers"].notna().all() and count:
        sizes = stages["layers"].to_numpy(dtype=np.int64)
        stages["first_layer"] = pd.array(np.concatenate(([0], np.cumsum(sizes)[:-1])), dtype="Int64")
    return stages.reset_index()
