"""The command line: it parses, calls, writes and exits.

Exit codes: 0; 1 where --fail-on says so; 2 for what the user can put right (one line on standard error).
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import click

from pipelog._text import count
from pipelog._version import __version__
from pipelog.errors import BadOption, PipelogError

log = logging.getLogger(__name__)

_SEVERITIES = ("info", "warning", "error")


class _Commands(click.Group):
    """Errors that the user can mend become one line and exit code 2."""

    def make_context(self, *args: Any, **extra: Any) -> click.Context:
        """Read the options that stand before the command."""
        try:
            return super().make_context(*args, **extra)
        except click.UsageError as error:
            _mend(error)

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; PipelogError is caught here and nowhere else."""
        try:
            return super().invoke(ctx)
        except PipelogError as error:
            _say(str(error))
            ctx.exit(2)
        except click.UsageError as error:
            _mend(error)
        except (BrokenPipeError, KeyboardInterrupt) as error:
            return _cut_short(ctx, interrupted=isinstance(error, KeyboardInterrupt))
        except SystemExit as error:
            if isinstance(error.__context__, BrokenPipeError):  # rich ends the program itself
                return _cut_short(ctx, interrupted=False)
            raise
        except Exception as error:
            if isinstance(error, click.ClickException | click.exceptions.Exit | click.Abort):
                raise
            log.debug("failed", exc_info=True)
            _say(f"failed ({type(error).__name__}: {error}); please report it, with what `pipelog -v {' '.join(sys.argv[1:2])} …` prints")
            ctx.exit(2)


def _cut_short(ctx: click.Context, *, interrupted: bool) -> None:
    """The reader of a pipe has gone, and nothing is left to say; or the user stopped it, which --fail-on must not be confused with."""
    sys.stdout = open(os.devnull, "w")  # noqa: PTH123, SIM115
    ctx.exit(130 if interrupted else 0)


def _mend(error: click.UsageError) -> NoReturn:
    """A wrong option or argument, in one line; a bare `pipelog` gets its help."""
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        raise error
    where = error.ctx.command_path if error.ctx else "pipelog"
    _say(f"{error.format_message().rstrip('.')} (`{where} --help` lists what there is)")
    sys.exit(2)


def _say(text: str) -> None:
    line = "".join(c if c.isprintable() else " " for c in text)  # names of files may hold anything
    click.echo(f"pipelog: {' '.join(line.split())}", err=True)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="pipelog")
@click.option("-v", "--verbose", is_flag=True, help="Say on standard error what goes on inside.")
def main(*, verbose: bool) -> None:
    """Post-mortem and efficiency analyzer for DeepSpeed pipeline-parallel training."""
    logging.basicConfig(level=logging.DEBUG if verbose else logging.ERROR, stream=sys.stderr, format="%(name)s: %(message)s")


def _paths(command: Callable[..., Any]) -> Callable[..., Any]:
    return click.argument("paths", nargs=-1, required=True, type=click.Path(), metavar="PATH…")(command)


def _reading(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        click.option("-q", "--quiet", is_flag=True, help="No progress bar and no summary."),
        click.option("--no-cache", is_flag=True, help="Neither use nor fill the cache of files already read."),
        click.option("--jobs", type=click.IntRange(min=1), metavar="N", help="Processes to read with.  [default: as many as cores]"),
    ):
        command = option(command)
    return command


@main.command()
@_paths
@click.option(
    "--format", "formats", multiple=True, help="Output wanted, once for each: html, json, text. Only these are made then.", metavar="FORMAT"
)
@click.option("-o", "--output", metavar="FILE", help="Where to write: a file for one format, a folder/ for several, - for standard output.")
@click.option("--fail-on", type=click.Choice(_SEVERITIES), help="Exit with 1 where a finding is at least this severe.")
@click.option(
    "--attempt", type=click.IntRange(min=0), metavar="N", help="Which start of the job to look at, 0 first.  [default: the last that trained]"
)
@click.option(
    "--set", "settings", multiple=True, metavar="RULE.OPTION=VALUE", help="Set a threshold, as in PL201.limit=0.3; `pipelog rules` lists them."
)
@_reading
def analyze(
    paths: tuple[str, ...],
    formats: tuple[str, ...],
    output: str | None,
    fail_on: str | None,
    attempt: int | None,
    settings: tuple[str, ...],
    jobs: int | None,
    *,
    no_cache: bool,
    quiet: bool,
) -> None:
    """Analyze a job's folder (or single files) and say what is wrong.

    Prints the verdict and writes pipelog-<folder>.html into the current directory.
    """
    from pipelog.diagnosis import diagnose  # noqa: PLC0415  (keeps --help and completion fast)

    wanted = _formats(formats) or _formats(_by_suffix(output))
    options = dict(_setting(s) for s in settings)
    name = _name(paths)
    events = _read(paths, jobs, cached=not no_cache, quiet=quiet)
    report = diagnose(events, attempt=attempt, options=options, name=name)
    if wanted:
        _write(report, wanted, output, name)
    else:
        _show(report, output, name, quiet=quiet)
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


