"""The same failure in the words of other versions of torch, NCCL, DeepSpeed and Slurm; and other causes in the same place.

Forms after the sources and public logs of the versions named; they fill `tests.variations.VARIATIONS`.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime

from tests.cases import Case, Line, is_launcher, parted
from tests.variations import _STAMP, _first_stamp, variation

_HINT = "If reserved memory is >> allocated memory try setting max_split_size_mb to avoid fragmentation.  See documentation for Memory Management and PYTORCH_CUDA_ALLOC_CONF"
_NEW_HINT = (
    "If reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  "
    "See documentation for Memory Management  (https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)"
)
_OLD = "RuntimeError: CUDA out of memory. Tried to allocate {tried} (GPU {gpu}; 31.75 GiB total capacity; 28.50 GiB already allocated; 622.19 MiB free; {reserved})"
_NEW = (
    "CUDA out of memory. Tried to allocate {tried}. GPU {gpu} has a total {capacity} of 31.75 GiB of which 622.19 MiB is free. {process}"
    "Of the allocated memory 28.10 GiB is allocated by PyTorch, and 1.20 GiB is reserved by PyTorch but unallocated. "
)
_THIS = "Including non-PyTorch memory, this process has 31.10 GiB memory in use. "
OOM = {
    "1.3": _OLD.replace("{reserved}", "30.96 MiB cached"),
    "1.8": _OLD.replace("{reserved}", "29.11 GiB reserved in total by PyTorch"),
    "1.12": _OLD.replace("{reserved}", "29.11 GiB reserved in total by PyTorch") + " " + _HINT,
    "2.0": _OLD.replace("RuntimeError", "torch.cuda.OutOfMemoryError").replace("{reserved}", "29.11 GiB reserved in total by PyTorch") + " " + _HINT,
    "2.1": "torch.cuda.OutOfMemoryError: "
    + _NEW.format(tried="{tried}", gpu="{gpu}", capacity="capacty", process="Process 4312 has 31.10 GiB memory in use. ")
    + _HINT,
    "2.4": "torch.cuda.OutOfMemoryError: " + _NEW.format(tried="{tried}", gpu="{gpu}", capacity="capacity", process=_THIS) + _NEW_HINT,
    "2.7": "torch.OutOfMemoryError: "
    + _NEW.format(tried="{tried}", gpu="{gpu}", capacity="capacity", process="Process 981 has 2.10 GiB memory in use. " + _THIS)
    + _NEW_HINT,
    "2.9": "torch.OutOfMemoryError: "
    + _NEW.format(tried="{tried}", gpu="{gpu}", capacity="capacity", process=_THIS)
    + _NEW_HINT.replace("PYTORCH_CUDA_ALLOC", "PYTORCH_ALLOC"),
    "rocm": "torch.OutOfMemoryError: "
    + _NEW.format(tried="{tried}", gpu="{gpu}", capacity="capacity", process=_THIS).replace("CUDA", "HIP")
    + _NEW_HINT.replace("_CUDA_", "_HIP_"),
}
"""PyTorch's allocator by version."""


def _oom(form: str) -> Callable[[Case, random.Random], Case | None]:
    def change(case: Case, rng: random.Random) -> Case | None:
        if "memory.gpu-oom" not in case.truth.get("category", []):
            return None

        def said(text: str) -> str:
            found = re.search(r"(?:[\w.]*Error: )CUDA out of memory\. Tried to allocate .*?GPU (\d+).*", text)
            tried = rng.choice(["264.00 MiB", "1.15 GiB", "20.00 MiB", "1024 bytes"])
            return text[: found.start()] + form.format(tried=tried, gpu=found[1]) if found else text

        return case.each(said)

    return change


for _version, _form in OOM.items():
    variation(f"OOM of torch {_version}")(_oom(_form))


# ---- torch's watchdog

