"""AdamW with its parameter groups, and the learning rate of each optimizer step."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from harness.settings.optimizer import OptimizerSettings


@dataclass(frozen=True, slots=True)
class Schedule:
    """The learning rate of each optimizer step, as a share of the highest one.

    A pure function of the optimizer step's number: no state is kept from one step to the next. With W warm-up steps, N
    optimizer steps in all and the minimum m, step n = 0, 1, ..., N - 1 has the share

        n / W                                           while n < W
        1                                               constant
        m + (1 - m) * (1 - p)                           linear, p = (n - W) / (N - W)
        m + (1 - m) * (1 + cos(pi * p)) / 2             cosine

    So the first step of a warm-up has a learning rate of 0 and changes nothing, and the minimum is that of step N, the
    next one after the end. Both are as in transformers (``constant_with_warmup``, ``linear``, ``cosine``,
    ``cosine_with_min_lr``), so in TRL, and in verl.

    Attributes:
        decay: what follows on the warm-up.
        warmup_steps: W.
        optimizer_steps: N; only a ``constant`` learning rate can do without.
        minimum: m.
    """

    decay: Literal["constant", "linear", "cosine"] = "constant"
    warmup_steps: int = 0
    optimizer_steps: int | None = None
    minimum: float = 0.0

    def share(self, number: int) -> float:
        """Return the share, 0 to 1, of an optimizer step, counted from 0 over the whole run."""
        if number < self.warmup_steps:
            return number / self.warmup_steps
        if self.decay == "constant":
            return 1.0
        assert self.optimizer_steps is not None
        progress = min(1.0, (number - self.warmup_steps) / max(1, self.optimizer_steps - self.warmup_steps))
        left = 1 - progress if self.decay == "linear" else (1 + math.cos(math.pi * progress)) / 2
        return self.minimum + (1 - self.minimum) * left


def make_optimizer(model: nn.Module, settings: OptimizerSettings) -> torch.optim.AdamW:
    """Return AdamW, whose weight decay leaves out parameters of fewer than two dimensions: norms and biases.

    Those are the ones that transformers' Trainer leaves out, and so TRL. Embeddings are matrices, and decay in both.
    """
    matrices = [parameter for parameter in model.parameters() if parameter.ndim >= 2]
    others = [parameter for parameter in model.parameters() if parameter.ndim < 2]
    groups = [{"params": matrices, "weight_decay": settings.weight_decay}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, settings.learning_rate, settings.betas, fused=True)
