"""report.json: the whole report, for scripts."""

from pipelog.report import Report
from pipelog.reporters import reporter


@reporter("json", suffix=".json")
def render(report: Report) -> str:
    """The document that `pipelog schema` describes."""
    return report.to_json() + "\n"
