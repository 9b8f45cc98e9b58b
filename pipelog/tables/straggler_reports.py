"""What the straggler detectors of Megatron and of NVIDIA's resiliency extension reported: the slowest ranks, report by report."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd
import pyarrow as pa

from pipelog.tables import frame, table
from pipelog.tables.steps import Steps

_COLUMNS = ("kind", "name", "text", "rank", "stage", "replica", "value", "start_ns", "file", "line")
_THRESHOLD = 0.7
"""Score below which NVIDIA's detection flags a rank, unless it is told another."""
_NUMBERS = ("clock_rank", "clock_mhz", "clock_most_mhz", "hot_rank", "hot_c")


@table("straggler_reports", needs=("placed", "steps"))
def straggler_reports(placed: pa.Table, steps: Steps) -> pd.DataFrame:
    """One row a report and rank that it names as slow: source (megatron, relative, individual, flagged), report (from 0), step, rank, stage, replica, took, others, excess, listed,
    best_rank, clock_rank, clock_mhz, clock_most_mhz, hot_rank, hot_c, file, line (of the rank's own figure).

    took: forward passes of one iteration in ns (megatron), else 1 / score. others: the same of the ranks it is held against, excess = took / others - 1.
    Of ranks that are only flagged as below a threshold, the usual one. Where the report lists several ranks (listed), that is the last of them, than which none that is not listed is slower; else the fastest rank of all, best_rank.
    """
    rows = frame(placed, ("straggler_figure", "gpu_score"), _COLUMNS)
    if not len(rows):
        return pd.DataFrame({"source": pd.Series(dtype=object)})
    rows["unit"] = _unit(rows)
    made = pd.DataFrame([row for report in _reports(rows) for row in _of_report(report)])
    if not len(made):
        return pd.DataFrame({"source": pd.Series(dtype=object)})
    made = pd.concat([_of_one_file(mine) for _, mine in made.groupby("source", sort=False)], ignore_index=True)
    made["step"] = _steps_of(made, steps.rows)
    return made


def _of_one_file(mine: pd.DataFrame) -> pd.DataFrame:
    """Reports of one source numbered, those of the file with most of them: the same lines stand in the merged log and in rank 0's."""
    mine = mine[mine["file"] == mine["file"].value_counts().index[0]]
    return mine.assign(report=pd.factorize(mine["begin"], sort=True)[0]).drop(columns="begin")


def _unit(rows: pd.DataFrame) -> pd.Series:
    """What works as one: the ranks of one stage and replica, who wait for each other in every layer; a rank alone where its place is not known."""
    known = rows["stage"].notna() & rows["replica"].notna()
    place = rows["stage"].astype("string") + "/" + rows["replica"].astype("string")
    return place.where(known, "rank " + rows["rank"].astype("string"))


def _reports(rows: pd.DataFrame) -> Iterator[pd.DataFrame]:
    """The rows of one report each, in order of file and line."""
    figures, scores = rows[rows["kind"] == "straggler_figure"], rows[(rows["kind"] == "gpu_score") & rows["value"].notna()]
    begins = (figures["name"] == "rtt_ms") & (figures["text"] == "min")
    for _, report in figures.groupby([figures["file"], begins.groupby(figures["file"]).cumsum()], sort=False):
        yield report
    for _, mine in scores.groupby(["file", "name"], sort=False):
        begun: list[int] = []
        seen: set[int] = set()
        last = ""
        for rank, listed in zip(mine["rank"], mine["text"], strict=True):
            new = rank in seen or listed not in (last, "best")
            seen = {rank} if new else seen | {rank}
            begun.append(int(new))
            last = listed
        for _, report in mine.groupby(np.cumsum(begun), sort=False):
            yield report
    flagged = rows[(rows["text"] == "flagged") & (rows["name"] == "relative")]
    for _, report in flagged.groupby(["file", "line"], sort=False):
        yield report


