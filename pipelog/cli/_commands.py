"""How a command ends: what the user can mend is one line on standard error and exit code 2, a fault of pipelog says so, a closed pipe is no error."""

from __future__ import annotations

import logging
import os
import sys
from typing import Any, NoReturn

import click

from pipelog.errors import PipelogError

log = logging.getLogger(__name__)


class Commands(click.Group):
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
