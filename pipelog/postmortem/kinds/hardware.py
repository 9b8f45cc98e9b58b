"""Devices, nodes, and CUDA errors that name nobody."""

from __future__ import annotations

from collections.abc import Iterator

from pipelog.findings import Advice
from pipelog.postmortem.case import Case
from pipelog.postmortem.kinds import Strength, kind
from pipelog.postmortem.schedulers import of_a_node

_MACHINE_CHECK = r"Machine Check Exception|Machine Check: \w+ Bank \d+: [abef]"
"""Uncorrected only (bit 61 of the bank's status): corrected errors of memory are logged every day, and nothing comes of them."""
_XID_HARDWARE = r"Xid(?: \([^)]*\): |=)(?:48|64|74|79|9[45]|119|120|14(?:[0-3]|[4-9]\b(?!,[^\n]*\bNonfatal\b))|15(?:4|0\b(?!,[^\n]*\bNonfatal\b)))\b"
_LINK = r"(?i:nvlink)|Xid(?: \([^)]*\): |=)(?:74|14[4-9]|150)\b|SXid"
"""NVLink's own: 74, since Blackwell 144 to 150, which also say whether they are fatal."""


@kind(
    "gpu-broken",
    category="hardware.gpu",
    pattern=rf"(?i)uncorrectable (?:ECC|NVLink) error|ECCUncorrectable|fallen off the bus|{_XID_HARDWARE}|SXid .*(?<!non-)fatal|CUDA_ERROR_ECC"
    r"|double[- ]bit ECC|row remapp\w+ fail|GPU is lost|Unable to determine the device handle for GPU|gpu reset required|hardware error.*gpu|(?:ras|amdgpu).*uncorrectable",
    says="has a broken GPU ({matched})",
    first=3,
)
def gpu_broken(case: Case) -> Iterator[Advice]:
    """An uncorrectable memory error, a lost link or a device that is gone: the hardware says it itself."""
    host = case.host or "that host"
    if case.match(_LINK):
        look = "`nvidia-smi nvlink -e`, `nvidia-smi nvlink -s`, the log of its fabric manager (the other end of the link, or the switch, may be the broken one)"
    else:
        look = "`nvidia-smi -q -d ECC,ROW_REMAPPER,PAGE_RETIREMENT`"
    yield Advice(f"take {host} out of the pool before the restart, and have its GPUs checked: {look}, `dcgmi diag -r 3`")
    yield Advice("restart from the last checkpoint on other nodes")


@kind(
    "gpu-unknown-error",
    category="hardware.gpu",
    pattern=r"CUDA error: unknown error|CUDA_ERROR_UNKNOWN|all CUDA-capable devices are busy or unavailable|CUDA error: device(?:s)? unavailable|cudaErrorDevicesUnavailable",
    says="lost its GPU ({matched})",
    known=False,
    strength=Strength.SYMPTOM,
    first=14,
    missing=("the kernel log of the host (`dmesg -T | grep -i xid`)",),
)
def gpu_unknown_error(case: Case) -> Iterator[Advice]:
    """One device answers no more; the driver does not say why."""
    yield Advice(f"look for Xid lines on {case.host or 'the host'} (`dmesg -T | grep -i xid`) and reset or replace the GPU")


@kind(
    "device-not-acquired",
    category="hardware.gpu",
    pattern=r"synStatus=\d+ \[[^\]]*\] Device acquire failed",
    says="could not acquire its device",
    known=False,
    strength=Strength.SYMPTOM,
    first=14,
    missing=("whether another process holds the device (`hl-smi` on the host), and the kernel log of the host",),
)
def device_not_acquired(case: Case) -> Iterator[Advice]:
    """Gaudi's runtime: the device is broken, or held by a process that is still there; the line does not tell which."""
    yield Advice(
        f"see on {case.host or 'the host'} whether a process of an earlier job still holds the device (`hl-smi`, `lsof /dev/accel*`), then its kernel log"
    )


