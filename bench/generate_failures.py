"""A job of 256 ranks that died of one rank's CUDA out of memory: a log a rank and the launchers' console, 200,000 lines of errors. Seeded.

python bench/generate_failures.py FOLDER [LINES]

The order of events is that of real jobs: the one rank's traceback; its pipeline neighbours lose it within seconds; warnings of the store as
processes go; the launcher of its node kills the rest of it and prints its table; ten minutes later the watchdogs of all who waited, with their
C++ backtraces, and the other nodes' launchers and tables.
"""

from __future__ import annotations

import itertools
import json
import random
import sys
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

PP, DP, TP, PER_NODE = 8, 8, 4, 8
WORLD = PP * DP * TP
NODES = WORLD // PER_NODE
_START = datetime.fromisoformat("2026-03-05 09:40:00")
_DEATH = datetime.fromisoformat("2026-03-05 15:20:09")
_WAITED = timedelta(minutes=10)
_SITE = "/opt/conda/lib/python3.11/site-packages"


def stage(rank: int) -> int:
    """Pipeline stage: DeepSpeed's order of axes is pipe, data, model."""
    return rank // (DP * TP)


def node(rank: int) -> str:
    """Host of a rank."""
    return f"gpu-{rank // PER_NODE:02d}"


def _cpp(rank: int, at: datetime, level: str, place: str, text: str) -> str:
    return f"[rank{rank}]:[{level}{at.month}{at.day:02d} {at:%H:%M:%S.%f}123 {place}] {text}"


def _logged(at: datetime, place: str, text: str, level: str = "INFO") -> str:
    return f"[{at:%Y-%m-%d %H:%M:%S},{at.microsecond // 1000:03d}] [{level}] [{place}] {text}"


def _startup(rank: int) -> Iterator[str]:
    yield _logged(_START, "comm.py:821:init_distributed", "cdb=None")
    if rank:
        return
    yield _logged(_START, "comm.py:852:init_distributed", "Initializing TorchBackend in DeepSpeed with backend nccl")
    places = ((p, d, t) for p in range(PP) for d in range(DP) for t in range(TP))
    yield "Using topology: {" + ", ".join(f"ProcessCoord(pipe={p}, data={d}, model={t}): {n}" for n, (p, d, t) in enumerate(places)) + "}"
    yield _logged(_START, "logging.py:107:log_dist", "[Rank 0] DeepSpeed info: version=0.17.5, git-hash=unknown, git-branch=unknown")
    yield _logged(_START, "engine.py:105:__init__", "CONFIG: micro_batches=32 micro_batch_size=1")
    for step in range(10, 2010, 10):
        at = _START + timedelta(seconds=step * 10)
        yield _logged(at, "logging.py:107:log_dist", f"[Rank 0] step={step}, skipped=0, lr=[0.0001], mom=[(0.9, 0.95)]")
        yield f"steps: {step} loss: {9 - step / 500:.4f} iter time (s): 10.012 samples/sec: 25.569"


def _traceback(rank: int, instruction: str, frames: tuple[tuple[str, str, str], ...], *error: str) -> Iterator[str]:
    calls = (
        ("/home/user/train/pretrain.py", "<module>", "main()"),
        ("/home/user/train/pretrain.py", "main", "loss = engine.train_batch(data_iter=batches)"),
        (f"{_SITE}/deepspeed/runtime/pipe/engine.py", "train_batch", "self._exec_schedule(sched)"),
        (f"{_SITE}/deepspeed/runtime/pipe/engine.py", "_exec_schedule", "self._exec_instr(**cmd.kwargs)"),
        (
            f"{_SITE}/deepspeed/runtime/pipe/engine.py",
            instruction,
            "outputs = super().forward(inputs)" if "forward" in instruction else "p2p.recv(buffer, self.next_stage)",
        ),
        *frames,
    )
    yield f"[rank{rank}]: Traceback (most recent call last):"
    for place, (file, function, code) in enumerate(calls):
        yield f'[rank{rank}]:   File "{file}", line {101 + place * 97}, in {function}'
        yield f"[rank{rank}]:     {code}"
        yield f"[rank{rank}]:     {'^' * len(code)}"
    for line in error:
        yield f"[rank{rank}]: {line}"


