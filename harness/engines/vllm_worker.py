"""What runs where vLLM's model is: in this process, or in the workers' own, which import this module by its name."""

from __future__ import annotations

import gc
import mmap
import os
import signal
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from harness.models.flat_layout import BucketLayout, copy_weights

_LOOKED_AT = 4096


def plain_cpu_worker(**options: Any) -> Any:
    """Make a worker that keeps its matrices as plain parameters, over which new weights can be copied.

    On CPUs vLLM would pack each of them into a handle of oneDNN's that nothing can write to.

    Raises:
        RuntimeError: this vLLM has another name for what switches that off.
    """
    import vllm._custom_ops as custom_ops
    from vllm.v1.worker.cpu_worker import CPUWorker

    if not hasattr(custom_ops, "_supports_onednn"):
        raise RuntimeError("this vLLM cannot be told to leave its weights as they are; 0.32 can")
    custom_ops._supports_onednn = False
    return CPUWorker(**options)


def settle_worker(worker: Any) -> None:
    """Leave Ctrl-C to the process that the worker belongs to, which ends it, and names of shared memory to nobody."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    from vllm.distributed.device_communicators.shm_broadcast import ShmRingBuffer

    if frozen := gc.get_freeze_count():  # what vLLM has frozen is not listed
        gc.unfreeze()
    drop_names(each for each in gc.get_objects() if type(each) is ShmRingBuffer)
    if frozen:
        gc.freeze()


def drop_names(buffers: Iterable[Any]) -> None:
    """Take the names off vLLM's queues in shared memory, once all have mapped them.

    They would stay where processes are killed; Ray kills those below an actor, Python's watch over such names too.
    """
    for buffer in buffers:
        if buffer.is_creator:
            buffer.shared_memory.unlink()
            buffer.is_creator = False


@dataclass(frozen=True, slots=True)
class MemoryFile:
    """A file that lies in memory and has no name that could stay behind: others find it below the process it is of."""

    path: str
    layout: BucketLayout


@contextmanager
def in_memory_file(weights: Mapping[str, Tensor]) -> Iterator[MemoryFile]:
    """Write weights into a file for other processes of this user to read; it is gone after the block."""
    layout, descriptor = BucketLayout.of(weights), os.memfd_create("weights", os.MFD_CLOEXEC)
    try:
        os.ftruncate(descriptor, layout.num_bytes)
        memory = torch.frombuffer(mmap.mmap(descriptor, layout.num_bytes), dtype=torch.uint8)
        copy_weights(weights, layout.views(memory))
        yield MemoryFile(f"/proc/{os.getpid()}/fd/{descriptor}", layout)
    finally:
        os.close(descriptor)


def put(module: nn.Module, weights: Iterable[tuple[str, Tensor]]) -> list[str]:
    """Copy weights over those of vLLM's model; return the names of its parameters that none of them went to."""
    with torch.no_grad():
        loaded = module.load_weights(iter(weights))  # type: ignore[operator]
    return sorted(name for name, _ in module.named_parameters() if name not in loaded)


def put_file(module: nn.Module, file: MemoryFile) -> list[str]:
    """Do as ``put`` with the weights in a file: a worker's part of the model takes its slices of whole tensors."""
    with open(file.path, "rb") as opened:
        mapped = mmap.mmap(opened.fileno(), file.layout.num_bytes, access=mmap.ACCESS_COPY)
    return put(module, file.layout.views(torch.frombuffer(mapped, dtype=torch.uint8)).items())


def first_values(module: nn.Module) -> dict[str, Tensor]:
    """Return the first numbers of each of vLLM's parameters, which loading the same weights again must not change."""
    return {name: weight.detach().reshape(-1)[:_LOOKED_AT].clone() for name, weight in module.named_parameters()}


def packed_away(module: nn.Module) -> list[str]:
    """Return the names of parameters that vLLM has taken the numbers of."""
    return [name for name, parameter in module.named_parameters() if not parameter.numel()]
