"""pipelog: a post-mortem and efficiency analyzer for DeepSpeed pipeline-parallel training.

report = pipelog.diagnose(pipelog.read("job-folder"))
for finding in report.findings:
    print(finding.severity, finding.title)
report.tables["stage_time"]            # pandas
"""

from pipelog._version import __version__
from pipelog.diagnosis import diagnose
from pipelog.errors import PipelogError
from pipelog.events import EVENTS, Events
from pipelog.findings import Confidence, Evidence, Finding, Severity
from pipelog.placing import read
from pipelog.report import Report

__all__ = ["EVENTS", "Confidence", "Events", "Evidence", "Finding", "PipelogError", "Report", "Severity", "__version__", "diagnose", "read"]
