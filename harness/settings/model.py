"""The policy that is trained."""

from __future__ import annotations

from typing import Annotated, Literal

from harness.settings.base import (
    BY_TYPE,
    AtLeast1,
    NonEmptyText,
    Parts,
    Positive,
    Precision,
    SecondsOr0,
    Settings,
)


class PolicySettings(Settings):
    """What every kind of policy has."""

    precision: Precision = "float32"
    """Training arithmetic; bfloat16 and float16 mean autocast over float32 weights, float16 with loss scaling."""
    threads: Parts | None = None
    """CPU threads of the training process; null takes all cores."""


class PresetModelSettings(PolicySettings):
    """The project's own language model, in a ready-made size."""

    type: Literal["preset"] = "preset"
    """One of the project's own models."""
    preset: Literal["tiny", "small", "course", "maths"] = "small"
    """`tiny` for tests, `small` 3 million parameters, `course` 4 layers of width 512, `maths` for maths tasks."""
    warm_start: bool = True
    """Train on example sentences first (cached): from random weights the reward is always 0."""


class FolderModelSettings(PolicySettings):
    """Any Hugging Face causal language model."""

    type: Literal["folder"] = "folder"
    """A Hugging Face model."""
    path: NonEmptyText
    """Model folder, or name on the Hugging Face hub."""
    dtype: Precision = "float32"
    """Type of the trained weights; bfloat16 halves weights, gradients and Adam's averages, and loses small updates."""
    gradient_checkpointing: bool = False
    """Keep only the input of each layer and compute the rest again: less memory, about a third more time."""


class PacedModelSettings(PolicySettings):
    """A Learner that sleeps instead of training, with made-up weights: to measure transports and the loop itself."""

    type: Literal["paced"] = "paced"
    """Sleeps instead of training; the weights it publishes are real bytes that change at each step."""
    update_s: SecondsOr0 = 0.4
    """Seconds of one update."""
    megabytes: Positive = 1.0
    """Size of the weights, in units of 10^6 bytes."""
    tensors: AtLeast1 = 1
    """Number of tensors that the weights are split into."""


class SortingModelSettings(PolicySettings):
    """The model of the sorting task: it writes all positions at once, each from its own matrix."""

    type: Literal["sorting"] = "sorting"
    """The model of `task.type: sorting`; the scenario's seed draws its initial weights."""


ModelSettings = Annotated[
    PresetModelSettings | FolderModelSettings | PacedModelSettings | SortingModelSettings,
    BY_TYPE,
]
