"""The pages of the documentation that are made from the code: a page a rule, failures, commands, documents. A hook of mkdocs (`make docs`).

They are made when the site is built and are not committed: a docstring, a kind, an option or a schema stands in one place, and no
second copy of it can be out of date. `pages()` gives them without mkdocs, for the tests.
"""

from __future__ import annotations

import ast
import json
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pandas as pd

import pipelog.detectors
import pipelog.postmortem.kinds
from pipelog.cli import main
from pipelog.events import EVENTS
from pipelog.findings import DETECTORS, Detector
from pipelog.postmortem.case import Case
from pipelog.postmortem.kinds import KINDS, Kind, Strength
from pipelog.registry import load
from pipelog.schema import text as schema
from pipelog.tables.config import Config
from pipelog.tables.topology import Topology

ROOT = Path(__file__).resolve().parents[1]
REPORTS = ROOT / "reports"

CATEGORIES = {
    "hardware.gpu": "A GPU broke: ECC, Xid, fallen off the bus, NVLink, a CUDA error that ends one device.",
    "hardware.node": "A machine, or its daemon, was lost.",
    "network": "A transport error, or a peer that was lost without an earlier error anywhere.",
    "network.config": "The network is there and is not used as meant: wrong interface, no InfiniBand, two ranks on one GPU.",
    "storage": "Disk full, quota, I/O error, stale handle.",
    "host.oom": "Memory of the host ran out, and a line says so.",
    "host.shm": "The shared memory of the host, /dev/shm, is too small.",
    "killed": "A signal or an exit code, and no evidence of why.",
    "memory.gpu-oom": "Memory of the GPU ran out.",
    "hang": "A timeout or silence; the verdict says which rank or group is missing, where the lines do.",
    "launch": "The job did not come together: ssh, hostfile, ports, ranks that are missing at the rendezvous.",
    "config.batch": "The batch sizes do not multiply.",
    "config.mesh": "Stages, replicas and tensor-parallel ranks do not make the world size, or the layers do not fit them.",
    "config.other": "Another setting that is refused.",
    "checkpoint": "A checkpoint is missing, does not match, is damaged, or could not be saved.",
    "data": "The data loader or the data set: a worker that died, an iterator that ended, shapes.",
    "engine": "An assertion or a shape error inside the pipeline engine.",
    "code": "An exception in the user's code.",
    "dependency": "An import, an operator that does not build, versions that do not fit.",
    "numerics.loss-scale": "fp16: the loss scale can fall no further.",
    "numerics.nan": "The loss or a gradient is not a number, and the run ends for it.",
    "numerics.divergence": "The run ends itself, since its loss diverged.",
    "scheduler.time-limit": "The time that the job was given was up. No failure of the job.",
    "scheduler.preempted": "The scheduler or the cloud took the machines back. No failure of the job.",
    "scheduler.cancelled": "Somebody ended it. No failure of the job.",
    "unknown": "It ended, and the lines do not carry more.",
}
"""Categories are public (`failure.category`) and no new ones are made; a test keeps this list equal to what the kinds use."""

