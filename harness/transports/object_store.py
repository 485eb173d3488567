"""Ray's object store, two ways: given torch tensors, as a plain ``state_dict`` is, or given numpy arrays.

Ray copies a torch tensor through its serialiser, in-band, on both sides. Of a numpy array it stores the bytes once and
maps them at the other end, which makes the second way many times faster for the same bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import ray
import torch
from torch import Tensor

from harness.core.types import WeightHandle
from harness.models.flat_layout import BucketLayout
from harness.transports.buffers import from_read_only
from harness.transports.protocol import TransportOptions


@dataclass(frozen=True, slots=True)
class ObjectStorePayload:
    """The stored object, inside a list because Ray would fetch it on the way otherwise."""

    refs: list[Any] = field(repr=False)


class ObjectStoreSender:
    """Puts ``name -> torch tensor``; see ``protocol.WeightSender``."""

    def __init__(self, options: TransportOptions) -> None:
        self.notes: tuple[str, ...] = ()
        self._refs: dict[int, Any] = {}

    def publish_weights(
        self, weights: Mapping[str, Tensor], version: int, still_needed: frozenset[int]
    ) -> WeightHandle:
        """Copy the weights into the object store."""
        layout = BucketLayout.of(weights)
        if version in self._refs:
            raise ValueError(f"version {version} is published already")
        self._refs = {held: ref for held, ref in self._refs.items() if held in still_needed}
        self._refs[version] = ray.put(self._encode(weights))
        payload = ObjectStorePayload([self._refs[version]])
        return WeightHandle(version, layout.payload_bytes, len(weights), None, payload)

    def published(self, version: int) -> Mapping[str, Tensor]:
        """Fetch the published copy out of the store."""
        if version not in self._refs:
            raise ValueError(f"version {version} is not held; versions {sorted(self._refs)} are")
        return decode(ray.get(self._refs[version]))

    def outgoing(self, version: int) -> list[Tensor]:
        """Nothing: receivers fetch by themselves."""
        return []

    def close(self) -> None:
        """Let go of the objects; Ray frees each when no weight_handle is left either."""
        self._refs = {}

    def _encode(self, weights: Mapping[str, Tensor]) -> Any:
        return {name: tensor.detach().cpu() for name, tensor in weights.items()}


class ObjectStoreNumpySender(ObjectStoreSender):
    """Puts ``name -> numpy array``; dtypes that numpy lacks (bfloat16) travel as integers of their size."""

    def _encode(self, weights: Mapping[str, Tensor]) -> Any:
        return {name: _Array.of(tensor.detach().cpu()) for name, tensor in weights.items()}


class ObjectStoreReceiver:
    """Gets the stored object; see ``protocol.WeightReceiver``."""

    def __init__(self, options: TransportOptions) -> None:
        self.notes: tuple[str, ...] = ()

    def receive(self, weight_handle: WeightHandle, arrived: list[Tensor] | None = None) -> Mapping[str, Tensor]:
        """Return torch tensors as they are unpacked, numpy arrays as they lie in the store."""
        payload: ObjectStorePayload = weight_handle.payload
        return decode(ray.get(payload.refs[0]))

    def close(self) -> None:
        """Nothing is kept."""


_AS_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True, slots=True)
class _Array:
    """A tensor as the store keeps it: an integer array of the same element size, and its dtype."""

    integers: np.ndarray[Any, Any]
    dtype: torch.dtype

    @classmethod
    def of(cls, tensor: Tensor) -> _Array:
        integers = tensor.contiguous().view(_AS_INTEGERS[tensor.element_size()])
        return cls(integers.numpy(), tensor.dtype)


def decode(stored: dict[str, Any]) -> dict[str, Tensor]:
    """Return stored weights by name; arrays are not copied."""
    arrays = {name: value for name, value in stored.items() if isinstance(value, _Array)}
    tensors = from_read_only({name: array.integers for name, array in arrays.items()})
    return {name: tensors[name].view(arrays[name].dtype) if name in arrays else value for name, value in stored.items()}
