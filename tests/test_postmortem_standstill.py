"""Runs that stand still without a timeout of their own: stacks of all ranks, GPUs that stay busy; and ranks that are in different calls."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import pipelog
from pipelog.report import Report

WAITS = {
    "recv": (
        "    recv (torch/distributed/distributed_c10d.py:1600)\n    recv (deepspeed/runtime/pipe/p2p.py:92)\n"
        "    _exec_{way} (deepspeed/runtime/pipe/engine.py:980)\n"
    ),
    "loader": "    poll (multiprocessing/popen_fork.py:27)\n    _try_get_data (torch/utils/data/dataloader.py:1132)\n    __next__ (loader.py:41)\n",
    "allreduce": "    all_reduce (torch/distributed/distributed_c10d.py:2219)\n    reduce (train.py:77)\n",
    "broadcast": "    broadcast (torch/distributed/distributed_c10d.py:1999)\n    share (train.py:71)\n",
    "synchronize": "    synchronize (torch/cuda/__init__.py:783)\n    loss_of (train.py:90)\n",
}


def dump(place: str, way: str = "recv_activations") -> str:
    frames = WAITS[place].format(way=way)
    return (
        'Process 4312: /usr/bin/python -u train.py\nPython v3.10.12 (/usr/bin/python3.10)\n\nThread 4312 (idle): "MainThread"\n'
        f'{frames}    <module> (train.py:120)\nThread 4400 (idle): "Thread-1"\n    wait (threading.py:324)\n    run (tqdm/_monitor.py:60)\n'
    )


def log(stages: int, last: datetime | None = None, steps: int = 3) -> str:
    """A launch, the map of a pipeline of one replica, and steps ten seconds apart of which the last ends at *last*."""
    last = last or datetime.fromisoformat("2024-05-01T10:00:30")
    ranks = ", ".join(f"ProcessCoord(pipe={n}, data=0): {n}" for n in range(stages))
    lines = [f"Using topology: {{{ranks}}}"]
    for n in range(1, steps + 1):
        at = last - timedelta(seconds=10 * (steps - n))
        lines.append(f"[{at:%Y-%m-%d %H:%M:%S},000] [INFO] [logging.py:96:log_dist] [Rank 0] step={n}, skipped=0, lr=[0.001], mom=[(0.9, 0.95)]")
        lines.append(f"steps: {n} loss: 2.5000 iter time (s): 10.000 samples/sec: 1.600")
    return "\n".join(lines) + "\n"


def report(folder: Path, files: dict[str, str]) -> Report:
    for name, text in files.items():
        (folder / name).write_text(text)
    return pipelog.diagnose(pipelog.read(folder))


def failure(found: Report) -> dict[str, Any]:
    assert found.failure is not None
    return found.failure


def test_the_rank_that_loads_data_while_its_neighbours_wait(tmp_path: Path) -> None:
    """Stage 0 loads; 1 to 3 wait for activations. Stage 1 waits for stage 0 itself: it is the root."""
    places = {0: "loader", 1: "recv", 2: "recv", 3: "recv"}
    found = report(tmp_path, {"train.log": log(4)} | {f"stack_rank{r}.txt": dump(p) for r, p in places.items()})
    assert found.run["status"] == "hung"
    verdict = failure(found)
    assert (verdict["category"], verdict["cause_known"], verdict["ranks"], verdict["stages"]) == ("hang", False, [0], [0])
    assert verdict["evidence"][0]["file"] == "stack_rank0.txt"
    assert verdict["evidence"][0]["line"] == 6  # _try_get_data
    assert verdict["title"].startswith("Rank 0 (stage 0) waited for its data loader: ranks 1, 2 and 3 in recv (pipe/p2p.py:92)")
    assert verdict["title"].endswith("rank 0 in _try_get_data (data/dataloader.py:1132)")
    assert not [
        a for a in verdict["advice"] if "--pid" in a["action"] or "dmesg" in a["action"]
    ]  # the stacks are there, and the host is not to blame
    assert not [m for m in verdict["missing"] if "py-spy" in m]
    assert [f.name for f in found.findings if f.severity.value == "error"] == ["run-hung"]


def test_who_makes_the_batch_itself_does_not_wait_for_its_loader(tmp_path: Path) -> None:
    """With num_workers=0 the data set is read in the main process: the frame that says where is the user's own."""
    frames = (
        "    __getitem__ (tokens/remote_shard.py:88)\n    fetch (torch/utils/data/_utils/fetch.py:52)\n"
        "    _next_data (torch/utils/data/dataloader.py:757)\n    __next__ (torch/utils/data/dataloader.py:701)\n"
    )
    own = dump("loader").replace(WAITS["loader"], frames)
    found = failure(report(tmp_path, {"train.log": log(4), "stack_rank0.txt": own} | {f"stack_rank{r}.txt": dump("recv") for r in (1, 2, 3)}))
    assert found["title"].startswith("Rank 0 (stage 0) was making a batch in its data loader: ")
    assert found["title"].endswith("rank 0 in __getitem__ (tokens/remote_shard.py:88)")


