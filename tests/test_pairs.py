"""What-if against reality: predicted from one real run, measured in others that differ from it in one setting."""

from __future__ import annotations

import tomllib
from functools import cache

import pytest

from tests.conftest import FIXTURES
from tools.what_if_pairs import Pair, pairs

SAID = [told["said"] for told in tomllib.loads((FIXTURES / "pairs" / "pairs.toml").read_text())["pair"]]


@cache
def found() -> dict[str, Pair]:
    return {p.said: p for p in pairs(FIXTURES / "pairs")}


@pytest.mark.parametrize("said", SAID)
def test_the_step_of_the_other_setting_is_predicted(said: str) -> None:
    pair = found()[said]
    assert len(pair.measured_s) == 3
    assert abs(pair.error) < 0.08
    assert abs(pair.predicted_s - pair.now_s) > 0.08 * pair.now_s  # the present step would not do


def test_pairs_differ_in_several_ways() -> None:
    assert len(found()) == len(SAID)
    assert len({pair.change.partition("=")[0] for pair in found().values()}) >= 3
