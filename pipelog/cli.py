"""The command line: it parses, calls, writes and exits.

Exit codes: 0; 1 where --fail-on says so; 2 for what the user can put right (one line on standard error).
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import os
import re
import shutil
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from pipelog._commands import Commands
from pipelog._text import WIDTH, count, wrapped
from pipelog._version import __version__
from pipelog.errors import BadOption

_SEVERITIES = ("info", "warning", "error")


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
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
    "--format",
    "formats",
    multiple=True,
    help="Output wanted, once for each: html, json, md, sarif, text. Only these are made then.",
    metavar="FORMAT",
)
@click.option("-o", "--output", metavar="FILE", help="Where to write: a file for one format, a folder/ for several, - for standard output.")
@click.option("--fail-on", type=click.Choice(_SEVERITIES), help="Exit with 1 where a finding is at least this severe.")
@click.option(
    "--attempt", type=click.IntRange(min=0), metavar="N", help="Which start of the job to look at: 0 is start 1.  [default: the last that trained]"
)
@click.option(
    "--set", "settings", multiple=True, metavar="RULE.OPTION=VALUE", help="Set a threshold, as in PL201.limit=0.3; `pipelog rules` lists them."
)
@click.option("--redact", is_flag=True, help="Replace names of hosts, users, paths and addresses, to share the report. Secrets never get into it.")
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
    options = dict(_setting(s) for s in settings)
    name = _name(paths)
    with _given(paths) as places:
        given = functools.partial(_read, places, jobs, cached=not no_cache, quiet=quiet)
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


@contextlib.contextmanager
def _given(paths: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """The paths, with standard input (-) in a file of its own for as long as it is read and cited."""
    if "-" not in paths:
        yield paths
        return
    with tempfile.TemporaryDirectory(prefix="pipelog-") as folder:
        place = Path(folder) / "stdin"
        with place.open("wb") as file:
            shutil.copyfileobj(sys.stdin.buffer, file)
        yield tuple(str(place) if path == "-" else path for path in paths)


def _name(paths: tuple[str, ...]) -> str:
    """The folder's name, else the file's: of the first path that exists."""
    there = next((p for p in paths if p == "-" or os.path.lexists(p)), paths[0])
    if there == "-":
        return "stdin"
    first = Path(there).resolve()
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
    _make_folder(place)  # what cannot be written is said before anything else
    if not quiet:  # before the page is made, which takes longer than all that the terminal shows
        if sys.stdout.isatty():
            styled(report, Console(highlight=False, soft_wrap=False, legacy_windows=False))
        else:
            click.echo(reporters["text"].render(report), nl=False)
        sys.stdout.flush()
    _save(place, reporters["html"].render(report))
    click.echo(str(place))


def _safe(name: str) -> str:
    return re.sub(r"[^\w.-]+", "-", name).strip("-.") or "run"


def _make_folder(place: Path) -> None:
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadOption(f"cannot write {place}: {error.strerror or error}; name another place with -o") from error


def _save(place: Path, text: str) -> None:
    _make_folder(place)
    try:
        place.write_text(text, encoding="utf-8", errors="replace")
    except OSError as error:
        raise BadOption(f"cannot write {place}: {error.strerror or error}; name another place with -o") from error


@main.command()
@_paths
@click.option("-o", "--output", required=True, metavar="FILE", help="Where to write: .parquet or .csv; with --perfetto .json or .json.gz.")
@click.option("--perfetto", is_flag=True, help="Write one timeline of all ranks' traces on one clock instead, for Perfetto or chrome://tracing.")
@click.option(
    "--redact", is_flag=True, help="Replace names of hosts, users, paths and addresses, to share the timeline. The table is never redacted."
)
@_reading
def events(paths: tuple[str, ...], output: str, jobs: int | None, *, perfetto: bool, redact: bool, no_cache: bool, quiet: bool) -> None:
    """Write the event table as Parquet (which `analyze` reads again) or CSV, or the traces as one timeline."""
    if redact and not perfetto:
        raise BadOption("--redact: the table holds the lines as they are, secrets too, and is not for sharing; share `analyze --redact` instead")
    endings = (".json", ".json.gz") if perfetto else (".csv", ".parquet")
    if not output.endswith(endings):
        raise BadOption(f"-o {output}: the {'timeline' if perfetto else 'table'} is written as {' or '.join(endings)}")
    with _given(paths) as places:
        table = _read(places, jobs, cached=not no_cache, quiet=quiet)
        try:
            said = _timeline(table, output, _name(paths), redact=redact) if perfetto else _table(table, output)
        except OSError as error:
            raise BadOption(f"cannot write {output}: {error.strerror or error}") from error
    if not quiet:
        click.echo(said, err=True)


def _table(table: Any, output: str) -> str:
    from pipelog.placing import placed  # noqa: PLC0415

    table = placed(table)
    if output.endswith(".csv"):
        _csv(table.table, output)
    else:
        table.write(output)
    return f"{count(table.table.num_rows, 'event')} of {count(len(table.inputs), 'file')} in {output}"


def _timeline(table: Any, output: str, name: str, *, redact: bool) -> str:
    from pipelog import timeline  # noqa: PLC0415
    from pipelog.diagnosis import diagnose  # noqa: PLC0415

    timeline.need_traces(table)
    made = timeline.write(table, diagnose(table, name=name), output, redact=redact)
    apart = f"; {len(made.apart)} of them on clocks of their own, which nothing ties to the others" if made.apart else ""
    parts = f"{count(made.slices, 'slice')}, {count(made.arrows, 'arrow')} and {count(made.markers, 'finding')}"
    return f"{parts} of {count(made.processes, 'rank')} in {output}{apart}"


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
        says = f"{_says(rule.page)}{f'  [{options}]' if options else ''}"
        click.echo(textwrap.fill(says, WIDTH, initial_indent=f"{rule.id}  {rule.name:<22} ", subsequent_indent=" " * 30, break_on_hyphens=False))


def _says(page: str) -> str:
    first = page.splitlines()[0]
    return first.partition(": ")[2].rstrip(".")


def _rules_like(_ctx: click.Context, _param: click.Parameter, begun: str) -> list[CompletionItem]:
    """Ids and names of rules for the shell's completion, each with what the rule says."""
    import pipelog.detectors  # noqa: PLC0415
    from pipelog.findings import DETECTORS  # noqa: PLC0415
    from pipelog.registry import load  # noqa: PLC0415

    load(pipelog.detectors)
    known = sorted(DETECTORS.values(), key=lambda d: d.id)
    words = [(w, d) for d in known for w in (d.id, d.name) if w.lower().startswith(begun.lower())]
    return [CompletionItem(word, help=_says(rule.page)) for word, rule in words]


