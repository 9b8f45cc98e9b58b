"""Lines that show the same as the first one: whose memory was short, what the kernel says of a device, which word for an end is that of whom."""

from __future__ import annotations

import pandas as pd
import pytest

from pipelog.detectors.pl103_batch_arithmetic import batch_arithmetic
from pipelog.postmortem.deaths import Death
from pipelog.postmortem.proofs import of_its_end
from pipelog.tables import Tables
from tests.telling import read, traceback

SPAWNED = [
    f"[2024-03-05 15:00:00,{n:03}] [INFO] [launch.py:256:main] process {4300 + n} spawned with command: ['python', '-u', 'train.py', '--local_rank={n}']"
    for n in range(4)
]
WORLD = ["[2024-03-05 15:00:00,000] [INFO] [launch.py:171:main] dist_world_size=4"]
STEPS = [f"steps: {n} loss: 6.6 iter time (s): 2.630 samples/sec: 12.165" for n in (10, 20)]
DETECTED = "slurmstepd: error: Detected 1 oom_kill event in StepId=88.0. Some of the step tasks have been OOM Killed."
LOADER = "RuntimeError: DataLoader worker (pid 9982) is killed by signal: Killed."


def death(*lines: str, kernel: tuple[str, ...] = ()) -> Death:
    found: Death = read({"job.log": lines, **({"dmesg_mz2.txt": kernel} if kernel else {})})["deaths"][-1]
    return found


def killed(pid: int, name: str = "python", *, cgroup: bool = True) -> tuple[str, str]:
    """What the kernel says of a kill, in its two lines."""
    constraint = "MEMCG" if cgroup else "NONE"
    return (
        f"[99120.001124] oom-kill:constraint=CONSTRAINT_{constraint},nodemask=(null),cpuset=step_0,mems_allowed=0-7,task={name},pid={pid},uid=31",
        f"[99120.001401] {'Memory cgroup out' if cgroup else 'Out'} of memory: Killed process {pid} ({name}) total-vm:41200332kB, anon-rss:30110442kB",
    )


MEMORY = {
    "worker at the limit": (killed(9982, "pt_data_worker"), "lost a data-loader worker, which was killed at the memory limit of its cgroup"),
    "worker on a full host": (killed(9982, "python", cgroup=False), "lost a data-loader worker, which was killed because the host ran out of memory"),
    "the process itself": (killed(4301), "was killed at the memory limit of its cgroup"),
}


@pytest.mark.parametrize("name", MEMORY)
def test_a_kill_for_memory_says_whose_memory_and_which_process(name: str) -> None:
    kernel, words = MEMORY[name]
    found = death(*WORLD, *SPAWNED, *STEPS, *traceback(LOADER, rank=1), DETECTED, "srun: error: mz2: task 1: Exited with exit code 1", kernel=kernel)
    assert found.category == "host.oom"
    assert words in found.title
    assert ("--mem" in found.advice[0].action) == ("limit" in words)
    shown = {(e.file, e.line) for e in found.evidence}
    line = 2 + len(WORLD + SPAWNED + STEPS) + 2  # behind the head of the traceback and its frame of two lines
    assert (("job.log", line) in shown) == ("data-loader" in words)
    assert not any("ran out of memory" in c["what"] for c in found.consequences if kernel)


def test_slurm_counts_kills_and_does_not_say_whose_memory_was_short() -> None:
    found = death(*STEPS, DETECTED, "srun: error: mz2: task 1: Out Of Memory")
    assert found.category == "host.oom"
    assert found.title.endswith("was killed by the OOM killer")


XID = "[99120.001124] NVRM: Xid (PCI:0000:52:00): {xid}, pid={pid}, name=python, NVLink: fatal error detected on link 6"
NVLINK = traceback("RuntimeError: CUDA error: uncorrectable NVLink error detected during the execution", rank=2)


