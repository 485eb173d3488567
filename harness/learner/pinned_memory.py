"""Memory of the host that a GPU copies to and from at the bus's speed."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor

from harness.core.errors import RunStopped


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
