"""Cases of failures turned into others with the same right answer: what stands before lines, how files are cut up, names, dates, attempts, noise.

    changed = vary(load(FIXTURES / "cases" / "ecc-rank2-k8s"), "pdsh", seed=1)       # None where it does not apply

Other versions' wording of the same thing is in `tests/wordings.py`; both fill VARIATIONS. A change of the right answer goes with it: ranks that
nothing tells any more may be left out (`or_none`), a case whose first log is gone asks for restraint only (`weak`).
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime, timedelta

from tests.cases import LAUNCHER, TABLE, Case, Line, is_launcher, leads, parted, ranks_of

Change = Callable[[Case, random.Random], Case | None]
VARIATIONS: dict[str, Change] = {}
Lines = tuple[Line, ...]
_WHO = ("ranks", "stages", "hosts")
_SOME_DAY = datetime.fromisoformat("2024-03-05 15:20")
"""For logs without dates; stamps of logs name no zone."""


def variation(name: str) -> Callable[[Change], Change]:
    """Register a change under a name."""

    def add(change: Change) -> Change:
        assert name not in VARIATIONS
        VARIATIONS[name] = change
        return change

    return add


def vary(case: Case, name: str, seed: int = 0) -> Case | None:
    """The case after one variation; the same for the same seed."""
    changed = VARIATIONS[name](case, random.Random(f"{case.name} {name} {seed}"))
    return None if changed is None or changed == case else replace(changed, how=(*case.how, name))


def composed(case: Case, seed: int, most: int = 4) -> Case:
    """The case after a few variations that fit one another, chosen by the seed."""
    pick = random.Random(f"{case.name} {seed}")
    names = sorted(VARIATIONS)
    wanted, done = pick.randint(2, most), 0
    for name in pick.sample(names, len(names)):
        if done == wanted:
            break
        if {name, *case.how} & _ALONE and case.how:
            continue
        if (changed := vary(case, name, seed)) is not None:
            case, done = changed, done + 1
    return case


_ALONE = {"second attempt completes", "attempt before", "beginner's log missing", "cut after the failure"}
"""These change the right answer; what comes after could not know it."""


def failing(lines: Lines) -> int:
    """Place of the first line that speaks of the failure; the number of lines where none does."""
    begins = re.compile(
        r"Traceback \(most|^\[rank\d+\]:\[E|NCCL WARN|^\[E |Memory access fault|slurmstepd|srun: (?:error|Job)|Killing subprocess|closing signal"
    )
    part = parted(lines)
    steps = [n for n, line in enumerate(lines) if _STEP.search(line.text)]
    after = steps[-1] if steps else 0
    anchored = [n for n, line in enumerate(lines) if line.anchor]
    found = [n for n in range(after, len(lines)) if begins.search(part(lines[n].text)[1])]
    return min([*anchored[:1], *found[:1], len(lines)])


_STEP = re.compile(r"steps: \d+ loss|\bstep=[1-9]\d*, skipped|iteration +\d+/")


# ---- what stands before the lines


def _bare(case: Case) -> bool:
    return not any({"host", "label", "utc"} & set(leads(lines)) for lines in case.logs.values())


def _before(case: Case, lead: Callable[[int, str], str]) -> Case:
    def change(lines: Lines) -> Lines:
        return tuple(line.saying(lead(n, line.text) + line.text) for n, line in enumerate(lines))

    return case.each_file(change)


def hosts(case: Case) -> list[str]:
    """Host names that the logs print, first seen first."""
    found: dict[str, None] = {}
    for lines in case.logs.values():
        part = parted(lines)
        for line in lines:
            lead, body = part(line.text)
            if "host" in leads(lines) and lead:
                found.setdefault(lead.strip(" :"), None)
            for match in _HOST.finditer(body):
                found.setdefault(next(g for g in match.groups() if g), None)
    return [h for h in found if h not in ("localhost", "127.0.0.1")]


_HOST = re.compile(
    r"^  host +: (\S+)$|srun: error: ([\w.-]+): task|\bON ([\w.-]+) CANCELLED|slurmstepd-([\w.-]+):|Node failure on ([\w.-]+)|^([\w.-]+):\d+:\d+ \[\d+\] |pdsh@([\w.-]+):"
)


@variation("pdsh")
def _pdsh(case: Case, _: random.Random) -> Case | None:
    known = hosts(case)
    if not _bare(case) or len(known) > 1:
        return None
    host = known[0] if known else "gpu-17"
    told = _before(case, lambda _n, _t: f"{host}: ")
    return told.claiming(hosts=[host]) if case.truth.get("ranks") else told


@variation("srun --label, one task a node")
def _label_node(case: Case, _: random.Random) -> Case | None:
    return _before(case, lambda _n, _t: "0: ") if _bare(case) and len(hosts(case)) < 2 else None


_NOT_OF_TASKS = re.compile(r"srun: |slurmstepd")


def _by_rank(case: Case, lead: Callable[[int], str], *, strip: bool, launcher: bool = False) -> Case | None:
    """Every line of a rank behind a lead; those of nobody behind that of rank 0, those of the launcher behind none. launcher: it is a task, too."""
    if not _bare(case) or len(hosts(case)) > 1 or any("tee" in leads(lines) for lines in case.logs.values()) or "[rank" not in case.text():
        return None

    def change(lines: Lines) -> Lines:
        out = []
        for line, rank, launched in zip(lines, ranks_of(lines), is_launcher(lines), strict=True):
            own = re.sub(r"^\[rank\d+\]: ?", "", line.text) if strip else line.text
            bare = _NOT_OF_TASKS.match(line.text) if launcher else launched
            out.append(line.saying(("" if bare else lead(rank or 0)) + own))
        return tuple(out)

    return case.each_file(change)


@variation("torchrun --tee")
def _tee(case: Case, _: random.Random) -> Case | None:
    return _by_rank(case, lambda rank: f"[default{rank}]:", strip=False)


@variation("torchrun --tee, torch 2.1")
def _tee_only(case: Case, _: random.Random) -> Case | None:
    return _by_rank(case, lambda rank: f"[default{rank}]:", strip=True)


@variation("torchrun --tee --role")
def _tee_role(case: Case, _: random.Random) -> Case | None:
    return _by_rank(case, lambda rank: f"[trainer{rank}]:", strip=False)


@variation("srun --label, one task a rank")
def _label(case: Case, _: random.Random) -> Case | None:
    return _by_rank(case, lambda rank: f"{rank}: ", strip=False, launcher=True)


@variation("srun --label, one task a rank, torch 2.1")
def _label_only(case: Case, _: random.Random) -> Case | None:
    return _by_rank(case, lambda rank: f"{rank:2}: ", strip=True, launcher=True)


@variation("mpirun --tag-output")
def _mpi(case: Case, _: random.Random) -> Case | None:
    return _by_rank(case, lambda rank: f"[1,{rank}]<stderr>: ", strip=False)


def _other_clock(case: Case) -> bool:
    """Whether a file beside the logs has times, too, which would have to be changed with theirs."""
    return any(name.endswith(".csv") for name in case.other)


def _timed(case: Case, offset: timedelta, form: Callable[[datetime, str], str]) -> Case | None:
    """Every line as *form* makes it of the time at which it was written, by a clock that is *offset* before the log's own, and its text."""
    if not _bare(case) or _other_clock(case) or any(re.search(r"\d{14}_rank", name) for name in case.logs):  # such files are no container's output
        return None
    begin = (_first_stamp(case) or _SOME_DAY) - offset

    def change(lines: Lines) -> Lines:
        now, out = begin, []
        for line in lines:
            if match := _STAMP.search(line.text):
                now = max(now, _read(match) - offset)
            now += timedelta(microseconds=437)
            out.append(line.saying(form(now, line.text)))
        return tuple(out)

    return case.each_file(change)