_HEADINGS = ("What it does", "Why it matters", "What to do", "When it is wrong", "Thresholds")
_STRENGTHS = {
    Strength.CAUSE: "names the cause",
    Strength.SYMPTOM: "is a symptom",
    Strength.SIGNAL: "is a signal or exit code",
    Strength.TRANSPORT: "is a transport error",
    Strength.TIMEOUT: "is a timeout",
    Strength.ECHO: "is an echo of another rank's end",
    Strength.WORD: "calls itself an error",
}
_SERIES = {
    "PL0": "Input",
    "PL1": "Schedule, batches, throughput",
    "PL2": "Balance",
    "PL3": "Memory",
    "PL4": "Communication",
    "PL5": "Post-mortem",
    "PL6": "Numerics",
}
_SCHEMAS = {
    "report-json.md": ("report-1.json", "report.json", "`pipelog analyze … --format json`", "pipelog schema"),
    "plan-json.md": ("plan-1.json", "The plan as JSON", "`pipelog plan … --format json`", "pipelog schema --plan"),
    "diff-json.md": ("diff-1.json", "The comparison as JSON", "`pipelog diff … --format json`", "pipelog schema --diff"),
}
_MORE = {
    "metrics": "Definitions, formulas and bounds: [Metrics](metrics.md), [Replay](replay.md).",
    "rules": "Their pages: [Rules](rules/index.md).",
    "failure": "The categories and what leads to them: [Failures](failures.md).",
}
"""Part of report.json → where more is said of it."""
_OUTSIDE = {
    "../fixtures/README.md": "fixtures.md",
    "../reports/README.md": "reports/index.md",
    "../README.md": "index.md",
    "../CHANGELOG.md": "changelog.md",
}
"""What hand-written pages link to outside docs/ → the page that the site has of it."""


def pages() -> dict[str, str]:
    """Path in the site → Markdown of every page that is made."""
    for package in (pipelog.detectors, pipelog.postmortem.kinds):
        load(package)
    rules = sorted(DETECTORS.values(), key=lambda d: d.id)
    made = {
        "rules/index.md": _rules(rules),
        "failures.md": _failures(),
        "commands.md": _commands(),
        "fixtures.md": _fixtures(),
        "reports/index.md": _gallery(),
    }
    made |= {f"rules/{rule.id}.md": _rule(rule) for rule in rules}
    made |= {page: _schema(*told) for page, told in _SCHEMAS.items()}
    made["changelog.md"] = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    return made


def on_config(config: Any) -> Any:
    """A hook of mkdocs: the rules' pages stand in the menu under their list."""
    for entry in config.nav:
        for name, place in list(entry.items()):
            if place == "rules/":
                entry[name] = ["rules/index.md", *sorted(p for p in pages() if p.startswith("rules/PL"))]
    return config


def on_files(files: Any, config: Any) -> Any:
    """A hook of mkdocs: add the pages that are made, and the whole reports that the gallery opens."""
    from mkdocs.structure.files import File  # noqa: PLC0415  (the tests read pages() without it)

    for place, text in pages().items():
        files.append(File.generated(config, place, content=text))
    for report in sorted(REPORTS.iterdir()):
        if report.suffix in {".html", ".png"} and report.with_suffix(".json").exists():
            files.append(File.generated(config, f"reports/{report.name}", abs_src_path=str(report)))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """A hook of mkdocs: links that leave docs/ lead to the site's own pages; `<!-- columns -->` becomes the table of columns."""
    for outside, inside in _OUTSIDE.items():
        markdown = markdown.replace(f"]({outside}", f"]({inside}")
    return markdown.replace("<!-- columns -->", _columns())


def on_post_page(output: str, **_: Any) -> str:
    """A hook of mkdocs: the theme's search is a dialog without a name."""
    return output.replace('data-md-component="search" role="dialog"', 'data-md-component="search" role="dialog" aria-label="Search"')


def on_post_build(config: Any) -> None:
    """A hook of mkdocs: the search index as a script, too, which a page opened from disk can load."""
    index = Path(config.site_dir, "search", "search_index.json")
    index.with_suffix(".js").write_text(f"var __index = {index.read_text(encoding='utf-8')}", encoding="utf-8")


def prose(text: str) -> str:
    """Text of the code as Markdown: nothing but code between backticks means anything, names of rules and ids lead to their pages."""
    parts = re.split(r"(`[^`]+`)", text)
    return "".join(
        part if part.startswith("`") else _linked(re.sub(r"([\\*_\[\]{}|~#])", r"\\\1", part.replace("&", "&amp;").replace("<", "&lt;")))
        for part in parts
    )


