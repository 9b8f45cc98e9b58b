"""The batch arithmetic by hand and by law: what DeepSpeed derives, what does not multiply, what would fit."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from pipelog.detectors.pl102_few_micro_batches import few_micro_batches
from pipelog.detectors.pl103_batch_arithmetic import batch_arithmetic
from pipelog.errors import BadOption
from pipelog.events import EVENTS
from pipelog.planning.batch import AUTO, Mesh, Sizes, batch, fits, number
from pipelog.planning.plan import Plan, Wanted, plan
from pipelog.tables.bubble import Bubble
from pipelog.tables.config import Config
from pipelog.tables.steps import Steps
from pipelog.tables.topology import Said, Topology

SIZE = st.integers(1, 64)


@pytest.mark.parametrize(
    ("sizes", "replicas", "comes_out"),
    [
        (Sizes(64, 4, 8), 2, (64, 4, 8, 2)),
        (Sizes(64, 4), 2, (64, 4, 8, 2)),
        (Sizes(64, None, 8), 2, (64, 4, 8, 2)),
        (Sizes(None, 4, 8), 2, (64, 4, 8, 2)),
        (Sizes(64, 4, 4), None, (64, 4, 4, 4)),
        (Sizes(64), 2, (64, 32, 1, 2)),  # DeepSpeed takes one micro-batch
        (Sizes(None, 4), 2, (8, 4, 1, 2)),
        (Sizes(None, None, 8), 2, (None, None, 8, 2)),
        (Sizes(64, AUTO, AUTO), 2, (64, None, None, 2)),  # filled in by somebody else, so nothing is taken for it
        (Sizes(AUTO, 4, AUTO), 2, (None, 4, None, 2)),
        (Sizes(AUTO, 4, 8), 2, (64, 4, 8, 2)),
        (Sizes(64, 4), None, (64, 4, None, None)),
        (Sizes(), 2, (None, None, None, 2)),
    ],
)
def test_what_is_missing_follows(sizes: Sizes, replicas: int | None, comes_out: tuple[int | None, ...]) -> None:
    b = batch(sizes, replicas)
    assert (b.train, b.micro, b.m, b.replicas) == comes_out
    assert b.problem is None


@pytest.mark.parametrize(
    ("sizes", "replicas", "problem"),
    [
        (Sizes(64, 4, 4), 2, "train batch 64 is not micro-batch 4 x 4 micro-batches x 2 data-parallel replicas = 32"),
        (Sizes(65, 4), 2, "train batch 65 cannot be divided by micro-batch 4 x 2 data-parallel replicas = 8"),
        (Sizes(65, None, 4), 2, "train batch 65 cannot be divided by 4 micro-batches x 2 data-parallel replicas = 8"),
        (Sizes(65), 2, "train batch 65 cannot be divided by 1 micro-batch x 2 data-parallel replicas = 2"),
        (Sizes(64, 4, 5), None, "train batch 64 is not micro-batch 4 x 5 micro-batches = 20 times any number of replicas"),
    ],
)
def test_what_does_not_multiply(sizes: Sizes, replicas: int | None, problem: str) -> None:
    assert batch(sizes, replicas).problem == problem


def test_the_count_of_all_replicas_is_not_m() -> None:
    assert batch(Sizes(64, 4, 4), 2).global_count == 16
    assert batch(Sizes(16, 4, 4), 1).global_count is None  # one replica: the two are the same
    assert batch(Sizes(65, 4, 4), 2).global_count is None


@pytest.mark.parametrize("word", [0, -4, 2.5, True, "4", "many", float("nan"), float("inf"), 1 << 41, [4]])
def test_a_size_is_a_whole_number(word: Any) -> None:
    with pytest.raises(BadOption, match=r"train_batch_size is .*: it has to be a whole number"):
        number("train_batch_size", word)


@pytest.mark.parametrize(("word", "value"), [(64, 64), (64.0, 64), (1.024e3, 1024), (AUTO, AUTO), (None, None)])
def test_sizes_as_people_write_them(word: Any, value: Any) -> None:
    assert number("train_batch_size", word) == value


def test_gpus_that_make_no_pipelines() -> None:
    assert Mesh(8, 4).replicas == 2
    assert Mesh(16, 4, 2).replicas == 2
    assert Mesh(8, 3).replicas is None
    assert Mesh(8, 3).problem == "8 GPUs cannot be divided into pipelines of 3 stages"
    assert Mesh(8, 2, 3).problem == "8 GPUs cannot be divided into pipelines of 2 stages x 3 tensor-parallel ranks = 6 GPUs"
    assert Mesh(None, 3).problem is None


def test_what_would_fit_the_course_s_example() -> None:
    """64, 4 and 4 on 8 GPUs with 4 stages: each of the five numbers can give way, and each by hand."""
    found = {f.change: (f.train, f.micro, f.m, f.replicas, f.stages, f.gpus) for f in fits(batch(Sizes(64, 4, 4), 2), Mesh(8, 4))}
    assert found == {
        "gradient_accumulation_steps 4 → 8": (64, 4, 8, 2, 4, 8),
        "train_micro_batch_size_per_gpu 4 → 8": (64, 8, 4, 2, 4, 8),
        "train_batch_size 64 → 32": (32, 4, 4, 2, 4, 8),
        "GPUs 8 → 16": (64, 4, 4, 4, 4, 16),
        "stages 4 → 2": (64, 4, 4, 4, 2, 8),
    }


def test_what_would_fit_a_batch_that_cannot_be_divided() -> None:
    """65 = 5 x 13 on two replicas is odd, so only the batch can give way; 60 on 2 replicas are 30 each, of which 3 is a divisor and 4 is not."""
    assert [f.train for f in fits(batch(Sizes(65, 4), 2), Mesh(8, 4))] == [64, 72]
    first = fits(batch(Sizes(60, 4), 2), Mesh(8, 4))[0]
    assert (first.change, first.micro, first.m) == ("train_micro_batch_size_per_gpu 4 → 3", 3, 10)


@given(SIZE, SIZE, SIZE, SIZE, st.sampled_from((1, 2, 4)), st.integers(1, 8))
def test_everything_that_fits_multiplies(train: int, micro: int, m: int, replicas: int, tp: int, stages: int) -> None:
    mesh = Mesh(stages * tp * replicas, stages, tp)
    b = batch(Sizes(train, micro, m), mesh.replicas)
    assert (b.problem is None) == (train == micro * m * replicas)
    ways = fits(b, mesh)
    assert bool(ways) == (b.problem is not None)
    for f in ways:
        assert f.train == f.micro * f.m * f.replicas
        assert f.gpus == f.stages * tp * f.replicas
        changed = [f.train != train, f.micro != micro, f.m != m, f.gpus != mesh.gpus, f.stages != stages]
        assert sum(changed) == 1


@given(SIZE, SIZE, SIZE)
def test_any_one_of_three_follows_from_the_others(micro: int, m: int, replicas: int) -> None:
    train = micro * m * replicas
    for sizes in (Sizes(train, micro), Sizes(train, None, m), Sizes(None, micro, m), Sizes(train, micro, m)):
        b = batch(sizes, replicas)
        assert (b.train, b.micro, b.m, b.problem) == (train, micro, m, None)
    assert batch(Sizes(train, micro, m), None).replicas == replicas


@given(st.integers(1, 4096), SIZE, SIZE | st.none(), SIZE)
def test_rule_pl103_says_the_same_of_a_finished_folder(train: int, micro: int, m: int | None, replicas: int) -> None:
    b = batch(Sizes(train, micro, m), replicas)
    said = {"micro_batches": Said(m, "ds_config.json", 4, "")} if m else {}
    config = Config(train_batch_size=train, micro_batch_size=micro, micro_batches=m, said=said)
    nothing = pd.DataFrame({"name": [], "text": []})
    steps = Steps(pd.DataFrame(), None, None, None)  # type: ignore[arg-type]
    found = list(batch_arithmetic(config, Topology(dp=replicas), EVENTS.empty_table(), nothing, steps))
    assert [f.title for f in found] == ([] if b.problem is None else [b.problem])


@settings(max_examples=30)
@given(st.integers(2, 64), SIZE, SIZE)
def test_rule_pl102_says_the_same_of_a_finished_folder(stages: int, micro: int, m: int) -> None:
    made = plan(Wanted(stages=stages, micro=micro, m=m))
    ideal = Bubble(ideal=(stages - 1) / (m + stages - 1))
    rule = list(few_micro_batches(ideal, Topology(pp=stages), Config(micro_batches=m, micro_batch_size=micro)))
    mine = [f for f in made.findings if f.name == "few-micro-batches"]
    assert [(f.title, f.severity, f.advice[0]) for f in mine] == [(f.title, f.severity, f.advice[0]) for f in rule]


def of_course(**more: Any) -> Plan:
    return plan(Wanted(train=64, micro=4, m=4, stages=4, **more))


def test_the_verdict_of_the_course_s_example() -> None:
    """Four stages and m = 4: 3/7. On 8 GPUs there are 2 replicas where 64 = 4 x 4 x 4 asks for 4."""
    said = of_course(gpus=8).verdict
    assert said.word == "DOES NOT FIT"
    assert "train batch 64 is not micro-batch 4 x 4 micro-batches x 2 data-parallel replicas = 32" in said.sentence
    assert said.sentence.endswith("4 micro-batches on 4 stages leave a bubble of 3/7 = 42.9 %")
    assert [f.name for f in of_course(gpus=8).findings] == ["batch-arithmetic", "few-micro-batches"]


def test_on_sixteen_gpus_it_multiplies_and_is_still_slow() -> None:
    made = of_course(gpus=16)
    assert (made.verdict.word, [f.name for f in made.findings]) == ("SLOW", ["few-micro-batches"])


@settings(max_examples=30)
@given(st.integers(2, 32), st.integers(1, 512), st.floats(0.05, 0.6))
def test_few_is_said_exactly_above_the_limit(stages: int, m: int, limit: float) -> None:
    idle = (stages - 1) / (m + stages - 1)
    assume(not math.isclose(idle, limit, rel_tol=1e-9))
    made = plan(Wanted(stages=stages, m=m, limit=limit))
    assert bool([f for f in made.findings if f.name == "few-micro-batches"]) == (idle > limit)
