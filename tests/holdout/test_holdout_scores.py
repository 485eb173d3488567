"""Errors, coverage, distances, rankings and regret, against arithmetic by hand."""

from math import sqrt

import pytest

from tests.holdout.scores import (
    choose,
    inside,
    kendall_tau,
    lag_distance,
    mean_lag,
    median_absolute,
    noise_floor,
    signed_error,
    tau_between_repeats,
)


def test_an_error_is_above_0_where_the_prediction_is_too_slow() -> None:
    assert signed_error(1.1, 1.0) == pytest.approx(0.1)
    assert signed_error(0.9, 1.0) == pytest.approx(-0.1)
    with pytest.raises(ValueError, match="measured 0"):
        signed_error(1.0, 0.0)


def test_errors_of_both_signs_do_not_cancel() -> None:
    assert median_absolute([-0.2, 0.2, 0.1]) == pytest.approx(0.2)  # their mean would be 0.03
    assert median_absolute([-0.1, 0.3]) == pytest.approx(0.2)  # between 0.1 and 0.3


def test_the_noise_floor_is_what_a_perfect_predictor_would_show() -> None:
    # three repeats: 0.9, 1.0, 1.1 lie 0.1, 0 and 0.1 from their mean 1; over sqrt(2): 0.0707, 0, 0.0707
    assert noise_floor([[0.9, 1.0, 1.1]]) == pytest.approx(0.1 / sqrt(2))
    # two repeats: 1.9 and 2.1 each lie 0.05 from their mean 2; over sqrt(1)
    assert noise_floor([[1.9, 2.1]]) == pytest.approx(0.05)
    # of 0, 0.05, 0.05, 0.0707 and 0.0707 the middle one
    assert noise_floor([[0.9, 1.0, 1.1], [1.9, 2.1]]) == pytest.approx(0.05)
    assert noise_floor([[1.0], [2.0]]) is None


def test_the_noise_floor_has_the_spread_of_the_error_of_a_mean() -> None:
    """Over many made-up arms it is the median of |N(0, sd / sqrt(n))|, which is 0.6745 sd / sqrt(n)."""
    import numpy as np

    rng = np.random.default_rng(0)
    for repeats in (2, 3, 5):
        values = 1 + 0.01 * rng.standard_normal((20_000, repeats))
        expected = 0.6745 * 0.01 / sqrt(repeats)  # 0.6745: upper quartile of the standard normal distribution
        assert noise_floor(values.tolist()) == pytest.approx(expected, rel=0.02)


def test_a_value_on_the_end_of_an_interval_is_inside() -> None:
    assert inside(0.9, 1.1, [0.9, 1.0, 1.1, 1.1001, 0.8]) == 3


def test_lag_distance_counts_versions_to_move() -> None:
    assert lag_distance({0: 1.0}, {1: 1.0}) == 1.0  # everything by one version
    assert lag_distance({0: 1.0}, {3: 1.0}) == 3.0
    assert lag_distance({0: 0.5, 2: 0.5}, {1: 1.0}) == 1.0  # half by one up, half by one down
    assert lag_distance({0: 0.25, 1: 0.75}, {1: 1.0}) == 0.25
    assert lag_distance({0: 2, 1: 6}, {0: 0.25, 1: 0.75}) == 0.0  # counts and shares alike
    with pytest.raises(ValueError, match="without rollouts"):
        lag_distance({}, {0: 1.0})


def test_mean_lag_weighs_by_rollouts() -> None:
    assert mean_lag({0: 1, 1: 2, 3: 1}) == 1.25  # (0 + 2 + 3) / 4


def test_kendalls_tau() -> None:
    assert kendall_tau([1, 2, 3, 4], [10, 20, 30, 40]) == 1.0
    assert kendall_tau([1, 2, 3, 4], [4, 3, 2, 1]) == -1.0
    # of 6 pairs one is the wrong way round: (5 - 1) / 6
    assert kendall_tau([1, 2, 3, 4], [1, 3, 2, 4]) == pytest.approx(4 / 6)


def test_noise_alone_upsets_a_ranking() -> None:
    assert tau_between_repeats([[1.0, 1.1], [2.0, 2.1], [3.0, 3.1]]) == 1.0
    # two arms, the second repeat the other way round: each repeat against the other one is -1
    assert tau_between_repeats([[1.0, 2.0], [2.0, 1.0]]) == -1.0
    assert tau_between_repeats([[1.0], [2.0]]) is None


def test_regret_is_what_following_the_prediction_costs() -> None:
    found = choose({"a": 1.0, "b": 1.1, "c": 3.0}, {"a": 1.2, "b": 1.0, "c": 2.0})
    assert (found.picked, found.best) == ("a", "b")
    assert found.regret == pytest.approx(0.2)  # 1.2 / 1.0 - 1
    assert (found.pairs, found.wrong) == (3, 1)  # a against b is wrong; a, c and b, c are right
    assert found.mean_cost == pytest.approx(0.2 / 3)
    assert found.worst_cost == pytest.approx(0.2)


def test_nothing_can_be_chosen_among_one_arm() -> None:
    with pytest.raises(ValueError, match="1 arms"):
        choose({"a": 1.0}, {"a": 1.0})
