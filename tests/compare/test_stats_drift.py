"""Whether the machine kept its speed, by its speed probe."""

from __future__ import annotations

import pytest

from harness.compare.stats import Drift, speed_drift
from harness.core.errors import UserError


def test_spread_and_slope_of_a_straight_rise() -> None:
    # 0.9, 1.0, 1.1: mean 1, standard deviation 0.1, and the line rises by 0.2 from the first to the last
    drift = speed_drift([0.9, 1.0, 1.1])
    assert drift == Drift(3, pytest.approx(0.1), pytest.approx(0.2))


def test_the_slope_is_that_of_least_squares() -> None:
    # centred places -1.5, -0.5, 0.5, 1.5: (-1.5 - 0.6 + 0.4 + 1.5) / 5 = -0.04 a block, three blocks apart
    drift = speed_drift([1.0, 1.2, 0.8, 1.0])
    assert drift is not None
    assert drift.slope == pytest.approx(-0.12)


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


def test_two_blocks_tell_no_drift() -> None:
    assert speed_drift([1.0, 2.0]) is None
    assert speed_drift([]) is None


def test_a_time_of_zero_is_refused() -> None:
    with pytest.raises(UserError, match="speed probe"):
        speed_drift([1.0, 0.0, 1.0])
