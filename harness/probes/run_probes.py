"""What runs beside one run: the sampler of counters, py-spy, and what these cost."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from harness.core.errors import RunStopped
from harness.core.types import Metric, Metrics, combine_metrics
from harness.probes.clock import PausableClock
from harness.probes.machine_speed import SpeedProbe
from harness.probes.memory import DeviceFigure, Peak, StageMemory
from harness.probes.profile import ProbeProfile
from harness.probes.pyspy import PySpyRecorder
from harness.probes.sampler_process import SamplerProcess
from harness.results.counters import CounterRow
from harness.results.recorder import ProbeReport

LAST_SAMPLES_S = 6.0
"""Seconds to wait at the end for the last samples of other machines, whose samplers may take 5 to end."""


class OtherMachines:
    """The samplers on the other machines that parts work on; here there are none.

    Attributes:
        notes: what went wrong, in words.
    """

    def __init__(self) -> None:
        self.notes: list[str] = []

    def watch(self) -> None:
        """Tell each machine which processes are the run's."""

    def order(self, order: str) -> None:
        """Pass ``go`` or ``hold`` on."""

    def drain(self, clock_at: Callable[[int], int], wait_s: float = 0.0) -> list[CounterRow]:
        """Return the rows that have come by now.

        Args:
            clock_at: turns this machine's monotonic clock into nanoseconds of the run's.
            wait_s: how long to wait for those under way; at the end of a run.
        """
        return []

    def close(self) -> None:
        """End the samplers."""


class RunProbes:
    """The probes of one run. They rest while another arm has its turn.

    Args:
        clock: the run's; starts and stops the sampler.
        processes: returns the process ids by lane, of the parts with a process of their own.
        device_figures: returns what stages took of GPUs, in time and memory, since the last call.
        folder: where the files of py-spy go.
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
        elsewhere: OtherMachines | None = None,
        speed: SpeedProbe | None = None,
    ) -> None:
        self._clock, self._processes, self._device_figures, self._speed = clock, processes, device_figures, speed
        self._sampler = SamplerProcess(profile.sampler_hz, profile.own, clock.at)
        self._elsewhere = elsewhere or OtherMachines()
        self._pyspy = None if profile.pyspy is None else PySpyRecorder(profile.pyspy, processes, folder)
        self._watched: dict[str, int] = {}
        self._rows: list[CounterRow] = []
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

    def report(self) -> ProbeReport:
        """Return what has come in since the last call: counters, what went wrong, and what the probes cost."""
        rows, self._rows = [*self._rows, *self._sampler.drain(), *self._elsewhere.drain(self._clock.at)], []
        notes = [*self._sampler.notes, *self._elsewhere.notes, *([] if self._pyspy is None else self._pyspy.notes)]
        new = [note for note in notes if note not in self._told]
        self._told.update(new)
        return ProbeReport(rows, new, self._metrics())

    def _metrics(self) -> Metrics:
        """The CPU seconds of sampling, the speed probe's, and device seconds and memory."""
        figures = self._device_figures()
        metrics = combine_metrics([figure.metrics() for figure in figures])
        for figure in figures:
            if isinstance(figure, StageMemory):
                self.device_peaks[figure.pid] = figure.peak.or_higher(self.device_peaks.get(figure.pid, figure.peak))
        spent_s = self._sampler.own_cpu_s
        if spent_s > 0:
            metrics["probe/cpu_s"] = Metric(spent_s - self._charged_s, "sum")
        self._charged_s = spent_s
        return metrics if self._speed is None else metrics | self._speed.drain()

    def close(self) -> None:
        """End the probes; counters that came in last are still in the next report.

        Raises:
            RunStopped: py-spy recorded nothing.
        """
        self._clock.on_resume = self._clock.on_pause = _nothing
        try:
            self._raise_failure()
            if self._pyspy is not None:
                self._pyspy.close()
        finally:
            self._sampler.close()
            self._rows += self._elsewhere.drain(self._clock.at, LAST_SAMPLES_S)
            self._elsewhere.close()
            self._elsewhere = OtherMachines()

    def _go(self) -> None:
        self._order("go")
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
        self._rows += self._sampler.drain()  # while the clock still knows these times
        self._order("hold")

    def _order(self, order: str) -> None:
        self._sampler.order(order)
        self._elsewhere.order(order)

    def _watch(self) -> None:
        """Tell the samplers of the processes: a part that died has another one."""
        processes = dict(self._processes())
        if processes != self._watched:
            self._watched = processes
            self._sampler.watch(processes)
        self._elsewhere.watch()


def _nothing() -> None: ...