_CPP_LINE = re.compile(
    r"(?P<outer>\[rank(?P<rank>\d+)\]:)?\[(?P<level>[IWEF])(?P<stamp>\d{3,4} [\d:.]+)? (?P<file>ProcessGroupNCCL\.cpp):\d+\] (?P<group>\[(?:PG[^\]]*?)?Rank \d+\] ?)?(?P<text>.*)"
)
_ABORTS = re.compile(r"(?:NCCL|Process group) watchdog thread terminated with exception: ")


def _watchdog(version: str) -> Callable[[Case, random.Random], Case | None]:
    """Lines of ProcessGroupNCCL.cpp as *version* prints them: prefixes, numbers, what there was to say."""
    place = {"1.12": 587, "1.13": 821, "2.0": 455, "2.1": 475, "2.2": 523, "2.3": 563, "2.4": 607, "2.5": 616, "2.6": 629, "2.7": 632}[version]
    v = tuple(int(n) for n in version.split("."))
    gone = r"preparing to dump|Received a dump signal|dumping nccl trace|Stack trace of the failed|First PG on this rank|Finished writing"
    gone += r"|detected by watchdog at work" if v < (2, 4) else ""
    gone += r"|Timeout at NCCL work" if v < (2, 3) else ""
    gone += r"|watchdog thread terminated" if v < (2, 1) else ""

    def words(text: str, rank: str) -> str | None:
        if re.search(gone, text):
            return None
        if v < (2, 1):
            text = re.sub(r", NumelIn=\d+, NumelOut=\d+", "", text)
        if v < (1, 13):
            text = re.sub(r"SeqNum=\d+, ", "", text)
        if v >= (2, 6):
            text = re.sub(
                r"Exception \(either an error or timeout\) detected by watchdog at work: (\d+), last enqueued NCCL work: (\d+), last completed NCCL work: (\d+)\.",
                r" failure detected by watchdog at work sequence id: \1 PG status: last enqueued work: \2, last completed work: \3",
                text,
            )
        elif v >= (2, 4):
            text = re.sub(
                r" ?failure detected by watchdog at work sequence id: (\d+) PG status: last enqueued work: (\d+), last completed work: (\d+)",
                r"Exception (either an error or timeout) detected by watchdog at work: \1, last enqueued NCCL work: \2, last completed NCCL work: \3.",
                text,
            )
        who = "NCCL" if v < (2, 3) else "Process group"
        return _ABORTS.sub(f"{who} watchdog thread terminated with exception: ", text).replace("[Rank ?]", f"[Rank {rank}]")

    def group(rank: str) -> str:
        return f"[PG ID 0 PG GUID 0(default_pg) Rank {rank}]" if v >= (2, 5) else f"[PG 0 Rank {rank}]" if v >= (2, 3) else f"[Rank {rank}]"

    def line(text: str, at: int) -> str | None:
        found = _CPP_LINE.fullmatch(text)
        if found is None:
            if text.startswith("  what():"):
                text = re.sub(r"\[PG[^\]]*Rank (\d+)\]", lambda m: group(m[1]), text)
                text = (
                    re.sub(r"what\(\):  \[[^\]]*\] (?:NCCL|Process group) watchdog thread terminated with exception: ", "what():  ", text)
                    if v < (2, 1)
                    else text
                )
                return words(text, "") if v >= (2, 1) else re.sub(r", NumelIn=\d+, NumelOut=\d+", "", text)
            return text.replace("'c10::DistBackendError'", "'std::runtime_error'") if v < (2, 2) else text
        rank = found["rank"] or (re.search(r"Rank (\d+)", found["group"] or "") or ["", ""])[1]
        said = words(found["text"], rank)
        if said is None:
            return None
        outer = f"[rank{rank}]:" if v >= (2, 2) and rank else ""
        stamp = found["stamp"] or "1218 20:27:21.426415540" if v >= (2, 4) else ""
        inside = found["group"] or ""
        plain = said.startswith("Watchdog caught") or (v >= (2, 4) and re.match(r"Some NCCL|To avoid", said))
        inside = f"[Rank {rank}] " if plain else "" if re.match(r"Some NCCL|To avoid", said) else f"{group(rank)} " if inside else ""
        return f"{outer}[{found['level']}{stamp} {found['file']}:{place + at % 7 * 6}] {inside}{said}"

    def change(case: Case, _: random.Random) -> Case | None:
        if "Watchdog caught" not in case.text():
            return None

        def lines(given: tuple[Line, ...]) -> tuple[Line, ...]:
            part = parted(given)
            out = []
            for at, each in enumerate(given):
                lead, body = part(each.text)
                new = line(body, at)
                if new is not None:
                    out.append(each.saying(lead + new))
            return tuple(out)

        return case.each_file(lines)

    return change


