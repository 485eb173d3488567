"""What every transport is: a sender that lives with the Learner, a receiver that lives with a Generator.

Both are made inside the actor that holds them. A weight_handle goes from the one to the other through the driver, which
only holds it: the bytes of the weights never pass through the driver.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor

from harness.core.errors import UserError
from harness.core.types import WeightHandle

Weights = Mapping[str, Tensor]


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
    """How a sender and its receivers work; a transport ignores what does not concern it.

    Args:
        flatten: move all tensors as one buffer.
        preallocate: receive into buffers that are kept.
        progress_thread_delay_us: pause of NIXL's progress thread between two looks, in microseconds; 0 takes a core.
        folder: where files go; None: a temporary folder.
        device: of a receiver's own buffers.
        buffers_at_start: buffers that the first publish makes and fills. One more than the versions that can be needed
            at once keeps the cost of fresh memory out of every later publish.
        interface: network interface on which members of a broadcast find each other.
        timeout_s: seconds that a broadcast waits for a Generator before it goes on without it.
        who: this receiver's lane, for messages.
        own: ``transport.options``, for a user's own transport.

    Raises:
        UserError: a number is below its bound.
    """

    flatten: bool = True
    preallocate: bool = True
    progress_thread_delay_us: int = 1000
    folder: str | None = None
    device: str = "cpu"
    buffers_at_start: int = 1
    interface: str = "lo"
    timeout_s: float = 30.0
    who: str = "a Generator"
    own: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, value, least in (
            ("progress_thread_delay_us", self.progress_thread_delay_us, 0),
            ("buffers_at_start", self.buffers_at_start, 1),
        ):
            if value < least:
                raise UserError(
                    f"{name} is {value}, must be at least {least}", f"transport.{name}", f"set it to {least}"
                )
