"""Disks, launchers, schedulers, signals: what happens around the training process."""

from __future__ import annotations

from collections.abc import Iterator

from pipelog.findings import Advice
from pipelog.postmortem.case import Case
from pipelog.postmortem.kinds import Role, Strength, kind
from pipelog.postmortem.schedulers import warning, who

_PROCESS = ("batch-failed", "exit-code", "child-failed", "child-root-cause", "slurm-task", "k8s-exit-code", "shell-signal", "signal")
"""Rows that carry an exit code: the table of errors writes it under the text as `code -9`."""


@kind(
    "disk-full",
    category="storage",
    pattern=r"No space left on device|\[Errno 28\]|ENOSPC",
    says="found the disk full",
    first=10,
)
def disk_full(case: Case) -> Iterator[Advice]:
    """A write failed for want of space or quota."""
    yield Advice(
        f"free space under {case.folder or 'the folder of the checkpoints'} (`df -h`, `quota -s`), keep fewer checkpoints, and delete the incomplete one of this step before you resume"
    )


@kind(
    "disk-quota",
    category="storage",
    pattern=r"Disk quota exceeded|\[Errno 122\]",
    says="wrote more than its quota of the disk allows",
    first=10,
)
def disk_quota(case: Case) -> Iterator[Advice]:
    """EDQUOT: bytes or files of the user, the group or the project; the disk itself may have room."""
    yield Advice("look at the quota of the user and the project, bytes and files (`quota -s`, `lfs quota -h`), not at `df`")
    yield Advice("delete or move old checkpoints, the incomplete one of this step first, or ask for more; keep fewer")


@kind(
    "evicted-for-storage",
    category="storage",
    pattern=r"ephemeral local storage usage exceeds the total limit of containers (?P<total>[\d.]+\w*)|exceeded its local ephemeral storage limit \W?(?P<own>[\d.]+\w*)"
    r"|low on resource: ephemeral-storage|DiskPressure",
    says="was evicted with its pod for the local storage that it used",
    first=10,
)
def evicted_for_storage(case: Case) -> Iterator[Advice]:
    """Kubernetes ends a pod that writes more to its node's disk (layers, logs, emptyDir) than it may, or when that disk is nearly full."""
    if case.match(r"low on resource|DiskPressure"):
        yield Advice(
            f"see what fills the disk of {case.host or 'that node'} (`kubectl describe node`): images, logs, other pods; request ephemeral-storage for this pod"
        )
    else:
        yield Advice(
            "raise limits.ephemeral-storage of the pod, or find what it writes there: caches, unpacked data, checkpoints and logs that belong on a volume"
        )


@kind(
    "write-failed",
    category="storage",
    pattern=r"file write failed|PytorchStreamWriter failed|basic_ios::clear|iostream error|unexpected pos \d+ vs \d+",
    says="could not write a file to the end ({matched})",
    first=11,
)
def write_failed(case: Case) -> Iterator[Advice]:
    """PyTorch's writer does not say why its write failed; a full disk or a quota is the usual reason (inline_container.cc)."""
    place = case.folder or "the folder of the checkpoints"
    yield Advice(f"see whether {place} is full or over its quota (`df -h`, `df -i`, `quota -s`), and what the kernel says of its file system")
    yield Advice("delete the incomplete checkpoint of this step before you resume")


@kind(
    "storage-error",
    category="storage",
    pattern=r"(?i)\[Errno (?:5|108|116|30|121)\]|\[Errno (?:107|110)\] [^:]+: ['/]|Transport endpoint is not connected\nrow storage|Input/output error|Stale (?:NFS )?file handle|Read-only file system|Remote I/O error|LustreError|I/O error, dev|SafetensorError.*(?:I/O|os error)",
    says="had an error of the storage ({matched})",
    first=21,
)
def storage_error(case: Case) -> Iterator[Advice]:
    """The file system itself failed."""
    yield Advice(
        f"check the file system{f' that holds {case.path}' if case.path else ''} on {case.host or 'that host'}: mount state, server, kernel log"
    )


@kind(
    "open-files",
    category="host.shm",
    pattern=r"Too many open files|\[Errno 24\]",
    says="ran out of file descriptors",
    first=22,
)
def open_files(case: Case) -> Iterator[Advice]:
    """Tensors shared between loader workers cost a descriptor each."""
    yield Advice("raise `ulimit -n`, or torch.multiprocessing.set_sharing_strategy('file_system')")


