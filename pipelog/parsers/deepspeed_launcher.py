"""DeepSpeed's launcher: `launcher/runner.py` speaks once, on the node that starts the job, `launcher/launch.py` once per node.

    [2024-09-08 23:02:45,778] [INFO] [runner.py:585:main] cmd = /opt/conda/bin/python -u -m deepspeed.launcher.launch --world_info=eyJsb2NhbGhvc3QiOiBbMCwgMSwgMiwgM119 --master_addr=127.0.0.1 --master_port=29500 --enable_each_rank_log=None train.py
    node-3: [2024-01-31 02:14:22,249] [INFO] [launch.py:145:main] WORLD INFO DICT: {'node-0': [0, 1], 'node-1': [0, 1]}
    node-3: [2024-01-31 02:14:22,251] [INFO] [launch.py:151:main] nnodes=4, num_local_procs=2, node_rank=3
    node-3: [2024-01-31 02:14:22,254] [INFO] [launch.py:162:main] global_rank_mapping=defaultdict(<class 'list'>, {'node-0': [0, 1], 'node-1': [2, 3]})
    [2024-09-08 23:02:49,633] [INFO] [launch.py:256:main] process 51266 spawned with command: ['/opt/conda/bin/python', '-u', 'train.py', '--local_rank=0']

`--world_info` is base64 (url-safe) of a JSON object host → GPU ids: the map of the whole job, also where other nodes' output is
missing. `spawned` lines exist since v0.13.2. The launchers openmpi, mpich, impi and slurm have no launch.py: only `cmd = mpirun …`.
"""

from __future__ import annotations

import base64
import binascii
import itertools
import json
import re
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from pipelog.parsers._config_facts import entries_of_word
from pipelog.parsers._facts import fact, joined, thinned
from pipelog.parsing import Block, Records, Row, Rows, block, records

_MATTERS = re.compile(
    r"(?:\w*parallel\w*|(?:\w+_)?stages?|\w*pipe(?:line)?_?\w*|\w*micro_?batch\w*|\w*batch_size\w*|gradient_accumulation_steps|gas"
    r"|deepspeed(?:_config|_mpi|_activation_checkpointing)?|num_layers\w*|(?:ffn_)?hidden_size|num_attention_heads|seq_length"
    r"|max_position_embeddings|train_iters|train_samples|(?:max_)?steps|steps_per_epoch|(?:num_train_)?epochs|\w*checkpoint_activations\w*"
    r"|recompute_\w+|\w*activation_checkpoint\w*|(?:log|eval|save)_interval|timing_log_\w+|bf16|fp16|partition(?:_method)?|optimizer"
    r"|nnodes|nproc_per_node|num_nodes|num_gpus|world_size|pp|tp|dp|mp|sp|[ptdm]p_size|distributed_timeout_minutes|profile\w*|attention)"
)
"""Arguments that are worth a fact: how the job is laid out, what it computes, what it prints."""

_OPTION = re.compile(r"--(?P<name>[A-Za-z][\w-]*)(?:=(?P<value>.*))?", re.DOTALL)
_WORLD_INFO = re.compile(r"--world_info=(?P<word>[A-Za-z0-9_=-]+)")
_MPI = frozenset(("mpirun", "mpiexec", "mpiexec.hydra", "srun", "jsrun"))
_MOST_RANKS = 1_000_000


@block("deepspeed-launcher-command", mark="] cmd = ", head=r"\[runner\.py:\d+:main$", most=1)
def command(found: Block) -> Iterator[Row]:
    """Give the start, the map of ranks, the world size and the arguments of the whole job's command.

    cmd = mpirun -n 8 -ppn 4 -genv MASTER_ADDR 10.0.0.4 -hosts node-1,node-2 /usr/bin/python3 -u train.py --deepspeed_config ds.json
    """
    words = found.first.removeprefix("] cmd = ").split()
    yield {"kind": "start", "name": "launcher"}
    places = list(itertools.islice(_places(words), _MOST_RANKS))
    yield from places
    size = _after(words, "-n", "-np") if words and words[0].rpartition("/")[2] in _MPI else ""
    if places or size.isdecimal():
        yield fact("topology.world_size", str(len(places)) if places else size)
    yield from arguments(words, found.line)


def _after(words: list[str], *options: str) -> str:
    """Return the word after the first of these options, empty where there is none."""
    return next((after for word, after in itertools.pairwise(words) if word in options), "")


def _places(words: list[str]) -> Iterator[Row]:
    numbered = itertools.count()
    world = next((m["word"] for m in map(_WORLD_INFO.fullmatch, words) if m), "")
    hosts, each = _after(words, "-hosts"), _after(words, "-ppn")
    if world:
        yield from (_place(next(numbered), host, local) for host, local in _world(world))
    elif hosts and re.fullmatch(r"\d{1,4}", each):
        yield from (_place(next(numbered), host, local) for host in hosts.split(",") for local in range(int(each)))