def _linked(text: str) -> str:
    load(pipelog.detectors)
    names = {d.name: d.id for d in DETECTORS.values()} | {d.id: d.id for d in DETECTORS.values()}
    pattern = re.compile(rf"(?<![\w/-])({'|'.join(sorted(names, key=len, reverse=True))})(?![\w-])", re.IGNORECASE)
    lowered = {name.lower(): place for name, place in names.items()}
    return pattern.sub(lambda found: f"[{found[1]}](RULES/{lowered[found[1].lower()]}.md)", text)


def _at(text: str, rules: str) -> str:
    """Links to rules, as seen from a page: *rules* is the way to their folder."""
    return text.replace("(RULES/", f"({rules}")


def _cell(text: str) -> str:
    return " ".join(prose(text).split())


def _code(text: str) -> str:
    """A word as code in a table, where a bar between backticks parts no cells."""
    return f"`{text}`"


def _fence(text: str, language: str = "text") -> str:
    return f"````{language}\n{text.rstrip()}\n````\n"


def _headed(rule: Detector) -> dict[str, str]:
    """The page of a rule by its headings; `""` is its first sentence."""
    parts = re.split(rf"^({'|'.join(_HEADINGS)}): ?", rule.page, flags=re.MULTILINE)
    return {"": parts[0].partition(": ")[2]} | dict(zip(parts[1::2], parts[2::2], strict=True))


def _rules(rules: list[Detector]) -> str:
    out = [
        "# Rules\n",
        (
            "Every rule reports *found*, *clear*, *not applicable* (with what is missing) or *failed*: no problem seen and not looked at never look the same. "
            "A finding has a severity (how bad it is if true), a confidence (how sure that is) and, where it is known, its cost: the share of the time of all steps "
            "that is lost.\n\n"
            "Each page below is the rule's own docstring with its options; the terminal prints it with `pipelog explain PL201`. A threshold is set with "
            "`pipelog analyze job --set PL201.limit=0.3`. Ids are never used again.\n"
        ),
    ]
    for series, title in _SERIES.items():
        out.append(f"\n## {title}\n\n| id | name | says |\n|---|---|---|\n")
        out += [f"| [{r.id}]({r.id}.md) | {r.name} | {_at(_cell(_headed(r)[''].rstrip('.')), '')} |\n" for r in rules if r.id.startswith(series)]
    others = [r for r in rules if r.id[:3] not in _SERIES]
    if others:
        out.append("\n## Of plug-ins\n\n| id | name | says |\n|---|---|---|\n")
        out += [f"| [{r.id}]({r.id}.md) | {r.name} | {_cell(_headed(r)[''])} |\n" for r in others]
    return "".join(out)


def _rule(rule: Detector) -> str:
    parts = _headed(rule)
    says = parts[""].strip()
    out = [f"# {rule.id} {rule.name}\n\n{_at(prose(says[:1].upper() + says[1:]), '')}\n"]
    for heading in _HEADINGS:
        if heading in parts:
            said = parts[heading].strip()
            said = said if heading == "Thresholds" else said[:1].upper() + said[1:]  # thresholds begin with their names
            out.append(f"\n## {heading}\n\n{_at(prose(said), '')}\n")
    if rule.options:
        out.append("\n| option | default | set with |\n|---|---|---|\n")
        out += [f"| `{name}` | {value:g} | `--set {rule.id}.{name}={value:g}` |\n" for name, value in rule.options.items()]
    if reasons := _reasons(rule):
        out.append(
            f"\n## When it cannot tell\n\nThen it is *not applicable*, with one of these reasons, or that of a table it needs ({', '.join(f'`{need}`' for need in rule.needs)}):\n\n"
        )
        out += [f"- {_at(prose(reason), '')}\n" for reason in reasons]
    if example := _example(rule.id):
        out.append(example)
    return "".join(out)