@kind(
    "port-in-use",
    category="launch",
    pattern=r"(?i)address already in use|EADDRINUSE|errno: 98",
    says="could not open its port: another process has it",
    job=True,
    first=12,
)
def port_in_use(case: Case) -> Iterator[Advice]:
    """The rendezvous port is taken, mostly by an old job that is still alive."""
    yield Advice("find the process (`ss -ltnp`), end it, or choose another --master_port (29500 is everyone's default)")


@kind(
    "rendezvous-gone",
    category="killed",
    pattern=r"has failed to shutdown the rendezvous",
    says="could not close the rendezvous: the store was gone",
    role=Role.TEARDOWN,
    known=False,
    strength=Strength.ECHO,
    rows=("socket", "torch-log", "level"),
    first=23,
    missing=("the log of the node that holds the store",),
)
def rendezvous_gone(case: Case) -> Iterator[Advice]:
    """torchrun's agents say so when they leave after the node of the store has left: whatever ended the job, it was before."""
    yield Advice("look at what ended the node of the store, or was said before this on any rank")


@kind(
    "rendezvous",
    category="launch",
    pattern=r"(?i)clients joined|client socket has timed out|Timed out initializing process group|rendezvous.*(?:tim|clos|fail)|RendezvousClosedError"
    r"|RendezvousTimeoutError|RendezvousConnectionError|failed to send a keep-alive|DistStoreError|Timed out after \d+ seconds waiting for|could not connect to the (?:master|server)|wait timeout after \d+ms"
    r"|failed to connect to .* master",
    says="did not meet the other ranks at the start",
    of_ranks="never came to the rendezvous",
    rows=("python-exception", "socket", "torch-log", "store-wait", "level"),
    job=True,
    first=24,
)
def rendezvous(case: Case) -> Iterator[Advice]:
    """Some ranks never came to the rendezvous: their host did not start, or cannot reach the master."""
    yield Advice("look at the hosts of the ranks that never came: was the launcher started there, with the right node rank, master address and port?")
    yield Advice("check that every host reaches the master: `nc -vz MASTER_ADDR MASTER_PORT`")


@kind(
    "store-barrier",
    category="launch",
    pattern=r"Timed out .*store based barrier|Waiting in store based barrier .*error=Timed out",
    says="did not all come to a barrier of the start",
    of_ranks="never came to a barrier of the start",
    rows=("python-exception", "level"),
    job=True,
    known=False,
    first=23,
    missing=("what those who did not come were doing: their own logs, a stack of them (py-spy dump)",),
)
def store_barrier(case: Case) -> Iterator[Advice]:
    """Ranks wait in the store for all to come; why some do not, they cannot tell: not started, or busy with something that takes longer."""
    yield Advice("look at the ranks that never came: was the launcher started there; are they building an index, downloading, compiling?")
    yield Advice("if they are only slow, raise the timeout: init_distributed(timeout=…), --distributed-timeout-minutes")


@kind(
    "launcher-setup",
    category="launch",
    pattern=r"(?i)hostfile is (?:empty|not formatted)|not found in hostfile|no GPU resources available|launcher '\w+' not installed|command not found|can't open file|Host key verification failed"
    r"|Permission denied \(publickey|Could not resolve hostname|ssh: connect to host|ORTE was unable|unable to reliably start|No such file or directory: '(?:numactl|ssh|pdsh|mpirun|srun|ninja)'"
    r"|(?:kex|ssh)_exchange_identification|exec format error|container (?:creation|start) failed|No such container|OCI runtime|ImagePullBackOff|ErrImagePull|Error response from daemon"
    r"|not reachable via ssh|Command 'ssh .*returned non-zero|(?:Task|Application) launch (?:for StepId=\S+ )?failed|Unable to (?:create step|confirm allocation)|could not open image|failed to run .*, is localhost: ",
    says="could not be launched ({matched})",
    job=True,
    first=23,
)
def launcher_setup(case: Case) -> Iterator[Advice]:
    """The launcher could not start the processes: ssh, host file, a missing program, the container."""
    yield Advice("run the failing command by hand on that host; compare PATH, ssh keys and the host file")


