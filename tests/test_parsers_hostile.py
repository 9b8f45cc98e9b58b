"""No text makes a parser raise, and no noise around a record on a line of its own hides it."""

from __future__ import annotations

import itertools
import tempfile
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from pipelog import parsing
from pipelog.events import EVENTS, Input
from pipelog.reading.configs import is_config, read_config
from pipelog.reading.files import Source
from pipelog.reading.logs import read_log
from pipelog.reading.marks import marks
from tests.conftest import FIXTURES

marks()
PARSERS = (*parsing.RECORDS.values(), *parsing.BLOCKS.values(), *parsing.LINES.values())
MARKS = sorted({mark.encode() for parser in PARSERS for mark in (*parser.marks, *getattr(parser, "shadows", ()))})
LINES = sorted({line for log in (FIXTURES / "logs").glob("*/*.log") for line in log.read_bytes().split(b"\n") if line})

ODD = (
    b"\0",
    b"\r",
    b"\x1b[31m",
    b"\x1b[0m",
    b"\x1b]0;title\x07",
    b"\xff\xfe",
    b"\xc3\x28",
    "⠋ 中 \u2028".encode(),
    b"{",
    b"}",
    b"[",
    b'"',
    b"'",
    b"\\",
)
JUNK = st.one_of(
    st.binary(max_size=40),
    st.sampled_from(ODD),
    st.sampled_from(MARKS),
    st.text(max_size=20).map(lambda text: text.encode("utf-8", "surrogatepass")),
    st.integers(-(10**30), 10**30).map(lambda n: str(n).encode()),
    st.tuples(st.sampled_from([*ODD, b"x", b" ", b"9", b"a=1, ", b"'k': "]), st.integers(1, 4000)).map(lambda pair: pair[0] * pair[1]),
)
TORN = st.tuples(st.sampled_from(LINES), st.integers(0, 300), st.integers(0, 300)).map(lambda cut: cut[0][cut[1] : len(cut[0]) - cut[2]])
HOSTILE = st.lists(st.one_of(JUNK, TORN, st.sampled_from(LINES), st.just(b"\n"), st.just(b"\n")), max_size=30).map(b"".join)
QUIET = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example])


def read(data: bytes, name: str = "any.log", reader: Any = read_log) -> tuple[list[dict[str, Any]], Input]:
    table, given_input = read_table(data, name, reader)
    return table.to_pylist(), given_input


def read_table(data: bytes, name: str = "any.log", reader: Any = read_log) -> tuple[pa.Table, Input]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_bytes(data)
        table, given_input = reader(Source(path, name, len(data), 0))
    assert table.schema.equals(EVENTS)
    return table, given_input


@QUIET
@given(HOSTILE)
@example(b"")
@example(b"\0" * 5000)
@example(b"\r" * 100 + b"Using topology: {ProcessCoord(pipe=99999, data=0): 99999999999}")
@example(b"stage=999999999 layers=999999999\n      0: x")
@example(b"[runner.py:1:main] cmd = x --world_info=" + b"W" * 400 + b" --stages 1" + b"0" * 400)
@example(b'[config.py:1:print_user_config]   json = {"a": ' + b"[" * 500)
@example(b'[config.py:1:print_user_config]   json = {"\\ud800": "\\udfff", "b": 1' + b"0" * 5000 + b"}")
@example(b"[config.py:1:print]   zero_config .................. " + b"stage=1 " * 60_000)
@example(b"global_rank_mapping=defaultdict(<class 'list'>, {" + b"'n': [" + b"0, " * 90_000 + b"1], 'm': [2]})")
def test_no_text_makes_a_parser_raise(data: bytes) -> None:
    rows, given_input = read(data)
    lines = data.count(b"\n") + 1
    assert all(row["line"] is not None and 1 <= row["line"] <= lines for row in rows)
    assert given_input.kind == "log"