def _reasons(rule: Detector) -> list[str]:
    """What the rule's own module raises CannotTell with, in its order; values are left open."""
    found = []
    for node in ast.walk(ast.parse(Path(sys.modules[rule.check.__module__].__file__ or "").read_text(encoding="utf-8"))):
        if (
            isinstance(node, ast.Raise)
            and isinstance(node.exc, ast.Call)
            and isinstance(node.exc.func, ast.Name)
            and node.exc.func.id == "CannotTell"
        ):
            said = node.exc.args[0]
            parts = said.values if isinstance(said, ast.JoinedStr) else [said]
            words = "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in parts)
            if words.strip("… "):
                found.append((node.lineno, words))
    return list(dict.fromkeys(words for _, words in sorted(found)))


def _example(rule: str) -> str:
    """A finding of that rule as the gallery's reports hold it: the first by name whose severity is worst."""
    ranks = ("error", "warning", "info")
    found = [
        (ranks.index(f["severity"]), place.stem, f)
        for place, report in _reports()
        for f in report["findings"]
        if report["schema"].startswith("pipelog.report/") and f["id"] == rule
    ]
    if not found:
        return ""
    _, name, finding = min(found, key=lambda one: one[:2])
    lines = [
        f"{finding['severity']}  {finding['title']}",
        f"confidence {finding['confidence']}" + (f", cost {finding['cost']:.1%}" if finding["cost"] is not None else ""),
    ]
    lines += [f"  {e['file']}{':' + str(e['line']) if e['line'] is not None else ''}  {e['text'] or ''}"[:240] for e in finding["evidence"][:3]]
    lines += [f"  → {a['action']}" + (f" ({a['expected']})" if a.get("expected") else "") for a in finding["advice"]]
    shown = _fence("\n".join(lines))
    return f"\n## Example\n\nFrom the report `{name}` in the [gallery](../reports/index.md#{name.lower()}):\n\n{shown}"


def _reports() -> list[tuple[Path, dict[str, Any]]]:
    """The reports, and comparisons, of the gallery."""
    return [(place, json.loads(place.read_text(encoding="utf-8"))) for place in sorted(REPORTS.glob("*.json"))]


def _failures() -> str:
    examples = tomllib.loads((ROOT / "fixtures" / "postmortem" / "kinds.toml").read_text(encoding="utf-8"))
    out = [
        "# Categories of failures\n",
        (
            "\n`failure.category` in report.json is one of these. Three labels say how far a verdict carries, and they are separate: the category, "
            "`cause_known` (whether the lines tell the cause or only the symptom) and `confidence`.\n\n"
            "Under each category stand the kinds of lines that lead to it: what such a line means, how far it explains an end by itself, and a wording, with the advice for rank 3 of a job of four stages and two replicas that met it on node-7. A cause "
            "beats a symptom, that beats a signal, a transport error, a timeout, an echo; only among equals does the earliest line count. What follows from "
            "another rank's end is folded under the verdict, whatever it says. Rules: [PL501](rules/PL501.md), [PL502](rules/PL502.md).\n\n"
            "| category | what |\n|---|---|\n"
        ),
    ]
    out += [f"| [{name}](#{name.replace('.', '-')}) | {_cell(what)} |\n" for name, what in CATEGORIES.items()]
    for name, what in CATEGORIES.items():
        out.append(f"\n## {name} {{ #{name.replace('.', '-')} }}\n\n{prose(what)}\n")
        for kind in sorted((k for k in KINDS.values() if k.category == name), key=lambda k: (k.first, k.name)):
            out.append(_kind(kind, examples.get(kind.name, {})))
    return _at("".join(out), "rules/")


