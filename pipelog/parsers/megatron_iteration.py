"""Iteration and validation lines of Megatron-LM, Megatron-DeepSpeed, BigScience, gpt-neox and Argonne's fork: ` | ` separated fields.

     iteration      100/    1000 | consumed samples:          400 | elapsed time per iteration (ms): 1379.8 | learning rate: 1.471E-04 | … |
     [2024-03-05 14:10:02] iteration      100/  500000 | consumed samples: … |                  Megatron-LM core_v0.8.0 on
     iteration        1/    1000 | elapsed time per iteration (ms): 121899.8 | learning rate: 1.875E-05 | lm loss: 1.252221E+01 | …       v1.0
     iteration      100/    1000 | … | elapsed time per iteration (s): 12.34 | …                BigScience: seconds
     samples/sec: 31.204 | iteration     100/  320000 | elapsed time per iteration (ms): 16408.0 | …       gpt-neox
    [2024-06-21 10:50:42][INFO][training:1609] -  iteration=       1/  317892 | consumed_samples=         768 | … |      Argonne's fork

Printed by the last rank (gpt-neox and v1.0: rank 0). The elapsed time is the wall time between two prints, divided by the
iterations between them; losses are means over that interval. Megatron leaves out a loss that is not greater than 0, so also NaN.

     validation loss at iteration 100 | lm loss value: 8.017406E+00 | lm loss PPL: 3.033300E+03 |
     validation loss at iteration 2500 on 320-sample draw from test set | lm loss value: 1.495915E+01 | lm loss PPL: 3.138158E+06 |
     validation loss at the end of training for val data | lm loss value: 2.801000E+00 | lm loss PPL: 1.646111E+01 |
     validation results at iteration 1000 | lm_loss value: 2.801000E+00 | lm_loss_ppl value: 1.646111E+01 |       gpt-neox
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from pipelog.events import Skipped
from pipelog.parsers._facts import times
from pipelog.parsers._fields import fields
from pipelog.parsing import Records, Rows, records

_FIELD = r" [A-Za-z][\w -]*(?:\([^)|]*\))?: +[^ |]+ \|"
_EXPONENT = r"-?\d+\.\d+[eE][-+]\d\d+|nan|NAN|inf|INF"
_NAMES = {
    "lm loss": "loss",
    "lm_loss": "loss",
    "lm-loss": "loss",
    "elapsed time per iteration (ms)": "elapsed_time",
    "elapsed time per iteration (s)": "elapsed_time",
    "elapsed_time_per_iteration_ms": "elapsed_time",
    "number of skipped iterations": "skipped_in_interval",
    "number_of_skipped_iterations": "skipped_in_interval",
    "number of nan iterations": "nan_in_interval",
    "number_of_nan_iterations": "nan_in_interval",
    "samples per second": "samples_per_s",
    "samples_per_second": "samples_per_s",
    "tokens per gpu per second (tgs)": "tokens_per_gpu_per_s",
    "tokens_per_gpu_per_second_tgs": "tokens_per_gpu_per_s",
    "[LM]TFLOPs": "tflops_per_gpu",
    "[LM]-TFLOPs": "tflops_per_gpu",
    "TFLOPs": "tflops_per_gpu",
    "throughput per GPU (TFLOP/s/GPU)": "tflops_per_gpu",
    "approx flops per GPU": "tflops_per_gpu",
    "MFU": "mfu_percent",
    "HFU": "hfu_percent",
    "energy per GPU (J/iter/GPU)": "energy_per_gpu_j",
    "power per GPU (W/GPU)": "power_per_gpu_w",
}
"""Names of the event table; every other field keeps its own, with underscores (`grad norm`: `grad_norm`)."""


@records(
    "megatron-iteration",
    mark="elapsed time per iteration (",
    pattern=rf"^elapsed time per iteration \((?P<unit>ms|s)\): *(?P<elapsed>\d+\.\d+) \|(?P<after>(?:{_FIELD})*)(?P<rest>.*)$",
    head=r"(?:\[(?P<stamp>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)(?P<fraction>\.\d{1,9})?\] |samples/sec: (?P<rate>[\d.]+) \| )?"
    rf"iteration +(?P<step>\d{{1,9}})/ *(?P<total>\d{{1,15}}) \|(?P<before>(?:{_FIELD})*) $",
    torn=r"^elapsed time per iteration \((?:ms|s)\): *[\d.]*$",
)
def iteration(found: Records) -> Iterator[Rows]:
    """A step, its scalars, and which fields the line has; of a line that is broken off, what stands before that."""
    _stamped(found)
    neox = pc.or_(found.has("rate"), pc.match_substring(found.groups["after"], "approx flops per GPU: "))
    found.groups["name"] = pc.if_else(neox, "neox", "megatron")
    took = pc.if_else(pc.equal(found.groups["unit"], "s"), found.seconds("elapsed"), found.ms("elapsed"))
    yield found.rows("step", found.groups["name"], dur_ns=took)

    rated = found.where(found.has("rate"))
    yield rated.rows("scalar", "samples_per_s", value=rated.float("rate"))
    found.groups["fields"] = pc.binary_join_element_wise(found.groups["before"], " elapsed time per iteration (ms): 0 |", found.groups["after"], "")
    # a last field without its ` |`: which fields the line had is not known then, and a loss that is not there means NaN
    broken = pc.match_substring_regex(found.groups["rest"], r"^ [A-Za-z][\w -]*(?:\([^)|]*\)?)?(?::? *|: +[^ |]+)$")
    yield from _fields(found, broken, "megatron-iteration")


_EQUAL = r" [\[A-Za-z][\w \[\]-]*= *[^ |=]+ \|"


# [2024-06-21 10:50:42][INFO][training:1609] -  iteration=       1/  317892 | consumed_samples=         768 | elapsed_time_per_iteration_ms=108893.2 | …
@records(
    "megatron-iteration-equal",
    mark="elapsed_time_per_iteration_ms=",
    pattern=rf"^elapsed_time_per_iteration_ms= *(?P<elapsed>\d+\.\d+) \|(?P<after>(?:{_EQUAL})*)(?P<rest>.*)$",
    head=r"(?:\[(?P<stamp>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)(?P<fraction>\.\d{1,9})?\]\S* -? *)?"
    rf"\biteration= *(?P<step>\d{{1,9}})/ *(?P<total>\d{{1,15}}) \|(?P<before>(?:{_EQUAL})*) $",
    torn=r"^elapsed_time_per_iteration_ms= *[\d.]*$",
)
def equal(found: Records) -> Iterator[Rows]:
    """Give the same rows of lines that write `name= value`."""
    _stamped(found)
    found.groups["name"] = pa.array(["megatron"] * len(found))
    yield found.rows("step", found.groups["name"], dur_ns=found.ms("elapsed"))
    joined = pc.binary_join_element_wise(found.groups["before"], " elapsed_time_per_iteration_ms=0 |", found.groups["after"], "")
    found.groups["fields"] = pc.replace_substring_regex(joined, r"= *", ": ")
    broken = pc.match_substring_regex(found.groups["rest"], r"^ [\[A-Za-z][\w \[\]-]*(?:= *[^ |]*)?$")
    yield from _fields(found, broken, "megatron-iteration-equal")


def _stamped(found: Records) -> None:
    """Fill in the step, and the time of the line's own stamp where it has one."""
    stamp = pc.add(times(found["stamp"]), pc.coalesce(found.scaled("fraction", 1e9), pa.scalar(0, pa.int64())))
    clock = pc.if_else(pc.is_valid(stamp), "log", found.columns["clock"])
    found.columns |= {"step": found.int("step"), "start_ns": pc.coalesce(stamp, found.columns["start_ns"]), "clock": clock}


