"""Intervals, estimates and tests over blocks, in log units where nothing else is said.

The t-interval is the one for verdicts. The percentile bootstrap is left out on purpose: over 4 to 10 blocks of
simulated noise it excluded "no change" in 10 to 26% of the experiments in which nothing had changed, instead of 5%.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import sqrt
from statistics import NormalDist
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]
CONFIDENCE = 0.95
POWER = 0.8


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate with the ends of its interval."""

    point: float
    low: float
    high: float

    def excludes(self, value: float) -> bool:
        """Whether the value lies outside the interval."""
        return not self.low <= value <= self.high

    def within(self, reach: float) -> bool:
        """Whether the whole interval lies inside -reach to +reach."""
        return -reach < self.low and self.high < reach


def t_interval(values: Sequence[float] | np.ndarray, confidence: float = CONFIDENCE) -> Interval | None:
    """Return Student's t-interval of the mean: mean +- t * sd / sqrt(n). None below two values."""
    count = len(values)
    if count < 2:
        return None
    mean = float(np.mean(values))
    reach = t_quantile((1 + confidence) / 2, count - 1) * float(np.std(values, ddof=1)) / sqrt(count)
    return Interval(mean, mean - reach, mean + reach)


def welch_interval(
    before: Sequence[float] | np.ndarray, after: Sequence[float] | np.ndarray, confidence: float = CONFIDENCE
) -> Interval | None:
    """Return Welch's interval of mean(after) - mean(before) for groups that were measured apart.

    The degrees of freedom are Welch and Satterthwaite's (Biometrika 34, 1947). None below two values on a side.
    """
    if min(len(before), len(after)) < 2:
        return None
    error, degrees = welch_error(before, after)
    difference = float(np.mean(after) - np.mean(before))
    reach = t_quantile((1 + confidence) / 2, degrees) * error
    return Interval(difference, difference - reach, difference + reach)


def welch_error(before: Sequence[float] | np.ndarray, after: Sequence[float] | np.ndarray) -> tuple[float, float]:
    """Return (standard error of the difference of means, degrees of freedom); at least two values on each side."""
    shares = [float(np.var(group, ddof=1)) / len(group) for group in (before, after)]
    total = sum(shares)
    spread = sum(share**2 / (len(group) - 1) for share, group in zip(shares, (before, after), strict=True))
    fewest, most = min(len(before), len(after)) - 1, len(before) + len(after) - 2
    # rounding, and groups without any spread, must not leave the range in which the formula lies
    degrees = min(max(total**2 / spread, fewest), most) if spread > 0 else fewest
    return sqrt(total), float(degrees)


def minimum_effect(values: Sequence[float] | np.ndarray) -> float | None:
    """Return the smallest relative change that such blocks would show in 80% of experiments; None below two values.

    exp((t_.975 + t_.80) * sd / sqrt(n)) - 1, so 0.034 for 3.4% slower. It is a statement about the measurement, not
    about the arms: see Bloom, Evaluation Review 19 (1995).
    """
    count = len(values)
    if count < 2:
        return None
    return effect_shown(float(np.std(values, ddof=1)) / sqrt(count), count - 1)


def effect_shown(error: float, degrees: float) -> float:
    """Return the relative change shown in 80% of experiments, for a standard error in log units."""
    return float(np.expm1((t_quantile((1 + CONFIDENCE) / 2, degrees) + t_quantile(POWER, degrees)) * error))


def hodges_lehmann(values: Sequence[float] | np.ndarray) -> float | None:
    """Return the median of the means of all pairs, each value with itself too; None without values.

    As precise as the mean on normal noise, and hardly moved by one wild block: Hodges and Lehmann, Annals of
    Mathematical Statistics 34 (1963).
    """
    if not len(values):
        return None
    numbers = np.asarray(values, dtype=np.float64)
    rows, columns = np.triu_indices(len(numbers))
    return float(np.median((numbers[rows] + numbers[columns]) / 2))


