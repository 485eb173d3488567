"""Memory for published versions, reused as soon as nobody needs the version in it.

Fresh memory is dear: writing it for the first time took 4 to 30 times as long as the copy itself (page faults), so a
place is kept and refilled rather than freed and made again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor

from harness.core.types import WeightHandle
from harness.transports.bucket import BucketLayout, copy_weights


class Place(Protocol):
    """Somewhere that the weights of one version lie."""

    layout: BucketLayout

    @property
    def views(self) -> Mapping[str, Tensor]:
        """The weights by name."""

    def fill(self, weights: Mapping[str, Tensor], version: int) -> None:
        """Copy the weights in."""

    def close(self) -> None:
        """Give the memory back."""


P = TypeVar("P", bound=Place)
Make = Callable[[Mapping[str, Tensor], BucketLayout], P]


class CopiedWeights:
    """A copy of the weights on their own device.

    ``tensors`` are what a transport moves: one flat uint8 buffer, or the tensors one by one (empty ones left out).
    """

    def __init__(self, weights: Mapping[str, Tensor], layout: BucketLayout, flatten: bool) -> None:
        device = next(iter(weights.values())).device
        self.layout, self.flatten = layout, flatten
        self.tensors = empty_tensors(layout, flatten, device)
        self.views: Mapping[str, Tensor] = view_tensors(layout, flatten, self.tensors)

    def fill(self, weights: Mapping[str, Tensor], version: int) -> None:
        """Copy the weights in, and wait for the device."""
        copy_weights(weights, self.views)
        if self.tensors and self.tensors[0].is_cuda:
            torch.cuda.synchronize(self.tensors[0].device)

    def close(self) -> None:
        """Forget the memory."""
        self.tensors, self.views = [], {}


@dataclass(frozen=True, slots=True)
class StoredTensors:
    """A copy as a Ray object, inside a list because Ray would fetch it on the way otherwise, and what lies in it."""

    refs: list[Any] = field(repr=False)
    layout: BucketLayout = field(repr=False)
    flatten: bool


def empty_tensors(layout: BucketLayout, flatten: bool, device: torch.device | str) -> list[Tensor]:
    """Return memory for the weights of this layout, in the form in which they move."""
    if flatten:
        return [torch.empty(layout.num_bytes, dtype=torch.uint8, device=device)]
    return [torch.empty(entry.shape, dtype=entry.dtype, device=device) for entry in layout.entries if entry.num_bytes]


def view_tensors(layout: BucketLayout, flatten: bool, tensors: list[Tensor]) -> dict[str, Tensor]:
    """Return the weights by name out of the tensors that moved, without a copy."""
    if flatten:
        return layout.views(tensors[0])
    moved = iter(tensors)
    return {
        entry.name: next(moved) if entry.num_bytes else torch.empty(entry.shape, dtype=entry.dtype)
        for entry in layout.entries
    }


class Slots(Generic[P]):
    """The places of one sender.

    Places of the current layout are kept for reuse: there are never more of them than versions were needed at once,
    plus the one being published.

    Args:
        make: makes a place for weights of a layout.
        at_first: places that the first ``put`` makes and fills, so that no later one waits for fresh memory.
    """

    def __init__(self, make: Make[P], at_first: int = 1) -> None:
        self._make, self._at_first = make, at_first
        self._held: dict[int, P] = {}
        self._free: list[P] = []

    def __len__(self) -> int:
        return len(self._held) + len(self._free)

    def __contains__(self, version: int) -> bool:
        return version in self._held

    def put(self, weights: Mapping[str, Tensor], version: int, still_needed: frozenset[int]) -> P:
        """Copy the weights into a place that is not needed, or a new one.

        Raises:
            ValueError: there are no weights, or the version is held already.
        """
        layout = BucketLayout.of(weights)
        if version in self._held:
            raise ValueError(f"version {version} is published already")
        self._release(still_needed, layout)
        is_first = len(self) == 0
        place = self._free.pop() if self._free else self._make(weights, layout)
        place.fill(weights, version)
        self._held[version] = place
        if is_first:
            self._make_spares(weights, layout, version)
        return place

    def __getitem__(self, version: int) -> P:
        if version not in self._held:
            raise ValueError(f"version {version} is not held; versions {sorted(self._held)} are")
        return self._held[version]

    def close(self) -> None:
        """Close every place."""
        for place in [*self._held.values(), *self._free]:
            place.close()
        self._held, self._free = {}, []

    def _release(self, still_needed: frozenset[int], layout: BucketLayout) -> None:
        self._free += [self._held.pop(version) for version in sorted(self._held.keys() - still_needed)]
        for place in [place for place in self._free if place.layout != layout]:
            self._free.remove(place)
            place.close()

    def _make_spares(self, weights: Mapping[str, Tensor], layout: BucketLayout, version: int) -> None:
        for _ in range(self._at_first - 1):
            place = self._make(weights, layout)
            place.fill(weights, version)
            self._free.append(place)


class SlotSender(ABC, Generic[P]):
    """A ``protocol.WeightSender`` that copies each version into a place; what receivers need to find it is its own.

    Args:
        make: makes a place for weights of a layout.
        slots_at_start: places that the first ``publish`` makes and fills.
    """

    def __init__(self, make: Make[P], slots_at_start: int) -> None:
        self.notes: tuple[str, ...] = ()
        self._slots = Slots(make, slots_at_start)

    def publish(self, weights: Mapping[str, Tensor], version: int, still_needed: frozenset[int]) -> WeightHandle:
        """Copy the weights into a place that is not needed."""
        place = self._slots.put(weights, version, still_needed)
        return WeightHandle(version, place.layout.payload_bytes, len(weights), None, self._payload(place, version))

    def published(self, version: int) -> Mapping[str, Tensor]:
        """Return the published copy."""
        return self._slots[version].views

    def outgoing(self, version: int) -> list[Tensor]:
        """Nothing: receivers read by themselves."""
        return []

    def close(self) -> None:
        """Give the places back."""
        self._slots.close()

    @abstractmethod
    def _payload(self, place: P, version: int) -> object:
        """Return what a receiver finds this place by, now that it holds this version."""
