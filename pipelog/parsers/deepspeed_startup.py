"""What the processes of a DeepSpeed job say of themselves while they start: accelerator, communication, versions, groups.

    [2024-09-08 23:02:41,542] [INFO] [real_accelerator.py:203:get_accelerator] Setting ds_accelerator to cuda (auto detect)
    [2024-09-08 23:02:56,095] [INFO] [comm.py:652:init_distributed] cdb=None
    [2024-09-08 23:02:56,095] [INFO] [comm.py:683:init_distributed] Initializing TorchBackend in DeepSpeed with backend nccl
    [2024-09-08 23:02:58,121] [INFO] [config.py:733:__init__] Config mesh_device None world_size = 1
    [2024-09-08 23:02:58,753] [INFO] [logging.py:96:log_dist] [Rank 0] DeepSpeed info: version=0.15.1, git-hash=unknown, git-branch=unknown

Logger lines (hidden by default since v0.17.6), without a rank but for the last one. Versions are words: their `value` is null.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from pipelog.parsers._facts import fact, joined
from pipelog.parsing import Block, Records, Row, Rows, block, records


@records("deepspeed-accelerator", mark="Setting ds_accelerator to ", pattern=r"^Setting ds_accelerator to (?P<name>\w+)")
def accelerator(found: Records) -> Iterator[Rows]:
    """Give the kind of device: once per process, the launcher's two among them (v0.9.3+)."""
    yield found.rows("fact", "accelerator", text=found["name"])


@records("deepspeed-comm-init", mark="cdb=", head=r"init_distributed\] $", pattern=r"^cdb=")
def comm_init(found: Records) -> Iterator[Rows]:
    """Give the start of communication: one row per process that came so far (v0.6.6+)."""
    yield found.rows("comm_init", "cdb")


# [2021-05-25 06:37:52,502] [INFO] [distributed.py:46:init_distributed] Initializing torch distributed with backend: nccl
@records(
    "deepspeed-backend",
    mark=("Initializing TorchBackend in DeepSpeed with backend ", "Initializing torch distributed with backend: "),
    pattern=r"^Initializing (?:TorchBackend in DeepSpeed|torch distributed) with backend:? (?P<name>[\w-]+)",
)
def backend(found: Records) -> Iterator[Rows]:
    """Give the communication backend: printed by rank 0 (v0.6.6+), before that by every process."""
    yield found.rows("fact", "backend", text=found["name"])


# Discovered MPI settings of world_rank=3, local_rank=3, world_size=8, master_addr=10.0.0.4, master_port=29500
@records(
    "deepspeed-discovery",
    mark=("Discovered MPI settings of ", "Discovered AzureML settings of ", "Discovered AWS SageMaker settings of "),
    pattern=r"^Discovered [\w ]+ settings of world_rank=(?P<rank>\d{1,9}), local_rank=(?P<local>\d{1,9}), world_size=(?P<size>\d{1,9})",
)
def discovery(found: Records) -> Iterator[Rows]:
    """Give a process's place as mpirun, AzureML or SageMaker told it: with those launchers the only line that says it."""
    rank = found.int("rank")
    yield found.rows("place", "discovery", rank=rank, label=joined("local ", found["local"]))
    yield found.rows("fact", "topology.world_size", rank=rank, value=found.float("size"), text=found["size"])


@records("deepspeed-info", mark="DeepSpeed info: version=", pattern=r"^DeepSpeed info: version=(?P<version>[^,\s]+)")
def info(found: Records) -> Iterator[Rows]:
    """Give the start of an engine and DeepSpeed's version."""
    yield found.rows("start", "engine")
    yield found.rows("fact", "version.deepspeed", text=found["version"])


@records("deepspeed-mesh", mark="Config mesh_device ", pattern=r"^Config mesh_device .* world_size = (?P<size>\d{1,9})\s*$")
def mesh(found: Records) -> Iterator[Rows]:
    """Give the data-parallel size, which this line calls world_size: every rank (v0.15.0+)."""
    yield found.rows("fact", "topology.dp", value=found.float("size"), text=found["size"])


_GROUP = re.compile(r"^\s*self\.(?P<name>dp_world_size|mp_world_size|seq_dp_world_size|sequence_parallel_size)=(?P<size>\d{1,9})\s*$")


# [...] [INFO] [engine.py:1372:_configure_distributed_model] ********** distributed groups summary **********
#          self.dp_world_size=2
#          self.mp_world_size=4
#          self.seq_dp_world_size=2
#          self.sequence_parallel_size=1
# ***********************************************
@block("deepspeed-groups", mark="********** distributed groups summary **********", most=40)
def groups(found: Block) -> Iterator[Row]:
    """Give the sizes of the process groups (v0.17.0+). mp_world_size counts pipeline times tensor ranks in a pipeline job."""
    lines = found.lines()
    next(lines)
    for number, text in lines:
        if text.startswith("*****"):
            return
        if group := _GROUP.match(text):
            name = "topology.dp" if group["name"] == "dp_world_size" else f"groups.{group['name']}"
            yield fact(name, group["size"], number)


_REPORT = {
    "torch version": "version.torch",
    "deepspeed info": "version.deepspeed",
    "torch cuda version": "version.cuda",
    "torch hip version": "version.hip",
    "nvcc version": "version.nvcc",
    "torch_npu version": "version.torch_npu",
    "ascend_cann version": "version.cann",
}


# torch version .................... 2.1.0a0+fe05266
# deepspeed info ................... 0.9.5, unknown, unknown
# torch cuda version ............... 12.1
@records(
    "deepspeed-report",
    mark=tuple(f"{name} ......." for name in _REPORT),
    pattern=r"^(?P<name>[\w ]+?) \.+ (?P<version>[^,\s]+)",
)
def report(found: Records) -> Iterator[Rows]:
    """Give the versions in ds_report's list, which Megatron-DeepSpeed prints at its start; what is None is left out."""
    known = found.where(pc.not_equal(found["version"], "None"))
    names = pa.array(list(_REPORT.values())).take(pc.index_in(known["name"], pa.array(list(_REPORT))))
    yield known.rows("fact", names, text=known["version"])


# shared memory (/dev/shm) size .... 503.76 GB
@records(
    "deepspeed-report-shm",
    mark="shared memory (/dev/shm) size ....",
    pattern=r"^shared memory \(/dev/shm\) size \.+ (?P<text>(?P<size>\d+(?:\.\d+)?) (?P<unit>[KMGT]?B)\b)",
)
def shared_memory(found: Records) -> Iterator[Rows]:
    """Give the size of /dev/shm in bytes, which NCCL and data loaders need."""
    yield found.rows("fact", "host.shm", bytes=found.bytes("size", "unit"), text=found["text"])


# NCCL version 2.21.5+cuda12.4
# torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:1333, …, NCCL version 2.18.6
@records("nccl-version", mark=("NCCL version ", "RCCL version "), pattern=r"^(?P<name>[NR]CCL) version (?P<version>\d+\.\d+[\w.+]*\w)")
def nccl(found: Records) -> Iterator[Rows]:
    """Give NCCL's version: printed once with NCCL_DEBUG, and in its error messages."""
    yield found.rows("fact", joined("version.", pc.utf8_lower(found["name"])), text=found["version"])
