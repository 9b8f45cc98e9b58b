"""The kernel's log, as dmesg, syslog and the journal give it: what it says of GPUs, network cards, memory, disks and killed processes.

    [Tue Mar  5 15:20:08 2024] NVRM: Xid (PCI:0000:3b:00): 79, pid=4312, name=python, GPU has fallen off the bus.
    [123456.789012] NVRM: Xid (0000:3b:00): 13, Graphics Exception: ESR 0x404600=0x80000002
    Mar  5 15:20:08 node7 kernel: [123456.789012] Memory cgroup out of memory: Killed process 4312 (python) total-vm:210763776kB, …

`[123456.789]` are seconds since the machine was started: no time, but kept in `value` where nothing else stands there. Syslog prints no
year (clock `log-yearless`). Lines must begin as the kernel's do; a few that other programs repeat are found behind other words, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pipelog.parsers._stamps import CTIME, ISO, SYSLOG, YEARLESS, iso_ns, when
from pipelog.parsing import Records, Rows, lines

_NAME = r"[A-Za-z0-9][\w.-]*"
BEFORE = (
    r"(?:\d+,\d+,\d+,[^;]+;|<\d{1,3}>)?(?:kern *: *[a-z]+ *: *)?"  # /dev/kmsg, raw dmesg, dmesg -x
    rf"(?:(?P<syslog>{SYSLOG})(?:\.\d+)? |(?:[A-Z][a-z]{{2}} )?(?P<iso>{ISO})(?:Z|[+-]\d\d:?\d\d)?(?: [A-Z]{{2,5}})? )?"
    rf"(?:(?:(?P<host>{_NAME}) )?(?:kernel|systemd[\w-]*(?:\[\d+\])?|earlyoom(?:\[\d+\])?): ?)?"
    rf"(?:(?:(?P<node>{_NAME}): ?)?(?:\[ *(?P<uptime>\d+\.\d+)\]|\[(?P<ctime>{CTIME})\]|\[(?:[A-Z][a-z]{{2}}\d\d \d\d:\d\d| *\+\d+\.\d+)\]) ?)?"  # dmesg, -T, -H
    r"(?:\[ *[TC]\d+\] ?)?"
)
"""What stands before a line of the kernel; `when_and_where` reads its groups."""
OR_REPEATED = r"(?: *Warning +)?[^\s'\"][^'\"]*?[ \]>]"
"""Other words before it: an event of Kubernetes, a script that checks the GPUs. No quotes, which would make it a sample of text."""


def when_and_where(found: Records) -> dict[str, Any]:
    """Columns start_ns, clock and host of lines that begin with `BEFORE`."""
    host = pc.coalesce(found["host"], found["node"], found.columns["host"])
    return when(found, iso="iso", ctime="ctime", syslog="syslog") | {"host": host}


@lines(
    "kernel-xid",
    mark="NVRM: Xid (",
    pattern=rf"^(?:{BEFORE}|{OR_REPEATED})NVRM: Xid \((?:PCI:)?(?P<pci>[0-9A-Fa-f:.]{{4,20}}[0-9A-Fa-f])[^)]*\): (?P<xid>\d{{1,5}})\b",
)
def xid(found: Records) -> Iterator[Rows]:
    """Give the number of an NVIDIA driver's error and the PCI address of its GPU."""
    yield found.rows("error", "kernel-xid", value=found.float("xid"), group=found["pci"], text=found["line"], **when_and_where(found))