_MODEL = tuple(
    (f"{_SITE}/torch/nn/modules/module.py", name, "return forward_call(*args, **kwargs)") for name in ("_wrapped_call_impl", "_call_impl") * 6
)
_P2P = (
    (f"{_SITE}/deepspeed/runtime/pipe/p2p.py", "recv", "return dist.recv(tensor, src_rank)"),
    (f"{_SITE}/torch/distributed/c10d_logger.py", "wrapper", "return func(*args, **kwargs)"),
    (f"{_SITE}/torch/distributed/distributed_c10d.py", "recv", "group.recv([tensor], src, tag).wait()"),
)
_OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 3.91 GiB. GPU {gpu} has a total capacity of 79.11 GiB of which 2.86 GiB is free. "
    "Including non-PyTorch memory, this process has 76.24 GiB memory in use. Of the allocated memory 70.10 GiB is allocated by PyTorch, and 4.20 GiB is "
    "reserved by PyTorch but unallocated. If reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid "
    "fragmentation.  See documentation for Memory Management  (https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)"
)


def _backtrace(pick: random.Random, where: str, frames: int) -> Iterator[str]:
    yield f"Exception raised from {where} (most recent call first):"
    base = pick.randrange(0x7F0000000000, 0x7FFFFFFFFFFF)
    for n in range(frames):
        what = pick.choice(
            ("c10::Error::Error(c10::SourceLocation, std::string)", "c10d::ProcessGroupNCCL::watchdogHandler()", "<unknown function>", "clone")
        )
        yield f"frame #{n}: {what} + 0x{pick.randrange(0x50, 0x9FFFF):x} (0x{base + n * 4096:x} in {_SITE}/torch/lib/libtorch_cuda.so)"
    yield ""


def _peer(rank: int, beginner: int, at: datetime, pick: random.Random) -> Iterator[str]:
    """A neighbour in the pipeline: NCCL's warning, the exception, the abort."""
    host, pid = node(rank), 20000 + rank
    gone = f"socketProgress: Connection closed by remote peer {node(beginner)}<{pick.randrange(30000, 60000)}>"
    yield ""
    yield f"{host}:{pid}:{pid + 400} [{rank % PER_NODE}] misc/socket.cc:71 NCCL WARN {gone}"
    for line in (57, 698, 878):
        yield f"{host}:{pid}:{pid + 400} [{rank % PER_NODE}] NCCL INFO proxy.cc:{line} -> 6"
    way = "_exec_recv_grads" if stage(rank) < stage(beginner) else "_exec_recv_activations"
    error = "torch.distributed.DistBackendError: NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.hpp:268, remote process exited or there was a network error, NCCL version 2.26.2"
    remote = "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely."
    yield from _traceback(rank, way, _P2P, error, remote, "Last error:", gone)
    yield _cpp(
        rank,
        at,
        "E",
        "ProcessGroupNCCL.cpp:1896",
        f"[PG ID 0 PG GUID 0(default_pg) Rank {rank}] Process group watchdog thread terminated with exception: NCCL error: remote process exited or there was a network error, NCCL version 2.26.2",
    )
    yield remote
    yield "Last error:"
    yield gone
    yield from _backtrace(pick, "checkForNCCLErrorsInternal at /pytorch/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:2363", 8)


def _watchdog(rank: int, at: datetime, pick: random.Random) -> Iterator[str]:
    """Whoever waited: the watchdog of the data-parallel group, ten minutes later."""
    group, inside = 40 + rank % 32, rank // TP % DP
    work = 2847 + stage(rank)
    ran = 600000 + pick.randrange(20, 95)
    caught = f"[Rank {inside}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={work}, OpType=ALLREDUCE, NumelIn=197140480, NumelOut=197140480, Timeout(ms)=600000) ran for {ran} milliseconds before timing out."
    who = f"[PG ID 3 PG GUID {group} Rank {inside}]"
    yield _cpp(rank, at, "E", "ProcessGroupNCCL.cpp:632", caught)
    yield _cpp(
        rank,
        at,
        "E",
        "ProcessGroupNCCL.cpp:2268",
        f"{who}  failure detected by watchdog at work sequence id: {work} PG status: last enqueued work: {work + 8}, last completed work: {work - 1}",
    )
    yield _cpp(
        rank,
        at,
        "E",
        "ProcessGroupNCCL.cpp:670",
        "Stack trace of the failed collective not found, potentially because FlightRecorder is disabled. You can enable it by setting TORCH_NCCL_TRACE_BUFFER_SIZE to a non-zero value.",
    )
    yield _cpp(
        rank,
        at,
        "E",
        "ProcessGroupNCCL.cpp:684",
        f"[Rank {inside}] Some NCCL operations have failed or timed out. Due to the asynchronous nature of CUDA kernels, "
        "subsequent GPU operations might run on corrupted/incomplete data.",
    )
    yield _cpp(rank, at, "E", "ProcessGroupNCCL.cpp:698", f"[Rank {inside}] To avoid data inconsistency, we are taking the entire process down.")
    yield _cpp(rank, at, "E", "ProcessGroupNCCL.cpp:1896", f"{who} Process group watchdog thread terminated with exception: {caught}")
    yield from _backtrace(pick, "checkTimeout at /pytorch/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:635", 8)
    yield "terminate called after throwing an instance of 'c10::DistBackendError'"
    yield f"  what():  {who} Process group watchdog thread terminated with exception: {caught}"
    yield from _backtrace(pick, "ncclCommWatchdog at /pytorch/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:1902", 8)


