"""The report: one object, saved as report.json, from which every output is rendered. Public API, described by schema/report-1.json."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import Any

from pipelog._version import __version__
from pipelog.errors import BadReport
from pipelog.findings import Advice, Confidence, Evidence, Finding, Outcome, Severity, Status, Where, as_dict

SCHEMA = "pipelog.report/1"
JSON = dict[str, Any]


class Frames(dict[str, Any]):
    """Derived tables by name, as pandas; asked for one that the data do not carry, it says which there are."""

    def __missing__(self, name: str) -> Any:
        """Raise KeyError with the names of the tables that there are."""
        raise KeyError(f"the data carry no table {name!r}; there are {', '.join(sorted(self))}")


@dataclass(slots=True)
class Report:
    """What pipelog says of one job; the fields are those of report.json (a value that is not known is null).

    tables: the derived tables as pandas, by name (`report.tables["stage_time"]`); only where the report was made, not read.
    redaction: what was taken out, None where nothing was: secrets (places), names (kind → different ones and places; only where asked for).
    """

    inputs: list[JSON]
    run: JSON
    topology: JSON
    config: JSON
    metrics: JSON
    outcomes: tuple[Outcome, ...]
    failure: JSON | None
    name: str = "run"
    charts: JSON = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    pipelog_version: str = __version__
    tables: dict[str, Any] = field(default_factory=dict)
    redaction: JSON | None = None

    @property
    def findings(self) -> tuple[Finding, ...]:
        """All findings: by severity, then by cost, then by id; the idle share of one stage alone, which names no cause, behind the others of its severity."""
        rank = {Severity.ERROR: 0, Severity.WARNING: 1, Severity.INFO: 2}
        every = [f for o in self.outcomes for f in o.findings]
        return tuple(sorted(every, key=lambda f: (rank[f.severity], f.name == "high-bubble-ratio" and bool(f.where.stages), -(f.cost or 0.0), f.id)))

    def worst(self) -> Severity | None:
        """The highest severity of any finding, None without findings."""
        return self.findings[0].severity if self.findings else None

    def to_dict(self) -> JSON:
        """The document of report.json."""
        return {
            "schema": SCHEMA,
            "pipelog_version": self.pipelog_version,
            "name": self.name,
            "inputs": self.inputs,
            "run": self.run,
            "topology": self.topology,
            "config": self.config,
            "metrics": self.metrics,
            "rules": [
                {"id": o.id, "name": o.name, "status": o.status.value, "reason": o.reason, "findings": len(o.findings), "options": o.options}
                for o in self.outcomes
            ],
            "findings": [as_dict(f) for f in self.findings],
            "failure": self.failure,
            "notes": self.notes,
            **({"redaction": self.redaction} if self.redaction else {}),
            "charts": self.charts,
        }

    def to_json(self) -> str:
        """report.json, indented; what is no finite number is null."""
        return json.dumps(_finite(self.to_dict()), indent=1, ensure_ascii=False, allow_nan=False)

    @staticmethod
    def from_json(text: str) -> Report:
        """Read what `to_json` wrote; raises BadReport where it is something else."""
        try:
            document = json.loads(text)
        except ValueError as error:
            raise BadReport(f"not a report: no JSON ({error})") from error
        if not isinstance(document, dict) or document.get("schema") != SCHEMA:
            raise BadReport(f"not a report of this version: schema is not {SCHEMA!r}")
        try:
            findings = [_finding(f) for f in document["findings"]]
            outcomes = tuple(
                Outcome(
                    r["id"],
                    r["name"],
                    Status(r["status"]),
                    r.get("reason"),
                    tuple(f for f in findings if f.id == r["id"]),
                    r.get("options", {}),
                )
                for r in document["rules"]
            )
            return Report(
                inputs=document["inputs"],
                run=document["run"],
                topology=document["topology"],
                config=document["config"],
                metrics=document["metrics"],
                outcomes=outcomes,
                failure=document["failure"],
                name=document.get("name", "run"),
                charts=document.get("charts", {}),
                notes=document.get("notes", []),
                pipelog_version=document["pipelog_version"],
                redaction=document.get("redaction"),
            )
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            raise BadReport(f"not a whole report: {error!r}") from error


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    return [_finite(v) for v in value] if isinstance(value, list | tuple) else value


def _finding(f: JSON) -> Finding:
    where = f["where"]
    steps = where.get("steps") or None
    return Finding(
        f["id"],
        f["name"],
        f["title"],
        Severity(f["severity"]),
        Confidence(f["confidence"]),
        Where(
            tuple(where["ranks"]),
            tuple(where["stages"]),
            tuple(where["hosts"]),
            tuple((a, b) for a, b in where["links"]),
            (steps[0], steps[1]) if steps else None,
        ),
        tuple(Evidence(e["file"], e["line"], e["text"]) for e in f["evidence"]),
        tuple(Advice(a["action"], a.get("expected")) for a in f["advice"]),
        f["cost"],
        f.get("role"),
    )
