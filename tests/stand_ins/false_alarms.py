"""How often a comparison errs where nothing differs: the yardstick of the comparison itself.

Used on simulated noise (``NoiseModel``) and on recorded runs (``tests/benchmarks/false_alarm_rates.py``).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import erfc, sqrt
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from harness.compare.stats.intervals import LEVEL, Numbers
from harness.compare.stats.verdicts import STEP_THRESHOLD, Verdict
from tests.stand_ins.binomial import exact_interval
from tests.stand_ins.simulated_verdicts import judge_step

Item = TypeVar("Item")
Hits = NDArray[np.bool_]
RESAMPLES = 2_000
FEWEST_STRETCHES = 5


@dataclass(frozen=True, slots=True)
class Rate:
    """A share of experiments with its 95% interval."""

    hits: int
    trials: int
    low: float
    high: float

    @property
    def share(self) -> float:
        """Hits over trials; 0 without trials."""
        return self.hits / self.trials if self.trials else 0.0


def rate(hits: Hits) -> Rate:
    """Return the rate of experiments that have nothing in common, with its exact interval."""
    count = int(np.sum(hits))
    return Rate(count, len(hits), *exact_interval(count, len(hits)))


def rate_in_time(hits: Hits, length: int, generator: np.random.Generator) -> Rate:
    """Return the rate of experiments that overlap or follow each other, with a moving-block bootstrap's interval.

    Stretches of ``length`` experiments in a row are drawn (Kuensch, Annals of Statistics 17, 1989), so that what
    neighbours share stays in the spread. Where none or all of the experiments hit, every draw is alike: the interval is
    Wilson's then, with a stretch as one trial. With fewer than five stretches nothing can be said: 0 to 1.

    Args:
        length: experiments in a stretch; more than share blocks with each other.
    """
    count, total = len(hits), int(np.sum(hits))
    stretches = count // length
    if stretches < FEWEST_STRETCHES:
        return Rate(total, count, 0.0, 1.0)
    if total in (0, count):
        return Rate(total, count, *exact_interval(stretches if total else 0, stretches))
    running = np.concatenate([[0], np.cumsum(hits)])
    in_stretch = running[length:] - running[:-length]
    drawn = generator.integers(0, len(in_stretch), (RESAMPLES, stretches))
    low, high = np.quantile(in_stretch[drawn].mean(axis=1) / length, [0.025, 0.975])
    return Rate(total, count, float(low), float(high))


def windows(items: Sequence[Item], size: int, every: int) -> list[Sequence[Item]]:
    """Return the runs of ``size`` neighbours, one starting at each ``every``-th place; a rest too short is left out."""
    return [items[start : start + size] for start in range(0, len(items) - size + 1, every)]


def judged(experiments: Iterable[Sequence[float] | Numbers], threshold: float = STEP_THRESHOLD) -> tuple[Hits, Hits]:
    """Return for each experiment whether its 95% interval excludes no change, and whether the verdict is different.

    Args:
        experiments: of each the blocks' log-ratios, in the order in which they ran.
    """
    effects = [judge_step(log_ratios, threshold) for log_ratios in experiments]
    different = [effect.verdict is Verdict.DIFFERENT for effect in effects]
    return np.array([effect.shows for effect in effects], dtype=bool), np.array(different, dtype=bool)


def naive_hits(seconds: Sequence[float], steps: int, every: int) -> Hits:
    """Return what the naive recipe says of one run's steps: the first ``steps`` against the next, for each window.

    Args:
        every: a window starts at each ``every``-th step.
    """
    found = [naive_p(piece[:steps], piece[steps:]) < LEVEL for piece in windows(seconds, 2 * steps, every)]
    return np.array(found, dtype=bool)


def naive_p(before: Sequence[float] | Numbers, after: Sequence[float] | Numbers) -> float:
    """Return the two-sided Mann-Whitney probability of step times: wrong here, and what is commonly done.

    It takes steps to be independent. Normal approximation with correction for ties and continuity: good from about 20
    steps a side (Mann and Whitney, Annals of Mathematical Statistics 18, 1947).
    """
    mine, theirs = len(before), len(after)
    total = mine + theirs
    values, counts = np.unique(np.concatenate([before, after]), return_counts=True)
    ends = np.concatenate([[0], np.cumsum(counts)])
    ranks = np.array([(start + end + 1) / 2 for start, end in pairwise(ends)])
    rank_sum = float(ranks[np.searchsorted(values, before)].sum())
    distance = abs(rank_sum - mine * (total + 1) / 2) - 0.5
    ties = float((counts.astype(float) ** 3 - counts).sum()) / (total * (total - 1))
    spread = sqrt(mine * theirs / 12 * (total + 1 - ties))
    return 1.0 if spread == 0 or distance <= 0 else erfc(distance / spread / sqrt(2))
