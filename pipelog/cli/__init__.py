"""The command line, one command a module: it parses, calls, writes and exits.

Exit codes: 0; 1 where --fail-on says so; 2 for what the user can put right (one line on standard error).
"""

from __future__ import annotations

import logging
import sys

import click

from pipelog._version import __version__
from pipelog.cli._commands import Commands
from pipelog.cli.analyze import analyze
from pipelog.cli.diff import diff
from pipelog.cli.events import events
from pipelog.cli.plan import plan
from pipelog.cli.rules import explain, rules
from pipelog.cli.schema import schema


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="pipelog")
@click.option("-v", "--verbose", is_flag=True, help="Say on standard error what goes on inside.")
def main(*, verbose: bool) -> None:
    """Post-mortem and efficiency analyzer for DeepSpeed pipeline-parallel training."""
    logging.basicConfig(level=logging.DEBUG if verbose else logging.ERROR, stream=sys.stderr, format="%(name)s: %(message)s")


for command in (analyze, diff, events, explain, plan, rules, schema):
    main.add_command(command)
