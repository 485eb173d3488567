"""Ray Direct Transport over gloo or NCCL: the Learner sends, a Generator receives.

Ray moves what an actor method returns, so the sender only keeps the copies, and the tensors reach the Generator as an
argument. Learner and Generators form one collective group, which Ray requires to be named ``default`` if it is to be
made anew: gloo's processes cannot leave a group of another name, nor belong to two. The group ends with any member.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from harness.errors import RunStopped
from harness.transports.bucket import BucketLayout
from harness.transports.options import TransportOptions
from harness.transports.slots import CopiedWeights, LiveWeights, NewestOnly, Slots, view_tensors
from harness.types import WeightTicket

GROUP_NAME = "default"


@dataclass(frozen=True, slots=True)
class CollectivePayload:
    """What the tensors that arrive hold."""

    layout: BucketLayout = field(repr=False)
    flatten: bool


class CollectiveSender:
    """Keeps published copies for Ray to send; see ``protocol.WeightSender``."""

    def __init__(self, options: TransportOptions) -> None:
        self.notes: tuple[str, ...] = ()
        self._flatten = options.flatten
        self._slots: Slots[CopiedWeights] | NewestOnly[LiveWeights]
        if options.snapshot:
            self._slots = Slots(
                lambda weights, layout: CopiedWeights(weights, layout, options.flatten), options.slots_at_start
            )
        else:
            self._slots = NewestOnly(LiveWeights)

    def publish(self, weights: Mapping[str, Tensor], version: int, still_needed: frozenset[int]) -> WeightTicket:
        """Copy the weights; nothing moves before ``outgoing`` is returned from an actor method."""
        layout = self._slots.put(weights, version, still_needed).layout
        return WeightTicket(version, layout.payload_bytes, len(weights), None, CollectivePayload(layout, self._flatten))

    def published(self, version: int) -> Mapping[str, Tensor]:
        """Return the published copy."""
        return self._slots[version].views

    def outgoing(self, version: int) -> list[Tensor]:
        """Return the published copy as it moves, by reference."""
        return list(self._slots[version].tensors)

    def close(self) -> None:
        """Drop the copies."""
        self._slots.close()


class CollectiveReceiver:
    """Names the tensors that arrived; see ``protocol.WeightReceiver``."""

    def __init__(self, options: TransportOptions) -> None:
        self.notes: tuple[str, ...] = ()

    def receive(self, ticket: WeightTicket, arrived: list[Tensor] | None = None) -> Mapping[str, Tensor]:
        """Return views of the tensors that Ray received."""
        if arrived is None:
            raise RunStopped(f"no tensors arrived with the ticket of version {ticket.version}")
        payload: CollectivePayload = ticket.payload
        return view_tensors(payload.layout, payload.flatten, arrived)

    def close(self) -> None:
        """Nothing is kept."""
