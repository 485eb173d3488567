"""The noise model: that it has the spreads, memory and order of time that it says."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.stand_ins.noise import LAUNCH_GAP, NoiseModel

CALM = {"wander_sd": 0.0, "drift_most": 0.0, "burst_most": 0.0, "launch_sd": 0.0, "step_sd": 0.0}


def test_without_noise_there_is_none() -> None:
    calm = NoiseModel(**CALM)
    for shaped in (calm.alternated, calm.launched):
        assert not shaped(np.random.default_rng(0), 2, blocks=3, steps=4).any()


def test_the_wander_has_its_spread_and_its_memory() -> None:
    weather = NoiseModel(**CALM | {"wander_sd": 0.05}).weather(np.random.default_rng(1), 4000, 30)
    # 4,000 experiments: the standard error of a standard deviation is 1.1%, of a correlation of 0.8 about 0.6%
    assert weather[:, 0].std() == pytest.approx(0.05, rel=0.06)
    assert weather[:, -1].std() == pytest.approx(0.05, rel=0.06)
    assert np.corrcoef(weather[:, 10], weather[:, 11])[0, 1] == pytest.approx(0.8, abs=0.04)
    assert np.corrcoef(weather[:, 10], weather[:, 13])[0, 1] == pytest.approx(0.8**3, abs=0.07)


def test_the_drift_is_straight_and_even() -> None:
    weather = NoiseModel(**CALM | {"drift_most": 0.08}).weather(np.random.default_rng(2), 4000, 5)
    total = weather[:, -1] - weather[:, 0]
    assert np.allclose(np.diff(weather, axis=1), total[:, None] / 4)
    assert total.min() >= -0.08
    assert total.max() <= 0.08
    assert total.std() == pytest.approx(0.16 / math.sqrt(12), rel=0.06)  # of an even spread over 0.16


def test_bursts_come_as_often_and_last_as_long_as_said() -> None:
    model = NoiseModel(**CALM | {"burst_most": 0.6})
    weather = model.weather(np.random.default_rng(3), 200, 5000)
    assert weather.min() == 0.0
    assert weather.max() <= math.log(1.6)
    # A slot is calm if no burst started in it or reaches it from before: prod over k of (1 - 0.01 * (11/12)^k), which
    # is exp(-0.01 * 12 - ...) = 0.8866. An experiment of 5,000 holds about 50 bursts: the standard error is about 0.1%.
    calm = math.prod(1 - 0.01 * (11 / 12) ** k for k in range(500))
    assert np.mean(weather[:, 500:] == 0.0) == pytest.approx(calm, abs=0.01)


RAMP = NoiseModel(**CALM | {"drift_most": 0.08})  # a straight drift: the value of a step tells its slot


def slots_of(steps: np.ndarray, seed: int, count: int) -> list[object]:
    """Return the slot of each step of an experiment that was made from RAMP and the seed."""
    ramp = RAMP.weather(np.random.default_rng(seed), 1, count)[0]
    return np.abs(steps[..., None] - ramp).argmin(axis=-1).tolist()


def test_live_arms_take_turns_at_going_first() -> None:
    steps = RAMP.alternated(np.random.default_rng(4), 1, blocks=2, steps=3)[0]
    assert LAUNCH_GAP == 2  # so a block has 2 * (2 + 3) slots, and its first four are dropped
    assert slots_of(steps, 4, 20) == [[[4, 7, 8], [5, 6, 9]], [[14, 17, 18], [15, 16, 19]]]


def test_runs_after_each_other_go_a_b_b_a() -> None:
    steps = RAMP.launched(np.random.default_rng(5), 1, blocks=2, steps=3)[0]
    assert slots_of(steps, 5, 20) == [[[2, 3, 4], [7, 8, 9]], [[17, 18, 19], [12, 13, 14]]]


def test_the_naive_recipe_runs_one_arm_and_then_the_other() -> None:
    steps = RAMP.sequential(np.random.default_rng(6), 1, steps=3)[0]
    assert slots_of(steps, 6, 10) == [[2, 3, 4], [7, 8, 9]]


def test_each_launch_has_its_own_speed() -> None:
    model = NoiseModel(**CALM | {"launch_sd": 0.02})
    for shaped in (model.alternated, model.launched):
        speeds = shaped(np.random.default_rng(7), 500, blocks=4, steps=3)
        assert np.ptp(speeds, axis=3).max() == 0.0  # one speed for all steps of a launch
        assert len(np.unique(speeds)) == 500 * 4 * 2
        assert speeds.std() == pytest.approx(0.02, rel=0.07)  # 4,000 launches: the standard error is 1.1%


def test_each_step_has_its_own_noise() -> None:
    noisy = NoiseModel().with_own_noise(np.random.default_rng(8), np.full((1000, 10), 3.0))
    assert noisy.mean() == pytest.approx(3.0, abs=0.004)
    assert noisy.std() == pytest.approx(0.06, rel=0.05)


def test_three_arms_take_turns_in_an_order_that_is_turned_round() -> None:
    steps = RAMP.alternated(np.random.default_rng(9), 1, blocks=1, steps=2, arms=3)[0]
    # 2 * 3 slots of start-up, then a b c and c b a
    assert slots_of(steps, 9, 12) == [[[6, 11], [7, 10], [8, 9]]]
    runs = RAMP.launched(np.random.default_rng(10), 1, blocks=2, steps=1, arms=3)[0]
    assert slots_of(runs, 10, 18) == [[[2], [5], [8]], [[17], [14], [11]]]


def test_launches_can_resemble_those_of_the_block_before() -> None:
    model = NoiseModel(**CALM | {"between_sd": 0.02, "between_memory": 0.5})
    speeds = model.launched(np.random.default_rng(11), 4000, blocks=5, steps=1)[..., 0]
    assert speeds.std() == pytest.approx(0.02, rel=0.03)
    ratios = speeds[:, :, 1] - speeds[:, :, 0]  # of two such series: the same memory, and sqrt(2) the spread
    assert np.corrcoef(ratios[:, 1:].ravel(), ratios[:, :-1].ravel())[0, 1] == pytest.approx(0.5, abs=0.03)


def test_launches_can_have_heavy_tails() -> None:
    model = NoiseModel(**CALM | {"launch_sd": 0.02, "launch_tails": 2.0})
    speeds = model.launched(np.random.default_rng(12), 4000, blocks=5, steps=1)
    # P(|T| > 4.303) = 5% with two degrees, https://www.itl.nist.gov/div898/handbook/eda/section3/eda3672.htm
    assert np.mean(np.abs(speeds) > 4.303 * 0.02) == pytest.approx(0.05, abs=0.005)
