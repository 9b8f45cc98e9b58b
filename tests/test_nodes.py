"""Nodes that are gone, and ranks that launchers name by node: PALS, Flux, and what clusters' prefixes call a node."""

from __future__ import annotations

from typing import Any

from tests.telling import read

STEPS = [f"steps: {n} loss: 4.2454 iter time (s): 4.318 samples/sec: 44.466" for n in (10, 20, 30)]
PALS = ["mpiexec -n 8 --ppn 4 --hosts x1c0,x1c1 --cpu-bind none python3 train.py --pipeline-model-parallel-size 2", *STEPS]
NODE = ["x1c1", "     Mom = x1c1.hsn.example.org", "     state = down,offline", "     comment = node down: communication closed"]


def verdict(files: dict[str, list[str]]) -> Any:
    return read(files)["deaths"][-1]


def test_the_rank_that_died_first_is_the_one_that_mpiexec_did_not_end() -> None:
    death = verdict({"run.log": [*PALS, "x1c1: rank 5 died from signal 9", "x1c0: rank 1 died from signal 15"]})
    assert (death.category, death.known, death.ranks, death.stages, death.hosts) == ("killed", False, (5,), (1,), ("x1c1",))


def test_a_node_whose_shepherd_died_takes_its_ranks_along() -> None:
    gone = ["x1c1: shepherd died from signal 9", "x1c0: rank 1 died from signal 15"]
    death = verdict({"run.log": [*PALS, *gone]})
    assert (death.category, death.known, death.ranks, death.hosts) == ("hardware.node", False, (4, 5, 6, 7), ("x1c1",))
    death = verdict({"run.log": [*PALS, *gone], "pbsnodes.txt": NODE})
    assert (death.category, death.known, death.ranks, death.stages) == ("hardware.node", True, (4, 5, 6, 7), (1,))


def test_a_node_that_is_down_and_that_nobody_misses_is_another_jobs() -> None:
    death = verdict({"run.log": [*PALS, "x1c1: rank 5 died from signal 9", "x1c0: rank 1 died from signal 15"], "pbsnodes.txt": NODE})
    assert (death.category, death.ranks) == ("killed", (5,))
    assert verdict({"run.log": PALS, "pbsnodes.txt": NODE}).category is None


def test_the_rank_of_a_flux_shell_is_that_of_a_node() -> None:
    run = ["# flux run -N2 -n8 python3 train.py --pipeline-model-parallel-size 4", "$ flux hostlist local", "node[180-181]", *STEPS]
    gone = ["612.744s: job.exception type=node-failure severity=0 node failure on node181 (shell rank 1)", "flux-job: task(s) Killed"]
    death = verdict({"flux.out": [*run, *gone]})
    assert (death.status, death.category, death.ranks, death.hosts) == ("failed", "hardware.node", (4, 5, 6, 7), ("node181",))
    lost = ["2025-05-06T18:50:33.118223Z broker.err[0]: node7 (rank 5) has disconnected unexpectedly, marking it LOST"]
    assert verdict({"flux.out": run, "flux-dmesg.txt": lost}).category is None