# I0620 03:22:21.518402       1 health.go:185] XidCriticalError: Xid=79 on Device=GPU-8c1b5a5e-…; marking device as unhealthy.
@lines(
    "kernel-xid-device-plugin",
    mark="XidCriticalError: ",
    pattern=r"^(?:\S.*?[\] ])?XidCriticalError: Xid=(?P<xid>\d{1,5}) on (?:Device=(?P<device>[\w-]+)|all devices)\b",
)
def device_plugin(found: Records) -> Iterator[Rows]:
    """Give an Xid as NVIDIA's device plugin for Kubernetes passes it on (group: the GPU's UUID); it keeps those of applications to itself."""
    klog = pc.extract_regex(found.groups["line"], r"^[IWEF](?P<month>\d\d)(?P<day>\d\d) (?P<time>\d\d:\d\d:\d\d)")
    year = pc.binary_join_element_wise(*(klog.field(name) for name in ("month", "day")), "-")
    ns = iso_ns(pc.binary_join_element_wise(pc.binary_join_element_wise("1970", year, "-"), klog.field("time"), "T"))
    start = pc.coalesce(ns, found.columns["start_ns"])
    clock = pc.if_else(pc.is_valid(ns), pa.scalar(YEARLESS), found.columns["clock"])
    yield found.rows("error", "kernel-xid", value=found.float("xid"), group=found["device"], text=found["line"], start_ns=start, clock=clock)


# [Tue Mar  5 15:20:08 2024] Out of memory: Killed process 4312 (python) total-vm:210763776kB, anon-rss:204812344kB, file-rss:0kB, …
# [123456.789012] oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0-1,oom_memcg=/job_812345,task=python,pid=4312,uid=1000
# [123456.789012] python invoked oom-killer: gfp_mask=0x100cca(GFP_HIGHUSER_MOVABLE), order=0, oom_score_adj=0
# Warning  SystemOOM  3m  kubelet  System OOM encountered, victim process: python, pid: 4312
@lines(
    "kernel-oom",
    mark=(
        "ut of memory: Kill",
        "oom-kill:constraint=",
        " invoked oom-killer",
        "oom_reaper: reaped process ",
        "Killed process ",
        "System OOM encountered, victim process: ",
        "has been killed by the OOM killer",
        "systemd-oomd",
        "sending SIGKILL to process ",
        "sending SIGTERM to process ",
    ),
    pattern=(
        rf"^(?:{BEFORE}|{OR_REPEATED})(?:(?:Out of memory|Memory cgroup out of memory): Kill(?:ed)? process (?P<pid>\d{{1,12}})\b"
        r"|oom-kill:constraint=.*,pid=(?P<victim>\d{1,12})\b|\S+ invoked oom-killer: |oom_reaper: reaped process (?P<reaped>\d{1,12}) "
        r"|Killed process (?P<old>\d{1,12})(?:, UID \d+,)? \(\S+\) total-vm|System OOM encountered, victim process: \S+, pid: (?P<system>\d{1,12})"
        r"|\S+: A process of this unit has been killed by the OOM killer|Killed /\S+ due to memory |sending SIG(?:KILL|TERM) to process (?P<early>\d{1,12}) )"
    ),
)
def oom(found: Records) -> Iterator[Rows]:
    """Give a process that was killed for want of host memory (value: its pid, null where the line names none)."""
    pid = pc.coalesce(*(found.float(name) for name in ("pid", "victim", "reaped", "old", "system", "early")))
    yield found.rows("error", "kernel-oom", value=pid, text=found["line"], **when_and_where(found))


# python[4312]: segfault at 0 ip 00007f3c5a1b2c3d sp 00007ffd4b6a7c80 error 4 in libtorch_cpu.so[7f3c58000000+9e3a000]
# systemd-coredump[9999]: Process 4312 (python) of user 1000 dumped core.
# traps: python[4312] general protection fault ip:7f3c5a1b2c3d sp:7ffd4b6a7c80 error:0 in libc-2.31.so[7f3c59e00000+178000]
@lines(
    "kernel-segfault",
    mark=("]: segfault at ", "traps: ", " dumped core"),
    pattern=rf"^{BEFORE}(?:[^\s\[\]'\"]+\[(?P<pid>\d{{1,12}})\]: segfault at |traps: [^\s\[\]'\"]+\[(?P<trapped>\d{{1,12}})\] (?:general protection|trap )|Process (?P<dumped>\d{{1,12}}) \([^()]+\) of user \d+ dumped core)",
)
def segfault(found: Records) -> Iterator[Rows]:
    """Give a process (value: pid) that the processor refused to go on with; the text names the library."""
    pid = pc.coalesce(*(found.float(name) for name in ("pid", "trapped", "dumped")))
    yield found.rows("error", "kernel-segfault", value=pid, text=found["line"], **when_and_where(found))


