"""Memory for published versions, reused as soon as nobody needs the version in it.

Fresh memory is dear: writing it for the first time took 4 to 30 times as long as the copy itself (page faults), so a
place is kept and refilled rather than freed and made again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Generic, Protocol, TypeVar

import torch
from torch import Tensor

from harness.errors import RunStopped
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
        self.layout = layout
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


class LiveWeights:
    """The live weights themselves, without a copy: right only while the Learner does not touch them."""

    def __init__(self, weights: Mapping[str, Tensor], layout: BucketLayout) -> None:
        self.layout = layout
        self.views: Mapping[str, Tensor] = {name: tensor.detach() for name, tensor in weights.items()}
        self.tensors = [tensor for tensor in self.views.values() if tensor.numel()]
        loose = [name for name, tensor in self.views.items() if not tensor.is_contiguous()]
        if loose:
            raise ValueError(f"without a snapshot, weights must be contiguous; {loose[0]} is not")

    def fill(self, weights: Mapping[str, Tensor], version: int) -> None:
        """Nothing to copy."""

    def close(self) -> None:
        """Forget the weights."""
        self.tensors, self.views = [], {}


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


class NewestOnly(Generic[P]):
    """Stands in for ``Slots`` where the live weights themselves are published: nothing older can be kept."""

    def __init__(self, make: Make[P]) -> None:
        self._make = make
        self._version = -1
        self._place: P | None = None

    def put(self, weights: Mapping[str, Tensor], version: int, still_needed: frozenset[int]) -> P:
        """Publish the live weights in place of the last ones.

        Raises:
            RunStopped: an older version is still needed.
        """
        if still_needed:
            raise RunStopped(
                f"version {version} is published without a snapshot, which ends versions {sorted(still_needed)} that "
                "are still needed"
            )
        before, self._place = self._place, self._make(weights, BucketLayout.of(weights))
        self._version = version
        if before is not None:  # closed last: what both share stays registered
            before.close()
        return self._place

    def __getitem__(self, version: int) -> P:
        if self._place is None or version != self._version:
            raise ValueError(f"version {version} is not held; version {self._version} is")
        return self._place

    def close(self) -> None:
        """Close the place."""
        if self._place is not None:
            self._place.close()
            self._place = None