def _utc(case: Case, rng: random.Random, stream: Callable[[str], str]) -> Case | None:
    offset = timedelta(hours=rng.choice([0, -5, 8]))
    return _timed(case, offset, lambda now, text: f"{now:%Y-%m-%dT%H:%M:%S.%f}{rng.randint(100, 999)}Z {stream(text)}{text}")


@variation("kubectl logs --timestamps")
def _kubectl(case: Case, rng: random.Random) -> Case | None:
    return _utc(case, rng, lambda _: "")


@variation("container runtime")
def _cri(case: Case, rng: random.Random) -> Case | None:
    return _utc(case, rng, lambda text: "stderr F " if re.match(r"\[rank|Traceback|  File|\[[WE]", text) else "stdout F ")


@variation("container runtime, in its zone")
def _zone(case: Case, _: random.Random) -> Case | None:
    """As containerd writes it where the node is not set to UTC: the log's own stamps are of that zone, too."""
    return _timed(case, timedelta(0), lambda now, text: f"{now:%Y-%m-%dT%H:%M:%S.%f}123+08:00 stderr F {text}")


@variation("Docker's JSON")
def _docker(case: Case, rng: random.Random) -> Case | None:
    def form(now: datetime, text: str) -> str:
        return json.dumps({"log": f"{text}\n", "stream": rng.choice(["stdout", "stderr"]), "time": f"{now:%Y-%m-%dT%H:%M:%S.%f}789Z"})

    return _timed(case, timedelta(hours=rng.choice([0, -5, 8])), form)


@variation("journalctl")
def _journal(case: Case, _: random.Random) -> Case | None:
    host = (hosts(case) or ["gpu-17"])[0]
    told = _timed(case, timedelta(0), lambda now, text: f"{now:%b} {now.day:2} {now:%H:%M:%S} {host} run-train.sh[4021]: {text}")
    return told if told is None or not case.truth.get("ranks") or len(hosts(case)) else told.claiming(hosts=[host])


@variation("kubectl logs --prefix")
def _pod(case: Case, _: random.Random) -> Case | None:
    return _before(case, lambda _n, _t: "[pod/trainer-0/main] ") if _bare(case) and len(hosts(case)) == 0 else None


@variation("quoted")
def _quoted(case: Case, _: random.Random) -> Case | None:
    return _before(case, lambda _n, _t: "> ")


@variation("coloured")
def _coloured(case: Case, rng: random.Random) -> Case | None:
    return case.each(lambda text: f"\x1b[{rng.choice([0, 1, 31, 32, 33, 36])}m{text}\x1b[0m")


@variation("ends of line of Windows")
def _crlf(case: Case, _: random.Random) -> Case | None:
    return case.each(lambda text: text + "\r")


def _bar(rng: random.Random) -> str:
    done = rng.randint(1, 99)
    return f"{done:3d}%|{'█' * (done // 10)}{' ' * (10 - done // 10)}| {done}/100 [{done // 60:02d}:{done % 60:02d}<03:11,  {rng.randint(1, 9)}.{rng.randint(10, 99)}s/it]"


@variation("no newline at the end")
def _unended(case: Case, _: random.Random) -> Case | None:
    return replace(case, ended=False)


@variation("indented")
def _indented(case: Case, rng: random.Random) -> Case | None:
    """Copied out of a list of a ticket."""
    margin = " " * rng.randint(2, 8)
    return case.each(lambda text: margin + text)


