"""Censored times against hand-made numbers and against published ones."""

from __future__ import annotations

from math import exp, log, sqrt

import pytest

from harness.compare.stats.survival import Median, Time, kaplan_meier, log_rank, median_time

# Weeks in remission of 42 children, + still in remission: Freireich et al., Blood 21 (1963), 699-716.
MERCAPTOPURINE = "6 6 6 6+ 7 9+ 10 10+ 11+ 13 16 17+ 19+ 20+ 22 23 25+ 32+ 32+ 34+ 35+"
PLACEBO = "1 1 2 2 3 4 4 5 5 8 8 8 8 11 11 12 12 15 17 22 23"


def times(text: str) -> list[Time]:
    """Read times; + means that it was not seen by then."""
    return [Time(float(word.rstrip("+")), not word.endswith("+")) for word in text.split()]


def test_the_curve_of_the_leukaemia_trial() -> None:
    """Kaplan-Meier estimates as printed in Cox and Oakes, Analysis of Survival Data (1984), table 4.1."""
    curve = [(fall.at, round(fall.share, 3)) for fall in kaplan_meier(times(MERCAPTOPURINE))]
    assert curve == [(6, 0.857), (7, 0.807), (10, 0.753), (13, 0.690), (16, 0.627), (22, 0.538), (23, 0.448)]


def test_the_medians_of_the_leukaemia_trial() -> None:
    """23 weeks against 8; with the log-log band 13 to unbounded and 4 to 11, as SAS prints (PROC LIFETEST)."""
    assert median_time(times(MERCAPTOPURINE)) == Median(23, 13, None)
    assert median_time(times(PLACEBO)) == Median(8, 4, 11)


def test_the_log_rank_test_of_the_leukaemia_trial() -> None:
    """Chi-square 16.79 of one degree of freedom, p = 4.2e-5: Kleinbaum and Klein, Survival Analysis, chapter 2."""
    found = log_rank(times(MERCAPTOPURINE), times(PLACEBO))
    assert found.chi_square == pytest.approx(16.793, abs=1e-3)
    assert found.p == pytest.approx(4.17e-5, abs=1e-7)


def test_a_curve_by_hand() -> None:
    # 4 look, 1 sees at 2: 3/4. One leaves at 3. 2 look, 1 sees at 5: 3/4 * 1/2 = 3/8.
    first, second = kaplan_meier(times("2 3+ 5 7+"))
    assert (first.at, first.share, first.variance) == (2, 0.75, pytest.approx(1 / (4 * 3)))
    assert (second.at, second.share, second.variance) == (5, 0.375, pytest.approx(1 / 12 + 1 / (2 * 1)))
    # se of log(-log S) = sqrt(1/12) / |log 0.75|, so the lower end at 2 is 0.75^exp(1.96 * 1.00346) = 0.128 <= 1/2
    assert 0.75 ** exp(1.959964 * sqrt(1 / 12) / -log(0.75)) == pytest.approx(0.1279, abs=1e-4)
    assert median_time(times("2 3+ 5 7+")) == Median(5, 2, None)


def test_a_median_that_is_not_reached() -> None:
    """One of five: a mean over those that saw it would say 4."""
    assert median_time(times("4 9+ 9+ 9+ 9+")).at is None
    assert median_time(times("9+ 9+")) == Median(None, None, None)


def test_without_censoring_it_is_the_common_median() -> None:
    assert median_time(times("1 2 4 8")).at == 3
    assert median_time(times("1 2 4")).at == 2
    assert median_time(times("2 4+")).at == 2  # the curve stays at a half


def test_few_seeds_are_tested_exactly() -> None:
    # 2 of the C(6, 3) = 20 ways have all of one group first
    found = log_rank(times("1 2 3"), times("4 5 6"))
    assert found.p == pytest.approx(2 / 20)
    assert found.chi_square > 3.84  # which the chi-square would call significant
    assert log_rank(times("1 2"), times("1 2")).p == 1
    assert log_rank(times("9+ 9+"), times("9+ 9+")) == log_rank(times("5"), times("5"))  # nothing to tell
