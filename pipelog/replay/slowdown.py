"""What each kind of operation, stage, replica and worker costs: replays in which one class is ideal, or alone as measured.

After "Understanding Stragglers in Large Model Training Using What-if Analysis" (arXiv 2505.05713): T is the mean length of a step
replayed on measured durations, T_ideal with every operation at its ideal one: the mean over all stages, replicas and steps for
computation, the median for what waits for a wire. S = T / T_ideal.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from pipelog.replay.operations import P2P, Operations

EFFECTS = ["of", "stage", "replica", "kind", "target", "slowdown", "cost"]

_WORST_WORKERS = 0.03
"""Share of the workers that are called the slowest ones, as in the paper; at least one."""
_COMPUTES = ("optimizer",)
_BOTH_ENDS = {name: f"{way}-pp-comm" for name, (way, _) in P2P.items()}


@dataclass(frozen=True, slots=True)
class Slowdown:
    """observed_ns, replayed_ns, ideal_ns: mean length of a step (of the pipeline phase, where traces are the source).

    slowdown: S = replayed / ideal. effects: one row a class (EFFECTS): of (kind, stage, replica, worker, link), slowdown (S of a run in
    which this class alone is as measured) and cost (share of the replayed length that goes where it alone is ideal). last_stage,
    slowest_workers: (T - T') / (T - T_ideal) with T' where the last stage, or the slowest 3 % of workers, are ideal; null without a
    difference. It can leave [0, 1], since parts interact.
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
    out = np.empty(durations.shape, float)
    for kind in np.unique(kinds):
        like = kinds == kind
        out[like] = durations[like].mean() if computes[like][0] else np.median(durations[like])
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
    fixed = np.isin(job.replica * (int(job.stage.max()) + 1) + job.stage, [r * (int(job.stage.max()) + 1) + s for r, s in slowest])
    without = mean(np.where(fixed[:, None], best, actual))
    return Slowdown(
        job.file, "operations", len(job.steps), float(job.observed().mean()), replayed, ideal_ns, effects,
        mitigated(replayed, replayed * (1 - last), ideal_ns), mitigated(replayed, without, ideal_ns), slowest,
    )  # fmt: skip


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
