"""The ratio of two single runs' mean step times, with an interval over their steps."""

from __future__ import annotations

from collections.abc import Sequence
from math import cbrt, ceil, exp, log, sqrt
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from harness.compare.stats.intervals import CONFIDENCE, Interval, Numbers, t_quantile

RESAMPLES = 2000
FEWEST_STEPS = 10
"""Below them a run has too few blocks of steps for an interval."""


def block_length(steps: int) -> int:
    """Return how many neighbouring steps are drawn together: twice the cube root of their number, rounded up."""
    return ceil(round(2 * cbrt(steps), 9))


def ratio_over_steps(base_s: Sequence[float], other_s: Sequence[float], seed: int = 0) -> Interval | None:
    """Return mean(other_s) / mean(base_s) with its 95% interval from a moving block bootstrap.

    Neighbouring steps of a run are alike, so whole blocks of ``block_length`` steps are drawn, with replacement, from
    all places at which one can begin, as many as fit into the run (k). Of runs with as many steps each, the same blocks
    are drawn of both: what both do at the same steps, such as evaluations, is then no chance between them. The ends are
    percentiles of 2,000 such ratios, moved away from the ratio, in logs, by t / z * sqrt(k / (k - 1)), with k - 1
    degrees of freedom, or 2 (k - 1) of runs drawn apart: for the spread of a few blocks is known badly, and is that
    around their own mean. The interval is about these two runs: how far two runs of one arm lie apart is not in it.

    Kuensch, Annals of Statistics 17 (1989), 1217-1241; the rate of the length: Hall, Horowitz and Jing, Biometrika 82
    (1995), 561-574, and Politis and Romano, JASA 89 (1994), 1303-1313, on the same idea with random lengths. How often
    it leaves out 1 for equal runs is in ``docs/importing.md``, from ``tests/benchmarks/imported_rates.py``.

    Args:
        base_s, other_s: seconds of each step of the two runs, all above 0, in order.
        seed: of the draws.

    Returns:
        None where either has fewer than ``FEWEST_STEPS`` steps, or no time.
    """
    if min(len(base_s), len(other_s)) < FEWEST_STEPS or min(sum(base_s), sum(other_s)) <= 0:
        return None
    generator, ends = np.random.default_rng(seed), (100 * (1 - CONFIDENCE) / 2, 100 * (1 + CONFIDENCE) / 2)
    base, other = _BlockMeans.of(base_s), _BlockMeans.of(other_s)
    draws = base.draws(generator)
    is_paired, blocks = len(base_s) == len(other_s), min(base.blocks, other.blocks)
    ratios = np.log(other.means(draws if is_paired else other.draws(generator)) / base.means(draws))
    level = (1 + CONFIDENCE) / 2
    wider = t_quantile(level, (1 if is_paired else 2) * (blocks - 1)) / NormalDist().inv_cdf(level)
    wider *= sqrt(blocks / (blocks - 1))
    point = log(np.mean(other_s) / np.mean(base_s))
    low, high = (exp(point + wider * (float(end) - point)) for end in np.percentile(ratios, ends))
    return Interval(exp(point), low, high)


class _BlockMeans(NamedTuple):
    """The mean of each block of steps that can be drawn of a run, and how many blocks fit into it."""

    values: Numbers
    blocks: int

    @classmethod
    def of(cls, seconds: Sequence[float]) -> _BlockMeans:
        length, sums = block_length(len(seconds)), np.concatenate([[0.0], np.cumsum(seconds)])
        return cls((sums[length:] - sums[:-length]) / length, len(seconds) // length)

    def draws(self, generator: np.random.Generator) -> np.ndarray:
        return generator.integers(len(self.values), size=(RESAMPLES, self.blocks))

    def means(self, draws: np.ndarray) -> Numbers:
        means: Numbers = self.values[draws].mean(axis=1)
        return means
