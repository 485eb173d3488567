"""Device time beside host time, on a fake device whose figures are given."""

from __future__ import annotations

import pytest

from harness.core.trace import HookedTracer, NullTracer, RecordingTracer, Stage
from harness.probes.cuda_events import DeviceTime, DeviceTimes, cuda_events


class FakeDevice:
    """A device with one queue: it works through what it is given, while a host that never waits goes on.

    Attributes:
        host_ns: the host's clock.
    """

    def __init__(self) -> None:
        self.host_ns = self._busy_until_ns = 0

    def launch(self, seconds: float) -> None:
        """Give it work; takes the host no time."""
        self._busy_until_ns = self.reached_ns() + round(seconds * 1e9)

    def host_works(self, seconds: float) -> None:
        self.host_ns += round(seconds * 1e9)

    def new_event(self) -> FakeEvent:
        return FakeEvent(self)

    def reached_ns(self) -> int:
        """When it will have done all that it was given so far."""
        return max(self._busy_until_ns, self.host_ns)


class FakeEvent:
    """As ``torch.cuda.Event``."""

    def __init__(self, device: FakeDevice) -> None:
        self._device, self._at_ns = device, -1

    def record(self) -> None:
        self._at_ns = self._device.reached_ns()

    def query(self) -> bool:
        return self._device.host_ns >= self._at_ns

    def elapsed_time(self, end_event: FakeEvent, /) -> float:
        if not (self.query() and end_event.query()):
            raise RuntimeError("both events must be completed before their elapsed time can be read")
        return (end_event._at_ns - self._at_ns) / 1e6


def traced(device: FakeDevice) -> tuple[HookedTracer, DeviceTimes]:
    times = DeviceTimes(device.new_event)
    return HookedTracer(NullTracer(), times), times


def test_a_launch_that_takes_the_host_no_time_shows_its_device_time() -> None:
    device = FakeDevice()
    tracer, times = traced(device)
    with tracer.span("learner", Stage.UPDATE, 0, 0):
        device.launch(0.5)
        device.host_works(0.001)
    with tracer.span("learner", Stage.SCORE, 1, 1):
        device.host_works(0.25)  # the device is busy with step 0 all the while: 0.499 s of it are left at the start
    assert times.drain() == []  # step 0 ends on the device at 0.5 s, and the host stands at 0.251 s
    device.host_works(0.25)
    assert times.drain() == [DeviceTime(Stage.UPDATE, 0.5), DeviceTime(Stage.SCORE, 0.0)]
    with tracer.span("learner", Stage.PREPARE_BATCH, 0):  # of the host alone: takes as long on both
        device.host_works(0.125)
    assert times.drain() == [DeviceTime(Stage.PREPARE_BATCH, 0.125)]
    assert times.drain() == []


def test_a_span_that_fails_is_timed_and_recorded_all_the_same() -> None:
    device = FakeDevice()
    recorder = RecordingTracer(lambda: device.host_ns)
    times = DeviceTimes(device.new_event)
    tracer = HookedTracer(recorder, times)

    def work() -> None:
        device.host_works(0.5)
        raise ValueError("inside")

    with pytest.raises(ValueError, match="inside"), tracer.span("learner", Stage.UPDATE, 0):
        work()
    assert [(span.start_ns, span.end_ns) for span in recorder.drain()] == [(0, 500_000_000)]
    assert times.drain() == [DeviceTime(Stage.UPDATE, 0.5)]


def test_without_cuda_there_is_a_reason() -> None:
    import torch

    new_event, reason = cuda_events()
    assert (new_event is None) == (not torch.cuda.is_available())
    assert (reason == "torch finds no CUDA device") == (new_event is None)