for _version in ("1.12", "1.13", "2.0", "2.1", "2.2", "2.3", "2.4", "2.5", "2.6", "2.7"):
    variation(f"watchdog of torch {_version}")(_watchdog(_version))


@variation("exceptions of torch before 2.1")
def _old_exceptions(case: Case, _: random.Random) -> Case | None:
    def change(text: str) -> str:
        return re.sub(r"torch\.(?:distributed\.(?:DistBackendError|DistStoreError)|AcceleratorError)(?=: )", "RuntimeError", text)

    return case.each(change) if re.search("DistBackendError|AcceleratorError|DistStoreError", case.text()) else None


@variation("exceptions of torch 2.8")
def _new_exceptions(case: Case, _: random.Random) -> Case | None:
    if "RuntimeError: CUDA error: " not in case.text():
        return None
    return case.each(lambda text: text.replace("RuntimeError: CUDA error: ", "torch.AcceleratorError: CUDA error: "))


# ---- NCCL

_WARN = re.compile(r"(?P<who>[\w.-]+:\d+:\d+ \[\d+\] )(?P<file>[\w/.]+):(?P<line>\d+) NCCL WARN (?P<text>.*)")
_CLOSED = re.compile(r"(?:Net : |socketProgress: )?Connection closed by remote peer (\S+<\d+>)")
_IB = re.compile(r"NET/IB ?: Got completion from peer (\S+<\d+>) with error (\d+), opcode (\d+), len (\d+), vendor err (\d+)(?: \(\w+\))?")
_REFUSED = re.compile(r"(?:socketStartConnect: |Net : )?Connect to (\S+<\d+>) failed : Connection refused")
_FALLOCATE = re.compile(r"Call to posix_fallocate failed : No space left on device")
_SEGMENT = re.compile(r"Error while creating shared memory segment (?:/dev/shm/)?(\S+) \(size (\d+)\)")
_GIDS = " localGid fe80::ac1 remoteGidsfe80::ac2"
_NCCL = {
    "2.7": (
        r"Net : Connection closed by remote peer \1",
        r"NET/IB : Got completion with error \2, opcode \3, len \4, vendor err \5",
        r"Connect to \1 failed : Connection refused",
        r"Call to posix_fallocate failed : No space left on device",
        r"Error while creating shared memory segment \1 (size \2)",
    ),
    "2.14": (
        r"Net : Connection closed by remote peer \1",
        r"NET/IB : Got completion from peer \1 with error \2, opcode \3, len \4, vendor err \5",
        r"Net : Connect to \1 failed : Connection refused",
        r"Call to posix_fallocate failed : No space left on device",
        r"Error while creating shared memory segment /dev/shm/\1 (size \2)",
    ),
    "2.18": (
        r"socketProgress: Connection closed by remote peer \1",
        rf"NET/IB : Got completion from peer \1 with error \2, opcode \3, len \4, vendor err \5 (Send){_GIDS}",
        r"socketStartConnect: Connect to \1 failed : Connection refused",
        r"Error: failed to extend /dev/shm/nccl-UbzKZ9 to 9637892 bytes",
        r"Error while creating shared memory segment /dev/shm/\1 (size \2)",
    ),
    "2.21": (
        r"socketProgressOpt: Call to recv from \1 failed : Connection reset by peer",
        rf"NET/IB : Got completion from peer \1 with status=\2 opcode=\3 len=\4 vendor err \5 (Recv){_GIDS} hca mlx5_1",
        r"socketStartConnect: Connect to \1 failed : Connection refused",
        r"Error: failed to extend /dev/shm/nccl-UbzKZ9 to 9637892 bytes, error: No space left on device (28)",
        r"Error while creating shared memory segment /dev/shm/\1 (size \2), error: No space left on device (28)",
    ),
    "2.27": (
        r"socketProgress: Connection closed by remote peer \1",
        rf"NET/IB: Got completion from peer \1 with status=\2 opcode=\3 len=\4 vendor err \5 (Send){_GIDS} hca mlx5_1",
        r"socketPollConnect: connect to \1 returned Connection refused, exceeded error retry count after 35 attempts",
        r"Error: failed to extend /dev/shm/nccl-UbzKZ9 to 9637892 bytes, error: No space left on device (28)",
        r"Error while creating shared memory segment /dev/shm/\1 (size \2), error: No space left on device (28)",
    ),
    "2.30": (
        r"socketProgress: Connection closed by remote peer \1",
        rf"NET/IB: Got completion from peer \1 with status=IBV_WC_RETRY_EXC_ERR(\2) opcode=IBV_WC_RDMA_WRITE(1) vendor_err=\5 {_GIDS} hca mlx5_1",
        r"ncclOsSocketPollConnect: connect to \1 returned Connection refused, exceeded error retry count after 35 attempts",
        r"Error: failed to extend /dev/shm/nccl-UbzKZ9 to 9637892 bytes, error: No space left on device (28)",
        r"Error while creating shared memory segment /dev/shm/\1 (size \2), error: No space left on device (28)",
    ),
}


