"""The HTML report: one file that needs nothing else, opens from disk and asks the network for nothing."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

import pipelog.detectors
from pipelog._text import count, listed, percent
from pipelog.findings import Finding, Status
from pipelog.registry import load
from pipelog.report import Report
from pipelog.reporters import _details as details
from pipelog.reporters import _failure as failed
from pipelog.reporters import _figures as look
from pipelog.reporters import _words as words
from pipelog.reporters import reporter
from pipelog.reporters._costs import costs
from pipelog.reporters._escape import coded, finalize, json_block, label
from pipelog.reporters._figures import Figure
from pipelog.reporters._figures_end import ends, ledger
from pipelog.reporters._figures_places import devices, links, memory
from pipelog.reporters._figures_series import constants, numerics, step_time
from pipelog.reporters._figures_shares import peers, phase, shares, step
from pipelog.reporters._figures_timeline import timeline
from pipelog.reporters._pays import no_replay, pays
from pipelog.reporters._places import Places, kept, placed, sentence
from pipelog.reporters._plotly import library, source
from pipelog.reporters._still import still
from pipelog.reporters._still_rows import still_rows
from pipelog.reporters.markdown import render as ticket
from pipelog.reporters.verdict import verdict


@reporter("html", suffix=".html")
def render(report: Report) -> str:
    """The whole page."""
    load(pipelog.detectors)
    places = placed(report)
    pictures = figures(report, places)
    every = [f for group in pictures.values() for f in group]
    return (
        environment()
        .get_template("page.html.jinja")
        .render(
            report=report,
            places=places,
            pictures=pictures,
            blocks=_blocks(every),
            policy=_policy(drawn=bool(every)),
            ends=ends(report),
            ledger=ledger(report),
            pays=pays(report),
            no_replay=no_replay(report),
            costs=costs(report),
            **_texts(report, places),
            **_tables(report),
        )
    )


def figures(report: Report, places: Places) -> dict[str, list[Figure]]:
    """The pictures of each section; a section without data has none."""
    groups: dict[str, Sequence[Figure | None]] = {
        "time": [timeline(report, places), phase(report, places), shares(report, places), peers(report, places), step(report, places)],
        "steps": [step_time(report, places)],
        "memory": [memory(report, places)],
        "links": [links(report, places)],
        "numerics": numerics(report, places),
        "devices": devices(report, places),
    }
    return {name: [f for f in group if f is not None] for name, group in groups.items()}


def _blocks(every: list[Figure]) -> dict[str, Markup]:
    """What the page's script reads: the figures and their colours at night, and the library that draws them."""
    if not every:
        return {}
    drawn = json_block({"figures": {f.id: f.picture for f in every}, "night": look.AT_NIGHT})
    return {"figures": drawn, "library": Markup(library().packed)}  # noqa: S704  (base64 of an installed file)


def _policy(*, drawn: bool) -> str:
    """Only the page's own script runs, and plotly's; nothing is fetched from anywhere."""
    scripts = [source(str(_asset("page.js")).encode())] + ([library().hash] if drawn else [])
    return f"default-src 'none'; script-src {' '.join(scripts)}; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"


def _texts(report: Report, places: Places) -> dict[str, Any]:
    """The parts of the page that are sentences and lists."""
    todo = words.deeds(report, places)
    later = [d for d in todo if words.elsewhere(d)] if report.failure else []
    return {
        "said": verdict(report),
        "glance": failed.facts(report),
        "labels": failed.labels(report),
        "deeds": [d for d in todo if d not in later],
        "later": later,
        "proof": words.proof(report, places),
        "followed": failed.followed(report),
        "ticket": ticket(report),
        "time_says": words.where_time_goes(report),
        "collectives_say": words.collectives_say(report),
        "constants": constants(report),
        "used": {o.id: details.used(o.options) for o in report.outcomes if o.options},
        "verdicts": failed.VERDICTS if report.failure else (),
    }


def _tables(report: Report) -> dict[str, Any]:
    """The parts of the page that are tables."""
    return {
        "inputs": details.inputs(report),
        "config": details.config(report),
        "topology": details.topology(report),
        "stages": details.stages(report),
        "ranks": details.ranks(report),
        "attempts": details.attempts(report),
        "devices": details.devices(report),
        "collectives": details.collectives(report),
        "thresholds": details.thresholds(report),
        "blind": details.outcomes(report, Status.NOT_APPLICABLE),
        "clear": details.outcomes(report, Status.CLEAR),
        "broken": details.outcomes(report, Status.FAILED),
        "glossary": details.GLOSSARY,
    }


@cache
def environment() -> Environment:
    """The templates: everything printed is made visible, then escaped."""
    made = Environment(
        loader=PackageLoader("pipelog.reporters", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=finalize,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "sentence": sentence,
        "kept": kept,
        "coded": coded,
        "percent": percent,
        "short": _short,
        "color": _variable,
        "evidence": words.evidence,
    }
    made.globals |= {
        "page": details.page,
        "where": _where,
        "count": count,
        "asset": _asset,
        "palette": _palette,
        "at": failed.place,
        "label": label,
        "still": still,
        "still_rows": still_rows,
    }
    return made


@cache
def _asset(name: str) -> Markup:
    """A style sheet or a script of this package, as it is."""
    made = environment()
    assert made.loader is not None
    return Markup(made.loader.get_source(made, name)[0])  # noqa: S704  (a file of this package)


_NAMES = {
    look.INK: "ink",
    look.MUTED: "muted",
    look.LINE: "line",
    look.GRID: "grid",
    look.PAPER: "paper",
    look.TRACK: "track",
    look.DARK: "dark",
    look.MIDDLE: "middle",
    look.LIGHT: "light",
    look.PALE: "pale",
    look.AMBER: "amber",
    look.AMBER_LIGHT: "amber-light",
    look.RED: "red",
}


def _variable(color: str) -> str:
    """The custom property that holds a colour of the figures, by day or by night."""
    return f"var(--{_NAMES[color]})"


def _palette() -> Markup:
    """The colours of the figures as custom properties; paper is always by day."""
    day = ";".join(f"--{name}:{color}" for color, name in _NAMES.items())
    night = ";".join(f"--{name}:{look.AT_NIGHT[color]}" for color, name in _NAMES.items())
    return Markup(f":root{{{day}}}\n@media screen and (prefers-color-scheme:dark){{:root{{{night}}}}}")  # noqa: S704  (constants)


def _short(text: str, most: int = 600) -> str:
    """No line fills the page."""
    return text if len(text) <= most else f"{text[:most]}… (+{len(text) - most:,} characters)"


def _where(finding: Finding) -> str:
    """Stages, ranks, links, hosts and steps of a finding in one line."""
    place = finding.where
    parts = []
    if place.links:
        parts.append("between stages " + listed([f"{a} and {b}" for a, b in place.links]))
    parts += [
        f"{word if len(some) == 1 else word + 's'} {listed(some)}"
        for word, some in (("stage", place.stages), ("rank", place.ranks), ("host", place.hosts))
        if some
    ]
    if place.steps:
        first, last = place.steps
        parts.append(f"step {first:,}" if first == last else f"steps {first:,} to {last:,}")
    return re.sub(r"(\d)-(\d)", "\\1\N{EN DASH}\\2", ", ".join(parts))
