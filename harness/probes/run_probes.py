"""What runs beside one run: the samplers of counters, py-spy, and what these cost."""

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
from harness.probes.sampler_process import SamplerProcess
from harness.results.counters import CounterRow
from harness.results.recorder import ProbeReport


class Samplers(Protocol):
    """Counters of other machines; as ``SamplerProcess``, whose methods these are, has them of this one."""

    notes: list[str]

    def watch(self, processes: Mapping[str, int]) -> None: ...

    def order(self, order: str) -> None: ...

    def drain(self, clock_at: Callable[[int], int]) -> list[CounterRow]: ...

    def close(self) -> None: ...


class RunProbes:
    """The probes of one run. They rest while another arm has its turn.

    Args:
        clock: the run's; starts and stops the samplers.
        processes: returns the process ids by lane, of the parts with a process of their own.
        device_figures: returns what stages took of GPUs, in time and memory, since the last call.
        folder: where the files of py-spy go.
        elsewhere: of the other machines that parts work on.
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
        elsewhere: Samplers | None = None,
        speed: SpeedProbe | None = None,
    ) -> None:
        self._clock, self._processes, self._device_figures, self._speed = clock, processes, device_figures, speed
        self._sampler = SamplerProcess(profile.sampler_hz, profile.own)
        self._samplers: list[SamplerProcess | Samplers] = [self._sampler, *([] if elsewhere is None else [elsewhere])]
        self._pyspy = None if profile.pyspy is None else PySpyRecorder(profile.pyspy, processes, folder)
        self._next_step, self._charged_s = 0, 0.0
        self._told: set[str] = set()
        self._failure: RunStopped | None = None
        self.device_peaks: dict[int, Peak] = {}

    def start(self) -> None:
        """Begin with the run's loop; from now on the clock says when to rest."""
        self._clock.on_resume, self._clock.on_pause = self._go, lambda: self._order("hold")
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
        rows = [row for sampler in self._samplers for row in sampler.drain(self._clock.at)]
        notes = [note for sampler in self._samplers for note in sampler.notes]
        notes += [] if self._pyspy is None else self._pyspy.notes
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
        if (spent_s := self._sampler.own_cpu_s) > 0:
            metrics["probe/cpu_s"] = Metric(spent_s - self._charged_s, "sum")
        self._charged_s = spent_s
        return metrics if self._speed is None else metrics | self._speed.drain()

    def close(self) -> None:
        """End the probes; counters that came in last are still in the next report.

        Raises:
            RunStopped: py-spy recorded nothing.
        """
        self._clock.on_resume = self._clock.on_pause = lambda: None
        try:
            self._raise_failure()
            if self._pyspy is not None:
                self._pyspy.close()
        finally:
            for sampler in self._samplers:
                sampler.close()

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

    def _order(self, order: str) -> None:
        for sampler in self._samplers:
            sampler.order(order)

    def _watch(self) -> None:
        """Tell the samplers of the processes: a part that died has another one."""
        processes = self._processes()
        for sampler in self._samplers:
            sampler.watch(processes)
