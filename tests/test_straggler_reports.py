"""Reports of straggler detectors: who is named, since when and how surely, and what must not be named."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest

from pipelog.detectors.pl202_straggler_rank import straggler_rank
from pipelog.findings import Finding
from pipelog.tables import CannotTell, Tables
from tests.telling import read
from tests.test_rank_timers import header, iteration

Forward = Callable[[int, int], float]
"""Report (from 0) and rank → ms of its forward passes."""


def figures(took: Sequence[float], *, clock: tuple[int, int] | None = None, hot: int | None = None, second: int = 0) -> str:
    """The line of the extremes; clock: MHz and rank of the lowest."""
    ranks = range(len(took))
    low, high = min(ranks, key=took.__getitem__), max(ranks, key=took.__getitem__)
    mhz, cool = clock or (1950, 2)
    fields = {
        "MnRtt": f"{took[low]:.2f}ms/{low}",
        "MxRtt": f"{took[high]:.2f}ms/{high}",
        "MnPwr": "601796W/0",
        "MxPwr": "683801W/1",
        "MnTmp": "50C/0",
        "MxTmp": f"{84 if hot is not None else 66}C/{hot or 0}",
        "MnClk": f"{mhz}MHz/{cool}",
        "MxClk": "1980MHz/0",
        "MnEtpt": f"{1e5 / took[high]:.2f}TF/{high}",
        "MxEtpt": f"{1e5 / took[low]:.2f}TF/{low}",
    }
    return f"INFO:megatron.core.utils:[2025-03-01 10:{second // 60:02d}:{second % 60:02d}] | " + " | ".join(
        f"{k}/Rnk: {v}" for k, v in fields.items()
    )


def lists(took: Sequence[float], n: int) -> list[str]:
    order = sorted(range(len(took)), key=lambda r: -took[r])
    bottom = "".join(f" {1e5 / took[r]:.2f}/{r}," for r in order[:n])
    top = "".join(f" {1e5 / took[r]:.2f}/{r}," for r in order[-n:])
    return [
        f"INFO:megatron.core.utils:^^^^ Bottom {n} Ranks with lowest  Etpt(TF):{bottom}",
        f"INFO:megatron.core.utils:^^^^ Top    {n} Ranks with highest Etpt(TF):{top}",
    ]


def job(
    pp: int,
    dp: int,
    forward: Forward,
    *,
    tp: int = 1,
    reports: int = 10,
    listed: int = 0,
    clock: tuple[int, int] | None = None,
    hot: int | None = None,
) -> Tables:
    """Healthy ranks differ by 1 %, from report to report anew."""
    rng = random.Random(7)
    lines = header(pp, dp, tp)
    for i in range(reports):
        took = [forward(i, rank) * (1 + rng.uniform(-0.01, 0.01)) for rank in range(pp * dp * tp)]
        lines += [iteration(10 * (i + 1)), figures(took, clock=clock, hot=hot, second=30 * i), *(lists(took, listed) if listed else [])]
    return read({"train.log": lines})


def found(tables: Tables) -> list[Finding]:
    return list(straggler_rank(tables, tables["topology"]))


def slow(*ranks: int, by: float = 1.3, begin: int = 0) -> Forward:
    return lambda i, rank: 100 * (by if rank in ranks and i >= begin else 1)


def test_the_same_rank_is_the_slowest_in_all_reports() -> None:
    (finding,) = found(job(4, 2, slow(5), listed=3, clock=(1300, 5), hot=5))
    assert (finding.where.ranks, finding.where.stages, finding.where.steps) == ((5,), (2,), (10, 100))
    assert (finding.severity.value, finding.confidence.value) == ("warning", "high")
    assert "in 10 of 10 reports of Megatron's straggler detector" in finding.title
    assert "its device runs at the lowest clock (1300 MHz, others at up to 1980 MHz) and is the hottest (84 °C)" in finding.title
    assert "why the clock of rank 5 is held down" in finding.advice[0].action
    assert finding.cost == pytest.approx(0.030, abs=0.003)  # 30 of a step of 1000 ms: forward passes alone are timed


def test_from_some_report_on() -> None:
    (finding,) = found(job(2, 4, slow(6, begin=4), listed=3))
    assert finding.where.steps == (50, 100)
    assert "from step 50 on" in finding.title


def test_healthy_ranks_take_turns() -> None:
    for listed in (0, 4):
        assert not found(job(2, 4, slow(), listed=listed))


def test_a_slow_stage_is_no_straggler() -> None:
    """The ranks of stage 1 of two are all slow: four of them, listed, and two of them, listed with two others."""
    assert not found(job(2, 4, slow(4, 5, 6, 7), listed=6))
    assert not found(job(4, 2, slow(2, 3), listed=4))
    assert not found(job(4, 2, slow(2, 3)))


def test_two_slow_ranks_of_different_stages() -> None:
    assert {f.where.ranks for f in found(job(2, 4, slow(1, 6), listed=4))} == {(1,), (6,)}


def test_one_report_with_another_slowest_changes_nothing() -> None:
    (finding,) = found(job(2, 4, lambda i, rank: 200 if (i, rank) == (5, 0) else slow(6)(i, rank), reports=12))
    assert finding.where.ranks == (6,)


def test_a_slow_phase_that_is_over_is_not_named() -> None:
    assert not found(job(2, 4, lambda i, rank: slow(6)(i, rank) if i < 6 else 100, listed=3, reports=12))


def test_two_reports_are_too_few() -> None:
    with pytest.raises(CannotTell):
        found(job(1, 1, slow(), reports=0))
    assert not found(job(2, 4, slow(6), listed=3, reports=2))


def test_where_only_the_extremes_are_printed_the_fastest_of_the_same_stage_is_a_peer() -> None:
    """Stage 1 is the lighter one, so that the fastest rank is always of it."""
    (finding,) = found(job(2, 4, lambda i, rank: (130 if rank == 6 else 100) * (1.05 if rank < 4 else 1)))  # noqa: ARG005
    assert (finding.severity.value, finding.confidence.value) == ("warning", "medium")
    assert "than the fastest rank" in finding.title


def test_against_other_stages_alone_it_is_no_more_than_a_hint() -> None:
    """Stage 1 takes 30 % longer, and one of its ranks always 3 % more than that."""
    heavy = lambda i, rank: 100 * (1.34 if rank == 6 else 1.3 if rank >= 4 else 1)  # noqa: E731, ARG005
    (finding,) = found(job(2, 4, heavy))
    assert (finding.severity.value, finding.confidence.value) == ("info", "low")
    assert "it may be the work of its stage" in finding.title
    assert not found(job(2, 4, heavy, listed=3))
    (finding,) = found(job(2, 1, slow(1), listed=0))
    assert finding.severity.value == "info"


def test_two_replicas_of_a_heavy_stage_take_turns_and_one_may_be_last_for_a_while() -> None:
    """The slowest of all alone is printed: ranks 2 and 3 in turn, rank 3 in the last six of thirty reports."""
    turns = lambda i, rank: 100 * (1.4 if rank in (2, 3) else 1) * (1.05 if rank == (3 if i >= 24 else 2 + i % 2) else 1)  # noqa: E731
    assert not found(job(4, 2, turns, reports=30))
    assert [f.severity.value for f in found(job(4, 2, lambda i, rank: turns(29, rank), reports=10))] == ["info"]  # noqa: ARG005


def test_a_throttled_clock_makes_it_more_than_a_hint() -> None:
    (finding,) = found(job(2, 1, slow(1), clock=(1200, 1)))
    assert (finding.severity.value, finding.confidence.value) == ("warning", "medium")


def test_a_tensor_parallel_group_waits_for_its_slowest() -> None:
    """Ranks 12 to 15 are replica 1 of stage 1; the list of four holds nobody else, and the slowest of the four changes."""
    (finding,) = found(job(2, 2, slow(12, 13, 14, 15), tp=4, listed=6))
    assert finding.where.ranks == (12, 13, 14, 15)
    assert "which one it is is not told" in finding.title
    (finding,) = found(job(1, 4, slow(4, 5, 6, 7), tp=4, listed=4, clock=(1300, 6)))
    assert finding.where.ranks == (4, 5, 6, 7)
    assert "the device of rank 6 runs at the lowest clock" in finding.title


def test_reports_of_rank_0_and_steps_of_the_last_rank_in_their_own_files() -> None:
    rng = random.Random(3)
    steps, reports = header(1, 4), header(1, 4)
    for i in range(8):
        took = [slow(2)(i, rank) * rng.uniform(0.99, 1.01) for rank in range(4)]
        steps.append(iteration(10 * (i + 1)).replace(" iteration", f" [2025-03-01 10:{i // 2:02d}:{30 * (i % 2):02d}] iteration", 1))
        reports += [figures(took, second=30 * i), *lists(took, 2)]
    (finding,) = found(read({"rank0.log": reports, "rank3.log": steps}))
    assert finding.where.steps == (10, 80)


# ---- NVIDIA's resiliency extension


def scores(of: dict[int, float], name: str = "relative", most: int = 2) -> list[str]:
    order = sorted(of, key=of.__getitem__)
    row = "  Rank={} Node=gpu-{} Score={:.2f}".format
    lines = [f"[NeMo I 2025-03-01 10:00:00 nemo_logging:393] GPU {name} performance:"]
    if len(of) <= 2 * most:
        return [*lines, *(row(r, r // 4, of[r]) for r in order)]
    worst, best = order[:most], order[::-1][:most]
    return [
        *lines,
        f" Worst performing {most}/{len(of)} ranks:",
        *(row(r, r // 4, of[r]) for r in worst),
        f" Best performing {most}/{len(of)} ranks:",
        *(row(r, r // 4, of[r]) for r in best),
    ]


def scored(of: Callable[[int, int], float], world: int = 8, name: str = "relative", most: int = 2) -> list[Finding]:
    rng = random.Random(5)
    lines = header(2, world // 2)
    for i in range(8):
        lines += [iteration(10 * (i + 1)), *scores({rank: of(i, rank) - rng.uniform(0, 0.02) for rank in range(world)}, name, most)]
    return found(read({"train.log": lines}))


@pytest.mark.parametrize("name", ["relative", "individual"])
@pytest.mark.parametrize("most", [2, 4])
def test_a_score_far_below_the_others(name: str, most: int) -> None:
    (finding,) = scored(lambda i, rank: 0.6 if rank == 5 else 0.99, name=name, most=most)  # noqa: ARG005
    assert (finding.where.ranks, finding.where.stages, finding.where.hosts) == ((5,), (1,), ("gpu-1",))
    assert (finding.severity.value, finding.confidence.value) == ("warning", "medium")
    assert "scores 0.5" in finding.title


def test_the_line_of_the_rank_s_own_score_is_cited() -> None:
    """Each report: an iteration line, the head, the scores of ranks 0 to 7 in their order; two lines stand above the first."""
    lines = header(2, 4)
    for i in range(8):
        of_all = [f"  Rank={r} Node=gpu-{r // 4} Score={0.6 if r == 5 else 0.9 + 0.01 * r:.2f}" for r in range(8)]
        lines += [iteration(10 * (i + 1)), "[NeMo I 2025-03-01 10:00:00 nemo_logging:393] GPU relative performance:", *of_all]
    (finding,) = found(read({"train.log": lines}))
    assert finding.where.ranks == (5,)
    assert {(e.line or 0) % 10 for e in finding.evidence} == {(2 + 2 + 6) % 10}


def test_scores_alike_name_nobody() -> None:
    assert not scored(lambda i, rank: 0.97)  # noqa: ARG005
    assert not scored(lambda i, rank: 0.6)  # noqa: ARG005


def test_a_score_that_falls_in_the_middle() -> None:
    (finding,) = scored(lambda i, rank: 0.6 if rank == 5 and i >= 3 else 0.99)
    assert finding.where.steps == (40, 80)


def flags(*ranks: Sequence[int]) -> list[Finding]:
    lines = header(2, 4)
    for i, flagged in enumerate(ranks):
        listed = ", ".join(map(str, flagged))
        lines += [
            iteration(10 * (i + 1)),
            f"[NeMo W] STRAGGLER DETECTION WARNING: Some GPUs have worse relative performance. Affected ranks: {{{listed}}}",
        ]
    return found(read({"train.log": lines}))


def test_ranks_that_are_only_flagged() -> None:
    (finding,) = flags([5], [5], [1, 5], [5])
    assert finding.where.ranks == (5,)
    assert "rank 5 (stage 1) is below the threshold of relative performance (0.7 unless set), in 4 of 4 reports" in finding.title
    assert finding.confidence.value == "medium"
    assert not flags([5], [1], [2], [5])
    assert not flags([5], [5])
    assert not flags(*[[4, 5, 6, 7]] * 4)


def test_broken_reports_name_nobody() -> None:
    lines = [*header(2, 2), *(f"INFO:megatron.core.utils: | MnRtt/Rnk: 100.0ms/{i} | MnPwr/Rnk: 5W/0" for i in range(9))]
    with pytest.raises(CannotTell):
        found(read({"train.log": lines}))
