"""What each kind of operation, stage, replica and worker costs: replays in which one class is ideal, or alone as measured.

After "Understanding Stragglers in Large Model Training Using What-if Analysis" (arXiv 2505.05713): T is the mean length of a step
replayed on measured durations, T_ideal with every operation at its ideal one: the mean over all stages, replicas and steps for
computation, the median for what waits for a wire. S = T / T_ideal.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from pipelog.replay.measured import Measured, sample
from pipelog.replay.operations import P2P, Operations
from pipelog.replay.simulate import COMPUTE, KINDS, Timeline, schedule_graph, simulate
from pipelog.tables import CannotTell, Tables, table

EFFECTS = ["of", "stage", "replica", "kind", "target", "slowdown", "cost"]

_WORST_WORKERS = 0.03
"""Share of the workers that are called the slowest ones, as in the paper; at least one."""
_COMPUTES = ("optimizer",)
_MOST_CLASSES = 12
"""Stages, and links, of which the effects are told where there are more: those with the most time on the critical path."""
_BOTH_ENDS = {name: f"{way}-pp-comm" for name, (way, _) in P2P.items()}


@dataclass(frozen=True, slots=True)
class Slowdown:
    """observed_ns, replayed_ns, ideal_ns: mean length of a step (of the pipeline phase, where traces are the source).

    slowdown: S = replayed / ideal. effects: one row a class (EFFECTS): of (kind, stage, replica, worker, link), slowdown (S of a run in
    which this class alone is as measured) and cost (share of the replayed length that goes where it alone is ideal). last_stage,
    slowest_workers: (T - T') / (T - T_ideal) with T' where the last stage, or the slowest 3 % of workers, are ideal; null without a
    difference. It can leave [0, 1], since parts interact.
    critical: share of the critical path by stage, target (of a transfer in traces) and instruction, over all steps.
    """

    file: str | None
    source: str
    steps: int
    observed_ns: float
    replayed_ns: float
    ideal_ns: float
    effects: pd.DataFrame
    last_stage: float | None
    slowest_workers: float | None
    workers: tuple[tuple[int, int], ...] = ()
    critical: pd.DataFrame = field(default_factory=pd.DataFrame)

    @property
    def slowdown(self) -> float:
        """S = T / T_ideal."""
        return self.replayed_ns / self.ideal_ns

    @property
    def error(self) -> float:
        """By how much the replay misses the observed length: |T / observed - 1|."""
        return abs(self.replayed_ns / self.observed_ns - 1)


def ideal(durations: np.ndarray, kinds: np.ndarray, computes: np.ndarray) -> np.ndarray:
    """Every operation at the ideal duration of its kind: mean over all of its like for computation, else median. (operations, …)."""
    out = np.zeros(durations.shape, float)
    for kind in np.unique(kinds):
        like = kinds == kind
        values = durations[like]
        out[like] = values.mean() if computes[like][0] else np.median(values)
    return out


def of_operations(job: Operations) -> Slowdown:
    """S and the effects of a table of operations: kinds (both ends of a transfer joined), stages, replicas, the slowest workers."""
    actual, best = job.own.astype(float), ideal(job.own, job.name, _computes(job.name))

    def mean(durations: np.ndarray) -> float:
        return float(job.length(durations).mean())

    replayed, ideal_ns = mean(actual), mean(best)
    kinds = np.array([_BOTH_ENDS.get(name, name) for name in job.name])
    classes: list[tuple[str, int, int, str | None, np.ndarray]] = [("kind", -1, -1, str(k), kinds == k) for k in np.unique(kinds)]
    classes += [("stage", int(s), -1, None, job.stage == s) for s in np.unique(job.stage)]
    classes += [("replica", -1, int(r), None, job.replica == r) for r in np.unique(job.replica)]
    rows = []
    for of, stage, replica, kind, mine in classes:
        alone = mean(np.where(mine[:, None], actual, best)) / ideal_ns
        rows.append((of, stage, replica, kind, -1, alone, _cost(replayed, mean(np.where(mine[:, None], best, actual)))))
    effects = pd.DataFrame(rows, columns=EFFECTS)
    last = float(effects[(effects["of"] == "stage")].iloc[-1]["cost"])
    slowest = _slowest(effects)
    for replica, stage in slowest:
        mine = (job.replica == replica) & (job.stage == stage)
        alone = mean(np.where(mine[:, None], actual, best)) / ideal_ns
        effects.loc[len(effects)] = ["worker", stage, replica, None, -1, alone, _cost(replayed, mean(np.where(mine[:, None], best, actual)))]
    fixed = np.isin(job.replica * (int(job.stage.max()) + 1) + job.stage, [r * (int(job.stage.max()) + 1) + s for r, s in slowest])
    without = mean(np.where(fixed[:, None], best, actual))
    return Slowdown(
        job.file, "operations", len(job.steps), float(job.observed().mean()), replayed, ideal_ns, effects,
        mitigated(replayed, replayed * (1 - last), ideal_ns), mitigated(replayed, without, ideal_ns), slowest, _critical(job),
    )  # fmt: skip


def _critical(job: Operations) -> pd.DataFrame:
    start, end = job.dag.run(job.own)
    time = np.where(job.dag.critical(start, end), job.own, 0).sum(axis=1)
    rows = pd.DataFrame({"stage": job.stage, "target": -1, "instruction": job.name, "share": time / time.sum()})
    return rows.groupby(["stage", "target", "instruction"], as_index=False)["share"].sum()


def mitigated(replayed: float, without: float, ideal_ns: float) -> float | None:
    """M = (T - T') / (T - T_ideal): how much of the slowdown goes with one part; null where there is no slowdown to speak of."""
    return (replayed - without) / (replayed - ideal_ns) if replayed - ideal_ns > 1e-3 * ideal_ns else None


def _cost(replayed: float, without: float) -> float:
    return (replayed - without) / replayed


def _computes(names: np.ndarray) -> np.ndarray:
    return np.array([str(n).endswith("-compute") or n in _COMPUTES for n in names])


def _slowest(effects: pd.DataFrame) -> tuple[tuple[int, int], ...]:
    """The slowest workers (replica, stage): a worker can be no slower than its stage and its replica alone, min(S_stage, S_replica)."""
    stages, replicas = (effects[effects["of"] == of].set_index(of)["slowdown"] for of in ("stage", "replica"))
    bound = sorted(((min(a, b), r, s) for s, a in stages.items() for r, b in replicas.items()), key=lambda t: (-t[0], t[1], t[2]))
    count = max(1, round(_WORST_WORKERS * len(bound)))
    return tuple((int(r), int(s)) for _, r, s in bound[:count])


@table("slowdowns", needs=("tables",))
def slowdowns(tables: Tables) -> list[Slowdown]:
    """S and its parts: of each table of operations, else of the recorded steps of the traces."""
    jobs: list[Operations] | None = tables.get("operations")
    if jobs:
        return [of_operations(job) for job in jobs]
    if (steps := tables.get("measured")) is None:
        raise CannotTell("neither traces of all stages nor a table of operations show what each instruction takes")
    return [of_traces(steps)]


def of_traces(measured: Measured) -> Slowdown:
    """S and the effects of recorded steps, of the pipeline phase: kinds, stages, links, replicas and workers.

    A step is as long as its slowest replica. Replicas do not touch each other inside the phase, so one run with a stage idealised on all
    of them tells the effect of each of its workers too.
    """
    graph = schedule_graph(measured.schedule, measured.p, measured.m, blocking=measured.blocking, kinds=measured.costs.given())
    chosen = sample(len(graph.kind) * len(measured.replicas), len(measured.steps))
    line = simulate(graph, measured.costs.each(lambda a: a[chosen]))
    actual = line.durations.astype(float)
    names = np.array(KINDS)[graph.kind]
    best = ideal(actual, names, np.isin(names, COMPUTE))
    best[names == "load"] = 0.0  # a batch that is there already takes no time

    def cells(durations: np.ndarray) -> np.ndarray:
        return Timeline(graph, durations, *graph.dag.run(durations)).phase()

    whole, without = cells(actual), cells(best)
    replayed, ideal_ns = float(whole.max(axis=1).mean()), float(without.max(axis=1).mean())
    rows: list[tuple[str, int, int, str | None, int, float, float]] = []
    by_stage = {}
    for of, stage, kind, target, mine in _classes(measured, line, names):
        alone, rest = (cells(np.where(mine[:, None, None], a, b)) for a, b in ((actual, best), (best, actual)))
        rows.append((of, stage, -1, kind, target, float(alone.max(axis=1).mean()) / ideal_ns, _cost(replayed, float(rest.max(axis=1).mean()))))
        if of == "stage":
            by_stage[stage] = (alone, rest)
    many = len(measured.replicas) > 1
    for r, replica in enumerate(measured.replicas if many else []):
        ends = _exchanged(without, whole, r) / ideal_ns, _cost(replayed, _exchanged(whole, without, r))
        rows.append(("replica", -1, int(replica), None, -1, *ends))
        for stage, (only, fixed) in by_stage.items():
            ends = _exchanged(without, only, r) / ideal_ns, _cost(replayed, _exchanged(whole, fixed, r))
            rows.append(("worker", stage, int(replica), None, -1, *ends))
    effects = pd.DataFrame(rows, columns=EFFECTS)
    last = by_stage.get(measured.p - 1)
    of_last = mitigated(replayed, float(last[1].max(axis=1).mean()), ideal_ns) if last else None
    return Slowdown(None, "trace", len(measured.steps), float(measured.phase_ns.max(axis=1).mean()), replayed, ideal_ns, effects, of_last, None)


def _exchanged(cells: np.ndarray, others: np.ndarray, replica: int) -> float:
    """Mean length of a step where one replica is taken from *others*."""
    mixed = cells.copy()
    mixed[:, replica] = others[:, replica]
    return float(mixed.max(axis=1).mean())


def _classes(measured: Measured, line: Timeline, names: np.ndarray) -> list[tuple[str, int, str | None, int, np.ndarray]]:
    """(of, stage, kind, target, which instructions): kinds, the stages and the links, both directions together."""
    transfer, late = np.isin(names, ("activation", "grad")), np.isin(names, ("send_activation", "send_grad"))
    stage, place = line.graph.stage, line.graph.place
    gaps = np.isin(names, ("before_forward", "before_backward"))
    kinds = [(k, names == k) for k in (*COMPUTE, "load", "activation", "grad")] + [("host-gap", gaps), ("late-send", late)]
    transfer |= late  # what a sender idles before its call counts to the link: a slow link and a slow host path look alike
    on = line.critical()
    weight = np.where(on, line.durations, 0).reshape(len(names), -1).sum(axis=1)
    stages = sorted(range(measured.p), key=lambda s: -weight[(stage == s) & ~transfer].sum())[:_MOST_CLASSES]
    links = sorted(range(measured.p - 1), key=lambda e: -weight[(place == e) & transfer].sum())[:_MOST_CLASSES]
    found: list[tuple[str, int, str | None, int, np.ndarray]] = [("kind", -1, k, -1, mine) for k, mine in kinds if line.durations[mine].any()]
    found += [("stage", s, None, -1, (stage == s) & ~transfer) for s in sorted(stages)]
    return found + [("link", e, None, e + 1, (place == e) & transfer) for e in sorted(links)]


@table("replay", needs=("measured",))
def replay(measured: Measured) -> pd.DataFrame:
    """The replayed instructions of the middle step by length, of its slowest replica: stage, target (of a transfer), instruction,
    micro_batch, start_ns, end_ns (from the beginning of the phase), slack_ns (by how much it may end later without lengthening the
    phase), critical (whether it lies on the critical path). Instructions that take no time are left out.
    """
    lengths = measured.phase_ns.max(axis=1)
    step = int(np.argsort(lengths, kind="stable")[len(lengths) // 2])
    replica = int(measured.phase_ns[step].argmax())
    graph = schedule_graph(measured.schedule, measured.p, measured.m, blocking=measured.blocking, kinds=measured.costs.given())
    line = simulate(graph, measured.costs.each(lambda a: a[step, replica]))
    begin = line.start[graph.kind == KINDS.index("forward")].min()
    names = np.array(KINDS)[graph.kind]
    rows = pd.DataFrame(
        {
            "step": measured.steps[step],
            "replica": measured.replicas[replica],
            "stage": graph.stage,
            "target": pd.array(np.where(names == "activation", graph.place + 1, graph.place), "Int64"),
            "instruction": names,
            "micro_batch": graph.micro_batch,
            "start_ns": (line.start - begin).round().astype(np.int64),
            "end_ns": (line.end - begin).round().astype(np.int64),
            "slack_ns": line.slack().round().astype(np.int64),
            "critical": line.critical(),
        }
    )
    rows.loc[~rows["instruction"].isin(["activation", "grad"]), "target"] = pd.NA
    return rows[line.durations > 0].sort_values(["stage", "start_ns"], kind="stable").reset_index(drop=True)