@variation("progress bars")
def _bars(case: Case, rng: random.Random) -> Case | None:
    return case.each(lambda text: f"\r{_bar(rng)}\r{_bar(rng)}\r{text}" if rng.random() < 0.3 else text)


@variation("glued to progress bars")
def _glued(case: Case, rng: random.Random) -> Case | None:
    loose = re.compile(r"Traceback|\[rank\d+\]: Traceback|\[20\d\d-|steps: |\[rank\d+\]:\[[WE]|terminate called")
    return case.each(lambda text: f"\r{_bar(rng)}{text}" if loose.match(text) and rng.random() < 0.6 else text) if _bare(case) else None


@variation("blank lines")
def _blank(case: Case, rng: random.Random) -> Case | None:
    def change(lines: Lines) -> Lines:
        return tuple(out for line in lines for out in ((line, Line("")) if rng.random() < 0.15 else (line,)))

    return case.each_file(change)


@variation("NUL bytes")
def _nul(case: Case, rng: random.Random) -> Case | None:
    def change(text: str) -> str:
        at = rng.randint(0, len(text))
        return "\0" * rng.choice([1, 7, 300]) + text if rng.random() < 0.05 else text[:at] + "\0" + text[at:] if rng.random() < 0.05 else text

    return case.each(change)


@variation("gzip")
def _gzip(case: Case, _: random.Random) -> Case | None:
    return replace(case, packed=".gz") if not case.packed else None


@variation("zstd")
def _zstd(case: Case, _: random.Random) -> Case | None:
    return replace(case, packed=".zst") if not case.packed else None


# ---- split, merged, in another order


def _only(case: Case) -> tuple[str, Lines] | None:
    """The one log of a case."""
    return next(iter(case.logs.items())) if len(case.logs) == 1 else None


def _stamp_of_start(case: Case) -> str:
    return f"{_first_stamp(case) or _SOME_DAY:%Y%m%d%H%M%S}"


def _split(case: Case, name_of: Callable[[int], str], *, own_output: bool, strip: bool) -> Case | None:
    """One file a rank and one of the launcher. own_output: rank 0's file has all that nobody signed, as with --enable_each_rank_log."""
    found = _only(case)
    if found is None or "[rank" not in case.text() or {"host", "utc", "label"} & set(leads(found[1])):
        return None
    if case.text().count("WORLD INFO DICT") > 1:  # every start has files of its own
        return None
    name, lines = found
    parts: dict[str, list[Line]] = {name: []}
    for line, rank, launcher in zip(lines, ranks_of(lines), is_launcher(lines), strict=True):
        whose = (
            None
            if launcher
            else rank
            if own_output
            else rank
            if line.text.startswith("[rank") or (rank is not None and "[Rank" not in line.text)
            else None
        )
        if own_output and not launcher and whose is None:
            whose = 0
        place = name if whose is None else name_of(whose)
        text = re.sub(r"^\[default\d+\]:", "", line.text)
        parts.setdefault(place, []).append(line.saying(re.sub(r"^\[rank\d+\]: ?", "", text) if strip else text))
    if len(parts) < 2:
        return None
    return replace(case, logs={k: tuple(v) for k, v in parts.items()})


@variation("split: stderr of each rank")
def _split_stderr(case: Case, _: random.Random) -> Case | None:
    return _split(case, lambda rank: f"logs/attempt_0/{rank}/stderr.log", own_output=False, strip=False)


@variation("split: a log a rank")
def _split_ranks(case: Case, _: random.Random) -> Case | None:
    return _split(case, lambda rank: f"logs/rank{rank}.log", own_output=True, strip=False)


@variation("split: --enable_each_rank_log")
def _split_deepspeed(case: Case, _: random.Random) -> Case | None:
    return _split(case, lambda rank: f"ranks/{_stamp_of_start(case)}_rank{rank}.log", own_output=True, strip=False)


@variation("split: a log a rank, torch 2.1")
def _split_strip(case: Case, _: random.Random) -> Case | None:
    return _split(case, lambda rank: f"logs/rank_{rank}.log", own_output=True, strip=True)


@variation("split: stdout and stderr")
def _split_streams(case: Case, _: random.Random) -> Case | None:
    found = _only(case)
    if found is None:
        return None
    name, lines = found
    part, first = parted(lines), failing(lines)
    stderr = re.compile(
        r"(?:\[default\d+\]:)?(?:\[rank\d+\]:|\[[WEF][ \d]|terminate called|  what\(\)|frame #|[WEI]\d{4} |slurmstepd|srun: |ERROR:|WARNING:torch)"
    )
    stdout = re.compile(r"(?:\[default\d+\]:)?(?:\[20\d\d-|steps: |\[Rank|Killing|Main process|\S+:\d+:\d+ \[\d+\])")
    out: list[Line] = []
    err: list[Line] = []
    for n, line in enumerate(lines):
        body = part(line.text)[1]
        (err if stderr.match(body) or (n >= first and not stdout.match(body)) else out).append(line)
    stem = re.sub(r"\.\w+$", "", name)
    return replace(case, logs={f"{stem}.out": tuple(out), f"{stem}.err": tuple(err)}) if err and out else None


def _interleaved(parts: list[list[Line]], rng: random.Random) -> Iterator[Line]:
    """The lines of several writers mixed, each writer's in its own order."""
    queues = [list(reversed(part)) for part in parts if part]
    while queues:
        queue = rng.choices(queues, [len(q) for q in queues])[0]
        for _ in range(rng.choice([1, 1, 2, 5, 30])):
            if queue:
                yield queue.pop()
        queues = [q for q in queues if q]


