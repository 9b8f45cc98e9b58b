"""Failures of the start, and of those who take a job down: whose fault it is, and whose it is not."""

from __future__ import annotations

from pipelog.postmortem.deaths import Death
from tests.telling import read, traceback

MAP = ", ".join(f"ProcessCoord(pipe={s}, data={d}): {s * 2 + d}" for s in range(4) for d in range(2))
HEAD = [
    f"Using topology: {{{MAP}}}",
    "[2024-03-05 15:10:00,000] [INFO] [logging.py:107:log_dist] [Rank 0] steps: 10 loss: 9.1 iter time (s): 1.0 samples/sec: 4.0",
]
LAUNCHER = ["/opt/conda/bin/deepspeed:6 <module>", "/opt/conda/lib/python3.8/site-packages/deepspeed/launcher/runner.py:548 sigkill_handler"]
ITS_OWN = traceback("NameError: free variable 'kill_cmd' referenced before assignment in enclosing scope", *LAUNCHER)


def verdict(files: dict[str, list[str]]) -> Death:
    death: Death = read(files)["death"]
    return death


def test_what_the_launcher_raises_behind_ctrl_c_is_not_the_end() -> None:
    stopped = traceback("KeyboardInterrupt", "/job/train.py:40 main")
    death = verdict(
        {
            "train.log": [
                *HEAD,
                *stopped,
                "[2024-03-05 15:11:00,000] [INFO] [launch.py:437:sigkill_handler] Main process received SIGINT, exiting",
                *ITS_OWN,
            ]
        }
    )
    assert (death.status, death.category) == ("cancelled", "scheduler.cancelled")


def test_what_the_launcher_raises_behind_a_kill_is_not_the_cause() -> None:
    killed = "[2024-03-05 15:11:00,000] [ERROR] [launch.py:330:sigkill_handler] ['/opt/conda/bin/python', '-u', 'train.py', '--local_rank=3'] exits with return code = -9"
    death = verdict({"train.log": [*HEAD, killed, *ITS_OWN]})
    assert (death.status, death.category, death.known) == ("failed", "killed", False)


def test_what_it_raises_by_itself_is() -> None:
    death = verdict({"train.log": [*HEAD[:1], *ITS_OWN]})
    assert (death.status, death.kind) == ("failed", "engine")


def node(name: str, rank: int, ended: str, *lines: str) -> list[str]:
    own = [
        f"+ torchrun --nnodes 2 --nproc_per_node 4 --node_rank {rank} --master_addr 10.3.0.1 --master_port 6001 train.py",
        *lines,
        f"[{ended}] torch.distributed.elastic.multiprocessing.api: [ERROR] failed (exitcode: 1) local_rank: 2 (pid: 3352) of binary: /usr/bin/python3",
    ]
    return [f"{name}: {line}" for line in own]


TIMED_OUT = "torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients. 4/8 clients joined."
MISSING = "ImportError: /opt/lib/flash_attn_2_cuda.so: undefined symbol: _ZN2at4_ops9_pad_enum4callE"


def test_the_node_that_waited_in_vain_is_of_the_attempt_of_the_one_that_broke() -> None:
    """Ten minutes later, and with no time of its own before: no second start, and the import was there first."""
    a = node("node-a", 0, "2024-03-08 10:10:14,200", *traceback(TIMED_OUT, "/job/train.py:224 init"))
    b = node("node-b", 1, "2024-03-08 10:00:13,200", *traceback(MISSING, "/job/train.py:8 <module>"))
    tables = read({"node-a.log": a, "node-b.log": b})
    assert tables["attempts"].count == 1
    death: Death = tables["death"]
    assert (death.category, death.evidence[0].file) == ("dependency", "node-b.log")


def test_a_second_start_of_the_same_host_is_one() -> None:
    first = node("node-a", 0, "2024-03-08 10:00:13,200", *traceback(MISSING, "/job/train.py:8 <module>"))
    again = node("node-a", 0, "2024-03-08 10:10:14,200", *traceback(TIMED_OUT, "/job/train.py:224 init"))
    assert read({"a/node-a.log": first, "b/node-a.log": again})["attempts"].count == 2


