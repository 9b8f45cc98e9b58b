"""`pipelog diff`: two runs, side by side."""

from __future__ import annotations

import click

from pipelog.cli._shared import give, report_of, with_reading


@click.command()
@click.argument("a", type=click.Path(), metavar="A")
@click.argument("b", type=click.Path(), metavar="B")
@click.option("--format", "form", type=click.Choice(("text", "json", "md", "html")), help="Output wanted.  [default: by the suffix of -o, else text]")
@click.option("-o", "--output", metavar="FILE", help="Where to write, - for standard output.  [default: standard output; pipelog-diff.html for html]")
@click.option("--redact", is_flag=True, help="Replace names of hosts, users, paths and addresses, to share the comparison.")
@with_reading
def diff(a: str, b: str, form: str | None, output: str | None, jobs: int | None, *, redact: bool, no_cache: bool, quiet: bool) -> None:
    """Compare two runs, each a folder, a file or a report.json: is B faster than A, why, and what else changed."""
    from pipelog.comparing import outputs  # noqa: PLC0415
    from pipelog.comparing.comparison import compare  # noqa: PLC0415
    from pipelog.comparing.text import styled  # noqa: PLC0415

    made = compare(*(report_of(path, jobs, redact=redact, cached=not no_cache, quiet=quiet) for path in (a, b)))
    give(made, form or outputs.by_suffix(output), output, outputs.OUTPUTS, styled, "pipelog-diff.html")
