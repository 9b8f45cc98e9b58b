"""The configuration the job ran with: each value from each source, what follows, and who is believed."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelog.events import Input, Skipped
from pipelog.tables.config import Config
from tests.making import Row, Trace, fact, of_traces, tables, topology_map


def config(*rows: Row, inputs: list[Input] | None = None) -> Config:
    found: Config = tables(rows, inputs)["config"]
    return found


def ds(file: str = "ds_config.json", **values: Any) -> list[Row]:
    """The facts of a ds_config.json; a double underscore stands for a dot."""
    return [fact(f"config.{name.replace('__', '.')}", value, file=file, line=n) for n, (name, value) in enumerate(values.items(), 1)]


# ---- m, from each source


@pytest.mark.parametrize(
    ("rows", "m", "source"),
    [
        ([fact("config.micro_batches", 8)], 8, "config.micro_batches"),
        ([fact("config.gradient_accumulation_steps", 12)], 12, "config.gradient_accumulation_steps"),
        ([fact("args.gradient_accumulation_steps", 3)], 3, "args.gradient_accumulation_steps"),
        ([fact("config.train_batch_size", 64), fact("config.train_micro_batch_size_per_gpu", 4), fact("topology.dp", 4)], 4, "train batch = "),
        ([fact("args.global_batch_size", 1024), fact("args.micro_batch_size", 4), fact("args.data_parallel_size", 1)], 256, "train batch = "),
        (ds(train_micro_batch_size_per_gpu=4), 1, "DeepSpeed's default"),
    ],
)
def test_m_from_each_source(rows: list[Row], m: int, source: str) -> None:
    found = config(*rows)
    assert found.micro_batches == m
    assert found.said["micro_batches"].source.startswith(source)


def test_what_the_engine_prints_is_believed_before_what_it_was_given() -> None:
    """`CONFIG: micro_batches=8` of the engine, 16 in the file, 4 on the command line."""
    found = config(fact("args.gradient_accumulation_steps", 4), *ds(gradient_accumulation_steps=16), fact("config.micro_batches", 8))
    assert found.micro_batches == 8


def test_m_from_the_passes_in_a_trace() -> None:
    """Three forward passes in each of two steps."""
    trace = Trace(0, 1)
    for n in (3, 4):
        trace.step(n, n * 1000, 900)
        for k in range(3):
            trace.add("user_annotation", "ForwardPass", n * 1000 + 10 * k, 5)
            trace.add("user_annotation", "BackwardPass", n * 1000 + 500 + 10 * k, 5)
    found = of_traces([trace])["config"]
    assert found.micro_batches == 3
    assert found.said["micro_batches"].file == "traces/rank0.json"


def test_traces_whose_steps_differ_tell_no_m() -> None:
    trace = Trace(0, 1)
    for n in (3, 4):
        trace.step(n, n * 1000, 900)
        for k in range(n):
            trace.add("user_annotation", "ForwardPass", n * 1000 + 10 * k, 5)
            trace.add("user_annotation", "BackwardPass", n * 1000 + 500 + 10 * k, 5)
    assert of_traces([trace])["config"].micro_batches is None


def test_m_is_not_the_train_batch_over_the_micro_batch() -> None:
    """The course's trap: 64 / 4 = 16 is not m; with four replicas each pipeline sees 4. Without the replicas m is not known."""
    rows = ds(train_batch_size=64, train_micro_batch_size_per_gpu=4)
    assert config(*rows, fact("topology.dp", 4)).micro_batches == 4
    assert config(*rows).micro_batches is None


# ---- what follows


