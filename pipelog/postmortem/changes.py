"""What was changed from one start of a job to the next: settings, versions, the layout, the hosts."""

from __future__ import annotations

import ast
import re

import pandas as pd
import pyarrow as pa

from pipelog.tables import frame, table
from pipelog.tables.attempts import Attempts

_ORDER = ("topology", "launch", "version", "accelerator", "backend", "config", "args")
"""Facts that count, in the order in which a reader wants them."""
_OF_THE_MOMENT = re.compile(
    r"port|rank$|_rank|\btime|timestamp|timeout_at|iteration$|consumed|run_?(?:name|id)|job_?id|\bpid|exp_?name|uuid|wandb|(?:^|\.)(?:load|resume)"
)
"""Settings that a script changes by itself at every start, or that only say where it goes on."""
_SECRET = re.compile(r"(?i)key|token|secret|passw|credential")
_MOST_CHARACTERS = 60


@table("changes", needs=("rows", "attempts"))
def changes(rows: pa.Table, attempts: Attempts) -> pd.DataFrame:
    """One row a fact that two starts of the same job, one after the other, state differently: attempt (the later one), name, before, after.

    Only where each of the two states one value; what only one of them states is no change. Different jobs in one folder are not compared.
    """
    facts = frame(rows, ("fact",), ("name", "text", "attempt")).dropna(subset=["attempt", "text", "name"]).drop_duplicates()
    family = facts["name"].str.extract(r"^([^.]*)", expand=False)
    facts = facts[family.isin(_ORDER) & ~facts["name"].str.contains(_OF_THE_MOMENT) & ~facts["name"].str.contains(_SECRET)]
    if attempts.jobs or attempts.count < 2 or not len(facts):
        return pd.DataFrame(columns=["attempt", "name", "before", "after"], dtype="str").astype({"attempt": "int64"})
    facts = facts.assign(text=facts["text"].where(facts["name"] != "launch.world_info", facts["text"].map(_hosts)))
    several = facts.groupby(["attempt", "name"])["text"].transform("nunique") > 1
    one = facts[~several].drop_duplicates(["attempt", "name"])
    one = one.assign(name=one["name"].replace("launch.world_info", "launch.hosts"), attempt=one["attempt"].astype("int64"))
    before = one.assign(attempt=one["attempt"] + 1)
    both = one.merge(before, on=["attempt", "name"], suffixes=("", "_before"))
    both = both[both["text"] != both["text_before"]]
    place = both["name"].str.extract(r"^([^.]*)", expand=False).map({name: n for n, name in enumerate(_ORDER)})
    both = both.assign(_place=place).sort_values(["attempt", "_place", "name"], kind="stable")
    shown = both.assign(before=both["text_before"].map(_short), after=both["text"].map(_short))
    return shown[["attempt", "name", "before", "after"]].reset_index(drop=True)


def _hosts(text: str) -> str:
    """`{'node-1': [0, 1]}` → `node-1`"""
    try:
        return ", ".join(sorted(str(host) for host in ast.literal_eval(text)))
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return text


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _MOST_CHARACTERS else line[: _MOST_CHARACTERS - 1] + "…"