def test_what_is_called_from_the_loader_makes_the_batch_and_what_asks_its_workers_waits(tmp_path: Path) -> None:
    """Releases differ in the frames between: there is none of `fetch` here."""
    frames = (
        "    read_chunk (shards.py:88)\n    _next_data (torch/utils/data/dataloader.py:757)\n    __next__ (torch/utils/data/dataloader.py:701)\n",
        "    wait (threading.py:324)\n    get (queue.py:180)\n    _get_data (torch/utils/data/dataloader.py:1289)\n    _next_data (torch/utils/data/dataloader.py:1327)\n",
    )
    said = []
    for n, mine in enumerate(frames):
        folder = tmp_path / str(n)
        folder.mkdir()
        own = dump("loader").replace(WAITS["loader"], mine)
        verdict = failure(report(folder, {"train.log": log(4), "stack_rank0.txt": own} | {f"stack_rank{r}.txt": dump("recv") for r in (1, 2, 3)}))
        said.append((verdict["title"].partition(":")[0], verdict["evidence"][0]["text"].strip()))
    assert said == [
        ("Rank 0 (stage 0) was making a batch in its data loader", "read_chunk (shards.py:88)"),
        ("Rank 0 (stage 0) waited for its data loader", "_get_data (torch/utils/data/dataloader.py:1289)"),
    ]


SPAWNED = (
    "[2024-05-01 09:59:00,00{n}] [INFO] [launch.py:256:main] process {pid} spawned with command: ['python', '-u', 'train.py', '--local_rank={n}']\n"
)


def test_the_proofs_of_stacks_are_their_frames_and_the_line_that_says_whose_they_are(tmp_path: Path) -> None:
    """One file with the dumps of four processes, mixed by pdsh: the frames of one do not follow one another."""
    spawned = "".join(SPAWNED.format(n=n, pid=700 + n) for n in range(4))
    dumps = [dump("loader" if n == 2 else "recv", "recv_grads" if n < 2 else "recv_activations").replace("4312", str(700 + n)) for n in range(4)]
    lines = [[f"node-{n}: {line}" for line in text.splitlines()] for n, text in enumerate(dumps)]
    mixed = "\n".join(line for of_all in zip(*lines, strict=True) for line in of_all) + "\n"
    verdict = failure(report(tmp_path, {"train.log": spawned + log(4), "dumps.txt": mixed}))
    assert verdict["ranks"] == [2]
    assert [(e["file"], e["line"], e["text"]) for e in verdict["evidence"]] == [
        ("dumps.txt", 5 * 4 + 3, "node-2:     _try_get_data (torch/utils/data/dataloader.py:1132)"),
        ("train.log", 3, SPAWNED.format(n=2, pid=702).strip()),
        ("dumps.txt", 5 * 4 + 1, "node-0:     recv (deepspeed/runtime/pipe/p2p.py:92)"),
        ("dumps.txt", 5 * 4 + 4, "node-3:     recv (deepspeed/runtime/pipe/p2p.py:92)"),
    ]


@pytest.mark.parametrize("whose", [3, 1])
def test_one_stack_is_told_where_it_is_of_the_rank_that_is_waited_for(tmp_path: Path, whose: int) -> None:
    text = log(4) + "".join(watchdog(r, "ALLREDUCE", 500) for r in range(3))
    verdict = failure(report(tmp_path, {"train.log": text, f"stack_rank{whose}.txt": dump("synchronize")}))
    assert verdict["ranks"] == [3]
    mine = whose == 3
    assert verdict["title"].endswith("its stack shows it in synchronize (cuda/__init__.py:783)") == mine
    assert (verdict["evidence"][0]["file"] == "stack_rank3.txt") == mine
    assert any("py-spy" in a["action"] for a in verdict["advice"]) != mine


