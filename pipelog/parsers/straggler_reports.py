"""What straggler detectors of the frameworks print: figures of the fastest and the slowest ranks, once a report.

Megatron-LM's (`--log-straggler`, core_v0.6.0 on; rank 0, once a print interval, forward passes alone). The smallest and the largest of each
figure, with its rank; with `--straggler-minmax-count` the ranks of lowest and highest estimated throughput too. Power is in milliwatts, whatever the line says:

     0: INFO:megatron.core.utils:[2024-03-14 23:07:56] | MnRtt/Rnk: 3453.08ms/8 | MxRtt/Rnk: 3468.20ms/0 | MnPwr/Rnk: 601796W/8 | … | MnEtpt/Rnk: 296.02TF/0 | …
    [2024-10-23 01:29:30] [INFO] | MnRtt/Rnk: 1446.49ms/13 | MxRtt/Rnk: 1570.32ms/30 | MnPwr/Rnk: 617923.00W/0 | …
     0: INFO:megatron.core.utils:^^^^ Bottom 4 Ranks with lowest  Etpt(TF): 296.02/0, 296.17/2, 296.23/1, 296.23/4,
     0: INFO:megatron.core.utils:^^^^ Top    4 Ranks with highest Etpt(TF): 297.28/15, 297.28/11, 297.32/12, 297.32/8,

NVIDIA's resiliency extension (NeMo, Megatron-Bridge; rank 0, every few minutes). A score is the time of the fastest rank (relative) or the
best time of the same rank (individual) over the time of this rank, kernel by kernel; few ranks are listed all, without the lines between:

    megatron.bridge.NVRxStragglerDetection: GPU relative performance:
     Worst performing 5/512 ranks:
      Rank=76 Node=h100-001-253-012 Score=0.94
     Best performing 5/512 ranks:
      Rank=432 Node=h100-004-141-026 Score=0.99
    STRAGGLER DETECTION WARNING: Some GPUs have worse relative performance. Affected ranks: {76}
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from pipelog.events import WORD, nulls
from pipelog.parsers._facts import times
from pipelog.parsers._fields import renamed
from pipelog.parsing import Block, Records, Row, Rows, block, records

_NUMBER = r"-?\d+(?:\.\d+)?"
_FIGURE = rf"M[nx][A-Z][A-Za-z]{{2,4}}/Rnk: {_NUMBER}(?:ms|W|C|%|MHz|TF)/\d{{1,9}}"
_NAMES = (
    ("^DRtt$", "batch_ms"),
    ("^Rtt$", "rtt_ms"),
    ("^Pwr$", "power_mw"),
    ("^Tmp$", "temperature_c"),
    ("^Utl$", "utilization_percent"),
    ("^Clk$", "clock_mhz"),
    ("^Etpt$", "throughput_tflops"),
)


@records(
    "straggler-figures",
    mark="MnRtt/Rnk: ",
    pattern=rf"^(?P<figures>{_FIGURE}(?: \| {_FIGURE})*)",
    head=r"(?:\[(?P<stamp>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)\] \| )?$",
    torn=r"^MnRtt/Rnk: [\d.]*(?:ms)?/?$",
)
def figures(found: Records) -> Iterator[Rows]:
    """One row a figure: its rank and value; text tells the smallest (`min`) from the largest (`max`)."""
    stamp = times(found["stamp"])
    clock = pc.if_else(pc.is_valid(stamp), "log", found.columns["clock"])
    found.columns |= {"start_ns": pc.coalesce(stamp, found.columns["start_ns"]), "clock": clock}
    each = found.split("figures", " | ", rf"^M(?P<side>[nx])(?P<what>[A-Za-z]+)/Rnk: (?P<value>{_NUMBER})[^/]+/(?P<rank>\d+)$")
    side = pc.if_else(pc.equal(each.groups["side"], "n"), "min", "max")
    yield each.rows("straggler_figure", renamed(each.groups["what"], *_NAMES), text=side, rank=each.int("rank"), value=each.float("value"))


@records(
    "straggler-ranks",
    mark="Etpt(TF): ",
    pattern=rf"^Etpt\(TF\): (?P<ranks>(?:{_NUMBER}/\d{{1,9}},? ?)+)",
    head=r"(?P<side>Bottom|Top) +\d+ Ranks with (?:lowest|highest) +$",
)
def ranks(found: Records) -> Iterator[Rows]:
    """One row a rank, in the order of the line: lowest first (`bottom`), highest last (`top`)."""
    each = found.split("ranks", ",", rf"^ *(?P<value>{_NUMBER})/(?P<rank>\d+) *$")
    yield each.rows(
        "straggler_figure", "throughput_tflops", text=pc.utf8_lower(each.groups["side"]), rank=each.int("rank"), value=each.float("value")
    )


_HEADING = re.compile(r"^\s*(Worst|Best) performing \d{1,9}/(\d{1,9}) ranks:\s*$", re.ASCII)
_SCORE = re.compile(r"^\s*Rank=(\d{1,9}) Node=(\S+) Score=(\d{1,9}\.\d{1,9}|nan)\s*$", re.ASCII)


@block("gpu-scores", mark=("GPU relative performance:", "GPU individual performance:"), most=1 << 15)
def scores(block: Block) -> Iterator[Row]:
    """One row a rank that is listed, in which list (`worst`, `best` or `all`); a rank without a score (`nan`) has none."""
    name, listed = "relative" if "relative" in block.first else "individual", "all"
    for number, text in block.lines():
        if number == block.line:
            continue
        if heading := _HEADING.match(text):
            listed = heading[1].lower()
        elif not (found := _SCORE.match(text)):
            return
        elif found[3] != "nan":
            place = {"rank": int(found[1]), "host": found[2], "line": number}
            yield {"kind": "gpu_score", "name": name, "value": float(found[3]), "text": listed} | place


@records(
    "gpu-scores-flagged",
    mark="STRAGGLER DETECTION WARNING: Some GPUs ",
    pattern=r"^STRAGGLER DETECTION WARNING: Some GPUs (?P<what>have worse relative performance|performance dropped)\. Affected ranks: [{\[](?P<ranks>.*)[}\]]",
)
def flagged(found: Records) -> Iterator[Rows]:
    """One row a rank below the threshold of the detector (0.7 unless set), without its score: `{3, 5}`, `[3, 5]` or `{StragglerId(rank=3, node='h')}`."""
    found.groups["ranks"] = pc.replace_substring_regex(found.groups["ranks"], r"[A-Za-z]+\(rank=(\d+)[^)]*\)", r"\1")
    each = found.split("ranks", ",", r"^ *(?P<rank>\d{1,9}) *$")
    name = pc.if_else(pc.match_substring(each.groups["what"], "relative"), pa.scalar("relative"), pa.scalar("individual"))
    of_others = nulls(WORD, len(each))  # the host of the line is that of rank 0, which prints it
    yield each.rows("gpu_score", name, rank=each.int("rank"), text="flagged", host=of_others)
