"""What the services that run jobs in a cloud say of a job's state: Amazon SageMaker, Google Vertex AI, Azure Machine Learning.

    2025-03-11 07:14:40 Stopping - Stopping the training job
    2025-03-11 07:14:55 Stopped - Training job stopped
    CustomJob projects/7/locations/us-central1/customJobs/4 current state:
    JobState.JOB_STATE_CANCELLED

Their words stand behind the job's own output, whatever ended it first: `stream` is `accounting`.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from pipelog.events import ACCOUNTING
from pipelog.parsing import Records, Rows, lines

_SAGEMAKER = {
    "Stopped": "batch-cancelled",
    "Stopping": "batch-cancelled",
    "MaxRuntimeExceeded": "batch-time-limit",
    "MaxWaitTimeExceeded": "batch-time-limit",
    "Interrupted": "batch-preempted",
    "Failed": "batch-failed",
}


# 2025-03-11 07:14:40 Stopping - Stopping the training job
# 2025-03-11 07:14:55 MaxRuntimeExceeded - Training job runtime exceeded MaxRuntimeInSeconds provided
# 2025-03-11 07:14:55 Interrupted - Training job interrupted due to a capacity event
@lines(
    "sagemaker-status",
    mark=(" Stopping - ", " Stopped - ", "MaxRuntimeExceeded", "MaxWaitTimeExceeded", " Interrupted - ", " Failed - "),
    pattern=rf"^\d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d (?P<words>(?P<state>{'|'.join(_SAGEMAKER)}) - [A-Z].*?)\s*$",
)
def sagemaker(found: Records) -> Iterator[Rows]:
    """Give SageMaker's secondary status of a training job that did not complete."""
    yield _rows(found, _SAGEMAKER)


_VERTEX = {"CANCELLED": "batch-cancelled", "EXPIRED": "batch-time-limit", "FAILED": "batch-failed"}


# INFO:google.cloud.aiplatform.jobs:CustomJob projects/7/locations/us-central1/customJobs/4 current state:
# JobState.JOB_STATE_CANCELLED
# state: JOB_STATE_CANCELLED
@lines(
    "vertex-state",
    mark=("JOB_STATE_CANCELLED", "JOB_STATE_EXPIRED", "JOB_STATE_FAILED"),
    pattern=rf"^(?:\"?state\"?: ?\"?|JobState\.|.*\bcurrent state: ?(?:JobState\.)?)(?P<words>JOB_STATE_(?P<state>{'|'.join(_VERTEX)}))\b[\",]*\s*$",
)
def vertex(found: Records) -> Iterator[Rows]:
    """Give the state in which Vertex AI has a job."""
    yield _rows(found, _VERTEX)


_AZURE = {"Canceled": "batch-cancelled", "PreemptionError": "batch-preempted"}


# AzureMLCompute job failed. PreemptionError: Nodes of this job got pre-empted. Check if the run has failed or restarted. Reason: Received pre-emption warning signal
# "status": "Canceled",
@lines(
    "azureml-status",
    mark=("'status': 'Canceled'", '"status": "Canceled"', "job failed. PreemptionError: "),
    pattern=r"^(?:[{ ]*['\"]status['\"]: ['\"](?P<words>(?P<state>Canceled))['\"][,}]*\s*$|(?:\S+: )*(?P<message>AzureMLCompute job failed\. (?P<error>PreemptionError): .*))",
)
def azureml(found: Records) -> Iterator[Rows]:
    """Give the state in which Azure Machine Learning has a run that was cancelled, and its word for nodes that were taken back."""
    name = pa.array(list(_AZURE.values())).take(pc.index_in(pc.coalesce(found["state"], found["error"]), pa.array(list(_AZURE))))
    yield found.rows("end", name, stream=ACCOUNTING, text=pc.coalesce(found["words"], found["message"]))


def _rows(found: Records, names: dict[str, str]) -> Rows:
    name = pa.array(list(names.values())).take(pc.index_in(found["state"], pa.array(list(names))))
    return found.rows("end", name, stream=ACCOUNTING, text=found["words"])
