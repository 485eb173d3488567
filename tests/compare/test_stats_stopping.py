"""The rule by which an experiment ends; its coverage is in test_false_alarms.py."""

from __future__ import annotations

import math

import pytest

from harness.compare.stats import Effect, enough, half_width
from harness.core.errors import UserError
from tests.stand_ins.simulated_verdicts import judge_step

WIGGLE = [math.sqrt(0.9) * sign for sign in (1, -1) * 5]  # standard deviation 1


def effect(spread: float, change: float = 0.0, blocks: int = 10) -> Effect:
    """Of log-ratios that alternate around a change, so that nothing widens their interval."""
    return judge_step([change + spread * value for value in WIGGLE[:blocks]])


def test_the_half_width_is_relative_and_blind_to_the_estimate() -> None:
    # 2.262157 / sqrt(10) * 0.02 = 0.0143071
    assert half_width(effect(0.02)) == pytest.approx(math.expm1(0.0143071), abs=1e-6)
    assert half_width(effect(0.02, change=0.5)) == pytest.approx(math.expm1(0.0143071), abs=1e-6)
    assert half_width(effect(0.02, blocks=1)) is None


@pytest.mark.parametrize("change", [0.0, 0.5, -0.5])
def test_a_experiment_ends_when_its_interval_is_narrow_enough(change: float) -> None:
    assert enough([effect(0.02, change)], 10, width=0.0145, most=40)
    assert not enough([effect(0.02, change)], 10, width=0.0143, most=40)


def test_not_before_the_fewest_and_always_at_the_most() -> None:
    assert not enough([effect(0.0, blocks=9)], 9, width=0.01, most=40)
    assert enough([effect(0.0, blocks=6)], 6, width=0.01, most=40, fewest=6)
    assert not enough([], 0, width=0.01, most=40)
    assert not enough([], 10, width=0.01, most=40)  # one arm has no interval
    assert not enough([effect(5.0)], 10, width=0.01, most=11)
    assert enough([effect(5.0)], 10, width=0.01, most=10)


@pytest.mark.parametrize("width", [0.0, -0.01, math.nan])
def test_a_width_has_to_be_above_zero(width: float) -> None:
    with pytest.raises(UserError, match="the half-width is"):
        enough([effect(0.02)], 10, width=width, most=40)


@pytest.mark.parametrize(("fewest", "most"), [(1, 10), (11, 10)])
def test_the_numbers_of_blocks_have_to_be_a_range(fewest: int, most: int) -> None:
    with pytest.raises(UserError, match=f"between {fewest} and {most} blocks is no range"):
        enough([effect(0.02)], 10, width=0.01, most=most, fewest=fewest)
