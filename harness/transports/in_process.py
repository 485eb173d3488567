"""Weights that never leave the process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import torch

from harness.core.types import WeightHandle
from harness.transports.protocol import OneSidedSender, held_version


class Streams(Protocol):
    """The CUDA streams on which published weights are copied and read, such as ``PartStreams``."""

    learner: torch.cuda.Stream
    generator: torch.cuda.Stream


class InProcessTransport(OneSidedSender):
    """Hands the weights over by reference.

    Args:
        snapshot: copy the weights when publishing. Needed where the Learner may go on training while a Generator
            loads them (max_lag > 0), or gives their memory away; else colocated parts take turns and need no copy.
        to_host: make that copy in main memory.
        streams: of parts that share a GPU and have a stream each: the Generator's reads a copy only when it is made,
            and the Learner's uses its memory again only when it was read. None where one stream keeps that order.
    """

    def __init__(self, snapshot: bool, streams: Streams | None = None, to_host: bool = False) -> None:
        self._snapshot, self._streams, self._to_host = snapshot, streams, to_host
        self._published: dict[int, Mapping[str, torch.Tensor]] = {}

    def publish_weights(
        self, weights: Mapping[str, torch.Tensor], version: int, still_needed: frozenset[int] = frozenset()
    ) -> WeightHandle:
        payload = {
            name: self._copy(tensor.detach()) if self._snapshot else tensor.detach() for name, tensor in weights.items()
        }
        self._published = {held: kept for held, kept in self._published.items() if held in still_needed}
        self._published[version] = payload
        num_bytes = sum(tensor.numel() * tensor.element_size() for tensor in payload.values())
        copied = None if self._streams is None else self._streams.learner.record_event()
        return WeightHandle(version, num_bytes, len(payload), None, (payload, copied))

    def _copy(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to("cpu", copy=True) if self._to_host else tensor.clone()

    def published(self, version: int) -> Mapping[str, torch.Tensor]:
        return held_version(self._published, version)

    def receive(self, weight_handle: WeightHandle, arrived: list[torch.Tensor] | None = None) -> Mapping[str, Any]:
        weights: Mapping[str, torch.Tensor]
        weights, copied = weight_handle.payload
        if self._streams is not None:
            self._streams.generator.wait_event(copied)
            for tensor in weights.values():
                if tensor.is_cuda:
                    tensor.record_stream(self._streams.generator)
        return weights

    def close(self) -> None:
        """Let go of the published weights."""
        self._published = {}