def _of_report(report: pd.DataFrame) -> list[dict[str, object]]:
    """The rows that one report gives; none where it is cut."""
    first = report.iloc[0]
    head = {"file": first["file"], "begin": int(first["line"]), "at_ns": first["start_ns"]}
    if first["text"] == "flagged":
        took = pd.Series(1 / _THRESHOLD, index=report.index)
        return _rows(report, took, head | {"source": "flagged", "listed": True, "best_rank": -1} | dict.fromkeys(_NUMBERS, np.nan), others=1.0)
    if first["kind"] == "gpu_score":
        return _of_scores(report, head | {"source": first["name"]} | dict.fromkeys(_NUMBERS, np.nan))
    figure = {(r.name, r.text): r for r in report.itertuples(index=False) if r.text in ("min", "max")}
    slow, fast = figure.get(("rtt_ms", "max")), figure.get(("rtt_ms", "min"))
    if slow is None or fast is None or not fast.value > 0:
        return []
    cool, quick, hot = figure.get(("clock_mhz", "min")), figure.get(("clock_mhz", "max")), figure.get(("temperature_c", "max"))
    told = (cool and cool.rank, cool and cool.value, quick and quick.value, hot and hot.rank, hot and hot.value)
    head |= {"source": "megatron", "best_rank": int(fast.rank), **dict(zip(_NUMBERS, (np.nan if v is None else float(v) for v in told), strict=True))}
    bottom = report[(report["text"] == "bottom") & (report["value"] > 0)].sort_values("value")
    if len(bottom) > 1 and bottom["unit"].iloc[0] == slow.unit and (bottom["unit"] != slow.unit).any():
        # throughput is the same work over the time that was measured
        return _rows(bottom, slow.value * 1e6 * bottom["value"].iloc[0] / bottom["value"], head | {"listed": True})
    alone = report[(report["name"] == "rtt_ms") & (report["text"] == "max")]
    return _rows(alone, alone["value"] * 1e6, head | {"listed": False}, others=fast.value * 1e6)


def _of_scores(report: pd.DataFrame, head: dict[str, object]) -> list[dict[str, object]]:
    """Of a list of all ranks the typical one is their lower median, of the worst alone the best of these."""
    good = report[report["value"] > 0].sort_values("value")
    worst = good[good["text"] != "best"]
    if len(worst) < 2 or worst["unit"].nunique() < 2:
        return []
    took = 1 / worst["value"]
    others = took.quantile(0.5, interpolation="lower") if (worst["text"] == "all").any() else took.min()
    return _rows(worst, took, head | {"listed": True, "best_rank": int(good["rank"].iloc[-1])}, others=float(others))


def _rows(ranks: pd.DataFrame, took: pd.Series, head: dict[str, object], others: float | None = None) -> list[dict[str, object]]:
    reference = float(took.min()) if others is None else others
    return [
        head
        | {
            "rank": int(r),
            "stage": s,
            "replica": p,
            "unit": u,
            "line": int(n),
            "took": float(t),
            "others": reference,
            "excess": float(t) / reference - 1,
        }
        for r, s, p, u, n, t in zip(*(ranks[c] for c in ("rank", "stage", "replica", "unit", "line")), took, strict=True)
    ]


_LATE_NS = 2_000_000_000
"""Two ranks print the line and the report, with stamps of whole seconds."""


def _steps_of(reports: pd.DataFrame, steps: pd.DataFrame) -> pd.Series:
    """The step of the last line above a report in its file; where step lines stand in other files, of the last one not later by the clock."""
    out = pd.Series(pd.NA, index=reports.index, dtype="Int64")
    timed = steps.dropna(subset=["start_ns"]).sort_values("start_ns")
    for file, mine in reports.groupby("file", sort=False):
        here = steps[steps["file"] == file].sort_values("line")
        if len(here):
            lines, at = here["line"].to_numpy(dtype=np.int64), mine["line"].to_numpy(dtype=np.int64)
        elif len(timed) and mine["at_ns"].notna().all():
            here = timed
            lines, at = timed["start_ns"].to_numpy(dtype=np.int64), mine["at_ns"].to_numpy(dtype=np.int64) + _LATE_NS
        else:
            continue
        index = np.searchsorted(lines, at, side="right") - 1
        out.loc[mine.index[index >= 0]] = here["step"].to_numpy(dtype=np.int64)[index[index >= 0]]
    return out
