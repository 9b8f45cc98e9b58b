"""What a line of a failure means: a wording of each kind, what comes of it, and a near miss; and lines that were once mistaken."""

from __future__ import annotations

import functools
import re
import tomllib
from typing import Any

import pandas as pd
import pytest

import pipelog.postmortem.kinds
from pipelog.findings import Confidence
from pipelog.postmortem.case import Case
from pipelog.postmortem.deaths import Death
from pipelog.postmortem.kinds import KINDS, Kind, Role, Strength
from pipelog.registry import load
from pipelog.tables import Tables
from pipelog.tables.config import Config
from pipelog.tables.topology import Topology
from tests.conftest import FIXTURES
from tests.making import fact, tables, topology_map
from tests.telling import read, traceback

load(pipelog.postmortem.kinds)

CASES: dict[str, dict[str, Any]] = tomllib.loads((FIXTURES / "postmortem" / "kinds.toml").read_text())
CATEGORIES = re.findall(
    r"\S+",
    """
    hardware.gpu hardware.node network network.config storage host.oom host.shm killed memory.gpu-oom hang launch config.batch config.mesh config.other
    checkpoint data engine code dependency numerics.loss-scale numerics.nan numerics.divergence
    scheduler.time-limit scheduler.preempted scheduler.cancelled unknown
    """,
)
"""`failure.category` of the report is public: no other words."""
MAP = ", ".join(f"ProcessCoord(pipe={s}, data={d}): {s * 2 + d}" for s in range(4) for d in range(2))
HEAD = [
    f"Using topology: {{{MAP}}}",
    "[2024-03-05 14:10:02,101] [INFO] [config.py:1000:print]   gradient_accumulation_steps .. 4",
    "[2024-03-05 15:10:00,000] [INFO] [logging.py:107:log_dist] [Rank 0] steps: 10 loss: 9.1 iter time (s): 1.0 samples/sec: 4.0",
]
each_kind = pytest.mark.parametrize("name", CASES)


def said(case: dict[str, Any], prefix: str = "") -> list[str]:
    """The lines of a wording (`log`, `raises`) or of its near miss (`near`, `near_raises`)."""
    line = case.get("near" if prefix else "log")
    return [line] if line is not None else traceback(case[f"{prefix}raises"], *case.get(f"{prefix}frames", ["/job/train.py:40 main"]), rank=3)


def told(lines: list[str], *, steps: bool = True) -> Tables:
    return read({"train.log": [*(HEAD if steps else HEAD[:-1]), *lines]})


@functools.cache
def wording(name: str) -> Tables:
    return told(said(CASES[name]), steps=CASES[name]["category"] != "launch")  # what fails to start after steps is none of a launch


def test_every_kind_has_a_wording() -> None:
    assert set(CASES) == set(KINDS), "a kind without its table in fixtures/postmortem/kinds.toml, or the other way round"


@each_kind
def test_a_wording_means_its_kind(name: str) -> None:
    case, made = CASES[name], wording(name)
    errors: pd.DataFrame = made["errors"]
    assert set(errors["error"]) == {name}, errors[["name", "error", "text"]]
    assert set(errors["category"]) == {case["category"]}
    assert set(errors["role"]) == {case.get("role", "initiating")}
    death: Death = made["death"]
    if case.get("harmless_alone"):
        assert death.category is None
        return
    if KINDS[name].strength is Strength.WORD and name not in (
        "left-with-code",
        "left-with-state",
        "bare-exception",
        "traceback-cut",
        "traceback-cut-below",
    ):
        assert death.category is None  # words alone end nothing
        return
    assert death.kind == case.get("alone", name)
    assert death.category == case.get("ends", case["category"])
    assert death.known is case.get("known", True)
    assert death.status == case.get("status", "hung" if case["category"] == "hang" else "failed")
    assert death.step == (None if case["category"] == "launch" else 10)
    assert (death.evidence[0].file, death.evidence[0].line) == ("train.log", case.get("proof", int(errors["line"].iloc[0])))


@each_kind
def test_a_verdict_names_whom_the_line_names(name: str) -> None:
    case = CASES[name]
    death: Death = wording(name)["death"]
    if death.kind != name:
        return
    whose = case.get("whose", "rank" if "raises" in case else None)
    if whose in ("rank", "job", "nobody"):
        assert death.ranks == ((3,) if whose == "rank" else ())
        assert death.stages == ((1,) if whose == "rank" else ())
    if whose == "those named":
        assert death.ranks == tuple(case["ranks"])
    if whose == "host":
        assert (death.ranks, death.hosts) == ((), ("node-1",))
    if whose == "job":
        assert KINDS[name].job
        assert death.title.startswith("The job")
    assert all(words in death.title for words in case.get("title", [])), death.title
    assert "{" not in death.title