@variation("merged")
def _merged(case: Case, rng: random.Random) -> Case | None:
    if len(case.logs) < 2:
        return None
    head: list[Line] = []
    tail: list[Line] = []
    parts = []
    for lines in case.logs.values():
        own = is_launcher(lines)
        if sum(own) > len(lines) / 2:  # the launcher's file
            end = next(
                (n for n, line in enumerate(lines) if TABLE.search(line.text) or re.search("Killing|closing signal|failed \\(exit", line.text)),
                len(lines),
            )
            head += lines[:end]
            tail += lines[end:]
        else:
            parts.append(list(lines))
    return replace(case, logs={"console.log": (*head, *_interleaved(parts, rng), *tail)})


def _in_the_failure(lines: Lines) -> tuple[int, int, dict[int | None, list[Line]]]:
    """From the first line of the failure to the launcher's first word about it: (first, behind the last, lines of each rank)."""
    first = failing(lines)
    ranks, own = ranks_of(lines), is_launcher(lines)
    last = next((n for n in range(first, len(lines)) if own[n]), len(lines))
    writers: dict[int | None, list[Line]] = {}
    for n in range(first, last):
        writers.setdefault(ranks[n], []).append(lines[n])
    return first, last, writers


@variation("other interleaving")
def _reordered(case: Case, rng: random.Random) -> Case | None:
    """Lines of different ranks in another order from the failure on, up to the launcher's first word about it."""
    if "[rank" not in case.text():
        return None

    def change(lines: Lines) -> Lines:
        first, last, writers = _in_the_failure(lines)
        return (*lines[:first], *_interleaved(list(writers.values()), rng), *lines[last:])

    return case.each_file(change)


@variation("one rank after the other")
def _blocks(case: Case, rng: random.Random) -> Case | None:
    """The output of each rank in one piece, the ranks in any order: stderr that was buffered and flushed at exit."""
    if "[rank" not in case.text():
        return None

    def change(lines: Lines) -> Lines:
        first, last, writers = _in_the_failure(lines)
        order = list(writers)
        rng.shuffle(order)
        return (*lines[:first], *(line for who in order for line in writers[who]), *lines[last:])

    return case.each_file(change)


# ---- other names


@variation("other hosts")
def _hosts(case: Case, rng: random.Random) -> Case | None:
    known = hosts(case)
    if not known:
        return None
    style = rng.choice(["gpu{:02d}", "ip-10-11-0-{}", "nid{:06d}", "worker-{}.train.svc", "r{}i7n3"])
    numbers = rng.sample(range(1, 90), len(known))
    new = {host: style.format(n) for host, n in zip(known, numbers, strict=True) if not re.fullmatch(r"[\d.]+", host)}
    if not new:
        return None
    pattern = re.compile(r"(?<![\w./-])(?:" + "|".join(re.escape(h) for h in sorted(new, key=len, reverse=True)) + r")(?![\w-]|\.\w)")
    changed = case.each(
        lambda text: pattern.sub(lambda m: new[m.group()], re.sub(r"slurmstepd-([\w.-]+):", lambda m: f"slurmstepd-{new.get(m[1], m[1])}:", text))
    )
    truth = [new.get(h, h) for h in case.truth.get("hosts", [])]
    finds = [{**f, **({"hosts": [new.get(h, h) for h in f["hosts"]]} if "hosts" in f else {})} for f in case.truth.get("must_find", [])]
    return changed.claiming(hosts=truth or None, must_find=finds or None)


_PATHS = re.compile(
    r"(?<![\w./<-])/(?:home/user|opt/conda|proj|workspace|mnt/train|notebooks|srv/job|opt/job|opt/py\w*|data|app|venv|w|environment|opt/envs|opt/neox)(?=/)"
)


def _paths(case: Case, roots: tuple[str, ...], rng: random.Random) -> Case | None:
    new: dict[str, str] = {}

    def change(match: re.Match[str]) -> str:
        return new.setdefault(match.group(), f"{rng.choice(roots)}/{len(new)}")

    changed = case.each(lambda text: _PATHS.sub(change, text))
    return changed if new else None


@variation("other paths")
def _other_paths(case: Case, rng: random.Random) -> Case | None:
    return _paths(case, ("/lustre/orion/proj42/scratch/jdoe", "/gpfs/u/home/ABCD/shared", "/mnt/nfs-03/users/müller"), rng)


@variation("paths that speak of failures")
def _evil_paths(case: Case, rng: random.Random) -> Case | None:
    return _paths(
        case, ("/scratch/dataset_checkpoints/nan-errors", "/data/oom_killed/timeout_tests", "/nfs/checkpoint_engine/data_loader_failed"), rng
    )


@variation("other numbers")
def _numbers(case: Case, rng: random.Random) -> Case | None:
    """Process ids, ports and addresses."""
    pids: dict[str, str] = {}
    ports: dict[str, str] = {}

    def pid(match: re.Match[str]) -> str:
        return pids.setdefault(match.group(), str(rng.randint(300, 4_000_000)))

    def port(match: re.Match[str]) -> str:
        return ports.setdefault(match.group(), str(rng.randint(1024, 65535)))

    def change(text: str) -> str:
        text = re.sub(r"(?:(?<=subprocess )|(?<=pid: )|(?<=PID )|(?<=[Pp]rocess )|(?<=worker \(pid )|(?<=pid\(s\) ))\d+", pid, text)
        text = re.sub(r"(?<=:)\d+(?=:\d+ \[\d+\] )", pid, text)
        text = re.sub(r"(?<=[\w.]<)\d+(?=>)|(?<=\]:)\d{4,5}|(?<=localhost\]:)\d+|(?<=master_port=)\d+", port, text)
        return re.sub(r"0x[0-9a-f]{8,}", lambda m: f"0x{rng.randrange(16 ** (len(m.group()) - 2)):0{len(m.group()) - 2}x}", text)

    return case.each(change)