def _store(rank: int, at: datetime, pick: random.Random) -> Iterator[str]:
    """A warning of the store, as the heartbeat thread prints it again and again."""
    port = pick.randrange(30000, 60000)
    yield _cpp(
        rank,
        at,
        "W",
        "TCPStore.cpp:125",
        f"[c10d] recvValue failed on SocketImpl(fd=84, addr=[{node(rank)}]:{port}, remote=[{node(0)}]:29500): failed to recv, got 0 bytes",
    )
    yield from _backtrace(pick, "recvBytes at /pytorch/torch/csrc/distributed/c10d/Utils.hpp:678", 10)
    yield _cpp(
        rank,
        at,
        "W",
        "ProcessGroupNCCL.cpp:1659",
        f'[PG ID 0 PG GUID 0(default_pg) Rank {rank}] Failed to check the "should dump" flag on TCPStore, (maybe TCPStore server has shut down too early), with error: failed to recv, got 0 bytes',
    )


def rank_log(rank: int, beginner: int, lines: int, pick: random.Random) -> Iterator[str]:
    """The whole log of one rank, about *lines* of it after the failure."""
    yield from _startup(rank)
    yield from itertools.islice(_failure(rank, beginner, pick), lines)


def _failure(rank: int, beginner: int, pick: random.Random) -> Iterator[str]:
    if rank == beginner:
        own = (*_MODEL, ("/home/user/train/nets/head.py", "lm_loss", "logp = torch.log_softmax(logits.float(), dim=-1)"))
        yield from _traceback(rank, "_exec_forward_pass", own, _OOM.format(gpu=rank % PER_NODE))
        yield _cpp(
            rank,
            _DEATH,
            "W",
            "ProcessGroupNCCL.cpp:1496",
            "Warning: WARNING: destroy_process_group() was not called before program exit, which can leak resources.",
        )
        return
    near = rank % (DP * TP) == beginner % (DP * TP)
    at = _DEATH + (timedelta(seconds=2) if near else _WAITED) + timedelta(milliseconds=pick.randrange(2000))
    if near:
        yield from _peer(rank, beginner, at, pick)
    else:
        yield from _watchdog(rank, at, pick)
    while True:
        at += timedelta(seconds=1)
        yield from _store(rank, at, pick)


def _of_node(number: int, beginner: int, at: datetime, pick: random.Random) -> list[str]:
    """What the launcher of a node says at its end: kills, an exit code, the agent's table."""
    host = f"gpu-{number:02d}"
    ranks = list(range(number * PER_NODE, (number + 1) * PER_NODE))
    first = beginner if beginner in ranks else pick.choice(ranks)
    code = 1 if beginner in ranks else -6
    out = [_logged(at, "launch.py:335:sigkill_handler", f"Killing subprocess {20000 + rank}") for rank in ranks]
    out += [
        f"E{at:%m%d %H:%M:%S.%f} 4021 torch/distributed/elastic/multiprocessing/api.py:874] failed (exitcode: {code}) local_rank: {first % PER_NODE} (pid: {20000 + first}) of binary: /opt/conda/bin/python"
    ]
    out += ["torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ", "=" * 60, "pretrain.py FAILED", "-" * 60, "Failures:"]
    others = [rank for rank in ranks if rank != first]
    for place, rank in enumerate(others, 1):
        out += _row(place, rank, host, -15 if code == 1 else -6, at)
    out += ["-" * 60, "Root Cause (first observed failure):", *_row(0, first, host, code, at), "=" * 60]
    out += [
        _logged(
            at,
            "launch.py:341:sigkill_handler",
            f"['/opt/conda/bin/python', '-u', 'pretrain.py', '--local_rank={PER_NODE - 1}', '--pp', '8'] exits with return code = {code}",
            "ERROR",
        )
    ]
    return [f"{host}: {line}" for line in out] + [f"pdsh@login: {host}: ssh exited with exit code {code % 256}"]


