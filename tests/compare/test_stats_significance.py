"""The sign-flip test, Holm's correction and the binomial test."""

from __future__ import annotations

import itertools
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from harness.compare.stats import binomial_p, fewest_blocks, holm, sign_flip_p
from harness.compare.stats.intervals import EXACT_UP_TO, welch_p

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
