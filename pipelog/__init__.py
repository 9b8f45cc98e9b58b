"""pipelog: a post-mortem and efficiency analyzer for DeepSpeed pipeline-parallel training.

report = pipelog.diagnose(pipelog.read("job-folder"))
for finding in report.findings:
    print(finding.severity, finding.title)
report.tables["stage_time"]            # pandas
"""

import importlib
from typing import TYPE_CHECKING, Any

from pipelog._version import __version__

if TYPE_CHECKING:
    from pipelog.diagnosis import diagnose
    from pipelog.errors import PipelogError
    from pipelog.events import EVENTS, Events
    from pipelog.findings import Confidence, Evidence, Finding, Severity
    from pipelog.placing import read
    from pipelog.report import Report

__all__ = ["EVENTS", "Confidence", "Events", "Evidence", "Finding", "PipelogError", "Report", "Severity", "__version__", "diagnose", "read"]

_WHERE = {
    "diagnose": "diagnosis",
    "PipelogError": "errors",
    "EVENTS": "events",
    "Events": "events",
    "Confidence": "findings",
    "Evidence": "findings",
    "Finding": "findings",
    "Severity": "findings",
    "read": "placing",
    "Report": "report",
}
"""Modules of the public names, imported when a name is first used: pandas and pyarrow take half a second, which `pipelog --help` does not need."""


def __getattr__(name: str) -> Any:
    """A public name, from its module (PEP 562). Raises AttributeError for any other."""
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(f"{__name__}.{_WHERE[name]}"), name)
    return value


def __dir__() -> list[str]:
    """The public names, also those that were not used yet."""
    return sorted({*globals(), *__all__})
