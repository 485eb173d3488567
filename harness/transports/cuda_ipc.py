"""Ray Direct Transport over CUDA IPC: actors on one GPU read the Learner's copy where it lies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ray
from torch import Tensor

from harness.core.types import WeightHandle
from harness.transports.buffers import BufferSender, CopiedWeights, StoredTensor
from harness.transports.protocol import StatelessReceiver, TransportOptions


class CudaIpcSender(BufferSender[CopiedWeights]):
    """Publishes handles of GPU memory.

    A handle is made for each version, since it carries the event after which the copy is complete.
    """

    def __init__(self, options: TransportOptions) -> None:
        super().__init__(CopiedWeights, options.buffers_at_start)
        self._refs: dict[int, Any] = {}

    def close(self) -> None:
        self._refs = {}
        super().close()

    def _payload(self, buffer: CopiedWeights, version: int) -> StoredTensor:
        self._refs = {held: ref for held, ref in self._refs.items() if held in self._pool}
        self._refs[version] = ray.put([buffer.tensor], _tensor_transport="cuda_ipc")
        return StoredTensor([self._refs[version]], buffer.layout)


class CudaIpcReceiver(StatelessReceiver):
    """Opens the handles."""

    def receive(self, weight_handle: WeightHandle, arrived: list[Tensor] | None = None) -> Mapping[str, Tensor]:
        """Return views of the Learner's own memory."""
        payload: StoredTensor = weight_handle.payload
        (tensor,) = ray.get(payload.refs[0])
        return payload.layout.views(tensor)
