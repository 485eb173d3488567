"""Differences between two variants, paired by seed, with a confidence interval."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean, stdev

from harness.compare.campaigns import Variant
from harness.compare.figures import RunFigures

FEWEST_SEEDS = 3
CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Difference:
    """A mean difference with the ends of its 95% interval, over ``seeds`` pairs of runs."""

    mean: float
    low: float
    high: float
    seeds: int


def paired_difference(base: Variant, other: Variant, read: Callable[[RunFigures], float | None]) -> Difference | None:
    """Return ``other`` minus ``base`` over the seeds that both have; None for fewer than ``FEWEST_SEEDS``.

    The interval is Student's for paired samples: mean(d) +- t(0.975, n - 1) * sd(d) / sqrt(n).
    """
    before, after = ({run.manifest.seed: read(run) for run in variant.runs} for variant in (base, other))
    pairs = [(before[seed], after[seed]) for seed in before if seed in after]
    differences = [mine - theirs for theirs, mine in pairs if theirs is not None and mine is not None]
    count = len(differences)
    if count < FEWEST_SEEDS:
        return None
    mean = fmean(differences)
    reach = t_quantile(CONFIDENCE, count - 1) * stdev(differences) / math.sqrt(count)
    return Difference(mean, mean - reach, mean + reach, count)


def t_quantile(confidence: float, degrees: int) -> float:
    """Return t with P(|T| <= t) = ``confidence`` for Student's t distribution, by bisection of its closed form."""
    low, high = 0.0, math.pi / 2
    for _ in range(60):
        middle = (low + high) / 2
        if _within(middle, degrees) < confidence:
            low = middle
        else:
            high = middle
    return math.sqrt(degrees) * math.tan(low)


def _within(angle: float, degrees: int) -> float:
    """Return P(|T| <= sqrt(degrees) tan(angle)): Abramowitz and Stegun, formulas 26.7.3 and 26.7.4."""
    odd = degrees % 2
    term = series = math.cos(angle) if odd else 1.0
    for power in range(odd + 2, degrees - 1, 2):
        term *= math.cos(angle) ** 2 * (power - 1) / power
        series += term
    if not odd:
        return math.sin(angle) * series
    return 2 / math.pi * (angle + (math.sin(angle) * series if degrees > 1 else 0.0))
