"""`pipelog events`: the event table as a file, or all traces as one timeline."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from pipelog._text import count
from pipelog.cli._shared import given_paths, name_of, read_events, with_paths, with_reading
from pipelog.errors import BadOption

if TYPE_CHECKING:
    import pyarrow as pa

    from pipelog.events import Events


@click.command()
@with_paths
@click.option("-o", "--output", required=True, metavar="FILE", help="Where to write: .parquet or .csv; with --perfetto .json or .json.gz.")
@click.option("--perfetto", is_flag=True, help="Write one timeline of all ranks' traces on one clock instead, for Perfetto or chrome://tracing.")
@click.option(
    "--redact", is_flag=True, help="Replace names of hosts, users, paths and addresses, to share the timeline. The table is never redacted."
)
@with_reading
def events(paths: tuple[str, ...], output: str, jobs: int | None, *, perfetto: bool, redact: bool, no_cache: bool, quiet: bool) -> None:
    """Write the event table as Parquet (which `analyze` reads again) or CSV, or the traces as one timeline."""
    if redact and not perfetto:
        raise BadOption("--redact: the table holds the lines as they are, secrets too, and is not for sharing; share `analyze --redact` instead")
    endings = (".json", ".json.gz") if perfetto else (".csv", ".parquet")
    if not output.endswith(endings):
        raise BadOption(f"-o {output}: the {'timeline' if perfetto else 'table'} is written as {' or '.join(endings)}")
    with given_paths(paths) as places:
        table = read_events(places, jobs, cached=not no_cache, quiet=quiet)
        try:
            said = _timeline(table, output, name_of(paths), redact=redact) if perfetto else _table(table, output)
        except OSError as error:
            raise BadOption(f"cannot write {output}: {error.strerror or error}") from error
    if not quiet:
        click.echo(said, err=True)


def _table(given: Events, output: str) -> str:
    from pipelog.placing import placed  # noqa: PLC0415

    given = placed(given)
    if output.endswith(".csv"):
        _csv(given.table, output)
    else:
        given.write(output)
    return f"{count(given.table.num_rows, 'event')} of {count(len(given.inputs), 'file')} in {output}"


def _timeline(given: Events, output: str, name: str, *, redact: bool) -> str:
    from pipelog import timeline  # noqa: PLC0415
    from pipelog.diagnosis import diagnose  # noqa: PLC0415

    timeline.need_traces(given)
    made = timeline.write(given, diagnose(given, name=name), output, redact=redact)
    apart = f"; {len(made.apart)} of them on clocks of their own, which nothing ties to the others" if made.apart else ""
    parts = f"{count(made.slices, 'slice')}, {count(made.arrows, 'arrow')} and {count(made.markers, 'finding')}"
    return f"{parts} of {count(made.processes, 'rank')} in {output}{apart}"


def _csv(table: pa.Table, output: str) -> None:
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.csv as pc  # noqa: PLC0415

    plain = pa.table(
        {n: table.column(n).cast(pa.string()) if pa.types.is_dictionary(table.column(n).type) else table.column(n) for n in table.column_names}
    )
    pc.write_csv(plain, output)
