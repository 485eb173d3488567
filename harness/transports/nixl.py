"""Ray Direct Transport over NIXL: Generators read the Learner's published copy with one-sided transfers.

One object of Ray Direct Transport stands for each place, made once and refilled with every version, since such objects
refer to tensors and do not copy them. A new object for each version would cost 2 to 5 ms more, and every Generator
would keep the metadata of each for ever (ray-project/ray#57962).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import ray
from ray.experimental import deregister_nixl_memory, register_nixl_memory, set_target_for_ref
from torch import Tensor

from harness.core.types import WeightHandle
from harness.transports.bucket import BucketLayout
from harness.transports.nixl_agent import start_nixl_agent
from harness.transports.options import TransportOptions
from harness.transports.slots import CopiedWeights, SlotSender, StoredTensors, empty_tensors, view_tensors


class _Offered(CopiedWeights):
    """A copy whose memory NIXL knows and others may read."""

    def __init__(self, weights: Mapping[str, Tensor], layout: BucketLayout, flatten: bool) -> None:
        super().__init__(weights, layout, flatten)
        for tensor in self.tensors:
            register_nixl_memory(tensor)
        self.refs = [ray.put(self.tensors, _tensor_transport="nixl")]

    def close(self) -> None:
        self.refs.clear()
        for tensor in self.tensors:
            deregister_nixl_memory(tensor)
        super().close()


class NixlSender(SlotSender[_Offered]):
    """Publishes through NIXL, in registered memory. Its actor needs ``enable_tensor_transport=True``."""

    def __init__(self, options: TransportOptions) -> None:
        super().__init__(partial(_Offered, flatten=options.flatten), options.slots_at_start)
        self.notes = start_nixl_agent(options.progress_thread_delay_us)

    def _payload(self, place: _Offered, version: int) -> StoredTensors:
        return StoredTensors(list(place.refs), place.layout, place.flatten)


class NixlReceiver:
    """Reads through NIXL; see ``protocol.WeightReceiver``. Its actor needs ``enable_tensor_transport=True``."""

    def __init__(self, options: TransportOptions) -> None:
        self.notes = start_nixl_agent(options.progress_thread_delay_us)
        self._preallocate, self._device = options.preallocate, options.device
        self._layout: BucketLayout | None = None
        self._buffers: list[Tensor] = []

    def receive(self, weight_handle: WeightHandle, arrived: list[Tensor] | None = None) -> Mapping[str, Tensor]:
        """Read the weights into this receiver's buffers, or fresh ones without ``preallocate``."""
        payload: StoredTensors = weight_handle.payload
        if self._preallocate:
            self._fit_buffers(payload)
            set_target_for_ref(payload.refs[0], self._buffers)
        tensors = ray.get(payload.refs[0])
        return view_tensors(payload.layout, payload.flatten, tensors)

    def close(self) -> None:
        """Give the buffers back."""
        for tensor in self._buffers:
            deregister_nixl_memory(tensor)
        self._buffers, self._layout = [], None

    def _fit_buffers(self, payload: StoredTensors) -> None:
        if payload.layout == self._layout:
            return
        self.close()
        self._buffers = empty_tensors(payload.layout, payload.flatten, self._device)
        self._layout = payload.layout
        for tensor in self._buffers:
            register_nixl_memory(tensor)