def refused(*ranks: int) -> list[str]:
    """These ranks can not use the weights of the checkpoint."""
    text = "RuntimeError: Error(s) in loading state_dict for GPTModel:\n\tsize mismatch for embedding.word_embeddings.weight: copying a param"
    lines = [HEAD[0]]
    for rank in ranks:
        lines += [*traceback(text.partition("\n")[0], "/job/train.py:22 main", rank=rank), f"[rank{rank}]: {text.partition(chr(10))[2]}"]
    return lines


def test_all_ranks_of_some_stages_are_named() -> None:
    """Stages 0 and 3 have the embedding and the head: ranks 0, 1, 6, 7 of eight."""
    death = verdict({"train.log": refused(0, 7, 1, 6)})
    assert (death.category, death.ranks, death.stages) == ("checkpoint", (0, 1, 6, 7), (0, 3))


def test_those_who_came_first_are_not() -> None:
    death = verdict({"train.log": refused(0, 6, 3)})
    assert (death.category, death.ranks) == ("checkpoint", ())


def loopback(rank: int) -> str:
    said = "Warning: Unable to resolve hostname to a (local) address. Using the loopback address as fallback. Manually set the network interface"
    return f"gpu-08: [rank{rank}]:[W802 08:48:06.010000219 ProcessGroupGloo.cpp:721] {said}"


def hosts(*lines: str) -> list[str]:
    return [f"gpu-07: {HEAD[0]}", *lines]


def raised(text: str, host: str, rank: int) -> list[str]:
    return [f"{host}: {line}" for line in traceback(text, "/job/train.py:22 main", rank=rank)]


MESH = "RuntimeError: Gloo connectFullMesh failed with [../third_party/gloo/gloo/transport/tcp/pair.cc:144] no error"


def test_the_host_that_listens_on_its_loopback_is_the_one() -> None:
    lines = hosts(loopback(4), loopback(5), *raised(MESH, "gpu-07", 0), *raised(MESH, "gpu-08", 4), *raised(MESH, "gpu-07", 1))
    death = verdict({"train.log": lines})
    assert (death.category, death.hosts) == ("network.config", ("gpu-08",))


def test_the_loopback_is_harmless_where_gloo_was_connected() -> None:
    lines = hosts(loopback(4), loopback(5), *raised("ValueError: no such split", "gpu-07", 0))
    death = verdict({"train.log": lines})
    assert (death.category, death.ranks) == ("code", (0,))


def test_without_it_all_that_is_known_is_that_they_were_not_connected() -> None:
    death = verdict({"train.log": hosts(*raised(MESH, "gpu-07", 0), *raised(MESH, "gpu-08", 4))})
    assert (death.category, death.known, death.ranks) == ("network", False, ())


FULL = traceback("OSError: [Errno 122] Disk quota exceeded", "/job/train.py:214 main")


def first_failed(local: int) -> str:
    return (
        f"ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: 1) local_rank: {local} (pid: 2391{local}) of binary: /usr/bin/python"
    )


def test_torchrun_names_the_process_of_the_only_traceback() -> None:
    begun = ["INFO:torch.distributed.elastic.agent.server.api:[default] Rendezvous complete for workers. Result:"]
    shape = [
        "  restart_count=0",
        "  group_rank=0",
        "  group_world_size=1",
        "  local_ranks=[0, 1, 2, 3, 4, 5, 6, 7]",
        "  global_ranks=[0, 1, 2, 3, 4, 5, 6, 7]",
    ]
    death = verdict({"train.log": [*begun, *shape, *HEAD, *FULL, first_failed(4)]})
    assert (death.category, death.ranks, death.stages) == ("storage", (4,), (2,))


def test_of_two_agents_either_may_have_had_it() -> None:
    one, other = (f"node-{n}: {line}" for n, line in ((1, first_failed(4)), (2, first_failed(3))))
    death = verdict({"train.log": [*HEAD, *FULL, one, other]})
    assert (death.category, death.ranks) == ("storage", ())


