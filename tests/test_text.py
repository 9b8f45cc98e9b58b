"""Numbers as a reader wants them: units that fit, no exponents, no more digits than they deserve."""

from __future__ import annotations

import pytest

from pipelog._text import around, figure, power, seconds, size


@pytest.mark.parametrize(
    ("ns", "shown"),
    [(950, "950 ns"), (1_500_000, "1.50 ms"), (193e9, "193 s"), (599e9, "599 s"), (600e9, "10.0 min"), (7200e9, "120 min"), (3 * 3600e9, "3.00 h")],
)
def test_durations(ns: float, shown: str) -> None:
    assert seconds(ns) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.0, "0"),
        (2.265, "2.265"),
        (48.13, "48.13"),
        (24.0, "24"),
        (0.5, "0.5"),
        (0.00012349, "0.0001235"),
        (1712345.0, "1,712,345"),
        (4294967296.0, "4,294,967,296"),
        (-1.0, "-1"),
        (2.5e-9, "2.50 x 10^-9"),
        (3e18, "3.00 x 10^18"),
        (float("nan"), "nan"),
        (float("inf"), "inf"),
    ],
)
def test_figures(value: float, shown: str) -> None:
    assert figure(value) == shown


@pytest.mark.parametrize(
    ("value", "shown"), [(4294967296.0, "2^32"), (65536.0, "65,536"), (1.0, "1"), (0.0, "0"), (-1.0, "-1"), (100000.0, "100,000")]
)
def test_loss_scales(value: float, shown: str) -> None:
    assert power(value) == shown


def test_sizes() -> None:
    assert size(16076 * 2**20) == "15.7 GiB"


@pytest.mark.parametrize(
    ("text", "words", "shown"),
    [
        ("a short line with the proof", "proof", "a short line with the proof"),
        ("the proof stands first" + " x" * 40, "the proof", "the proof stands first x x x x x x x x …"),
        ("x " * 60 + "the proof", "the proof", "…x x x x x x x x x x x x x x x the proof"),
        ("x " * 60 + "the proof" + " y" * 60, "the proof", "…x x x x x the proof y y y y y y y y y …"),
        ("x " * 60, "gone", "x x x x x x x x x x x x x x x x x x x x…"),
    ],
)
def test_a_long_line_is_cut_around_its_words(text: str, words: str, shown: str) -> None:
    assert len(shown) <= 40
    assert around(text, words, 40) == shown


def test_nothing_before_the_words_where_it_is_not_wanted() -> None:
    assert around("x " * 60 + "the proof" + " y" * 60, "the proof", 20, lead=0) == "…the proof y y y y …"