@variation("other replica")
def _replica(case: Case, _: random.Random) -> Case | None:
    """Everything that happened to rank r happens to rank r ^ 1, of the same stage (two replicas, the data axis fastest)."""
    topology = re.search(r"Using topology: \{(.*)\}", case.text())
    if topology is None or not case.truth.get("ranks") or "data=1): 1" not in topology[1] or "data=2" in topology[1] or "model" in topology[1]:
        return None

    def other(match: re.Match[str]) -> str:
        return str(int(match.group()) ^ 1)

    def tasks(match: re.Match[str]) -> str:
        numbers = sorted(n ^ 1 for a, _, b in (part.partition("-") for part in match[1].split(",")) for n in range(int(a), int(b or a) + 1))
        return "tasks " + ",".join(str(n) for n in numbers) if len(numbers) > 1 else f"task {numbers[0]}"

    named = re.compile(
        r"(?<=\[rank)\d+(?=\])|(?<=\[Rank )\d+(?=\])|(?<=local_rank: )\d+|(?<=^  rank      : )\d+|(?<=GPU )\d+(?= has|;)|(?<=:\d{5} \[)\d+(?=\] )|(?<=\[default)\d(?=\])"
    )

    def change(lines: Lines) -> Lines:
        first, part = failing(lines), parted(lines)
        labelled = "label" in leads(lines)
        out = list(lines[:first])
        for line in lines[first:]:
            lead, body = part(line.text)
            lead = re.sub(r"\d+", other, lead) if labelled else lead
            body = body if "sigkill_handler" in body else named.sub(other, re.sub(r"\btasks? ([\d,-]+)", tasks, body))
            out.append(line.saying(lead + body))
        return tuple(out)

    return case.each_file(change).claiming(ranks=[r ^ 1 for r in case.truth["ranks"]])


# ---- other dates

_STAMP = re.compile(r"(?P<date>\d{4}-\d\d-\d\d)(?P<between>[ T_])(?P<time>\d\d:\d\d:\d\d)")
_CPP = re.compile(r"(?<=\[)(?P<level>[IWEF])(?P<month>\d{1,2})(?P<day>\d\d) (?P<time>\d\d:\d\d:\d\d)(?=\.\d{6,9} )")
_ELASTIC = re.compile(r"(?P<level>\b[IWE])(?P<month>\d\d)(?P<day>\d\d) (?P<time>\d\d:\d\d:\d\d)(?=\.\d{6} +\d+ torch)")


def _read(match: re.Match[str]) -> datetime:
    return datetime.fromisoformat(f"{match['date']} {match['time']}")


def _stamps(case: Case) -> list[datetime]:
    return [_read(m) for line in case.lines() for m in _STAMP.finditer(line.text)]


def _first_stamp(case: Case) -> datetime | None:
    found = _stamps(case)
    return min(found) if found else None


def shifted(case: Case, delta: timedelta) -> Case:
    """All stamps later by *delta*, whatever their form."""
    first = _first_stamp(case)
    year = first.year if first else 2024

    def full(match: re.Match[str]) -> str:
        return f"{_read(match) + delta:%Y-%m-%d}{match['between']}{_read(match) + delta:%H:%M:%S}"

    def short(match: re.Match[str], form: str) -> str:
        then = datetime.fromisoformat(f"{year}-{int(match['month']):02d}-{match['day']} {match['time']}") + delta
        return match["level"] + form.format(then) + f"{then: %H:%M:%S}"

    def change(text: str) -> str:
        text = _STAMP.sub(full, text)
        text = _CPP.sub(lambda m: short(m, "{0.month}{0.day:02d}"), text)
        return _ELASTIC.sub(lambda m: short(m, "{0.month:02d}{0.day:02d}"), text)

    def named(name: str) -> str:
        return re.sub(r"\d{14}(?=_rank)", lambda m: f"{datetime.fromisoformat(f'{m.group()[:8]}T{m.group()[8:]}') + delta:%Y%m%d%H%M%S}", name)

    changed = case.each(change)
    return replace(changed, logs={named(name): lines for name, lines in changed.logs.items()})


@variation("another year")
def _year(case: Case, rng: random.Random) -> Case | None:
    return (
        shifted(case, timedelta(days=rng.choice([-700, 401, 1000]), hours=rng.randint(0, 23), minutes=rng.randint(0, 59)))
        if _stamps(case) and not _other_clock(case)
        else None
    )


@variation("on New Year's Eve")
def _new_year(case: Case, _: random.Random) -> Case | None:
    found = _stamps(case)
    return shifted(case, datetime.fromisoformat(f"{max(found).year + 1}-01-01 00:00:03") - max(found)) if found and not _other_clock(case) else None


@variation("on a leap day")
def _leap(case: Case, _: random.Random) -> Case | None:
    found = _stamps(case)
    return shifted(case, datetime.fromisoformat("2028-02-29 23:59:50") - max(found)) if found and not _other_clock(case) else None


# ---- Python's and torch's prefixes


@variation("without [rankN]:")
def _no_rank(case: Case, _: random.Random) -> Case | None:
    """As before torch 2.2: what nothing else tells may be left out."""
    if "[rank" not in case.text():
        return None
    changed = case.each(lambda text: re.sub(r"\[rank\d+\]: ?", "", text))
    told = any("tee" in leads(lines) for lines in case.logs.values()) or (len(case.logs) > 1 and case.truth.get("ranks"))
    return changed if told else changed.claiming(or_none=_WHO)


