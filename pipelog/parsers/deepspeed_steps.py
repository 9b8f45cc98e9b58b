"""DeepSpeed step lines of rank 0: `steps:` (print, all versions) and `step=` (logger, hidden by default since v0.17.6).

    steps: 120 loss: 2.9134 iter time (s): 4.812 samples/sec: 106.401
    [Rank 0] step=120, skipped=2, lr=[0.00015, 0.00015], mom=[(0.9, 0.95), (0.9, 0.95)]

`iter time` is the mean over the `steps_per_print` steps that end there; v0.4.0 - v0.5.6 and v0.6.2 - v0.6.3 print it in
another unit or divided twice, which the table `steps` puts right where the version is known.
"""

from collections.abc import Iterator

from pipelog.parsing import Records, Rows, records

_NUMBER = r"[-+0-9.einafEINAF]+"
"""A number, nan or inf; loose, so that the pattern can be matched in one pass (RE2 then takes half the time)."""


@records(
    "deepspeed-steps",
    mark="steps: ",
    # what other losses are printed in between must not be told from `iter time`: RE2 then matches in one pass, in half the time
    pattern=rf"^steps: (?P<step>\d+) loss: (?P<loss>{_NUMBER}) [^(]*\(s\): (?P<seconds>{_NUMBER}) samples/sec: (?P<rate>{_NUMBER})",
    torn=r"^steps: \d+ loss: ",
)
def steps(found: Records) -> Iterator[Rows]:
    """A `step` row and its loss and throughput."""
    step = found.int("step")
    yield found.rows("step", "deepspeed", step=step, dur_ns=found.seconds("seconds"))
    yield found.rows("scalar", "loss", step=step, value=found.float("loss"))
    yield found.rows("scalar", "samples_per_s", step=step, value=found.float("rate"))


@records("deepspeed-progress", mark="step=", pattern=r"^step=(?P<step>\d+), skipped=(?P<skipped>\d+), lr=\[(?P<lr>[^,\]]*)")
def progress(found: Records) -> Iterator[Rows]:
    """The counter of skipped steps (since the start of training) and the learning rate of the first group."""
    step = found.int("step")
    yield found.rows("progress", "deepspeed", step=step)
    yield found.rows("scalar", "skipped_steps", step=step, value=found.float("skipped"))
    rated = found.where(found.has("lr"))
    yield rated.rows("scalar", "learning_rate", step=rated.int("step"), value=rated.float("lr"))
