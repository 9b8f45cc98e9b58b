"""What several commands do alike: their common options, reading with a bar, writing a file, a rule's threshold."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pipelog.errors import BadOption

if TYPE_CHECKING:
    from pipelog.events import Events
    from pipelog.report import Report


def with_paths(command: Callable[..., Any]) -> Callable[..., Any]:
    """One path or more."""
    return click.argument("paths", nargs=-1, required=True, type=click.Path(), metavar="PATH…")(command)


def with_reading(command: Callable[..., Any]) -> Callable[..., Any]:
    """What reading takes: --jobs, --no-cache, --quiet."""
    for option in (
        click.option("-q", "--quiet", is_flag=True, help="No progress bar and no summary."),
        click.option("--no-cache", is_flag=True, help="Neither use nor fill the cache of files already read."),
        click.option("--jobs", type=click.IntRange(min=1), metavar="N", help="Processes to read with.  [default: as many as cores]"),
    ):
        command = option(command)
    return command


def setting(text: str) -> tuple[str, float]:
    """`PL201.limit=0.3` in its parts. Raises BadOption where it is none."""
    key, sign, value = text.partition("=")
    try:
        return key.strip(), float(value)
    except ValueError as error:
        raise BadOption(f"--set {text}: expected RULE.OPTION=NUMBER{'' if sign else ', and there is no ='}") from error


@contextlib.contextmanager
def given_paths(paths: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """The paths, with standard input (-) in a file of its own for as long as it is read and cited."""
    if "-" not in paths:
        yield paths
        return
    with tempfile.TemporaryDirectory(prefix="pipelog-") as folder:
        place = Path(folder) / "stdin"
        with place.open("wb") as file:
            shutil.copyfileobj(sys.stdin.buffer, file)
        yield tuple(str(place) if path == "-" else path for path in paths)


def name_of(paths: tuple[str, ...]) -> str:
    """The folder's name, else the file's: of the first path that exists."""
    there = next((p for p in paths if p == "-" or os.path.lexists(p)), paths[0])
    if there == "-":
        return "stdin"
    first = Path(there).resolve()
    return first.name or "root"


def read_events(paths: tuple[str, ...], jobs: int | None, *, cached: bool, quiet: bool) -> Events:
    """The event table of *paths*, with a bar on a terminal."""
    from pipelog.reading import read  # noqa: PLC0415

    if quiet or not sys.stderr.isatty():
        return read(*paths, jobs=jobs, cached=cached)
    from rich.console import Console  # noqa: PLC0415
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn  # noqa: PLC0415

    columns = (TextColumn("reading"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("reading", total=None)
        return read(*paths, jobs=jobs, cached=cached, progress=lambda done, total: bar.update(task, completed=done, total=total))


def report_of(path: str, jobs: int | None, *, redact: bool, cached: bool, quiet: bool) -> Report:
    """A report.json is read; anything else is analyzed first."""
    from pipelog.kept import analyzed  # noqa: PLC0415
    from pipelog.planning.from_run import saved  # noqa: PLC0415
    from pipelog.redaction import redacted  # noqa: PLC0415

    report = saved(path)
    if report is None:
        given = functools.partial(read_events, (path,), jobs, cached=cached, quiet=quiet)
        return analyzed((path,), given, attempt=None, options={}, name=name_of((path,)), redact=redact, cached=cached)
    return redacted(report) if redact else report


def file_name(name: str) -> str:
    """*name* as part of a file's name."""
    return re.sub(r"[^\w.-]+", "-", name).strip("-.") or "run"


def give(made: Any, form: str, output: str | None, outputs: dict[str, Any], styled: Callable[..., None], page: str) -> None:
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
    save(Path(place), text)
    click.echo(place)


def save(place: Path, text: str) -> None:
    """Write a file, with its folder. Raises BadOption where that cannot be."""
    make_folder(place)
    try:
        place.write_text(text, encoding="utf-8", errors="replace")
    except OSError as error:
        raise BadOption(f"cannot write {place}: {error.strerror or error}; name another place with -o") from error


def make_folder(place: Path) -> None:
    """The folder of *place*. Raises BadOption where it cannot be made."""
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadOption(f"cannot write {place}: {error.strerror or error}; name another place with -o") from error
