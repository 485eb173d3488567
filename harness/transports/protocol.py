"""What every transport is: a sender that lives with the Learner, a receiver that lives with a Generator.

Both are made inside the actor that holds them. A weight_handle goes from the one to the other through the driver, which
only holds it: the bytes of the weights never pass through the driver.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from torch import Tensor

from harness.core.types import WeightHandle
from harness.settings.transport import ActorTransportSettings

Weights = Mapping[str, Tensor]
T = TypeVar("T")


class WeightSender(Protocol):
    """Publishes the Learner's weights.

    ``notes`` are lines for the run's log: what the transport set up when it was made.
    """

    notes: tuple[str, ...]

    def publish_weights(self, weights: Weights, version: int, still_needed: frozenset[int]) -> WeightHandle:
        """Hand over the weights as they are now; the weight_handle carries no checksum yet.

        Args:
            weights: the live parameters by Hugging Face name.
            version: theirs; a version is published once.
            still_needed: versions published before that a Generator may yet receive. Their weight_handles stay readable
                and unchanged; the memory of all others is reused or given back.

        Raises:
            ValueError: there are no weights, or the version is published already.
        """

    def published(self, version: int) -> Weights:
        """Return the published copy by name, to take its checksum from.

        Raises:
            ValueError: the version is not held: never published, or no longer needed.
        """

    def outgoing(self, version: int) -> list[Tensor]:
        """Return the tensors that an actor method must return with ``tensor_transport=``.

        Only two-sided transports have any, since there Ray moves what a method returns; elsewhere the list is empty.
        """

    def close(self) -> None:
        """Give back memory and files; weight_handles become unreadable."""


class WeightReceiver(Protocol):
    """Receives published weights; ``notes`` as for the sender."""

    notes: tuple[str, ...]

    def receive(self, weight_handle: WeightHandle, arrived: list[Tensor] | None = None) -> Weights:
        """Return the weight_handle's weights by name, to be copied from and not written to.

        They may lie in memory that the next ``receive`` overwrites, or that the sender reuses when the version is no
        longer needed: load them at once.

        Args:
            weight_handle: of a version that its sender still holds.
            arrived: what ``outgoing`` returned, once Ray has moved it here; two-sided transports need it.

        Raises:
            RunStopped: the weights are not there.
            UserError: this receiver's place cannot be reached by this transport.
        """

    def close(self) -> None:
        """Give back memory; weights received before must no longer be used."""


@dataclass(frozen=True, slots=True)
class TransportOptions:
    """The settings of a transport, and where one end of it stands.

    Args:
        settings: the section ``transport``; ``settings.options`` are those of a user's own transport.
        folder: where files go; None: a temporary folder.
        device: of a receiver's own buffers.
        buffers_at_start: buffers that the first publish makes and fills. One more than the versions that can be needed
            at once keeps the cost of fresh memory out of every later publish.
        interface: network interface on which members of a broadcast find each other.
        who: this receiver's lane, for messages.
    """

    settings: ActorTransportSettings = field(default_factory=ActorTransportSettings)
    folder: str | None = None
    device: str = "cpu"
    buffers_at_start: int = 1
    interface: str = "lo"
    who: str = "a Generator"


def held_version(held: Mapping[int, T], version: int) -> T:
    """Return what a sender holds of a version.

    Raises:
        ValueError: nothing.
    """
    if version not in held:
        raise ValueError(f"version {version} is not held; versions {sorted(held)} are")
    return held[version]


class OneSidedSender:
    """What senders have in common from which Ray moves nothing by itself."""

    notes: tuple[str, ...] = ()

    def outgoing(self, version: int) -> list[Tensor]:
        return []


class StatelessReceiver:
    """What receivers that keep nothing have in common."""

    notes: tuple[str, ...] = ()

    def __init__(self, options: TransportOptions) -> None: ...

    def close(self) -> None:
        """Nothing is kept."""