@main.command()
@click.argument("rule", shell_complete=_rules_like)
def explain(rule: str) -> None:
    """Print the page of a rule, by id or name."""
    from pipelog.diagnosis import explain as page  # noqa: PLC0415

    found = page(rule)
    click.echo(wrapped(found.page))
    if found.options:
        click.echo("\n" + wrapped("Options: " + ", ".join(f"--set\N{NO-BREAK SPACE}{found.id}.{k}={v:g}" for k, v in found.options.items())))


@main.command()
@click.argument("config", required=False, type=click.Path(), metavar="[DS_CONFIG]")
@click.option("--stages", type=click.IntRange(min=1), metavar="N", help="Pipeline stages.  [default: the configuration's, or the run's]")
@click.option("--gpus", type=click.IntRange(min=1), metavar="N", help="GPUs of the whole job.  [default: the run's]")
@click.option("--tp", type=click.IntRange(min=1), metavar="N", help="Tensor-parallel ranks of a stage.  [default: the run's, or 1]")
@click.option("--train-batch", type=click.IntRange(min=1), metavar="N", help="train_batch_size, over the configuration's.")
@click.option("--micro-batch", type=click.IntRange(min=1), metavar="N", help="train_micro_batch_size_per_gpu, over the configuration's.")
@click.option("--accumulation", type=click.IntRange(min=1), metavar="N", help="gradient_accumulation_steps (m), over the configuration's.")
@click.option("--from", "run", type=click.Path(), metavar="RUN", help="A measured run, its folder or report.json: shape, sizes, costs, memory.")
@click.option("--costs", metavar="MS,…", help="Compute of one micro-batch by stage in ms: 90,90,210,90, or forward/backward: 30/60,….")
@click.option("--transfer", type=click.FloatRange(min=0), metavar="MS", help="Time of a message between two stages in ms.")
@click.option("--layers", metavar="N|C,…", help="How many equal layers there are, or the relative cost of each: they limit and shape the stages.")
@click.option("--schedule", "schedules", multiple=True, metavar="NAME", help="1f1b, gpipe, interleaved, zb-h1, zb-h2; the first one is planned with.")
@click.option("--chunks", metavar="V,…", help="Chunks a stage for interleaving.  [default: 2]")
@click.option("--set", "settings", multiple=True, metavar="RULE.OPTION=VALUE", help="Set the threshold PL102.limit, as for analyze.")
@click.option("--format", "form", type=click.Choice(("text", "json", "md", "html")), help="Output wanted.  [default: by the suffix of -o, else text]")
@click.option("-o", "--output", metavar="FILE", help="Where to write, - for standard output.  [default: standard output; pipelog-plan.html for html]")
def plan(config: str | None, run: str | None, form: str | None, output: str | None, settings: tuple[str, ...], **given: Any) -> None:
    """Check a job's batch sizes before it starts, and compare micro-batches, stages and schedules.

    Shows the bubble of each, what it holds in memory, and its step time where a run or costs are given.
    """
    from pipelog.planning import outputs, typed  # noqa: PLC0415
    from pipelog.planning.config_file import read  # noqa: PLC0415
    from pipelog.planning.plan import plan as planned  # noqa: PLC0415
    from pipelog.planning.text import styled  # noqa: PLC0415

    wanted = typed.wanted(read(config) if config else None, _measured(run) if run else None, [_setting(s) for s in settings], **given)
    made = planned(wanted)
    _give(made, form or outputs.by_suffix(output), output, outputs.OUTPUTS, styled, "pipelog-plan.html")


