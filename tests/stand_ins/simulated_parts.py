"""Parts that only pass metadata on: the same loop, rows and files without any model."""

from __future__ import annotations

from harness.core.trace import RecordingTracer
from harness.run.options import StopSignal
from harness.run.parts import Parts
from harness.scenario import Scenario
from harness.scenario.loop_plan import lanes_of, loop_plan
from harness.simulate.stages import SimulatedGenerator, SimulatedLearner, SimulatedScorer, constant


def build_simulated_parts(scenario: Scenario, tracer: RecordingTracer, should_stop: StopSignal) -> Parts:
    """Make parts that only pass metadata on and take no time: the same loop, rows and files without any model."""
    return Parts(
        tuple(SimulatedGenerator(tracer, constant(0.0), lane=lane) for lane in lanes_of("generator", scenario)),
        tuple(SimulatedScorer(tracer, constant(0.0), lane=lane) for lane in lanes_of("scorer", scenario)),
        SimulatedLearner(tracer, constant(0.0), epochs_per_batch=scenario.optimizer_steps_per_batch),
        loop_plan(scenario, num_train=4 * scenario.prompts_per_batch, num_validation=scenario.evaluation.prompts),
    )