def _reporters() -> dict[str, Any]:
    import pipelog.reporters  # noqa: PLC0415
    from pipelog.registry import load  # noqa: PLC0415

    load(pipelog.reporters)
    return pipelog.reporters.REPORTERS


def _setting(text: str) -> tuple[str, float]:
    key, sign, value = text.partition("=")
    try:
        return key.strip(), float(value)
    except ValueError as error:
        raise BadOption(f"--set {text}: expected RULE.OPTION=NUMBER{'' if sign else ', and there is no ='}") from error


def _name(paths: tuple[str, ...]) -> str:
    """The folder's name, else the file's."""
    first = Path(paths[0]).resolve()
    return first.name or "root"


def _read(paths: tuple[str, ...], jobs: int | None, *, cached: bool, quiet: bool) -> Any:
    from pipelog.reading import read  # noqa: PLC0415

    if quiet or not sys.stderr.isatty():
        return read(*paths, jobs=jobs, cached=cached)
    from rich.console import Console  # noqa: PLC0415
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn  # noqa: PLC0415

    columns = (TextColumn("reading"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("reading", total=None)
        return read(*paths, jobs=jobs, cached=cached, progress=lambda done, total: bar.update(task, completed=done, total=total))


def _write(report: Any, wanted: list[str], output: str | None, name: str) -> None:
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
        place = Path(output) if output is not None and not folder else Path(output or ".") / f"pipelog-{_safe(name)}{reporters[format_].suffix}"
        _save(place, reporters[format_].render(report))
        if output is None or folder:
            click.echo(str(place))


def _show(report: Any, output: str | None, name: str, *, quiet: bool) -> None:
    """No --format: the verdict to standard output, the HTML report to a file, whose name is the last line."""
    from rich.console import Console  # noqa: PLC0415

    from pipelog.reporters.text import styled  # noqa: PLC0415

    reporters = _reporters()
    if output == "-":
        raise BadOption("-o - needs a --format")
    folder = output is None or output.endswith(os.sep) or Path(output).is_dir()
    place = Path(output or ".") / f"pipelog-{_safe(name)}.html" if folder else Path(output or "")
    _save(place, reporters["html"].render(report))
    if not quiet:
        styled(report, Console(highlight=False, soft_wrap=False, legacy_windows=False))
    click.echo(str(place))


def _safe(name: str) -> str:
    return re.sub(r"[^\w.-]+", "-", name).strip("-.") or "run"


def _save(place: Path, text: str) -> None:
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text, encoding="utf-8", errors="replace")
    except OSError as error:
        raise BadOption(f"cannot write {place}: {error.strerror or error}") from error


@main.command()
@_paths
@click.option("-o", "--output", required=True, metavar="FILE", help="Where to write: .parquet, or .csv.")
@_reading
def events(paths: tuple[str, ...], output: str, jobs: int | None, *, no_cache: bool, quiet: bool) -> None:
    """Write the event table as Parquet (which `analyze` reads again) or CSV."""
    from pipelog.placing import placed  # noqa: PLC0415

    if not output.endswith((".csv", ".parquet")):
        raise BadOption(f"-o {output}: the table is written as .parquet or .csv")
    table = placed(_read(paths, jobs, cached=not no_cache, quiet=quiet))
    try:
        if output.endswith(".csv"):
            _csv(table.table, output)
        else:
            table.write(output)
    except OSError as error:
        raise BadOption(f"cannot write {output}: {error.strerror or error}") from error
    if not quiet:
        click.echo(f"{count(table.table.num_rows, 'event')} of {count(len(table.inputs), 'file')} in {output}", err=True)


def _csv(table: Any, output: str) -> None:
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.csv as pc  # noqa: PLC0415

    plain = pa.table(
        {n: table.column(n).cast(pa.string()) if pa.types.is_dictionary(table.column(n).type) else table.column(n) for n in table.column_names}
    )
    pc.write_csv(plain, output)


@main.command()
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
        click.echo(f"{rule.id}  {rule.name:<22} {_says(rule.page)}{f'  [{options}]' if options else ''}")


def _says(page: str) -> str:
    first = page.splitlines()[0]
    return first.partition(": ")[2].rstrip(".")


@main.command()
@click.argument("rule")
def explain(rule: str) -> None:
    """Print the page of a rule, by id or name."""
    from pipelog.diagnosis import explain as page  # noqa: PLC0415

    found = page(rule)
    click.echo(found.page)
    if found.options:
        click.echo("\nOptions: " + ", ".join(f"--set {found.id}.{k}={v:g}" for k, v in found.options.items()))


@main.command()
def schema() -> None:
    """Print the JSON Schema of report.json."""
    from pipelog.schema import text  # noqa: PLC0415

    click.echo(text(), nl=False)
