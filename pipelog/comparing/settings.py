"""Differences of configuration, shape and versions; and whether the two train the same model at all."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pipelog._text import count, listed
from pipelog.comparing.side import Side
from pipelog.report import JSON, Report


@dataclass(frozen=True, slots=True)
class Setting:
    """A value of each run as text, null where the files of that run do not tell it."""

    name: str
    a: str | None
    b: str | None


def settings(a: Report, b: Report) -> tuple[Setting, ...]:
    """What differs; values that neither tells are left out."""
    left, right = dict(_values(a)), dict(_values(b))
    if renamed(a) or renamed(b):  # node-1 of the one is not node-1 of the other
        left["hosts"] = right["hosts"] = None
    names = [n for n in dict.fromkeys([*left, *right]) if left.get(n) != right.get(n)]
    return tuple(Setting(n, left.get(n), right.get(n)) for n in names)


def renamed(report: Report) -> bool:
    """Whether its hosts bear other names, given by --redact."""
    return (report.redaction or {}).get("names") is not None


_LEFT_OUT = ("sources",)


def _values(report: Report) -> Iterator[tuple[str, str | None]]:
    """Name → text; null where it is not known."""
    for name, value in report.config.items():
        if name not in _LEFT_OUT:
            yield name, _text(value)
    for name in ("world_size", "pp", "dp", "tp", "partition_method"):
        yield name, _text(report.topology.get(name))
    layers = _layers(report)
    yield "layers of the stages", ", ".join(map(str, layers)) if layers else None
    hosts = sorted({str(r["host"]) for r in report.topology["ranks"] if r.get("host")})
    sizes = _params(report.topology)
    yield "parameters", f"{sizes:,}" if sizes else None
    yield "hosts", listed(hosts) if hosts else None
    for name, value in report.run["frameworks"].items():
        yield name, _text(value)
    yield "pipelog", report.pipelog_version


def _text(value: Any) -> str | None:
    return None if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _layers(report: Report) -> list[int] | None:
    """Layers of each stage, null where one is not known."""
    found = {int(s["stage"]): s["layers"][1] - s["layers"][0] for s in report.topology["stages"] if s.get("layers")}
    return [found[n] for n in sorted(found)] if found and sorted(found) == list(range(report.topology["pp"] or 0)) else None


_LEAST_PARAMS = 0.01
"""Padding of a vocabulary changes fewer."""
_TIED = 0.5
"""Tied weights are counted on both their stages, but once where there is a single one."""


def other_model(a: Side, b: Side) -> str | None:
    """Why the two do not train the same model; null where nothing says so."""
    left, right = _layers(a.report), _layers(b.report)
    if left and right and sum(left) != sum(right):
        return f"they train different models: {count(sum(left), 'layer')} in A, {sum(right):,} in B"
    sizes = [_params(s.report.topology) for s in (a, b)]
    if a.tp == b.tp and sizes[0] and sizes[1]:  # tensor-parallel ranks hold shares
        ratio = sizes[1] / sizes[0]
        if max(ratio, 1 / ratio) > 1 + (_LEAST_PARAMS if a.pp == b.pp else _TIED):
            return f"they train different models: {sizes[0]:,} parameters in A, {sizes[1]:,} in B"
    return None


def same_model_known(a: Side, b: Side) -> bool:
    """Whether layers or parameters of both are known, so that `other_model` could tell."""
    sizes = a.tp == b.tp and _params(a.report.topology) and _params(b.report.topology)
    return bool(sizes or (_layers(a.report) and _layers(b.report)))


def _params(topology: JSON) -> int | None:
    values = [s.get("params") for s in topology["stages"]]
    return sum(values) if values and all(type(v) is int for v in values) and len(values) == topology["pp"] else None
