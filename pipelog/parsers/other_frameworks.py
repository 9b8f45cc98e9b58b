"""Steps and ends as other trainers and their launchers print them: verl and Ray's job client, Composer, Colossal-AI.

    (TaskRunner pid=3999) step:34 - actor/pg_loss:-0.041 - actor/grad_norm:0.266 - timing_s/step:21.152 - perf/throughput:909.06
    step:34 - train/loss:0.532 - train/lr(1e-3):0.0098                                        verl's supervised training
    Job 'raysubmit_kQ81xYvBfZ3T7hJm' succeeded
    [batch=120/63900]:                                                                        Composer, its figures below
             Train loss/train/total: 6.9000
    [epoch=2][batch=20/31]:
    ====== Training on All Nodes =====                                                        colossalai run
    127.0.0.1: success

verl's policy losses are no losses of the model, and its memory is that of whichever worker: neither is read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import pyarrow.compute as pc

from pipelog.parsing import Block, Records, Row, Rows, block, lines, records

_NUMBER = r"(?:[-+]?\d[\d.]*(?:[eE][-+]?\d+)?|nan|-?inf)"
_VALUE = rf"(?:np\.float\d\d\()?(?P<{{}}>{_NUMBER})"


@lines(
    "verl-step",
    mark=(" - timing_s/step:", " - train/loss:"),
    pattern=rf"(?:^|\) )step:(?P<step>\d{{1,9}}) - (?:.*\bactor/grad_norm:{_VALUE.format('norm')}\)? - .*\btiming_s/step:{_VALUE.format('timed')}"
    rf"|.*\btiming_s/step:{_VALUE.format('seconds')}|(?:.* - )?train/loss:{_VALUE.format('loss')})",
)
def verl(found: Records) -> Iterator[Rows]:
    """A step with its duration, the gradient norm of the actor or the loss of supervised training."""
    found.columns |= {"step": found.int("step")}
    yield found.rows("step", "verl", dur_ns=pc.coalesce(found.seconds("timed"), found.seconds("seconds")))
    for group, name in (("norm", "grad_norm"), ("loss", "loss")):
        mine = found.where(found.has(group))
        yield mine.rows("scalar", name, value=mine.float(group))


# (TaskRunner pid=3999) ('Final validation metrics: '
@records(
    "verl-done",
    mark="Final validation metrics: ",
    head=r"^(?:\(\w[\w.]* pid=\d+[^)]*\) )?\(?['\"]$",
    pattern=r"^(?P<words>Final validation metrics: )",
)
def verl_done(found: Records) -> Iterator[Rows]:
    """Give the end of verl's training: the validation after its last step."""
    yield found.rows("end", "script-done", text=pc.utf8_rtrim(found["words"], ": "))


@records(
    "ray-job",
    mark="Job '",
    head=r"^(?:[\d-]+ [\d:,]+\s+\w+ cli\.py:\d+ -- )?$",
    pattern=r"^(?P<words>Job '[^']{1,200}' (?:succeeded|(?P<failed>failed)|was (?P<stopped>stopped)))\s*$",
)
def ray_job(found: Records) -> Iterator[Rows]:
    """Give how Ray's client says that the job it followed ended."""
    name = pc.if_else(found.has("stopped"), "batch-cancelled", pc.if_else(found.has("failed"), "child-failed", "script-done"))
    yield found.rows("end", name, text=found["words"])


_BATCH = re.compile(r"\[batch=(\d{1,9})/(\d{1,9})\]:\s*$")
_EPOCH = re.compile(r"(?:^|\s)(?:\[epoch=(?P<epoch>\d{1,6})(?:/(?P<epochs>\d{1,6}))?\])?$")
_FIGURE = re.compile(rf"\s+Train ([\w/-]+): ({_NUMBER})\s*$")
_FIGURES = {"loss/train/total": "loss", "lr-DecoupledAdamW/group0": "learning_rate", "l2_norm/grad/global": "grad_norm"}


@block("composer-batch", mark="[batch=", most=80)
def composer(found: Block) -> Iterator[Row]:
    """Give a batch, which is a step, how many there will be, and the figures that stand below it."""
    rows = found.lines()
    number, first = next(rows)
    batch, epoch = _BATCH.match(first), _EPOCH.search(found.head)
    if batch is None or epoch is None:
        return
    each = int(batch[2])
    step = (int(epoch["epoch"] or 1) - 1) * each + int(batch[1])
    yield {"kind": "step", "name": "composer", "step": step, "line": number}
    if epochs := epoch["epochs"] or (None if epoch["epoch"] else 1):
        yield {"kind": "iteration", "name": "composer", "step": step, "value": float(int(epochs) * each), "text": "loss", "line": number}
    for number, text in rows:
        figure = _FIGURE.match(text)
        if figure is None:
            return
        if name := _FIGURES.get(figure[1]):
            yield {"kind": "scalar", "name": name, "step": step, "value": float(figure[2]), "line": number}


_HOST = re.compile(r"([\w.-]{1,255}): (success|failure)\s*$")


@block("colossalai-hosts", mark="====== Training on All Nodes =====", most=4096)
def colossalai(found: Block) -> Iterator[Row]:
    """Give how the launcher on each host ended: a good end where all did well."""
    rows = found.lines()
    next(rows)
    hosts: list[tuple[int, str, str, bool]] = []
    for number, text in rows:
        if (said := _HOST.match(text)) is None:
            break
        hosts.append((number, text.strip(), said[1], said[2] == "success"))
    for number, text, host, good in hosts:
        if not good:
            yield {"kind": "end", "name": "child-failed", "host": host, "text": text, "line": number}
    if hosts and all(good for *_, good in hosts):
        number, text, *_ = hosts[-1]
        yield {"kind": "end", "name": "training-done", "text": text, "line": number}