def test_the_kernel_s_word_for_a_broken_device_is_a_proof_and_no_consequence() -> None:
    found = death(*WORLD, *SPAWNED, *STEPS, *NVLINK, kernel=(XID.format(xid=74, pid=4302), XID.format(xid=45, pid=4302)))
    assert found.ranks == (2,)
    assert (found.evidence[0].file, found.evidence[0].line) == ("dmesg_mz2.txt", 1)
    assert [c["what"] for c in found.consequences if c["file"] == "dmesg_mz2.txt"] == ["had Xid 45 in the kernel log"]
    assert "nvidia-smi nvlink -e" in found.advice[0].action
    assert "ROW_REMAPPER" not in found.advice[0].action


def test_the_kernel_s_word_for_another_rank_s_device_is_no_proof() -> None:
    found = death(*WORLD, *SPAWNED, *STEPS, *NVLINK, kernel=(XID.format(xid=74, pid=4303),))
    assert found.ranks == (2,)
    assert {e.file for e in found.evidence} == {"job.log"}


MAPPED = "[2024-03-05 15:00:00,000] [INFO] [launch.py:163:main] global_rank_mapping=defaultdict(<class 'list'>, {'mz1': [0, 1, 2, 3], 'mz2': [4, 5, 6, 7]})"
WORLD_OF_TWO = "[2024-03-05 15:00:00,000] [INFO] [launch.py:171:main] dist_world_size=8"


def test_the_line_that_ties_a_process_to_its_rank_is_a_proof() -> None:
    found = death(*WORLD, *SPAWNED, *STEPS, kernel=killed(4302, cgroup=False))
    assert found.ranks == (2,)
    assert ("job.log", 1 + 3) in [(e.file, e.line) for e in found.evidence]
    assert not {("job.log", n) for n in (2, 3, 5)} & {(e.file, e.line) for e in found.evidence}


@pytest.mark.parametrize(("prefix", "shown"), [("", True), ("mz2: ", False)])
def test_the_line_that_says_where_a_rank_runs_is_a_proof_where_no_line_of_it_does(prefix: str, shown: bool) -> None:
    """Nothing but the map ties rank 6 to a host where no prefix does."""
    found = death(*(prefix + line for line in (MAPPED, WORLD_OF_TWO, *STEPS, *traceback("ValueError: no such token", rank=6))))
    assert (found.ranks, found.hosts) == ((6,), ("mz2",))
    assert (("job.log", 1) in {(e.file, e.line) for e in found.evidence}) == shown


def test_a_rank_that_says_itself_who_it_is_needs_no_map() -> None:
    found = death(*WORLD, *SPAWNED, *STEPS, *traceback("ValueError: no such token", rank=2))
    assert [e.line for e in found.evidence] == [1 + 4 + 2 + 4]


def test_who_had_ended_before_the_others_were_taken_down_is_shown_with_its_neighbours_and_its_map() -> None:
    ready = [f"[rank {n}] pid {4410 + n} host mz1 device cuda:{n} ready" for n in range(8)]
    closed = [
        f"W1010 19:01:34.784000 4390 torch/distributed/elastic/multiprocessing/api.py:897] Sending process {4410 + n} closing signal SIGTERM"
        for n in range(8)
        if n != 6
    ]
    found = death(*ready, *STEPS, *closed)
    assert found.ranks == (6,)
    assert [e.line for e in found.evidence] == [8 + 2 + 4, 8 + 2 + 5, 8 + 2 + 6, 8 + 2 + 7, 7]


@pytest.mark.parametrize(("said", "kind"), [("Fatal", "gpu-broken"), ("Nonfatal", "xid-application")])
def test_of_nvlink_s_events_the_fatal_ones_are_of_a_broken_device(said: str, kind: str) -> None:
    roles = death(
        *STEPS, kernel=(f"May 14 09:16:37 mz2 kernel: NVRM: Xid (PCI:0000:97:00): 145, RLW_RXPIPE {said} XC0 i0 Link 13 (0x0409a0c2)",)
    ).roles
    assert roles["error"].tolist() == [kind]


def test_the_word_for_the_end_is_that_of_the_rank_that_began_it() -> None:
    codes = pd.DataFrame({"code": [1.0, 1.0, None], "rank": [0, 2, 3], "host": ["mz1", "mz2", "mz3"], "line": [12, 13, 14]})
    told = [of_its_end(codes, ranks, hosts) for ranks, hosts in (((2,), ("mz2",)), ((3,), ("mz3",)), ((), ()))]
    assert [None if row is None else row["line"] for row in told] == [13, None, 12]


