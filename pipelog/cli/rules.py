"""`pipelog rules` and `pipelog explain`: what is looked for, and the page of each rule."""

from __future__ import annotations

import json
import textwrap

import click
from click.shell_completion import CompletionItem

from pipelog._text import WIDTH, wrapped


@click.command()
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def rules(*, as_json: bool) -> None:
    """List the rules and their thresholds."""
    import pipelog.detectors  # noqa: PLC0415
    from pipelog.findings import DETECTORS  # noqa: PLC0415
    from pipelog.registry import load  # noqa: PLC0415

    load(pipelog.detectors)
    known = sorted(DETECTORS.values(), key=lambda d: d.id)
    if as_json:
        click.echo(json.dumps([{"id": d.id, "name": d.name, "says": _says(d.page), "options": d.options} for d in known], indent=1))
        return
    for rule in known:
        options = " ".join(f"{k}={v:g}" for k, v in rule.options.items())
        says = f"{_says(rule.page)}{f'  [{options}]' if options else ''}"
        click.echo(textwrap.fill(says, WIDTH, initial_indent=f"{rule.id}  {rule.name:<22} ", subsequent_indent=" " * 30, break_on_hyphens=False))


def _rules_like(_ctx: click.Context, _param: click.Parameter, begun: str) -> list[CompletionItem]:
    """Ids and names of rules for the shell's completion, each with what the rule says."""
    import pipelog.detectors  # noqa: PLC0415
    from pipelog.findings import DETECTORS  # noqa: PLC0415
    from pipelog.registry import load  # noqa: PLC0415

    load(pipelog.detectors)
    known = sorted(DETECTORS.values(), key=lambda d: d.id)
    words = [(w, d) for d in known for w in (d.id, d.name) if w.lower().startswith(begun.lower())]
    return [CompletionItem(word, help=_says(rule.page)) for word, rule in words]


@click.command()
@click.argument("rule", shell_complete=_rules_like)
def explain(rule: str) -> None:
    """Print the page of a rule, by id or name."""
    from pipelog.diagnosis import explain as page  # noqa: PLC0415

    found = page(rule)
    click.echo(wrapped(found.page))
    if found.options:
        click.echo("\n" + wrapped("Options: " + ", ".join(f"--set\N{NO-BREAK SPACE}{found.id}.{k}={v:g}" for k, v in found.options.items())))


def _says(page: str) -> str:
    first = page.splitlines()[0]
    return first.partition(": ")[2].rstrip(".")
