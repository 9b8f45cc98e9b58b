"""`pipelog schema`: what the JSON outputs hold."""

from __future__ import annotations

import click

from pipelog.errors import BadOption


@click.command()
@click.option("--plan", "of_plan", is_flag=True, help="Of what `plan --format json` writes.")
@click.option("--diff", "of_diff", is_flag=True, help="Of what `diff --format json` writes.")
def schema(*, of_plan: bool, of_diff: bool) -> None:
    """Print the JSON Schema of report.json."""
    from pipelog.schema import text  # noqa: PLC0415

    if of_plan and of_diff:
        raise BadOption("--plan and --diff are two schemas: ask for one")
    click.echo(text("plan-1.json" if of_plan else "diff-1.json" if of_diff else "report-1.json"), nl=False)
