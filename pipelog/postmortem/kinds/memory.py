"""Memory of the device and of the host."""

from __future__ import annotations

from collections.abc import Iterator

from pipelog.findings import Advice
from pipelog.postmortem.case import Case
from pipelog.postmortem.kinds import Strength, kind

_NUMBERS = r"Tried to allocate (?P<tried>[\d.]+ \w+)"


@kind(
    "gpu-oom",
    category="memory.gpu-oom",
    pattern=rf"(?:CUDA|HIP|XPU|NPU|MUSA) out of memory\. {_NUMBERS}",
    says="ran out of GPU memory ({tried} more were asked for)",
    first=10,
)
def gpu_oom(case: Case) -> Iterator[Advice]:
    """PyTorch's allocator says it with its numbers: what was asked for, what the device has, what is free, what is reserved."""
    yield from _less_memory(case)


@kind(
    "gpu-oom-plain",
    category="memory.gpu-oom",
    pattern=r"out of memory: tried to allocate|OutOfMemoryError|CUDA error: out of memory|CUDA_ERROR_OUT_OF_MEMORY|cudaErrorMemoryAllocation"
    r"|hipErrorOutOfMemory|CUBLAS_STATUS_ALLOC_FAILED|would exceed allowed memory|Cuda failure (?:\d+ )?'out of memory'",
    says="ran out of GPU memory",
    first=11,
)
def gpu_oom_plain(case: Case) -> Iterator[Advice]:
    """The driver or a library says it, without numbers: the memory may also have been held by another process."""
    yield Advice("look with nvidia-smi for other processes on that device before the next start", "a process that was left behind holds its memory")
    yield from _less_memory(case)


@kind(
    "ray-memory",
    category="host.oom",
    pattern=r"ray\.exceptions\.OutOfMemoryError|[Kk]illed due to the node running low on memory|^Memory on the node \(IP: ",
    says="was killed by Ray because its node ran low on memory",
    rows=("python-exception", "bare-exception", "level", "ray-killed"),
    first=9,
)
def ray_memory(case: Case) -> Iterator[Advice]:
    """Ray's memory monitor kills a worker before the kernel would: memory of the host, not of the GPU, whatever the class is called."""
    where = f" {case.host}" if case.host else ""
    yield Advice(
        f"see what fills the memory of the node{where}: Ray's line lists its largest processes, and `ray memory` its object store; Ray need not have "
        "killed the one that grew"
    )
    yield Advice("place fewer actors on a node, or give it more memory; a higher RAY_memory_usage_threshold only leaves the kill to the kernel")


def _less_memory(case: Case) -> Iterator[Advice]:
    stage, m, p = case.stage, case.config.micro_batches, case.topology.pp
    if stage is not None and p and p > 1:
        held = min(p - stage, m) if m else p - stage
        where = "move layers from it to a later stage" if stage == 0 else "move layers from it to another stage"
        yield Advice(f"stage {stage} holds up to {held} micro-batches in flight (1F1B, {p} stages): {where}, by partition_method or the layer list")
        if case.config.micro_batch_size and case.config.micro_batch_size > 1:
            yield Advice(
                f"halve the micro-batch ({case.config.micro_batch_size} → {case.config.micro_batch_size // 2}) and double the accumulation steps",
                "activations halve; the global batch and the ideal bubble do not get worse",
            )
    if case.config.activation_checkpoint_interval == 0:
        yield Advice(
            "set activation_checkpoint_interval=1 in PipelineModule",
            "activations of one layer instead of the stage's, for about a third more compute",
        )
    elif not case.config.micro_batch_size or case.config.micro_batch_size == 1:
        yield Advice("checkpoint activations (activation_checkpoint_interval=1), or shard optimizer states (ZeRO stage 1)")
    if "reserved by PyTorch but unallocated" in case.text or "reserved in total by PyTorch" in case.text:
        yield Advice(
            "if much is reserved but unallocated, set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True (torch 2.1 or later)", "less fragmentation"
        )


_OURS = r"python|pt_|torch|deepspeed|accelerate|train|megatron|ray"
"""How the names of processes of a training job begin: torch renames its main threads and loader workers (pt_main_thread, pt_data_worker)."""
_HOST = ("what used the memory: `free -g`, `dmesg -T | grep -i oom` of the host", "memory of the host over time (see_memory_usage, a node exporter)")


@kind(
    "host-oom-killed",
    category="host.oom",
    pattern=r"(?im)out of memory: kill|oom[-_ ]kill|Out Of Memory|OOMKilled|OOM Killed|low on resource: memory|exceeded memory limit|^row (?:kernel-oom|batch-memory)$",
    says="was killed because the host ran out of memory",
    rows=("kernel-oom", "slurm-oom", "slurm-task", "k8s-oom-killed", "k8s-exit-code", "k8s-evicted", "batch-memory"),
    first=5,
)
def host_oom_killed(case: Case) -> Iterator[Advice]:
    """The kernel, Slurm, Kubernetes or the batch system says that a process was killed for its memory."""
    yield from _host_memory(case)


@kind(
    "host-oom-elsewhere",
    category="host.oom",
    pattern=rf"(?im)(?:kill(?:ed)? process \d+,?(?: UID \d+,?)? \(|,task=|victim process: )(?!{_OURS})|invoked oom-killer",
    says="shared a host that ran out of memory; another process was killed there",
    rows=("kernel-oom",),
    known=False,
    strength=Strength.WORD,
    first=4,
    missing=_HOST,
)
def host_oom_elsewhere(case: Case) -> Iterator[Advice]:
    """The kernel killed a process that is none of a training job by its name, or only says who asked for memory."""
    yield from _host_memory(case)


