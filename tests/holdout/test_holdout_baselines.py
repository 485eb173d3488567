"""What the baselines go by, against arithmetic by hand."""

from math import log

import pytest

from harness.simulate.metrics import costs_of
from tests.holdout.baselines import distance, spread, units


def test_work_and_costs_count_and_waiting_for_others_does_not() -> None:
    stages = {
        "generate": 1.0,
        "wait_for_batch": 5.0,
        "wait_for_call": 0.1,
        "wait_for_recorder": 0.2,
        "weight_load": 0.3,
    }
    assert costs_of(stages) == {"generate": 1.0, "wait_for_call": 0.1, "wait_for_recorder": 0.2, "weight_load": 0.3}


def test_units_of_a_stage() -> None:
    assert units("generate", 1000, 4) == 1000  # sampled once, however many passes there are
    assert units("update", 1000, 4) == 4000
    assert units("weight_publish", 1000, 4) == 1


def test_distance_adds_factors_and_other_differences() -> None:
    assert distance((64, 1, 12, 3e6), (64, 1, 12, 3e6), 0) == 0
    # twice the responses, half the passes, another transport: log 2 three times
    assert distance((64, 1, 12, 3e6), (32, 2, 12, 3e6), 1) == pytest.approx(3 * log(2))


def test_lengths_are_spread_over_the_rows() -> None:
    # 5 lengths over 5 rows: each once; over 10: each twice; over 2: at a quarter and three quarters
    assert sorted(spread([8, 6, 4, 10, 12], 5)) == [4, 6, 8, 10, 12]
    assert sorted(spread([4, 6, 8, 10, 12], 10)) == [4, 4, 6, 6, 8, 8, 10, 10, 12, 12]
    assert sorted(spread([1, 2, 3, 4], 2)) == [2, 4]
    assert spread([4, 6, 8, 10, 12], 4)[:2] == [4, 12]  # short and long ones in turn, so that groups are alike
