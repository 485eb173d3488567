"""What a Learner holds leaves its device between the phases that use it, and comes back before the next one.

A storage is copied away and then resized to nothing, and on its way back resized and filled. So every tensor on it
stays what it was: a parameter, a rank's shard of a DTensor, FSDP2's view of that shard, the optimizer's state. No
reference changes, and a training step with offload makes the same bits as one without.
"""

from __future__ import annotations

import ctypes
import platform
import tempfile
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import psutil
import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from harness.core.errors import RunStopped
from harness.core.trace import NullTracer, Stage, Tracer
from harness.core.types import Metric, Metrics
from harness.settings.learner import Held

Tensors = Callable[[], Iterable[Tensor]]
"""Returns tensors as they are at the time; of DTensors this rank's shards are meant."""


class OffloadTarget(Protocol):
    """Takes the bytes (N,) of storages, each by its number."""

    def keep(self, number: int, memory: Tensor) -> None:
        """Begin to copy a storage away, over what was kept by this number before."""

    def fetch(self, number: int, memory: Tensor) -> None:
        """Begin to copy it back."""

    def settle(self) -> None:
        """Return when all copies are made."""

    def give_back(self) -> None:
        """Return freed memory to who else wants it."""

    def resident_bytes(self) -> int:
        """Return the bytes of the device that this process holds."""

    def close(self) -> None: ...


class PinnedTarget:
    """Memory of the host for what leaves a GPU, pinned so that copies run at the bus's speed; made once, used again."""

    def __init__(self) -> None:
        self._kept: dict[int, Tensor] = {}

    def keep(self, number: int, memory: Tensor) -> None:
        if number not in self._kept:
            self._kept[number] = pinned_memory(len(memory))
        self._kept[number].copy_(memory, non_blocking=True)

    def fetch(self, number: int, memory: Tensor) -> None:
        memory.copy_(self._kept[number], non_blocking=True)

    def settle(self) -> None:
        torch.cuda.current_stream().synchronize()

    def give_back(self) -> None:
        torch.cuda.empty_cache()  # a search for garbage first would take longer than the copy

    def resident_bytes(self) -> int:
        return torch.cuda.memory_reserved()  # of tensors or not

    def close(self) -> None:
        self._kept.clear()


class FileTarget:
    """A file without a name for what leaves a CPU, so that the process's resident memory falls for real.

    It lies in the system's folder for temporary files. Where that is memory itself (tmpfs), the machine gains nothing.
    """

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as this
        self._starts: dict[int, int] = {}
        self._end, self._process = 0, psutil.Process()
        self._trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if platform.libc_ver()[0] == "glibc" else None

    def keep(self, number: int, memory: Tensor) -> None:
        if number not in self._starts:
            self._starts[number], self._end = self._end, self._end + len(memory)
        self._file.seek(self._starts[number])
        self._file.write(_buffer_of(memory))
        self._file.flush()

    def fetch(self, number: int, memory: Tensor) -> None:
        self._file.seek(self._starts[number])
        if self._file.readinto(_buffer_of(memory)) != len(memory):
            raise OSError("the file of offloaded memory ends early")

    def settle(self) -> None:
        pass  # each copy is made when it is begun

    def give_back(self) -> None:
        if self._trim is not None:
            self._trim(0)  # the C library keeps free pages until it is told to let go

    def resident_bytes(self) -> int:
        return int(self._process.memory_info().rss)

    def close(self) -> None:
        self._file.close()


def _buffer_of(memory: Tensor) -> memoryview:
    """The bytes, without numpy, which would mark the storage as one that cannot be resized."""
    return memoryview((ctypes.c_char * len(memory)).from_address(memory.data_ptr())).cast("B")


def pinned_memory(num_bytes: int, cudart: Any = None) -> Tensor:
    """Return page-locked memory, (num_bytes,) uint8, which is unlocked when this tensor goes.

    It must outlive its views and every copy to or from it.

    torch's own allocator takes the next power of two: 34.4 GB for a checkpoint's copy of 18.5 GB, and 2.99 GB for
    weights of 2.43 GB, tensor by tensor (an H100). This takes what is asked for; locking it took 0.3 s a GB there.

    Args:
        num_bytes: at least 1.
        cudart: ``torch.cuda.cudart()``, or what a test puts in its place.

    Raises:
        RunStopped: the host refuses to lock so much.
    """
    cudart = torch.cuda.cudart() if cudart is None else cudart
    memory = torch.empty(num_bytes, dtype=torch.uint8)
    error = int(cudart.cudaHostRegister(memory.data_ptr(), num_bytes, 0))
    if error:
        raise RunStopped(f"{num_bytes:,} bytes of main memory could not be locked for a GPU (CUDA error {error})")
    weakref.finalize(memory, cudart.cudaHostUnregister, memory.data_ptr())
    return memory


