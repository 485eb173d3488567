"""Planted costs are found again, within the standard errors that the fit itself states."""

from __future__ import annotations

import numpy as np
import pytest

from harness.simulate.calibrate.least_squares import Fit, fit_costs

PLANTED = np.array([0.02, 0.005, 0.0004])
"""Seconds of a call, a unit of a middling term and a unit of a large one."""
RUNS, SPANS = 12, 15


def _data(seed: int, step_sd: float, run_sd: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Spans of 12 runs of one size each, every span a little longer or shorter than its run."""
    rng = np.random.default_rng(seed)
    run_N = np.repeat(np.arange(RUNS), SPANS)
    middling, large = 1 + np.arange(RUNS) % 4 * 3.0, 10.0 + 30 * (np.arange(RUNS) // 4)
    units_NK = np.stack([np.ones(len(run_N)), middling[run_N], large[run_N]], axis=1)
    units_NK[:, 1:] *= rng.uniform(0.9, 1.1, (len(run_N), 2))
    effect_N = 1 + run_sd * rng.standard_normal(RUNS)[run_N]
    seconds_N = units_NK @ PLANTED * (effect_N + step_sd * rng.standard_normal(len(run_N)))
    return units_NK, seconds_N, run_N


def _fitted(seed: int, step_sd: float = 0.1, run_sd: float = 0.05) -> Fit:
    return fit_costs(*_data(seed, step_sd, run_sd))


def test_planted_costs_lie_within_two_standard_errors_as_often_as_they_should() -> None:
    """Of 60 fits of 3 costs, 95.4% should lie within 2 standard errors if these are right.

    The three of one fit move together, so the share has the standard deviation sqrt(0.954 x 0.046 / 60) = 2.7% at
    most. Five of these below is 82%. The mean squared distance should be 1, with a standard deviation of at most
    sqrt(2 / 60) = 0.18: stated errors that are too large would show below 0.5, too small ones above 1.9.
    """
    distances = []
    for seed in range(60):
        found = _fitted(seed)
        distances.append((found.seconds - PLANTED) / np.sqrt(np.diag(found.covariance)))
    assert (np.abs(distances) < 2).mean() > 0.82
    assert 0.5 < np.square(distances).mean() < 1.9


def test_the_spreads_within_and_between_runs_are_found() -> None:
    """The standard deviation of n values has the relative standard error sqrt(1 / 2n).

    Within runs n = 12 x 14 = 168: 5.5% of one estimate, 1.2% of the mean over 20. Between runs n = 12 - 3 terms = 9:
    24%, and 5.3% of the mean of 20. A root is biased low by 1 / 4n, which is 3% between runs. Bounds are about five
    standard errors wide.
    """
    fits = [_fitted(seed, step_sd=0.1, run_sd=0.08) for seed in range(20)]
    assert np.mean([found.step_sd for found in fits]) == pytest.approx(0.1, rel=0.06)
    assert np.mean([found.run_sd for found in fits]) == pytest.approx(0.08, rel=0.28)
    # independent errors show, cut off at 0, a correlation of 0.4 / sqrt(168) = 3.1%, with a standard error of 1%
    assert np.mean([found.step_correlation for found in fits]) < 0.08


def test_errors_that_hang_together_from_span_to_span_are_found() -> None:
    """AR(1) with correlation 0.5: over 12 runs of 60 spans the estimate has a standard error of about
    sqrt((1 - 0.25) / 720) = 3.2%; the bound is five of them."""
    rng = np.random.default_rng(5)
    noise_RS = np.zeros((RUNS, 60))
    noise_RS[:, 0] = rng.standard_normal(RUNS)
    for step in range(1, 60):
        noise_RS[:, step] = 0.5 * noise_RS[:, step - 1] + np.sqrt(0.75) * rng.standard_normal(RUNS)
    run_N = np.repeat(np.arange(RUNS), 60)
    found = fit_costs(np.ones((len(run_N), 1)), 0.3 * (1 + 0.05 * noise_RS.ravel()), run_N)
    assert found.step_correlation == pytest.approx(0.5, abs=0.16)


def test_a_single_stall_moves_no_cost_by_more_than_its_standard_error() -> None:
    units_NK, seconds_N, run_N = _data(3, 0.1, 0.05)
    calm = fit_costs(units_NK, seconds_N, run_N)
    seconds_N[40] *= 20
    stalled = fit_costs(units_NK, seconds_N, run_N)
    assert (np.abs(stalled.seconds - calm.seconds) < np.sqrt(np.diag(calm.covariance))).all()


def test_a_term_that_explains_nothing_costs_nothing_and_never_less() -> None:
    """Seconds fall where the second term rises: without the bound its cost would be -0.01."""
    units_NK = np.array([[1.0, 0.0], [1.0, 1.0], [1.0, 2.0]] * 4)
    seconds_N = np.array([0.10, 0.09, 0.08] * 4)
    found = fit_costs(units_NK, seconds_N, np.zeros(12, dtype=np.int64))
    assert found.seconds[1] == 0.0
    assert found.seconds[0] == pytest.approx(0.09, rel=0.02)  # the mean of the three
    assert found.covariance[1].tolist() == [0.0, 0.0]


def test_long_and_short_spans_count_alike() -> None:
    """A short span of 1 ms and a long one of 1 s, each 10% off: relative errors are shared, absolute ones would not."""
    units_NK = np.array([[1.0], [1000.0]])
    found = fit_costs(units_NK, np.array([0.0011, 0.9]), np.array([0, 1]))
    assert found.seconds[0] == pytest.approx(0.001, rel=0.02)