def _nccl(version: str) -> Callable[[Case, random.Random], Case | None]:
    v = tuple(int(n) for n in version.split("."))

    def words(text: str) -> str:
        for pattern, form in zip((_CLOSED, _IB, _REFUSED, _FALLOCATE, _SEGMENT), _NCCL[version], strict=True):
            text = pattern.sub(form, text)
        return text

    def change(case: Case, _: random.Random) -> Case | None:
        if "NCCL WARN" not in case.text():
            return None
        when = _first_stamp(case) or datetime.fromisoformat("2026-01-08 11:03")

        def line(text: str) -> str:
            nonlocal when
            if read := _STAMP.search(text):
                when = max(when, datetime.fromisoformat(f"{read['date']} {read['time']}"))
            found = _WARN.search(text)
            if found is None:
                return words(text) if re.search(r"Last error|: |what\(\)|^\S*Connection", text) and "NCCL INFO" not in text else text
            stamp = f"[{when:%Y-%m-%d %H:%M:%S}] " if v >= (2, 26) else ""
            function = " (ncclFunction)" if v >= (2, 30) else ""
            return (
                text[: found.start()]
                + stamp
                + f"{found['who']}{found['file']}:{int(found['line']) + v[1]}{function} NCCL WARN {words(found['text'])}"
            )

        return case.each(line)

    return change


for _version in _NCCL:
    variation(f"warnings of NCCL {_version}")(_nccl(_version))


# ---- launchers

_KILL = re.compile(r"\[\d{4}-[^\]]*\] \[INFO\] \[launch\.py:\d+:sigkill_handler\] Killing subprocess (\d+)")
_EXIT = re.compile(r"\[\d{4}-[^\]]*\] \[ERROR\] \[launch\.py:\d+:sigkill_handler\] (\[.*\]) exits with return code = (-?\d+)")


