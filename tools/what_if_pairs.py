"""What-if against reality: for pairs of real runs that differ in one setting, the step predicted from the first and that of the second.

python tools/what_if_pairs.py FOLDER     prints the table of docs/replay.md from FOLDER/pairs.toml and the runs beside it
"""

from __future__ import annotations

import json
import statistics
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

import pipelog


@dataclass(frozen=True, slots=True)
class Pair:
    """said: the change in words. change: its name in metrics.what_if. now_s, predicted_s: of the first run. measured_s: of each run of the second kind."""

    said: str
    source: str
    change: str
    now_s: float
    predicted_s: float
    measured_s: tuple[float, ...]

    @property
    def error(self) -> float:
        """Predicted over the median of the measured, less 1."""
        return self.predicted_s / statistics.median(self.measured_s) - 1


def pairs(folder: Path) -> list[Pair]:
    """All pairs of a folder. Raises KeyError where the first run does not give a prediction of the change."""
    out = []
    for told in tomllib.loads((folder / "pairs.toml").read_text())["pair"]:
        report = json.loads(pipelog.diagnose(pipelog.read(folder / told["from"])).to_json())
        what_if = {c["change"]: c for c in report["metrics"]["what_if"]}
        measured = tuple(json.loads((folder / run / "measured.json").read_text())["step_time_ms"]["median"] / 1e3 for run in told["to"])
        out.append(Pair(told["said"], told["from"], told["change"], what_if["now"]["step_time_s"], what_if[told["change"]]["step_time_s"], measured))
    return out


def main(folder: str) -> None:
    """Print the table."""
    print("| change | now | predicted | measured (median of three) | the three | error |\n|---|---|---|---|---|---|")
    for p in pairs(Path(folder)):
        each = ", ".join(f"{1e3 * s:.0f}" for s in sorted(p.measured_s))
        print(
            f"| {p.said} | {1e3 * p.now_s:.0f} ms | {1e3 * p.predicted_s:.0f} ms | {1e3 * statistics.median(p.measured_s):.0f} ms | {each} | {100 * p.error:+.1f} % |"
        )


if __name__ == "__main__":
    main(sys.argv[1])