CODE = (
    "mz2: [2024-03-05 15:14:16,085] [ERROR] [launch.py:434:sigkill_handler] ['python', '-u', 'main.py', '--local_rank=3'] exits with return code = -9"
)


def test_the_launcher_s_command_is_said_to_be_that_of_the_last_process() -> None:
    found = death(*STEPS, CODE.removeprefix("mz2: "))
    assert (found.kind, found.ranks) == ("killed", ())
    assert any("of the last process that it started" in m for m in found.missing)
    assert found.title.endswith("; --local_rank=3 is the process that the launcher started last, whichever died")


def test_the_step_that_slurm_cancels_for_a_node_is_a_proof() -> None:
    step = "slurmstepd: error: *** STEP 9.0 ON mz1 CANCELLED AT 2024-03-05T17:09:06 DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***"
    found = death(*STEPS, "srun: error: Node failure on mz7", step)
    assert found.hosts == ("mz7",)
    assert [e.line for e in found.evidence][:2] == [3, 4]


def batch_refused(*ranks: int) -> Tables:
    words = "AssertionError: Check batch related parameters. train_batch_size is not equal to micro_batch_per_gpu * gradient_acc_step * world_size 256 != 2 * 16 * 4"
    hosts = [
        f"w{n}: [2024-03-05 15:00:00,001] [INFO] [launch.py:256:main] process {800 + r} spawned with command: ['python', '-u', 'train.py', '--local_rank={r}']"
        for n in (1, 2)
        for r in (0, 1)
    ]
    info = [
        f"w{n}: [2024-03-05 15:00:00,000] [INFO] [launch.py:{line}:main] {text}"
        for n in (1, 2)
        for line, text in (
            (151, f"nnodes=2, num_local_procs=2, node_rank={n - 1}"),
            (162, "global_rank_mapping=defaultdict(<class 'list'>, {'w1': [0, 1], 'w2': [2, 3]})"),
            (163, "dist_world_size=4"),
        )
    ]
    return read({"job.log": [*info, *hosts, *(f"w{1 + r // 2}: {line}" for r in ranks for line in traceback(words, rank=r))]})


def arithmetic(tables: Tables) -> tuple[str, tuple[str, ...]]:
    """What PL103 says, and of which hosts."""
    (finding,) = batch_arithmetic(*(tables[name] for name in ("config", "topology", "placed", "facts", "steps")))
    return finding.title, finding.where.hosts


def test_what_one_host_alone_refuses_is_compared_with_the_others() -> None:
    tables = batch_refused(2, 3)
    found = tables["deaths"][-1]
    title, hosts = arithmetic(tables)
    assert (title.endswith("= 128; only w2 says so"), hosts) == (True, ("w2",))
    assert found.hosts == ("w2",)
    assert len(found.advice) == 1
    assert "only w2" in found.advice[0].action


def test_what_all_refuse_is_put_right() -> None:
    tables = batch_refused(0, 1, 2, 3)
    assert "set train_batch_size to 128" in tables["deaths"][-1].advice[0].action
    title, hosts = arithmetic(tables)
    assert (title.endswith("= 128"), hosts) == (True, ())


def test_of_an_error_of_nccl_the_words_below_last_error_are_the_proof() -> None:
    """The lines of two ranks stand one in another: each message is found by its own prefix."""
    said = "torch.distributed.DistBackendError: NCCL error in: ../ProcessGroupNCCL.cpp:2006, remote process exited or there was a network error, NCCL version 2.20.5"
    more = "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.\nLast error:\nsocketProgress: Connection closed by remote peer 10.6.0.{n}<4000{n}>"
    both = [traceback(f"{said}\n{more.format(n=n)}", rank=n) for n in (0, 1)]
    found = death(*STEPS, *(line for pair in zip(*both, strict=True) for line in pair))
    assert [e.line for e in found.evidence][:3] == [2 + 2 * 6 + 1, 2 + 2 * 3 + 1, 2 + 2 * 6 + 2]