def _kind(kind: Kind, example: dict[str, Any]) -> str:
    says = re.sub(r"\s+", " ", re.sub(r"\{\w+\}", "…", kind.says)).strip()
    subject = "the job" if kind.job else "a rank"
    known = "the cause is known" if kind.known else "the cause stays unknown"
    out = [f"\n### {kind.name} {{ #kind-{kind.name} }}\n\n{prose(kind.page)}\n\n"]
    out.append(f"- Verdict: {subject} {prose(says)}; {known}.\n- Such a line {_STRENGTHS[kind.strength]}.\n")
    if kind.missing:
        out.append(f"- What would tell more: {prose('; '.join(kind.missing))}.\n")
    words = example.get("log") or example.get("raises")
    if words:
        advice = list(kind.advice(_case(words)))
        out.append(
            "- What to do, in the example below: "
            + "; ".join(prose(a.action) + (f" ({prose(a.expected)})" if a.expected else "") for a in advice)
            + ".\n"
        )
    return "".join(out) + (f"\n{_fence(words)}" if words else "")


def _case(words: str) -> Case:
    """The job that fixtures/postmortem/ speaks of: rank 3 of four stages and two replicas met it."""
    job = Topology(world_size=8, pp=4, dp=2, tp=1)
    config = Config(micro_batches=8, micro_batch_size=4, train_batch_size=64)
    return Case(words, 3, 1, "node-7", None, job, config, pd.DataFrame(columns=["name", "value", "text", "file", "line"]))


def _commands() -> str:
    out = [
        (
            "# Command line\n\nWhat `--help` prints, for every command. Exit codes: 0; 1 where `--fail-on` says so; 2 for what you can put right (one line on standard error says "
            "what and how). `-` as a path is standard input. Files that were read are cached under `$XDG_CACHE_HOME/pipelog`; the job's folder is never written to.\n"
        )
    ]
    group = click.Context(main, info_name="pipelog", help_option_names=main.context_settings["help_option_names"])
    out.append(f"\n## pipelog {{ #pipelog }}\n\n{main.help}\n\n{_options(main, group)}")
    for name, command in sorted(main.commands.items()):  # type: ignore[attr-defined]
        here = click.Context(command, info_name=name, parent=group)
        usage = " ".join(command.collect_usage_pieces(here))
        told = "\n\n".join(prose(" ".join(part.split())) for part in (command.help or "").split("\n\n"))
        out.append(f"\n## pipelog {name} {{ #{name} }}\n\n{_fence(f'pipelog {name} {usage}', 'text')}\n{told}\n\n{_options(command, here)}")
    return _at("".join(out), "rules/")


def _options(command: click.Command, here: click.Context) -> str:
    """The options as a table: as --help words them."""
    told = [record for param in command.get_params(here) if isinstance(param, click.Option) and (record := param.get_help_record(here))]
    return "| option | what |\n|---|---|\n" + "".join(f"| {_code(names)} | {_cell(text)} |\n" for names, text in told)


def _columns() -> str:
    out = ["| column | type | meaning |\n|---|---|---|\n"]
    for column in EVENTS:
        kind = (
            "text (dictionary)"
            if str(column.type).startswith("dictionary")
            else str(column.type).replace("large_string", "text").replace("double", "float64")
        )
        out.append(f"| `{column.name}` | {kind} | {_at(_cell(column.metadata[b'meaning'].decode()), 'rules/')} |\n")
    return "".join(out)


def _schema(file: str, title: str, written: str, shown: str) -> str:
    document = json.loads(schema(file))
    out = [
        f"# {title}\n\n{_at(prose(document.get('description', '')), 'rules/')}\n\nWritten by {written}; `{shown}` prints the JSON Schema that this page is made from (`{document['$id']}`). `[]` stands for each item of a list, `<key>` for any key.\n"
    ]
    single = {n: p for n, p in document["properties"].items() if len(list(_fields(n, p, document, present=True))) == 1}
    out.append("\n| field | type | meaning |\n|---|---|---|\n")
    for name, part in single.items():
        out += [
            f"| {_code(n)} | {_cell(kind)} | {_at(_cell(meaning), 'rules/')} |\n"
            for n, kind, meaning in _fields(name, part, document, present=name in document.get("required", ()))
        ]
    for name, part in document["properties"].items():
        if name in single:
            continue
        rows = list(_fields(name, part, document, present=name in document.get("required", ())))
        more = f"{_MORE[name]}\n\n" if file == "report-1.json" and name in _MORE else ""
        out.append(f"\n## {name} {{ #{name} }}\n\n{more}| field | type | meaning |\n|---|---|---|\n")
        out += [f"| {_code(path)} | {_cell(kind)} | {_at(_cell(meaning), 'rules/')} |\n" for path, kind, meaning in rows]
    return "".join(out)