@variation("launcher of DeepSpeed 0.4")
def _old_launcher(case: Case, _: random.Random) -> Case | None:
    """Plain lines, and a traceback that ends in CalledProcessError."""
    if not _EXIT.search(case.text()):
        return None

    def change(lines: tuple[Line, ...]) -> tuple[Line, ...]:
        part, out = parted(lines), []
        for line in lines:
            lead, body = part(line.text)
            if found := _EXIT.fullmatch(body):
                code = int(found[2])
                signals = {6: "SIGABRT", 7: "SIGBUS", 9: "SIGKILL", 11: "SIGSEGV", 15: "SIGTERM"}
                ends = f"died with <Signals.{signals[-code]}: {-code}>." if -code in signals else f"returned non-zero exit status {code}."
                out += [Line(lead + text) for text in _RAISED]
                out.append(line.saying(f"{lead}subprocess.CalledProcessError: Command '{found[1]}' {ends}"))
            else:
                out.append(line.saying(lead + _KILL.sub(r"Killing subprocess \1", body)))
        return tuple(out)

    return case.each_file(change)


_RAISED = (
    "Traceback (most recent call last):",
    '  File "/opt/conda/lib/python3.8/runpy.py", line 194, in _run_module_as_main',
    "    return _run_code(code, main_globals, None,",
    '  File "/opt/conda/lib/python3.8/site-packages/deepspeed/launcher/launch.py", line 139, in sigkill_handler',
    "    raise subprocess.CalledProcessError(returncode=last_return_code, cmd=cmd)",
)


@variation("launcher of another DeepSpeed")
def _other_launcher(case: Case, rng: random.Random) -> Case | None:
    """Other line numbers, and the word `main` where the launcher says it."""
    if "[launch.py:" not in case.text():
        return None
    more = rng.randint(3, 120)
    return case.each(lambda text: re.sub(r"\[launch\.py:(\d+):", lambda m: f"[launch.py:{int(m[1]) + more}:", text))


def _elastic(form: Callable[[str, str], str]) -> Callable[[Case, random.Random], Case | None]:
    line = re.compile(
        r"(?:[WE]\d{4} [\d:.]+ +\d+ torch/distributed/elastic/([\w/]+)\.py:\d+\] |(?:WARNING|ERROR):torch\.distributed\.elastic\.([\w.]+):)(?=Sending process|failed \(exitcode)"
    )

    def change(case: Case, _: random.Random) -> Case | None:
        if not line.search(case.text()):
            return None

        def said(text: str) -> str:
            level = "ERROR" if "failed (exitcode" in text else "WARNING"
            return line.sub(lambda m: form(level, (m[1] or m[2]).replace("/", ".")), text)

        return case.each(said)

    return change


variation("torchrun of torch 1.13")(_elastic(lambda level, module: f"{level}:torch.distributed.elastic.{module}:"))
variation("torchrun of torch 2.2")(_elastic(lambda level, module: f"[2024-02-01 10:11:12,345] torch.distributed.elastic.{module}: [{level}] "))
variation("torchrun of torch 2.7")(
    _elastic(lambda level, module: f"{level[0]}0201 10:11:12.345000 4021 site-packages/torch/distributed/elastic/{module.replace('.', '/')}.py:900] ")
)


# ---- Slurm

_SLURM = re.compile(r"slurmstepd(?:-([\w.-]+))?: error: \*\*\* (JOB|STEP) ([\d.]+) ON ([\w.-]+) CANCELLED AT ([\dT:-]+)(.*?) \*\*\*")
_OOM_KILL = re.compile(
    r"error: Detected (\d+) oom-kill event\(s\) in StepId=([\d.]+\w*)\..*|error: Detected (\d+) oom-kill event\(s\) in step ([\d.]+\w*) cgroup\..*"
)


@variation("Slurm 17")
def _old_slurm(case: Case, _: random.Random) -> Case | None:
    """The host at the end of the line."""

    def change(text: str) -> str:
        text = _SLURM.sub(lambda m: f"slurmstepd: error: *** {m[2]} {m[3]} CANCELLED AT {m[5]}{m[6]} on {m[4]} ***", text)
        text = re.sub(r"oom-kill event\(s\) in StepId=(\d+\.\w+)\. ", r"oom-kill event(s) in step \1 cgroup. ", text)
        return re.sub(r"Terminating StepId=(\d+\.\d+)", r"Terminating job step \1", text)

    return case.each(change) if "slurmstepd" in case.text() else None


