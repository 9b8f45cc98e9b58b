"""Whom a verdict names where the kind of failure mostly concerns the whole job, and on which node it was."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pipelog
from tests.telling import read, traceback

TOPOLOGY = "Using topology: {ProcessCoord(pipe=0, data=0): 0, ProcessCoord(pipe=0, data=1): 1, ProcessCoord(pipe=1, data=0): 2, ProcessCoord(pipe=1, data=1): 3}"
STEP = "[2024-03-05 14:10:10,101] [INFO] [logging.py:107:log_dist] [Rank 0] step=10, skipped=0, lr=[0.1], mom=[0.9]"
PEER = "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:2251, remote process exited or there was a network error"
SHAPE = "megatron.core.dist_checkpointing.core.CheckpointingException: Global shape mismatch for loaded (50304, 4096) and expected ((50432, 4096))"


def failure(folder: Path, lines: Sequence[str]) -> dict[str, Any]:
    (folder / "run.log").write_text("".join(f"{line}\n" for line in lines))
    found = pipelog.diagnose(pipelog.read(folder)).failure
    assert found is not None
    return dict(found)


def test_a_checkpoint_that_one_stage_could_not_load(tmp_path: Path) -> None:
    raised = [line for rank in (0, 1) for line in traceback(SHAPE, rank=rank)]
    found = failure(tmp_path, [TOPOLOGY, *raised, *traceback(PEER, rank=2), *traceback(PEER, rank=3)])
    assert (found["ranks"], found["stages"]) == ([0, 1], [0])
    assert found["title"].startswith("Ranks 0 and 1 (stage 0)")


def test_a_checkpoint_of_which_only_some_had_time_to_complain(tmp_path: Path) -> None:
    found = failure(tmp_path, [TOPOLOGY, *traceback(SHAPE, rank=0)])
    assert (found["ranks"], found["stages"]) == ([], [])
    assert found["title"].startswith("The job")


def test_a_module_that_is_missing_late(tmp_path: Path) -> None:
    missing = traceback("ModuleNotFoundError: No module named 'einops'", rank=2)
    assert failure(tmp_path, [TOPOLOGY, STEP, *missing])["ranks"] == [2]
    assert failure(tmp_path, [TOPOLOGY, *missing])["ranks"] == []  # at the start, all ask for it


CONTAINER = [
    "slurmstepd: error: pyxis: container start failed with error code: 1",
    "slurmstepd: error: pyxis: couldn't start container",
    "srun: error: pod2-17: task 3: Exited with exit code 1",
]


def test_a_container_that_one_node_could_not_start(tmp_path: Path) -> None:
    ended = [f"srun: error: pod2-1{n}: task {n}: Terminated" for n in range(3)]
    found = failure(tmp_path, [*CONTAINER, *ended])
    assert (found["hosts"], found["category"]) == (["pod2-17"], "launch")
    assert "on pod2-17" in found["title"]
    both = failure(tmp_path, [*CONTAINER, "srun: error: pod2-16: task 2: Exited with exit code 1"])
    assert both["hosts"] == []


PORT = (
    "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. port: 6000, code: -98, name: EADDRINUSE"
)


def test_a_port_that_one_rank_could_not_open(tmp_path: Path) -> None:
    found = failure(tmp_path, [TOPOLOGY, *traceback(PORT, rank=0)])
    assert (found["ranks"], found["category"]) == ([0], "launch")
    assert found["title"].startswith("Rank 0 ")
    every = failure(tmp_path, [TOPOLOGY, *(line for rank in range(4) for line in traceback(PORT, rank=rank))])
    assert every["ranks"] == []


BARRIER = "RuntimeError: Timed out initializing process group in store based barrier on rank: {}, for key: store_based_barrier_key:9 (world_size=4, worker_count=3, timeout=0:30:00)"


def test_who_did_not_come_to_the_barrier_of_the_store(tmp_path: Path) -> None:
    came = [traceback(BARRIER.format(rank)) for rank in (1, 2, 3)]
    found = failure(tmp_path, [TOPOLOGY, *(line for lines in came for line in lines)])
    assert (found["ranks"], found["cause_known"]) == ([0], False)
    some = failure(tmp_path, [TOPOLOGY, *came[0], *came[1]])  # the third that came is not known
    assert some["ranks"] == []


GLOO = "RuntimeError: [enforce fail at ../third_party/gloo/gloo/transport/tcp/device.cc:84] ifa != nullptr. Unable to find address for: ens9f1"


def ended(*ranks: int, host: str = "cpu-2", local: int = 2) -> list[str]:
    """torchrun's list of the processes that failed."""
    rows = [
        [
            f"[{n}]:",
            "  time      : 2024-03-05_14:12:13",
            f"  host      : {host}",
            f"  rank      : {r} (local_rank: {r % local})",
            f"  exitcode  : 1 (pid: {4000 + r})",
            "  error_file: <N/A>",
            "  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html",
        ]
        for n, r in enumerate(ranks)
    ]
    table = ["=" * 60, "train.py FAILED", "-" * 60, "Failures:", *(line for row in rows for line in row), "=" * 60]
    return [*traceback("torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ", "/opt/venv/bin/torchrun:8 <module>"), *table]