def _fields(
    path: str, part: dict[str, Any], document: dict[str, Any], *, present: bool, within: tuple[str, ...] = ()
) -> Iterator[tuple[str, str, str]]:
    """(path, type, meaning) of a part of a schema and all below it; a definition that holds itself is told once."""
    meaning = part.get("description", "")
    if "$ref" in part:
        key = part["$ref"].rpartition("/")[2]
        if key in within:
            yield path, f"as {key} above", meaning
            return
        within = (*within, key)
        part = document["$defs"][key] | {k: v for k, v in part.items() if k != "$ref"}
        meaning = part.get("description", "")
    for other in part.get("oneOf", []) + part.get("allOf", []):
        extra = document["$defs"][other["$ref"].rpartition("/")[2]] if "$ref" in other else other
        part = {**extra, **part, "properties": {**extra.get("properties", {}), **part.get("properties", {})}}
    meaning = f"{meaning}{'' if present else ' (may be absent)'}".strip()
    if meaning or not path.endswith("[]") or _type(part) != "object":  # that items are objects is seen from their fields
        yield path, _type(part), meaning
    needed = part.get("required", ())
    for name, below in part.get("properties", {}).items():
        yield from _fields(f"{path}.{name}", below, document, present=name in needed, within=within)
    for marks, below in (("[]", part.get("items")), (".<key>", part.get("additionalProperties"))):
        if isinstance(below, dict) and ({"properties", "items", "$ref", "description"} & below.keys()):
            yield from list(_fields(f"{path}{marks}", below, document, present=True, within=within))


def _type(part: dict[str, Any]) -> str:
    if "const" in part:
        return f"`{json.dumps(part['const'])}`"
    if "enum" in part:
        return ", ".join(f"`{json.dumps(v)}`" for v in part["enum"])
    kinds = part.get("type", "any")
    said = " or ".join(kinds) if isinstance(kinds, list) else kinds
    item = part.get("items", {}).get("type") if isinstance(part.get("items"), dict) else None
    said += f" of {' or '.join(item) if isinstance(item, list) else item}" if item and "array" in said else ""
    bounds = [f"{word} {part[key]:g}" for key, word in (("minimum", "at least"), ("maximum", "at most")) if key in part]
    return said + (f", {' and '.join(bounds)}" if bounds else "")


def _fixtures() -> str:
    text = (ROOT / "fixtures" / "README.md").read_text(encoding="utf-8")
    return re.sub(r"\[([^\]]+)\]\((?!https?:)[^)]*\)", r"\1", text)


def _gallery() -> str:
    """One report for each kind of problem: its verdict, its first screen, and of some the whole page."""
    out = [
        (
            "# Reports\n\nOne report for each kind of problem, made from the runs and cases under fixtures/ (`make reports`). Some are here as whole pages: one file each, "
            "which needs no network.\n"
        )
    ]
    for place, report in _reports():
        name = place.stem
        compared = report["schema"].startswith("pipelog.diff/")
        title = report["verdict"]["sentence"] if compared else (report["failure"] or next(iter(report["findings"]), {})).get("title", "")
        out.append(f"\n## {name} {{ #{name.lower()} }}\n\n{_at(prose(title[:1].upper() + title[1:]), '../rules/')}.\n\n")
        if place.with_suffix(".html").exists():
            out.append(f"[Open the whole report]({name}.html)\n\n")
        if place.with_suffix(".png").exists():
            out.append(f"![First screen of the report {name}]({name}.png)\n")
    return "".join(out)
