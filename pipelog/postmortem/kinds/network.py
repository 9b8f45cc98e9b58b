"""Links, transports, interfaces; and what others notice when a peer is gone."""

from __future__ import annotations

from collections.abc import Iterator

from pipelog.findings import Advice
from pipelog.postmortem.case import Case
from pipelog.postmortem.kinds import Role, Strength, kind

_COMPLETION = r"Got completion .*(?:with error |status=(?:IBV_WC_\w+\()?)\s?"
"""`Got completion from peer 10.0.0.7<49321> with status=IBV_WC_RETRY_EXC_ERR(12)`: statuses of verbs, 1 to 8 but 5 and 7 found by its own side."""


@kind(
    "ib-retry-exceeded",
    category="network",
    pattern=rf"{_COMPLETION}(?P<status>1[23])\b",
    says="lost an InfiniBand connection (status {status}: transport retries exceeded)",
    strength=Strength.TRANSPORT,
    first=20,
)
def ib_retry(case: Case) -> Iterator[Advice]:
    """NCCL's verbs transport: statuses 12 and 13 mean that the peer or a link on the way no longer answers, or takes nothing more."""
    yield Advice(
        "find the port: `ibstat`, `ibqueryerrors`, `perfquery -x` on both ends named in the line; look for 'port error' or link-down in both kernel logs"
    )
    yield Advice("if the fabric is merely busy, raise NCCL_IB_TIMEOUT (to 22) and NCCL_IB_RETRY_CNT (to 13)")


@kind(
    "ib-own-error",
    category="network",
    pattern=rf"{_COMPLETION}(?P<status>[123468])\b",
    says="had an error of its own side of an InfiniBand connection (status {status})",
    strength=Strength.SYMPTOM,
    known=False,
    first=20,
    missing=(
        "the kernel log of the host (`dmesg -T | grep -iE 'mlx5|nvidia_peermem'`): adapter, driver, or memory that was freed or not registered",
    ),
)
def ib_own_error(case: Case) -> Iterator[Advice]:
    """Length, queue, protection or access errors of the process that says it (verbs' statuses 1 to 4, 6 and 8), whatever its peers see."""
    yield Advice(f"see the adapter and the driver on {case.host or 'that host'}: `dmesg -T | grep -iE 'mlx5|peermem|xid'`, `ibstat`")
    yield Advice("try NCCL_NET_GDR_LEVEL=0 for a run: if that helps, it is the direct access of the adapter to GPU memory")


@kind(
    "ib-refused",
    category="network",
    pattern=rf"{_COMPLETION}(?P<status>7|9|1[01])\b",
    says="was refused what it asked of its peer over InfiniBand (status {status})",
    strength=Strength.TRANSPORT,
    known=False,
    first=20,
    missing=("the log and the kernel log of the peer: the fault was found on its side",),
)
def ib_refused(case: Case) -> Iterator[Advice]:
    """The peer answered, and refused: its memory, its queue or its process was not ready (verbs' statuses 7, 9, 10, 11)."""
    yield Advice("look at the log and the kernel log of the peer that the line names; compare NCCL_IB_HCA and the versions of both hosts")


_EVENT = r"async (?:fatal )?(?:error )?(?:event|error)(?: on \w+(?:, unused for now)?)?(?: \([^)]*\))? ?: ?"
"""`Got async event : port error`, `async fatal event on QP (0x7f…): …`, `non-fatal async event: port error(10)`: what the adapter told NCCL."""


@kind(
    "ib-event",
    category="unknown",
    pattern=rf"(?i){_EVENT}(?:port active|GID table change|client reregistration|SM change|LID change|P_?key change|path migrated|communication established|send queue drained|last WQE reached|SRQ limit reached)|NET/IB.*GID table changed",
    says="was told of a change of the InfiniBand network",
    role=Role.BENIGN,
    known=False,
    strength=Strength.WORD,
    first=18,
)
def ib_event(case: Case) -> Iterator[Advice]:
    """Events after which an adapter goes on: a port that is up again, other addresses, another subnet manager."""
    yield Advice("nothing, unless steps are slow from then on: `ibdiagnet`, the subnet manager's log")