RECORDS_WHOLE = [
    (b"[2024-03-05 14:02:11,087] [INFO] [runner.py:585:main] cmd = python -m deepspeed.launcher.launch train.py --stages 4", "start", "launcher"),
    (b"[2024-03-05 14:02:11,087] [INFO] [launch.py:152:main] nnodes=1, num_local_procs=4, node_rank=0", "start", "node"),
    (b"[x] [INFO] [launch.py:163:main] global_rank_mapping=defaultdict(<class 'list'>, {'localhost': [0, 1]})", "place", "launcher"),
    (b"[x] [INFO] [launch.py:164:main] dist_world_size=4", "fact", "topology.world_size"),
    (b"[x] [INFO] [launch.py:256:main] process 51266 spawned with command: ['python', '--local_rank=0']", "process", "spawned"),
    (b"Killing subprocess 43950", "process", "killed"),
    (b"[x] [ERROR] [launch.py:325:sigkill_handler] ['python', 'train.py'] exits with return code = -9", "end", "exit-code"),
    (b"[x] [INFO] [launch.py:367:main] Process 12543 exits successfully.", "end", "exit-success"),
    (b"Main process received SIGTERM, exiting", "end", "signal"),
    (b"E0603 08:12:41.884000 20390 api.py:869] failed (exitcode: -9) local_rank: 1 (pid: 20418) of binary: /opt/bin/python", "end", "exit-code"),
    (b"[x] [INFO] [comm.py:652:init_distributed] cdb=None", "comm_init", "cdb"),
    (b"[x] [INFO] [logging.py:96:log_dist] [Rank 0] DeepSpeed info: version=0.15.1, git-hash=unknown", "fact", "version.deepspeed"),
    (b"[x] [INFO] [config.py:1007:print]   gradient_accumulation_steps .. 24", "fact", "config.gradient_accumulation_steps"),
    (b'[x] [INFO] [config.py:993:print_user_config]   json = {"train_batch_size": 1.024000e+03}', "fact", "config.train_batch_size"),
    (b"SEED_LAYERS=False BASE_SEED=1234 SEED_FN=None", "start", "engine"),
    (b"Using topology: {ProcessCoord(pipe=0, data=0): 0, ProcessCoord(pipe=1, data=0): 1}", "fact", "topology.pp"),
    (b"stage=0 layers=3", "stage", "layers"),
    (b"[x] [INFO] [engine.py:76:__init__] CONFIG: micro_batches=256 micro_batch_size=4", "fact", "config.micro_batches"),
    (b"RANK=4 STAGE=1 LAYERS=6 [7, 13) STAGE_PARAMS=75 (0.0M) TOTAL_PARAMS=354 (0.0M) UNIQUE_PARAMS=303 (0.0M)", "place", "rank-line"),
    (b"slurmstepd: error: *** STEP 1.0 ON h6-04-3 CANCELLED AT 2021-05-24T09:14:22 DUE TO TIME LIMIT ***", "end", "slurm-time-limit"),
    (b"srun: error: node7: task 4: Segmentation fault (core dumped)", "end", "slurm-task"),
    (b"[after training is done] datetime: 2023-08-15 07:22:31", "end", "training-done"),
    (b"training finished", "end", "script-done"),
    (b"steps: 120 loss: 2.9134 iter time (s): 4.812 samples/sec: 106.401", "step", "deepspeed"),
    (b"Killed", "error", "shell-signal"),
    (b"[Tue Mar  5 15:20:08 2024] NVRM: Xid (PCI:0000:3b:00): 79, pid=4312, name=python, GPU has fallen off the bus.", "error", "kernel-xid"),
    (b"[123456.789012] Memory cgroup out of memory: Killed process 63214 (python) total-vm:3149468kB", "error", "kernel-oom"),
    (b"tee: /workspace/logs/run.log: No space left on device", "error", "storage"),
    (b"ssh: connect to host node7 port 22: Connection refused", "error", "ssh"),
    (b"[2024-03-05 15:20:09,832] [ERROR] [metrics.py:41:push] not reachable", "error", "level"),
    (b"TERM_RUNLIMIT: job killed after reaching LSF run time limit.", "end", "batch-time-limit"),
]


@QUIET
@given(
    st.lists(HOSTILE.map(lambda noise: noise.replace(b"\n", b" ")), min_size=1, max_size=6),
    st.lists(st.sampled_from(RECORDS_WHOLE), min_size=1, max_size=6),
)
def test_noise_hides_no_record(noise: list[bytes], wanted: list[tuple[bytes, str, str]]) -> None:
    lines = [b"a log begins"]
    places = []
    for junk, (record, kind, name) in zip(itertools.cycle(noise), wanted, strict=False):
        lines += [junk, record]
        places.append((len(lines), kind, name))
    rows, _ = read(b"\n".join(lines))
    found = {(row["line"], row["kind"], row["name"]) for row in rows}
    assert set(places) <= found


_MOST_S = 6
"""CPU time for 100 kB of one mark: the slowest takes one second, most a hundredth."""


@pytest.mark.parametrize("mark", MARKS, ids=repr)
def test_a_mark_repeated_is_read_in_time(mark: bytes) -> None:
    """100 kB of one mark, on one line and on one line each: a parser that reads on from each of them to the end would take ten seconds and more."""
    begun = time.process_time()
    read_table(mark * (100_000 // len(mark)))
    read_table((mark + b"\n") * (100_000 // len(mark)))
    assert time.process_time() - begun < _MOST_S


@QUIET
@given(st.one_of(HOSTILE, HOSTILE.map(lambda text: b'{"zero_optimization": {"stage": 1}, ' + text)))
@example(b'{"train_batch_size": ' + b"[" * 3000)
@example(b"/* */" * 4000)
def test_no_text_makes_the_configuration_reader_raise(data: bytes) -> None:
    is_config(data)
    rows, given_input = read(data, "ds_config.json", read_config)
    assert given_input.kind == "config"
    assert all(row["kind"] == "fact" and row["name"].startswith("config.") for row in rows)
