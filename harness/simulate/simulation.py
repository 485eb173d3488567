"""One simulated run, from a scenario to its spans."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import dataclass, field

from harness.core.trace import RecordingTracer, Span
from harness.core.types import Metrics, ScoredBatch
from harness.loop import Observer, RolloutCounts, SilentObserver, StepReport
from harness.models.shape import Shape
from harness.scenario import Scenario
from harness.simulate.clock import run_virtual
from harness.simulate.costing import Seconds
from harness.simulate.lengths import LengthSource
from harness.simulate.machine import MachineProfile
from harness.simulate.noise import Draw
from harness.simulate.world import build_world


@dataclass(frozen=True)
class Simulated:
    """A finished run.

    Attributes:
        spans: in the order in which they came in; time 0 is the start of the loop.
        seconds: of the loop.
        ledger: what became of the rollouts.
        steps: what the loop told of each training step.
        lanes: of the run.
        extrapolating: sentences: where the run left what the profile knows.
    """

    spans: list[Span] = field(repr=False)
    seconds: float
    ledger: RolloutCounts
    steps: tuple[StepReport, ...] = field(repr=False)
    lanes: tuple[str, ...]
    extrapolating: tuple[str, ...] = ()


def simulate_run(
    scenario: Scenario,
    machine: MachineProfile,
    *,
    draw: Draw | None = None,
    observer: Observer | None = None,
    shape: Shape | None = None,
    allow: Collection[str] = (),
    costs: Seconds | None = None,
    lengths: LengthSource | None = None,
) -> Simulated:
    """Run the loop of a scenario on the virtual clock.

    Args:
        scenario: one run.
        machine: the profile.
        draw: one possible truth; None: the central prediction, without noise.
        observer: hears of events, before the driver's bookkeeping after each step takes its time.
        shape, allow, costs, lengths: see ``build_world``.

    Raises:
        UserError: the profile lacks something that the scenario needs.
        RunStopped: as in a real run.
    """
    watch = _Watch(observer or SilentObserver())

    async def main(tracer: RecordingTracer) -> tuple[float, tuple[str, ...], tuple[str, ...]]:
        world = build_world(
            scenario, machine, tracer, draw=draw, shape=shape, allow=allow, costs=costs, lengths=lengths
        )
        await world.run(watch)
        return asyncio.get_running_loop().time(), world.lanes, world.extrapolating

    (seconds, lanes, extrapolating), tracer = run_virtual(main)
    return Simulated(tracer.drain(), seconds, watch.ledger, tuple(watch.steps), lanes, extrapolating)


class _Watch:
    """Keeps what the loop tells of steps and rollouts, and passes everything on."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self.steps: list[StepReport] = []
        self.ledger = RolloutCounts()

    def on_version(self, lane: str, version: int) -> None:
        self._observer.on_version(lane, version)

    def on_sync(self, lane: str, version: int, measured: Metrics) -> None:
        self._observer.on_sync(lane, version, measured)

    def on_step(self, facts: StepReport) -> None:
        self.steps.append(facts)
        self._observer.on_step(facts)

    def on_evaluation(self, version: int, scored: ScoredBatch) -> None:
        self._observer.on_evaluation(version, scored)

    def on_replaced(self, lane: str, reason: str) -> None:
        self._observer.on_replaced(lane, reason)

    def on_finished(self, ledger: RolloutCounts) -> None:
        self.ledger = ledger
        self._observer.on_finished(ledger)
