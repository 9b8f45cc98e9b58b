"""Nodes that are gone, and ranks that launchers name by node: PALS, Flux, and what clusters' prefixes call a node."""

from __future__ import annotations

from typing import Any

from tests.telling import read, traceback

STEPS = [f"steps: {n} loss: 4.2454 iter time (s): 4.318 samples/sec: 44.466" for n in (10, 20, 30)]
PALS = ["mpiexec -n 8 --ppn 4 --hosts x1c0,x1c1 --cpu-bind none python3 train.py --pipeline-model-parallel-size 2", *STEPS]
NODE = ["x1c1", "     Mom = x1c1.hsn.example.org", "     state = down,offline", "     comment = node down: communication closed"]


def verdict(files: dict[str, list[str]]) -> Any:
    return read(files)["deaths"][-1]


def test_the_rank_that_died_first_is_the_one_that_mpiexec_did_not_end() -> None:
    death = verdict({"run.log": [*PALS, "x1c1: rank 5 died from signal 9", "x1c0: rank 1 died from signal 15"]})
    assert (death.category, death.known, death.ranks, death.stages, death.hosts) == ("killed", False, (5,), (1,), ("x1c1",))


def test_a_node_whose_shepherd_died_takes_its_ranks_along() -> None:
    gone = ["x1c1: shepherd died from signal 9", "x1c0: rank 1 died from signal 15"]
    death = verdict({"run.log": [*PALS, *gone]})
    assert (death.category, death.known, death.ranks, death.hosts) == ("hardware.node", False, (4, 5, 6, 7), ("x1c1",))
    death = verdict({"run.log": [*PALS, *gone], "pbsnodes.txt": NODE})
    assert (death.category, death.known, death.ranks, death.stages) == ("hardware.node", True, (4, 5, 6, 7), (1,))


def test_a_node_that_is_down_and_that_nobody_misses_is_another_jobs() -> None:
    death = verdict({"run.log": [*PALS, "x1c1: rank 5 died from signal 9", "x1c0: rank 1 died from signal 15"], "pbsnodes.txt": NODE})
    assert (death.category, death.ranks) == ("killed", (5,))
    assert verdict({"run.log": PALS, "pbsnodes.txt": NODE}).category is None


def test_the_rank_of_a_flux_shell_is_that_of_a_node() -> None:
    run = ["# flux run -N2 -n8 python3 train.py --pipeline-model-parallel-size 4", "$ flux hostlist local", "node[180-181]", *STEPS]
    gone = ["612.744s: job.exception type=node-failure severity=0 node failure on node181 (shell rank 1)", "flux-job: task(s) Killed"]
    death = verdict({"flux.out": [*run, *gone]})
    assert (death.status, death.category, death.ranks, death.hosts) == ("failed", "hardware.node", (4, 5, 6, 7), ("node181",))
    lost = ["2025-05-06T18:50:33.118223Z broker.err[0]: node7 (rank 5) has disconnected unexpectedly, marking it LOST"]
    assert verdict({"flux.out": run, "flux-dmesg.txt": lost}).category is None


TOPOLOGY = "Using topology: {" + ", ".join(f"ProcessCoord(pipe={r // 4}, data={r % 4}): {r}" for r in range(8)) + "}"
OOM = (
    "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.75 GiB. GPU {} has a total capacty of 79.15 GiB of which 1.12 GiB is free."
)


def sky(node: int, *lines: str) -> list[str]:
    name, ip = ("head", "") if node == 0 else (f"worker{node}", f", ip=172.31.40.1{node}")
    return [f"({name}, rank={node}, pid=21{node}0{ip}) {line}" for line in lines]


def lost(rank: int) -> str:
    return f"[rank{rank}]:[E211 09:21:26.000000137 ProcessGroupNCCL.cpp:1182] [Rank {rank}] NCCL watchdog thread terminated with exception: NCCL error: remote process exited or there was a network error"


def test_skypilot_counts_nodes_and_a_gpu_is_that_of_the_node() -> None:
    def log(gpu: int, *others: str) -> dict[str, list[str]]:
        ready = [line for node in range(4) for line in sky(node, "loading the tokens", "torchrun --nproc_per_node 2")]
        begun = [*ready, *sky(0, TOPOLOGY), *sky(2, *traceback(OOM.format(gpu))), *others]
        return {"run.log": begun}

    death = verdict(log(1, *sky(3, lost(7)), *sky(1, lost(2))))
    assert (death.category, death.ranks, death.stages, death.hosts) == ("memory.gpu-oom", (5,), (1,), ("worker2",))
    assert verdict(log(0, *sky(3, lost(7)))).ranks == ()  # each process may see its own device alone
    assert verdict(log(1, *sky(3, lost(3)))).ranks == ()  # twice as many nodes, of which half say nothing


