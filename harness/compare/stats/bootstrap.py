"""The ratio of two single runs' mean step times, with an interval over their steps."""

from __future__ import annotations

from collections.abc import Sequence
from math import cbrt, ceil, exp, log, sqrt
from statistics import NormalDist

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
    all places at which one can begin, as many as fit into the run (k); the two runs independently of each other. The
    ends are percentiles of 2,000 such ratios, moved away from the ratio, in logs, by t / z * sqrt(k / (k - 1)) with
    2 (k - 1) degrees of freedom: for the spread of a few blocks is known badly, and is that around their own mean.
    Without it 15% instead of 5% of pairs of equal runs of 30 independent steps would differ. The interval is about
    these two runs: how far two runs of one arm lie apart is not in it.

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
    generator = np.random.default_rng(seed)
    base, other = (_resampled_means(np.asarray(seconds, float), generator) for seconds in (base_s, other_s))
    upper = (1 + CONFIDENCE) / 2
    blocks = min(len(seconds) // block_length(len(seconds)) for seconds in (base_s, other_s))
    wider = t_quantile(upper, 2 * (blocks - 1)) / NormalDist().inv_cdf(upper) * sqrt(blocks / (blocks - 1))
    point = log(np.mean(other_s) / np.mean(base_s))
    ends = np.percentile(np.log(other / base), [100 * (1 - upper), 100 * upper])
    low, high = (exp(point + wider * (float(end) - point)) for end in ends)
    return Interval(exp(point), low, high)


def _resampled_means(seconds: Numbers, generator: np.random.Generator) -> Numbers:
    length = block_length(len(seconds))
    sums = np.concatenate([[0.0], np.cumsum(seconds)])
    block_means = (sums[length:] - sums[:-length]) / length
    draws = generator.integers(len(block_means), size=(RESAMPLES, len(seconds) // length))
    means: Numbers = block_means[draws].mean(axis=1)
    return means
