"""A rank of a Learner that computes slowly on purpose: ``faults.slow_rank``."""

from __future__ import annotations

import time
from typing import Any

from torch import Tensor, nn

from harness.models.decoder import layers_of


class SlowComputing:
    """Makes all that the calling thread computes take longer by a share.

    At the end of each layer on the way forward, and before each layer on the way back, the thread keeps its processor
    busy for a share of the processor time that it has used since the last such place. That is before the collectives
    that exchange what the layer made. Time in which the thread waits is none of it.

    Args:
        model: the policy.
        share: 0.3 makes computing take 1.3 times as long.
    """

    def __init__(self, model: nn.Module, share: float) -> None:
        self._share, self._mark_s = share, time.thread_time()
        for layer in layers_of(model):
            layer.register_forward_hook(self._after_forward)

    def _after_forward(self, layer: nn.Module, inputs: Any, output: Any) -> None:
        self._fall_behind()
        made = output[0] if isinstance(output, tuple) else output
        if isinstance(made, Tensor) and made.requires_grad:
            made.register_hook(self._before_backward)

    def _before_backward(self, gradient: Tensor) -> None:
        self._fall_behind()

    def _fall_behind(self) -> None:
        until_s = (now := time.thread_time()) + self._share * (now - self._mark_s)
        while (now := time.thread_time()) < until_s:
            pass
        self._mark_s = now
