"""What a simulated order costs does not depend on how many Generators there are, counted and not timed.

The counts are those of an interpreter, the same on every machine: callbacks of the event loop, and calls of functions.
"""

from __future__ import annotations

import cProfile
import pstats

import pytest

from harness.core.trace import RecordingTracer, Stage
from harness.loop import LoopPlan, run_loop
from harness.settings.replay import ReplaySettings
from harness.simulate.clock import VirtualClockLoop
from tests.stand_ins.simulated_parts import constant, simulated_generator, simulated_learner, simulated_scorer

ORDERS = 512


def cost_of_an_order(
    generators: int, lag_control: str, max_lag: int, replay: bool, update_s: float
) -> tuple[float, float]:
    """Return callbacks and calls of functions for each order that was generated."""
    loop = VirtualClockLoop()
    tracer = RecordingTracer(loop.time_ns)
    parts = [
        simulated_generator(tracer, constant(2 + index / 1000), load_cost=constant(0.5), lane=f"generator{index}")
        for index in range(generators)
    ]
    options = ReplaySettings(capacity=4 * generators * replay, max_age=4, sample_groups=generators)
    prompts = tuple(range(generators))
    plan = LoopPlan(
        ORDERS // generators, 2, max_lag, 1, lambda step: prompts, (), lag_control=lag_control, replay=options
    )
    scorers = [simulated_scorer(tracer, constant(0.01), f"scorer{index}") for index in range(generators // 2)]
    learner = simulated_learner(tracer, constant(update_s), constant(0.25))
    with cProfile.Profile() as profile:
        loop.run_until_complete(run_loop(parts, scorers, learner, plan, tracer))
    loop.close()
    orders = sum(span.stage is Stage.GENERATE for span in tracer.drain())
    return loop.callbacks / orders, pstats.Stats(profile).total_calls / orders


@pytest.mark.parametrize(
    ("lag_control", "max_lag", "replay", "update_s"),
    [
        pytest.param("wait", 0, False, 3, id="synchronous"),
        pytest.param("wait", 1, False, 3, id="wait"),
        pytest.param("wait", 2, True, 3, id="replay"),
        pytest.param("drop", 1, False, 1, id="drop"),
        pytest.param("drop", 1, False, 20, id="drop, without room"),
        pytest.param("in_flight", 1, False, 3, id="in flight"),
    ],
)
def test_an_order_costs_the_same_among_many_generators(
    lag_control: str, max_lag: int, replay: bool, update_s: float
) -> None:
    few = cost_of_an_order(8, lag_control, max_lag, replay, update_s)
    many = cost_of_an_order(64, lag_control, max_lag, replay, update_s)
    # 8 times as many Generators and Scorers. Anything that looks at all of them for each order would make it several
    # times as much.
    assert many[0] < 1.25 * few[0]
    assert many[1] < 1.25 * few[1]
