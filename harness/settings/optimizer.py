"""The optimizer and its schedule."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from harness.settings.base import AtLeast0, NotNegative, Positive, Settings

Beta = Annotated[float, Field(ge=0, lt=1)]


class OptimizerSettings(Settings):
    """AdamW."""

    learning_rate: NotNegative = 1e-5
    """Step size, after the warm-up and before any decay."""
    betas: tuple[Beta, Beta] = (0.9, 0.95)
    """Decay of the two running averages."""
    weight_decay: NotNegative = 0.0
    """Decoupled weight decay, of all parameters but norms and biases."""
    max_grad_norm: Positive | None = 1.0
    """Gradients are scaled down to this norm; null leaves them as they are."""
    warmup_steps: AtLeast0 = 0
    """Optimizer steps over which the learning rate rises from 0, which is that of the first one."""
    warmup_ratio: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """The same as a share of the run's optimizer steps, rounded up; 0 takes `warmup_steps`."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """What the learning rate does after the warm-up, until the run's last optimizer step."""
    min_learning_rate_ratio: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Where `linear` and `cosine` end, as a share of `learning_rate`."""
