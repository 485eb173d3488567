"""Training on rollouts more than once, and sampling groups again."""

from __future__ import annotations

from typing import Literal

from harness.settings.base import AtLeast0, AtLeast1, Settings


class ReplaySettings(Settings):
    """The replay buffer: each fresh batch enters it, and each training step takes a sample of it."""

    capacity: AtLeast0 = 0
    """Groups kept; 0: no buffer, each batch is trained on directly."""
    max_age: AtLeast0 | None = None
    """Versions after which a group is discarded; null: max_lag plus the steps that refill the capacity."""
    sampling: Literal["newest", "uniform", "reward_weighted", "signal_weighted"] = "uniform"
    """Which groups a step draws: the newest; any; by mean reward, which prefers solved groups; or by the spread of
    rewards, which prefers groups with a signal."""
    sample_groups: AtLeast1 | None = None
    """Groups that a step takes; null: as many as a fresh batch has."""


class DynamicSamplingSettings(Settings):
    """Dynamic sampling (DAPO): a group whose rewards are all equal teaches nothing, so another takes its place."""

    attempts: AtLeast0 = 0
    """How often a group is sampled again at most; the last attempt is kept. 0 takes all groups."""
