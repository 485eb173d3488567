"""Memory for published versions, and its reuse as soon as nobody needs the version in it.

Many tensors in one flat buffer make one large transfer instead of hundreds of small ones. Fresh memory is dear: writing
it for the first time took 4 to 30 times as long as the copy itself (page faults), so a buffer is kept and refilled
rather than freed and made again.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from harness.core.types import WeightHandle
from harness.models.flat_layout import BucketLayout, copy_weights
from harness.transports.protocol import OneSidedSender, held_version


def from_read_only(arrays: Mapping[str, np.ndarray[Any, Any]]) -> dict[str, Tensor]:
    """Return tensors over these arrays without a copy.

    Torch knows no read-only tensors and warns of it: writing to one of these ends the process.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable", category=UserWarning)
        return {name: torch.from_numpy(array) for name, array in arrays.items()}


class Buffer(Protocol):
    """Memory for the weights of one version."""

    layout: BucketLayout

    @property
    def views(self) -> Mapping[str, Tensor]:
        """The weights by name."""

    def fill(self, weights: Mapping[str, Tensor], version: int) -> None:
        """Copy the weights in."""

    def close(self) -> None:
        """Give the memory back."""


P = TypeVar("P", bound=Buffer)
T = TypeVar("T")
Make = Callable[[Mapping[str, Tensor], BucketLayout], P]


class CopiedWeights:
    """A copy of the weights in one flat uint8 buffer on their own device."""

    def __init__(self, weights: Mapping[str, Tensor], layout: BucketLayout) -> None:
        device = next(iter(weights.values())).device
        self.layout = layout
        self.tensor = torch.empty(layout.num_bytes, dtype=torch.uint8, device=device)
        self.views: Mapping[str, Tensor] = layout.views(self.tensor)

    def fill(self, weights: Mapping[str, Tensor], version: int) -> None:
        """Copy the weights in, and wait for the device."""
        copy_weights(weights, self.views)
        if self.tensor.is_cuda:
            torch.cuda.synchronize(self.tensor.device)

    def close(self) -> None:
        self.tensor, self.views = self.tensor.new_empty(0), {}


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A flat copy as a Ray object, inside a list because Ray would fetch it on the way otherwise, and its layout."""

    refs: list[Any] = field(repr=False)
    layout: BucketLayout = field(repr=False)


class BufferPool(Generic[P]):
    """The buffers of one sender.

    Those of the current layout are kept for reuse: there are never more of them than versions were needed at once, plus
    the one being published.

    Args:
        make: makes a buffer for weights of a layout.
        at_first: buffers that the first ``put`` makes and fills, so that no later one waits for fresh memory.

    Attributes:
        free: buffers without a needed version.
    """

    def __init__(self, make: Make[P], at_first: int = 1) -> None:
        self._make, self._at_first = make, at_first
        self._held: dict[int, P] = {}
        self.free: list[P] = []

    def __len__(self) -> int:
        return len(self._held) + len(self.free)

    def __contains__(self, version: int) -> bool:
        return version in self._held

    def put(self, weights: Mapping[str, Tensor], version: int, still_needed: frozenset[int]) -> P:
        """Copy the weights into a buffer that is not needed, or a new one.

        Raises:
            ValueError: there are no weights, or the version is held already.
        """
        layout = BucketLayout.of(weights)
        if version in self._held:
            raise ValueError(f"version {version} is published already")
        self.free += [self._held.pop(version) for version in sorted(self._held.keys() - still_needed)]
        for buffer in [buffer for buffer in self.free if buffer.layout != layout]:
            self.free.remove(buffer)
            buffer.close()
        spares = 0 if len(self) else self._at_first - 1
        buffer = self.free.pop() if self.free else self._make(weights, layout)
        buffer.fill(weights, version)
        self._held[version] = buffer
        for _ in range(spares):
            self.free.append(self._make(weights, layout))
            self.free[-1].fill(weights, version)
        return buffer

    def __getitem__(self, version: int) -> P:
        return held_version(self._held, version)

    def drop(self, version: int) -> None:
        """Close the buffer of a version that will never be complete, which somebody may still write to."""
        self[version].close()
        del self._held[version]

    def close(self) -> None:
        """Close every buffer."""
        for buffer in [*self._held.values(), *self.free]:
            buffer.close()
        self._held, self.free = {}, []


class BufferSender(OneSidedSender, ABC, Generic[P]):
    """A ``protocol.WeightSender`` that copies each version into a buffer; what receivers need to find it is its own."""

    def __init__(self, make: Make[P], buffers_at_start: int) -> None:
        self._pool = BufferPool(make, buffers_at_start)

    def publish_weights(
        self, weights: Mapping[str, Tensor], version: int, still_needed: frozenset[int]
    ) -> WeightHandle:
        buffer = self._pool.put(weights, version, still_needed)
        return WeightHandle(version, buffer.layout.payload_bytes, len(weights), None, self._payload(buffer, version))

    def published(self, version: int) -> Mapping[str, Tensor]:
        return self._pool[version].views

    def close(self) -> None:
        self._pool.close()

    @abstractmethod
    def _payload(self, buffer: P, version: int) -> object:
        """Return what a receiver finds this buffer by."""


class StoringSender(OneSidedSender, ABC, Generic[T]):
    """A ``protocol.WeightSender`` that makes something new of each version, which is also the payload."""

    def __init__(self) -> None:
        self._stored: dict[int, T] = {}

    def publish_weights(
        self, weights: Mapping[str, Tensor], version: int, still_needed: frozenset[int]
    ) -> WeightHandle:
        layout = BucketLayout.of(weights)
        if version in self._stored:
            raise ValueError(f"version {version} is published already")
        self._keep(still_needed)
        self._stored[version] = stored = self._store(weights, version)
        return WeightHandle(version, layout.payload_bytes, len(weights), None, stored)

    def published(self, version: int) -> Mapping[str, Tensor]:
        return self._read(held_version(self._stored, version))

    def close(self) -> None:
        self._keep(frozenset())

    def _keep(self, still_needed: frozenset[int]) -> None:
        for version in self._stored.keys() - still_needed:
            self._remove(self._stored.pop(version))

    @abstractmethod
    def _store(self, weights: Mapping[str, Tensor], version: int) -> T: ...

    @abstractmethod
    def _read(self, stored: T) -> Mapping[str, Tensor]: ...

    def _remove(self, stored: T) -> None:
        """Nothing, where it goes with the last reference to it."""
