"""Every labelled failure in every variation: what pipelog answers otherwise than it should, by variation.

python tools/sweep_variations.py [--seeds N] [--composed N] [--case TEXT] [--variation TEXT] [--json FILE] [FOLDER ...]

FOLDER holds cases (folders with a truth.json); fixtures/cases where none is given. A claim that the case as it is does not hold either is not
counted against its variations.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections import Counter, defaultdict
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT))

import pipelog.detectors  # noqa: E402
from pipelog.findings import DETECTORS  # noqa: E402
from pipelog.registry import load as load_all  # noqa: E402
from tests.cases import Case, deviations, diagnosed, load  # noqa: E402
from tests.variations import VARIATIONS, composed, vary  # noqa: E402
from tests.wordings import CAUSES  # noqa: E402

_PLAIN = "as it is"
_OF_FAILURES = ("PL001", "PL103", "PL5", "PL6")
"""Rules that speak of failures; the others cost half of the time."""


def _only_failures() -> None:
    load_all(pipelog.detectors)
    for rule in [i for i in DETECTORS if not i.startswith(_OF_FAILURES)]:
        del DETECTORS[rule]


def judged(folder: Path, how: str, seed: int) -> dict[str, Any] | None:
    """One answer: case, how it was changed, what is wrong. None where the variation does not apply."""
    case: Case | None = load(folder)
    assert case is not None
    if how == "composed":
        case = composed(case, seed)
    elif how != _PLAIN:
        case = vary(case, how, seed)
    if case is None:
        return None
    with tempfile.TemporaryDirectory(prefix="pipelog-sweep-") as scratch:
        try:
            wrong = deviations(case, diagnosed(case, Path(scratch)))
        except Exception as error:  # noqa: BLE001 - whatever a log does to pipelog is a finding of the sweep
            wrong = [("ran", f"{type(error).__name__}: {error}")]
    return {"case": case.name, "how": " + ".join(case.how) or _PLAIN, "group": how, "seed": seed, "wrong": wrong}


def _task(task: tuple[Path, str, int]) -> dict[str, Any] | None:
    return judged(*task)


def main() -> None:
    """Print the deviations by variation, then a count."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*", type=Path)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--composed", type=int, default=0, help="compositions of a few variations, so many a case")
    parser.add_argument("--case", default="")
    parser.add_argument("--variation", default="")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    found = {p.parent for root in args.folders or [ROOT / "fixtures" / "cases"] for p in root.rglob("truth.json") if args.case in p.parent.name}
    names = [n for n in VARIATIONS if args.variation in n]
    tasks = [(c, _PLAIN, 0) for c in sorted(found)]
    tasks += [(c, n, s) for n in names for c in sorted(found) for s in range(1 if n.removeprefix("cause: ") in CAUSES else args.seeds)]
    tasks += [(c, "composed", s) for c in sorted(found) for s in range(args.composed)]
    results = []
    with ProcessPoolExecutor(args.jobs, initializer=_only_failures) as pool:
        for n, result in enumerate(pool.map(_task, tasks, chunksize=4), 1):
            results += [result] if result else []
            if n % 100 == 0:
                print(f"{n} of {len(tasks)}, {len(results)} applied", file=sys.stderr, flush=True)
    if args.json:
        args.json.write_text("\n".join(json.dumps(r) for r in results) + "\n")
    report(results)


def report(results: list[dict[str, Any]]) -> None:
    """What is wrong, group by group."""
    plain = {r["case"]: {kind for kind, _ in r["wrong"]} for r in results if r["group"] == _PLAIN}
    groups: dict[str, list[tuple[str, str, str, str]]] = defaultdict(list)
    tally: Counter[str] = Counter()
    for r in results:
        tally[r["group"]] += 1
        for kind, what in r["wrong"]:
            if r["group"] == _PLAIN or kind not in plain.get(r["case"], set()):
                groups[r["group"]].append((r["case"], f"seed {r['seed']}" + (f": {r['how']}" if r["group"] == "composed" else ""), kind, what))
    for group, rows in groups.items():
        print(f"\n{group}: {len({(c, s) for c, s, _, _ in rows})} of {tally[group]}")
        for case, seed, kind, what in rows:
            print(f"    {case} ({seed}) {kind}: {what}")
    wrong = sum(len({(c, s) for c, s, _, _ in rows}) for group, rows in groups.items() if group != _PLAIN)
    print(
        f"\n{len(results)} answers, {wrong} of {len(results) - tally[_PLAIN]} variations deviate, in {len([g for g in groups if g != _PLAIN])} of {len(tally)} groups"
    )


if __name__ == "__main__":
    main()