@kind(
    "ib-adapter",
    category="network",
    pattern=rf"{_EVENT}local catastrophic error",
    says="lost its InfiniBand adapter (local catastrophic error)",
    first=18,
)
def ib_adapter(case: Case) -> Iterator[Advice]:
    """The adapter itself reports that it is broken (IBV_EVENT_DEVICE_FATAL); what the others see of it comes later."""
    yield Advice(
        f"take {case.host or 'that host'} out of the pool; `dmesg -T | grep mlx5`, `ibstat`, `mstdump` or the vendor's health check of the adapter"
    )
    yield Advice("restart from the last checkpoint on other nodes")


@kind(
    "ib-queue",
    category="network",
    pattern=rf"{_EVENT}(?P<event>CQ error|local work queue catastrophic error|invalid request local work queue error|local access violation work queue error|SRQ catastrophic error)",
    says="had a fatal event of an InfiniBand queue ({event})",
    strength=Strength.SYMPTOM,
    known=False,
    first=18,
    missing=("the kernel log of the host (`dmesg -T | grep -iE 'mlx5|nvidia_peermem'`), and which of its peers asked for what",),
)
def ib_queue(case: Case) -> Iterator[Advice]:
    """A queue of the process broke: memory that was freed or not registered, another adapter than meant, or the driver."""
    yield Advice("compare NCCL_IB_HCA on the hosts; try NCCL_NET_GDR_LEVEL=0 for a run; see `dmesg -T | grep -iE 'mlx5|peermem'` on the host")


@kind(
    "ib-port",
    category="network",
    pattern=r"NET/IB.*async (?:fatal )?(?:error )?(?:event|error).*|mlx5\S* .*(?:[Ll]ink (?:down|DOWN)|health compromised|health error|Health issue observed|module event\[error\])",
    says="lost an InfiniBand port",
    strength=Strength.TRANSPORT,
    first=19,
)
def ib_port(case: Case) -> Iterator[Advice]:
    """The adapter reports an event: port error, link down, fatal."""
    yield Advice(f"check cable and port of the adapter in the line on {case.host or 'that host'}: `ibstat`, `mlxlink -d`")


@kind(
    "port-event",
    category="network",
    pattern=r"",
    says="saw a port of the network change",
    role=Role.BENIGN,
    known=False,
    strength=Strength.WORD,
    rows=("kernel-port",),
    first=1,
)
def port_event(case: Case) -> Iterator[Advice]:
    """A link that is up, or a port without a cable: the kernel says so of each port at every start."""
    return
    yield


@kind(
    "mpi-daemon-lost",
    category="network",
    pattern=r"RTE has lost communication with",
    says="lost the host of one of mpirun's daemons, or the way to it",
    strength=Strength.TRANSPORT,
    known=False,
    job=True,
    rows=("mpi-daemon-lost",),
    first=19,
    missing=("whether that host was up: `uptime`, its kernel log, the scheduler's or cloud's word on it",),
)
def mpi_daemon_lost(case: Case) -> Iterator[Advice]:
    """Open MPI's launcher hears no more from its daemon on a host; whether host or network failed, it cannot tell."""
    yield Advice(
        f"see whether {case.host or 'the host of the remote daemon'} is up and was restarted (`last -x`, `dmesg -T`); if it was up, look at the network between it and the launcher"
    )


@kind(
    "duplicate-gpu",
    category="launch",
    pattern=r"Duplicate GPU detected(?: ?: rank (?P<a>\d+) and rank (?P<b>\d+))?",
    says="was started with several ranks on one GPU",
    of_ranks="were started on one and the same GPU",
    job=True,
    first=17,
)
def duplicate_gpu(case: Case) -> Iterator[Advice]:
    """NCCL refuses two ranks on one device: the launcher gave every process the same one (init.cc)."""
    yield Advice(
        "give every rank its own GPU: torch.cuda.set_device(local_rank), CUDA_VISIBLE_DEVICES by task, srun --gpus-per-task=1 or --gpu-bind=none"
    )


@kind(
    "no-interface",
    category="network.config",
    pattern=r"no socket interface found|Mismatched NCCL version|NCCL_SOCKET_IFNAME.*(?:not found|no such)|No interface found",
    says="could not set up NCCL ({matched})",
    first=18,
)
def no_interface(case: Case) -> Iterator[Advice]:
    """NCCL's bootstrap: no interface, or two versions."""
    if "Mismatched" in case.text:
        yield Advice("install the same NCCL (the same torch build) on every host")
    else:
        yield Advice("set NCCL_SOCKET_IFNAME to the interface that connects the hosts (`ip -br addr`)")


