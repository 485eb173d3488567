"""Which interval of checkpoints loses least, by hand and against the model that the formula is of."""

from __future__ import annotations

import numpy as np
import pytest

from harness.compare.checkpoints import CheckpointCost, best_interval_s, interval_advice


def lost_share(interval_s: np.ndarray, cost_s: float, between_failures_s: float) -> np.ndarray:
    """Daly's model: of M exp(0) (exp((T + C) / M) - 1) seconds for each interval T stays in the policy."""
    return 1 - interval_s / (between_failures_s * np.expm1((interval_s + cost_s) / between_failures_s))


def test_the_best_interval_by_hand_and_by_its_model() -> None:
    # C = 2, M = 10,000: sqrt(40,000) = 200; C / 2M = 1e-4, so 200 (1 + 0.01 / 3 + 1e-4 / 9) - 2
    assert best_interval_s(2.0, 10_000.0) == pytest.approx(200 * (1 + 0.01 / 3 + 1e-4 / 9) - 2)
    assert best_interval_s(30.0, 15.0) == 15.0
    for cost_s in (0.01, 1.0, 100.0):  # no interval of the model itself loses less by more than a thousandth
        best, *others = lost_share(np.append(best_interval_s(cost_s, 1000.0), np.geomspace(1, 5000, 2000)), cost_s, 1e3)
        assert best == pytest.approx(min(others), rel=1e-3)


def test_the_interval_is_one_in_which_the_last_one_gets_written() -> None:
    cost = CheckpointCost(10, step_s=10.0, blocked_s=0.001, exposed_s=0.001, pending_s=95.0)
    assert cost.best_every(3600.0) == 10  # 2.7 s would lose least, and it takes 95 s to write
    assert "checkpoint.every=10 (100 s)" in interval_advice(cost, 1.0)
