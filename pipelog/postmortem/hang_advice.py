"""What to do about a hang, and what would tell more: after who was missing, where they stood, or that nobody was."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pipelog._text import listed
from pipelog.findings import Advice
from pipelog.postmortem.case import Whom
from pipelog.postmortem.hangs import Hang
from pipelog.postmortem.kinds.engine import NAMING
from pipelog.postmortem.silence import SLEPT

_CALL_STOOD = (
    "why the call did not finish: the counters of the ports and switches, the kernel logs of these hosts, NCCL's own lines (NCCL_DEBUG=INFO)",
)


def still_missing(hang: Hang | None, missing: tuple[str, ...]) -> tuple[str, ...]:
    """What would tell more: no stacks where they are there; where all were in the same call, no stack differs and no call was missed."""
    if hang is None:
        return missing
    return _CALL_STOOD if hang.same_call else tuple(m for m in missing if not ((hang.stood or hang.seen) and "py-spy" in m))


def look_first(hang: Hang | None, more: Iterable[Advice]) -> Iterator[Advice]:
    """What to look at first: at those who had ended by themselves, at those who stood in another call, at the stacks that are there; then *more*, which the kind advises."""
    if hang is None:
        yield from more
        return
    who = f"rank{'s' if len(hang.ranks) > 1 else ''} {listed(hang.ranks)}"
    if hang.left:
        yield Advice(
            f"see why the script of {who} came to its end before the others: fewer batches (sampler, drop_last, data set), an early return or exit"
        )
    elif hang.doing and hang.ranks:
        yield Advice(
            f"see how {who} came to that call while the others were in another one: a different number of batches or micro-batches, a collective that only some ranks call"
        )
    if hang.seen:
        yield Advice(f"see why {who} stood in {hang.seen}: the stack is among the files")
    if hang.stood:
        yield Advice(f"compare the stacks that are among the files: {hang.stood}")
    if hang.same_call:
        yield Advice(
            "check the fabric and the devices of these ranks: the error counters of the ports (`ibqueryerrors`, `ethtool -S`), `nvidia-smi nvlink -e`, "
            "`dmesg -T | grep -i -E 'xid|mlx'`, all_reduce_perf of nccl-tests over the same hosts"
        )
        yield Advice("set NCCL_DEBUG=INFO for the next run: which network and rings it takes, and what it warns of")
        return
    shown = bool(hang.stood or hang.seen)
    if hang.ranks and not shown and not hang.left and not hang.doing:
        its = "its log, `dmesg -T` of its host" if len(hang.ranks) == 1 else "their logs, `dmesg -T` of their hosts"
        one = "it" if len(hang.ranks) == 1 else "each"
        yield Advice(f"look at {who} first: the last lines of {its}; while it hangs, `py-spy dump --pid …` of {one}, and of a rank that waits")
        shown = True
    yield from (a for a in more if not (shown and "py-spy" in a.action) and not (hang.ranks and a is NAMING))


def look_at(hang: Hang, whom: Whom) -> Iterator[Advice]:
    """What to do about ranks that dumps, stacks or GPUs show: none asks for stacks that are there."""
    who = f"rank{'s' if len(whom.ranks) > 1 else ''} {listed(whom.ranks)}"
    if SLEPT in hang.doing:
        hosts = listed(whom.hosts) or "its host"
        yield Advice(
            f"see whether the file system answers on {hosts}: `dmesg -T | grep -i 'not responding'`, `stat` of the folder that is written, the load of its server; "
            "a process in this state ends only when its call does, and no dump of its stack works"
        )
    elif hang.doing and hang.stood:
        yield Advice(
            f"see why the batch of {who} took so long: the stack stands in the process itself; the storage that the data set lies on, `dmesg -T` of its host"
            if "making a batch" in hang.doing
            else f"see what the data loader of {who} waits for: `py-spy dump --subprocesses` shows its workers; the storage that the data set lies on"
        )
    elif whom.ranks:
        dump = "its stack (it is among the files)" if hang.stood else "py-spy dump if it still runs"
        yield Advice(f"look at {who}: its log's last line, {dump}, `dmesg -T` of its host")
    elif hang.stood:
        yield Advice("compare the stacks: the process that does not stand where its peers stand is the one that was waited for")
    else:
        yield Advice("while it hangs: `py-spy dump --pid …` on every rank; the one whose stack differs is the one that is waited for")
    if whom.hosts and not (hang.doing and hang.stood) and set(whom.hosts) != {"localhost"}:
        yield Advice("if the same host stands out again, take it out of the pool")
