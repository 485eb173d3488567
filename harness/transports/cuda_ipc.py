"""Ray Direct Transport over CUDA IPC: actors on one GPU read the Learner's copy where it lies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import ray
from torch import Tensor

from harness.transports.bucket import BucketLayout
from harness.transports.options import TransportOptions
from harness.transports.slots import CopiedWeights, LiveWeights, NewestOnly, Slots, view_tensors
from harness.types import WeightTicket


@dataclass(frozen=True, slots=True)
class CudaIpcPayload:
    """The object to read, inside a list because Ray would fetch it on the way otherwise, and what lies in it."""

    refs: list[Any] = field(repr=False)
    layout: BucketLayout = field(repr=False)
    flatten: bool


class CudaIpcSender:
    """Publishes handles of GPU memory; see ``protocol.WeightSender``.

    A handle is made for each version, since it carries the event after which the copy is complete.
    """

    def __init__(self, options: TransportOptions) -> None:
        self.notes: tuple[str, ...] = ()
        self._flatten = options.flatten
        self._refs: dict[int, Any] = {}
        self._slots: Slots[CopiedWeights] | NewestOnly[LiveWeights]
        if options.snapshot:
            self._slots = Slots(
                lambda weights, layout: CopiedWeights(weights, layout, options.flatten), options.slots_at_start
            )
        else:
            self._slots = NewestOnly(LiveWeights)

    def publish(self, weights: Mapping[str, Tensor], version: int, still_needed: frozenset[int]) -> WeightTicket:
        """Copy the weights on the GPU."""
        place = self._slots.put(weights, version, still_needed)
        self._refs = {held: ref for held, ref in self._refs.items() if held in still_needed}
        self._refs[version] = ray.put(place.tensors, _tensor_transport="cuda_ipc")
        payload = CudaIpcPayload([self._refs[version]], place.layout, self._flatten)
        return WeightTicket(version, place.layout.payload_bytes, len(weights), None, payload)

    def published(self, version: int) -> Mapping[str, Tensor]:
        """Return the published copy."""
        return self._slots[version].views

    def outgoing(self, version: int) -> list[Tensor]:
        """Nothing: receivers read by themselves."""
        return []

    def close(self) -> None:
        """Drop the copies."""
        self._refs = {}
        self._slots.close()


class CudaIpcReceiver:
    """Opens the handles; see ``protocol.WeightReceiver``."""

    def __init__(self, options: TransportOptions) -> None:
        self.notes: tuple[str, ...] = ()

    def receive(self, ticket: WeightTicket, arrived: list[Tensor] | None = None) -> Mapping[str, Tensor]:
        """Return views of the Learner's own memory."""
        payload: CudaIpcPayload = ticket.payload
        return view_tensors(payload.layout, payload.flatten, ray.get(payload.refs[0]))

    def close(self) -> None:
        """Nothing is kept."""
