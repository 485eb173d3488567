"""From blocks, or from occasions, to an estimate with its error; in log units.

A block's log-ratio is that of the mean measured steps of two arms. Neighbouring blocks may resemble each other: the
plain t-interval covers the truth in 75% of experiments instead of 95% where their log-ratios correlate by 0.5. So it is
widened by as much as the data leave open:

    rho    = (r (n - 1) + 1) / (n - 4)      r: lag-one autocorrelation of n log-ratios, too low by (1 + 3 rho) / (n - 1)
    upper  = rho + 3.5 / n, kept to 0 ... 0.65
    error  = sd / sqrt(n) * sqrt(v / s)     v = 1 + 2 sum_k (1 - k / n) upper^k: a mean of n AR(1) values varies so much
                                            s = (n - v) / (n - 1): how much of their spread such values show

The bias of r is Kendall's (Biometrika 41, 1954). The summand 3.5 / n and the bound were chosen by simulation, so that
6 to 20 blocks cover at least 93% up to a correlation of 0.5, and 97 to 98% where blocks are independent
(``tests/benchmarks/verdict_rates.py``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import expm1, log1p, sqrt

import numpy as np

from harness.compare.stats.intervals import CONFIDENCE, LEVEL, POWER, Interval, Numbers, t_quantile

FEWEST_BLOCKS = 6
"""Below this there is no verdict: the correlation of neighbours cannot be estimated."""
UPPER_PER_BLOCK = 3.5
MOST_CORRELATION = 0.65


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean log-ratio, above 0 where the arm was slower, with what is known of its error.

    Attributes:
        blocks: that it rests on; of occasions, the blocks of the one that has fewest.
        error: standard error, widened where blocks may correlate; None where nothing is known of it.
        degrees: of freedom of the error.
        correlation: of neighbouring blocks; None where it was not estimated.
        widening: ``error`` over that of independent blocks, at least 1.
    """

    point: float
    blocks: int
    error: float | None = None
    degrees: float = 1.0
    correlation: float | None = None
    widening: float = 1.0

    def interval(self, confidence: float = CONFIDENCE) -> Interval | None:
        """Return the t-interval; None where nothing is known of the error."""
        if self.error is None:
            return None
        reach = t_quantile((1 + confidence) / 2, self.degrees) * self.error
        return Interval(self.point, self.point - reach, self.point + reach)

    def sharing(self, correlation: float) -> Estimate:
        """Return the estimate with half of its blocks' correlation replaced by that of the whole experiment, since the
        machine is common to all arms, and ten blocks alone say little."""
        if self.error is None or self.correlation is None:
            return self
        return _widened(self.point, self.blocks, self.error / self.widening, (self.correlation + correlation) / 2)

    @property
    def p(self) -> float | None:
        """The two-sided probability of an estimate as far from 0 where there is no change."""
        from scipy.special import stdtr

        if self.error is None:
            return None
        if self.error == 0:
            return 1.0 if self.point == 0 else 0.0
        return float(2 * stdtr(self.degrees, -abs(self.point) / self.error))

    def smallest_effect(self, threshold: float, level: float = LEVEL) -> float | None:
        """Return the smallest true change that such blocks call ``different`` in 80% of experiments, such as 0.034.

        exp(max(t * error, log(1 + threshold)) + t_.80 * error) - 1: the estimate has to pass both bounds, that of p at
        ``level`` and the threshold that counts. See Bloom, Evaluation Review 19 (1995).
        """
        if self.error is None:
            return None
        needed = max(t_quantile(1 - level / 2, self.degrees) * self.error, log1p(threshold))
        return expm1(needed + t_quantile(POWER, self.degrees) * self.error)


def of_blocks(log_ratios: Sequence[float] | Numbers) -> Estimate | None:
    """Return the mean of the blocks' log-ratios, in the order in which they ran, with its widened error; None without
    a block."""
    values = np.asarray(log_ratios, dtype=np.float64)
    count = len(values)
    if not count:
        return None
    point = float(values.mean())
    if count == 1:
        return Estimate(point, 1)
    centred = values - point
    squares = float(centred @ centred)
    plain = sqrt(squares / (count - 1) / count)
    correlation = None
    if count >= FEWEST_BLOCKS:
        lag_one = float(centred[1:] @ centred[:-1]) / squares if squares > 0 else 0.0
        correlation = min(max((lag_one * (count - 1) + 1) / (count - 4), -1.0), 1.0)
    return _widened(point, count, plain, correlation)


def _widened(point: float, count: int, plain: float, correlation: float | None) -> Estimate:
    upper = MOST_CORRELATION
    if correlation is not None:
        upper = min(max(correlation + UPPER_PER_BLOCK / count, 0.0), MOST_CORRELATION)
    widening = inflation(upper, count)
    return Estimate(point, count, plain * widening, count - 1, correlation, widening)


def inflation(correlation: float, count: int) -> float:
    """Return by how much the error of a mean grows where neighbours correlate so, in 0 to 1: sqrt(v / s) of above."""
    rho, lags = correlation, np.arange(1, count)
    variance = 1 + 2 * float(((1 - lags / count) * rho**lags).sum())
    return sqrt(variance * (count - 1) / (count - variance))


def of_occasions(before: Sequence[Sequence[float]], after: Sequence[Sequence[float]]) -> Estimate | None:
    """Return the difference between occasions that were measured apart, with the spread between occasions as its error.

    Each occasion gives one value, the mean of its blocks. What a machine does between two evenings is in none of the
    blocks of either, so it has to be seen from how far occasions of the same thing lie apart:

        point = mean(after) - mean(before)        error^2 = s^2 / K + (s^2 + w^2) / J

    with s the standard deviation between occasions, pooled over the K and the J where there are two or more, with
    K - 1 (+ J - 1) degrees of freedom, and w^2 what the blocks of the new occasions scatter beyond those of the old
    ones (0 for equally many alike). With one old occasion and one new one nothing is known of the error.

    Args:
        before, after: of each old and new occasion the log of each block's mean step time, at least one.

    Returns:
        None where there is no old or no new occasion.
    """
    if not before or not after:
        return None
    old, new = ([float(np.mean(blocks)) for blocks in occasions] for occasions in (before, after))
    point = float(np.mean(new) - np.mean(old))
    fewest = min(len(blocks) for blocks in (*before, *after))
    degrees = len(old) + len(new) - 2
    if degrees == 0:
        return Estimate(point, fewest)
    squares = sum(float(np.var(means)) * len(means) for means in (old, new))
    between = squares / degrees
    beyond = max(0.0, _within(after) - _within(before))
    error = sqrt(between / len(old) + (between + beyond) / len(new))
    return Estimate(point, fewest, error, degrees)


def _within(occasions: Sequence[Sequence[float]]) -> float:
    """Mean squared error of an occasion's mean as its blocks tell it; 0 where no occasion has two."""
    errors = [estimate.error for blocks in occasions if (estimate := of_blocks(blocks)) and estimate.error is not None]
    return float(np.mean(np.square(errors))) if errors else 0.0