def _fields(found: Records, broken: pa.Array, key: str) -> Iterator[Rows]:
    """The scalars of a line, and which fields it has where it is whole."""
    each = fields(found, "fields")
    names = _named(each.groups["name"])
    each.groups |= {"name": names, "value": pc.replace_substring_regex(each.groups["value"], r"(?:TFLOPS|%)$", "")}
    others = each.where(pc.not_equal(names, "elapsed_time"))
    yield others.rows("scalar", others.groups["name"], value=others.float("value"))

    found.skipped.extend(Skipped(line, f"{key}: the line is broken off") for line in found.columns["line"].filter(broken).to_pylist())
    ends = pc.cumulative_sum(pc.count_substring(found.groups["fields"], "|"))
    lists = pa.ListArray.from_arrays(pa.concat_arrays([pa.array([0], pa.int32()), ends.cast(pa.int32())]), names)
    found.groups["fields"] = pc.binary_join(lists, " ")
    whole = found.where(pc.invert(broken))
    yield whole.rows("iteration", whole.groups["name"], value=whole.float("total"), text=whole["fields"])


def _named(printed: pa.Array) -> pa.Array:
    """Return the event table's names of printed fields; only the different ones are looked at."""
    words = printed.dictionary_encode()
    known = [_NAMES.get(w) or re.sub(r"[^a-z0-9]+", "_", w.lower()).strip("_") for w in words.dictionary.to_pylist()]
    return pa.array(known, pa.string()).take(words.indices)


@records(
    "megatron-validation",
    mark=("validation loss at ", "validation results at ", "test results at "),
    pattern=r"^(?P<what>\w+) (?:loss|results) at (?:iteration (?P<step>\d{1,9})|the end of training for (?P<of>\w+) data)"
    rf"(?: on \d+-sample draw from (?P<set>\w+) set)? \| [\w -]*loss value: (?P<loss>{_EXPONENT})",
    torn=r"^(?:validation|test) (?:loss|results) at iteration \d+ \| ",
)
def validation(found: Records) -> Iterator[Rows]:
    """The first loss of the line, for the validation or the test set."""
    test = pc.or_(pc.or_(pc.equal(found.groups["what"], "test"), pc.equal(found.groups["of"], "test")), pc.equal(found.groups["set"], "test"))
    yield found.rows("scalar", pc.if_else(test, "test_loss", "validation_loss"), step=found.int("step"), value=found.float("loss"))