def test_a_replica_of_vertex_is_a_host() -> None:
    def said(host: str, *lines: str) -> list[str]:
        return [f"2024-04-12T06:00:00Z {host} ERROR {line}" for line in lines]

    hosts = ("workerpool0-0", "workerpool1-0")
    ready = [line for r in range(8) for line in said(hosts[r // 4], f"[rank init] local_rank={r % 4} global_rank={r} torch 2.2.1+cu121")]
    missing = traceback("ImportError: /cache/fused_adam.so: cannot open shared object file: No such file or directory")
    each = [line for _ in range(4) for line in said(hosts[1], *missing)]
    death = verdict({"stream.log": [*ready, *said(hosts[0], TOPOLOGY), *each]})
    assert (death.category, death.ranks, death.stages, death.hosts) == ("dependency", (4, 5, 6, 7), (1,), (hosts[1],))
    both = [line for host in hosts for _ in range(4) for line in said(host, *missing)]
    assert verdict({"stream.log": [*ready, *said(hosts[0], TOPOLOGY), *both]}).ranks == ()


def test_rays_prefix_names_the_process_which_says_its_rank_once() -> None:
    ready = [
        f"(WorkerDict pid={100 + r}, ip=node-{r // 4}) [2025-03-04 19:02:20] rank {r} world_size 8 local_rank {r % 4} NCCL_IB_HCA=mlx5"
        for r in range(8)
    ]
    died = [
        "(WorkerDict pid=105, ip=node-1) *** SIGSEGV received at time=1741117990 on cpu 61 ***",
        "(WorkerDict pid=105, ip=node-1) Fatal Python error: Segmentation fault",
    ]
    death = verdict({"driver.out": [*ready, *died]})
    assert (death.category, death.ranks, death.hosts) == ("killed", (5,), ("node-1",))
    assert verdict({"driver.out": [*(line.replace("rank 5 ", "rank 4 ") for line in ready), *died]}).ranks != (5,)


def test_a_rank_of_mpirun_with_time_and_tag_is_on_the_host_of_its_local_ranks() -> None:
    def tagged(rank: int, *lines: str) -> list[str]:
        return [f"Fri Aug 11 12:20:02 2023[1,{rank}]<stderr>:{line}" for line in lines]

    found = "[2023-08-11 12:19:58,120] [INFO] [comm.py:643:mpi_discovery] Discovered MPI settings of world_rank={}, local_rank={}, world_size=8, master_addr=10.40.4.1, master_port=29500"
    ready = [line for r in range(8) for line in tagged(r, found.format(r, r % 4))]
    hosts = [
        line
        for r, host in ((0, "tomte401"), (4, "tomte402"))
        for line in tagged(r, f"{host}:1850301:1850301 [0] NCCL INFO Bootstrap : Using eth0:10.40.4.{r}<0>")
    ]
    death = verdict(
        {"ompi.log": [*ready, *hosts, *tagged(0, TOPOLOGY), *tagged(7, *traceback("RuntimeError: CUDA error: uncorrectable ECC error encountered"))]}
    )
    assert (death.category, death.ranks, death.stages, death.hosts) == ("hardware.gpu", (7,), (1,), ("tomte402",))


def test_the_kernel_names_the_process_of_a_page_fault() -> None:
    spawned = (
        "[2024-11-19 03:00:01,600] [INFO] [launch.py:256:main] process {} spawned with command: ['/opt/python', '-u', 'train.py', '--local_rank={}']"
    )
    ready = ["[2024-11-19 03:00:01,600] [INFO] [launch.py:168:main] dist_world_size=8", *(spawned.format(6806 + r, r) for r in range(8)), TOPOLOGY]
    fault = [" 33%|████Memory access fault by GPU node-5 (Agent handle: 0x5a) on address 0x709843600000. Reason: Unknown.:54:01, 26.24s/it]"]
    kernel = ["[19277.975559] amdgpu 0000:3d:00.0: amdgpu: [mmhub0] no-retry page fault (src_id:0 ring:160 vmid:3 pasid:32790)"]
    process = ["[19277.975611] amdgpu 0000:3d:00.0: amdgpu:  for process python3.12 pid 6809 thread python3.12 pid 6809)"]
    death = verdict({"run.log": [*ready, *fault], "dmesg.txt": [*kernel, *process]})
    assert (death.kind, death.known, death.ranks) == ("gpu-fault", False, (3,))
    assert verdict({"run.log": [*ready, *fault], "dmesg.txt": kernel}).ranks == ()


def test_the_node_that_did_not_come_to_the_store_is_the_one_whose_log_says_nothing() -> None:
    late = traceback("torch.distributed.DistStoreError: Timed out after 901 seconds waiting for clients. 2/3 clients joined.")
    reset = traceback("torch.distributed.DistNetworkError: Connection reset by peer")
    begun = "[2024-07-01 12:00:04,110] [INFO] [real_accelerator.py:203:get_accelerator] Setting ds_accelerator to cuda (auto detect)"

    def death(stem: str, third: list[str]) -> Any:
        return verdict({f"{stem}1.out": [begun, *late], f"{stem}2.out": [begun, *reset], f"{stem}3.out": [begun, *third]})

    assert (death("trn-lab-", []).category, death("trn-lab-", []).hosts) == ("launch", ("trn-lab-3",))
    assert "2 of 3" in death("trn-lab-", []).title
    assert death("trn-lab-", reset).hosts == ()  # two of three came, and all say that they were there
    assert death("rank", []).hosts == ()


def test_colossalais_launcher_names_the_host_that_it_did_not_reach() -> None:
    failed = "Error: failed to run torchrun --nproc_per_node=8 train.py on gpu-{}, is localhost: False, exception: {}"
    late = traceback("torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError")
    ran = [failed.format(40, "Encountered a bad command exit code!")]
    death = verdict({"launch.out": [failed.format(48, "No authentication methods available"), *late, *ran]})
    assert (death.category, death.hosts, death.evidence[0].line) == ("launch", ("gpu-48",), 1)
    assert verdict({"launch.out": [*late, *ran]}).hosts == ()


def test_an_evicted_pod_takes_its_ranks_along() -> None:
    def pod(n: int, *lines: str) -> list[str]:
        return [f"Name:             pp-worker-{n}", f"Node:             gke-pool-{'abcd'[n]}/10.128.0.{n}", *lines, ""]

    message = "Pod ephemeral local storage usage exceeds the total limit of containers 500Gi."
    left = ["    State:          Terminated", "      Reason:       Error", "      Exit Code:    1"]
    gone = [
        "Status:           Failed",
        "Reason:           Evicted",
        f"Message:          {message} ",
        "Events:",
        f"  Warning  Evicted  109s  kubelet  {message}",
    ]
    described = [line for n in range(4) for line in pod(n, *(gone if n == 3 else left))]
    logs = {f"pods/pp-worker-{n}.log": [*([TOPOLOGY] if n == 0 else []), *([lost(2 * n)] if n in (0, 2) else ["loading"])] for n in range(4)}
    death = verdict({"describe.txt": described, **logs})
    assert (death.category, death.ranks, death.stages, death.hosts) == ("storage", (6, 7), (1,), ("gke-pool-d",))
    near = [line.replace("ephemeral local storage usage exceeds", "memory usage is near") for line in described]
    assert verdict({"describe.txt": near, **logs}).category != "storage"


def test_dlrovers_agent_says_which_node_it_is() -> None:
    join = "[2023-11-08 08:39:38,000] [INFO] [training.py:213:next_rendezvous] The node job-worker-{} attempts to join the next round of the rendezvous 'network-check' with timeout 600."
    fault = ["[2023-11-08 08:39:38,000] [ERROR] [run_network_check.py:96:main] CUDA error: uncorrectable NVLink error detected during the execution"]
    death = verdict({f"job-worker-{n}.log": [join.format(n), *(fault if n == 1 else [])] for n in range(3)})
    assert (death.category, death.hosts) == ("hardware.gpu", ("job-worker-1",))


def test_the_one_process_with_a_code_of_its_own_raised_what_names_no_rank() -> None:
    raised = [TOPOLOGY, *STEPS, *traceback("IndexError: index 5 is out of bounds")]
    left = [f"x1c1: rank {r} exited with code 1" for r in (6, 7)]
    assert verdict({"run.log": [*raised, left[0], "x1c0: rank 0 died from signal 15"]}).ranks == (6,)
    assert verdict({"run.log": [*raised, *left]}).ranks == ()  # several left with it


def test_jsrun_and_flux_name_the_process_that_ended_first() -> None:
    death = verdict({"out.log": [TOPOLOGY, *STEPS, "ERROR:  One or more process (first noticed rank 6) terminated with signal 11"]})
    assert (death.status, death.category, death.known, death.ranks) == ("failed", "killed", False, (6,))
    doom = ["112.4s: job.exception type=exec severity=0 rank 5 exited and exit-timeout=30s has expired", "flux-job: task(s) exited with exit code 1"]
    death = verdict({"flux.out": [TOPOLOGY, *STEPS, *doom]})
    assert (death.status, death.known, death.ranks) == ("failed", False, (5,))
