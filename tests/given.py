"""The tables of one case under fixtures/detectors: TOML → what rules take. The form is told in fixtures/README.md."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd

from pipelog.events import Input, Skipped
from pipelog.findings import Advice, Confidence, Evidence
from pipelog.postmortem.deaths import Death
from pipelog.replay.breakdown import PARTS, Breakdown
from pipelog.tables import CannotTell
from pipelog.tables.attempts import Attempts
from pipelog.tables.bubble import Bubble
from pipelog.tables.config import Config
from pipelog.tables.memory import StageMemory
from pipelog.tables.steps import Steps
from pipelog.tables.topology import Said, Topology
from tests.making import table

Spec = dict[str, Any]

_WORDS = ("name", "file", "text", "host", "kind")
_COLUMNS = {
    "scalars": ("name", "step", "value"),
    "memory": ("rank", "stage", "step", "allocated", "max_allocated", "reserved", "max_reserved"),
    "facts": ("name", "value", "text", "rank"),
    "peers": ("step", "stage", "rank", "replica", "compute_ns", "peer_ns", "ratio"),
    "collectives": ("step", "name", "ranks", "own_ns", "wait_ns", "share"),
    "steps": ("step", "steps", "dur_ns"),
    "passes": ("rank", "step", "instruction", "load_ns"),
    "messages": ("step", "source", "target", "gap_ns", "transfer_ns"),
    "timers": ("step",),
    "megatron_timers": ("step",),
    "timer_ranges": ("step", "name", "min_ns", "max_ns", "rank", "step_ns"),
    "straggler_reports": ("source",),
    "checkpoints": ("attempt", "step"),
}
_ALWAYS = ("scalars", "memory", "facts", "timers", "megatron_timers", "timer_ranges", "straggler_reports", "checkpoints")
"""Frames that are empty, not missing, where a case does not give them."""


def frame(spec: Spec, columns: tuple[str, ...] = ()) -> pd.DataFrame:
    """Columns as arrays; a single value stands for all rows. `…_ms` becomes `…_ns`, `…_mib` bytes; file is train.log, line counts from 1."""
    length = max((len(v) for v in spec.values() if isinstance(v, list)), default=1 if spec else 0)
    given = {"file": "train.log", "line": list(range(1, length + 1)), **spec}
    made = {}
    for name, value in given.items():
        values = value if isinstance(value, list) else [value] * length
        made[_renamed(name)] = _column(_renamed(name), [_scaled(name, v) for v in values])
    for name in columns:
        made.setdefault(name, _column(name, [None if name in _WORDS else math.nan] * length))
    return pd.DataFrame(made)


def _renamed(name: str) -> str:
    if name.endswith("_ms"):
        return name[:-3] if "-" in name else f"{name[:-3]}_ns"
    return name.removesuffix("_mib")


def _scaled(name: str, value: Any) -> Any:
    return value * 1e6 if name.endswith("_ms") else value * 2**20 if name.endswith("_mib") else value


def _column(name: str, values: list[Any]) -> pd.Series:
    if name in _WORDS or any(isinstance(v, str) for v in values):
        return pd.Series([None if v == "" else v for v in values], dtype=object)
    if name in ("step", "steps", "line", "rank", "stage", "replica") and values:
        missing = any(isinstance(v, float) and math.isnan(v) for v in values)
        return pd.Series([pd.NA if isinstance(v, float) and math.isnan(v) else v for v in values], dtype="Int64" if missing else "int64")
    return pd.Series(values, dtype=None if values else object)


class Given:
    """Stands for `Tables`: what a case gives; frames that no data carry raise CannotTell, as the real ones do."""

    def __init__(self, case: Spec) -> None:
        self._case = case
        self._known: dict[str, Any] = {"tables": self}

    def __getitem__(self, name: str) -> Any:
        if name not in self._known:
            self._known[name] = self._make(name)
        return self._known[name]

    def get(self, name: str) -> Any:
        """A table, or None where the case does not give it."""
        try:
            return self[name]
        except CannotTell:
            return None

    def _make(self, name: str) -> Any:
        maker = getattr(self, f"_{name}", None)
        if maker is not None:
            return maker(self._case.get(name))
        if name not in self._case and name not in _ALWAYS:
            raise CannotTell(f"{name} is not given")
        return frame(self._case.get(name, {}), _COLUMNS.get(name, ()))

    def _compute_time(self, spec: Spec | None) -> pd.DataFrame:
        """As given, else what the traces give (`stage_time`)."""
        if spec is not None:
            return frame(spec)
        traced = self["stage_time"]
        if "step_start_ns" not in traced:
            return traced
        return traced.assign(step_ns=traced["step_end_ns"] - traced["step_start_ns"])

    def _inputs(self, spec: list[Spec] | None) -> list[Input]:
        made = []
        for given in spec or []:
            skipped = [Skipped(s.get("line"), s["why"]) for s in given.get("skipped", [])]
            made.append(Input(given["path"], given.get("kind", "log"), 1, skipped=skipped, notes=given.get("notes", {})))
        return made

    def _topology(self, spec: Spec | None) -> Topology:
        spec = dict(spec or {})
        shape = Topology(**{k: spec.get(k) for k in ("world_size", "pp", "dp", "tp", "partition_method")})
        if shape.world_size is None and shape.pp and shape.dp:
            shape.world_size = shape.pp * shape.dp * (shape.tp or 1)
        shape.said = {k: Said(spec.get(k), file, line, k) for k, (file, line) in spec.get("said", {}).items()}
        shape.conflicts = _conflicts(spec)
        size, dp, tp = shape.world_size or 0, shape.dp or 1, shape.tp or 1
        ranks = pd.DataFrame({"rank": np.arange(size)})
        whole = shape.pp and shape.pp * dp * tp == size
        for column, values in (("stage", ranks["rank"] // (dp * tp)), ("replica", ranks["rank"] // tp % dp), ("tensor", ranks["rank"] % tp)):
            ranks[column] = values.astype("Int64") if whole else pd.array([pd.NA] * size, dtype="Int64")
        ranks["host"] = pd.Series(spec.get("hosts", [None] * size), dtype=object)
        shape.ranks = ranks
        shape.stages = frame(spec["stages"]) if "stages" in spec else pd.DataFrame()
        return shape

    def _config(self, spec: Spec | None) -> Config:
        spec = dict(spec or {})
        said, conflicts = spec.pop("said", {}), _conflicts(spec)
        spec.pop("conflicts", None)
        known = Config(**spec, conflicts=conflicts)
        known.said = {k: Said(getattr(known, k, None), file or None, line or None, f"config.{k}") for k, (file, line) in said.items()}
        return known

    def _bubble(self, spec: Spec | None) -> Bubble:
        spec = dict(spec or {})
        spec["where"] = [tuple(w) for w in spec.get("where", [])]
        return Bubble(**spec)

    def _steps(self, spec: Spec | None) -> Steps:
        spec = dict(spec or {})
        source, correction = spec.pop("source", "deepspeed" if spec else None), spec.pop("correction", None)
        rows = frame(spec, _COLUMNS["steps"])
        return Steps(rows, source, correction, rows)

    def _breakdown(self, spec: Spec | None) -> Breakdown:
        if spec is None:
            raise CannotTell("breakdown is not given")
        phase = dict.fromkeys(PARTS, 0.0) | spec
        phase["other"] += 1 - sum(phase.values())
        return Breakdown(phase, {}, 0.0)

    def _stage_memory(self, spec: Spec | None) -> StageMemory:
        if spec is None:
            raise CannotTell("no rank printed its memory")
        spec = dict(spec)
        reason = spec.pop("reason", None)
        return StageMemory(frame({k.replace("_mib", "_bytes_mib"): v for k, v in spec.items()}), reason=reason)

    def _host_traces(self, spec: list[Spec] | None) -> list[Any]:
        """Ranks that were recorded, with the collectives of one of them: name, length in ms, place."""
        made = []
        for given in spec or []:
            names = given.get("collectives", [])
            length = (np.array(given.get("ms", [1.0] * len(names))) * 1e6).astype(np.int64)
            kind, start = np.array(["collective"] * len(names), object), np.zeros(len(names), np.int64)
            line = np.array(given.get("line", list(range(len(names)))), np.int64)
            made.append(
                SimpleNamespace(
                    file=given["file"], rank=given["rank"], kind=kind, name=np.array(names, object), start=start, end=start + length, line=line
                )
            )
        return made

    def _deaths(self, spec: list[Spec] | None) -> list[Death]:
        """Verdicts of the attempts, in order."""
        return [_death(number, dict(given)) for number, given in enumerate(spec or [])]

    def _ended(self, _: None) -> Death | None:
        """The last verdict."""
        return self["deaths"][-1] if self["deaths"] else None

    def _attempts(self, spec: Spec | None) -> Attempts:
        """As many as there are verdicts; `jobs`: of different jobs."""
        return Attempts(pd.DataFrame(), len(self["deaths"]), **(spec or {}))

    def _chosen(self, spec: int | None) -> int:
        return len(self["deaths"]) - 1 if spec is None else spec

    def _spans(self, spec: Spec | None) -> pd.DataFrame:
        """Steps of the attempts that made any, by their index."""
        made = frame({"attempt": [], "first": [], "last": [], "step_ms": math.nan, **(spec or {})})
        return made.set_index("attempt")[["first", "last", "step_ns"]]

    def _losses(self, spec: Spec | None) -> pd.DataFrame:
        return frame(spec or {"saved": [math.nan] * len(self["deaths"]), "lost_steps": math.nan})[["saved", "lost_steps"]].astype("Int64")

    def _ledger(self, spec: Spec | None) -> pd.DataFrame:
        """Of each attempt the time that was lost, s; null where no clock tells."""
        return frame(spec or {"lost_s": [math.nan] * len(self["deaths"])})

    def _placed(self, spec: Spec | None) -> Any:
        if not spec:
            return table([])
        rows = frame(spec).astype(object)
        return table(
            [
                {k: v for k, v in row.items() if not (v is None or v is pd.NA or (isinstance(v, float) and math.isnan(v) and k != "value"))}
                for row in rows.to_dict("records")
            ]
        )


def _death(number: int, given: Spec) -> Death:
    """{status, category, ranks, …, evidence = ["file:line"], advice = ["words"]}."""
    given["confidence"] = Confidence(given.get("confidence", "high"))
    given["evidence"] = [Evidence(file, int(line)) for file, _, line in (e.rpartition(":") for e in given.get("evidence", []))]
    given["advice"] = [Advice(action) for action in given.get("advice", [])]
    return Death(number, **{name: tuple(value) if isinstance(value, list) else value for name, value in given.items()})


def _conflicts(spec: Spec) -> list[tuple[str, list[Said]]]:
    """conflicts = [{what = "pp", values = [[4, "a.log", 1, "topology.pp"], …]}]."""
    return [(c["what"], [Said(v, file or None, line or None, source) for v, file, line, source in c["values"]]) for c in spec.get("conflicts", [])]
