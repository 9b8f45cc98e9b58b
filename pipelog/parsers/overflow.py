"""Steps skipped for an overflow in fp16, and what the loss scale becomes. bf16 has no loss scale.

The printing rank is named (`Rank 0`), not the one that saw the overflow; some versions print on every rank. Numbers may be whole or not.

    [deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 4096, reducing to 2048                                  v0.8.3 on
    [deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 65536, but hysteresis is 2. Reducing hysteresis to 1    v0.8.3 on
    [deepscale] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 262144, reducing to 262144             v0.3.12 - v0.8.2, hysteresis
    [deepspeed] fp16 dynamic loss scale overflow! Rank 0 Skipping step. Attempted loss scale: 131072, reducing to 65536.0     up to v0.5.7
    [deepspeed] fp16 dynamic loss scale overflow! Skipping step. Attempted loss scale: 1.0, reducing to 1                     unfused, each rank
    [Rank 0] Overflow detected. Skipping step. Attempted loss scale: 1, reducing to 1                                         fused
    Consecutive hysteresis is enabled. Restoring hysteresis to 2
    Exception: Current loss scale already at minimum - cannot decrease scale anymore. Exiting run.

Verbose lines of the fused and unfused optimizers, and the rank that saw it:

    Grad overflow on iteration: 6
    Reducing dynamic loss scale from 4096 to 2048.0
    Increasing dynamic loss scale from 16384.0 to 32768.0
    rank 5 detected overflow nan in tensor 0:3 shape torch.Size([1024, 4096])
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow.compute as pc

from pipelog.parsing import Records, Rows, records

_SCALE = r"\d[\d.]*(?:[eE][-+]?\d+)?"
_LOWEST = 1.0
"""DeepSpeed's default of `min_loss_scale`."""


@records(
    "overflow",
    mark="Skipping step.",
    pattern=rf"^Skipping step\.(?:\s*$| Attempted loss scale: (?P<scale>{_SCALE}), (?:reducing to (?P<new>{_SCALE})|but (?P<held>hysteresis) is \d+\. Reducing))",
    head=r"(?:OVERFLOW! |overflow! |Overflow detected\. )(?:Rank \d+ )?$",
    torn=r"^Skipping step\. Attempted",
)
def overflow(found: Records) -> Iterator[Rows]:
    """One row per line, each a skipped step, and the new loss scale.

    `floor`: the new scale is the old one and not above 1, the default minimum. Equal above that is old releases' hysteresis.
    """
    scale, new = found.float("scale"), found.float("new")
    same = pc.fill_null(pc.equal(scale, new), False)
    low = pc.fill_null(pc.less_equal(scale, _LOWEST), False)
    held = pc.or_(found.has("held"), pc.and_not(same, low))
    name = pc.if_else(held, "hysteresis", pc.if_else(same, "floor", "skip"))
    yield found.rows("overflow", name, value=scale)
    reduced = found.where(pc.is_valid(new))
    yield reduced.rows("scalar", "loss_scale", value=reduced.float("new"))


@records(
    "overflow-restored", mark="Restoring hysteresis to ", head="hysteresis is enabled. $", pattern=r"^Restoring hysteresis to (?P<count>\d{1,9})"
)
def restored(found: Records) -> Iterator[Rows]:
    """The scale may be attempted so many times again before it is reduced; no step is skipped."""
    yield found.rows("overflow", "restored", value=found.float("count"))


@records(
    "overflow-floor",
    mark="Current loss scale already at minimum",
    head="Exception: $",
    pattern=r"^(?P<words>Current loss scale already at minimum[^\r\n]*?)\s*$",
)
def floor(found: Records) -> Iterator[Rows]:
    """The scale can fall no further: the run ends."""
    yield found.rows("overflow", "floor", text=found["words"])


@records(
    "overflow-culprit",
    mark=" detected overflow ",
    head=r"\b[Rr]ank (?P<rank>\d{1,9})$",
    pattern=r"^ detected overflow (?P<what>\S+ in tensor \S.*?)\s*$",
)
def culprit(found: Records) -> Iterator[Rows]:
    """The rank whose gradients hold the value that is no number."""
    yield found.rows("overflow", "culprit", rank=found.int("rank"), text=found["what"])


@records("overflow-iteration", mark="Grad overflow on iteration", pattern=r"^Grad overflow on iteration:? (?P<step>\d{1,9})\s*$")
def grad(found: Records) -> Iterator[Rows]:
    """The step of the skipped step whose own line follows; the optimizer counts from 0, DeepSpeed from 1."""
    yield found.rows("overflow", "iteration", step=pc.add(found.int("step"), 1))


@records(
    "overflow-scale",
    mark=("Reducing dynamic loss scale from ", "Increasing dynamic loss scale from "),
    pattern=rf"^(?P<way>\w+) dynamic loss scale from {_SCALE} to (?P<new>{_SCALE})\s*$",
)
def scale(found: Records) -> Iterator[Rows]:
    """The new loss scale."""
    yield found.rows("scalar", "loss_scale", value=found.float("new"))
