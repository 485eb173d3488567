"""What runs beside one run: the sampler of counters, py-spy, and what these cost."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from harness.core.errors import RunStopped
from harness.core.types import Metric, Metrics, combine_metrics
from harness.probes.clock import PausableClock
from harness.probes.machine_speed import SpeedProbe
from harness.probes.memory import DeviceFigure, Peak, StageMemory
from harness.probes.profile import ProbeProfile
from harness.probes.pyspy import PySpyRecorder
from harness.probes.session import ProbeSession
from harness.results.counters import CounterRow

LAST_SAMPLES_S = 2.0
"""Seconds to wait at the end for the last samples of other machines."""


class Elsewhere(Protocol):
    """The samplers on other machines of a cluster; see ``harness.run.actors.samplers``."""

    @property
    def notes(self) -> list[str]:
        """What went wrong, in words."""

    def watch(self) -> None:
        """Tell each machine which processes are the run's."""

    def order(self, order: str) -> None:
        """Pass ``go`` or ``hold`` on."""

    def drain(self, clock_at: Callable[[int], int], wait_s: float = 0.0) -> list[CounterRow]:
        """Return the rows that have come by now."""

    def close(self) -> None:
        """End the samplers."""


class RunProbes:
    """The probes of one run. They rest while another arm has its turn.

    Args:
        profile: which there are.
        clock: the run's; starts and stops the sampler.
        processes: returns the process ids by lane, of the parts with a process of their own.
        device_figures: returns what stages took of GPUs, in time and memory, since the last call.
        folder: where the files of py-spy go.
        elsewhere: the samplers on other machines; None where there are none.
        speed: times the machine between the steps; None where nothing does.

    Attributes:
        device_peaks: what each process of the run has held at most of its GPU so far, by pid.
    """

    def __init__(
        self,
        profile: ProbeProfile,
        clock: PausableClock,
        processes: Callable[[], Mapping[str, int]],
        device_figures: Callable[[], Sequence[DeviceFigure]],
        folder: Path,
        elsewhere: Elsewhere | None = None,
        speed: SpeedProbe | None = None,
    ) -> None:
        self._speed = speed
        self._elsewhere = elsewhere
        self._clock, self._processes, self._device_figures = clock, processes, device_figures
        self._session = ProbeSession(profile, clock.at)
        self._pyspy = None if profile.pyspy is None else PySpyRecorder(profile.pyspy, processes, folder)
        self._watched: dict[str, int] = {}
        self._kept: list[CounterRow] = []
        self._next_step, self._charged_s = 0, 0.0
        self._told: set[str] = set()
        self.device_peaks: dict[int, Peak] = {}
        self._failure: RunStopped | None = None

    def start(self) -> None:
        """Begin with the run's loop; from now on the clock says when to rest."""
        self._clock.on_resume, self._clock.on_pause = self._go, self._rest
        self._watch()
        if self._clock.is_running:
            self._go()

    def after_step(self, step: int) -> None:
        """A training step is complete, and the turn not yet passed on.

        Raises:
            RunStopped: py-spy recorded nothing.
        """
        self._raise_failure()
        self._next_step = step + 1
        if self._pyspy is not None:
            self._pyspy.on_step(step)
        self._watch()

    def before_next_step(self, step: int) -> None:
        """The turn was passed on after this step: the next one begins now, unless another arm has its turn first."""
        if self._clock.is_running:
            self._next_step_starts()

    def drain(self) -> list[CounterRow]:
        """See ``recorder.Probes``."""
        rows, self._kept = self._kept + self._session.drain(), []
        if self._elsewhere is not None:
            rows += self._elsewhere.drain(self._clock.at)
        return rows

    def drain_notes(self) -> list[str]:
        """See ``recorder.Probes``."""
        sources = (self._session, self._elsewhere, self._pyspy)
        notes = [note for source in sources if source is not None for note in source.notes]
        new = [note for note in notes if note not in self._told]
        self._told.update(new)
        return new

    def step_metrics(self) -> Metrics:
        """Return the CPU seconds of sampling, the speed probe's, and device seconds and memory since the last call."""
        figures = self._device_figures()
        metrics = combine_metrics([figure.metrics() for figure in figures])
        for figure in figures:
            if isinstance(figure, StageMemory):
                self.device_peaks[figure.pid] = figure.peak.or_higher(self.device_peaks.get(figure.pid, figure.peak))
        spent_s = self._session.own_cpu_s
        if spent_s > 0:
            metrics["probe/cpu_s"] = Metric(spent_s - self._charged_s, "sum")
        self._charged_s = spent_s
        return metrics if self._speed is None else metrics | self._speed.drain()

    def close(self) -> None:
        """End the probes; counters that came in last can still be drained.

        Raises:
            RunStopped: py-spy recorded nothing.
        """
        self._clock.on_resume = self._clock.on_pause = _nothing
        try:
            self._raise_failure()
            if self._pyspy is not None:
                self._pyspy.close()
        finally:
            self._session.close()
            if self._elsewhere is not None:
                self._kept += self._elsewhere.drain(self._clock.at, LAST_SAMPLES_S)
                self._elsewhere.close()
                self._elsewhere = None

    def _go(self) -> None:
        self._order_elsewhere("go")
        self._session.go()
        try:
            self._next_step_starts()
        except RunStopped as error:  # the turn was passed on by another arm, whose fault it is not
            self._failure = error

    def _next_step_starts(self) -> None:
        if self._pyspy is not None:
            self._pyspy.on_step_starts(self._next_step)

    def _raise_failure(self) -> None:
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def _rest(self) -> None:
        self._kept += self._session.drain()  # while the clock still knows these times
        self._session.hold()
        self._order_elsewhere("hold")

    def _order_elsewhere(self, order: str) -> None:
        if self._elsewhere is not None:
            self._elsewhere.order(order)

    def _watch(self) -> None:
        """Tell the sampler of the processes: a part that died has another one."""
        processes = dict(self._processes())
        if processes != self._watched:
            self._watched = processes
            self._session.watch(processes)
        if self._elsewhere is not None:
            self._elsewhere.watch()


def _nothing() -> None: ...
