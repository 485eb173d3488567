"""One arm's forecast set against its repeats, and a change against what was measured."""

from __future__ import annotations

import pytest

from harness.core.errors import UserError
from harness.simulate.forecast import Estimate, Forecast
from harness.simulate.metrics import RunMetrics
from tests.holdout.evaluate import arm_score, paired_log_ratios


def measured(step_s: float, dropped: float) -> RunMetrics:
    """A run with 1 s of update, 0.1 s on the way of calls and 5 s of waiting for others in a step."""
    return RunMetrics(
        step_s=step_s,
        stages_s={"update": 1.0, "wait_for_call": 0.1, "wait_for_batch": 5.0},
        throughput=100 / step_s,
        idle={"learner": 0.5},
        lags={0: 0.5, 1: 0.5},
        waste={"failed": 0.0, "dropped": dropped, "unused": 0.1, "evicted_unused": 0.1},
    )


def test_an_arm_is_scored() -> None:
    draws = (measured(2.0, 0.2), measured(2.2, 0.2), measured(2.4, 0.2))
    foreseen = Forecast(
        machine="made-up",
        origin="measured",
        draws=3,
        step_s=Estimate(2.2, 2.0, 2.4),
        stages_s={"update": Estimate(1.1, 1.0, 1.2), "weight_load": Estimate(0.1, 0.1, 0.1)},
        throughput=Estimate(45.0, 41.0, 50.0),
        idle={"learner": Estimate(0.4, 0.3, 0.5)},
        lags={0: Estimate(0.5, 0.5, 0.5)},
        waste={},
        sync_s=None,
        extrapolating=("update: 9 units of call are more than the 1 to 3 that were measured",),
        each=draws,
    )
    arm = arm_score("inside", "base", [measured(1.9, 0.0), measured(2.1, 0.2)], foreseen, 2.5)
    assert arm.step.repeats == (1.9, 2.1)
    assert arm.step.error == pytest.approx(0.1)  # 2.2 over the mean of 1.9 and 2.1
    # waiting for others is idle time, no stage; the way of a call is one, and what only the forecast has is shown too
    assert list(arm.stages) == ["update", "wait_for_call", "weight_load"]
    assert arm.stages["wait_for_call"].error == -1.0  # 0.1 s measured, nothing predicted
    assert arm.stages["weight_load"].error == float("inf")  # predicted, never measured
    assert arm.large_stages == ("update", "wait_for_call")  # 50% and 5% of 2 s
    # failed, dropped and unused; what was evicted unused is part of the unused
    assert arm.waste.repeats == pytest.approx((0.1, 0.3))
    assert (arm.waste.value, arm.waste.low, arm.waste.high) == pytest.approx((0.3, 0.3, 0.3))
    assert arm.closed_form_s == 2.5
    assert arm.lags.predicted == {0: 0.5, 1: 0.5}
    assert arm.extrapolating == foreseen.extrapolating


def test_measured_ratios_are_paired_by_experiment() -> None:
    before = {("20261121-1", 0): 1.0, ("20261121-2", 1): 2.0}
    after = {("20261121-2", 1): 4.0, ("20261121-1", 0): 1.0}
    assert paired_log_ratios(before, after) == pytest.approx([0.0, 0.693147], abs=1e-6)  # log 1, log 2
    with pytest.raises(UserError, match="no experiment and seed in common"):
        paired_log_ratios(before, {("20261121-3", 0): 1.0})
