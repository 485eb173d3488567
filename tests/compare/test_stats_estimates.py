"""From blocks and occasions to an estimate with its error."""

from __future__ import annotations

import math

import numpy as np
import pytest

from harness.compare.stats import Estimate, of_blocks, of_occasions
from harness.compare.stats.estimates import inflation
from tests.stand_ins.simulated_verdicts import log_ratio

SIGNS = (1.0, -1.0) * 5
BLOCKY = (0.1, 0.1, 0.1, 0.1, 0.1, -0.1, -0.1, -0.1, -0.1, -0.1)


def blocks(values: tuple[float, ...]) -> Estimate:
    found = of_blocks(values)
    assert found is not None
    return found


def occasions(before: list[list[float]], after: list[list[float]]) -> Estimate:
    found = of_occasions(before, after)
    assert found is not None
    return found


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


def test_alternating_blocks_do_not_widen_the_interval() -> None:
    # r = -9/10; (9 r + 1) / 6 = -1.1833, kept to -1; -1 + 0.35 is below 0
    found = blocks(SIGNS)
    assert (found.point, found.correlation, found.widening, found.degrees) == (0.0, -1.0, 1.0, 9)
    assert found.error == pytest.approx(1 / 3)  # sd = sqrt(10/9), over sqrt(10)


def test_blocks_that_resemble_their_neighbours_widen_the_interval() -> None:
    # five up, five down: r = (8 - 1) / 10 = 0.7; (9 * 0.7 + 1) / 6 = 1.2167, kept to 1; the upper end is kept to 0.65
    found = blocks(BLOCKY)
    assert found.correlation == 1.0
    assert found.widening == pytest.approx(inflation(0.65, 10))
    assert found.error == pytest.approx(found.widening * 0.1 / 3)
    interval = found.interval()
    assert interval is not None
    # t(0.975, 9) = 2.262157, https://www.itl.nist.gov/div898/handbook/eda/section3/eda3672.htm
    assert interval.high == pytest.approx(2.262157 * found.error, rel=1e-6)


def test_order_matters_since_it_tells_whether_neighbours_are_alike() -> None:
    shuffled = blocks((0.1, -0.1, -0.1, 0.1, 0.1, -0.1, 0.1, -0.1, -0.1, 0.1))
    assert shuffled.widening < blocks(BLOCKY).widening


def test_below_six_blocks_the_correlation_is_unknown_and_taken_to_be_high() -> None:
    found = blocks((0.0, 0.02))
    assert found.correlation is None
    assert found.widening == pytest.approx(inflation(0.65, 2))


def test_half_of_the_correlation_is_the_experiments() -> None:
    alone = blocks(SIGNS)
    found = alone.sharing(0.5)
    # (-1 + 0.5) / 2 = -0.25, and the upper end -0.25 + 3.5 / 10 = 0.1
    assert found.correlation == -0.25
    assert found.widening == pytest.approx(inflation(0.1, 10))
    assert found.error == pytest.approx(inflation(0.1, 10) / 3)
    assert (found.point, found.blocks, found.degrees) == (alone.point, alone.blocks, alone.degrees)


def test_values_without_spread_have_an_interval_without_width() -> None:
    found = blocks((0.25,) * 8)
    interval = found.interval()
    assert interval is not None
    assert (interval.low, interval.high, found.p) == (0.25, 0.25, 0.0)
    assert blocks((0.0,) * 8).p == 1.0


def test_the_smallest_effect_passes_both_the_test_and_the_threshold() -> None:
    estimate = Estimate(0.0, 10, error=0.02, degrees=9)
    # t(0.975, 9) 0.02 = 0.045243 is above log 1.03; with t(0.8, 9) 0.02 = 0.017668 it is 0.062911
    assert estimate.smallest_effect(0.03) == pytest.approx(math.expm1(0.062911), abs=1e-5)
    # log 1.1 = 0.095310 is above; with 0.017668 it is 0.112978
    assert estimate.smallest_effect(0.1) == pytest.approx(math.expm1(0.112978), abs=1e-5)
    # at a level of 1%, t(0.995, 9) = 3.249836: 0.064997 + 0.017668
    assert estimate.smallest_effect(0.03, level=0.01) == pytest.approx(math.expm1(0.082665), abs=1e-5)


def test_a_difference_between_occasions_rests_on_the_spread_between_them() -> None:
    # means 0.0, 0.02, 0.04: sd 0.02, two degrees; the new one 0.14. Within occasions nothing spreads
    found = occasions([[0.0] * 6, [0.02] * 8, [0.04] * 6], [[0.14] * 6])
    assert found.point == pytest.approx(0.12)
    assert found.error == pytest.approx(0.02 * math.sqrt(1 / 3 + 1))
    assert (found.degrees, found.blocks, found.correlation, found.widening) == (2, 6, None, 1.0)


def test_several_new_occasions_add_their_spread() -> None:
    # squares about the means: 0.0002 of the old, 0.0008 of the new; over 1 + 1 degrees 0.0005
    found = occasions([[0.0], [0.02]], [[0.1], [0.14]])
    assert found.point == pytest.approx(0.11)
    assert found.error == pytest.approx(math.sqrt(0.0005 * (1 / 2 + 1 / 2)))
    assert found.degrees == 2


def test_a_new_occasion_of_noisier_blocks_widens_the_interval() -> None:
    quiet = [[0.001 * sign for sign in SIGNS], [0.01 + 0.001 * sign for sign in SIGNS]]
    noisy = [0.1 * sign for sign in SIGNS]
    like, beyond = occasions(quiet, [quiet[0]]), occasions(quiet, [noisy])
    assert like.error is not None
    assert beyond.error is not None
    # standard errors of their means: 0.1 / 3 and 0.001 / 3, as alternating blocks do not widen
    assert beyond.error**2 - like.error**2 == pytest.approx((0.1**2 - 0.001**2) / 9)


def test_one_occasion_against_one_has_no_error() -> None:
    found = occasions([[0.0] * 8], [[0.1] * 8])
    assert (found.point, found.error, found.interval()) == (pytest.approx(0.1), None, None)
    assert of_occasions([], [[0.1]]) is None
    assert of_occasions([[0.1]], []) is None
