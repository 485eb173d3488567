"""Intervals and estimates, against tables and published figures."""

from __future__ import annotations

import itertools
import math
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from harness.compare.stats import (
    binomial_p,
    fewest_blocks,
    hodges_lehmann,
    holm,
    minimum_effect,
    sign_flip_p,
    t_interval,
    welch_interval,
    wilson_interval,
)
from harness.compare.stats.intervals import EXACT_UP_TO, Interval, t_quantile, welch_error, welch_p

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


# Heights of crossed less self-fertilised maize in eighths of an inch: Darwin's pairs, in Fisher, The Design of
# Experiments (1935), section 21, who counted 863 patterns with at least this sum and as many with its opposite.
MAIZE = (49, -67, 8, 16, 6, 23, 28, 41, 14, 29, 56, 24, 75, 60, -48)

small_lists = st.lists(st.integers(-50, 50), min_size=1, max_size=9)


def counted(values: list[float]) -> float:
    """The definition: the share of sign patterns whose sum is at least as far from 0."""
    sums = [abs(sum(signs)) for signs in itertools.product(*((value, -value) for value in values))]
    return sum(each >= abs(sum(values)) for each in sums) / len(sums)


def test_fishers_count_of_darwins_maize() -> None:
    assert sum(MAIZE) == 314
    assert sign_flip_p(MAIZE) == 2 * 863 / 2**15


@settings(deadline=None)  # the machine's speed is not what is tested
@given(small_lists)
def test_it_is_the_share_of_patterns_at_least_as_extreme(values: list[int]) -> None:
    assert sign_flip_p([float(value) for value in values]) == counted([float(value) for value in values])


@settings(deadline=None)
@given(small_lists, st.sampled_from([0.001, 0.1, 1 / 3, 1e6]))
def test_neither_sign_nor_unit_nor_order_changes_it(values: list[int], unit: float) -> None:
    p = sign_flip_p([float(value) for value in values])
    assert sign_flip_p([-unit * value for value in reversed(values)]) == p


@pytest.mark.parametrize(
    ("count", "p"), [(1, 1.0), (2, 0.5), (5, 0.0625), (6, 0.03125), (10, 2 / 1024), (20, 2 / 2**20)]
)
def test_values_that_all_agree_have_the_smallest_probability(count: int, p: float) -> None:
    assert sign_flip_p([0.1 + 0.01 * place for place in range(count)]) == p


def test_no_difference_at_all_is_no_evidence() -> None:
    assert sign_flip_p([0.0] * 8) == 1.0
    assert sign_flip_p([1.0, -1.0]) == 1.0
    assert sign_flip_p([]) is None


def test_twenty_values_are_counted_in_little_memory() -> None:
    values = np.random.default_rng(1).normal(0.2, 1, EXACT_UP_TO)
    tracemalloc.start()
    p = sign_flip_p(values)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert p is not None
    assert round(p * 2**20) == pytest.approx(p * 2**20)  # a count of patterns
    assert peak < 1e6  # 2^20 sums would be 8.4 MB


def test_beyond_twenty_values_patterns_are_drawn_always_alike() -> None:
    values = np.random.default_rng(2).normal(0.3, 1, 30)
    p = sign_flip_p(values)
    assert p is not None
    assert p == sign_flip_p(values)
    # the sum under random signs is nearly normal with variance sum(d^2); 0.02 is four standard errors of 9,999 draws
    nearly = 2 * stats.norm.sf(abs(values.sum()) / np.sqrt((values**2).sum()))
    assert p == pytest.approx(nearly, abs=0.02)
    assert sign_flip_p([1.0] * 30) == 1 / 10_000  # never 0


@pytest.mark.parametrize(
    ("comparisons", "blocks"), [(1, 6), (2, 7), (3, 7), (4, 8), (6, 8), (7, 9), (12, 9), (13, 10), (25, 10)]
)
def test_blocks_that_a_family_of_tests_needs(comparisons: int, blocks: int) -> None:
    assert fewest_blocks(comparisons) == blocks
    assert comparisons * sign_flip_p([1.0] * blocks) <= 0.05 < comparisons * sign_flip_p([1.0] * (blocks - 1))


def test_holms_correction_in_the_order_given() -> None:
    # sorted: 0.005 * 4 = 0.02, 0.01 * 3 = 0.03, 0.03 * 2 = 0.06, 0.04 * 1 raised to 0.06
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx((0.03, 0.06, 0.06, 0.02))
    assert holm([0.4, 0.9]) == pytest.approx((0.8, 0.9))
    assert holm([0.7, 0.9]) == (1.0, 1.0)
    assert holm([0.03]) == (0.03,)
    assert holm([]) == ()


@settings(deadline=None)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_holm_lies_between_no_correction_and_bonferronis(probabilities: list[float]) -> None:
    for p, adjusted in zip(probabilities, holm(probabilities), strict=True):
        assert p <= adjusted <= min(1.0, len(probabilities) * p)


def test_welchs_probability() -> None:
    generator = np.random.default_rng(3)
    before, after = generator.normal(0, 1, 7), generator.normal(0.8, 3, 12)
    assert welch_p(before, after) == pytest.approx(stats.ttest_ind(before, after, equal_var=False).pvalue)
    assert welch_p([1.0, 1.0], [1.0, 1.0]) == 1.0
    assert welch_p([1.0, 1.0], [2.0, 2.0]) == 0.0
    assert welch_p([1.0], [2.0, 2.0]) is None


def test_the_binomial_test_is_exact() -> None:
    assert binomial_p(9, 10, 0.5) == pytest.approx(2 * 11 / 1024)  # 9 or 10 of 10: (10 + 1) / 1024, and as many below
    assert binomial_p(9, 10, 0.5, side="above") == pytest.approx(11 / 1024)
    assert binomial_p(9, 10, 0.5, side="below") == pytest.approx(1023 / 1024)
    assert binomial_p(0, 10, 0.05, side="above") == 1.0
    assert binomial_p(0, 10, 0.05, side="below") == pytest.approx(0.95**10)
    assert binomial_p(5, 10, 0.5) == 1.0
    theirs = stats.binomtest(40, 500, 0.05, alternative="greater").pvalue
    assert binomial_p(40, 500, 0.05, side="above") == pytest.approx(theirs)
