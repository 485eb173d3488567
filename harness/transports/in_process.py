"""Weights that never leave the process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from harness.types import WeightTicket


class InProcessTransport:
    """Hands the weights over by reference.

    Args:
        snapshot: copy the weights when publishing. Needed where the Learner may go on training while a Generator
            loads them (max_lag > 0); colocated parts take turns and need no copy.
    """

    def __init__(self, snapshot: bool) -> None:
        self._snapshot = snapshot

    def publish(self, weights: Mapping[str, torch.Tensor], version: int) -> WeightTicket:
        """Return a ticket for these weights, by Hugging Face name."""
        payload = {
            name: tensor.detach().clone() if self._snapshot else tensor.detach() for name, tensor in weights.items()
        }
        num_bytes = sum(tensor.numel() * tensor.element_size() for tensor in payload.values())
        return WeightTicket(version, num_bytes, len(payload), None, payload)

    def receive(self, ticket: WeightTicket) -> Mapping[str, Any]:
        """Return the published weights by name."""
        weights: Mapping[str, Any] = ticket.payload
        return weights