def _place(rank: int, host: str, local: int) -> Row:
    return {"kind": "place", "name": "launcher", "rank": rank, "host": host, "label": f"local {local}"}


def _world(word: str) -> Iterator[tuple[str, int]]:
    try:
        world = json.loads(base64.urlsafe_b64decode(word.rstrip("=") + "=" * (-len(word.rstrip("=")) % 4)))
    except (binascii.Error, ValueError, RecursionError):
        return
    for host, devices in world.items() if isinstance(world, dict) else ():
        for local in range(len(devices) if isinstance(devices, list) else 0):
            yield host.encode("utf-8", "replace").decode(), local


def arguments(words: list[str], line: int) -> Iterator[Row]:
    """Yield facts `args.<name>` of the options that matter, and the configuration that gpt-neox hands over in base64."""
    for word, after in itertools.zip_longest(words, words[1:], fillvalue="--"):
        option = _OPTION.fullmatch(word)
        if option is None:
            continue
        name, value = option["name"].replace("-", "_"), option["value"]
        if value is None:
            value = None if re.match(r"-[^\d.]|--", after) else after
        if name in {"deepspeed_config", "megatron_config"} and value and (entries := entries_of_word(value, line)):
            prefix = "config." if name == "deepspeed_config" else "args."
            yield from (e.row(prefix) for e in entries if prefix == "config." or _MATTERS.fullmatch(e.path[0]))
        elif _MATTERS.fullmatch(name):
            yield fact(f"args.{name}", value) if value is not None else {"kind": "fact", "name": f"args.{name}", "value": 1.0, "text": word}


# + torchrun --nproc_per_node 8 --nnodes 1 pretrain_gpt.py --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2
@block("launcher-shell-trace", mark=("+ torchrun ", "+ deepspeed "), most=1)
def shell_trace(found: Block) -> Iterator[Row]:
    """Give the arguments of a launcher's command that `bash -x` shows, and that a start follows."""
    if not found.head.rstrip().rstrip("+"):
        yield {"kind": "start", "name": "shell"}
        yield from arguments(found.first.split(), found.line)


@records("deepspeed-launcher-world", mark="WORLD INFO DICT: ", pattern=r"^WORLD INFO DICT: (?P<world>\{.*\})")
def world_info(found: Records) -> Iterator[Rows]:
    """Give the map host → GPU ids as it is printed; value is the number of hosts. Of very many nodes that print it some are enough."""
    found = thinned(found, 64)
    yield found.rows("fact", "launch.world_info", value=pc.cast(pc.count_substring(found["world"], ": ["), pa.float64()), text=found["world"])


@records(
    "deepspeed-launcher-node",
    mark="nnodes=",
    pattern=r"^nnodes=(?P<nnodes>\d{1,9}), num_local_procs=(?P<procs>\d{1,9}), node_rank=(?P<node>\d{1,9})",
)
def node(found: Records) -> Iterator[Rows]:
    """Give the start of a node's launcher and its place among the nodes."""
    yield found.rows("start", "node")
    yield found.rows("fact", "launch.nnodes", value=found.float("nnodes"), text=found["nnodes"])
    yield found.rows("fact", "launch.num_local_procs", value=found.float("procs"), text=found["procs"])
    yield found.rows("fact", "launch.node_rank", value=found.float("node"), text=found["node"])


@records(
    "deepspeed-launcher-mapping", mark="global_rank_mapping=", pattern=r"^global_rank_mapping=(?:defaultdict\(<class 'list'>, )?\{(?P<mapping>.*)\}"
)
def mapping(found: Records) -> Iterator[Rows]:
    """Give the place of every rank: ranks are numbered through host by host, so the local rank is the distance to the first.

    Every node prints the whole map; of very many of them some are enough.
    """
    hosts = thinned(found, 64).split("mapping", "]", r"'(?P<host>[^']+)': \[(?P<ranks>(?P<first>\d{1,9})[\d, ]*)$")
    ranks = hosts.split("ranks", ", ", r"^(?P<rank>\d{1,9})$")
    rank = ranks.int("rank")
    local = pc.cast(pc.subtract(rank, ranks.int("first")), pa.string())
    yield ranks.rows("place", "launcher", rank=rank, host=ranks["host"], label=joined("local ", local))


@records("deepspeed-launcher-size", mark="dist_world_size=", pattern=r"^dist_world_size=(?P<size>\d{1,9})")
def world_size(found: Records) -> Iterator[Rows]:
    """Give the number of ranks of the job."""
    yield found.rows("fact", "topology.world_size", value=found.float("size"), text=found["size"])


_SPAWNED = re.compile(r"process (?P<pid>\d+)$")
_BETWEEN = re.compile(r"""['"], ['"]""")
_LOCAL = re.compile(r"--local[_-]rank=(?P<local>\d+)")