@kind(
    "gpu-fault",
    category="unknown",
    pattern=r"Memory access fault by GPU|HW Exception by GPU|HSA_STATUS_ERROR|amdgpu.*(?:ring .* timeout|GPU fault|no-retry page fault|for process )|page fault .*gpu",
    says="had a memory access fault on a GPU",
    known=False,
    strength=Strength.SYMPTOM,
    first=15,
    missing=(
        "the kernel log of the host (`dmesg -T | grep -i amdgpu`)",
        "whether the same step fails again on other nodes",
    ),
)
def gpu_fault(case: Case) -> Iterator[Advice]:
    """AMD's runtime; a kernel that reads out of bounds and a broken device look alike. Its node number is an agent, not a host."""
    yield Advice("run the same step again on another node: the same place means code, another place means hardware")
    yield Advice("set AMD_SERIALIZE_KERNEL=3 and HIP_LAUNCH_BLOCKING=1 to see which kernel it is")


@kind(
    "cuda-assert",
    category="data",
    pattern=r"(?:Indexing|IndexKernel|ScatterGather|Embedding|Loss|NLLLoss|ClassNLLCriterion)\w*\.cu.*Assertion `.*failed|(?:srcIndex < srcSelectDimSize|index out of bounds|t >= 0 && t < n_classes)",
    says="used an index that is out of range on the GPU",
    strength=Strength.CAUSE,
    first=16,
)
def cuda_assert(case: Case) -> Iterator[Advice]:
    """A device-side assertion of an indexing or loss kernel: a token or label beyond the table."""
    yield Advice("compare the largest token id (and label) of the batch with the size of the embedding (and of the head), tokenizer padding included")
    yield Advice("run the batch once with CUDA_LAUNCH_BLOCKING=1, or on the CPU, to see the line")


@kind(
    "device-assert-unseen",
    category="code",
    pattern=r"(?:CUDA|HIP) error: device-side assert triggered|(?:cuda|hip)ErrorAssert\b",
    says="met an assertion in a kernel; which one is not in the files",
    known=False,
    strength=Strength.SYMPTOM,
    first=16,
    missing=(
        "the line of the assertion itself (`….cu:123: … Assertion `…` failed.`), which the process prints to its standard error before the exception",
    ),
)
def device_assert_unseen(case: Case) -> Iterator[Advice]:
    """A kernel asserts what it is given, nearly always that an index is within its table: a fault of the code or the data, not of the device."""
    yield Advice("find the assertion in the standard error of that rank: it names the kernel and what was out of range")
    yield Advice(
        "run the batch once with CUDA_LAUNCH_BLOCKING=1, or on the CPU, to see the line; compare token ids, labels and positions with the sizes of their tables"
    )


@kind(
    "cuda-async",
    category="unknown",
    pattern=r"(?i)illegal memory access|unspecified launch failure|misaligned address|launch timed out|an illegal .* encountered"
    r"|CUBLAS_STATUS_(?:EXECUTION_FAILED|INTERNAL_ERROR|NOT_INITIALIZED)|CUDNN_STATUS_\w+|CUSOLVER_STATUS_\w+|cudaErrorIllegalAddress|hipErrorIllegalAddress|cudaErrorLaunchFailure"
    r"|failed to synchronize",
    says="failed in a CUDA kernel ({matched})",
    known=False,
    strength=Strength.SYMPTOM,
    first=17,
    missing=(
        "a run with CUDA_LAUNCH_BLOCKING=1: the error is reported late, so the stack in the log may be wrong",
        "the kernel log of the host (`dmesg -T | grep -i xid`)",
    ),
)
def cuda_async(case: Case) -> Iterator[Advice]:
    """CUDA reports errors of kernels late: the traceback shows where it was noticed, not where it happened."""
    yield Advice("run again with CUDA_LAUNCH_BLOCKING=1 (or compute-sanitizer on one rank) to see the kernel; do not trust the present stack")
    yield Advice(f"if it moves with the host, suspect the device: `dmesg -T | grep -i xid` on {case.host or 'the host'}")


