"""What torchtitan prints (and what was made of it: flame, cosmos-rl): how it cuts the job, its schedule, its steps with the memory of the rank that prints.

    [rank7]:[titan] 2025-05-28 21:11:37,000 - root - INFO - Building 3-D device mesh with ['pp', 'dp_shard', 'tp'], [4, 2, 2]
    Building device mesh with parallelism: pp=2, dp_replicate=1, dp_shard=1, cp=1, tp=1, ep=1, etp=1
    Using pipeline schedule 1F1B with 8 microbatches and 4 stages.
    Training starts at step 101.
    step: 10  loss:  8.1309  grad_norm:  2.3301  memory: 27.60GiB(29.10%)  tps: 1,234  tflops: 71.20  mfu: 7.12%
    step: 10  loss:  8.1309  memory: 27.60GiB(29.10%)  wps: 1,234  mfu: 7.12%                                before 0.0.3
    step: 640/644 = 99.3789%  loss:  6.2116  memory: 87.04GiB(93.48%)  tps: 52,142  mfu: 3.09%               flame
    Finished saving the checkpoint (or staging if async is enabled)in 8.21 seconds.

The memory is the peak of what was reserved since the line before. Ranks that do not hold the last stage print a loss below zero, which is none. No line
says how long a step took: that is told from the stamps of one line and the next (tables/steps.py).
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from pipelog.parsers._facts import first_of_each
from pipelog.parsers._stamps import ISO, iso_ns
from pipelog.parsing import Records, Rows, lines

_NUMBER = r"(?:-?\d[\d.]*(?:e[-+]?\d+)?|nan|-?inf)"
_COUNT = r"\d[\d,]*(?:\.\d+)?"
_BEFORE = rf"(?:(?P<stamp>{ISO}) - [\w.]+ - [A-Z]+ - |^|[^\w\s]\s*)"
"""Its logger's stamp; else what no word is: `validate step: …` is no step."""
_SCALARS = {"grad_norm": "grad_norm", "tps": "tokens_per_gpu_per_s", "tflops": "tflops_per_gpu", "mfu": "mfu_percent"}


@lines(
    "torchtitan-step",
    mark="GiB(",
    pattern=rf"{_BEFORE}step: +(?P<step>\d{{1,9}})(?:/(?P<total>\d{{1,9}}) = [\d.]+%)?  +loss: +(?P<loss>{_NUMBER})(?:  +grad_norm: +(?P<grad_norm>{_NUMBER}))?"
    rf"  +memory: +(?P<memory>\d[\d.]*)GiB\((?P<percent>\d[\d.]*)%\)(?:  +[tw]ps: +(?P<tps>{_COUNT}))?(?:  +tflops: +(?P<tflops>{_COUNT}))?(?:  +mfu: +(?P<mfu>{_COUNT})%)?",
)
def step(found: Records) -> Iterator[Rows]:
    """A step, its scalars, the memory of the rank that prints it; of the device's own memory what the first line's percentage tells."""
    found.columns |= {"step": found.int("step"), **_when(found)}
    for name in ("tps", "tflops", "mfu"):
        found.groups[name] = pc.replace_substring(found.groups[name], ",", "")
    yield found.rows("step", "torchtitan")
    planned = found.where(found.has("total"))
    yield planned.rows("iteration", "torchtitan", value=planned.float("total"), text="loss")
    known = found.where(pc.invert(pc.starts_with(found.groups["loss"], "-")))
    yield known.rows("scalar", "loss", value=known.float("loss"))
    for group, name in _SCALARS.items():
        mine = found.where(found.has(group))
        yield mine.rows("scalar", name, value=mine.float(group))
    yield found.rows("memory", "max_reserved", bytes=found.bytes("memory", "GiB"), stream="one-rank")
    first = found.where(pc.equal(found.columns["line"], pc.min(found.columns["line"])))
    share = pc.divide(pc.multiply(first.float("memory"), 100 * 2**30), first.float("percent"))
    yield first.where(pc.greater_equal(first.float("percent"), 10)).rows(
        "memory_capacity", "nominal", bytes=pc.cast(pc.round(share), pa.int64(), safe=False)
    )