def test_as_many_tracebacks_as_processes_that_failed_on_a_host(tmp_path: Path) -> None:
    found = failure(tmp_path, [TOPOLOGY, *traceback(GLOO), *traceback(GLOO), *ended(2, 3)])
    assert (found["category"], found["ranks"], found["hosts"]) == ("network.config", [2, 3], ["cpu-2"])
    more = failure(tmp_path, [TOPOLOGY, *traceback(GLOO), *traceback(GLOO), *traceback(GLOO), *ended(2, 3)])
    assert more["ranks"] == []


STATE = "RuntimeError: Error(s) in loading state_dict for Stage:\n\tsize mismatch for head.weight: copying a param with shape (8, 4), the shape in current model is (9, 4)."


def test_the_weights_of_a_stage_that_the_launcher_saw_fail_alone(tmp_path: Path) -> None:
    tasks = ["srun: error: q1: task 3: Exited with exit code 1", "srun: error: q1: tasks 0-2: Terminated"]
    found = failure(tmp_path, [TOPOLOGY, *traceback(STATE, rank=3), *tasks])
    assert (found["ranks"], found["stages"]) == ([3], [1])
    all_ = failure(tmp_path, [TOPOLOGY, *traceback(STATE, rank=3), "srun: error: q1: tasks 0-3: Exited with exit code 1"])
    assert all_["ranks"] == []


def test_the_npu_of_a_single_host_is_its_local_rank(tmp_path: Path) -> None:
    text = "RuntimeError: NPU out of memory. Tried to allocate 2.44 GiB (NPU 3; 60.97 GiB total capacity; 57.02 GiB already allocated)"
    found = failure(tmp_path, [TOPOLOGY, *traceback(text), *ended(3, 1, local=4)])
    assert found["ranks"] == [3]
    other = failure(tmp_path, [TOPOLOGY, *traceback(text), *ended(2, 1, local=4)])
    assert other["ranks"] == []


def test_the_worker_that_ray_killed_is_known_by_its_process(tmp_path: Path) -> None:
    said = "(TorchTrainer pid=4411, ip=10.0.3.17) - (ip=10.0.3.19, pid={}) world_rank={}, local_rank={}, node_rank=1"
    killed = "Memory on the node (IP: 10.0.3.19, ID: 4f1a2b) where the task (actor ID: c2de, name=RayTrainWorker.__init__, pid={}, memory used=188.21GB) was running was 478.90GB"
    raised = traceback("ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.")
    lines = [TOPOLOGY, *(said.format(6100 + r, r, r) for r in range(4)), *raised]
    found = failure(tmp_path, [*lines, killed.format(6102)])
    assert (found["ranks"], found["hosts"], found["category"]) == ([2], ["10.0.3.19"], "host.oom")
    assert failure(tmp_path, [*lines, killed.format(7102)])["ranks"] == []