@kind(
    "gloo-interface",
    category="network.config",
    pattern=r"Unable to find address for: (?P<what>[\w.:@-]+)|gloo/transport/\S+ .*(?P<which>[Uu]nable to resolve hostname|[Cc]ould not resolve)|Unable to find interface for: (?P<address>\S+)",
    says="could not set up gloo: the interface or name it was given has no address there ({matched})",
    first=18,
)
def gloo_interface(case: Case) -> Iterator[Advice]:
    """gloo's TCP device: the interface of GLOO_SOCKET_IFNAME is not on that host, or the host's own name does not resolve (device.cc)."""
    yield Advice(
        f"compare GLOO_SOCKET_IFNAME with `ip -br addr` on {case.host or 'every host'}: names of interfaces differ between machines; and see that `getent hosts $(hostname)` answers"
    )


@kind(
    "gloo-loopback",
    category="network.config",
    pattern=r"Using the loopback address as fallback",
    says="took the loopback address for gloo: its own name has no address there",
    rows=("torch-warning", "torch-log", "level"),
    first=16,
    only_with="gloo-mesh",
)
def gloo_loopback(case: Case) -> Iterator[Advice]:
    """gloo asks for the host's own name; without an answer it listens on 127.0.0.1, where no other host can reach it."""
    yield Advice(
        f"set GLOO_SOCKET_IFNAME to the interface that connects the hosts, or let {case.host or 'that host'} resolve its own name (/etc/hosts)"
    )


@kind(
    "gloo-mesh",
    category="network",
    pattern=r"Gloo connectFullMesh failed",
    says="could not be connected with the others over gloo",
    rows=("python-exception", "cpp-terminate"),
    job=True,
    known=False,
    first=20,
    missing=("from each host: `getent hosts $(hostname)`, `ip -br addr`, and whether the others reach it at that address",),
)
def gloo_mesh(case: Case) -> Iterator[Advice]:
    """At the start each process connects to each; all of them say so where one of them can not be reached."""
    yield Advice(
        "set GLOO_SOCKET_IFNAME to the interface that connects the hosts; see that each host's own name resolves to the address of that interface"
    )


@kind(
    "own-interface",
    category="network.config",
    pattern=r"[Cc]onnect to (?:172\.(?:1[6-9]|2\d|3[01])\.\d+|127\.\d+\.\d+|192\.168\.122)\.\d+<\d+> (?:failed ?: ?|returned )(?:Connection refused|No route to host)",
    says="connected to a container bridge instead of the other host",
    first=17,
)
def own_interface(case: Case) -> Iterator[Advice]:
    """The address is that of docker0 (172.17.…), libvirt or the loopback: every host has one, and so reaches itself."""
    yield Advice(
        "set NCCL_SOCKET_IFNAME (and GLOO_SOCKET_IFNAME) to the interface that connects the hosts, or exclude the bridge: NCCL_SOCKET_IFNAME=^docker0,lo"
    )


@kind(
    "ib-pinning",
    category="network.config",
    pattern=r"ibv_reg_mr\w* failed with error Cannot allocate memory",
    says="could not pin memory for InfiniBand",
    strength=Strength.SYMPTOM,
    known=False,
    first=5,
    missing=("the limit of pinned memory where the job runs: `ulimit -l` in the same shell or container",),
)
def ib_pinning(case: Case) -> Iterator[Advice]:
    """The adapter may pin no more memory: mostly the limit of the process (memlock), not a host that has none left."""
    yield Advice(
        "raise memlock to unlimited where the job runs: `ulimit -l`, LimitMEMLOCK of the daemon that starts it, --ulimit memlock=-1 of the container"
    )


@kind(
    "transport",
    category="network",
    pattern=r"unhandled system error|ncclSystemError|No route to host|Network is unreachable|[Cc]onnect to \S+<\d+> (?:failed|returned)|socketStartConnect|SocketPollConnect|Net ?: Connect to|Call to ibv_\w+ failed",
    says="had an error of the network or the system in NCCL",
    known=False,
    strength=Strength.TRANSPORT,
    first=40,
    missing=("NCCL's own warning: NCCL_DEBUG=WARN", "the logs of the other hosts"),
)
def transport(case: Case) -> Iterator[Advice]:
    """ncclSystemError: a socket, memory or driver call failed; the text after `Last error:` is the last warning, if any."""
    yield Advice("run with NCCL_DEBUG=WARN (INFO for one start) to see the call that failed")