@each_kind
def test_what_is_not_known_is_said_and_what_to_do_too(name: str) -> None:
    case = CASES[name]
    death: Death = wording(name)["death"]
    if death.kind != name:
        return
    actions = [f"{a.action} {a.expected or ''}" for a in death.advice]
    assert actions
    assert all(any(words in action for action in actions) for words in case.get("advice", [])), actions
    assert not [action for action in actions if re.search(r"\bNone\b|\{", action)]
    if not death.known:
        assert death.missing
        assert death.confidence is not Confidence.HIGH


@functools.cache
def together() -> pd.DataFrame:
    """The errors of all near misses and of all single lines, each in a file of its own."""
    files = {f"near/{name}.log": said(case, "near_") for name, case in CASES.items()}
    files |= {f"line/{n}.log": [line] for n, line in enumerate(LINES)}
    files |= {f"raised/{n}.log": traceback(text, "/job/train.py:40 main", rank=3) for n, text in enumerate(RAISED)}
    errors: pd.DataFrame = read({"train.log": HEAD, **files})["errors"]
    return errors


def kinds_in(file: str) -> set[str]:
    return set(together().loc[together()["file"] == file, "error"])


@each_kind
def test_a_near_miss_means_something_else(name: str) -> None:
    wanted = CASES[name]["near_is"]
    assert kinds_in(f"near/{name}.log") == ({wanted} if wanted else set())


# ---- lines that mean more, or less, than they seem to