CHAIN = "Using topology: {" + ", ".join(f"ProcessCoord(pipe={n}, data=0): {n}" for n in range(4)) + "}"
ENGINE = "/opt/conda/lib/python3.10/site-packages/deepspeed/runtime/pipe/engine.py:1028 _exec_recv_activations"
KILLED = [
    "[2024-04-17 15:30:00,000] [INFO] [launch.py:256:main] process {} spawned with command: ['/opt/python', '-u', 'train.py', '--local_rank={}']",
    "[2024-04-17 15:52:59,658] [INFO] [launch.py:319:sigkill_handler] Killing subprocess {}",
]


def test_a_peer_that_was_lost_is_no_process_that_died(tmp_path: Path) -> None:
    """Rank 1 receives from rank 0 and rank 2 from rank 1: both lost a peer, and of rank 0 there is no line. Whether it died or its link did, nobody says."""
    begun = [KILLED[0].format(100 + n, n) for n in range(4)]
    lost = [*traceback(PEER, ENGINE, rank=1), *traceback(PEER, ENGINE, rank=2)]
    every = [f"[rank{n}]: step" for n in range(4)]
    found = failure(tmp_path, [*begun, CHAIN, STEP, *every, *lost, *(KILLED[1].format(100 + n) for n in range(4))])
    assert found["title"].startswith("Ranks 1 and 2 lost the connection to a peer; no line of rank 0 (stage 0")
    assert found["title"].endswith(", which rank 1 waited for, says why")
    assert (found["ranks"], found["cause_known"], found["confidence"]) == ([0], False, "medium")
    assert "rank 0" in found["advice"][0]["action"]
    assert "rank 0" in found["missing"][0]
    (down,) = [c for c in found["consequences"] if c["what"] == "was taken down with the rest"]
    assert down["ranks"] == [1, 2, 3]  # the launcher says so of each process, alive or not


def test_of_a_peer_that_nothing_names_nothing_is_said(tmp_path: Path) -> None:
    """All that could be the peer complain themselves."""
    found = failure(tmp_path, [CHAIN, STEP, *(line for n in range(4) for line in traceback(PEER, rank=n))])
    assert found["title"] == "Ranks 0-3 lost the connection to a peer; the lines do not say to which, nor why"
    assert found["ranks"] == []
    assert "the rank whose log ends otherwise" in found["advice"][0]["action"]


NODES = "w0: [2025-06-10 15:15:00,100] [INFO] [launch.py:162:main] global_rank_mapping=defaultdict(<class 'list'>, {'w0': [0, 1], 'w1': [2, 3]})"
FLASH = "ImportError: /venv/lib/flash_attn_2_cuda.so: undefined symbol: _ZN3c104cuda9SetDeviceEi"
KILLING = "{}: [2025-06-10 15:15:03,890] [INFO] [launch.py:319:sigkill_handler] Killing subprocess {}"


def on(host: str, *lines: str) -> list[str]:
    return [f"{host}: {line}" for line in lines]


def test_what_each_process_of_one_host_says_and_no_other(tmp_path: Path) -> None:
    """As many tracebacks without a rank as the host has ranks: its environment differs. Fewer, or of both hosts, and it is the job's."""
    ends = [KILLING.format(h, 50 + n) for n, h in enumerate(("w1", "w1", "w0", "w0"))]
    both = failure(tmp_path, [NODES, *on("w1", *traceback(FLASH)), *on("w1", *traceback(FLASH)), *ends])
    assert (both["ranks"], both["hosts"]) == ([2, 3], ["w1"])
    assert both["title"].startswith("Ranks 2 and 3 (w1) miss a dependency")
    one = failure(tmp_path, [NODES, *on("w1", *traceback(FLASH)), *ends])
    assert (one["ranks"], one["title"][:7]) == ([], "The job")
    every = failure(tmp_path, [NODES, *(line for h in ("w0", "w0", "w1", "w1") for line in on(h, *traceback(FLASH))), *ends])
    assert (every["ranks"], every["title"][:7]) == ([], "The job")


MAPPED = "[2025-06-10 15:15:00,100] [INFO] [launch.py:162:main] global_rank_mapping=defaultdict(<class 'list'>, {'ga': [0, 1], 'gb': [2, 3]})"
NODE = "[2025-06-10 15:15:00,090] [INFO] [launch.py:151:main] nnodes=2, num_local_procs=2, node_rank={}"
OOM = "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has a total capacty of 79.15 GiB of which 1.00 GiB is free."


