"""What collectives cost in themselves."""

from __future__ import annotations

import numpy as np
import pandas as pd

from pipelog.tables import CannotTell, table
from pipelog.tables.instructions import HostTrace
from pipelog.tables.topology import Topology


@table("collectives", needs=("host_traces", "topology"))
def collectives(host_traces: list[HostTrace], topology: Topology) -> pd.DataFrame:
    """Collectives of a step, matched by order over the ranks that made the same number: step, name, ranks, own_ns, wait_ns, share.

    own_ns: the shortest duration over the ranks, what the collective takes once all have come; wait_ns: the longest minus that, the
    wait for the last to come. share: own_ns of all collectives of this name in the step over the step.
    """
    del topology
    rows = []
    for trace in host_traces:
        places = np.flatnonzero(trace.kind == "collective")
        window = trace.window_of(trace.start[places])
        for i, w in zip(places[window >= 0], window[window >= 0], strict=True):
            step, begin, end = trace.windows[w]
            rows.append((step if step >= 0 else int(w), trace.rank, str(trace.name[i]), int(trace.end[i] - trace.start[i]), end - begin))
    if not rows:
        raise CannotTell("no trace shows collectives")
    found = pd.DataFrame(rows, columns=["step", "rank", "name", "dur_ns", "step_ns"])
    found["number"] = found.groupby(["step", "rank", "name"]).cumcount()
    each = found.groupby(["step", "name", "number"]).agg(
        ranks=("rank", "nunique"), own_ns=("dur_ns", "min"), longest=("dur_ns", "max"), step_ns=("step_ns", "max")
    )
    each = each[each["ranks"] > 1]
    total = each.groupby(["step", "name"]).agg(
        ranks=("ranks", "max"), own_ns=("own_ns", "sum"), longest=("longest", "sum"), step_ns=("step_ns", "max")
    )
    total["wait_ns"] = total["longest"] - total["own_ns"]
    total["share"] = total["own_ns"] / total["step_ns"]
    return total.drop(columns="longest").reset_index()
