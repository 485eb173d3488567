"""Ray Direct Transport over NIXL: Generators read the Learner's published copy with one-sided transfers.

One object of Ray Direct Transport stands for each place, made once and refilled with every version, since such objects
refer to tensors and do not copy them. A new object for each version would cost 2 to 5 ms more, and every Generator
would keep the metadata of each for ever (ray-project/ray#57962).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.experimental import deregister_nixl_memory, register_nixl_memory, set_target_for_ref
from torch import Tensor

from harness.transports.bucket import BucketLayout
from harness.transports.nixl_agent import start_nixl_agent
from harness.transports.options import TransportOptions
from harness.transports.slots import CopiedWeights, LiveWeights, NewestOnly, Slots, empty_tensors, view_tensors
from harness.types import WeightTicket


@dataclass(frozen=True, slots=True)
class NixlPayload:
    """The object to read, inside a list because Ray would fetch it on the way otherwise, and what lies in it."""

    refs: list[Any] = field(repr=False)
    layout: BucketLayout = field(repr=False)
    flatten: bool


class _Offered:
    """Weights whose memory NIXL knows and others may read."""

    def __init__(self, weights: CopiedWeights | LiveWeights) -> None:
        self._weights, self.layout = weights, weights.layout
        for tensor in weights.tensors:
            register_nixl_memory(tensor)
        self.refs = [ray.put(weights.tensors, _tensor_transport="nixl")]

    @property
    def views(self) -> Mapping[str, Tensor]:
        return self._weights.views

    def fill(self, weights: Mapping[str, Tensor], version: int) -> None:
        self._weights.fill(weights, version)

    def close(self) -> None:
        self.refs.clear()
        for tensor in self._weights.tensors:
            deregister_nixl_memory(tensor)
        self._weights.close()


class NixlSender:
    """Publishes through NIXL; see ``protocol.WeightSender``. Its actor needs ``enable_tensor_transport=True``."""

    def __init__(self, options: TransportOptions) -> None:
        self.notes = start_nixl_agent(options.progress_thread_delay_us)
        self._flatten = options.flatten
        self._slots: Slots[_Offered] | NewestOnly[_Offered]
        if options.snapshot:
            self._slots = Slots(
                lambda weights, layout: _Offered(CopiedWeights(weights, layout, options.flatten)),
                options.slots_at_start,
            )
        else:
            self._slots = NewestOnly(lambda weights, layout: _Offered(LiveWeights(weights, layout)))

    def publish(self, weights: Mapping[str, Tensor], version: int, still_needed: frozenset[int]) -> WeightTicket:
        """Copy the weights into registered memory."""
        place = self._slots.put(weights, version, still_needed)
        payload = NixlPayload(list(place.refs), place.layout, self._flatten)
        return WeightTicket(version, place.layout.payload_bytes, len(weights), None, payload)

    def published(self, version: int) -> Mapping[str, Tensor]:
        """Return the published copy."""
        return self._slots[version].views

    def outgoing(self, version: int) -> list[Tensor]:
        """Nothing: receivers read by themselves."""
        return []

    def close(self) -> None:
        """Withdraw the memory."""
        self._slots.close()


class NixlReceiver:
    """Reads through NIXL; see ``protocol.WeightReceiver``. Its actor needs ``enable_tensor_transport=True``."""

    def __init__(self, options: TransportOptions) -> None:
        self.notes = start_nixl_agent(options.progress_thread_delay_us)
        self._preallocate, self._device = options.preallocate, options.device
        self._layout: BucketLayout | None = None
        self._buffers: list[Tensor] = []

    def receive(self, ticket: WeightTicket, arrived: list[Tensor] | None = None) -> Mapping[str, Tensor]:
        """Read the weights into this receiver's buffers, or fresh ones without ``preallocate``."""
        payload: NixlPayload = ticket.payload
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

    def _fit_buffers(self, payload: NixlPayload) -> None:
        if payload.layout == self._layout:
            return
        self.close()
        self._buffers = empty_tensors(payload.layout, payload.flatten, self._device)
        self._layout = payload.layout
        for tensor in self._buffers:
            register_nixl_memory(tensor)