def _give(made: Any, form: str, output: str | None, outputs: dict[str, Any], styled: Callable[..., None], page: str) -> None:
    """Write a plan or a comparison: styled on a terminal, else to standard output or a file, whose name is printed."""
    if form == "text" and output is None and sys.stdout.isatty():
        from rich.console import Console  # noqa: PLC0415

        styled(made, Console(highlight=False, soft_wrap=False, legacy_windows=False))
        return
    text = outputs[form][1](made)
    place = output or (page if form == "html" else "-")
    if place == "-":
        click.echo(text, nl=False)
        return
    _save(Path(place), text)
    click.echo(place)


def _measured(run: str) -> Any:
    """A report.json is read; anything else is analyzed first."""
    from pipelog.diagnosis import diagnose  # noqa: PLC0415
    from pipelog.planning.from_run import measured, saved  # noqa: PLC0415

    report = saved(run) or diagnose(_read((run,), None, cached=True, quiet=False), name=_name((run,)))
    return measured(report.to_dict())


@main.command()
@click.argument("a", type=click.Path(), metavar="A")
@click.argument("b", type=click.Path(), metavar="B")
@click.option("--format", "form", type=click.Choice(("text", "json", "md", "html")), help="Output wanted.  [default: by the suffix of -o, else text]")
@click.option("-o", "--output", metavar="FILE", help="Where to write, - for standard output.  [default: standard output; pipelog-diff.html for html]")
@click.option("--redact", is_flag=True, help="Replace names of hosts, users, paths and addresses, to share the comparison.")
@_reading
def diff(a: str, b: str, form: str | None, output: str | None, jobs: int | None, *, redact: bool, no_cache: bool, quiet: bool) -> None:
    """Compare two runs, each a folder, a file or a report.json: is B faster than A, why, and what else changed."""
    from pipelog.comparing import outputs  # noqa: PLC0415
    from pipelog.comparing.comparison import compare  # noqa: PLC0415
    from pipelog.comparing.text import styled  # noqa: PLC0415

    made = compare(*(_report(path, jobs, redact=redact, cached=not no_cache, quiet=quiet) for path in (a, b)))
    _give(made, form or outputs.by_suffix(output), output, outputs.OUTPUTS, styled, "pipelog-diff.html")


def _report(path: str, jobs: int | None, *, redact: bool, cached: bool, quiet: bool) -> Any:
    """A report.json is read; anything else is analyzed first."""
    from pipelog.kept import analyzed  # noqa: PLC0415
    from pipelog.planning.from_run import saved  # noqa: PLC0415
    from pipelog.redaction import redacted  # noqa: PLC0415

    report = saved(path)
    if report is None:
        given = functools.partial(_read, (path,), jobs, cached=cached, quiet=quiet)
        return analyzed((path,), given, attempt=None, options={}, name=_name((path,)), redact=redact, cached=cached)
    return redacted(report) if redact else report


@main.command()
@click.option("--plan", "of_plan", is_flag=True, help="Of what `plan --format json` writes.")
@click.option("--diff", "of_diff", is_flag=True, help="Of what `diff --format json` writes.")
def schema(*, of_plan: bool, of_diff: bool) -> None:
    """Print the JSON Schema of report.json."""
    from pipelog.schema import text  # noqa: PLC0415

    if of_plan and of_diff:
        raise BadOption("--plan and --diff are two schemas: ask for one")
    click.echo(text("plan-1.json" if of_plan else "diff-1.json" if of_diff else "report-1.json"), nl=False)