def _when(found: Records) -> dict[str, pa.Array]:
    stamp = iso_ns(found["stamp"])
    return {
        "start_ns": pc.coalesce(found.columns["start_ns"], stamp),
        "clock": pc.coalesce(found.columns["clock"], pc.if_else(pc.is_valid(stamp), pa.scalar("log"), pa.scalar(None, pa.string()))),
    }


_AXES = {"pp": "pp", "dp": "dp", "tp": "tp", "cp": "cp"}
"""Axes of the mesh by the first part of their names: `dp_replicate` times `dp_shard` are the replicas; the axes of experts lie within them."""
_AXIS = r"(?:pp|dp(?:_[a-z_]+)?|cp|tp)"


@lines(
    "torchtitan-mesh",
    mark=(" device mesh with ['", " device mesh with parallelism: "),
    pattern=rf"Building (?:\d-D device mesh with \[(?P<names>'{_AXIS}'(?:, '{_AXIS}')*)\], \[(?P<sizes>\d{{1,6}}(?:, \d{{1,6}})*)\]"
    r"|device mesh with parallelism: (?P<pairs>[a-z_]+=\d{1,6}(?:, [a-z_]+=\d{1,6})*))",
    once=True,
)
def mesh(found: Records) -> Iterator[Rows]:
    """The sizes of the grid: an axis that is not named is one of 1."""
    each = first_of_each(found, "names", "sizes", "pairs")
    products: dict[str, list[int | None]] = {axis: [] for axis in _AXES}
    for names, sizes, pairs in zip(*(each.groups[g].to_pylist() for g in ("names", "sizes", "pairs")), strict=True):
        listed = (
            [p.partition("=")[::2] for p in pairs.split(", ")]
            if pairs
            else list(zip(names.replace("'", "").split(", "), sizes.split(", "), strict=False))
        )
        whole = bool(pairs) or names.count(",") == sizes.count(",")
        for axis, product in products.items():
            size = 1
            for name, number in listed:
                size *= int(number) if name.partition("_")[0] == axis else 1
            product.append(size if whole and 0 < size < 2**31 else None)
    for axis, product in products.items():
        values = pa.array(product, pa.float64())
        stated = each.where(pc.is_valid(values))
        yield stated.rows("fact", f"topology.{axis}", value=values.drop_null(), text=pc.cast(pc.cast(values.drop_null(), pa.int64()), pa.string()))


@lines(
    "torchtitan-schedule",
    mark="Using pipeline schedule ",
    pattern=r"Using pipeline schedule (?P<schedule>[A-Za-z0-9_]+) with (?P<micro>\d{1,7}) microbatches and (?P<stages>\d{1,5}) stages\.?",
    once=True,
)
def schedule(found: Records) -> Iterator[Rows]:
    """The schedule, its micro-batches, and its stages: of a schedule with several stages a rank those of all."""
    each = first_of_each(found, "schedule", "micro", "stages")
    yield each.rows("fact", "schedule.name", text=each["schedule"])
    yield each.rows("fact", "config.micro_batches", value=each.float("micro"), text=each["micro"])
    yield each.rows("fact", "schedule.stages", value=each.float("stages"), text=each["stages"])
    single = each.where(pc.is_in(each.groups["schedule"], pa.array(_SINGLE)))
    yield single.rows("fact", "topology.pp", value=single.float("stages"), text=single["stages"])


_SINGLE = ("1F1B", "GPipe")
"""Schedules of one stage a rank."""


@lines("torchtitan-resumed", mark="Training starts at step ", pattern=r"Training starts at step (?P<next>\d{1,9})[.,]", once=True)
def resumed(found: Records) -> Iterator[Rows]:
    """Give the step of the checkpoint that was loaded: the one before the first to be made."""
    made = pc.subtract(found.int("next"), 1)
    later = found.where(pc.greater(made, 0))
    yield later.rows("fact", "resume.step", value=pc.cast(made.filter(pc.greater(made, 0)), pa.float64()))


@lines(
    "torchtitan-saved",
    mark="Finished saving the checkpoint",
    pattern=r"Finished saving the checkpoint(?: \(or staging if async is enabled\))? ?in (?P<seconds>\d[\d.]*) seconds",
)
def saved(found: Records) -> Iterator[Rows]:
    """Give a checkpoint that is there; which step is in it the line does not say: the one that was printed last."""
    yield found.rows("checkpoint", "finished", dur_ns=found.seconds("seconds"))
