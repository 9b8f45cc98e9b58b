"""Compute of each rank, step by step, from what measures it on most ranks: traces, or Megatron's timers of all ranks."""

from __future__ import annotations

import pandas as pd

from pipelog.tables import CannotTell, Tables, table
from pipelog.tables.config import Config
from pipelog.tables.steps import series


@table("compute_time", needs=("tables",))
def compute_time(tables: Tables) -> pd.DataFrame:
    """One row a step (of timers: an interval of steps, the mean of one) and rank whose stage is known: step, stage, replica, rank, busy_ns, forward_ns,
    backward_ns, recompute_ns (null where it is not told), micro_batches, step_ns, per, source (`trace` or `timers`), file, line.

    per: what the divisor micro_batches stands for: `micro-batch`, or `step` where the number of micro-batches is not known or changes (then it is 1).
    """
    timed = _of_timers(tables)
    traced = tables.get("stage_time")
    if timed is None and traced is None:
        _say_what_timers_lack(tables)
        traced = tables["stage_time"]  # raises: nothing else measures compute
    if timed is None or (traced is not None and traced["rank"].nunique() >= timed["rank"].nunique()):
        length = traced["step_end_ns"] - traced["step_start_ns"]
        return traced.assign(step_ns=length, per="micro-batch", source="trace")[_COLUMNS]
    return timed


_COLUMNS = ["step", "stage", "replica", "rank", "busy_ns", "forward_ns", "backward_ns", "recompute_ns", "micro_batches", "step_ns"]
_COLUMNS += ["per", "source", "file", "line"]


def _of_timers(tables: Tables) -> pd.DataFrame | None:
    """From forward-compute and backward-compute, which are means of one iteration; None without them.

    forward-compute holds batch-generator, the wait for the batch, which is no compute. The first interval holds warm-up and is left out where there are others.
    """
    timers: pd.DataFrame = tables["rank_timers"]
    if not {"forward-compute", "backward-compute"} <= set(timers.columns):
        return None
    rows = timers.dropna(subset=["stage", "forward-compute", "backward-compute"])
    later = rows[rows["step"] > rows["step"].min()]
    rows = later if len(later) else rows
    if not len(rows):
        return None
    config: Config = tables["config"]
    batches = series(tables["scalars"], "global_batch_size")["value"].nunique()
    known = config.micro_batches is not None and batches <= 1
    waited = rows["batch-generator"].fillna(0) if "batch-generator" in rows else 0
    forward = (rows["forward-compute"] - waited).clip(lower=0)
    return rows.assign(
        stage=rows["stage"].astype("int64"),
        replica=rows["replica"].fillna(0).astype("int64"),
        rank=rows["rank"].astype("int64"),
        forward_ns=forward,
        backward_ns=rows["backward-compute"],
        busy_ns=forward + rows["backward-compute"],
        recompute_ns=float("nan"),
        micro_batches=config.micro_batches if known else 1,
        per="micro-batch" if known else "step",
        source="timers",
    )[_COLUMNS].reset_index(drop=True)


def _say_what_timers_lack(tables: Tables) -> None:
    if len(tables["rank_timers"]):
        raise CannotTell(
            "Megatron's timers tell the compute of each rank, but no line says which stage a rank is: the arguments that it prints would"
        )
    if {"forward-compute", "backward-compute"} & set(tables["timer_ranges"]["name"]):
        raise CannotTell(
            "Megatron's timers give the smallest and the largest compute over the ranks, not whose they are: "
            "--timing-log-option all lists every rank; profiler traces of every rank would show it too"
        )


def said_per(compute_time: pd.DataFrame) -> str:
    """`per micro-batch`, or `a step`."""
    return "a step" if "per" in compute_time and (compute_time["per"] == "step").any() else "per micro-batch"
