"""Where the tensors of a model lie in one flat buffer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

_ALIGNMENT = 64  # bytes: a cache line, and a multiple of every element size


@dataclass(frozen=True, slots=True)
class Entry:
    """Where one tensor lies in the buffer; ``offset`` and ``num_bytes`` count bytes."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    offset: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class BucketLayout:
    """Where each tensor lies in a buffer of ``num_bytes`` bytes; every tensor starts on a multiple of 64."""

    entries: tuple[Entry, ...]
    num_bytes: int

    @classmethod
    def of(cls, weights: Mapping[str, Tensor]) -> BucketLayout:
        """Lay out these tensors in their own order.

        Raises:
            ValueError: there are none.
        """
        if not weights:
            raise ValueError("no weights to publish")
        entries, end = [], 0
        for name, tensor in weights.items():
            start = -(-end // _ALIGNMENT) * _ALIGNMENT
            end = start + tensor.numel() * tensor.element_size()
            entries.append(Entry(name, tensor.dtype, tuple(tensor.shape), start, end - start))
        return cls(tuple(entries), end)

    @property
    def payload_bytes(self) -> int:
        """Bytes of the tensors alone, without the gaps between them."""
        return sum(entry.num_bytes for entry in self.entries)

    def views(self, buffer: Tensor) -> dict[str, Tensor]:
        """Return the tensors in a uint8 buffer (at least ``num_bytes``,) by name, without a copy."""
        return {
            entry.name: buffer[entry.offset : entry.offset + entry.num_bytes].view(entry.dtype).view(entry.shape)
            for entry in self.entries
        }


def copy_weights(source: Mapping[str, Tensor], target: Mapping[str, Tensor]) -> None:
    """Copy every tensor of ``target`` from the one of that name in ``source``, whatever its strides or device."""
    with torch.no_grad():
        for name, tensor in target.items():
            tensor.copy_(source[name])