@given(st.integers(1, 64), st.integers(1, 64), st.integers(1, 64), st.sampled_from(["train_batch_size", "micro_batch_size", "micro_batches"]))
def test_any_one_of_the_three_follows_from_the_others(micro: int, m: int, dp: int, missing: str) -> None:
    given_values = {"train_batch_size": micro * m * dp, "train_micro_batch_size_per_gpu": micro, "gradient_accumulation_steps": m}
    left_out = {"micro_batch_size": "train_micro_batch_size_per_gpu", "micro_batches": "gradient_accumulation_steps"}.get(missing, missing)
    found = config(*(fact(f"config.{n}", v) for n, v in given_values.items() if n != left_out), fact("topology.dp", dp))
    assert (found.train_batch_size, found.micro_batch_size, found.micro_batches) == (micro * m * dp, micro, m)
    assert found.said[missing].file is None


def test_what_does_not_divide_does_not_follow() -> None:
    assert config(*ds(train_batch_size=10, train_micro_batch_size_per_gpu=4), fact("topology.dp", 1)).micro_batches is None
    assert config(*ds(train_batch_size=10, gradient_accumulation_steps=4), fact("topology.dp", 1)).micro_batch_size is None


def test_the_default_of_m_is_no_guess() -> None:
    """m = 1 only where a whole file says nothing else: not where it says "auto", nor from a log that shows a part of the configuration."""
    micro = {"train_micro_batch_size_per_gpu": 4}
    assert config(*ds(**micro, gradient_accumulation_steps="auto")).micro_batches is None
    assert config(*ds(**micro, train_batch_size="auto")).micro_batches is None
    assert config(fact("config.train_micro_batch_size_per_gpu", 4)).micro_batches is None
    torn = Input("ds_config.json", "config", 1, skipped=[Skipped(3, "it ends in the middle")])
    assert config(*ds(**micro), inputs=[torn]).micro_batches is None
    assert config(*ds(**micro), fact("args.global_batch_size", 8), fact("topology.dp", 1)).micro_batches == 2


def test_values_that_are_no_whole_numbers_are_left_out() -> None:
    """`"auto"` and 0.5 state nothing."""
    found = config(fact("config.gradient_accumulation_steps", "auto"), fact("config.train_batch_size", 0.5))
    assert (found.micro_batches, found.train_batch_size) == (None, None)


# ---- several files


def two_files(**second: Any) -> list[Row]:
    return [*ds("a/ds_config.json", gradient_accumulation_steps=8, train_batch_size=32), *ds("b/ds_other.json", **second)]


def test_files_that_disagree_are_both_left_out_for_that_value() -> None:
    found = config(*two_files(gradient_accumulation_steps=4, train_batch_size=32))
    assert found.micro_batches is None
    assert found.train_batch_size == 32
    assert [(what, sorted(str(s.value) for s in values)) for what, values in found.conflicts] == [("config.gradient_accumulation_steps", ["4", "8"])]
    assert {(s.file, s.line) for s in found.conflicts[0][1]} == {("a/ds_config.json", 1), ("b/ds_other.json", 1)}


def test_the_file_that_the_command_line_names_counts() -> None:
    found = config(*two_files(gradient_accumulation_steps=4), fact("args.deepspeed_config", "configs/ds_other.json"))
    assert found.micro_batches == 4
    assert not found.conflicts


def test_what_the_log_prints_counts_where_files_disagree() -> None:
    found = config(*two_files(gradient_accumulation_steps=4), fact("config.micro_batches", 16))
    assert found.micro_batches == 16


def test_files_that_agree_are_no_contradiction() -> None:
    found = config(*two_files(gradient_accumulation_steps=8, train_batch_size=32))
    assert found.micro_batches == 8
    assert not found.conflicts


# ---- the rest


@pytest.mark.parametrize(
    ("rows", "precision"),
    [
        ([fact("config.bf16.enabled", True)], "bf16"),
        ([fact("config.fp16.enabled", True)], "fp16"),
        ([fact("args.fp16", True)], "fp16"),
        ([fact("config.fp16.enabled", False), fact("config.bf16.enabled", True)], "bf16"),
        ([fact("config.fp16.enabled", False)], "fp32"),
        ([fact("config.train_micro_batch_size_per_gpu", 4)], "fp32"),
        ([], None),
    ],
)
def test_precision(rows: list[Row], precision: str | None) -> None:
    assert config(*rows).precision == precision