def logs(folder: Path, files: dict[str, list[str]]) -> dict[str, Any]:
    folder.mkdir()
    for name, lines in files.items():
        (folder / name).write_text("".join(f"{line}\n" for line in lines))
    found = pipelog.diagnose(pipelog.read(folder)).failure
    assert found is not None
    return dict(found)


def test_the_gpu_of_a_node_s_own_log(tmp_path: Path) -> None:
    """GPU 1 of the second node is rank 3: the log's name or the launcher's own count of nodes says which node it is. A log of the whole job says nothing."""
    first, second = [NODE.format(0), MAPPED], [NODE.format(1), MAPPED, *traceback(OOM)]
    assert logs(tmp_path / "number", {"a.log": first, "b.log": second})["ranks"] == [3]
    assert logs(tmp_path / "name", {"launch_ga.log": [MAPPED], "launch_gb.log": [MAPPED, *traceback(OOM)]})["ranks"] == [3]
    assert logs(tmp_path / "whole", {"a.log": [*first, *second], "notes.log": ["Killed"]})["ranks"] == []


DISCOVERED = "[2024-04-04 04:00:00,794] [INFO] [comm.py:702:mpi_discovery] Discovered MPI settings of world_rank={}, local_rank={}, world_size=4, master_addr=10.1.5.4, master_port=29500"


def test_a_log_of_each_process_under_mpi(tmp_path: Path) -> None:
    """`out.HOST.PID`: the line of the discovery says whose log it is, and the names part the ranks into nodes."""
    files = {f"out.x3c0s{r // 2}b0.{40000 - 7 * r}": [DISCOVERED.format(r, r % 2)] for r in range(4)}
    files["out.x3c0s1b0.39979"] += traceback("ValueError: x")
    found = logs(tmp_path / "job", files)
    assert (found["ranks"], found["hosts"]) == ([3], ["x3c0s1b0"])


ON_HOST = ["[rank 0] pid 900 on mz1", "[rank 1] pid 901 on mz1", "[rank 2] pid 902 on mz2", "[rank 3] pid 903 on mz2"]
WORKER = "RuntimeError: DataLoader worker (pid 9982) is killed by signal: Killed. "
KERNEL = "[99120.001401] Memory cgroup out of memory: Killed process 9982 (pt_data_worker) total-vm:41200332kB, anon-rss:30110442kB, oom_score_adj:0"


def test_the_kernel_s_line_and_the_worker_of_a_data_loader(tmp_path: Path) -> None:
    """The kernel names a process that no launcher knows: the rank that lost it says its number. Its line is the proof, the scheduler's a count."""
    lines = [TOPOLOGY, *ON_HOST, *traceback(WORKER, rank=3), "slurmstepd: error: Detected 1 oom_kill event in StepId=88.0."]
    found = logs(tmp_path / "job", {"job.log": lines, "dmesg_mz2.txt": [KERNEL]})
    assert (found["category"], found["ranks"], found["hosts"]) == ("host.oom", [3], ["mz2"])
    assert ("dmesg_mz2.txt", 1) in [(e["file"], e["line"]) for e in found["evidence"]]


TAKEN = "2m11s       Normal    Preempted   pod/pretrain-worker-2      Preempted by pod 7b0a1c55-0f4e on node gke-pool-k2xd"


def test_the_node_that_was_taken(tmp_path: Path) -> None:
    found = logs(tmp_path / "job", {"train.log": [TOPOLOGY, STEP], "events.txt": [TAKEN]})
    assert (found["category"], found["hosts"]) == ("scheduler.preempted", ["gke-pool-k2xd"])
    assert found["title"] == "The job was preempted (pod pretrain-worker-2 was taken from it, on gke-pool-k2xd)"


IN_RECV = ("/job/t.py:9 main", "/venv/deepspeed/runtime/pipe/engine.py:1100 _exec_recv_grads")


