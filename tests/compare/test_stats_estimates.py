"""Intervals, estimates, drift and the rule that ends an experiment, against tables and by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from harness.compare.stats.drift import Drift, speed_drift
from harness.compare.stats.estimates import Estimate, inflation, of_blocks, of_occasions
from harness.compare.stats.intervals import Interval, holm, t_interval, t_quantile, wilson_interval
from harness.compare.stats.verdicts import Effect, enough, half_width
from harness.core.errors import UserError
from tests.stand_ins.simulated_verdicts import judge_step, log_ratio

SIGNS = (1.0, -1.0) * 5
BLOCKY = (0.1,) * 5 + (-0.1,) * 5


@pytest.mark.parametrize(
    ("degrees", "quantile"),
    # two-sided 95%: https://www.itl.nist.gov/div898/handbook/eda/section3/eda3672.htm, column 0.975
    [(1, 12.706), (2, 4.303), (5, 2.571), (9, 2.262), (30, 2.042)],
)
def test_quantiles_are_those_of_the_tables(degrees: int, quantile: float) -> None:
    assert t_quantile(0.975, degrees) == pytest.approx(quantile, abs=0.0005)


def test_the_interval_is_students() -> None:
    # mean 0.1, standard deviation 0.2; 4.302653 * 0.2 / sqrt(3) = 0.496828
    interval, ninety = t_interval([0.1, -0.1, 0.3]), t_interval([0.1, -0.1, 0.3], confidence=0.9)
    assert interval is not None
    assert ninety is not None
    assert (interval.value, interval.low, interval.high) == pytest.approx((0.1, -0.396828, 0.596828), abs=1e-6)
    assert ninety.high - ninety.value == pytest.approx(2.919986 * 0.2 / math.sqrt(3), abs=1e-6)
    assert (t_interval([0.1]), t_interval([])) == (None, None)
    assert t_interval([0.25, 0.25, 0.25]) == Interval(0.25, 0.25, 0.25)


def test_an_interval_excludes_what_lies_outside_and_is_within_what_holds_it() -> None:
    interval = Interval(0.01, -0.01, 0.03)
    assert [interval.excludes(value) for value in (0.0, 0.03, 0.031)] == [False, False, True]
    assert [interval.within(reach) for reach in (0.031, 0.03)] == [True, False]  # touching is not inside
    assert not Interval(-0.01, -0.03, 0.01).within(0.03)


def test_wilsons_interval() -> None:
    # 0 of 10: from 0 to z^2 / (n + z^2) = 3.841459 / 13.841459
    assert wilson_interval(0, 10) == pytest.approx((0.0, 0.277533), abs=1e-6)
    assert wilson_interval(10, 10) == pytest.approx((1 - 0.277533, 1.0), abs=1e-6)
    theirs = stats.binomtest(10, 100).proportion_ci(0.95, method="wilson")
    assert wilson_interval(10, 100) == pytest.approx((theirs.low, theirs.high))
    assert wilson_interval(0, 0) == (0.0, 1.0)


def test_holms_correction_in_the_order_given_and_with_weights() -> None:
    # sorted: 0.005 * 4 = 0.02, 0.01 * 3 = 0.03, 0.03 * 2 = 0.06, 0.04 * 1 raised to 0.06
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx((0.03, 0.06, 0.06, 0.02))
    assert (holm([0.7, 0.9]), holm([0.03]), holm([])) == ((1.0, 1.0), (0.03,), ())
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


# ---- blocks


def blocks(values: tuple[float, ...]) -> Estimate:
    estimate = of_blocks(values)
    assert estimate is not None
    return estimate


def test_of_alternated_arms_only_the_steps_that_both_have_count() -> None:
    before, after = {2: 1.0, 3: 2.0, 4: 3.0}, {3: 4.0, 4: 5.0, 5: 99.0}
    assert log_ratio(before, after, alternated=True) == pytest.approx(math.log(9 / 5))
    assert log_ratio(before, after, alternated=False) == pytest.approx(math.log((108 / 3) / (6 / 3)))
    assert log_ratio({2: 1.0}, {3: 1.0}, alternated=True) is None
    assert log_ratio({}, {3: 1.0}, alternated=False) is None
    assert log_ratio({3: 0.0}, {3: 1.0}, alternated=True) is None


def test_no_block_gives_nothing_and_one_gives_a_point_without_an_error() -> None:
    assert of_blocks([]) is None
    one = blocks((0.2,))
    assert (one.point, one.blocks, one.error, one.p, one.interval()) == (0.2, 1, None, None, None)
    assert one.smallest_effect(0.03) is None


def test_the_error_of_a_mean_of_correlated_values_grows_by_what_they_share() -> None:
    assert inflation(0.0, 10) == 1.0
    # n = 3, rho = 0.5: v = 1 + 2 (2/3 0.5 + 1/3 0.25) = 11/6, s = (3 - v) / 2 = 7/12; v / s = 22/7
    assert inflation(0.5, 3) == pytest.approx(math.sqrt(22 / 7))
    # against the definition: the variance of a mean of ten AR(1) values, over the mean of their variances
    covariance = 0.65 ** np.abs(np.subtract.outer(np.arange(10), np.arange(10)))
    of_mean = covariance.mean()
    shown = (np.trace(covariance) - 10 * of_mean) / 9
    assert inflation(0.65, 10) == pytest.approx(math.sqrt(of_mean / (shown / 10)))


def test_blocks_that_resemble_their_neighbours_widen_the_interval_and_alternating_ones_do_not() -> None:
    # r = -9/10; (9 r + 1) / 6 = -1.1833, kept to -1; -1 + 0.35 is below 0
    alternating = blocks(SIGNS)
    assert (alternating.point, alternating.correlation, alternating.widening, alternating.degrees) == (
        0.0,
        -1.0,
        1.0,
        9,
    )
    assert alternating.error == pytest.approx(1 / 3)  # sd = sqrt(10/9), over sqrt(10)
    # five up, five down: r = (8 - 1) / 10 = 0.7; (9 * 0.7 + 1) / 6 = 1.2167, kept to 1; the upper end is kept to 0.65
    alike = blocks(BLOCKY)
    interval = alike.interval()
    assert interval is not None
    assert (alike.correlation, alike.widening) == (1.0, pytest.approx(inflation(0.65, 10)))
    assert alike.error == pytest.approx(alike.widening * 0.1 / 3)
    # t(0.975, 9) = 2.262157, https://www.itl.nist.gov/div898/handbook/eda/section3/eda3672.htm
    assert interval.high == pytest.approx(2.262157 * alike.error, rel=1e-6)
    shuffled = blocks((0.1, -0.1, -0.1, 0.1, 0.1, -0.1, 0.1, -0.1, -0.1, 0.1))
    assert shuffled.widening < alike.widening


def test_below_six_blocks_the_correlation_is_unknown_and_taken_to_be_high() -> None:
    few = blocks((0.0, 0.02))
    assert (few.correlation, few.widening) == (None, pytest.approx(inflation(0.65, 2)))


def test_half_of_the_correlation_is_the_experiments() -> None:
    # (-1 + 0.5) / 2 = -0.25, and the upper end -0.25 + 3.5 / 10 = 0.1
    shared = blocks(SIGNS).sharing(0.5)
    assert shared == Estimate(0.0, 10, shared.error, 9, -0.25, pytest.approx(inflation(0.1, 10)))
    assert shared.error == pytest.approx(inflation(0.1, 10) / 3)


def test_values_without_spread_have_an_interval_without_width() -> None:
    alike = blocks((0.25,) * 8)
    assert (alike.interval(), alike.p) == (Interval(0.25, 0.25, 0.25), 0.0)
    assert blocks((0.0,) * 8).p == 1.0


def test_the_smallest_effect_passes_both_the_test_and_the_threshold() -> None:
    estimate = Estimate(0.0, 10, error=0.02, degrees=9)
    # t(0.975, 9) 0.02 = 0.045243 is above log 1.03; with t(0.8, 9) 0.02 = 0.017668 it is 0.062911
    assert estimate.smallest_effect(0.03) == pytest.approx(math.expm1(0.062911), abs=1e-5)
    # log 1.1 = 0.095310 is above; with 0.017668 it is 0.112978
    assert estimate.smallest_effect(0.1) == pytest.approx(math.expm1(0.112978), abs=1e-5)
    # at a level of 1%, t(0.995, 9) = 3.249836: 0.064997 + 0.017668
    assert estimate.smallest_effect(0.03, level=0.01) == pytest.approx(math.expm1(0.082665), abs=1e-5)


# ---- occasions


@pytest.mark.parametrize(
    ("before", "after", "point", "error", "degrees", "fewest"),
    [
        # means 0.0, 0.02, 0.04: sd 0.02, two degrees; the new one 0.14. Within occasions nothing spreads
        ([[0.0] * 6, [0.02] * 8, [0.04] * 6], [[0.14] * 6], 0.12, 0.02 * math.sqrt(1 / 3 + 1), 2, 6),
        # squares about the means: 0.0002 of the old, 0.0008 of the new; over 1 + 1 degrees 0.0005
        ([[0.0], [0.02]], [[0.1], [0.14]], 0.11, math.sqrt(0.0005 * (1 / 2 + 1 / 2)), 2, 1),
        ([[0.0] * 8], [[0.1] * 8], 0.1, None, 1.0, 8),
    ],
)
def test_a_difference_between_occasions_rests_on_the_spread_between_them(
    before: list[list[float]], after: list[list[float]], point: float, error: float | None, degrees: int, fewest: int
) -> None:
    error = None if error is None else pytest.approx(error)
    assert of_occasions(before, after) == Estimate(pytest.approx(point), fewest, error, degrees)


def test_no_occasion_gives_nothing_and_a_new_one_of_noisier_blocks_widens_the_interval() -> None:
    assert of_occasions([], [[0.1]]) is of_occasions([[0.1]], []) is None
    quiet = [[0.001 * sign for sign in SIGNS], [0.01 + 0.001 * sign for sign in SIGNS]]
    like, beyond = (of_occasions(quiet, [new]) for new in (quiet[0], [0.1 * sign for sign in SIGNS]))
    assert like is not None
    assert beyond is not None
    assert like.error is not None
    assert beyond.error is not None
    # standard errors of their means: 0.1 / 3 and 0.001 / 3, as alternating blocks do not widen
    assert beyond.error**2 - like.error**2 == pytest.approx((0.1**2 - 0.001**2) / 9)


# ---- drift of the machine


def test_spread_and_slope_of_a_machine_and_that_two_blocks_tell_none() -> None:
    # 0.9, 1.0, 1.1: mean 1, standard deviation 0.1, and the line rises by 0.2 from the first to the last
    assert speed_drift([0.9, 1.0, 1.1]) == Drift(3, pytest.approx(0.1), pytest.approx(0.2))
    # centred places -1.5, -0.5, 0.5, 1.5: (-1.5 - 0.6 + 0.4 + 1.5) / 5 = -0.04 a block, three blocks apart
    drift = speed_drift([1.0, 1.2, 0.8, 1.0])
    assert drift is not None
    assert drift.slope == pytest.approx(-0.12)
    assert speed_drift([1.0, 2.0]) is speed_drift([]) is None
    with pytest.raises(UserError, match="speed probe"):
        speed_drift([1.0, 0.0, 1.0])


@pytest.mark.parametrize(
    ("times", "said"),
    [
        ([0.8, 1.2, 0.8, 1.2], False),  # varies by 23%: less than the probe can tell
        ([0.3, 1.7, 1.7, 0.3], True),  # varies by 81%
        ([0.7, 0.9, 1.1, 1.3], True),  # drifts by 60%
        ([1.3, 1.1, 0.9, 0.7], True),
        ([0.8, 0.9, 1.1, 1.2], False),  # by 42%
    ],
)
def test_only_what_the_probe_can_tell_is_said(times: list[float], said: bool) -> None:
    drift = speed_drift(times)
    assert drift is not None
    assert (drift.sentence is not None) == said


# ---- the rule by which an experiment ends; its coverage is in test_false_alarms.py


def effect(spread: float, change: float = 0.0, count: int = 10) -> Effect:
    """Of log-ratios of standard deviation ``spread`` that alternate around a change: nothing widens their interval."""
    return judge_step([change + spread * math.sqrt(0.9) * sign for sign in SIGNS[:count]])


def test_the_half_width_is_relative_and_blind_to_the_estimate() -> None:
    for change in (0.0, 0.5, -0.5):  # 2.262157 / sqrt(10) * 0.02 = 0.0143071
        assert half_width(effect(0.02, change)) == pytest.approx(math.expm1(0.0143071), abs=1e-6)
        assert enough([effect(0.02, change)], 10, width=0.0145, most=40)
        assert not enough([effect(0.02, change)], 10, width=0.0143, most=40)
    assert half_width(effect(0.02, count=1)) is None


def test_not_before_the_fewest_and_always_at_the_most() -> None:
    assert not enough([effect(0.0, count=9)], 9, width=0.01, most=40)
    assert enough([effect(0.0, count=6)], 6, width=0.01, most=40, fewest=6)
    assert not enough([], 0, width=0.01, most=40)
    assert not enough([], 10, width=0.01, most=40)  # one arm has no interval
    assert not enough([effect(5.0)], 10, width=0.01, most=11)
    assert enough([effect(5.0)], 10, width=0.01, most=10)


@pytest.mark.parametrize(
    ("width", "fewest", "most", "what"),
    [
        *((width, 10, 40, "the half-width is") for width in (0.0, -0.01, math.nan)),
        *((0.01, *ends, f"between {ends[0]} and {ends[1]} blocks is no range") for ends in ((1, 10), (11, 10))),
    ],
)
def test_a_width_has_to_be_above_zero_and_blocks_a_range(width: float, fewest: int, most: int, what: str) -> None:
    with pytest.raises(UserError, match=what):
        enough([effect(0.02)], 10, width=width, most=most, fewest=fewest)
