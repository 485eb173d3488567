"""Which interval of checkpoints loses least: the formula against its own model, and that against drawn failures."""

from __future__ import annotations

import math

import numpy as np
import pytest

from harness.compare.checkpoints import CheckpointCost, best_interval_s, interval_advice, lost_share

FAILURES = 20_000


def drawn_loss(cost: CheckpointCost, every: int, between_failures_s: float) -> float:
    """Live through failures, each at a drawn moment: what was saved before it counts, all else is lost."""
    rng = np.random.default_rng(7)
    kept_s = total_s = 0.0
    interval_s = every * cost.step_s
    for up_s in rng.exponential(between_failures_s, FAILURES).tolist():
        total_s += up_s
        counts_s = cost.restart_s + interval_s + cost.cost_s + cost.pending_s
        while counts_s <= up_s:
            kept_s += interval_s
            counts_s += interval_s + cost.cost_s
    return 1 - kept_s / total_s


@pytest.mark.parametrize(
    "cost",
    [
        CheckpointCost(1, step_s=1.0, blocked_s=0.5, exposed_s=0.5, restart_s=5.0),
        CheckpointCost(1, step_s=1.0, blocked_s=0.4, exposed_s=0.2, pending_s=3.0, slowed_s=0.3, restart_s=5.0),
        CheckpointCost(
            1, step_s=2.0, blocked_s=40.0, exposed_s=40.0, restart_s=1.0
        ),  # dear ones, where sqrt(2 C M) is too long
    ],
    ids=["waiting", "asynchronous", "dear"],
)
def test_drawn_failures_lose_what_the_formula_says_and_least_where_it_says(cost: CheckpointCost) -> None:
    mean_s = 200.0
    best = cost.best_every(mean_s)
    tried = [max(1, round(best * factor)) for factor in (0.4, 0.7, 1.0, 1.4, 2.5)]
    losses = [drawn_loss(cost, every, mean_s) for every in tried]
    assert losses == pytest.approx([cost.lost_share(every, mean_s) for every in tried], abs=0.008)
    assert tried[int(np.argmin(losses))] == best


def test_the_best_interval_by_hand() -> None:
    # C = 2, M = 10,000: sqrt(40,000) = 200; C / 2M = 1e-4, so 200 (1 + 0.01 / 3 + 1e-4 / 9) - 2
    assert best_interval_s(2.0, 10_000.0) == pytest.approx(200 * (1 + 0.01 / 3 + 1e-4 / 9) - 2)
    assert best_interval_s(30.0, 15.0) == 15.0
    for cost_s in (0.01, 1.0, 100.0):  # no interval of the model itself loses less by more than a thousandth
        best = lost_share(best_interval_s(cost_s, 1000.0), cost_s, 1000.0)
        least = min(lost_share(t, cost_s, 1000.0) for t in np.geomspace(1, 5000, 2000))
        assert best == pytest.approx(least, rel=1e-3)


def test_what_is_lost_at_the_ends() -> None:
    assert lost_share(1.0, 0.0, 1e9) == pytest.approx(0.0, abs=1e-8)
    assert lost_share(100.0, 25.0, 1e12) == pytest.approx(0.2)  # no failures: checkpoints alone, 25 of 125
    # work alone: 1 - x / (exp(x) - 1) with x = T / M
    assert lost_share(1000.0, 0.0, 1000.0) == pytest.approx(1 - 1 / (math.e - 1))
    assert lost_share(1e9, 1.0, 1.0) == 1.0


def test_the_interval_is_one_in_which_the_last_one_gets_written() -> None:
    cost = CheckpointCost(10, step_s=10.0, blocked_s=0.001, exposed_s=0.001, pending_s=95.0)
    assert cost.best_every(3600.0) == 10  # 2.7 s would lose least, and it takes 95 s to write
    assert "checkpoint.every=10 (100 s)" in interval_advice(cost, 1.0)
