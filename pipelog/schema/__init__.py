"""The JSON Schemas of report.json and of what `plan` and `diff` write with `--format json`."""

from importlib.resources import files


def text(name: str = "report-1.json") -> str:
    """The schema document, as `pipelog schema` prints it."""
    return files(__name__).joinpath(name).read_text(encoding="utf-8")