def wilson_interval(successes: int, trials: int, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Return the ends of Wilson's interval of a rate: JASA 22 (1927), 209-212. From 0 to 1 without trials."""
    if trials == 0:
        return 0.0, 1.0
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    rate, pull = successes / trials, z * z / trials
    middle = (rate + pull / 2) / (1 + pull)
    reach = z * sqrt(rate * (1 - rate) / trials + pull / (4 * trials)) / (1 + pull)
    return max(0.0, middle - reach), min(1.0, middle + reach)


@lru_cache(maxsize=1024)
def t_quantile(probability: float, degrees: float) -> float:
    """Return t with P(T <= t) = probability for Student's t distribution."""
    from scipy.special import stdtrit  # here, so that a command without a verdict does not pay for it

    return float(stdtrit(degrees, probability))


LEVEL = 0.05
"""Share of experiments without any change in which a family of tests may err."""
EXACT_UP_TO = 20
"""Values up to which every pattern of signs is counted: 2^20 of them, as two halves of 2^10."""
DRAWS = 9_999
"""Random sign patterns beyond that; with the +1 the smallest p is 0.0001."""
DRAW_SEED = 20_261_121
"""Fixed, so that the same blocks give the same p."""
_ROUNDING = 1e-12


def sign_flip_p(values: Sequence[float] | Numbers) -> float | None:
    """Return the two-sided probability, if every sign is a coin toss, of a sum as far from 0 as this one.

    What two like arms give is symmetric around 0: swapping their names flips a block's sign and nothing else. So no
    shape of noise is assumed. Exact up to 20 values (the smallest p is then 2 / 2^n: 0.031 for 6 blocks, 0.002 for 10).
    Beyond, (1 + patterns as extreme) / (1 + patterns) over fixed random patterns (Phipson and Smyth, 2010): never 0,
    and valid whatever the draw. None without values.
    """
    numbers = np.asarray(values, dtype=np.float64)
    if not len(numbers):
        return None
    scale = float(np.sum(np.abs(numbers)))
    if scale == 0:
        return 1.0
    reach = abs(float(np.sum(numbers))) - _ROUNDING * scale  # a tie counts as extreme, whatever the order of summing
    if len(numbers) > EXACT_UP_TO:
        return _drawn_p(numbers, reach)
    return _share_beyond(_signed_sums(numbers[: len(numbers) // 2]), _signed_sums(numbers[len(numbers) // 2 :]), reach)


def _signed_sums(numbers: Numbers) -> Numbers:
    """Return the sums under every pattern of signs, sorted, shape [2^n]."""
    sums = np.zeros(1)
    for number in numbers:
        sums = np.concatenate([sums - number, sums + number])
    return np.sort(sums)


def _share_beyond(left: Numbers, right: Numbers, reach: float) -> float:
    """Return the share of all sums left_i + right_j that lie at least ``reach`` from 0; both sides are sorted.

    The patterns are symmetric, so the upper side is counted and doubled, unless 0 itself is far enough.
    """
    if reach <= 0:
        return 1.0
    above = len(right) * len(left) - int(np.sum(np.searchsorted(right, reach - left, side="left")))
    return 2 * above / (len(left) * len(right))


def _drawn_p(numbers: Numbers, reach: float) -> float:
    generator = np.random.default_rng(DRAW_SEED)
    extreme, left = 0, DRAWS
    while left:
        rows = min(left, 2_000)
        signs = generator.integers(0, 2, (rows, len(numbers)), dtype=np.int8) * 2.0 - 1.0
        extreme += int(np.sum(np.abs(signs @ numbers) >= reach))
        left -= rows
    return (1 + extreme) / (1 + DRAWS)


def fewest_blocks(comparisons: int, level: float = LEVEL) -> int:
    """Return how many blocks the sign-flip test needs before any of so many comparisons can reach ``level`` by Holm.

    The smallest p of n blocks is 2 / 2^n, and Holm multiplies the first by the number of comparisons: 6 blocks for
    one, 8 for up to 6, 9 for up to 12, 10 for up to 25.
    """
    blocks = 1
    while comparisons * 2 / 2**blocks > level:
        blocks += 1
    return blocks


def holm(probabilities: Sequence[float]) -> tuple[float, ...]:
    """Return the probabilities after Holm's step-down correction, in the order given.

    Calling those at most 5% different errs at all in at most 5% of experiments, whichever of the null hypotheses are
    true and however they hang together: Holm, Scandinavian Journal of Statistics 6 (1979).
    """
    count = len(probabilities)
    order = sorted(range(count), key=lambda place: probabilities[place])
    adjusted, highest = [0.0] * count, 0.0
    for rank, place in enumerate(order):
        highest = max(highest, min(1.0, (count - rank) * probabilities[place]))
        adjusted[place] = highest
    return tuple(adjusted)


def welch_p(before: Sequence[float] | Numbers, after: Sequence[float] | Numbers) -> float | None:
    """Return Welch's two-sided probability for groups that were measured apart; None below two values on a side."""
    from scipy.special import stdtr

    if min(len(before), len(after)) < 2:
        return None
    error, degrees = welch_error(before, after)
    difference = float(np.mean(after) - np.mean(before))
    if error == 0:
        return 1.0 if difference == 0 else 0.0
    return float(2 * stdtr(degrees, -abs(difference) / error))


def binomial_p(successes: int, trials: int, rate: float, side: Literal["both", "above", "below"] = "both") -> float:
    """Return the exact probability of a count like this one or less likely, if each trial succeeds with ``rate``.

    Args:
        side: ``above``: of at least so many; ``below``: of at most so many; ``both``: twice the smaller, at most 1.
    """
    from scipy.special import bdtr, bdtrc

    at_most = float(bdtr(successes, trials, rate))
    at_least = 1.0 if successes == 0 else float(bdtrc(successes - 1, trials, rate))
    if side == "both":
        return min(1.0, 2 * min(at_most, at_least))
    return at_least if side == "above" else at_most