@variation("with [rankN]:")
def _with_rank(case: Case, _: random.Random) -> Case | None:
    """The traceback of the one that began it gets torch's prefix."""
    found = _only(case)
    ranks = case.truth.get("ranks", [])
    if found is None or len(ranks) != 1 or "[rank" in case.text() or "host.oom" in case.truth["category"]:
        return None
    name, lines = found
    part = parted(lines)
    bodies = [part(line.text)[1] for line in lines]
    at = next((n for n, line in enumerate(lines) if line.anchor and not is_launcher(lines)[n]), None)
    if at is None:
        return None
    begin = next((n for n in range(at, -1, -1) if bodies[n].startswith("Traceback")), None)
    if begin is None:
        return None
    out = [line.saying(f"{part(line.text)[0]}[rank{ranks[0]}]: {bodies[n]}") if begin <= n <= at else line for n, line in enumerate(lines)]
    return replace(case, logs={name: tuple(out)})


@variation("marks under code")
def _carets(case: Case, rng: random.Random) -> Case | None:
    """The ^^^^ lines of Python 3.11, or none of them."""
    if "^^^^" in case.text():
        return case.each_file(lambda lines: tuple(line for line in lines if not re.search(r"  +[~^]{3,}$", line.text)))

    def change(lines: Lines) -> Lines:
        part = parted(lines)
        out = []
        for line in lines:
            out.append(line)
            lead, body = part(line.text)
            if (match := re.match(r"((?:\[rank\d+\]: )? {4})(\w.*)", body)) and rng.random() < 0.7 and "File" not in body and "RANK=" not in body:
                out.append(Line(lead + match[1] + "^" * min(len(match[2]), 40)))
        return tuple(out)

    return case.each_file(change) if "Traceback" in case.text() else None


# ---- attempts, missing parts


def _work(lines: Lines) -> tuple[int, int]:
    """(first line of a step, where the failure begins)."""
    end = failing(lines)
    return next((n for n in range(end) if _STEP.search(lines[n].text)), end), end


def _attempt(case: Case, *, good: bool, rng: random.Random) -> tuple[str, list[str]] | None:
    """The log's name and the texts of another start of the same job: one that comes to its end, or one that fails in the user's code."""
    found = _only(case)
    if found is None:
        return None
    name, lines = found
    begin, end = _work(lines)
    texts = [line.text for line in lines]
    lead = parted(lines)(texts[max(begin - 1, 0)])[0]
    last = max(_stamps(replace(case, logs={name: lines[:end]})), default=None)
    if last is None:
        return None
    stamp = f"[{last + timedelta(seconds=1):%Y-%m-%d %H:%M:%S},123]"
    pids = re.findall(r"process (\d+) spawned", case.text()) or re.findall(r"Killing subprocess (\d+)", case.text())
    if "[launch.py:" in case.text() and pids:
        if begin == end:
            begin, steps = end, [f"{lead}steps: {n} loss: {9 - n / 20:.4f} iter time (s): 0.906 samples/sec: 35.301" for n in (10, 20, 30)]
        else:
            steps = texts[begin:end]
        if good:
            ending = [f"{lead}{stamp} [INFO] [launch.py:351:main] Process {pid} exits successfully." for pid in pids]
        else:
            kill = [f"{lead}{stamp} [INFO] [launch.py:319:sigkill_handler] Killing subprocess {pid}" for pid in pids]
            ending = [
                *kill,
                f"{lead}{stamp} [ERROR] [launch.py:325:sigkill_handler] ['/usr/bin/python', '-u', 'train.py', '--local_rank={len(pids) - 1}'] exits with return code = 1",
            ]
    elif " iteration " in case.text():
        steps = texts[begin:end]
        ending = [f"{lead}[after training is done] datetime: {last:%Y-%m-%d %H:%M:%S} "] if good else []
    else:
        return None
    error = [] if good else [f"{lead}{text}" for text in _KEY_ERROR]
    return name, [*texts[:begin], *(steps if good else steps[: rng.randint(0, len(steps))]), *error, *ending]


_KEY_ERROR = (
    "Traceback (most recent call last):",
    '  File "/home/user/train/train.py", line 331, in <module>',
    "    main()",
    '  File "/home/user/train/train.py", line 288, in main',
    '    batch["attention_mask"] = mask',
    "KeyError: 'attention_mask'",
)


def _moved(texts: list[str], delta: timedelta, pids: int) -> Lines:
    case = shifted(Case("", {"x": tuple(Line(t) for t in texts)}, {}), delta)
    return case.each(lambda text: re.sub(r"(?:(?<=subprocess )|(?<=[Pp]rocess ))\d+", lambda m: str(int(m.group()) + pids), text)).logs["x"]


@variation("second attempt completes")
def _second(case: Case, rng: random.Random) -> Case | None:
    """Then nothing failed in the end."""
    made = _attempt(case, good=True, rng=rng)
    if made is None or "completed" in case.truth["status"]:
        return None
    name, texts = made
    found = _stamps(case)
    later = _moved(texts, max(found) - min(found) + timedelta(minutes=17), 1700)
    quiet = ["run-failed", "run-hung"]
    return replace(case, logs={name: (*case.logs[name], *later)}, truth={"status": "completed", "must_not_find": quiet})


@variation("attempt before")
def _earlier(case: Case, rng: random.Random) -> Case | None:
    """One that failed for another reason: the last one decides."""
    made = _attempt(case, good=False, rng=rng)
    only = _only(case)
    if only is None or len(set(_work(only[1]))) == 1:  # the last attempt that trained is the one that metrics speak of
        return None
    if made is None or "hardware.gpu" in case.truth.get("category", []) or "KeyError" not in "".join(made[1]) or "exits" not in "".join(made[1][-1:]):
        return None
    name, texts = made
    found = _stamps(case)
    before = _moved(texts, -(max(found) - min(found) + timedelta(minutes=11)), -150)
    return replace(case, logs={name: (*(Line(line.text) for line in before), *case.logs[name])})