@kind(
    "xid-application",
    category="unknown",
    pattern=r"\bXid(?: \([^)]*\): |=)(?P<xid>\d+)",
    says="had Xid {xid} in the kernel log",
    known=False,
    strength=Strength.TRANSPORT,  # the process's own error tells more, whenever it comes
    first=30,
    missing=("the meaning of the Xid in NVIDIA's catalogue: 13, 31, 43 and 45 are mostly the application's own",),
)
def xid_application(case: Case) -> Iterator[Advice]:
    """An Xid that is not the hardware's by itself, or that it survives: 63 only notes that a row of memory will be replaced."""
    yield Advice("look the Xid up in NVIDIA's catalogue; the application's own error around the same second tells more")


@kind(
    "node-failure",
    category="hardware.node",
    pattern=rf"(?i)DUE TO NODE FAILURE|Node failure on|UNCORRECTABLE MEMORY ERROR|NODE_FAIL|BOOT_FAIL|instances\.hostError|Host EC2 \(instance|{_MACHINE_CHECK}|mce: .*(?:Uncorrected|fatal)|NodeNotReady|NodeLost|node .*became not ready|Kernel panic|EDAC .* UE "
    r"|job\.exception type=node-failure|^state = [\w,]*down|broker\.\w+\[\d+\]: .*\bLOST\b",
    says="lost a node",
    of_ranks="went down with the node",
    job=True,
    first=1,  # the line also says that the step was cancelled
)
def node_failure(case: Case) -> Iterator[Advice]:
    """The scheduler or the kernel says that a machine is gone. What broke in it is not in this log."""
    yield Advice(
        f"take {case.host or 'the node'} out of the pool; what broke in it stands in its own logs ({of_a_node(case.text)}BMC, dmesg of the last boot)"
    )


@kind(
    "node-daemon-lost",
    category="hardware.node",
    pattern=r"shepherd died from signal",
    says="lost a node: the launcher's daemon there died",
    of_ranks="went down with the node, where the launcher's daemon died",
    known=False,
    strength=Strength.SIGNAL,
    job=True,
    rows=("batch-node-failure",),
    first=1,
    missing=("whether that node is up: `pbsnodes`, its console log; only the end of the launcher's daemon is told",),
)
def node_daemon_lost(case: Case) -> Iterator[Advice]:
    """PALS' shepherd starts the ranks of a node: nobody ends it but a node that is dying, its kernel, or its administrator."""
    yield Advice(
        f"see whether {case.host or 'that node'} is up (`pbsnodes`), and take it out of the pool if not; else read its kernel log (`dmesg -T`)"
    )


@kind(
    "driver",
    category="dependency",
    pattern=r"(?i)CUDA driver version is insufficient|NVIDIA driver on your system is too old|no kernel image is available|Failed to initialize NVML|system not yet initialized"
    r"|forward compatibility was attempted|no CUDA-capable device|Unexpected error from cudaGetDeviceCount|NVIDIA-SMI has failed|nvmlInit\w*(?:\(\))? failed|No CUDA GPUs are available|Found no NVIDIA driver|no HIP GPUs|requires CUDA\.?(?:\n|$)|CUDA is not available\b|Failed to start NVIDIA fabric manager",
    says="found no usable GPU driver ({matched})",
    first=13,
)
def driver(case: Case) -> Iterator[Advice]:
    """Driver, CUDA build and device do not fit, or the device is not visible."""
    yield Advice(
        f"compare `nvidia-smi` on {case.host or 'the host'} with torch.version.cuda and TORCH_CUDA_ARCH_LIST of the build; check that the container sees the GPUs"
    )
    yield Advice("on NVSwitch machines check that nvidia-fabricmanager runs ('system not yet initialized')")


@kind(
    "invalid-device",
    category="launch",
    pattern=r"invalid device ordinal",
    says="asked for a GPU that is not there",
    first=13,
)
def invalid_device(case: Case) -> Iterator[Advice]:
    """More ranks on a host than visible devices."""
    yield Advice("compare slots in the hostfile (or --num_gpus) with CUDA_VISIBLE_DEVICES and the GPUs of each host")
