"""Intervals and estimates, against tables and published figures."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from harness.compare.stats import hodges_lehmann, minimum_effect, t_interval, welch_interval, wilson_interval
from harness.compare.stats.intervals import Interval, t_quantile, welch_error

# Fifteen and fifteen values of https://en.wikipedia.org/wiki/Welch%27s_t-test, example 1: t = 2.46, 25.0 degrees
WELCH_A = (27.5, 21.0, 19.0, 23.6, 17.0, 17.9, 16.9, 20.1, 21.9, 22.6, 23.1, 19.6, 19.0, 21.7, 21.4)
WELCH_B = (27.1, 22.0, 20.8, 23.4, 23.4, 23.5, 25.8, 22.0, 24.8, 20.2, 21.9, 22.1, 22.9, 20.5, 24.4)


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
    assert (interval.point, interval.low, interval.high) == pytest.approx((0.1, -0.396828, 0.596828), abs=1e-6)
    ninety = t_interval([0.1, -0.1, 0.3], confidence=0.9)
    assert ninety is not None
    assert ninety.high - ninety.point == pytest.approx(2.919986 * 0.2 / math.sqrt(3), abs=1e-6)


def test_one_value_has_no_interval() -> None:
    assert t_interval([0.1]) is None
    assert t_interval([]) is None
    assert minimum_effect([0.1]) is None
    assert welch_interval([0.1], [0.1, 0.2]) is None


def test_values_without_spread_have_an_interval_without_width() -> None:
    assert t_interval([0.25, 0.25, 0.25]) == Interval(0.25, 0.25, 0.25)
    assert minimum_effect([0.25, 0.25, 0.25]) == 0.0
    assert welch_interval([1.0, 1.0], [1.5, 1.5]) == Interval(0.5, 0.5, 0.5)


def test_an_interval_excludes_what_lies_outside_and_is_within_what_holds_it() -> None:
    interval = Interval(0.01, -0.01, 0.03)
    assert not interval.excludes(0.0)
    assert not interval.excludes(0.03)
    assert interval.excludes(0.031)
    assert interval.within(0.031)
    assert not interval.within(0.03)  # touching is not inside
    assert not Interval(-0.01, -0.03, 0.01).within(0.03)


def test_groups_measured_apart_have_welchs_interval() -> None:
    error, degrees = welch_error(WELCH_A, WELCH_B)
    assert (np.mean(WELCH_B) - np.mean(WELCH_A)) / error == pytest.approx(2.46, abs=0.005)
    assert degrees == pytest.approx(25.0, abs=0.05)
    interval = welch_interval(WELCH_A, WELCH_B)
    assert interval is not None
    theirs = stats.ttest_ind(WELCH_B, WELCH_A, equal_var=False).confidence_interval(0.95)
    assert (interval.low, interval.high) == pytest.approx((theirs.low, theirs.high))


def test_the_smallest_change_that_shows() -> None:
    # standard deviation 0.02 over ten: (2.262157 + 0.883404) * 0.02 / sqrt(10) = 0.0198943; e to that, less 1
    values = 0.02 * np.array([-1.0, 1.0] * 5) * math.sqrt(0.9)
    assert np.std(values, ddof=1) == pytest.approx(0.02)
    assert minimum_effect(values) == pytest.approx(math.expm1(0.0198943), abs=1e-6)


def test_the_smallest_change_does_show_in_four_of_five_experiments() -> None:
    # 4,000 experiments of ten normal log-ratios: the standard error of a power of 80% is 0.6%. With t quantiles in the
    # formula the power is a little above 80%; the exact one is 80.8% (non-central t, 9 degrees, 3.1456).
    generator = np.random.default_rng(5)
    change = (t_quantile(0.975, 9) + t_quantile(0.8, 9)) / math.sqrt(10)
    shown = 0
    for values in generator.normal(change, 1.0, (4000, 10)):
        interval = t_interval(values)
        assert interval is not None
        shown += interval.excludes(0.0)
    exact = 1 - stats.nct.cdf(t_quantile(0.975, 9), 9, change * math.sqrt(10))
    assert exact == pytest.approx(0.8, abs=0.02)
    assert stats.binomtest(shown, 4000, exact).pvalue > 1e-6


def test_welchs_degrees_of_freedom_keep_to_their_range() -> None:
    # like groups of 3 have 2 (3 - 1) = 4 degrees; at variances of 1e-160 the squares are rounded to 4.02
    assert welch_error([0.0, 1e-80, 2e-80], [0.0, 1e-80, 2e-80])[1] == 4.0
    # without any spread the formula is 0 / 0, and the smaller group's 2 - 1 is the careful answer
    assert welch_error([1.0, 1.0], [1.0, 1.0, 1.0]) == (0.0, 1.0)


def test_hodges_and_lehmanns_estimate() -> None:
    # means of pairs of 1, 2, 10, each with itself too: 1, 1.5, 2, 5.5, 6, 10; their median is (2 + 5.5) / 2
    assert hodges_lehmann([1.0, 10.0, 2.0]) == pytest.approx(3.75)
    assert hodges_lehmann([]) is None


def test_hodges_and_lehmanns_estimate_is_hardly_moved_by_one_wild_block() -> None:
    calm = [0.01, 0.02, 0.03, 0.04, 0.05, 0.06, 0.07, 0.08, 0.09]
    middle, moved = hodges_lehmann(calm), hodges_lehmann([*calm, 50.0])
    assert middle == pytest.approx(0.05)
    assert moved is not None
    assert moved == pytest.approx(0.05, abs=0.01)
    assert np.mean([*calm, 50.0]) > 5


def test_wilsons_interval() -> None:
    # 0 of 10: from 0 to z^2 / (n + z^2) = 3.841459 / 13.841459
    assert wilson_interval(0, 10) == pytest.approx((0.0, 0.277533), abs=1e-6)
    assert wilson_interval(10, 10) == pytest.approx((1 - 0.277533, 1.0), abs=1e-6)
    theirs = stats.binomtest(10, 100).proportion_ci(0.95, method="wilson")
    assert wilson_interval(10, 100) == pytest.approx((theirs.low, theirs.high))
    assert wilson_interval(0, 0) == (0.0, 1.0)
