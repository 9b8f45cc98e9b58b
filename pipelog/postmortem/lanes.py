"""What the ranks did in the end: when each made its last step, wrote its last line, and said its first error."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from pipelog.postmortem.deaths import Death
from pipelog.postmortem.kinds import Role
from pipelog.tables import Tables, table
from pipelog.tables.topology import Topology

_CLOCKS = ("log", "utc")
_ERRORS = {Role.INITIATING.value: 0, Role.CASCADE.value: 1, Role.TEARDOWN.value: 2}


@table("lanes", needs=("tables", "ended", "chosen"))
def lanes(tables: Tables, ended: Death, chosen: int) -> pd.DataFrame:
    """One row a rank that wrote a line in the attempt that the verdict tells of: rank, stage, host; first_ns and last_ns (its first and last line), file and line of the last; step and
    step_ns (its last step); error_ns, error_role, error_file, error_line (its first error, the one that began it before others).

    Times are of the logs' own clock, ns. Of a line without a time it is the last time above it in its file; last_until_ns and error_until_ns
    are then the next one below, before which it was written. What others print of a rank (launchers, tables of ranks) is none of its lines, but may be its error. Null where
    nothing tells. Empty where the run came to its end.
    """
    last = ended
    if last.status == "completed" or not len(last.roles):
        return pd.DataFrame(columns=[*_COLUMNS, *_ERROR])
    mine = tables if last.attempt == chosen else tables.of_attempt(last.attempt)
    logs = [i.path for i in mine["inputs"] if i.kind == "log"]
    rows = _timed(mine["placed"], last.roles, logs)
    ends = _ends(rows)
    span = (float(ends["first_ns"].min()), float(ends[["last_ns", "last_until_ns"]].max().max())) if len(ends) else (0.0, 0.0)
    found = ends.merge(_errors(last.roles, rows, last.ranks, span), on="rank", how="outer").sort_values("rank", ignore_index=True)
    topology: Topology = mine["topology"]
    found["stage"] = pd.array([topology.stage_of(int(r)) for r in found["rank"]], dtype="Int64")
    found["host"] = pd.Series([topology.host_of(int(r)) for r in found["rank"]], dtype=object, index=found.index)
    return found[[*_COLUMNS, *_ERROR]]


_COLUMNS = ("rank", "stage", "host", "first_ns", "last_ns", "last_until_ns", "step", "step_ns", "file", "line")
_ERROR = ("error_ns", "error_until_ns", "error_role", "error_file", "error_line")
_BY_OTHERS = ("place", "process", "end", "megatron_timer", "straggler_figure", "gpu_score")
"""Kinds of rows that speak of a rank without being printed by it."""


def _timed(placed: pa.Table, roles: pd.DataFrame, logs: list[str]) -> pd.DataFrame:
    """Rows of the logs, with the errors as `errors` has them, in order of file and line: rank, step, file, line, kind; at, its time or the last one above it in its file; until, the next below it."""
    clock = placed.column("clock").cast(pa.string())
    stamped = pa.compute.is_in(clock, pa.array(_CLOCKS))
    of_log = pa.compute.and_(pa.compute.is_in(placed.column("file").cast(pa.string()), pa.array(logs, pa.string())), placed.column("line").is_valid())
    rows = (
        placed.select(["kind", "rank", "step", "file", "line"])
        .append_column("at", pa.compute.if_else(stamped, placed.column("start_ns"), None))
        .filter(of_log)
    )
    made = pd.DataFrame({n: rows.column(n).cast(pa.string()).to_pandas() for n in ("kind", "file")})
    made = made.assign(**{n: rows.column(n).cast(pa.float64(), safe=False).to_numpy() for n in ("rank", "step", "line", "at")})
    said = roles[roles["kind"] == "error"].assign(at=np.nan)
    made = pd.concat([made[made["kind"] != "error"], said[list(made.columns)].astype(dict.fromkeys(("rank", "step", "line", "at"), float))])
    # the times of errors were given their year
    errors = roles[["file", "line", "at_ns"]].dropna().astype({"line": float, "at_ns": float}).drop_duplicates(["file", "line"])
    made = made.merge(errors, on=["file", "line"], how="left").sort_values(["file", "line"], kind="stable", ignore_index=True)
    own = made["at"].fillna(made["at_ns"])
    by_file = own.groupby(made["file"], sort=False)
    made["at"] = own.fillna(by_file.transform(lambda t: t.cummax().ffill()))
    below = by_file.bfill()
    made["until"] = below.where(own.isna() & (below > made["at"]))
    return made


def _ends(rows: pd.DataFrame) -> pd.DataFrame:
    """First and last line, and last step, of each rank that has any. Times are exact to 256 ns, which is enough."""
    known = rows[~rows["kind"].isin(_BY_OTHERS)].dropna(subset=["rank", "at"])
    ends = known.sort_values(["at", "line"], kind="stable").groupby("rank")
    last = ends.tail(1).set_index("rank")[["at", "until", "file", "line"]].rename(columns={"at": "last_ns", "until": "last_until_ns"})
    steps = (
        known[known["step"] > 0].sort_values(["step", "at"], kind="stable").groupby("rank")[["step", "at"]].last().rename(columns={"at": "step_ns"})
    )
    found = last.join(ends["at"].min().rename("first_ns")).join(steps).reset_index()
    numbers = ["rank", "first_ns", "last_ns", "last_until_ns", "step", "step_ns", "line"]
    return found.assign(**{n: _whole(found[n]) for n in numbers})


def _errors(roles: pd.DataFrame, rows: pd.DataFrame, began: tuple[int, ...], span: tuple[float, float]) -> pd.DataFrame:
    """Of each rank the error that tells most about its end: the one that began it, else the first that followed; those with a time before others.

    What began it and names no rank is of the one rank that *began* it, where it falls into the time of the ranks' own lines (*span*, ns).
    """
    times = rows.drop_duplicates(["file", "line"])[["file", "line", "at", "until"]]
    found = roles[roles["rank"].notna() & roles["role"].isin(_ERRORS)]
    if len(began) == 1 and not (found["role"] == Role.INITIATING.value).any():  # a line of the kernel, or of a device, that names no rank
        of_one = roles[(roles["role"] == Role.INITIATING.value) & roles["at_ns"].between(*span).fillna(False).astype(bool)]
        found = pd.concat([of_one.assign(rank=pd.array([began[0]] * len(of_one), dtype="Int64")), found])
    found = found.astype({"line": float}).merge(times, on=["file", "line"], how="left")
    found = found.assign(_weight=found["role"].map(_ERRORS), _bare=found["at_ns"].isna())
    found = found.sort_values(["_weight", "_bare", "at", "order", "line"], kind="stable").drop_duplicates("rank")
    renamed = found.rename(columns={"role": "error_role", "file": "error_file", "line": "error_line", "at": "error_ns", "until": "error_until_ns"})
    numbers = ["rank", "error_line", "error_ns", "error_until_ns"]
    return renamed[["rank", *_ERROR]].assign(**{n: _whole(renamed[n]) for n in numbers})


def _whole(values: pd.Series) -> Any:
    """Whole numbers that pandas keeps as floats, null where they are not known."""
    known = values.to_numpy(dtype=np.float64, na_value=np.nan)
    none = np.isnan(known)
    return pd.arrays.IntegerArray(np.where(none, 0, known).astype(np.int64), none)
