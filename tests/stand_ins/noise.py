"""A noise model of step times, and the experiments one would record under it.

The weather is common to the arms: a slow wander (AR(1)), a straight drift over the experiment, and bursts.
Each launch has its own small speed, and each step its own noise. All of it is in log units, so a slow-down by a factor
is a sum. The figures were chosen as plausible for a shared virtual machine; they were not fitted to one.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

import numpy as np

from harness.compare.stats.intervals import Numbers

LAUNCH_GAP = 2
"""Start-up steps of each launch: time passes, and the steps are dropped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseModel:
    """How step times vary; standard deviations are in log units (0.05 is about 5%).

    Attributes:
        wander_sd: of the machine's slow wander.
        wander_memory: correlation of the wander from one step to the next.
        drift_most: the experiment's straight drift from its first step to its last lies evenly in +- this.
        burst_every: mean steps between bursts of contention.
        burst_steps: mean steps of a burst.
        burst_most: a burst slows by a factor of up to 1 + this, evenly.
        launch_sd: of a launch's own speed.
        launch_tails: degrees of freedom of Student's t for a launch's own speed; None is normal.
        between_sd: of what makes a launch resemble that of the same arm in the block before, as caches on disk do.
        between_memory: its correlation from one block to the next.
        step_sd: of a step's own noise.
    """

    wander_sd: float = 0.05
    wander_memory: float = 0.8
    drift_most: float = 0.08
    burst_every: float = 100.0
    burst_steps: float = 12.0
    burst_most: float = 0.6
    launch_sd: float = 0.02
    launch_tails: float | None = None
    between_sd: float = 0.0
    between_memory: float = 0.0
    step_sd: float = 0.06

    def weather(self, generator: np.random.Generator, trials: int, slots: int) -> Numbers:
        """Return what the machine does to every arm, shape [trials, slots]: one slot is the time of one step."""
        drift = generator.uniform(-self.drift_most, self.drift_most, (trials, 1)) * np.linspace(-0.5, 0.5, slots)
        wander = self.wander_sd * wandering(generator, (slots, trials), self.wander_memory).T
        return wander + drift + self._bursts(generator, trials, slots)

    def alternated(
        self, generator: np.random.Generator, trials: int, blocks: int, steps: int, arms: int = 2
    ) -> Numbers:
        """Return experiments of live arms that take turns step by step, shape [trials, blocks, arms, steps].

        All arms are launched anew in each block. Their order is turned round with every step.
        """
        slots = self.weather(generator, trials, blocks * arms * (LAUNCH_GAP + steps))
        turns = slots.reshape(trials, blocks, LAUNCH_GAP + steps, arms)[:, :, LAUNCH_GAP:].copy()
        turns[:, :, 1::2] = turns[:, :, 1::2, ::-1]
        return np.moveaxis(turns, 3, 2) + self._launches(generator, trials, blocks, arms)

    def launched(self, generator: np.random.Generator, trials: int, blocks: int, steps: int, arms: int = 2) -> Numbers:
        """Return experiments of arms that run in turns, A B B A ..., shape [trials, blocks, arms, steps]."""
        slots = self.weather(generator, trials, blocks * arms * (LAUNCH_GAP + steps))
        runs = slots.reshape(trials, blocks, arms, LAUNCH_GAP + steps)[..., LAUNCH_GAP:].copy()
        runs[:, 1::2] = runs[:, 1::2, ::-1]
        return runs + self._launches(generator, trials, blocks, arms)

    def sequential(self, generator: np.random.Generator, trials: int, steps: int) -> Numbers:
        """Return the naive recipe: one launch of A, then one of B; shape [trials, 2, steps]."""
        slots = self.weather(generator, trials, 2 * (LAUNCH_GAP + steps))
        runs = slots.reshape(trials, 2, LAUNCH_GAP + steps)[..., LAUNCH_GAP:]
        return runs + self._launches(generator, trials, 1, 2)[:, 0]

    def with_own_noise(self, generator: np.random.Generator, weather: Numbers) -> Numbers:
        """Add each step's own noise to the log weather of its slot; any shape."""
        return weather + generator.normal(0, self.step_sd, weather.shape)

    def _bursts(self, generator: np.random.Generator, trials: int, slots: int) -> Numbers:
        """Bursts start at random, last a geometric number of slots, and the strongest of overlapping ones counts."""
        slowing = np.zeros((trials, slots))
        starts = np.argwhere(generator.random((trials, slots)) < 1 / self.burst_every)
        lengths = generator.geometric(1 / self.burst_steps, len(starts))
        strengths = np.log1p(generator.uniform(0, self.burst_most, len(starts)))
        for (trial, slot), length, strength in zip(starts, lengths, strengths, strict=True):
            piece = slowing[trial, slot : slot + length]
            np.maximum(piece, strength, out=piece)
        return slowing

    def _launches(self, generator: np.random.Generator, trials: int, blocks: int, arms: int) -> Numbers:
        """Return each launch's own speed, shape [trials, blocks, arms, 1]."""
        shape = (blocks, trials, arms)
        drawn = (
            generator.normal(0, 1, shape)
            if self.launch_tails is None
            else generator.standard_t(self.launch_tails, shape)
        )
        speeds = self.launch_sd * drawn
        if self.between_sd:
            speeds = speeds + self.between_sd * wandering(generator, shape, self.between_memory)
        return np.moveaxis(speeds, 0, 1)[..., None]


def wandering(generator: np.random.Generator, shape: tuple[int, ...], memory: float) -> Numbers:
    """Return AR(1) values along the first axis with a standard deviation of 1, stationary from the first on."""
    values = generator.normal(0, 1, shape)
    kick = sqrt(1 - memory**2)
    for place in range(1, shape[0]):
        values[place] = memory * values[place - 1] + kick * values[place]
    return values