@dataclass
class _Watched:
    tensors: Tensors
    has_contents: bool
    away: list[tuple[torch.UntypedStorage, int, int]] = field(default_factory=list)  # with its bytes and its number


class Offload:
    """Moves what it was told to watch, kind by kind, and says in the Learner's lane how long that took.

    Args:
        kinds: that leave the device; moving another kind does nothing.
        target: where to; None moves nothing and measures nothing.
        tracer, lane: record the stages ``offload`` and ``onload``. A move in the middle of another stage opens a span
            inside of that one's; see ``InterruptingTracer``.
    """

    def __init__(
        self,
        kinds: Collection[Held] = (),
        target: OffloadTarget | None = None,
        tracer: Tracer | None = None,
        lane: str = "learner",
    ) -> None:
        self._kinds, self._target = frozenset(kinds), target
        self._tracer, self._lane = tracer or NullTracer(), lane
        self._watched: dict[Held, list[_Watched]] = {}
        self._numbers: dict[tuple[int, int], int] = {}
        self._moved = {Stage.OFFLOAD: 0, Stage.ONLOAD: 0}
        self._resident: int | None = None

    def watch(self, kind: Held, tensors: Tensors, *, has_contents: bool = True) -> None:
        """Count tensors to a kind; they are asked for at each move.

        Without contents their memory is freed and nothing copied: what comes back is not defined.
        """
        if self.moves(kind):
            self._watched.setdefault(kind, []).append(_Watched(tensors, has_contents))

    def moves(self, kind: Held) -> bool:
        """Whether this kind leaves the device."""
        return self._target is not None and kind in self._kinds

    def out(self, kind: Held, step: int = -1, version: int = -1) -> None:
        """Move a kind away; what is away already stays there."""
        here = [watched for watched in self._watched.get(kind, ()) if not watched.away]
        storages = [(watched, storage) for watched in here for storage in _storages(watched.tensors())]
        if not storages or self._target is None:
            return
        with self._tracer.span(self._lane, Stage.OFFLOAD, step, version):
            for watched, storage in storages:
                number = self._numbers.setdefault((storage._cdata, storage.nbytes()), len(self._numbers))
                if watched.has_contents:
                    self._target.keep(number, _bytes_of(storage))
                    self._moved[Stage.OFFLOAD] += storage.nbytes()
                watched.away.append((storage, storage.nbytes(), number))
            self._target.settle()  # before the memory is anybody else's
            for _, storage in storages:
                storage.resize_(0)
            self._target.give_back()

    def back(self, kind: Held, step: int = -1, version: int = -1) -> None:
        """Bring a kind back; what is there already stays there."""
        away = [watched for watched in self._watched.get(kind, ()) if watched.away]
        if not away or self._target is None:
            return
        with self._tracer.span(self._lane, Stage.ONLOAD, step, version):
            for watched in away:
                for storage, num_bytes, number in watched.away:
                    storage.resize_(num_bytes)
                    if watched.has_contents:
                        self._target.fetch(number, _bytes_of(storage))
                        self._moved[Stage.ONLOAD] += num_bytes
                watched.away.clear()
            self._target.settle()

    @contextmanager
    def resident(self, kind: Held, step: int = -1, version: int = -1) -> Iterator[None]:
        """Have a kind on the device for the block."""
        self.back(kind, step, version)
        yield
        self.out(kind, step, version)

    def between_steps(self, step: int = -1, version: int = -1) -> None:
        """Move away what only training and publishing use, and measure what is left on the device."""
        self.out("weights", step, version)
        self.out("reference", step, version)
        if self._target is not None:
            self._resident = self._target.resident_bytes()

    def metrics(self) -> Metrics:
        """Return what was moved since the last call, and what was left when all was away; of ranks the most."""
        if self._target is None:
            return {}
        metrics = {
            "offload/moved_bytes": Metric(self._moved[Stage.OFFLOAD], "sum"),
            "offload/returned_bytes": Metric(self._moved[Stage.ONLOAD], "sum"),
        }
        if self._resident is not None:
            metrics["offload/resident_bytes"] = Metric(self._resident, "max")
        self._moved = dict.fromkeys(self._moved, 0)
        return metrics

    def close(self) -> None:
        if self._target is not None:
            self._target.close()


def movable(tensors: Iterable[Tensor]) -> None:
    """Give each tensor whose memory is not torch's own, such as a mapped file, memory that can be given back."""
    for tensor in tensors:
        if not isinstance(tensor, DTensor) and not tensor.untyped_storage().resizable():
            tensor.data = tensor.data.clone()


def _storages(tensors: Iterable[Tensor]) -> list[torch.UntypedStorage]:
    """Each storage once, without empty ones."""
    local = (tensor.to_local() if isinstance(tensor, DTensor) else tensor for tensor in tensors)
    found = {storage._cdata: storage for tensor in local if (storage := tensor.untyped_storage()).nbytes()}
    return list(found.values())


def _bytes_of(storage: torch.UntypedStorage) -> Tensor:
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
