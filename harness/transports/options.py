"""The settings of a transport, as a plain value that travels to the actors."""

from __future__ import annotations

from dataclasses import dataclass

from harness.core.errors import UserError


@dataclass(frozen=True, slots=True)
class TransportOptions:
    """How a sender and its receivers work; a transport ignores what does not concern it.

    Args:
        flatten: move all tensors as one buffer.
        preallocate: receive into buffers that are kept.
        progress_thread_delay_us: pause of NIXL's progress thread between two looks, in microseconds; 0 takes a core.
        folder: where files go; None: a temporary folder.
        device: of a receiver's own buffers.
        slots_at_start: places that the first publish makes and fills. One more than the versions that can be needed at
            once keeps the cost of fresh memory out of every later publish.

    Raises:
        UserError: a number is below its bound.
    """

    flatten: bool = True
    preallocate: bool = True
    progress_thread_delay_us: int = 1000
    folder: str | None = None
    device: str = "cpu"
    slots_at_start: int = 1

    def __post_init__(self) -> None:
        for name, value, least in (
            ("progress_thread_delay_us", self.progress_thread_delay_us, 0),
            ("slots_at_start", self.slots_at_start, 1),
        ):
            if value < least:
                raise UserError(
                    f"{name} is {value}, must be at least {least}", f"transport.{name}", f"set it to {least}"
                )
