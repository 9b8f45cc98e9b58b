"""Words that matter: tracebacks and other messages of the attempt."""

from __future__ import annotations

import pandas as pd
import pyarrow as pa

from pipelog.tables import frame, table


@table("messages_said", needs=("placed",))
def messages_said(placed: pa.Table) -> pd.DataFrame:
    """Messages: name, rank, stage, host, text, file, line, start_ns."""
    return frame(placed, ("message",), ("name", "rank", "stage", "host", "text", "file", "line", "start_ns"))