@variation("cut after the failure")
def _cut(case: Case, rng: random.Random) -> Case | None:
    """The file ends behind the lines that tell it: no word of the launcher."""
    found = _only(case)
    if found is None or "killed" in case.truth.get("category", []) or not case.anchors():
        return None
    name, lines = found
    own = is_launcher(lines)
    scheduler = str(case.truth["category"]).find("scheduler") >= 0 or "hardware.node" in case.truth["category"]
    mine = [n for n, line in enumerate(lines) if line.anchor and (scheduler or not own[n])]
    if not mine:
        return None
    kept = lines[: mine[-1] + 1 + rng.randint(0, 2)]
    return replace(case, logs={name: kept}).claiming(
        or_none=_WHO, must_find=[f for f in case.truth.get("must_find", []) if f["name"].startswith("run-")]
    )


@variation("launcher's end missing")
def _no_end(case: Case, _: random.Random) -> Case | None:
    category = set(case.truth.get("category", []))
    told_by_srun = {"hardware.node", "hardware.gpu"} & category and "srun: error" in case.text()
    if not case.anchors() or "killed" in category or "scheduler" in str(category) or told_by_srun:
        return None

    def change(lines: Lines) -> Lines:
        first, own = failing(lines), is_launcher(lines)
        return tuple(line for n, line in enumerate(lines) if n < first or not own[n])

    changed = case.each_file(change)
    changed = replace(changed, logs={n: lines for n, lines in changed.logs.items() if lines})
    return changed.claiming(or_none=_WHO) if changed.anchors() else None


@variation("beginner's log missing")
def _headless(case: Case, _: random.Random) -> Case | None:
    """What the one that began it said is not there: others must not be taken for it."""
    ranks = set(case.truth.get("ranks", []))
    if not ranks or {"killed", "hang", "launch"} & set(case.truth["category"]) or "slurmstepd" in case.text():
        return None
    gone = 0

    def change(lines: Lines) -> Lines:
        nonlocal gone
        first, part = failing(lines), parted(lines)
        of, own = ranks_of(lines), is_launcher(lines)
        by_host = "host" in leads(lines) and case.truth.get("hosts")
        out = []
        for n, line in enumerate(lines):
            mine = of[n] in ranks or (by_host and part(line.text)[0].strip(" :") in case.truth["hosts"] and not line.text.endswith("code 1"))
            if n >= first and mine and not own[n]:
                gone += line.anchor
                continue
            out.append(line)
        return tuple(out)

    changed = case.each_file(change)
    if not gone or any(line.anchor for line in changed.lines()):
        return None
    return replace(changed, truth={"weak": True, **{who: case.truth[who] for who in _WHO if who in case.truth}})


# ---- noise