@kind(
    "ray-worker-gone",
    category="killed",
    pattern=r"ray\.exceptions\.(?P<what>ActorDiedError|RayActorError|ActorUnavailableError|WorkerCrashedError|NodeDiedError|LocalRayletDiedError)\b",
    says="was gone ({what}): Ray does not say why",
    known=False,
    strength=Strength.SIGNAL,
    rows=("python-exception", "bare-exception"),
    first=9,
    missing=("the log of the worker that died (/tmp/ray/session_latest/logs/worker-*.err)", "`dmesg -T` of its node"),
)
def ray_worker_gone(case: Case) -> Iterator[Advice]:
    """Ray's driver notices that a worker process is gone and lists what it might have been: none of these is told to be it."""
    yield Advice("read the dead worker's own log under /tmp/ray/session_latest/logs on its node, and `dmesg -T` there")


@kind(
    "time-limit",
    category="scheduler.time-limit",
    pattern=r"(?i)DUE TO TIME LIMIT|TERM_RUNLIMIT|walltime .*exceeded|DeadlineExceeded|active on the node longer than|\nrow batch-time-limit$",
    says="reached its time limit",
    rows=("slurm-time-limit", "k8s-deadline", "batch-time-limit", "level"),
    job=True,
    role=Role.INITIATING,
    first=1,
)
def time_limit(case: Case) -> Iterator[Advice]:
    """The scheduler ended the job at its limit: nothing failed."""
    if case.match(r"(?i)DeadlineExceeded|active on the node longer than"):
        yield Advice("raise activeDeadlineSeconds of the Job if the run is to take longer (`kubectl describe job` shows it)")
        yield Advice(
            "save a checkpoint shortly before the limit (Megatron: --exit-duration-in-mins), and start the next Job from it: a Job at its deadline is not started again"
        )
        return
    yield Advice(f"save a checkpoint shortly before the limit (Megatron: --exit-duration-in-mins{warning(case.text)}), and chain the next job")


@kind(
    "preempted",
    category="scheduler.preempted",
    pattern=r"(?i)DUE TO PREEMPTION|DUE TO JOB REQUEUE|Preempt(?:ed|\b|Scheduled)|TERM_PREEMPT|SPOT_ITN|Spot ITN|Spot ?Interrupt|\nrow (?:batch-preempted|k8s-scale-down)$",
    says="was preempted",
    rows=("slurm-preempted", "slurm-requeue", "k8s-preempted", "k8s-scale-down", "batch-preempted", "cloud-preempted"),
    job=True,
    first=1,
)
def preempted(case: Case) -> Iterator[Advice]:
    """The scheduler took the nodes for another job: nothing failed."""
    yield Advice("requeue it; save on SIGTERM within the grace time if the lost steps matter")


@kind(
    "cancelled",
    category="scheduler.cancelled",
    pattern=r"(?im)CANCELLED AT|KeyboardInterrupt|SIGINT|TERM_OWNER|Received \d+ death signal|received SIGTERM|got signal: (?:15|2)\b|signal 15|^Terminated$|^row batch-cancelled$",
    says="was cancelled",
    job=True,
    strength=Strength.SIGNAL,
    role=Role.TEARDOWN,
    first=2,
)
def cancelled(case: Case) -> Iterator[Advice]:
    """Somebody or something outside ended it; who, is not in the log."""
    asked = who(case.text, case.files, case.facts_of("job.id"))
    yield Advice(f"ask who ended it: {asked}")


@kind(
    "killed",
    category="killed",
    pattern=r"(?m)^code -9$",
    says="was killed (signal 9), and nothing says by whom",
    rows=_PROCESS,
    known=False,
    strength=Strength.SIGNAL,
    first=26,
    missing=(
        "`dmesg -T | grep -i -E 'oom|killed process'` of the host: the kernel's OOM killer is the usual sender",
        "the scheduler's accounting (sacct, kubectl describe)",
    ),
)
def killed(case: Case) -> Iterator[Advice]:
    """SIGKILL leaves no message in the process. Without the kernel's or the scheduler's word its sender is not known."""
    yield Advice(f"look on {case.host or 'the host'} for the sender: `dmesg -T | grep -i -E 'oom|killed process'`, the scheduler's accounting")