def _row(place: int, rank: int, host: str, code: int, at: datetime) -> list[str]:
    says = (
        "To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html"
        if code > 0
        else f"Signal {-code} ({ {6: 'SIGABRT', 15: 'SIGTERM'}[-code] }) received by PID {20000 + rank}"
    )
    return [
        f"[{place}]:",
        f"  time      : {at:%Y-%m-%d_%H:%M:%S}",
        f"  host      : {host}",
        f"  rank      : {rank} (local_rank: {rank % PER_NODE})",
        f"  exitcode  : {code} (pid: {20000 + rank})",
        "  error_file: <N/A>",
        f"  traceback : {says}",
    ]


def console(beginner: int, pick: random.Random) -> Iterator[str]:
    """The launchers of all nodes through pdsh."""
    mapping = {f"gpu-{n:02d}": list(range(n * PER_NODE, (n + 1) * PER_NODE)) for n in range(NODES)}
    world = {host: list(range(PER_NODE)) for host in mapping}
    for number, host in enumerate(mapping):
        yield f"{host}: " + _logged(_START, "launch.py:146:main", f"WORLD INFO DICT: {world}")
        yield f"{host}: " + _logged(_START, "launch.py:152:main", f"nnodes={NODES}, num_local_procs={PER_NODE}, node_rank={number}")
        yield f"{host}: " + _logged(_START, "launch.py:163:main", f"global_rank_mapping=defaultdict(<class 'list'>, {mapping})")
        yield f"{host}: " + _logged(_START, "launch.py:164:main", f"dist_world_size={WORLD}")
        for local, rank in enumerate(mapping[host]):
            command = f"['/opt/conda/bin/python', '-u', 'pretrain.py', '--local_rank={local}', '--pp', '8', '--deepspeed_config', 'ds.json']"
            yield f"{host}: " + _logged(_START, "launch.py:256:main", f"process {20000 + rank} spawned with command: {command}")
    yield from _of_node(beginner // PER_NODE, beginner, _DEATH + timedelta(seconds=4), pick)
    rest = [n for n in range(NODES) if n != beginner // PER_NODE]
    pick.shuffle(rest)
    for number in rest:
        yield from _of_node(number, beginner, _DEATH + _WAITED + timedelta(seconds=5 + pick.randrange(20)), pick)


def write_failures(folder: Path, lines: int = 200_000, seed: int = 7) -> dict[str, object]:
    """Write the job; what is true of it, after contract.md."""
    pick = random.Random(seed)
    beginner = pick.randrange(DP * TP, WORLD - DP * TP)
    end = list(console(beginner, pick))
    of_console = sum("spawned with" not in line and "launch.py:1" not in line for line in end)
    each = (lines - of_console) // (WORLD - 1) + 1
    (folder / "ranks").mkdir(parents=True, exist_ok=True)
    (folder / "console.log").write_text("\n".join(end) + "\n")
    anchor = 0
    for rank in range(WORLD):
        text = list(rank_log(rank, beginner, each, random.Random(f"{seed} {rank}")))
        if rank == beginner:
            anchor = next(n for n, line in enumerate(text, 1) if "OutOfMemoryError" in line)
        (folder / "ranks" / f"{_START:%Y%m%d%H%M%S}_rank{rank}.log").write_text("\n".join(text) + "\n")
    return {
        "status": "failed",
        "category": ["memory.gpu-oom"],
        "cause_known": True,
        "ranks": [beginner],
        "stages": [stage(beginner)],
        "hosts": [node(beginner)],
        "anchor": [{"file": f"ranks/{_START:%Y%m%d%H%M%S}_rank{beginner}.log", "line": anchor}],
    }


def main() -> None:
    """Write one job and its truth."""
    folder = Path(sys.argv[1])
    truth = write_failures(folder, int(float(sys.argv[2])) if len(sys.argv) > 2 else 200_000)
    (folder.parent / f"{folder.name}.truth.json").write_text(json.dumps(truth) + "\n")


if __name__ == "__main__":
    main()
