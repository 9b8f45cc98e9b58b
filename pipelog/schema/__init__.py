"""The JSON Schema of report.json."""

from importlib.resources import files


def text() -> str:
    """The schema document, as `pipelog schema` prints it."""
    return files(__name__).joinpath("report-1.json").read_text(encoding="utf-8")