LINES = {
    # an uncorrected machine check has bit 61 of its status; corrected ones are logged every day
    "[123456.789012] mce: [Hardware Error]: CPU 12: Machine Check Exception: 5 Bank 7: be00000000800400": "node-failure",
    "[123456.789012] mce: [Hardware Error]: CPU 12: Machine Check: 0 Bank 7: b200000000070005": "node-failure",
    "[123456.789012] mce: [Hardware Error]: CPU 12: Machine Check: 0 Bank 7: 9c00000000010092": "word",
    "[123456.789012] mce: [Hardware Error]: Machine check events logged": "word",
    "[123456.789012] nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 30 LTSSM Fault Up": "gpu-broken",
    "[123456.789012] nvidia-nvswitch1: SXid (PCI:0000:84:00.0): 12028, Non-fatal, Link 32 egress non-posted PRIV error (First)": "word",
    "[123456.789012] amdgpu 0000:c1:00.0: amdgpu: uncorrectable hardware error(ERREVENT_ATHUB_INTERRUPT) detected!": "gpu-broken",
    "HW Exception by GPU node-1 (Agent handle: 0x55d0) reason :GPU Hang": "gpu-fault",
    "[123456.789012] mlx5_core 0000:ab:00.0 mlx5_5: Port: 1 Link DOWN": "ib-port",
    # whoever kills a process for want of memory
    "[ 7063.263325] oom_reaper: reaped process 63214 (pt_main_thread), now anon-rss:0kB, file-rss:0kB, shmem-rss:92kB": "host-oom-killed",
    'Mar  5 15:20:08 node7 earlyoom[600]: sending SIGTERM to process 4312 uid 1000 "python": badness 900, VmRSS 200000 MiB': "host-oom-killed",
    "[ 7093.543707] python invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=986": "host-oom-elsewhere",
    "[ 7093.543960] oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,oom_memcg=/job_812345,task=python3,pid=4312,uid=1000": "host-oom-killed",
    "[ 7093.543960] oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,global_oom,task_memcg=/user.slice,task=java,pid=99,uid=0": "host-oom-elsewhere",
    "[123456.789012] NVRM: Xid (PCI:0000:3b:00): 63, pid=1202, name=nvidia-smi, Row Remapper: New row marked for remapping": "xid-application",
    "[123456.789012] NVRM: Xid (PCI:0000:3b:00): 94, pid=31245, name=python, Contained: SM (0x1). RST: No, D-RST: No": "gpu-broken",
    "TERM_MEMLIMIT: job killed after reaching LSF memory usage limit.": "host-oom-killed",
    "PBS: job killed: mem 12345678kb exceeded limit 12345000kb": "host-oom-killed",
    "slurmstepd: error: Exceeded step memory limit at some point.": "word",
    # crashes of the shell's words are none of the GPU's
    "Illegal instruction (core dumped)": "crashed",
    "srun: sending Ctrl-C to StepId=812345.0": "taken-down",
    # storage, or a socket
    "cat: /mnt/s3/shard_00017.tar: Transport endpoint is not connected": "storage-error",
    # the command's own failure, or the network's before it
    "kex_exchange_identification: Connection closed by remote host": "launcher-setup",
    "slurmstepd: error: pyxis: container start failed with error code: 1": "launcher-setup",
    "bash: fork: retry: Resource temporarily unavailable": "process-limit",
    "[E1103 12:00:00.000000002 TCPStore.cpp:321] [c10d] Timed out after 601 seconds waiting for clients. 6/8 clients joined.": "rendezvous",
    "INFO:torch.distributed.distributed_c10d:Waiting in store based barrier to initialize process group for rank: 4, "
    "key: store_based_barrier_key:1 (world_size=8, worker_count=4, timeout=0:30:00)": "word",
}
RAISED = {
    "AssertionError": "code",
    "ValueError:": "code",
    "AssertionError: Megatron requires CUDA.": "driver",
    "AssertionError: the fused kernel requires CUDA graphs to be off": "code",
    "ValueError: Batch size 2 must be divisible by number of microbatches 8.": "batch-sizes",
    "ValueError: hidden size 1030 must be divisible by the number of heads 16": "code",
    "megatron.core.dist_checkpointing.core.CheckpointingException: /ckpt/iter_0012000 is not a distributed checkpoint": "checkpoint-shape",
    "ValueError: the checkpointing interval is not a distributed setting": "code",
    "RuntimeError: Net : Connect to 192.168.122.1<42117> failed : Connection refused": "own-interface",
    "RuntimeError: Net : Connect to 192.168.12.1<42117> failed : Connection refused": "transport",
    "OSError: [Errno 107] Transport endpoint is not connected: '/mnt/s3/shard_00017.tar'": "storage-error",
    "OSError: [Errno 107] Transport endpoint is not connected": "peer-gone",
    "OSError: [Errno 110] Connection timed out: '/lustre/corpus/shard-17.bin'": "storage-error",
    "TimeoutError: [Errno 110] Connection timed out": "code",
    "google.api_core.exceptions.DeadlineExceeded: 504 Deadline Exceeded": "code",
    "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.15 GiB. GPU 0 has a total capacty of 79.15 GiB of which 912.81 MiB "
    "is free.": "gpu-oom",
    "RuntimeError: CUDA out of memory. Tried to allocate 264.00 MiB (GPU 0; 15.78 GiB total capacity; 14.50 GiB already allocated; 100.69 MiB free; "
    "30.96 MiB cached)": "gpu-oom",
    "torch.OutOfMemoryError: HIP out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 64.00 GiB of which 1 GiB is free.": "gpu-oom",
    "RuntimeError: NCCL communicator was aborted on rank 3.  Original reason for failure was: [Rank 3] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=12, OpType=ALLREDUCE, Timeout(ms)=600000) ran for 600045 milliseconds before timing out.": "timeout-nccl",
}


@pytest.mark.parametrize(("number", "kind"), list(enumerate(LINES.values())), ids=[line[:60] for line in LINES])
def test_a_line_means(number: int, kind: str) -> None:
    assert kinds_in(f"line/{number}.log") == {kind}


@pytest.mark.parametrize(("number", "kind"), list(enumerate(RAISED.values())), ids=[text[:60] for text in RAISED])
def test_an_exception_means(number: int, kind: str) -> None:
    assert kinds_in(f"raised/{number}.log") == {kind}


def test_an_assertion_of_the_engine_s_backward_pass_is_the_engine_s() -> None:
    """A bare assertion says nothing; its frame does (`assert inputs.grad is not None`)."""
    engine = "/opt/venv/lib/python3.11/site-packages/deepspeed/runtime/pipe/engine.py:1090 _exec_send_grads"
    errors = told(traceback("AssertionError", "/job/train.py:40 main", engine, rank=3))["errors"]
    assert set(errors["error"]) == {"engine-no-grad"}


def test_what_cannot_be_decoded_while_a_micro_batch_is_loaded_is_the_data_s() -> None:
    """JSON that is broken is mostly a configuration; not where the engine asks the iterator for its next batch, whatever the reader is called."""
    engine = "/opt/venv/lib/python3.11/site-packages/deepspeed/runtime/pipe/engine.py:800 _exec_load_micro_batch"
    reader = ("/job/lines.py:19 gen", "/usr/lib/python3.11/json/decoder.py:353 raw_decode")
    text = "json.decoder.JSONDecodeError: Unterminated string starting at: line 1 column 10 (char 9)"
    errors = told(traceback(text, "/job/train.py:40 main", engine, *reader, rank=3))["errors"]
    assert set(errors["error"]) == {"data-decoding"}