@block("deepspeed-launcher-spawned", mark=" spawned with command: [", head=r"process \d+$", most=1)
def spawned(found: Block) -> Iterator[Row]:
    """Give the process with its pid and local rank, and the arguments of the first one (the others have the same)."""
    pid = _SPAWNED.search(found.head)
    words = _BETWEEN.split(found.first.partition("[")[2].rstrip().strip("]'\""))
    local = next((m["local"] for m in map(_LOCAL.fullmatch, words) if m), None)
    label = {} if local is None else {"label": f"local {local}"}
    yield {"kind": "process", "name": "spawned", "value": float(pid["pid"][:15]) if pid else None} | label
    if local in {None, "0"}:
        yield from arguments(words, found.line)


# Killing subprocess 43950
@records("deepspeed-launcher-kill", mark="Killing subprocess ", pattern=r"^Killing subprocess (?P<pid>\d{1,12})\s*$")
def killed(found: Records) -> Iterator[Rows]:
    """Give the process that the launcher kills: each child, also those that are dead already (v0.3.12+)."""
    yield found.rows("process", "killed", value=found.float("pid"))


# [2026-11-30 01:23:26,769] [ERROR] [launch.py:325:sigkill_handler] ['/opt/conda/bin/python3', '-u', 'train.py', '--local_rank=3'] exits with return code = -9
@records(
    "deepspeed-launcher-exit",
    mark=" exits with return code = ",
    head=r"^(?:\s?\S.*?)?(?P<command>\[['\"].*\])?$",
    pattern=r"^(?P<words> exits with return code = (?P<code>-?\d{1,10}))",
)
def exit_code(found: Records) -> Iterator[Rows]:
    """Give the return code of the process that the launcher saw die first; negative is a signal (v0.5.8+).

    The command is that of the process that was started last, whoever died: its local rank means nothing, and a prefix names the launcher.
    Indented lines are left alone: they quote another log.
    """
    text = joined(found.groups["command"], found["words"])
    nobody = pa.nulls(len(found), pa.string())
    yield found.rows("end", "exit-code", value=found.float("code"), label=nobody, text=pc.utf8_ltrim_whitespace(text))


# [2026-11-30 01:17:40,442] [INFO] [launch.py:367:main] Process 12543 exits successfully.
@records("deepspeed-launcher-success", mark=" exits successfully", head=r"(?P<process>Process (?P<pid>\d{1,12}))$", pattern=r"^ exits successfully")
def success(found: Records) -> Iterator[Rows]:
    """Give a process that exits with 0 (v0.5.6+), not in the order of the ranks."""
    yield found.rows("end", "exit-success", value=found.float("pid"), text=joined(found["process"], " exits successfully"))


# Main process received SIGTERM, exiting
@records("deepspeed-launcher-signal", mark="Main process received SIG", pattern=r"^(?P<words>Main process received (?P<signal>SIG[A-Z]+), exiting)")
def signal(found: Records) -> Iterator[Rows]:
    """Give the signal that the launcher itself got from outside; value is its number (v0.3.12+)."""
    number = pc.if_else(pc.equal(found["signal"], "SIGINT"), 2.0, pc.if_else(pc.equal(found["signal"], "SIGTERM"), 15.0, None))
    yield found.rows("end", "signal", value=number, text=found["words"])


_CALLED = re.compile(
    r"^subprocess\.CalledProcessError: Command (?P<command>.*)"
    r" (?:returned non-zero exit status (?P<code>-?\d{1,10})|died with <Signals\.\w+: (?P<signal>\d{1,3})>)"
)
_LAUNCHED = re.compile(r"local[_-]rank|deepspeed|torch\.distributed|torchrun|accelerate|\['[^']*python[^']*', '(?:-u|[^']*\.py)'")


# subprocess.CalledProcessError: Command '['/opt/conda/bin/python', '-u', 'train_layout.py', '--local_rank=1']' returned non-zero exit status 1.
# subprocess.CalledProcessError: Command '['/usr/bin/python3', '-u', 'pretrain_lm.py', '--local_rank=3']' died with <Signals.SIGABRT: 6>.
@block("deepspeed-launcher-called-process", mark="subprocess.CalledProcessError: Command ", most=1)
def called_process(found: Block) -> Iterator[Row]:
    """Give the exit code of a rank as launchers before v0.5.8 (and accelerate) report it; other commands (ninja) are left alone."""
    match = _CALLED.match(found.first)
    if match and _LAUNCHED.search(match["command"][:2000]):
        code = int(match["code"]) if match["code"] else -int(match["signal"])
        yield {"kind": "end", "name": "exit-code", "value": float(code), "text": found.first.strip()}


# pdsh@login1: node7: ssh exited with exit code 1
@records(
    "deepspeed-launcher-ssh",
    mark="ssh exited with exit code ",
    head=r"(?P<before>(?:pdsh@[\w.-]+: )?(?P<node>[\w.-]+): )$",
    pattern=r"^(?P<words>ssh exited with exit code (?P<code>\d{1,10}))",
)
def ssh(found: Records) -> Iterator[Rows]:
    """Give the exit code of a node's launcher as pdsh reports it."""
    yield found.rows("end", "exit-code", value=found.float("code"), host=found["node"], text=joined(found["before"], found["words"]))
