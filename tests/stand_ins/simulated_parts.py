"""Parts that only pass metadata on: the same loop, rows and files without any model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.core.protocols import Generator, Learner, Scorer
from harness.core.trace import RecordingTracer
from harness.loop import LoopPlan
from harness.probes.device_memory import DeviceFigure
from harness.run.parts import RunningParts, StopSignal
from harness.scenario import Scenario
from harness.scenario.loop_plan import lanes_of, loop_plan
from harness.simulate.stages import SimulatedGenerator, SimulatedLearner, SimulatedScorer, constant


@dataclass
class SimulatedParts(RunningParts):
    """Parts without processes, logs, profiles or a GPU."""

    generators: tuple[Generator, ...]
    scorers: tuple[Scorer, ...]
    learner: Learner
    plan: LoopPlan
    num_parameters: int | None = None
    threads: int | None = None
    learner_on_gpu: bool = False

    def save_to(self, folder: Path) -> None: ...

    def processes(self) -> Mapping[str, int]:
        return {}

    def drain_log(self) -> list[str]:
        return []

    def drain_device_figures(self) -> list[DeviceFigure]:
        return []

    def sample_elsewhere(self, hz: float) -> None: ...

    def keep_profiles(self, folder: Path) -> None: ...

    def close(self) -> None: ...


def build_simulated_parts(scenario: Scenario, tracer: RecordingTracer, should_stop: StopSignal) -> SimulatedParts:
    """Make parts that only pass metadata on and take no time: the same loop, rows and files without any model."""
    return SimulatedParts(
        tuple(SimulatedGenerator(tracer, constant(0.0), lane=lane) for lane in lanes_of("generator", scenario)),
        tuple(SimulatedScorer(tracer, constant(0.0), lane=lane) for lane in lanes_of("scorer", scenario)),
        SimulatedLearner(tracer, constant(0.0), epochs_per_batch=scenario.optimizer_steps_per_batch),
        loop_plan(scenario, num_train=4 * scenario.prompts_per_batch, num_validation=scenario.evaluation.prompts),
    )