@kind(
    "host-oom",
    category="host.oom",
    pattern=r"DefaultCPUAllocator: (?:can't|not enough memory)|^MemoryError|\bMemoryError\b|std::bad_alloc|\[Errno 12\]|Cannot allocate memory|cannot allocate memory|bad allocation",
    says="ran out of host memory",
    first=12,
)
def host_oom(case: Case) -> Iterator[Advice]:
    """The process itself could not get host memory."""
    yield from _host_memory(case)


_LOADER = r"(?i)pt_data_worker|DataLoader worker"


def _host_memory(case: Case) -> Iterator[Advice]:
    where = f" on {case.host}" if case.host else ""
    if case.limit:
        yield Advice(
            f"raise what the job may use (`--mem` of Slurm, limits.memory of a container), or use less: the cgroup's memory.peak{where} against memory.max"
        )
    else:
        yield Advice(f"look at the memory of the host{where} over the run: `dmesg -T | grep -i -A3 oom`, the cgroup's memory.max and memory.peak")
    if case.fact("config.zero_optimization.offload_optimizer.device") == "cpu" or case.fact("config.zero_optimization.offload_param.device") == "cpu":
        yield Advice("offload to the CPU keeps optimizer states in host memory: fewer ranks a host, or no offload on the largest stage")
    p, stage = case.topology.pp, case.stage
    if p and stage is not None and 0 < stage < p - 1 and not case.match(_LOADER):
        yield Advice(
            f"see what grows in the processes of stage {stage}: offloaded or pinned buffers, a checkpoint that each rank loads as a whole; an inner stage "
            "of a pipeline loads no data"
        )
    else:
        yield Advice("see whether the processes of the ranks grow or those of their data loaders; if the loaders, lower num_workers and prefetch")


@kind(
    "process-limit",
    category="unknown",
    pattern=r"can't start new thread|(?:fork|clone|thread).*Resource temporarily unavailable",
    says="could not start another process or thread",
    known=False,
    first=12,
    missing=("whether it was the limit of processes or memory: `ulimit -u`, the cgroup's pids.max, `free -g` of the host",),
)
def process_limit(case: Case) -> Iterator[Advice]:
    """EAGAIN: the limit of processes of the user or of the container is reached, or there is no memory for one more stack."""
    yield Advice(f"raise the limit of processes{f' on {case.host}' if case.host else ''} (`ulimit -u`, the cgroup's pids.max), or start fewer")
    yield Advice("lower num_workers of the data loaders and OMP_NUM_THREADS (OPENBLAS_NUM_THREADS): each rank starts that many threads")


@kind(
    "shm",
    category="host.shm",
    pattern=r"creating shared memory segment|unable to open shared memory object|unable to write to file </torch_|posix_fallocate failed : No space"
    r"|/dev/shm\S* .*No space left|No space left on device.*?/dev/shm|shm_open.*(?:failed|No space)",
    says="found no room in /dev/shm",
    first=8,
)
def shm(case: Case) -> Iterator[Advice]:
    """NCCL or PyTorch could not create a segment of shared memory."""
    yield Advice(
        "make /dev/shm larger: docker --shm-size=16g (or --ipc=host), in Kubernetes an emptyDir with medium: Memory", "64 MB is Docker's default"
    )
    yield Advice("or lower num_workers; NCCL_SHM_DISABLE=1 avoids NCCL's segments at the price of speed")


@kind(
    "shm-suspected",
    category="host.shm",
    pattern=r"(?i)bus error.*(?:shared memory|shm)|insufficient shared memory|out of shared memory",
    says="lost a data-loader worker to a bus error; PyTorch suspects shared memory",
    known=False,
    strength=Strength.CAUSE,
    first=9,
    missing=("how full /dev/shm was when it happened: `df -h /dev/shm` on that host", "the kernel log of the host (`dmesg -T`)"),
)
def shm_suspected(case: Case) -> Iterator[Advice]:
    """PyTorch's guess at a bus error; a full disk behind a memory-mapped file or a broken DIMM does the same."""
    yield Advice(
        "check `df -h /dev/shm` on the host while the loaders run; if it is full, make it larger (docker --shm-size, emptyDir medium: Memory)"
    )
    yield Advice("if it is not, suspect memory-mapped data on a disk that is full or gone")


@kind(
    "map-worker-gone",
    category="data",
    pattern=r"One of the subprocesses has abruptly died during map operation",
    says="lost a process that prepared the data; nobody says why",
    strength=Strength.SYMPTOM,
    known=False,
    first=20,
    missing=_HOST,
)
def map_worker_gone(case: Case) -> Iterator[Advice]:
    """The datasets library notices that one of its worker processes is gone; its own end is not in the log."""
    yield Advice(
        "run the map with num_proc=1 to see the worker's own error; look at the host's memory (`dmesg -T | grep -i oom`): each worker holds its own batch"
    )


@kind(
    "data-worker-exited",
    category="data",
    pattern=r"DataLoader worker \(pid\(?s?\)? [\d, ]+\) (?:exited unexpectedly|is killed by signal: (?P<signal>\w+))|Pin memory thread exited unexpectedly",
    says="lost a data-loader worker",
    strength=Strength.SYMPTOM,
    known=False,
    first=20,
    missing=_HOST,
)
def worker_exited(case: Case) -> Iterator[Advice]:
    """A worker process of the data loader died; its own end is not in the log."""
    yield Advice("run with num_workers=0 to see the worker's own error; look at the host's memory (`dmesg -T | grep -i oom`) if it says Killed")
