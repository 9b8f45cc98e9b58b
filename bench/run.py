"""`make bench`: how fast, against a peer or a floor measured in the same run. Trust the ratios, not the seconds.

Each measure runs in a process of its own; the shortest of a few repetitions counts, of pipelog and of the peer alike.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
_HTA = """
import json, sys, time, warnings, logging
warnings.filterwarnings("ignore"); logging.disable(logging.CRITICAL)
from hta.trace_analysis import TraceAnalysis
best = 1e9
for _ in range(int(sys.argv[2])):
    begin = time.perf_counter(); TraceAnalysis(trace_files={0: sys.argv[1]}, trace_dir="/"); best = min(best, time.perf_counter() - begin)
print("RESULT", json.dumps({"seconds": best}))
"""


def read_one(path: str, repeats: int) -> dict[str, Any]:
    """Seconds to read one file into an event table (shortest of *repeats*), rows, and the peak memory of the process."""
    import pipelog.parsers  # noqa: PLC0415
    from pipelog.reading import read_one as read  # noqa: PLC0415
    from pipelog.reading.files import sources  # noqa: PLC0415
    from pipelog.registry import load  # noqa: PLC0415

    load(pipelog.parsers)
    source = sources([path])[0][0]
    seconds, rows = shortest(lambda: read(source).table.num_rows, repeats)
    return {"seconds": seconds, "rows": rows, "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}


def plain_lines(path: str, repeats: int) -> dict[str, Any]:
    """The floor: iterate over the lines and do nothing."""

    def work() -> int:
        with Path(path).open("rb") as file:
            return sum(1 for _ in file)

    seconds, rows = shortest(work, repeats)
    return {"seconds": seconds, "rows": rows}


def shortest(work: Callable[[], int], repeats: int) -> tuple[float, int]:
    """(seconds of the fastest run, what it returned)."""
    best, result = float("inf"), 0
    for _ in range(repeats):
        begin = time.perf_counter()
        result = work()
        best = min(best, time.perf_counter() - begin)
    return best, result


def in_process(name: str, *arguments: Any) -> dict[str, Any]:
    """Run one of the measures above in a fresh process."""
    done = subprocess.run([sys.executable, __file__, "--measure", name, *map(str, arguments)], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)  # type: ignore[no-any-return]


def hta(python: str, path: str, repeats: int) -> float:
    """Seconds that HolisticTraceAnalysis takes to load the same trace."""
    done = subprocess.run([python, "-c", _HTA, path, str(repeats)], capture_output=True, text=True, check=True)
    line = next(text for text in done.stdout.splitlines() if text.startswith("RESULT"))
    return float(json.loads(line[6:])["seconds"])


def traces(python: str | None, repeats: int) -> None:
    """Load time against HolisticTraceAnalysis, alternating, on the same real file."""
    path = str(ROOT / "fixtures/traces/hta/control.json.gz")
    if python is None or not Path(python).exists():
        print("trace load: no HolisticTraceAnalysis (see `make bench`)")
        print(f"  pipelog {in_process('read_one', path, repeats)['seconds']:.3f} s")
        return
    ours, theirs = [], []
    for _ in range(2):
        theirs.append(hta(python, path, repeats))
        ours.append(in_process("read_one", path, 3 * repeats)["seconds"])
    print(
        f"trace load, hta/control.json.gz (109,123 events): pipelog {min(ours):.3f} s, HolisticTraceAnalysis 0.5.0 {min(theirs):.3f} s: {min(theirs) / min(ours):.1f} x"
    )


def big_trace(folder: Path, size: int) -> None:
    """A generated trace: seconds and peak memory."""
    path = folder / "trace.json"
    generate("trace", path, size)
    got = in_process("read_one", path, 1)
    mb = path.stat().st_size / 1e6
    print(
        f"trace of {mb:,.0f} MB: {got['seconds']:.1f} s ({mb / got['seconds']:,.0f} MB/s), {got['rows']:,} rows, peak memory {got['peak_mb']:,.0f} MB"
    )
    path.unlink()


def logs(folder: Path, size: int, repeats: int) -> None:
    """The log mix on one core, against a plain iteration over its lines."""
    path = folder / "mix.log"
    generate("log", path, size)
    mb = path.stat().st_size / 1e6
    ours, floor = in_process("read_one", path, repeats), in_process("plain_lines", path, repeats)
    print(
        f"log mix of {mb:,.0f} MB on one core: {mb / ours['seconds']:,.0f} MB/s, {ours['rows']:,} rows, peak memory {ours['peak_mb']:,.0f} MB; "
        f"plain line iteration {mb / floor['seconds']:,.0f} MB/s: {floor['seconds'] / ours['seconds']:.2f} of it"
    )
    path.unlink()


def folder_of_ranks(folder: Path, ranks: int, size: int) -> None:
    """A whole folder: one log and one trace a rank, to a finished report; then again from the cache."""
    job = folder / "job"
    job.mkdir()
    each = size // (2 * ranks)
    generate("log", job / "rank0.log", each)
    generate("trace", job / "rank0.json", each)
    log, trace = (job / "rank0.log").read_bytes(), (job / "rank0.json").read_text()
    for rank in range(1, ranks):
        (job / f"rank{rank}.log").write_bytes(log)
        (job / f"rank{rank}.json").write_text(trace.replace('"rank": 0, "world_size": 8', f'"rank": {rank}, "world_size": {ranks}'))
    total = sum(f.stat().st_size for f in job.iterdir()) / 1e6
    seconds = []
    environment = os.environ | {"XDG_CACHE_HOME": str(folder / "cache")}
    for _ in range(2):
        begin = time.perf_counter()
        subprocess.run(
            [sys.executable, "-m", "pipelog", "analyze", str(job), "-q", "-o", str(folder / "out.html")],
            check=True,
            env=environment,
            capture_output=True,
        )
        seconds.append(time.perf_counter() - begin)
    print(
        f"folder of {ranks} logs and {ranks} traces, {total:,.0f} MB: report in {seconds[0]:.1f} s, again from the cache in {seconds[1]:.1f} s ({os.cpu_count()} cores)"
    )


def folder_of_failures(folder: Path, lines: int) -> None:
    """A job of 256 ranks that died, all of them complaining: seconds and peak memory to a report, which must name the one that began it."""
    job = folder / "failed"
    subprocess.run([sys.executable, str(HERE / "generate_failures.py"), str(job), str(lines)], check=True)
    truth = json.loads((folder / "failed.truth.json").read_text())
    begin = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "pipelog", "analyze", str(job), "-q", "--format", "json", "-o", "-"],
        check=True,
        env=os.environ | {"XDG_CACHE_HOME": str(folder / "cache-of-failures")},
        capture_output=True,
    )
    seconds = time.perf_counter() - begin
    failure = json.loads(done.stdout)["failure"]
    right = failure["category"] in truth["category"] and failure["ranks"] == truth["ranks"]
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    print(
        f"failed job of 256 ranks, {lines:,} lines of errors: report in {seconds:.1f} s ({os.cpu_count()} cores), "
        f"no process above {peak:,.0f} MB, verdict {'right' if right else 'WRONG'}"
    )


def replay() -> None:
    """A job of 256 ranks, 50 steps and 64 micro-batches, from its durations to links, slowdown and what-if."""
    done = subprocess.run([sys.executable, str(HERE / "replay.py")], capture_output=True, text=True, check=True)
    got = json.loads(done.stdout)
    print(f"replay of 256 ranks x 50 steps x 64 micro-batches: {got['all']:.1f} s, peak memory {got['peak_mb']:,.0f} MB")


def traces_of_all_ranks(folder: Path, shape: tuple[int, int, int, int]) -> None:
    """The events of every rank's trace of such a job, to clocks, bubble, breakdown, links and what-if."""
    path, (p, d, steps, m) = folder / "events.parquet", shape
    subprocess.run([sys.executable, str(HERE / "traces.py"), "make", str(path), *map(str, shape)], check=True)
    done = subprocess.run([sys.executable, str(HERE / "traces.py"), str(path)], capture_output=True, text=True, check=True)
    got = json.loads(done.stdout)
    print(
        f"traces of {p * d} ranks x {steps} steps x {m} micro-batches, {got['rows']:,} events of {got['table_mb']:,.0f} MB: {got['messages']:,} messages matched, "
        f"what-if after {got['seconds']:.1f} s, memory at most {got['above_mb']:,.0f} MB above the events"
    )
    path.unlink()


def generate(kind: str, path: Path, size: int) -> None:
    """Make an input."""
    subprocess.run([sys.executable, str(HERE / "generate.py"), kind, str(path), str(size)], check=True)


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hta", help="python of a venv with HolisticTraceAnalysis==0.5.0 and pandas<3")
    parser.add_argument("--quick", action="store_true", help="smaller inputs, fewer repetitions")
    parser.add_argument("--measure", nargs="+", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        name, path, repeats = args.measure
        print(json.dumps({"read_one": read_one, "plain_lines": plain_lines}[name](path, int(repeats))))
        return
    scale = 0.1 if args.quick else 1.0
    with tempfile.TemporaryDirectory(prefix="pipelog-bench-") as scratch:
        folder = Path(scratch)
        folder_of_failures(folder, int(200_000 * scale))
        traces(args.hta, 1 if args.quick else 3)
        logs(folder, int(200e6 * scale), 2 if args.quick else 4)
        big_trace(folder, int(1e9 * scale))
        replay()
        traces_of_all_ranks(folder, (16, 2, 10, 16) if args.quick else (16, 16, 50, 64))
        folder_of_ranks(folder, 8 if args.quick else 64, int(1e9 * scale))


if __name__ == "__main__":
    main()