def test_a_silent_neighbour_is_not_named_while_another_s_log_is_missing(tmp_path: Path) -> None:
    """Stages of two ranks: 0 waits for 2, which says nothing; but 3 waits for 5, whose host left no log."""
    eight = "Using topology: {" + ", ".join(f"ProcessCoord(pipe={r // 2}, data={r % 2}): {r}" for r in range(8)) + "}"
    hosts = [f"[rank {r}] pid {900 + r} on s{r // 4}" for r in range(8)]
    first = [eight, *hosts[:4], *traceback(PEER, *IN_RECV, rank=0), *traceback(PEER, *IN_RECV, rank=1)]
    alone = logs(tmp_path / "alone", {"s0.log": [*first, *traceback(PEER, *IN_RECV, rank=3)]})
    assert alone["ranks"] == []
    later = [*traceback(PEER, *IN_RECV, rank=5), *traceback(PEER, rank=7)]
    both = logs(tmp_path / "both", {"s0.log": [*first, *traceback(PEER, *IN_RECV, rank=3)], "s1.log": [*hosts[4:], *later]})
    assert both["ranks"] == [2]


OFF_THE_BUS = "Feb 14 05:03:50 gx-3 kernel: NVRM: GPU 0000:38:00.0: GPU has fallen off the bus."
WAITS = (
    "[rank{0}]:[E214 05:13:57.{0}87547137 ProcessGroupNCCL.cpp:632] [Rank {0}] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=91233, OpType=RECV, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600027 milliseconds before timing out."
)


def test_a_device_without_a_rank_is_that_of_the_only_one_that_waits_for_nobody(tmp_path: Path) -> None:
    eight = "Using topology: {" + ", ".join(f"ProcessCoord(pipe={r // 2}, data={r % 2}): {r}" for r in range(8)) + "}"
    stamped = "[2025-02-14 05:03:00,000] [INFO] [logging.py:96:log_dist] [Rank 0] step=10, skipped=0, lr=[0.1], mom=[0.9]"
    waits = [WAITS.format(r) for r in range(8)]
    one = logs(tmp_path / "one", {"train.log": [eight, STEP, stamped, *waits[:5], *waits[6:]], "gx-3.journal": [OFF_THE_BUS]})
    assert (one["category"], one["ranks"]) == ("hardware.gpu", [5])
    two = logs(tmp_path / "two", {"train.log": [eight, STEP, stamped, *waits[:4], *waits[6:]], "gx-3.journal": [OFF_THE_BUS]})
    assert (two["category"], two["ranks"]) == ("hardware.gpu", [])


TAGGED = "2019-06-02T16:29:{:02}.000Z: [1,{}]<stdout>:{}"
LOST = "h{}:{}:8612 [0] transport/net_ib.cu:80 NCCL WARN NET/IB : Got async event : local catastrophic error"
RETRIED = "h{}:{}:8612 [0] transport/net_ib.cu:774 NCCL WARN NET/IB : Got completion with error 12, opcode 129, len 32630, vendor err 129"
STAGES = "pipeline stages: 4 (ranks 0-1 | 2-3 | 4-5 | 6-7), data parallel 2"