@kind(
    "crashed",
    category="killed",
    pattern=r"(?m)^code -(?:4|5|7|8|11|31)$|Fatal Python error: (?:Segmentation fault|Bus error|Illegal instruction|Floating)"
    r"|(?P<trap>segfault at \S+|general protection|trap \w+|dumped core)[^\n]*(?:\n.*)*row kernel-segfault",
    says="crashed in native code ({matched})",
    rows=(*_PROCESS, "fatal-python", "kernel-segfault"),
    known=False,
    strength=Strength.SIGNAL,
    first=27,
    missing=("a stack of the crash: run with python -X faulthandler, or look at the core dump", "`dmesg -T | grep segfault` of the host"),
)
def crashed(case: Case) -> Iterator[Advice]:
    """A native crash. Bus errors are mostly a full /dev/shm or a lost memory-mapped file."""
    yield Advice("run with PYTHONFAULTHANDLER=1 to get the Python stack of the crash")


@kind(
    "aborted",
    category="killed",
    pattern=r"(?m)^code -6$|terminate called|Fatal Python error: Aborted",
    says="aborted (signal 6)",
    rows=(*_PROCESS, "fatal-python", "cpp-terminate"),
    role=Role.CASCADE,
    known=False,
    strength=Strength.SIGNAL,
    first=28,
    missing=("what the process said before it aborted",),
)
def aborted(case: Case) -> Iterator[Advice]:
    """SIGABRT: C++ gave up, mostly after a message of its own (a watchdog, an assertion)."""
    yield Advice("look for the message before the abort in the log of that rank")


@kind(
    "terminated",
    category="killed",
    pattern=r"(?s)^\[.*\ncode -15$",
    says="was terminated (SIGTERM), and nothing says by whom",
    rows=("exit-code",),
    known=False,
    strength=Strength.SIGNAL,
    first=25,
    missing=("who sent the signal: the scheduler's accounting, the kernel log and the shells of that host",),
)
def terminated(case: Case) -> Iterator[Advice]:
    """DeepSpeed's launcher prints the code of the first process that failed, before it ends the others (launch.py, sigkill_handler)."""
    yield Advice(f"look on {case.host or 'the host'} for the sender: the scheduler's accounting, other users, a watchdog of the cluster")


@kind(
    "left-with-state",
    category="unknown",
    pattern=r"(?s)^(?!.*\ncode -)",
    says="is listed as failed",
    rows=("batch-failed",),
    job=True,
    known=False,
    strength=Strength.WORD,
    first=24,
    missing=("the standard error of the processes: what they said before the job was over",),
)
def left_with_state(case: Case) -> Iterator[Advice]:
    """An accounting, a controller or a service has the job as failed, perhaps with the code that its script left with; the job's own lines say nothing."""
    yield Advice(
        "find the standard error of the ranks (launcher's per-rank logs, torchrun --log-dir, the service's log stream), and analyze it together with this"
    )


@kind(
    "left-with-own-code",
    category="unknown",
    pattern=r"(?m)^code (?P<code>[2-9]|[1-9]\d+)$",
    says="ended with exit code {code}",
    rows=_PROCESS,
    known=False,
    strength=Strength.SIGNAL,
    first=59,
    missing=("the standard error of that process; what in its code ends with that number (sys.exit, os._exit)",),
)
def left_with_own_code(case: Case) -> Iterator[Advice]:
    """An exception ends Python with 1: another code was chosen by the code itself, or by a tool that it runs."""
    yield Advice("search the code and its wrappers for that exit code; analyze the standard error of that rank together with this")


@kind(
    "left-with-code",
    category="unknown",
    pattern=r"(?m)^code (?P<code>[1-9]\d*)$",
    says="ended with exit code {code}",
    rows=_PROCESS,
    known=False,
    strength=Strength.WORD,
    first=60,
    missing=("the standard error of the processes: it may have gone to another file",),
)
def left_with_code(case: Case) -> Iterator[Advice]:
    """A process ended with an error code, and its message is not among the files."""
    yield Advice("find the standard error of the ranks (launcher's per-rank logs, torchrun --log-dir), and analyze it together with this")


@kind(
    "taken-down",
    category="killed",
    pattern=r"(?im)^code -(?:15|1|2|13)$|^row killed$|(?<![\"'`])SIGTERM(?![\"'`])|Killing subprocess|closing signal|CalledProcessError|ChildFailedError|sending .*signal|First task exited|Terminating|Job step aborted"
    r"|exit code 143|SystemExit|SignalException|task .* running|exited abnormally|Main process received|forcefully exiting|Worker group FAILED|ssh exited",
    says="was taken down with the rest",
    role=Role.TEARDOWN,
    known=False,
    strength=Strength.ECHO,
    first=29,
)
def taken_down(case: Case) -> Iterator[Advice]:
    """The launcher ends everyone when one fails: never the cause."""
    return
    yield
