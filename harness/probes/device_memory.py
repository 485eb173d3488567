"""Peak device memory of stages, by torch's caching allocator: what a process held at most while each span was open.

Lanes of one process share an allocator, and so do the arms of a run in one process. A stage's figure is therefore what
the *process* held while the stage ran, whichever part had asked for it. Memory that other libraries take past the
allocator (the CUDA context, NCCL's buffers, an engine's process of its own) is not in it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from functools import cache
from types import TracebackType
from typing import NamedTuple

from harness.core.trace import SpanContext, Stage, Tracer
from harness.core.types import Metric, Metrics
from harness.probes.cuda_events import DeviceTime


class Peak(NamedTuple):
    """Bytes that an allocator had given out, and had taken from the device, each at its highest."""

    allocated: int = 0
    reserved: int = 0

    def or_higher(self, other: Peak) -> Peak:
        """The higher one of each figure."""
        return Peak(max(self.allocated, other.allocated), max(self.reserved, other.reserved))


class StageMemory(NamedTuple):
    """What the process ``pid`` held at most during one span of a stage."""

    stage: Stage
    pid: int
    peak: Peak

    def metrics(self) -> Metrics:
        """The figures of a step's row; spans of a stage, and processes, give their highest."""
        return {
            f"memory/allocated_bytes/{self.stage.value}": Metric(self.peak.allocated, "max"),
            f"memory/reserved_bytes/{self.stage.value}": Metric(self.peak.reserved, "max"),
        }


DeviceFigure = DeviceTime | StageMemory
"""What a device's side says of one span."""


class DeviceMemory:
    """The peaks of one allocator, taken at each edge of a span: the spans still open keep the highest seen so far.

    Args:
        take: returns the allocator's peaks since its last call, and has them begin anew from what is held now.
    """

    def __init__(self, take: Callable[[], Peak]) -> None:
        self._take = take
        self._lock = threading.Lock()  # parts may have a thread each
        self._open: dict[object, Peak] = {}

    def begin(self, span: object) -> None:
        """Measure for this span from now on."""
        with self._lock:
            self._edge()
            self._open[span] = Peak()

    def end(self, span: object) -> Peak:
        """Return the peaks since the span began."""
        with self._lock:
            self._edge()
            return self._open.pop(span)

    def _edge(self) -> None:
        seen = self._take()
        for span, peak in self._open.items():
            self._open[span] = peak.or_higher(seen)


def is_full_gpu(error: BaseException) -> bool:
    """Whether a GPU had no memory left: for torch's allocator, or for CUDA and its libraries, which go past it.

    Making a context or a stream, or asking for what is free, ends with ``torch.AcceleratorError``; a handle of cuBLAS
    or cuDNN with a plain ``RuntimeError``.
    """
    import torch

    if isinstance(error, torch.OutOfMemoryError):
        return True
    text = str(error)
    return isinstance(error, RuntimeError) and ("CUDA error: out of memory" in text or "ALLOC_FAILED" in text)


@cache
def process_memory() -> DeviceMemory:
    """Return the one meter of this process's allocator, for the device that torch uses; nothing is initialised."""
    import torch

    def take() -> Peak:
        stats = torch.cuda.memory_stats_as_nested_dict()
        if not stats:  # the device has not been used yet
            return Peak()
        torch.cuda.reset_peak_memory_stats()
        return Peak(stats["allocated_bytes"]["all"]["peak"], stats["reserved_bytes"]["all"]["peak"])

    return DeviceMemory(take)


class DeviceMemoryTracer:
    """Measures each span's peaks. What is held before the first one, as while a model is loaded, is ``startup``'s.

    Args:
        tracer: records the spans.
        memory: of the process.
    """

    def __init__(self, tracer: Tracer, memory: DeviceMemory) -> None:
        self._tracer, self._memory = tracer, memory
        self._lock = threading.Lock()  # parts may have a thread each
        self._finished: list[StageMemory] = []
        self._starting = True
        memory.begin(self)

    def span(self, lane: str, stage: Stage, step: int = -1, version: int = -1) -> SpanContext:
        """Open a span; see ``Tracer``."""
        with self._lock:
            starting, self._starting = self._starting, False
        if starting:
            self.end(self, Stage.STARTUP)
        return _MeasuredSpan(self, self._tracer.span(lane, stage, step, version), stage)

    def begin(self, span: object) -> None:
        """Measure for this span from now on."""
        self._memory.begin(span)

    def end(self, span: object, stage: Stage) -> None:
        """Keep what was measured for it."""
        measured = StageMemory(stage, os.getpid(), self._memory.end(span))
        with self._lock:
            self._finished.append(measured)

    def drain(self) -> list[StageMemory]:
        """Return the peaks of the spans that have ended since the last call, and forget them."""
        with self._lock:
            finished, self._finished = self._finished, []
        return finished


class _MeasuredSpan:
    __slots__ = ("_span", "_stage", "_tracer")

    def __init__(self, tracer: DeviceMemoryTracer, span: SpanContext, stage: Stage) -> None:
        self._tracer, self._span, self._stage = tracer, span, stage

    def __enter__(self) -> None:
        self._tracer.begin(self)
        self._span.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._span.__exit__(kind, error, trace)
        finally:
            self._tracer.end(self, self._stage)


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
