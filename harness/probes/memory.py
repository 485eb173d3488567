"""Peaks of memory: on the device for each stage, and in main memory for a run's processes.

Device memory is that of torch's caching allocator: what a process held at most while each span was open. Lanes of one
process share an allocator, and so do the arms of a run in one process. A stage's figure is therefore what the *process*
held while the stage ran, whichever part had asked for it. Memory that other libraries take past the allocator (the CUDA
context, NCCL's buffers, an engine's process of its own) is not in it.

Main memory is the kernel's own high-water marks: read once, so that a run pays nothing. Source: proc(5) on ``status``
and ``clear_refs``. Linux.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Collection
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import NamedTuple

import psutil

from harness.core.trace import HookedSpan, SpanHook, Stage
from harness.core.types import Metric, Metrics
from harness.probes.cuda_events import DeviceTime


class Peak(NamedTuple):
    """Bytes that an allocator had given out, and had taken from the device, at most."""

    allocated: int = 0
    reserved: int = 0

    def or_higher(self, other: Peak) -> Peak:
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
        with self._lock:
            self._edge()
            self._open[span] = Peak()

    def end(self, span: object) -> Peak:
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


class StagePeaks(SpanHook):
    """Measures each span's peaks. What is held before the first one, as while a model is loaded, is ``startup``'s."""

    inside = False

    def __init__(self, memory: DeviceMemory) -> None:
        self._memory = memory
        self._finished: deque[StageMemory] = deque()  # parts may have a thread each
        self._before_the_first = [self]
        memory.begin(self)

    def begin(self, span: HookedSpan) -> None:
        with suppress(IndexError):
            self._keep(self._before_the_first.pop(), Stage.STARTUP)
        self._memory.begin(span)

    def end(self, span: HookedSpan, error: BaseException | None) -> None:
        self._keep(span, span.stage)

    def _keep(self, measured: object, stage: Stage) -> None:
        self._finished.append(StageMemory(stage, os.getpid(), self._memory.end(measured)))

    def drain(self) -> list[StageMemory]:
        """Return the peaks of the spans that have ended since the last call, and forget them."""
        return [self._finished.popleft() for _ in range(len(self._finished))]


class MainMemory(NamedTuple):
    """Bytes that processes held at most, each at its own time, and how many processes they were."""

    num_bytes: int
    processes: int


def forget_own_peak(proc: Path = Path("/proc")) -> None:
    """Have this process's mark begin anew from what it holds now; where the kernel does not allow it, it stays."""
    with suppress(OSError):
        (proc / "self/clear_refs").write_text("5", encoding="ascii")


def with_children(pids: Collection[int]) -> set[int]:
    """Return these processes and all below them."""
    family = set(pids)
    for pid in pids:
        with suppress(psutil.Error):
            family |= {child.pid for child in psutil.Process(pid).children(recursive=True)}
    return family


def main_memory_peak(pids: Collection[int], proc: Path = Path("/proc")) -> MainMemory | None:
    """Return what processes have held at most; None where none of them can be read. Those that have ended are left out.

    What they share counts once: pages of files once for each program (its own and its libraries'), by the process that
    has most of them; shared memory likewise, once for all. Both are taken as they are now, since only the whole of a
    process has a high-water mark.
    """
    own: list[int] = []
    files: dict[str, int] = {}
    shared = 0
    for pid in pids:
        with suppress(OSError, LookupError, ValueError):  # it has ended, or is another user's
            program, sizes = str((proc / str(pid) / "exe").readlink()), _sizes(proc, pid)
            own.append(sizes["own"])
            files[program] = max(files.get(program, 0), sizes["RssFile"])
            shared = max(shared, sizes["RssShmem"])
    return MainMemory(sum(own) + sum(files.values()) + shared, len(own)) if own else None


def own_peak(pid: int, proc: Path = Path("/proc")) -> int | None:
    """Return what a process held at most, without files and shared memory; None where that cannot be read."""
    with suppress(OSError, LookupError, ValueError):
        return _sizes(proc, pid)["own"]
    return None


def _sizes(proc: Path, pid: int) -> dict[str, int]:
    """The sizes in a process's status, in bytes, and ``own``: its peak without files and shared memory."""
    lines = [line.split() for line in (proc / str(pid) / "status").read_text("utf-8", "replace").splitlines()]
    sizes = {words[0].rstrip(":"): int(words[1]) * 1024 for words in lines if len(words) == 3 and words[2] == "kB"}
    return sizes | {"own": sizes["VmHWM"] - sizes["RssFile"] - sizes["RssShmem"]}
