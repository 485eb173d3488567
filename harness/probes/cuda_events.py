"""Device time of stages, by CUDA events at their edges: beside the host time, and without waiting for the device."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from harness.core.trace import HookedSpan, SpanHook, Stage
from harness.core.types import Metric, Metrics
from harness.probes.windows import training_step

PENDING = 10_000
"""Spans whose events nobody has read yet; older ones are forgotten beyond it."""


class DeviceTime(NamedTuple):
    """One span as host and device saw it.

    Attributes:
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


def cuda_events() -> tuple[Callable[[], Any] | None, str | None]:
    """Return what makes CUDA events, or None and why there are none."""
    import torch

    if not torch.cuda.is_available():
        return None, "torch finds no CUDA device"
    return partial(torch.cuda.Event, enable_timing=True), None


class _Edge(NamedTuple):
    event: Any
    host_ns: int


class DeviceTimes(SpanHook):
    """Records an event at each edge of a span, and reads it when a later step has begun and the device is past it.

    Args:
        new_event: makes a ``torch.cuda.Event`` with timing.
        clock_ns: the host's clock.
    """

    def __init__(self, new_event: Callable[[], Any], clock_ns: Callable[[], int] = time.perf_counter_ns) -> None:
        self._new_event, self._clock_ns = new_event, clock_ns
        self._begun: dict[HookedSpan, _Edge] = {}
        self._pending: deque[tuple[HookedSpan, _Edge, _Edge]] = deque(maxlen=PENDING)
        self._lock = threading.Lock()  # parts may have a thread each
        self._newest_step = -1

    def begin(self, span: HookedSpan) -> None:
        self._newest_step = max(self._newest_step, training_step(span.stage, span.step))
        self._begun[span] = self._edge()

    def end(self, span: HookedSpan, error: BaseException | None) -> None:
        ended = self._edge()
        with self._lock:
            self._pending.append((span, self._begun.pop(span), ended))

    def _edge(self) -> _Edge:
        event = self._new_event()
        event.record()
        return _Edge(event, self._clock_ns())

    def drain(self, final: bool = False) -> list[DeviceTime]:
        """Return the times that can be read without waiting, in the order in which the spans ended, and forget them.

        Args:
            final: also read the newest step; for a device that has nothing left to do.
        """
        times = []
        with self._lock:
            spans, self._pending = self._pending, deque(maxlen=PENDING)
            for span, began, ended in spans:
                is_old = final or training_step(span.stage, span.step) < self._newest_step
                if is_old and ended.event.query():
                    host_s = (ended.host_ns - began.host_ns) / 1e9
                    device_s = began.event.elapsed_time(ended.event) / 1e3
                    times.append(DeviceTime(span.lane, span.stage, span.step, host_s, device_s))
                else:
                    self._pending.append((span, began, ended))
        return times