def of_mpirun(stages: str) -> list[str]:
    """mpirun's tags behind a stamp that ends with a colon; ranks 6 and 7 lose their adapter, then those around them retry in vain."""
    begin = [TAGGED.format(10, 0, "using world size: 8 and model-parallel size: 2 "), TAGGED.format(10, 0, stages)]
    lost = [TAGGED.format(50, rank, LOST.format(3, 820 + rank)) for rank in (6, 7)]
    return [*begin, *lost, *(TAGGED.format(57, rank, RETRIED.format(rank // 2, 810 + rank)) for rank in (4, 5, 1))]


def test_the_stages_of_ranks_that_a_script_lists() -> None:
    death = read({"mpirun.out": of_mpirun(STAGES)})["death"]
    assert (death.ranks, death.stages) == ((6, 7), (3,))
    short = STAGES.replace(" | 6-7", "")  # three ranges are no four stages
    death = read({"mpirun.out": of_mpirun(short)})["death"]
    assert (death.ranks, death.stages) == ((6, 7), ())


EIGHT = "Using topology: {" + ", ".join(f"ProcessCoord(pipe={r // 2}, data={r % 2}): {r}" for r in range(8)) + "}"
CLOSED = "{}: [2025-05-17 08:14:20] cn-{}:30{}:1187 [0] socket.cc:858 NCCL WARN socketProgress: Connection closed by remote peer 10.0.0.7<39124>"
DOWN = ["srun: error: Node failure on cn-1", "srun: error: cn-2: tasks 0-1: Terminated", "srun: error: cn-5: tasks 2-3: Exited with exit code 1"]


def of_srun(*closed: tuple[int, int]) -> list[str]:
    steps = [f"0: steps: {n} loss: 2.1451 iter time (s): 3.109 samples/sec: 20.585" for n in range(10, 200, 10)]
    return [f"0: {EIGHT}", *steps, *(CLOSED.format(rank, host, rank) for rank, host in closed), *DOWN]


def test_the_ranks_of_the_node_that_is_missed_are_those_that_are_on_no_other(tmp_path: Path) -> None:
    """Tasks 0 and 1 on cn-2, 2 and 3 on cn-5 (as task 2 says itself), 7 on cn-3: cn-1 has the two that are left."""
    found = failure(tmp_path, of_srun((7, 3), (2, 5)))
    assert (found["ranks"], found["stages"], found["hosts"]) == ([4, 5], [2], ["cn-1"])


def test_of_two_nodes_without_ranks_none_is_told_apart(tmp_path: Path) -> None:
    assert failure(tmp_path, of_srun((2, 5)))["ranks"] == []  # ranks 4 to 7 may be on two nodes


def test_tasks_that_are_no_ranks_put_no_rank_on_a_host(tmp_path: Path) -> None:
    """Rank 2 speaks on cn-3, while srun's task 2 was on cn-5."""
    assert failure(tmp_path, of_srun((7, 3), (2, 3)))["ranks"] == []


PODS = [f"mpt-{r // 2} main [rank{r}]: {line}" for r in (0, 1, 3, 6) for line in traceback(PEER)]
EVICTED = [
    "Name:             {}",
    "Namespace:        perf",
    "Node:             gke-a3-pool-x4hk/10.128.0.71",
    "Status:           Failed",
    "Reason:           Evicted",
    "Message:          The node was low on resource: ephemeral-storage. Container main was using 264985124Ki, request is 0.",
]


def test_the_ranks_of_an_evicted_pod_are_those_of_the_number_that_is_missing(tmp_path: Path) -> None:
    (tmp_path / "describe.txt").write_text("\n".join(EVICTED).format("mpt-2") + "\n")
    found = failure(tmp_path, [f"mpt-0 main {EIGHT}", *PODS])
    assert (found["ranks"], found["stages"], found["hosts"]) == ([4, 5], [2], ["gke-a3-pool-x4hk"])


def test_a_pod_of_another_name_has_no_ranks(tmp_path: Path) -> None:
    (tmp_path / "describe.txt").write_text("\n".join(EVICTED).format("eval-2") + "\n")
    found = failure(tmp_path, [f"mpt-0 main {EIGHT}", *PODS])
    assert found["ranks"] == []


BUS = "ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory (shm)."
PIPEDREAM = "Stage: [{}] Epoch: [1][{}/10009]\tTime: 0.698 (0.684)\tEpoch time [hr]: 0.000 (1.902)\tMemory: 6.127 (7.204)"


def of_pipedream(stages: Sequence[int]) -> dict[str, list[str]]:
    logs = {f"rank{r}.log": [PIPEDREAM.format(stage, n) for n in (0, 100, 200)] for r, stage in enumerate(stages)}
    logs["rank1.log"] += [BUS, *traceback("RuntimeError: DataLoader worker (pid 325) is killed by signal: Bus error.")]
    return logs


def test_the_stage_that_a_rank_prints_with_its_progress() -> None:
    death = read(of_pipedream((0, 0, 1, 1)))["death"]
    assert (death.ranks, death.stages) == ((1,), (0,))
    death = read(of_pipedream((1, 1, 1, 1)))["death"]  # of stages one is 0
    assert (death.ranks, death.stages) == ((1,), ())
