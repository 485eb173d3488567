"""What surrounds the spans of a part, in the process in which it works."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from harness.core.trace import DelayedTracer, Stage, SynchronizedTracer, Tracer
from harness.probes.cuda_events import DeviceTimeTracer, cuda_events
from harness.probes.memory import DeviceFigure, DeviceMemoryTracer, process_memory
from harness.probes.nsight import CaptureControl
from harness.probes.nvtx_ranges import NvtxTracer, open_domain
from harness.probes.profile import ProbeProfile, Window
from harness.probes.windows import WindowTracer, lanes_in, torch_window_tracer


@dataclass(frozen=True)
class Tracers:
    """Which tracers the parts of a run have; sent to every process.

    Attributes:
        profile: the probes.
        delays: seconds that the scenario adds to each span of a stage, by stage.
        lanes: of the whole run.
        drafts: folder for the traces that the processes write; None where the profile has none.
    """

    profile: ProbeProfile = field(default_factory=ProbeProfile)
    delays: Mapping[str, float] = field(default_factory=dict)
    lanes: tuple[str, ...] = ()
    drafts: Path | None = None

    def for_process(
        self, recorder: Tracer, lanes: Sequence[str], cuda: bool, synchronize: Callable[[], None] | None = None
    ) -> InstrumentedTracer:
        """Put the tracers around the tracer that records the spans of a process.

        Args:
            recorder: keeps the spans.
            lanes: that work in the process.
            cuda: whether they compute on a GPU; a span then ends when the GPU is done.
            synchronize: returns when the GPU has done what the calling thread gave it; None: when it has done all.
        """
        made = InstrumentedTracer(recorder)
        if any(self.delays.values()):  # innermost: the device has nothing to do yet
            made.tracer = DelayedTracer(made.tracer, {Stage(name): seconds for name, seconds in self.delays.items()})
        if cuda or synchronize is not None:
            made.tracer = SynchronizedTracer(made.tracer, synchronize or _synchronize())
        self._add_probes(made, cuda)
        self._add_windows(made, lanes, cuda)
        return made

    def remove_traces(self) -> None:
        """Remove what no run's folder has taken."""
        if self.drafts is not None:
            shutil.rmtree(self.drafts, ignore_errors=True)

    def _add_probes(self, made: InstrumentedTracer, cuda: bool) -> None:
        if self.profile.device_time:
            new_event, reason = cuda_events() if cuda else (None, "nothing here computes on a GPU")
            if new_event is None:
                made.notes.append(f"no device times: {reason}")
            else:
                made.device_times = device = DeviceTimeTracer(made.tracer, new_event)
                made.tracer = device
        if self.profile.nvtx:
            domain, reason = open_domain()
            if domain is None:
                made.notes.append(f"no NVTX ranges: {reason}")
            else:
                made.tracer = NvtxTracer(made.tracer, domain)
        if cuda:  # outermost, so that no other probe's figures hold its readings
            made.tracer = made.device_memory = DeviceMemoryTracer(made.tracer, process_memory())

    def _add_windows(self, made: InstrumentedTracer, lanes: Sequence[str], cuda: bool) -> None:
        window = self.profile.torch_profiler
        if window is not None and (chosen := self._chosen(window, lanes)):
            assert self.drafts is not None
            made.add_window(torch_window_tracer(made.tracer, window, chosen, self.drafts, cuda))
        capture = self.profile.nsight
        if capture is not None and (chosen := self._chosen(capture, lanes)):
            control = CaptureControl(cuda)
            made.add_window(WindowTracer(made.tracer, capture.numbers, control.start, control.stop, chosen))

    def _chosen(self, window: Window, lanes: Sequence[str]) -> list[str]:
        return [lane for lane in lanes_in(window, self.lanes) if lane in lanes]


class InstrumentedTracer:
    """The tracer that the parts of one process are given, and what belongs to it.

    Attributes:
        tracer: for the parts.
        windows: profilers that run for a few steps.
        device_times, device_memory: measure them; None without.
        notes: what could not be measured, in words.
    """

    def __init__(self, recorder: Tracer) -> None:
        self.tracer = recorder
        self.windows: list[WindowTracer] = []
        self.device_times: DeviceTimeTracer | None = None
        self.device_memory: DeviceMemoryTracer | None = None
        self.notes: list[str] = []

    def add_window(self, window: WindowTracer) -> None:
        """Put a profiler of a few steps around the tracer."""
        self.windows.append(window)
        self.tracer = window

    def drain_device_figures(self) -> list[DeviceFigure]:
        """Return device times and peaks of the spans that have ended since the last call.

        Spans end when the device is done (see ``SynchronizedTracer``), so all of them are known.
        """
        times = [] if self.device_times is None else self.device_times.drain(final=True)
        return [*times, *([] if self.device_memory is None else self.device_memory.drain())]

    def end_windows(self) -> None:
        """Stop the profilers that still run, and have them write what they have."""
        for window in self.windows:
            window.close()


def _synchronize() -> Callable[[], None]:
    import torch

    return torch.cuda.synchronize
