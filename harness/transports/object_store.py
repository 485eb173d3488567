"""Ray's object store, two ways: given torch tensors, as a plain ``state_dict`` is, or given numpy arrays.

Ray copies a torch tensor through its serialiser, in-band, on both sides. Of a numpy array it stores the bytes once and
maps them at the other end, which makes the second way many times faster for the same bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import ray
import torch
from torch import Tensor

from harness.core.types import WeightHandle
from harness.transports.buffers import StoringSender, from_read_only
from harness.transports.protocol import StatelessReceiver, TransportOptions


class ObjectStoreSender(StoringSender[list[Any]]):
    """Puts ``name -> torch tensor``; the reference stands in a list because Ray would fetch it on the way otherwise.

    Ray frees an object when neither this sender nor a weight_handle refers to it.
    """

    def __init__(self, options: TransportOptions) -> None:
        super().__init__()

    def _store(self, weights: Mapping[str, Tensor], version: int) -> list[Any]:
        return [ray.put(self._encode(weights))]

    def _read(self, stored: list[Any]) -> dict[str, Tensor]:
        return decode(ray.get(stored[0]))

    def _encode(self, weights: Mapping[str, Tensor]) -> Any:
        return {name: tensor.detach().cpu() for name, tensor in weights.items()}


class ObjectStoreNumpySender(ObjectStoreSender):
    """Puts ``name -> numpy array``; dtypes that numpy lacks (bfloat16) travel as integers of their size."""

    def _encode(self, weights: Mapping[str, Tensor]) -> Any:
        return {name: _Array.of(tensor.detach().cpu()) for name, tensor in weights.items()}


class ObjectStoreReceiver(StatelessReceiver):
    """Gets the stored object: torch tensors as they are unpacked, numpy arrays as they lie in the store."""

    def receive(self, weight_handle: WeightHandle, arrived: list[Tensor] | None = None) -> Mapping[str, Tensor]:
        return decode(ray.get(weight_handle.payload[0]))


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