def test_what_python_can_only_print_ends_nothing() -> None:
    """An exception in a finalizer, after the last step of a log that says no more: the log stops, and nothing failed."""
    ignored = ["Exception ignored in sys.unraisablehook: <built-in function unraisablehook>", *traceback("BrokenPipeError: [Errno 32] Broken pipe")]
    assert verdict({"train.log": [*HEAD, *ignored]}).status == "incomplete"
    assert verdict({"train.log": [*HEAD, *ignored, "exit status of torchrun: 0"]}).status == "completed"
    assert verdict({"train.log": [*HEAD, *ignored, "exit status of torchrun: 1"]}).status == "failed"


def test_the_rendezvous_is_closed_after_the_end_and_is_not_its_cause() -> None:
    gone = "W1009 14:20:54.010000 588 torch/distributed/elastic/rendezvous/dynamic_rendezvous.py:1341] The node 'a_588_0' has failed to shutdown the rendezvous"
    death = verdict(
        {"node0.out": [f"{gone} 'none' due to an error of type RendezvousConnectionError."], "node1.out": traceback("ValueError: x", rank=4)}
    )
    assert (death.category, death.ranks) == ("code", (4,))


def started(minute: int, step: int) -> list[str]:
    at = f"2023-07-26 00:{minute:02}"
    return [
        f"[{at}:40,867] [INFO] [real_accelerator.py:219:get_accelerator] Setting ds_accelerator to cuda (auto detect)",
        f"[{at}:41,967] [WARNING] [runner.py:215:fetch_hostfile] Unable to find hostfile, will proceed with training with local resources only.",
        f"[{at}:41,969] [INFO] [runner.py:607:main] cmd = /venv/bin/python -u -m deepspeed.launcher.launch train.py",
        f"[{at}:42,971] [INFO] [launch.py:146:main] WORLD INFO DICT: {{'localhost': [0, 1, 2, 3, 4, 5, 6, 7]}}",
        f"[{at}:50,000] [INFO] [logging.py:107:log_dist] [Rank 0] steps: {step} loss: 9.1 iter time (s): 1.0 samples/sec: 4.0",
        f"[{at}:59,865] [ERROR] [launch.py:325:sigkill_handler] ['/venv/bin/python', 'train.py', '--local_rank=7'] exits with return code = 1",
    ]


def test_what_a_launcher_says_before_its_command_is_of_its_attempt() -> None:
    """The second start begins at 00:30:40 with line 7, not with the command in line 9: the first one ended at 00:10:59."""
    segments = read({"train.log": [*started(10, 10), *started(30, 20)]})["attempts"].segments
    assert segments["first_line"].tolist() == [0, 7]


def test_gloo_s_barrier_is_called_by_its_name() -> None:
    waits = "[default0]:RuntimeError: [Rank 0]: Ranks 5 failed to pass monitoredBarrier in 1800000 ms"
    tables = read({"train.log": [*HEAD, *traceback(waits.partition("]:")[2], rank=0)]})
    assert "monitored barrier names it" in tables["death"].title
    assert "desync" not in tables["death"].title
    advice = [a.action for a in tables["death"].advice]
    assert advice[0].startswith("look at rank 5 first: the last lines of its log")
    assert not any("names the ranks" in a for a in advice)  # it has named them


def test_a_bare_assertion_is_not_said_to_explain_itself() -> None:
    advice = [a.action for a in verdict({"train.log": [*HEAD, *traceback("AssertionError", rank=3)]}).advice]
    assert not any("message says" in a for a in advice)
    advice = [a.action for a in verdict({"train.log": [*HEAD, *traceback("AssertionError: no such task", rank=3)]}).advice]
    assert any("message says" in a for a in advice)


def test_a_quotation_is_the_log_s_own_text() -> None:
    dmesg = "[884261.000000] pt_main_thread[4312]: segfault at 18 ip 00007f2c sp 00007f2b error 4 in libcuda.so.570"
    death = verdict({"train.log": HEAD, "dmesg.log": [dmesg]})
    assert death.title.endswith("(segfault at 18 ip 00007f2c sp 00007f2b error 4 in libcuda.so.570)")
