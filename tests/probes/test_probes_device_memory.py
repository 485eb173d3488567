"""Peak device memory of stages, on a stand-in for torch's allocator whose figures are given."""

from __future__ import annotations

import os

from harness.core.trace import HookedTracer, NullTracer, Stage
from harness.probes.memory import DeviceMemory, Peak, StageMemory, StagePeaks

PID = os.getpid()


class FakeAllocator:
    """A caching allocator with counters, for tests: what it once took from the device it keeps."""

    def __init__(self) -> None:
        self._allocated = self._reserved = 0
        self._peak = Peak()

    def allocate(self, num_bytes: int) -> None:
        """Give out memory; a negative number takes it back."""
        self._allocated += num_bytes
        self._reserved = max(self._reserved, self._allocated)
        self._peak = self._peak.or_higher(Peak(self._allocated, self._reserved))

    def take(self) -> Peak:
        """Return the peaks since the last call; they begin anew from what is held."""
        seen, self._peak = self._peak, Peak(self._allocated, self._reserved)
        return seen


def traced(allocator: FakeAllocator) -> tuple[HookedTracer, StagePeaks]:
    peaks = StagePeaks(DeviceMemory(allocator.take))
    return HookedTracer(NullTracer(), peaks), peaks


def test_a_stage_has_its_own_peak_above_what_was_held_before_it() -> None:
    allocator = FakeAllocator()
    tracer, peaks = traced(allocator)
    allocator.allocate(100)  # the model, as it is loaded
    allocator.allocate(-40)
    with tracer.span("learner", Stage.UPDATE, 0):
        allocator.allocate(500)
        allocator.allocate(-500)
    with tracer.span("learner", Stage.WEIGHT_PUBLISH, 1):
        allocator.allocate(20)
    assert peaks.drain() == [
        StageMemory(Stage.STARTUP, PID, Peak(100, 100)),
        StageMemory(Stage.UPDATE, PID, Peak(560, 560)),
        StageMemory(Stage.WEIGHT_PUBLISH, PID, Peak(80, 560)),  # reserved is kept, allocated fell
    ]
    assert peaks.drain() == []


def test_a_nested_span_does_not_lose_the_peaks_of_the_outer_one() -> None:
    allocator = FakeAllocator()
    tracer, peaks = traced(allocator)
    with tracer.span("generator", Stage.WEIGHT_LOAD, 1):
        allocator.allocate(300)  # before the inner one begins, and gone by then
        allocator.allocate(-290)
        with tracer.span("generator", Stage.WEIGHT_VERIFY, 1):
            allocator.allocate(40)
        allocator.allocate(-40)
    _, inner, outer = peaks.drain()
    assert inner == StageMemory(Stage.WEIGHT_VERIFY, PID, Peak(50, 300))
    assert outer == StageMemory(Stage.WEIGHT_LOAD, PID, Peak(300, 300))
    with tracer.span("learner", Stage.EVALUATE), tracer.span("learner", Stage.GENERATE):
        allocator.allocate(370)
    assert [memory.peak.allocated for memory in peaks.drain()] == [380, 380]  # an inner peak is the outer one's too


def test_lanes_and_arms_of_one_process_see_the_same_allocator() -> None:
    """Spans of two lanes that overlap without nesting, each with what the process held while it was open."""
    allocator = FakeAllocator()
    memory = DeviceMemory(allocator.take)
    one, other = StagePeaks(memory), StagePeaks(memory)
    sampling = HookedTracer(NullTracer(), one).span("generator", Stage.GENERATE, 1)
    training = HookedTracer(NullTracer(), other).span("learner", Stage.UPDATE, 0)
    sampling.__enter__()
    allocator.allocate(10)
    training.__enter__()
    allocator.allocate(200)
    allocator.allocate(-205)
    sampling.__exit__(None, None, None)
    allocator.allocate(100)
    training.__exit__(None, None, None)
    assert one.drain()[1:] == [StageMemory(Stage.GENERATE, PID, Peak(210, 210))]
    assert other.drain()[1:] == [StageMemory(Stage.UPDATE, PID, Peak(210, 210))]
