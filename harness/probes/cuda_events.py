"""Device time of stages, by CUDA events at their edges: beside the host time, and without waiting for the device."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import NamedTuple, Protocol, Self

from harness.core.trace import SpanContext, Stage, Tracer
from harness.core.types import Metric, Metrics
from harness.probes.windows import training_step

PENDING = 10_000
"""Spans whose events nobody has read yet; older ones are forgotten beyond it."""


class DeviceEvent(Protocol):
    """A mark in the device's work queue, such as ``torch.cuda.Event(enable_timing=True)``."""

    def record(self) -> None:
        """Put the mark behind what the current stream was given so far."""

    def query(self) -> bool:
        """Whether the device has come past it."""

    def elapsed_time(self, end_event: Self, /) -> float:
        """Milliseconds of the device from this mark to another one; both must be passed."""


class DeviceTime(NamedTuple):
    """One span as host and device saw it.

    Attributes:
        lane, stage, step: as in ``Span``.
        host_s: seconds between the host's passing of its edges.
        device_s: seconds between the device's passing of them, on the stream of the thread, idle ones included. Above
            ``host_s`` the host only launched the work; below it, the device still had earlier work to do.
    """

    lane: str
    stage: Stage
    step: int
    host_s: float
    device_s: float

    def metrics(self) -> Metrics:
        """The figure of a step's row; spans of a stage add up."""
        return {f"timing_device_s/{self.stage.value}": Metric(self.device_s, "sum")}


def cuda_events() -> tuple[Callable[[], DeviceEvent] | None, str | None]:
    """Return what makes CUDA events, or None and why there are none."""
    import torch

    if not torch.cuda.is_available():
        return None, "torch finds no CUDA device"
    return partial(torch.cuda.Event, enable_timing=True), None


class DeviceTimeTracer:
    """Records an event at each edge of a span, and reads it when a later step has begun and the device is past it.

    Args:
        tracer: records the spans.
        new_event: makes an event.
        clock_ns: the host's clock.
    """

    def __init__(
        self, tracer: Tracer, new_event: Callable[[], DeviceEvent], clock_ns: Callable[[], int] = time.perf_counter_ns
    ) -> None:
        self._tracer, self._new_event, self._clock_ns = tracer, new_event, clock_ns
        self._pending: deque[_TimedSpan] = deque(maxlen=PENDING)
        self._lock = threading.Lock()  # parts may have a thread each
        self._newest_step = -1

    def span(self, lane: str, stage: Stage, step: int = -1, version: int = -1) -> SpanContext:
        """Open a span; see ``Tracer``."""
        self._newest_step = max(self._newest_step, training_step(stage, step))
        return _TimedSpan(self, self._tracer.span(lane, stage, step, version), lane, stage, step)

    def drain(self, final: bool = False) -> list[DeviceTime]:
        """Return the times that can be read without waiting, in the order in which the spans ended, and forget them.

        Args:
            final: also read the newest step; for a device that has nothing left to do.
        """
        with self._lock:
            spans, self._pending = self._pending, deque(maxlen=PENDING)
            ready: list[_TimedSpan] = []
            for span in spans:
                can_be_read = (final or span.training_step < self._newest_step) and span.passed()
                (ready if can_be_read else self._pending).append(span)
        return [span.read() for span in ready]

    def _ended(self, span: _TimedSpan) -> None:
        with self._lock:
            self._pending.append(span)

    def _edge(self) -> tuple[DeviceEvent, int]:
        event = self._new_event()
        event.record()
        return event, self._clock_ns()


class _TimedSpan:
    __slots__ = ("_begin", "_end", "_lane", "_span", "_stage", "_step", "_tracer", "training_step")

    _begin: tuple[DeviceEvent, int]
    _end: tuple[DeviceEvent, int]

    def __init__(self, tracer: DeviceTimeTracer, span: SpanContext, lane: str, stage: Stage, step: int) -> None:
        self._tracer, self._span, self._lane, self._stage, self._step = tracer, span, lane, stage, step
        self.training_step = training_step(stage, step)

    def __enter__(self) -> None:
        self._span.__enter__()
        self._begin = self._tracer._edge()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._end = self._tracer._edge()
            self._tracer._ended(self)
        finally:
            self._span.__exit__(kind, error, trace)

    def passed(self) -> bool:
        """Whether the device is past both edges; it passes them in order."""
        return self._end[0].query()

    def read(self) -> DeviceTime:
        """Return the times; the device must be past it."""
        (begin, begin_ns), (end, end_ns) = self._begin, self._end
        device_s = begin.elapsed_time(end) / 1e3
        return DeviceTime(self._lane, self._stage, self._step, (end_ns - begin_ns) / 1e9, device_s)