def test_who_says_how_far_it_was_when_another_one_s_call_timed_out_is_no_proof_and_is_counted_once(tmp_path: Path) -> None:
    """Rank 2 is named, for ranks 0, 1 and 3 wait in vain; each prints two lines more of the same failure."""
    told = "[rank{r}]:[E501 10:10:31.000000000 ProcessGroupNCCL.cpp:1746] [PG ID 0 PG GUID 0(default_pg) Rank {r}] {words}\n"
    dumped = "Received a dump signal due to a collective timeout from  rank 3 and we will try our best to dump the debug info. Last enqueued NCCL work: 500, last completed NCCL work: 499."
    noticed = "Observed flight recorder dump signal from another rank via TCPStore."
    hint = "Stack trace of the failed collective not found, potentially because FlightRecorder is disabled."
    lines = [told.format(r=r, words=dumped) for r in (0, 1)] + [watchdog(r, "ALLREDUCE", 500) for r in (0, 1, 3)]
    lines += [told.format(r=r, words=words) for words, ranks in ((noticed, (0, 1)), (hint, (0, 1, 3))) for r in ranks]
    verdict = failure(report(tmp_path, {"train.log": log(4) + "".join(lines)}))
    assert verdict["ranks"] == [2]
    assert not [e for e in verdict["evidence"] if "dump signal" in e["text"]]
    counted = {c["text"].rpartition("] ")[2][:12]: (c["count"], c["ranks"]) for c in verdict["consequences"]}
    assert counted["Observed fli"] == (2, [0, 1])
    assert counted["Stack trace "] == (3, [0, 1, 3])


def test_no_stack_is_asked_for_where_a_watchdog_is_silent_and_the_stacks_are_there(tmp_path: Path) -> None:
    text = log(4) + "".join(watchdog(r, "ALLREDUCE", 500) for r in range(3))
    files = {"train.log": text} | {f"stack_rank{r}.txt": dump("loader" if r == 3 else "allreduce") for r in range(4)}
    found = failure(report(tmp_path, files))
    assert (found["category"], found["ranks"]) == ("hang", [3])
    assert not [a for a in found["advice"] if "--pid" in a["action"]]
    assert [a for a in found["advice"] if a["action"].startswith("compare the stacks that are among the files: ")]


def test_of_two_that_are_elsewhere_the_one_that_is_waited_for(tmp_path: Path) -> None:
    """Rank 3 has no work for now and sits in its own loader; nobody waits for it. Ranks 1 and 2 wait for activations, 1 for those of rank 0."""
    places = {0: "loader", 1: "recv", 2: "recv", 3: "loader"}
    found = report(tmp_path, {"train.log": log(4)} | {f"stack_rank{r}.txt": dump(p) for r, p in places.items()})
    assert failure(found)["ranks"] == [0]


def elsewhere(*frames: str) -> str:
    """A dump whose main thread stands in these frames, of a schedule that is not DeepSpeed's."""
    return dump("allreduce").replace(WAITS["allreduce"], "".join(f"    {frame}\n" for frame in frames))


@pytest.mark.parametrize(
    ("third", "ranks"),
    [
        (
            (
                "read (objects/stream.py:118)",
                "collate (video.py:131)",
                "_next_data (torch/utils/data/dataloader.py:789)",
                "get_batch (trainers/utils.py:152)",
            ),
            [2],
        ),
        (("backward (kernels/scan.py:88)", "forward_step (megatron/core/pipeline_parallel/schedules.py:402)"), [2, 3]),  # it may compute
    ],
)
def test_who_loads_data_waits_for_nobody_and_who_waits_for_its_device_may(tmp_path: Path, third: tuple[str, ...], ranks: list[int]) -> None:
    device = ("synchronize (torch/cuda/__init__.py:985)", "dispatch_preprocess (megatron/core/transformer/moe/token_dispatcher.py:640)")
    stacks = {n: dump("allreduce") for n in (0, 1, 4, 5)} | {2: elsewhere(*third), 3: elsewhere(*device)}
    found = failure(report(tmp_path, {"train.log": log(6)} | {f"stack_rank{r}.txt": text for r, text in stacks.items()}))
    assert (found["category"], found["ranks"]) == ("hang", ranks)


def test_where_all_wait_nobody_is_named(tmp_path: Path) -> None:
    files = {f"stack_rank{r}.txt": dump("recv", "recv_grads" if r == 0 else "recv_activations") for r in range(4)}
    found = report(tmp_path, {"train.log": log(4)} | files)
    assert found.run["status"] == "hung"
    assert failure(found)["ranks"] == []


def test_one_in_another_collective_than_all_others(tmp_path: Path) -> None:
    files = {f"stack_rank{r}.txt": dump("broadcast" if r == 2 else "allreduce") for r in range(4)}
    assert failure(report(tmp_path, files))["ranks"] == [2]


