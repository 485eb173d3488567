"""Which interval of checkpoints loses least, by hand and against the model that the formula is of."""

from __future__ import annotations

import numpy as np
import pytest

from harness.compare.checkpoints import CheckpointCost, best_interval_s, checkpoint_cost, interval_advice
from harness.core.trace import Span, Stage
from tests.stand_ins.members import made_run


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


def test_writing_that_slows_updates_beside_it_is_a_part_of_the_cost() -> None:
    """Steps of 2 s, of which every second one takes 2.4 s beside the writing of a checkpoint that blocks for 0.1 s."""

    def span(lane: str, stage: Stage, start_s: float, end_s: float, step: int) -> Span:
        return Span(lane, stage, round(start_s * 1e9), round(end_s * 1e9), step, step)

    spans, at = list[Span](), 0.0
    for step in range(8):
        is_written, last_s = step % 2 == 1, 2.4 if step % 2 else 2.0
        spans.append(span("learner", Stage.UPDATE, at, at + last_s, step))
        if is_written:
            spans.append(span("writer", Stage.CHECKPOINT_WRITE, at, at + last_s, step))
        at += last_s
        if not is_written:
            spans.append(span("learner", Stage.CHECKPOINT, at, at + 0.1, step + 1))
            at += 0.1
    run = made_run(settings={"checkpoint": {"every": 2}}).run
    cost = checkpoint_cost(run, spans, range(8), at / 8)
    assert cost is not None
    assert (cost.blocked_s, cost.exposed_s, cost.slowed_s, cost.cost_s) == pytest.approx((0.1, 0.1, 0.4, 0.5))
    assert cost.step_s == pytest.approx(2.0)  # 2.25 s on average, less 4 x 0.1 of 8 steps and 0.4 of every second


def test_the_interval_is_one_in_which_the_last_one_gets_written() -> None:
    cost = CheckpointCost(10, step_s=10.0, blocked_s=0.001, exposed_s=0.001, pending_s=95.0)
    assert cost.best_every(3600.0) == 10  # 2.7 s would lose least, and it takes 95 s to write
    assert "checkpoint.every=10 (100 s)" in interval_advice(cost, 1.0)
