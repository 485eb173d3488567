"""How new weights get into vLLM's model, where it is in this process and where workers have parts of it.

Functions of a module, so that they can be sent to workers by name.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from harness.models.flat_layout import BucketLayout, copy_weights


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
    """Do as ``put`` with the weights in a file, in a worker: its part of the model takes its slices."""
    with open(file.path, "rb") as opened:
        mapped = mmap.mmap(opened.fileno(), file.layout.num_bytes, access=mmap.ACCESS_COPY)
    return put(module, file.layout.views(torch.frombuffer(mapped, dtype=torch.uint8)).items())


_LOOKED_AT = 4096


def first_values(module: nn.Module) -> dict[str, Tensor]:
    """Return the first numbers of each of vLLM's parameters, which loading the same weights again must not change."""
    return {name: weight.detach().reshape(-1)[:_LOOKED_AT].clone() for name, weight in module.named_parameters()}


def packed_away(module: nn.Module) -> list[str]:
    """Return the names of parameters that vLLM has taken the numbers of."""
    return [name for name, parameter in module.named_parameters() if not parameter.numel()]
