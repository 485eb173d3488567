"""The driver's own time after a training step, on the virtual clock: rows are written while nothing else of it runs."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from harness.core.trace import RecordingTracer, Span, Stage
from harness.core.types import Metrics, ScoredBatch
from harness.loop import Observer, RolloutCounts, StepReport
from harness.simulate.costing import Seconds
from harness.simulate.event_loop import VirtualClockLoop
from harness.simulate.workload import Workload, sizes_of

DRIVER = "driver"


class Bookkeeping:
    """An observer that passes everything on, and holds the driver up after each training step.

    A ``RunRecorder`` writes the spans of that wait itself, if ``take_time`` is called while it is told of a step; for
    another observer they are written here.

    Args:
        observer: is told.
        tracer: takes the spans.
        lanes: that may wait.
        costs: says how long it takes.
        work: counts what is written.
    """

    def __init__(
        self, observer: Observer, tracer: RecordingTracer, lanes: Sequence[str], costs: Seconds, work: Workload
    ) -> None:
        self._observer, self._tracer, self._lanes, self._costs, self._work = observer, tracer, lanes, costs, work
        self._facts: StepReport | None = None
        self._versions: dict[str, int] = {}

    def on_step(self, facts: StepReport) -> None:
        """See ``Observer``."""
        self._facts, start_ns = facts, self._tracer.clock_ns()
        self._observer.on_step(facts)
        if self._facts is not None:
            self.take_time()
            self._idle_since(start_ns, facts.step)

    def take_time(self) -> None:
        """Let the seconds of the step's bookkeeping pass, once."""
        facts, self._facts = self._facts, None
        if facts is None:
            return
        seconds = self._costs.seconds("record", DRIVER, facts.step, self._work.batch(sizes_of(facts.groups)))
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualClockLoop)
        loop.block(seconds)

    def _idle_since(self, start_ns: int, step: int) -> None:
        """Count the time since then as a wait on the lanes that do nothing else, as a ``RunRecorder`` does."""
        now_ns = self._tracer.clock_ns()
        if now_ns > start_ns:
            occupied = {span.lane for span in self._tracer.still_open()}
            self._tracer.finished.extend(
                Span(lane, Stage.WAIT_FOR_RECORDER, start_ns, now_ns, step, self._versions.get(lane, -1))
                for lane in self._lanes
                if lane not in occupied
            )

    def on_version(self, lane: str, version: int) -> None:
        """See ``Observer``."""
        self._versions[lane] = version
        self._observer.on_version(lane, version)

    def on_sync(self, lane: str, version: int, measured: Metrics) -> None:
        """See ``Observer``."""
        self._observer.on_sync(lane, version, measured)

    def on_evaluation(self, version: int, scored: ScoredBatch) -> None:
        """See ``Observer``."""
        self._observer.on_evaluation(version, scored)

    def on_replaced(self, lane: str, reason: str) -> None:
        """See ``Observer``."""
        self._versions[lane] = -1
        self._observer.on_replaced(lane, reason)

    def on_finished(self, ledger: RolloutCounts) -> None:
        """See ``Observer``."""
        self._observer.on_finished(ledger)