# INFO: task python:4312 blocked for more than 120 seconds.
# watchdog: BUG: soft lockup - CPU#3 stuck for 22s! [python:4312]
@lines(
    "kernel-hung",
    mark=(" blocked for more than ", "BUG: soft lockup - CPU#"),
    pattern=(
        rf"^{BEFORE}(?:INFO: task \S+:(?P<pid>\d{{1,12}}) blocked for more than \d+ seconds"
        r"|(?:(?:NMI )?watchdog: )?BUG: soft lockup - CPU#\d+ stuck for \d+s!(?: \[\S+:(?P<stuck>\d{1,12})\])?)"
    ),
)
def hung(found: Records) -> Iterator[Rows]:
    """Give a process (value: pid) that waits in the kernel (storage, driver) or holds a processor there."""
    pid = pc.coalesce(found.float("pid"), found.float("stuck"))
    yield found.rows("error", "kernel-hung", value=pid, text=found["line"], **when_and_where(found))


_GPU = (
    r"NVRM: (?:GPU (?:at )?(?:PCI:)?(?P<pci>[0-9A-Fa-f:.]{4,20}[0-9A-Fa-f]):? .*fallen off the bus|(?:GPU \S+ )?RmInitAdapter failed"
    r"|A GPU crash dump has been created|API mismatch|The NVIDIA (?:GPU (?P<gone>[0-9A-Fa-f:.]+)\s*$|probe routine failed))"
    r"|(?:nvidia-nvswitch\d+: )?SXid \((?:PCI:)?(?P<switch>[0-9A-Fa-f:.]{4,20}[0-9A-Fa-f])\): \d+, (?:[^DS]|D[^a]|S[^e])"  # not its Data and Severity
    r"|\[drm:\w+(?:\.\w+)* \[amdgpu\]\] \*ERROR\* |amdgpu(?: (?P<amd>[0-9a-f:.]+))?: (?:amdgpu: )?(?:\[\w+\] )?(?:GPU reset|GPU recover|VRAM is lost|.*(?:page fault \("
    r"|[Uu]ncorrectable|HW exception|lost from the bus|ring \S+ timeout|[Ff]atal error|poison is consumed|unrecoverable state|\s*for process \S))"
    r"|\[drm\] GPU (?:recovery|HANG)"
)
_LINK = (
    r"mlx5_core \S+(?: \S+)?: (?:Link down|Port: \d+ Link DOWN|.*(?:health compromised|Health issue observed|Fatal error|handling bad device here|health recovery"
    r"|firmware internal error|module event\[error\]|timeout\. Will cause a leak|High temperature))"
    r"|(?P<port>mlx5_core \S+(?: \S+)?: (?:Port: \d+ Link ACTIVE|Link up|Port module event: module \d+, Cable unplugged))"
    r"|\S+ \S+ \S+: NIC (?:Copper )?Link is Down|\S+ [0-9a-f]{4}:[0-9a-f:.]{4,9}: (?:AER: |PCIe Bus Error: ).*(?:[Uu]ncorrect|[Ff]atal)"
)
_MEMORY = (
    r"(?:mce: |\{\d+\})?\[Hardware Error\]: |EDAC \S+ \d+ UE |EDAC \S+: (?:\d+ )?UE |EDAC \S+: (?:FATAL|UE)|Memory failure: 0x[0-9a-f]+: |mce: Uncorrected hardware memory error"
    r"|mce: CPU\d+: Core temperature|CPU\d+: (?:Core|Package) temperature(?:/speed)? above|Kernel panic - not syncing|BUG: unable to handle|Machine check"
)
_DISK = (
    r"(?:blk_update_request: |print_req_error: )?(?:critical (?:medium|target|space allocation) error|I/O error),? (?:dev )?\S+|Buffer I/O error on dev"
    r"|EXT4-fs error |EXT4-fs \(\S+\): (?:Remounting filesystem read-only|I/O error|failed)|XFS \(\S+\): .*(?:I/O error|[Cc]orruption|[Ss]hut(?:ting)? ?down|error -?\d+)"
    r"|nvme(?: \S+)?: (?:.*(?:I/O \d+.*timeout|controller is down|Removing after probe failure|Device not ready))"
)


# nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 30 LTSSM Fault Up
# mlx5_core 0000:3b:00.0: poll_health:829:(pid 0): device's health compromised - reached miss count
# amdgpu 0000:c1:00.0: amdgpu: [gfxhub0] no-retry page fault (src_id:0 ring:0 vmid:8 pasid:32770, for process python pid 4312 thread python pid 4312)
# amdgpu 0000:3d:00.0: amdgpu:  for process python3.12 pid 6810 thread python3.12 pid 6810)
# mce: [Hardware Error]: CPU 12: Machine Check: 0 Bank 7: 9c00000000010092
# blk_update_request: I/O error, dev nvme0n1, sector 1953525152 op 0x0:(READ) flags 0x80700
@lines(
    "kernel-hardware",
    mark=(
        "NVRM: ",
        "SXid (",
        "amdgpu",
        "[drm] GPU ",
        "mlx5_core ",
        "Link is Down",
        ": AER: ",
        "PCIe Bus Error: severity=",
        "[Hardware Error]: ",
        "EDAC ",
        "Memory failure: 0x",
        "mce: ",
        " temperature above threshold",
        "Kernel panic - not syncing",
        "BUG: unable to handle",
        "I/O error, dev ",
        "Buffer I/O error on dev",
        "critical medium error",
        "EXT4-fs ",
        "XFS (",
        "nvme nvme",
    ),
    pattern=rf"^(?:\s+NVRM: fallen off the bus|{BEFORE}(?:{_GPU}|{_LINK}|{_MEMORY}|{_DISK}))",
)
def hardware(found: Records) -> Iterator[Rows]:
    """Give a line that tells of hardware (group: PCI address of a GPU; value: seconds since the machine was started, where printed): as `kernel-port` one of a
    network port that is no fault by itself, as `kernel-gpu-process` one that names the process (value) whose work a GPU did.
    """
    group = _above(pc.coalesce(*(found[name] for name in ("pci", "gone", "switch", "amd"))), found)
    pid = pc.cast(
        pc.struct_field(pc.extract_regex(found["line"], r"amdgpu.*\bfor process [^,;]{0,80}?pid (?P<pid>[1-9]\d{0,11})\b"), "pid"), pa.float64()
    )
    name = pc.if_else(found.has("port"), "kernel-port", pc.if_else(pc.is_valid(pid), "kernel-gpu-process", "kernel"))
    value = pc.coalesce(pid, found.float("uptime"))
    yield found.rows("error", name, value=value, group=group, text=found["line"], **when_and_where(found))


_NAMED_WITHIN = 2
"""Lines above `NVRM: fallen off the bus` in which the driver names the GPU: it breaks its sentence into three."""


def _above(group: pa.Array, found: Records) -> pa.Array:
    """The addresses of GPUs, that of the first line of the driver's sentence also on its last."""
    ends = pc.fill_null(pc.match_substring_regex(found["line"], r"^\s+NVRM: fallen off the bus"), False)
    if not pc.any(ends).as_py():
        return group
    named = zip(found["gone"].to_pylist(), found.columns["line"].to_pylist(), strict=True)
    begins = {line: address for address, line in named if address is not None}
    each = zip(group.to_pylist(), ends.to_pylist(), found.columns["line"].to_pylist(), strict=True)
    return pa.array([begins.get(line - _NAMED_WITHIN) if end else address for address, end, line in each], pa.string())