@variation("Slurm 23")
def _new_slurm(case: Case, _: random.Random) -> Case | None:
    """The host in the name of the daemon, other words for a memory kill."""

    def change(text: str) -> str:
        text = _SLURM.sub(lambda m: f"slurmstepd-{m[4]}: error: *** {m[2]} {m[3]} ON {m[4]} CANCELLED AT {m[5]}{m[6]} ***", text)
        text = re.sub(
            r"Detected (\d+) oom-kill event\(s\) in StepId=(\d+\.\w+?)\..*",
            r"Detected \1 oom_kill event in StepId=\2. Some of the step tasks have been OOM Killed.",
            text,
        )
        return re.sub(r"Terminating job step (\d+\.\d+)", r"Terminating StepId=\1", text)

    return case.each(change) if "slurmstepd" in case.text() else None


@variation("Slurm's own log")
def _slurm_log(case: Case, _: random.Random) -> Case | None:
    """Lines of the batch step's log: a stamp instead of the daemon's name."""
    if "slurmstepd: error: ***" not in case.text():
        return None
    return case.each(lambda text: re.sub(r"slurmstepd: (error: \*\*\* .*?AT (\d{4}-\d\d-\d\dT[\d:]+))", r"[\2.123] \1", text))


# ---- other causes in the same place

_HERE = ("user-typeerror-stage2", "fail-exception-rank2", "fail-oom-leak-rank1", "k8s-timestamps-oom")
_OF_THE_JOB = {"numerics.loss-scale", "dependency", "numerics.nan"}
"""Causes that rather concern the job than a rank."""
_CUDA = (
    "CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.",
    "For debugging consider passing CUDA_LAUNCH_BLOCKING=1",
    "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.",
)
CAUSES: dict[str, tuple[tuple[str, ...], tuple[str, ...], bool]] = {
    **{f"OOM of torch {v}": ((form.format(tried="1.15 GiB", gpu=0),), ("memory.gpu-oom",), True) for v, form in OOM.items()},
    "ECC": (("RuntimeError: CUDA error: uncorrectable ECC error encountered", *_CUDA), ("hardware.gpu",), True),
    "NVLink": (("torch.AcceleratorError: CUDA error: uncorrectable NVLink error detected during the execution", *_CUDA), ("hardware.gpu",), True),
    "illegal access": (("RuntimeError: CUDA error: an illegal memory access was encountered", *_CUDA), ("unknown", "code"), False),
    "device assert": (("RuntimeError: CUDA error: device-side assert triggered", *_CUDA), ("unknown", "code", "data"), False),
    "cuBLAS": (
        ("RuntimeError: CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmEx( handle, opa, opb, m, n, k)`",),
        ("unknown", "code", "hardware.gpu"),
        False,
    ),
    "cuBLAS alloc": (("RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",), ("memory.gpu-oom",), True),
    "driver's OOM": (("RuntimeError: CUDA error: out of memory", *_CUDA), ("memory.gpu-oom",), True),
    "disk full": (
        ("OSError: [Errno 28] No space left on device: '/data/ckpt/global_step500/layer_03-model_states.pt'",),
        ("storage", "checkpoint"),
        True,
    ),
    "I/O error": (("OSError: [Errno 5] Input/output error: '/data/shards/0017.bin'",), ("storage",), True),
    "stale handle": (("OSError: [Errno 116] Stale file handle: '/data/shards/0017.bin'",), ("storage",), True),
    "host memory": (("MemoryError",), ("host.oom",), True),
    "host memory of torch": (
        (
            "RuntimeError: [enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate 8589934592 bytes. Error code 12 (Cannot allocate memory)",
        ),
        ("host.oom",),
        True,
    ),
    "no thread": (("RuntimeError: can't start new thread",), ("host.oom", "killed", "code", "unknown"), True),
    "worker killed": (
        ("RuntimeError: DataLoader worker (pid 4400) is killed by signal: Killed. ",),
        ("data", "killed", "host.oom", "unknown"),
        False,
    ),
    "shared memory": (
        ("RuntimeError: unable to open shared memory object </torch_4312_1723> in read-write mode: No space left on device (28)",),
        ("host.shm",),
        True,
    ),
    "iterator's end": (("StopIteration",), ("data",), True),
    "key": (("KeyError: 'input_ids'",), ("code", "data"), True),
    "index": (("IndexError: list index out of range",), ("code", "data"), True),
    "own exception": (("trainer.errors.BadSampleError: shard 17 is broken: record 9 has no text",), ("code", "data"), True),
    "assertion without words": (("AssertionError",), ("code", "engine"), True),
    "not implemented": (("NotImplementedError",), ("code",), True),
    "loss is nan": (("ValueError: loss is nan at step 7, stopping",), ("numerics.nan", "code"), True),
    "loss scale": (
        ("Exception: Current loss scale already at minimum - cannot decrease scale anymore. Exiting run.",),
        ("numerics.loss-scale",),
        True,
    ),
    "import": (("ModuleNotFoundError: No module named 'flash_attn'",), ("dependency",), True),
    "no kernel image": (("RuntimeError: CUDA error: no kernel image is available for execution on the device", *_CUDA), ("dependency",), True),
    "missing file": (("FileNotFoundError: [Errno 2] No such file or directory: '/data/shards/0017.bin'",), ("code", "data", "storage"), True),
    "web request reset": (
        ("requests.exceptions.ConnectionError: ('Connection aborted.', ConnectionResetError(104, 'Connection reset by peer'))",),
        ("code", "data", "network", "storage"),
        True,
    ),
    "object store timed out": (
        ('botocore.exceptions.ReadTimeoutError: Read timeout on endpoint URL: "https://s3.local/shards/0017.bin"',),
        ("code", "data", "network", "storage"),
        True,
    ),
    "own timeout": (("TimeoutError: tokenizer server did not answer within 30 s",), ("code", "data", "network"), True),
    "shapes": (("RuntimeError: mat1 and mat2 shapes cannot be multiplied (32x4096 and 2048x4096)",), ("code", "engine"), True),
    "several lines": (("ValueError: bad batch:", "  input_ids: torch.Size([4, 2049])", "  labels: torch.Size([4, 2048])"), ("code", "data"), True),
    "words of a hang": (("RuntimeError: the collective timeout option must be positive, got -1",), ("code", "config.other"), True),
    "words of a kill": (("ValueError: expected one of 'Killed', 'SIGTERM', got 'oom-kill'",), ("code",), True),
}
"""Last lines of the traceback, the categories that are right, whether the cause is known."""


