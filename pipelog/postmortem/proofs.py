"""Lines beside the first one that show the same: another source's word for it, the rank that saw it first, the launcher's word for its end."""

from __future__ import annotations

import re
from dataclasses import replace

import pandas as pd
import pyarrow as pa

from pipelog.postmortem.kinds import Kind, Role
from pipelog.tables import frame
from pipelog.tables.ending import Ending

_MOST = 2
"""Lines of another source that are shown, and of the rank that saw it."""
_LIMIT = re.compile(r"CONSTRAINT_MEMCG|Memory cgroup out of memory")
_WHOLE = re.compile(r"CONSTRAINT_(?:NONE|CPUSET|MEMORY_POLICY)|(?<!cgroup )[Oo]ut of memory: Kill|System OOM|low on resource: memory")
"""The kernel says whose memory was short: that of the host, or what a cgroup (of a job, of a container) may have."""
_BY_COUNT = frozenset({"slurm-oom", "slurm-task", "k8s-oom-killed", "k8s-exit-code"})
"""Rows that count the kernel's kills: they do not say whose memory was short."""
_WORKER = re.compile(r"\(pt_data_worker\)|task=pt_data_worker\b")
"""The name that PyTorch gives to the processes of its data loaders."""
_PIDS = re.compile(r"\(pid(?:\(s\))? ([\d, ]+)\)")
_EXCEEDED = re.compile(r"(?i)exceeded (?:\w+ )?memory limit|TERM_MEMLIMIT")


def told_again(roles: pd.DataFrame, same: pd.DataFrame, first: pd.Series, kind: Kind, lines: list[int], ranks: tuple[int, ...]) -> pd.Index:
    """Rows of the same kind in which another source speaks of it: the kernel of a rank's device, the scheduler of the job, ssh of the launcher's code.

    Of a hang none: those who wait only say that they do.
    """
    if kind.category == "hang":
        return roles.index[:0]
    mine = roles[(roles["error"] == kind.name) & ~roles.index.isin(same.index) & ~roles["role"].isin([Role.BENIGN.value, Role.TEARDOWN.value])]
    other = mine["name"] != first["name"]
    of_job = kind.job and not ranks
    counted = mine["rank"].isna() & mine["name"].isin(_BY_COUNT) & (kind.name == "host-oom-killed")  # the kernel's kills once more
    of_rank = mine["rank"].isin(ranks) | mine.index.isin(lines)
    step = mine["text"].str.contains("DUE TO NODE FAILURE", regex=False) & of_job  # of the whole step; the node it names only ran its daemon
    ssh = mine["text"].str.contains("ssh exited with exit code", regex=False) & (mine["host"] == first["host"]) & (mine["code"] == first["code"])
    return mine.index[(other & (of_rank | of_job | counted)) | step | ssh.fillna(False)]


def with_those(lines: list[int], again: pd.Index, roles: pd.DataFrame) -> list[int]:
    """The places of the lines to show: the kernel's word before the process's, that of others behind the first line; ssh only repeats a code."""
    rows = roles.loc[[p for p in again if p not in lines]]
    rows = rows[~rows["text"].str.contains("ssh exited", regex=False) & rows["code"].isna()]
    kernel = rows["name"].str.startswith("kernel")
    return [*rows.index[kernel][:_MOST], *lines[:1], *rows.index[~kernel][:_MOST], *lines[1:]]


def seen_by(kind: Kind, placed: pa.Table, ranks: tuple[int, ...]) -> tuple[tuple[str, int], ...]:
    """The first and the last line in which the rank that began it says that it saw an overflow."""
    if kind.category != "numerics.loss-scale" or not ranks:
        return ()
    rows = frame(placed, ("overflow",), ("name", "rank", "file", "line"))
    rows = rows[(rows["name"] == "culprit") & rows["rank"].isin(ranks)].sort_values(["file", "line"])
    return tuple((str(f), int(n)) for f, n in rows[["file", "line"]].iloc[[0, -1]].drop_duplicates().itertuples(index=False)) if len(rows) else ()


def of_its_end(roles: pd.DataFrame, ranks: tuple[int, ...], hosts: tuple[str, ...]) -> pd.Series | None:
    """The launcher's word for the end of those who began it, else of one on their host, else the first that is of nobody else: how others end shows nothing."""
    codes = roles[roles["code"].notna()]
    nobody = (codes["rank"].isna() | (not ranks)) & (codes["host"].isna() | (not hosts))
    for mine in (codes[codes["rank"].isin(ranks)], codes[codes["rank"].isna() & codes["host"].isin(hosts)], codes[nobody]):
        if len(mine):
            return mine.iloc[0]
    return None


def killed_for_memory(
    kind: Kind, first: pd.Series, roles: pd.DataFrame, ranks: tuple[int, ...], hosts: tuple[str, ...]
) -> tuple[Kind, tuple[int, ...], bool]:
    """A kill for want of memory in words that say whose memory and which process; the places of the loader's own lines; whether a cgroup's limit was met."""
    if kind.name != "host-oom-killed":
        return kind, (), False
    kernel = roles[(roles["name"] == "kernel-oom") & (roles["role"] != Role.BENIGN.value)]
    kernel = kernel[kernel["host"].isna() | kernel["host"].isin(hosts)] if hosts else kernel
    text = "\n".join([str(first["text"]), *kernel["text"]])
    limit = _LIMIT.search(text) is not None and _WHOLE.search(text) is None
    lost = roles[(roles["error"] == "data-worker-exited") & roles["rank"].isin(ranks) & (roles["role"] != Role.BENIGN.value)]
    killed = set(kernel["value"].dropna().astype(int))
    pids = [{int(pid) for pid in re.findall(r"\d{1,9}", m.group(1))} if (m := _PIDS.search(t)) else set() for t in lost["text"]]
    loader = lost[[bool(p & killed) for p in pids]] if killed <= set().union(*pids) else lost.iloc[:0]
    named = len(kernel) > 0 and kernel.loc[kernel["value"].notna(), "text"].str.contains(_WORKER.pattern).all()
    if limit:
        why = "at the memory limit of its cgroup"
    elif _EXCEEDED.search(str(first["text"])):
        why = "at its memory limit"
    elif first["name"] == "batch-memory":
        why = "for the memory that it used"
    elif first["name"] in _BY_COUNT and _WHOLE.search(text) is None:
        why = "by the OOM killer"  # whose memory was short, nobody says
    else:
        why = "because the host ran out of memory"
    what = "lost a data-loader worker, which was killed" if len(loader) or (named and len(lost)) else "was killed"
    return replace(kind, says=f"{what} {why}"), tuple(int(p) for p in (loader if len(loader) else lost if named else lost.iloc[:0]).index[:1]), limit


def of_another(roles: pd.DataFrame, ending: Ending) -> bool:
    """Whether the line that ends the attempt tells how one of the processes ended."""
    return bool(((roles["file"] == ending.file) & (roles["line"] == ending.line) & roles["code"].notna()).any())
