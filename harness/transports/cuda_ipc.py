"""Ray Direct Transport over CUDA IPC: actors on one GPU read the Learner's copy where it lies."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import ray
from torch import Tensor

from harness.core.types import WeightHandle
from harness.transports.buffers import BufferSender, CopiedWeights, StoredTensors, view_tensors
from harness.transports.protocol import TransportOptions


class CudaIpcSender(BufferSender[CopiedWeights]):
    """Publishes handles of GPU memory.

    A handle is made for each version, since it carries the event after which the copy is complete.
    """

    def __init__(self, options: TransportOptions) -> None:
        super().__init__(partial(CopiedWeights, flatten=options.flatten), options.buffers_at_start)
        self._refs: dict[int, Any] = {}

    def close(self) -> None:
        """Drop the handles, then the copies."""
        self._refs = {}
        super().close()

    def _payload(self, buffer: CopiedWeights, version: int) -> StoredTensors:
        self._refs = {held: ref for held, ref in self._refs.items() if held in self._pool}
        self._refs[version] = ray.put(buffer.tensors, _tensor_transport="cuda_ipc")
        return StoredTensors([self._refs[version]], buffer.layout, buffer.flatten)


class CudaIpcReceiver:
    """Opens the handles; see ``protocol.WeightReceiver``."""

    def __init__(self, options: TransportOptions) -> None:
        self.notes: tuple[str, ...] = ()

    def receive(self, weight_handle: WeightHandle, arrived: list[Tensor] | None = None) -> Mapping[str, Tensor]:
        """Return views of the Learner's own memory."""
        payload: StoredTensors = weight_handle.payload
        return view_tensors(payload.layout, payload.flatten, ray.get(payload.refs[0]))

    def close(self) -> None:
        """Nothing is kept."""