def _cause(lines: tuple[str, ...], categories: tuple[str, ...], *, known: bool) -> Callable[[Case, random.Random], Case | None]:
    def change(case: Case, _: random.Random) -> Case | None:
        if case.name not in _HERE or case.how:
            return None

        def file(given: tuple[Line, ...]) -> tuple[Line, ...]:
            part, own = parted(given), is_launcher(given)
            at = [n for n, line in enumerate(given) if line.anchor and not own[n]]
            if not at:
                return given
            last = at[-1]
            lead, body = part(given[last].text)
            rank = (re.match(r"\[rank\d+\]: ", body) or [""])[0]
            new = [Line(f"{lead}{rank}{text}", anchor=n == 0) for n, text in enumerate(lines)]
            before = (replace(line, anchor=False) for line in given[:last])
            return (*before, *new, *given[last + 1 :])

        changed = case.each_file(file)
        finds = [f for f in case.truth.get("must_find", []) if f["name"] == "run-failed"]
        changed = changed.claiming(category=list(categories), cause_known=known, must_find=finds)
        return changed.claiming(or_none=("ranks", "stages", "hosts")) if _OF_THE_JOB & set(categories) else changed

    return change


for _name, (_lines, _categories, _known) in CAUSES.items():
    variation(f"cause: {_name}")(_cause(_lines, _categories, known=_known))
