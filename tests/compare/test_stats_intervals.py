"""Intervals and estimates, against tables and published figures."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from harness.compare.stats import holm, t_interval, wilson_interval
from harness.compare.stats.intervals import Interval, t_quantile


@pytest.mark.parametrize(
    ("degrees", "quantile"),
    # two-sided 95%: https://www.itl.nist.gov/div898/handbook/eda/section3/eda3672.htm, column 0.975
    [(1, 12.706), (2, 4.303), (5, 2.571), (9, 2.262), (30, 2.042)],
)
def test_quantiles_are_those_of_the_tables(degrees: int, quantile: float) -> None:
    assert t_quantile(0.975, degrees) == pytest.approx(quantile, abs=0.0005)


def test_the_interval_is_students() -> None:
    # mean 0.1, standard deviation 0.2; 4.302653 * 0.2 / sqrt(3) = 0.496828
    interval = t_interval([0.1, -0.1, 0.3])
    assert interval is not None
    assert (interval.value, interval.low, interval.high) == pytest.approx((0.1, -0.396828, 0.596828), abs=1e-6)
    ninety = t_interval([0.1, -0.1, 0.3], confidence=0.9)
    assert ninety is not None
    assert ninety.high - ninety.value == pytest.approx(2.919986 * 0.2 / math.sqrt(3), abs=1e-6)


def test_one_value_has_no_interval() -> None:
    assert t_interval([0.1]) is None
    assert t_interval([]) is None


def test_values_without_spread_have_an_interval_without_width() -> None:
    assert t_interval([0.25, 0.25, 0.25]) == Interval(0.25, 0.25, 0.25)


def test_an_interval_excludes_what_lies_outside_and_is_within_what_holds_it() -> None:
    interval = Interval(0.01, -0.01, 0.03)
    assert not interval.excludes(0.0)
    assert not interval.excludes(0.03)
    assert interval.excludes(0.031)
    assert interval.within(0.031)
    assert not interval.within(0.03)  # touching is not inside
    assert not Interval(-0.01, -0.03, 0.01).within(0.03)


def test_wilsons_interval() -> None:
    # 0 of 10: from 0 to z^2 / (n + z^2) = 3.841459 / 13.841459
    assert wilson_interval(0, 10) == pytest.approx((0.0, 0.277533), abs=1e-6)
    assert wilson_interval(10, 10) == pytest.approx((1 - 0.277533, 1.0), abs=1e-6)
    theirs = stats.binomtest(10, 100).proportion_ci(0.95, method="wilson")
    assert wilson_interval(10, 100) == pytest.approx((theirs.low, theirs.high))
    assert wilson_interval(0, 0) == (0.0, 1.0)


def test_holms_correction_in_the_order_given() -> None:
    # sorted: 0.005 * 4 = 0.02, 0.01 * 3 = 0.03, 0.03 * 2 = 0.06, 0.04 * 1 raised to 0.06
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx((0.03, 0.06, 0.06, 0.02))
    assert holm([0.4, 0.9]) == pytest.approx((0.8, 0.9))
    assert holm([0.7, 0.9]) == (1.0, 1.0)
    assert holm([0.03]) == (0.03,)
    assert holm([]) == ()


def test_holms_correction_with_weights() -> None:
    # p / weight: 0.02 / 0.8 = 0.025, 0.004 / 0.1 = 0.04, 0.03 / 0.1 = 0.3. So 0.02 * 1 / 0.8 = 0.025,
    # then 0.004 * 0.2 / 0.1 = 0.008 raised to 0.025, then 0.03
    assert holm([0.02, 0.004, 0.03], [0.8, 0.1, 0.1]) == pytest.approx((0.025, 0.025, 0.03))
    # what is rejected leaves its weight to the rest: a stage at 0.02 of two pays 2, not 10
    assert holm([1e-6, 0.02, 0.9], [0.8, 0.1, 0.1])[1] == pytest.approx(0.04)
    assert holm([0.5, 0.02, 0.9], [0.8, 0.1, 0.1])[1] == pytest.approx(0.2)
    assert holm([0.01, 0.04, 0.03], [7.0, 7.0, 7.0]) == pytest.approx(holm([0.01, 0.04, 0.03]))


@settings(deadline=None)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_holm_lies_between_no_correction_and_bonferronis(probabilities: list[float]) -> None:
    for p, adjusted in zip(probabilities, holm(probabilities), strict=True):
        assert p <= adjusted <= min(1.0, len(probabilities) * p)