# ---- laws of all kinds


@pytest.mark.parametrize("kind", KINDS.values(), ids=lambda k: k.name)
def test_a_kind_keeps_to_the_contract(kind: Kind) -> None:
    assert kind.category in CATEGORIES
    assert kind.page.endswith(".")
    if kind.strength is Strength.CAUSE and not kind.known:
        assert kind.missing  # a named cause that is only suspected
    if kind.role is Role.BENIGN or kind.name == "taken-down":
        return  # never a verdict
    assert kind.known or kind.missing
    bare = Case("", None, None, None, None, Topology(), Config(), pd.DataFrame({"name": [], "value": [], "text": [], "file": [], "line": []}))
    actions = [a.action for a in kind.advice(bare)]
    assert actions
    assert not [action for action in actions if "None" in action]


@pytest.mark.parametrize("kind", [k for k in KINDS.values() if k.known], ids=lambda k: k.name)
def test_what_is_known_is_a_cause(kind: Kind) -> None:
    """A line that only says that somebody is gone, or waited, never makes the cause known; InfiniBand's own errors name what failed."""
    assert kind.strength is Strength.CAUSE or kind.name in ("ib-retry-exceeded", "ib-port", "cancelled")


def case_of(text: str, **known: Any) -> Case:
    made = tables([*topology_map(4, 2), *(fact(f"config.{k}", v) for k, v in known.items())])
    return Case(text, 0, 0, "node-7", None, made["topology"], made["config"], made["facts"])


@pytest.mark.parametrize(
    "name", ["gpu-broken", "gpu-unknown-error", "cuda-async", "node-failure", "driver", "ib-port", "host-oom", "host-oom-killed", "killed"]
)
def test_advice_names_the_host(name: str) -> None:
    assert any("node-7" in a.action for a in KINDS[name].advice(case_of("")))


def test_advice_for_memory_says_what_a_stage_holds() -> None:
    """Stage s of p holds min(p - s, m) micro-batches: stage 0 of 4 holds 4 of 8, and only 2 where there are no more."""
    many = [a.action for a in KINDS["gpu-oom"].advice(case_of("", gradient_accumulation_steps=8, train_micro_batch_size_per_gpu=4))]
    assert any("stage 0 holds up to 4 micro-batches" in a and "later stage" in a for a in many)
    assert any("halve the micro-batch (4 → 2)" in a for a in many)
    few = [a.action for a in KINDS["gpu-oom"].advice(case_of("", gradient_accumulation_steps=2, train_micro_batch_size_per_gpu=1))]
    assert any("stage 0 holds up to 2 micro-batches" in a for a in few)
    assert not any("halve" in a for a in few)


@pytest.mark.parametrize(
    ("numbers", "train", "m"),
    [
        ("512 != 4 * 16 * 2", "set train_batch_size to 128", "gradient_accumulation_steps to 64"),
        ("100 != 8 * 4 * 4", "set train_batch_size to 128", None),
    ],
)
def test_advice_for_batches_does_the_sum(numbers: str, train: str, m: str | None) -> None:
    """100 is no multiple of 8 x 4: no number of accumulation steps keeps it."""
    text = f"AssertionError: Check batch related parameters. train_batch_size is not equal to micro_batch_per_gpu * gradient_acc_step * world_size {numbers}"
    actions = [a.action for a in KINDS["batch-sizes"].advice(case_of(text))]
    assert any(train in a for a in actions)
    assert any("gradient_accumulation_steps to" in a for a in actions) is (m is not None)
    assert m is None or any(m in a for a in actions)


@pytest.mark.parametrize(("world", "numbers"), [(6, "8 instead of 6"), (10, "8 or 16 instead of 10"), (3, "8 instead of 3")])
def test_advice_for_a_mesh_names_numbers_of_gpus_that_fit(world: int, numbers: str) -> None:
    """2 tensor-parallel ranks times 4 stages: multiples of 8."""
    text = f"RuntimeError: world size ({world}) is not divisible by tensor model parallel size (2) times pipeline model parallel size (4)"
    (advice,) = KINDS["mesh"].advice(case_of(text))
    assert numbers in advice.action
    assert "8 or 8" not in advice.action
