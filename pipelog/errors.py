"""What the user can put right, and nothing else.

Anything that is not a `PipelogError` is a fault of pipelog and keeps its traceback.
"""


class PipelogError(Exception):
    """One line that says what is wrong and how to mend it; the command line exits with 2."""


class NoInput(PipelogError):
    """No path was given that exists, or nothing below the paths could be read."""


class BadOption(PipelogError):
    """An option, a rule id or a threshold that does not exist or does not parse."""


class BadReport(PipelogError):
    """A report.json or an event table that is not one of ours."""


class BadPlugin(PipelogError):
    """Something that another distribution offers and that cannot be imported, or claims what is taken."""