@pytest.mark.parametrize("place", ["loader", "synchronize"])
def test_stacks_in_which_nobody_waits_for_anybody_show_no_hang(tmp_path: Path, place: str) -> None:
    """A profile of a run that works: nobody knows what a device waits for."""
    found = report(tmp_path, {"train.log": log(4)} | {f"stack_rank{r}.txt": dump(place) for r in range(4)})
    assert (found.run["status"], found.failure) == ("incomplete", None)


def test_stacks_beside_a_run_that_came_to_its_end(tmp_path: Path) -> None:
    done = log(4) + "".join(f"[2024-05-01 10:01:00,000] [INFO] [launch.py:348:main] Process {n} exits successfully.\n" for n in range(4))
    spawned = "".join(
        f"[2024-05-01 09:59:00,000] [INFO] [launch.py:256:main] process {n} spawned with command: ['python', 'train.py']\n" for n in range(4)
    )
    places = {0: "loader", 1: "recv", 2: "recv", 3: "recv"}
    found = report(tmp_path, {"train.log": spawned + done} | {f"stack_rank{r}.txt": dump(p) for r, p in places.items()})
    assert (found.run["status"], found.failure) == ("completed", None)


# ---- silence


def gpus(last: datetime, minutes: list[int], percent: int, devices: int = 2) -> str:
    rows = ["timestamp, index, utilization.gpu [%], memory.used [MiB]"]
    for m in minutes:
        rows += [f"{last + timedelta(minutes=m):%Y/%m/%d %H:%M:%S}.000, {d}, {percent} %, 61000 MiB" for d in range(devices)]
    return "\n".join(rows) + "\n"


LAST = datetime.fromisoformat("2024-05-27T10:26:06")


def test_gpus_that_stay_busy_after_the_last_line(tmp_path: Path) -> None:
    """Two hours of silence at steps of ten seconds: it hangs; nothing says why, or who."""
    found = report(tmp_path, {"train.log": log(2, LAST), "gpu.csv": gpus(LAST, [30, 60, 120], 100)})
    assert found.run["status"] == "hung"
    verdict = failure(found)
    assert (verdict["category"], verdict["cause_known"], verdict["confidence"], verdict["ranks"]) == ("hang", False, "low", [])
    assert ("gpu.csv", 2) in {(e["file"], e["line"]) for e in verdict["evidence"]}
    assert found.run["last_step"] == 3


@pytest.mark.parametrize(
    ("minutes", "percent"),
    [
        ([30, 60], 0),  # dead, or idle
        ([30, 60], 60),  # at work on something
        ([-5, 0, 2], 100),  # no longer than an evaluation may take
        ([30], 100),  # a single sample
    ],
)
def test_nothing_is_concluded(tmp_path: Path, minutes: list[int], percent: int) -> None:
    found = report(tmp_path, {"train.log": log(2, LAST), "gpu.csv": gpus(LAST, minutes, percent)})
    assert (found.run["status"], found.failure) == ("incomplete", None)


# ---- ranks in different calls


def watchdog(rank: int, op: str, size: int, *, seq: int = 40, group: str = "0") -> str:
    head = f"[rank{rank}]:[E ProcessGroupNCCL.cpp:563] "
    work = f"WorkNCCL(SeqNum={seq}, OpType={op}, NumelIn={size}, NumelOut={size}, Timeout(ms)=600000) ran for 600077 milliseconds before timing out."
    named = f"{head}[PG {group} Rank {rank}] Timeout at NCCL work: {seq}, last enqueued NCCL work: {seq}, last completed NCCL work: {seq - 1}.\n"
    return f"{head}[Rank {rank}] Watchdog caught collective operation timeout: {work}\n{named}"


def test_the_rank_that_makes_another_call(tmp_path: Path) -> None:
    text = "".join(watchdog(r, "BROADCAST" if r == 3 else "ALLREDUCE", 700 if r == 3 else 500) for r in range(4))
    verdict = failure(report(tmp_path, {"train.log": text}))
    assert verdict["ranks"] == [3]
    assert verdict["title"] == "Rank 3 made BROADCAST (NumelIn=700, NumelOut=700) as call 40, the others ALLREDUCE (NumelIn=500, NumelOut=500)"
    assert "OpType=BROADCAST" in verdict["evidence"][0]["text"]
    assert "OpType=ALLREDUCE" in verdict["evidence"][1]["text"]


