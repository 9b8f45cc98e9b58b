"""`pipelog analyze`: a job's folder → the verdict in the terminal, and reports."""

from __future__ import annotations

import functools
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pipelog.cli._shared import file_name, given_paths, make_folder, name_of, read_events, save, setting, with_paths, with_reading
from pipelog.errors import BadOption

if TYPE_CHECKING:
    from pipelog.registry import Registry
    from pipelog.report import Report
    from pipelog.reporters import Reporter

_SEVERITIES = ("info", "warning", "error")


@click.command()
@with_paths
@click.option(
    "--format",
    "formats",
    multiple=True,
    help="Output wanted, once for each: html, json, md, sarif, text. Only these are made then.",
    metavar="FORMAT",
)
@click.option("-o", "--output", metavar="FILE", help="Where to write: a file for one format, a folder/ for several, - for standard output.")
@click.option("--fail-on", type=click.Choice(_SEVERITIES), help="Exit with 1 where a finding is at least this severe.")
@click.option(
    "--attempt", type=click.IntRange(min=0), metavar="N", help="Which start of the job to look at: 0 is the first.  [default: the last that trained]"
)
@click.option(
    "--set", "settings", multiple=True, metavar="RULE.OPTION=VALUE", help="Set a threshold, as in PL201.limit=0.3; `pipelog rules` lists them."
)
@click.option("--redact", is_flag=True, help="Replace names of hosts, users, paths and addresses, to share the report. Secrets never get into it.")
@with_reading
def analyze(
    paths: tuple[str, ...],
    formats: tuple[str, ...],
    output: str | None,
    fail_on: str | None,
    attempt: int | None,
    settings: tuple[str, ...],
    jobs: int | None,
    *,
    redact: bool,
    no_cache: bool,
    quiet: bool,
) -> None:
    """Analyze a job's folder, single files or standard input (-), and say what is wrong.

    Prints the verdict and writes pipelog-<folder>.html into the current directory.
    """
    from pipelog.kept import analyzed  # noqa: PLC0415  (keeps --help and completion fast)
    from pipelog.tables.unread import NOTE  # noqa: PLC0415

    wanted = _formats(formats) or _formats(_by_suffix(output))
    options = dict(setting(s) for s in settings)
    name = name_of(paths)
    with given_paths(paths) as places:
        given = functools.partial(read_events, places, jobs, cached=not no_cache, quiet=quiet)
        report = analyzed(places, given, attempt=attempt, options=options, name=name, redact=redact, cached=not no_cache and "-" not in paths)
    for note in report.notes:
        if note.startswith(NOTE):
            click.echo(f"pipelog: {note}", err=True)
    if wanted:
        _write(report, wanted, output, report.name)
    else:
        _show(report, output, report.name, quiet=quiet)
    worst = report.worst()
    if fail_on and worst is not None and _SEVERITIES.index(worst.value) >= _SEVERITIES.index(fail_on):
        sys.exit(1)


def _formats(formats: tuple[str, ...]) -> list[str]:
    wanted = [f for given in formats for f in given.split(",") if f]
    unknown = [f for f in wanted if f not in _reporters()]
    if unknown:
        raise BadOption(f"no format {unknown[0]!r}: there are {', '.join(sorted(_reporters()))}")
    return list(dict.fromkeys(wanted))


def _by_suffix(output: str | None) -> tuple[str, ...]:
    """`-o report.json` asks for JSON."""
    suffix = Path(output or "").suffix
    return tuple(name for name, r in _reporters().items() if r.suffix == suffix and name != "html")


def _reporters() -> Registry[Reporter]:
    import pipelog.reporters  # noqa: PLC0415
    from pipelog.registry import load  # noqa: PLC0415

    load(pipelog.reporters)
    return pipelog.reporters.REPORTERS


def _write(report: Report, wanted: list[str], output: str | None, name: str) -> None:
    reporters = _reporters()
    if output == "-":
        if len(wanted) > 1:
            raise BadOption("-o - takes one --format")
        click.echo(reporters[wanted[0]].render(report), nl=False)
        return
    folder = output is not None and (output.endswith(os.sep) or Path(output).is_dir())
    if output is not None and not folder and len(wanted) > 1:
        raise BadOption(f"several formats need a folder: -o {output}/")
    for format_ in wanted:
        place = Path(output) if output is not None and not folder else Path(output or ".") / f"pipelog-{file_name(name)}{reporters[format_].suffix}"
        save(place, reporters[format_].render(report))
        if output is None or folder:
            click.echo(str(place))


def _show(report: Report, output: str | None, name: str, *, quiet: bool) -> None:
    """No --format: the verdict to standard output, the HTML report to a file, whose name is the last line."""
    from rich.console import Console  # noqa: PLC0415

    from pipelog.reporters.text import styled  # noqa: PLC0415

    reporters = _reporters()
    if output == "-":
        raise BadOption("-o - needs a --format")
    folder = output is None or output.endswith(os.sep) or Path(output).is_dir()
    place = Path(output or ".") / f"pipelog-{file_name(name)}.html" if folder else Path(output or "")
    make_folder(place)  # what cannot be written is said before anything else
    if not quiet:  # before the page is made, which takes longer than all that the terminal shows
        if sys.stdout.isatty():
            styled(report, Console(highlight=False, soft_wrap=False, legacy_windows=False))
        else:
            click.echo(reporters["text"].render(report), nl=False)
        sys.stdout.flush()
    save(place, reporters["html"].render(report))
    click.echo(str(place))