@kind(
    "nccl-internal",
    category="unknown",
    pattern=r"ncclInternalError|ncclInvalidUsage|ncclInvalidArgument|unhandled cuda error|ncclUnhandledCudaError|invalid usage|internal error",
    says="had an error inside NCCL ({matched})",
    rows=("python-exception", "nccl-abort", "cpp-terminate"),
    known=False,
    strength=Strength.TRANSPORT,
    first=41,
    missing=("NCCL's own warning: NCCL_DEBUG=WARN",),
)
def nccl_internal(case: Case) -> Iterator[Advice]:
    """NCCL refused a call or failed itself: different calls on different ranks, or a CUDA error before it."""
    yield Advice("run with NCCL_DEBUG=WARN, and TORCH_DISTRIBUTED_DEBUG=DETAIL to compare the calls of the ranks")


_PEER = (
    r"(?:[Cc]onnection closed by (?:remote )?peer|from peer|[Rr]ead error|writev|recv from|send to) \[?(?P<peer>[\w.-]+\w|[\da-f:]*:[\da-f:]+)\]?[:<]"
)
"""`Connection closed by peer [10.0.0.7]:44940`, `Net : Connection closed by remote peer node-3<49321>`"""


@kind(
    "peer-gone",
    category="network",
    pattern=r"(?i)ncclRemoteError|remote process exited|Connection closed by (?:remote )?peer|Connection reset by peer|Broken pipe|recvValue failed|sendBytes failed"
    r"|should dump\W+ flag|NCCL communicator was aborted|communicator encountered error|application timeout caused pair closure|Socket closed|store->get\(.*got error"
    r"|op\.preamble\.length|(?:with error |status=(?:IBV_WC_\w+\()?)\s?5\b|connection (?:was )?closed|The client socket has failed|EOF.*peer|DistNetworkError|DistStoreError.*(?:reset|closed)"
    r"|ConnectionResetError|BrokenPipeError|Transport endpoint is not connected",
    says="lost a peer",
    role=Role.CASCADE,
    known=False,
    strength=Strength.ECHO,
    first=30,
    missing=("the log of the peer: what it said before it was gone",),
)
def peer_gone(case: Case) -> Iterator[Advice]:
    """What the others notice when a process is gone: an echo, never the cause where anything else was said."""
    named = case.match(_PEER)
    if case.rank is not None or named:
        whose = (
            f"rank {case.rank}{f' on {case.host}' if case.host else ''}"
            if case.rank is not None
            else f"the process at {named['peer'] if named else ''}"
        )
        yield Advice(f"look for the log of {whose}; with no error there, for the kernel log of its host (`dmesg -T`) and the scheduler's accounting")
    else:
        yield Advice(
            "look for the rank whose log ends otherwise than with this; else at the kernel logs of the hosts (`dmesg -T`) and the scheduler's accounting"
        )


@kind(
    "collective-mismatch",
    category="code",
    pattern=r"(?i)op\.preamble\.length <= op\.nbytes|Detected mismatch between collectives|collective.*mismatch|Mismatched collective|mismatch in collective sizes",
    says="called collectives that do not match",
    strength=Strength.SYMPTOM,
    known=False,
    first=25,
    missing=("TORCH_DISTRIBUTED_DEBUG=DETAIL prints the calls that differ",),
)
def collective_mismatch(case: Case) -> Iterator[Advice]:
    """Two ranks sent different sizes, types or operations to the same place."""
    yield Advice("run a few steps with TORCH_DISTRIBUTED_DEBUG=DETAIL (DETAIL wraps gloo and NCCL and names the call that differs)")
    if "environment settings" in case.text:
        yield Advice("compare NCCL's settings (NCCL_* in the environment, its version) of the host that warns and of the peer that it names")
    yield Advice("in a pipeline compare the shapes of what the stages hand on: DeepSpeed sends the shapes of the first micro-batch only")