def _quiet_places(lines: Lines, where: str) -> range:
    """Where noise may stand: before the work, between steps that go on, anywhere from the failure on, behind all."""
    begin, end = _work(lines)
    steps = [n for n in range(begin, end) if _STEP.search(lines[n].text)]
    if where == "start":
        return range(min(begin, end) // 2, max(1, min(begin, end)))
    if where == "training":
        return range(steps[1], steps[-3]) if len(steps) > 6 else range(0)
    return range(len(lines), len(lines) + 1) if where == "end" else range(len(lines) + 1)


def _noisy(case: Case, rng: random.Random, pieces: tuple[tuple[str, ...], ...], where: str, number: int) -> Case | None:
    def change(lines: Lines) -> Lines:
        places = _quiet_places(lines, where)
        if not len(places):
            return lines
        part, out = parted(lines), list(lines)
        at = sorted((rng.choice(places) for _ in range(number)), reverse=True)
        for place in at:
            lead = part(lines[min(place, len(lines) - 1)].text)[0]
            out[place:place] = [Line(lead + text) for text in rng.choice(pieces)]
        return tuple(out)

    names = [name for name, lines in case.logs.items() if len(lines) > 12 or len(case.logs) == 1]
    changed = {name: change(lines) if name in names else lines for name, lines in case.logs.items()}
    return replace(case, logs=changed)


_ANYWHERE = (
    (
        "/opt/conda/lib/python3.10/site-packages/torch/utils/checkpoint.py:429: UserWarning: torch.utils.checkpoint: please pass in use_reentrant=True or False explicitly.",
        "  warnings.warn(",
    ),
    (
        "huggingface/tokenizers: The current process just got forked, after parallelism has already been used. Disabling parallelism to avoid deadlocks...",
    ),
    ("gpu-3:1234:1300 [3] NCCL INFO Channel 02/0 : 3[3] -> 11[3] [send] via NET/IB/2/GDRDMA",),
    ("ERROR: ld.so: object 'libjemalloc.so' from LD_PRELOAD cannot be preloaded (cannot open shared object file): ignored.",),
    ("wandb: ERROR Error while calling W&B API: context deadline exceeded (<Response [504]>)",),
    ("wandb: Network error (ConnectionError), entering retry loop.",),
    ("tput: No value for $TERM and no -T specified",),
    ("[2024-03-05 15:20:09,497] [ERROR] [metrics.py:41:push] push gateway not reachable (Connection refused)",),
    (
        "2024-01-31 02:14:20.123456: E external/local_xla/xla/stream_executor/cuda/cuda_dnn.cc:9261] Unable to register cuDNN factory: Attempting to register factory for plugin cuDNN when one has already been registered",
    ),
    (
        "E0000 00:00:1706667260.123456    4321 cuda_blas.cc:1418] Unable to register cuBLAS factory: Attempting to register factory for plugin cuBLAS when one has already been registered",
    ),
    ("[WARNING]  async_io requires the dev libaio .so object and headers but these were not found.",),
    ("sample 7 | prediction: 'RuntimeError: CUDA error: uncorrectable ECC error encountered' | target: 'no error' | wrong",),
)
_AT_START = (
    *_ANYWHERE,
    ("[W socket.cpp:426] [c10d] The server socket cannot be initialized on [::]:29500 (errno: 97 - Address family not supported by protocol).",),
    ("[W socket.cpp:663] [c10d] The client socket has failed to connect to [gpu-3]:29500 (errno: 22 - Invalid argument).",),
    ("[W socket.cpp:601] [c10d] The IPv6 network addresses of (gpu-3, 29500) cannot be retrieved (gai error: -2 - Name or service not known).",),
    ("slurmstepd: error: couldn't chdir to `/home/user/run': No such file or directory: going to /tmp instead",),
    ("srun: warning: can't run 1 processes on 2 nodes, setting nnodes to 1",),
    ("", "gpu-3:1234:1300 [0] misc/ibvwrap.cc:63 NCCL WARN Failed to open libibverbs.so[.1]"),
    (
        "gpu-3:1234:1300 [0] NCCL INFO NET/Plugin : Plugin load (libnccl-net.so) returned 2 : libnccl-net.so: cannot open shared object file: No such file or directory",
    ),
    (
        "prompt:",
        "    What is wrong here?",
        "        Traceback (most recent call last):",
        '          File "train.py", line 10, in <module>',
        "            loss.backward()",
        "        torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 79.15 GiB total capacity)",
    ),
    ("stop_words: ['Segmentation fault (core dumped)', 'NCCL WARN', 'Killed', 'exits with return code = -9']",),
)
_SURVIVED = (
    (
        "WARNING feeds: record 11873 skipped: Traceback (most recent call last):",
        '  File "/app/feeds.py", line 88, in parse',
        "    obj = json.loads(line)",
        "json.decoder.JSONDecodeError: Unterminated string starting at: line 1 column 9122 (char 9121)",
        "WARNING feeds: continuing (1 of at most 100 bad records)",
    ),
    (
        "Traceback (most recent call last):",
        '  File "/app/upload.py", line 31, in push',
        "    client.put(path)",
        "requests.exceptions.ConnectionError: ('Connection aborted.', ConnectionResetError(104, 'Connection reset by peer'))",
        "upload failed, trying again in 60 s",
    ),
    (
        "Exception ignored in: <function _MultiProcessingDataLoaderIter.__del__ at 0x7f2b3c4d5e60>",
        "Traceback (most recent call last):",
        '  File "/opt/conda/lib/python3.10/site-packages/torch/utils/data/dataloader.py", line 1466, in __del__',
        "    self._shutdown_workers()",
        '  File "/opt/conda/lib/python3.10/site-packages/torch/utils/data/dataloader.py", line 1449, in _shutdown_workers',
        "    if w.is_alive():",
        "AssertionError: can only test a child process",
    ),
    (
        "Traceback (most recent call last):",
        '  File "/app/evaluate.py", line 77, in generate',
        "    out = model.generate(ids)",
        "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB of which 1.02 GiB is free.",
        "evaluation skipped at this step",
    ),
)
_AT_END = (
    (
        "/usr/lib/python3.8/multiprocessing/resource_tracker.py:216: UserWarning: resource_tracker: There appear to be 6 leaked semaphore objects to clean up at shutdown",
        "  warnings.warn('resource_tracker: There appear to be %d '",
    ),
    ("wandb: Synced 5 W&B file(s), 0 media file(s), 0 artifact file(s) and 0 other file(s)",),
    ("wandb: ERROR Failed to upload file run-history.jsonl: 503 Service Unavailable",),
    (
        "Exception ignored in: <module 'threading' from '/usr/lib/python3.10/threading.py'>",
        "Traceback (most recent call last):",
        '  File "/usr/lib/python3.10/threading.py", line 1567, in _shutdown',
        "    lock.acquire()",
        "KeyboardInterrupt: ",
    ),
    (
        'rsync: [sender] link_stat "/scratch/run/latest" failed: No such file or directory (2)',
        "rsync error: some files/attrs were not transferred (see previous errors) (code 23) at main.c(1338) [sender=3.2.7]",
    ),
    ("sys:1: ResourceWarning: unclosed <socket.socket fd=84, family=2, type=1, proto=0, laddr=('10.0.0.7', 44940)>",),
)


@variation("noise at the start")
def _noise_start(case: Case, rng: random.Random) -> Case | None:
    return _noisy(case, rng, _AT_START, "start", 4)


@variation("noise anywhere")
def _noise(case: Case, rng: random.Random) -> Case | None:
    return _noisy(case, rng, _ANYWHERE, "anywhere", 10)


@variation("exceptions that training survives")
def _noise_survived(case: Case, rng: random.Random) -> Case | None:
    return _noisy(case, rng, _SURVIVED, "training", 2)


@variation("noise at the end")
def _noise_end(case: Case, rng: random.Random) -> Case | None:
    return _noisy(case, rng, _AT_END, "end", 2)


@variation("seen twice")
def _twice(case: Case, _: random.Random) -> Case | None:
    """The same log under two names: one of them a copy that somebody made."""
    found = _only(case)
    return replace(case, logs={**case.logs, f"copy/{found[0]}": found[1]}) if found and not LAUNCHER.search(found[0]) else None
