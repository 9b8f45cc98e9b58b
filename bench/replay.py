"""The replay of a large job: 256 ranks x 50 steps x 64 micro-batches of durations, to breakdown, links, slowdown and what-if.

python bench/replay.py [STAGES REPLICAS STEPS MICRO_BATCHES]
"""

from __future__ import annotations

import json
import resource
import sys
import time

import numpy as np
import pandas as pd

import pipelog.replay
import pipelog.tables
from pipelog.events import EVENTS, Events
from pipelog.registry import load
from pipelog.replay import told
from pipelog.replay.simulate import Costs, run
from pipelog.tables import Tables
from pipelog.tables.config import Config
from pipelog.tables.durations import PASSES, Durations
from pipelog.tables.topology import Topology

_MS = 1e6


def durations(p: int, d: int, steps: int, m: int, seed: int = 7) -> Durations:
    """Passes of 10 and 20 ms that vary by 2 %, a stage 20 % heavier, a link of 3 ms among those of 0.5 ms; phases as they then take."""
    random = np.random.default_rng(seed)
    cells = steps * d

    def around(mean: float, rows: int) -> np.ndarray:
        return mean * random.lognormal(0.0, 0.02, (cells, rows, m))

    forward, backward = around(10 * _MS, p), around(20 * _MS, p)
    forward[:, p // 2] *= 1.2
    activation, grad = around(0.5 * _MS, p - 1), around(0.5 * _MS, p - 1)
    activation[:, p // 3] *= 6
    load = np.zeros((cells, p, m))
    load[:, [0, -1]] = 0.1 * _MS
    phase = run("1f1b", Costs(forward, backward, load=load, activation=activation, grad=grad), p, m).phase()
    gaps = np.zeros((cells, p, m)), np.zeros((cells, p - 1, m))
    step, replica = (a.ravel() for a in np.meshgrid(np.arange(1, steps + 1), np.arange(d), indexing="ij"))
    ranks = replica[:, None] + d * np.arange(p)
    return Durations(step, replica, phase, ranks, np.zeros((cells, p)), forward, backward, load, gaps[0], gaps[0], activation, grad, gaps[1], gaps[1])


def tables_of(found: Durations, p: int, d: int, m: int) -> Tables:
    """The tables of a job with these durations; everything from them on is computed."""
    stage_time = pd.DataFrame(
        {
            "step": np.repeat(found.step, p),
            "replica": np.repeat(found.replica, p),
            "stage": np.tile(np.arange(p), len(found.step)),
            "rank": found.rank.ravel(),
            "step_start_ns": 0,
            "step_end_ns": np.repeat(found.phase_ns * 1.05, p).astype(np.int64),
            "phase_start_ns": 0,
            "phase_ns": np.repeat(found.phase_ns, p),
            "complete": True,
        }
    )
    config = Config(micro_batches=m, micro_batch_size=4, train_batch_size=4 * m * d, virtual_stages=1)
    passes = pd.DataFrame(columns=PASSES).astype({"rank": np.int64})  # the order of passes is checked on those recorded: none here
    shared = {"durations": [found], "passes": passes, "stage_time": stage_time, "config": config, "topology": Topology(p * d, p, d, 1)}
    return Tables(Events(EVENTS.empty_table(), []), None, shared)


def measure(p: int, d: int, steps: int, m: int) -> dict[str, float]:
    """Seconds of each part, and the peak memory of the process in MB."""
    load(pipelog.tables)
    load(pipelog.replay)
    tables = tables_of(durations(p, d, steps, m), p, d, m)
    seconds = {}
    for name in ("replay_order", "measured", "replay_check", "slowdowns", "links", "replay", "what_if"):
        begin = time.perf_counter()
        tables[name]
        seconds[name] = time.perf_counter() - begin
    begin = time.perf_counter()
    told.figures(tables)
    told.changes(tables)
    seconds["told"] = time.perf_counter() - begin
    return seconds | {"all": sum(seconds.values()), "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}


if __name__ == "__main__":
    print(json.dumps(measure(*map(int, sys.argv[1:] or (16, 16, 50, 64)))))
