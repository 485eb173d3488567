"""Device time of stages, by CUDA events at their edges: beside the host time, and without waiting for the device."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from harness.core.trace import HookedSpan, SpanHook, Stage
from harness.core.types import Metric, Metrics

PENDING = 10_000
"""Spans whose events nobody has read yet; older ones are forgotten beyond it."""


class DeviceTime(NamedTuple):
    """Seconds between a device's passing of the edges of a span, on the stream of the thread, idle ones included.

    Above the host's seconds the host only launched the work; below, the device still had earlier work to do.
    """

    stage: Stage
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


class DeviceTimes(SpanHook):
    """Records an event at each edge of a span; they are read when the device is past them.

    Args:
        new_event: makes a ``torch.cuda.Event`` with timing.
    """

    def __init__(self, new_event: Callable[[], Any]) -> None:
        self._new_event = new_event
        self._begun: dict[HookedSpan, Any] = {}
        self._pending: deque[tuple[Stage, Any, Any]] = deque(maxlen=PENDING)
        self._lock = threading.Lock()  # parts may have a thread each

    def begin(self, span: HookedSpan) -> None:
        self._begun[span] = event = self._new_event()
        event.record()

    def end(self, span: HookedSpan, error: BaseException | None) -> None:
        event = self._new_event()
        event.record()
        with self._lock:
            self._pending.append((span.stage, self._begun.pop(span), event))

    def drain(self) -> list[DeviceTime]:
        """Return the times that can be read without waiting, in the order in which the spans ended, and forget them."""
        with self._lock:
            spans, self._pending = self._pending, deque(maxlen=PENDING)
            times = []
            for stage, began, ended in spans:
                if ended.query():
                    times.append(DeviceTime(stage, began.elapsed_time(ended) / 1e3))
                else:
                    self._pending.append((stage, began, ended))
        return times
