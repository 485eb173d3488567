"""Whether the machine kept its speed, by its speed probe."""

from __future__ import annotations

import pytest

from harness.compare.stats import Drift, speed_drift
from harness.core.errors import UserError


def test_spread_and_slope_of_a_straight_rise() -> None:
    # 0.9, 1.0, 1.1: mean 1, standard deviation 0.1, and the line rises by 0.2 from the first to the last
    drift = speed_drift({"copy": [0.9, 1.0, 1.1]})
    assert drift == Drift("copy", 3, pytest.approx(0.1), pytest.approx(0.2))
    assert drift is not None
    assert drift.unstable
    assert not drift.refuses_gate
    assert drift.sentence == (
        "environment unstable: over 3 blocks the speed probe's copy work varied by 10% and drifted by +20% "
        "(bounds 10% and 5%)"
    )


def test_the_slope_is_that_of_least_squares() -> None:
    # places -1.5 -0.5 0.5 1.5 with 1.0 1.2 0.8 1.0: sum of products -1.5 - 0.6 + 0.4 + 1.5 = -0.2; / 5 * 3 = -0.12
    drift = speed_drift({"numpy": [1.0, 1.2, 0.8, 1.0]})
    assert drift is not None
    assert drift.slope == pytest.approx(-0.12)


def test_a_machine_that_kept_its_speed_says_nothing() -> None:
    drift = speed_drift({"python": [1.00, 1.01, 0.99, 1.0], "numpy": [2.0, 2.0, 2.0]})
    assert drift is not None
    assert drift.work == "python"  # the worse of the two
    assert not drift.unstable
    assert drift.sentence is None


def test_the_worst_work_relative_to_its_bounds_is_told() -> None:
    # numpy varies by more but copy's slope is twice its bound of 5%, numpy's spread not over 10%
    steady_rise = [0.95, 0.975, 1.0, 1.025, 1.05]
    wobble = [1.0, 1.09, 0.91, 1.09, 0.91]
    drift = speed_drift({"numpy": wobble[::-1] + wobble, "copy": steady_rise})
    assert drift is not None
    assert drift.work == "copy"


@pytest.mark.parametrize(
    ("times", "unstable", "refuses"),
    [
        ([1.0, 1.15, 1.0, 0.85, 1.0] * 2, True, False),  # cv 11%
        ([1.0, 1.5, 1.0, 0.5, 1.0] * 2, True, True),  # cv 37%
        ([1.0, 1.1, 1.2, 1.3], True, True),  # rises by 26% of its mean
        ([1.03, 1.02, 1.01, 1.0], False, False),  # falls by 3%
        ([1.06, 1.04, 1.02, 1.0], True, False),  # falls by 6%
    ],
)
def test_bounds(times: list[float], unstable: bool, refuses: bool) -> None:
    drift = speed_drift({"python": times})
    assert drift is not None
    assert (drift.unstable, drift.refuses_gate) == (unstable, refuses)


def test_two_blocks_tell_no_drift() -> None:
    assert speed_drift({"python": [1.0, 2.0]}) is None
    assert speed_drift({}) is None


def test_times_that_are_no_times_are_refused() -> None:
    with pytest.raises(UserError, match="the speed probe's copy work has a step time of 0"):
        speed_drift({"copy": [1.0, 0.0, 1.0]})