def test_other_values_with_their_sources() -> None:
    found = config(
        *ds(
            zero_optimization__stage=1,
            steps_per_print=10,
            wall_clock_breakdown=True,
            memory_breakdown=False,
            pipeline__activation_checkpoint_interval=1,
        ),
        fact("version.deepspeed", "0.16.9+abc"),
        *topology_map(4, 2),
    )
    assert (found.zero_stage, found.steps_per_print, found.wall_clock_breakdown, found.memory_breakdown) == (1, 10, True, False)
    assert (found.activation_checkpoint_interval, found.deepspeed) == (1, "0.16.9+abc")
    assert (found.said["steps_per_print"].file, found.said["steps_per_print"].line) == ("ds_config.json", 2)


def test_nothing_stated_is_nothing_known() -> None:
    found = config()
    assert [
        getattr(found, n) for n in ("train_batch_size", "micro_batch_size", "micro_batches", "zero_stage", "schedule", "virtual_stages", "deepspeed")
    ] == [None] * 7
    assert found.said == {}


@pytest.mark.parametrize(("virtual", "schedule"), [(None, "1f1b"), (1, "1f1b"), (2, "interleaved-1f1b")])
def test_schedule_of_a_pipeline(virtual: int | None, schedule: str) -> None:
    rows = [] if virtual is None else [fact("args.virtual_pipeline_model_parallel_size", virtual)]
    found = config(*rows, *topology_map(4))
    assert (found.schedule, found.virtual_stages) == (schedule, virtual or 1)


def test_one_stage_has_no_pipeline_schedule() -> None:
    assert config(*topology_map(1, 4)).schedule is None


# ---- iteration lines


def iterations(*sizes: float) -> list[Row]:
    return [{"kind": "scalar", "name": "global_batch_size", "step": n, "value": s, "line": 10 + n} for n, s in enumerate(sizes, 1)]


def test_the_global_batch_of_iteration_lines_is_the_train_batch() -> None:
    """96 samples a step; 4 a micro-batch and 2 replicas: 12 micro-batches."""
    found = config(*iterations(96.0, 96.0), fact("config.train_micro_batch_size_per_gpu", 4), fact("topology.dp", 2))
    assert (found.train_batch_size, found.micro_batches) == (96, 12)
    assert found.said["train_batch_size"].line == 11


def test_a_batch_that_grows_is_no_train_batch() -> None:
    assert config(*iterations(32.0, 64.0)).train_batch_size is None


def test_what_a_file_states_is_believed_before_iteration_lines() -> None:
    assert config(*iterations(96.0), fact("args.global_batch_size", 128)).train_batch_size == 128


@pytest.mark.parametrize(
    ("name", "stages", "schedule", "chunks", "ideal"),
    [
        ("1F1B", 4, "1f1b", 1, 3 / 11),
        ("GPipe", 4, "gpipe", 1, 3 / 11),
        ("Interleaved1F1B", 8, "interleaved-1f1b", 2, 3 / 19),
        ("ZBVZeroBubble", 8, "ZBVZeroBubble", None, None),  # it idles less than any of the closed forms
        ("Interleaved1F1B", 6, "interleaved-1f1b", None, None),  # no whole number of chunks a rank
    ],
)
def test_a_schedule_that_is_named(name: str, stages: int, schedule: str, chunks: int | None, ideal: float | None) -> None:
    rows = [*topology_map(4), fact("config.micro_batches", 8), fact("schedule.name", name), fact("schedule.stages", stages)]
    made = tables(rows)
    assert (made["config"].schedule, made["config"].virtual_stages) == (schedule, chunks)
    assert made["bubble"].ideal == (None if ideal is None else pytest.approx(ideal))
