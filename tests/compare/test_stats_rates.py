"""How false alarms are counted: cutting a series into experiments, rates with their intervals, the naive recipe."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from tests.stand_ins.binomial import exact_interval
from tests.stand_ins.false_alarms import (
    Rate,
    judged,
    naive_hits,
    naive_p,
    rate,
    rate_in_time,
    windows,
)


def test_windows_are_disjoint_or_overlap_and_a_short_rest_is_left_out() -> None:
    assert windows("abcdefg", size=3, every=3) == ["abc", "def"]
    assert windows("abcdefg", size=3, every=1) == ["abc", "bcd", "cde", "def", "efg"]
    assert windows("ab", size=3, every=1) == []


def test_a_experiment_alarms_by_its_interval_and_by_its_verdict() -> None:
    def blocks(change: float, spread: float) -> list[float]:
        return [change + spread * sign for sign in (1, -1) * 5]

    # half-widths: 2.262157 / sqrt(10) * spread / sqrt(0.9): 0.0075 and 0.075
    excludes, different = judged([blocks(0.01, 0.01), blocks(0.05, 0.01), blocks(0.05, 0.1), blocks(0.0, 0.01)])
    assert excludes.tolist() == [True, True, False, False]
    assert different.tolist() == [False, True, False, False]
    empty, _ = judged([])
    assert rate(empty) == Rate(0, 0, 0.0, 1.0)


def test_a_rate_has_an_exact_interval() -> None:
    found = rate(np.array([True] * 3 + [False] * 17))
    assert (found.hits, found.trials, found.share) == (3, 20, 0.15)
    assert (found.low, found.high) == exact_interval(3, 20)


def test_hits_that_come_in_stretches_make_the_rate_less_certain() -> None:
    stretches = np.tile(np.repeat([True, False], 20), 10)  # half of 400, twenty in a row
    alone = np.tile([True, False], 200)
    together = rate_in_time(stretches, 20, np.random.default_rng(1))
    apart = rate_in_time(alone, 20, np.random.default_rng(1))
    assert (together.share, apart.share) == (0.5, 0.5)
    assert apart.high - apart.low < 0.01  # each stretch of twenty holds ten
    # twenty stretches that each hold an evenly spread share: +- 1.96 * sqrt(1/12 / 20) = 0.127
    assert together.high - together.low == pytest.approx(2 * 0.127, rel=0.2)


def test_a_rate_over_few_experiments_says_how_little_is_known() -> None:
    generator = np.random.default_rng(2)
    assert rate_in_time(np.zeros(0, dtype=bool), 10, generator) == Rate(0, 0, 0.0, 1.0)
    assert rate_in_time(np.arange(49) % 7 == 0, 10, generator) == Rate(7, 49, 0.0, 1.0)
    assert rate_in_time(np.zeros(100, dtype=bool), 10, generator) == Rate(0, 100, *exact_interval(0, 10))
    assert rate_in_time(np.ones(100, dtype=bool), 10, generator) == Rate(100, 100, *exact_interval(10, 10))


@pytest.mark.parametrize("ties", [False, True])
def test_the_naive_probability_is_mann_and_whitneys(ties: bool) -> None:
    generator = np.random.default_rng(3)
    for shift in (0.0, 0.5):
        before, after = generator.normal(0, 1, 50), generator.normal(shift, 1, 40)
        if ties:
            before, after = before.round(), after.round()
        theirs = stats.mannwhitneyu(before, after, method="asymptotic").pvalue
        assert naive_p(before, after) == pytest.approx(theirs)
    assert naive_p([1.0, 1.0], [1.0, 1.0]) == 1.0


def test_the_naive_recipe_compares_the_first_half_of_a_window_with_the_second() -> None:
    flat_then_slow = [1.0 + 0.001 * (step % 7) for step in range(50)] + [2.0 + 0.001 * (step % 7) for step in range(50)]
    assert naive_hits(flat_then_slow, steps=50, every=50).tolist() == [True]
    assert naive_hits(flat_then_slow[:50], steps=25, every=25).tolist() == [False]
    assert naive_hits(flat_then_slow, steps=25, every=25).tolist() == [False, True, False]
