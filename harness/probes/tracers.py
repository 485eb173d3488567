"""What surrounds the spans of a part, in the process in which it works."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from harness.core.trace import HookedSpan, HookedTracer, SpanHook, Stage, Tracer
from harness.probes.cuda_events import DeviceTimes, cuda_events
from harness.probes.memory import DeviceFigure, StagePeaks, process_memory
from harness.probes.nsight import NsightCapture
from harness.probes.nvtx_ranges import NvtxSpans
from harness.probes.profile import ProbeProfile, Window
from harness.probes.torch_traces import TorchProfiler
from harness.probes.windows import ProfilerWindow, lanes_in
from harness.record.nvtx_ranges import open_domain


class Synchronized(SpanHook):
    """Ends each span only when the device has done what was launched in it; a launch alone takes no time.

    Args:
        synchronize: waits for it: ``torch.cuda.synchronize`` for all streams, or ``PartStreams.synchronize``.
    """

    def __init__(self, synchronize: Callable[[], None]) -> None:
        self._synchronize = synchronize

    def end(self, span: HookedSpan, error: BaseException | None) -> None:
        self._synchronize()


def keep_busy(seconds: float) -> None:
    """Keep the processor busy for so long, as a stage with more to do would."""
    end_s = time.perf_counter() + seconds
    while time.perf_counter() < end_s:
        pass


class Delay(SpanHook):
    """Makes the spans of some stages longer: an injected slow-down, to see whether a comparison finds it.

    Args:
        delays: seconds by stage, spent at the start of each span of it: spent at the end, asleep or busy, they made the
            small stages that follow find cold caches, and be slower too.
        spend: takes so many seconds.
    """

    def __init__(self, delays: Mapping[Stage, float], spend: Callable[[float], None] = keep_busy) -> None:
        self._delays, self._spend = delays, spend

    def begin(self, span: HookedSpan) -> None:
        if (seconds := self._delays.get(span.stage, 0.0)) > 0:
            self._spend(seconds)


@dataclass(frozen=True)
class Tracers:
    """What surrounds the spans of a run's parts; sent to every process.

    Attributes:
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
        """Put the hooks around the tracer that records the spans of a process.

        Args:
            recorder: keeps the spans.
            lanes: that work in the process.
            cuda: whether they compute on a GPU; a span then ends when the GPU is done.
            synchronize: returns when the GPU has done what the calling thread gave it; None: when it has done all.
        """
        made, hooks = InstrumentedTracer(recorder), list[SpanHook]()
        if any(self.delays.values()):  # innermost: the device has nothing to do yet
            hooks.append(Delay({Stage(name): seconds for name, seconds in self.delays.items()}))
        if cuda and synchronize is None:
            import torch

            synchronize = torch.cuda.synchronize
        if synchronize is not None:
            hooks.append(Synchronized(synchronize))
        if self.profile.device_time:
            new_event, reason = cuda_events() if cuda else (None, "nothing here computes on a GPU")
            if new_event is None:
                made.notes.append(f"no device times: {reason}")
            else:
                made.meters.append(DeviceTimes(new_event))
        hooks += made.meters
        if self.profile.nvtx:
            domain, reason = open_domain()
            if domain is None:
                made.notes.append(f"no NVTX ranges: {reason}")
            else:
                hooks.append(NvtxSpans(domain))
        if cuda:  # outermost, so that no other probe's figures hold its readings
            made.meters.append(peaks := StagePeaks(process_memory()))
            hooks.append(peaks)
        traced, captured = self.profile.torch_profiler, self.profile.nsight
        if traced is not None and (chosen := self._chosen(traced, lanes)):
            assert self.drafts is not None
            made.windows.append(TorchProfiler(traced, chosen, self.drafts, cuda))
        if captured is not None and (chosen := self._chosen(captured, lanes)):
            made.windows.append(NsightCapture(captured, chosen, cuda))
        if hooks or made.windows:
            made.tracer = HookedTracer(recorder, *hooks, *made.windows)
        return made

    def _chosen(self, window: Window, lanes: Sequence[str]) -> list[str]:
        return [lane for lane in lanes_in(window, self.lanes) if lane in lanes]

    def remove_traces(self) -> None:
        if self.drafts is not None:
            shutil.rmtree(self.drafts, ignore_errors=True)


@dataclass
class InstrumentedTracer:
    """The tracer that the parts of one process are given, and what belongs to it.

    Attributes:
        windows: profilers that run for a few steps.
        meters: of device time and memory.
        notes: what could not be measured, in words.
    """

    tracer: Tracer
    windows: list[ProfilerWindow] = field(default_factory=list)
    meters: list[DeviceTimes | StagePeaks] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def drain_device_figures(self) -> list[DeviceFigure]:
        """Return device times and peaks of the spans that have ended since the last call."""
        return [figure for meter in self.meters for figure in meter.drain()]

    def end_windows(self) -> None:
        """Stop the profilers that still run, and have them write what they have."""
        for window in self.windows:
            window.close()
