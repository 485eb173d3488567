"""Draws of one possible truth: named, reproducible, and with the mean, spread and correlation that were asked for."""

import math
from statistics import fmean, stdev

import numpy as np
import pytest

from harness.simulate.cost_model import Draw, StepNoise, mean_one, run_factor

MANY = 4000


def logs(factors, log_sd):
    """Undo exp(s x - s^2 / 2)."""
    return [(math.log(factor) + log_sd**2 / 2) / log_sd for factor in factors]


def test_equal_names_give_equal_draws_and_others_do_not():
    assert Draw(3, 7).normal("run", "update") == Draw(3, 7).normal("run", "update")
    drawn = [Draw(number, seed).normal(name) for number in (1, 2) for seed in (0, 1) for name in ("a", "b")]
    assert len(set(drawn)) == 8


def test_a_factor_of_mean_one():
    # exp(0.3 x 1.2 - 0.09 / 2) = exp(0.315)
    assert mean_one(0.3, 1.2) == pytest.approx(1.3702594, rel=1e-6)
    assert Draw(1).factor(0.0, "any") == 1.0
    factors = [Draw(number).factor(0.5, "model") for number in range(MANY)]
    # the standard deviation of such a factor is sqrt(exp(0.25) - 1) = 0.533; five standard errors of the mean
    assert fmean(factors) == pytest.approx(1.0, abs=5 * 0.533 / math.sqrt(MANY))


def test_step_noise_has_the_spread_and_the_correlation_of_its_process():
    log_sd, correlation = 0.2, 0.6
    noise = StepNoise(Draw(5), log_sd, correlation, "update")
    x = np.array(logs([noise.next() for _ in range(MANY)], log_sd))
    # an AR(1) process has an effective number of n (1 - r) / (1 + r) independent values for its mean
    effective = MANY * (1 - correlation) / (1 + correlation)
    assert x.mean() == pytest.approx(0, abs=5 / math.sqrt(effective))
    # the variance of the sample variance of such a process is 2 / n x (1 + r^2) / (1 - r^2)
    sd_of_variance = math.sqrt(2 / MANY * (1 + correlation**2) / (1 - correlation**2))
    assert x.var() == pytest.approx(1, abs=5 * sd_of_variance)
    # Bartlett: the standard error of the correlation of neighbours is sqrt((1 - r^2) / n)
    found = np.corrcoef(x[1:], x[:-1])[0, 1]
    assert found == pytest.approx(correlation, abs=5 * math.sqrt((1 - correlation**2) / MANY))


def test_noise_without_spread_is_one():
    noise = StepNoise(Draw(1), 0.0, 0.5, "update")
    assert [noise.next() for _ in range(3)] == [1.0, 1.0, 1.0]


def test_run_effects_of_two_stages_share_the_machine():
    shared = 0.3
    generate, update = (
        np.array(logs([run_factor(Draw(number), 0.1, shared, name) for number in range(MANY)], 0.1))
        for name in ("generate", "update")
    )
    assert generate.mean() == pytest.approx(0, abs=5 / math.sqrt(MANY))
    assert generate.std() == pytest.approx(1, abs=5 / math.sqrt(2 * MANY))
    # the standard error of a correlation r of n pairs is (1 - r^2) / sqrt(n)
    assert np.corrcoef(generate, update)[0, 1] == pytest.approx(shared, abs=5 * (1 - shared**2) / math.sqrt(MANY))
    assert run_factor(Draw(1), 0.0, shared, "update") == 1.0


def test_coefficients_follow_their_covariance():
    means, covariance = [10.0, 20.0], [[4.0, -3.0], [-3.0, 9.0]]
    drawn = np.array([Draw(number).coefficients(means, covariance, "update") for number in range(MANY)])
    for column, (mean, sd) in enumerate([(10, 2), (20, 3)]):
        assert drawn[:, column].mean() == pytest.approx(mean, abs=5 * sd / math.sqrt(MANY))
        assert stdev(drawn[:, column]) == pytest.approx(sd, abs=5 * sd / math.sqrt(2 * MANY))
    # -3 / (2 x 3)
    assert np.corrcoef(drawn.T)[0, 1] == pytest.approx(-0.5, abs=5 * (1 - 0.25) / math.sqrt(MANY))


def test_a_drawn_coefficient_is_never_below_zero():
    drawn = [Draw(number).coefficients([0.0], [[1.0]], "update")[0] for number in range(200)]
    assert min(drawn) == 0.0
    assert max(drawn) > 0.0
    # half of the draws are cut: 100, five standard deviations of sqrt(200 / 4) = 7.1
    assert sum(value == 0.0 for value in drawn) == pytest.approx(100, abs=36)


def test_coefficients_that_are_not_measured_stay_as_they_are():
    assert Draw(1).coefficients([1.0, 2.0], (), "update") == [1.0, 2.0]
    with pytest.raises(ValueError, match=r"shape \(1, 1\) does not go with 2 coefficients"):
        Draw(1).coefficients([1.0, 2.0], [[1.0]], "update")