@pytest.mark.parametrize(
    "text",
    [
        "".join(watchdog(r, "BROADCAST" if r > 1 else "ALLREDUCE", 500) for r in range(4)),  # two against two
        "".join(watchdog(r, "SEND" if r == 3 else "RECV", 500) for r in range(4)),  # p2p: each pair has calls of its own
        "".join(watchdog(r, "ALLREDUCE", 900 if r == 3 else 500, group="5" if r == 3 else "2") for r in range(4)),  # groups of two stages
        "".join(watchdog(r, "ALLREDUCE", 500) for r in range(4)),
    ],
)
def test_no_rank_is_named(tmp_path: Path, text: str) -> None:
    assert failure(report(tmp_path, {"train.log": text}))["ranks"] == []


def faulthandler(main: str) -> str:
    """What `faulthandler.dump_traceback_later` writes: threads without names, the one that was started first at the end."""
    thread = '  File "/opt/venv/lib/python3.10/threading.py", line 320 in wait\n  File "/opt/venv/lib/python3.10/site-packages/tqdm/_monitor.py", line 60 in run\n'
    return f"Timeout (0:20:00)!\nThread 0x00007f10b7fff640 (most recent call first):\n{thread}\nThread 0x00007f14c23ff740 (most recent call first):\n{main}"


ENGINE = (
    '  File "/opt/venv/lib/python3.10/site-packages/deepspeed/runtime/pipe/engine.py", line {} in _exec_{}\n  File "/job/train.py", line 90 in main\n'
)
RECV = '  File "/opt/venv/lib/python3.10/site-packages/torch/distributed/distributed_c10d.py", line 1640 in recv\n'


def test_stacks_of_threads_without_names(tmp_path: Path) -> None:
    """Ranks 0 and 1 wait for gradients, 3 for activations; 2 stands at a lock in its own forward pass."""
    stuck = '  File "/job/tok.py", line 88 in encode_locked\n'
    mains = [RECV + ENGINE.format(1102, "recv_grads")] * 2 + [
        stuck + ENGINE.format(703, "forward_pass"),
        RECV + ENGINE.format(1028, "recv_activations"),
    ]
    found = failure(report(tmp_path, {"train.log": log(4)} | {f"rank{r}.err": faulthandler(main) for r, main in enumerate(mains)}))
    assert (found["category"], found["ranks"], found["stages"]) == ("hang", [2], [2])
    assert "encode_locked" in found["title"]


def in_log(*mains: str, who: str = "[watch] rank {} pid 421{}\n") -> str:
    """The dumps of all ranks as a watcher writes them below the output of the job."""
    return "".join(
        f"{who.format(r, r)}Timeout (0:15:00)!\nThread 0x00007f14c23ff74{r} (most recent call first):\n{main}\n" for r, main in enumerate(mains)
    )


LOADER = '  File "/opt/venv/lib/python3.10/site-packages/torch/utils/data/dataloader.py", line 1131 in _try_get_data\n'
MAINS = (LOADER + ENGINE.format(842, "load_micro_batch"), *[RECV + ENGINE.format(1028, "recv_activations")] * 3)


@pytest.mark.parametrize("who", ["[watch] rank {} pid 421{}\n", "rank: {}, pid: 421{}\n\n", "[rank{}]: "])
def test_stacks_that_a_timer_asked_for_inside_a_log(tmp_path: Path, who: str) -> None:
    text = in_log(*MAINS, who="" if who == "[rank{}]: " else who)
    if who == "[rank{}]: ":
        text = "".join(f"[rank{r}]: {line}\n" for r, main in enumerate(MAINS) for line in in_log(main, who="").splitlines())
    found = failure(report(tmp_path, {"train.log": log(4, steps=400) + text}))
    assert (found["category"], found["ranks"], found["stages"]) == ("hang", [0], [0])
    assert found["title"].startswith("Rank 0 (stage 0) waited for its data loader: ")


def test_stacks_inside_a_log_that_show_no_hang(tmp_path: Path) -> None:
    """Of a timer that runs while steps are made, of processes that nobody names, and of a crash."""
    running = log(4) + in_log(*MAINS) + log(4).partition("\n")[2]
    crash = "".join(
        f"[watch] rank {r} pid 421{r}\nFatal Python error: Segmentation fault\n\nThread 0x00007f14c23ff74{r} (most recent call first):\n{m}\n"
        for r, m in enumerate(MAINS)
    )
    for n, text in enumerate((running, running + in_log(*MAINS), log(4) + in_log(*MAINS, who=""))):
        (tmp_path / str(n)).mkdir()
        assert report(tmp_path / str(n), {"train.log": text}).failure is None
    (tmp_path / "crash").mkdir()
    assert failure(report(tmp_path / "crash", {"train.log": log(4) + crash}))["category"] != "hang"
