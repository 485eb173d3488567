"""Tests: the sign-flip test of one list of log-ratios, Holm's correction over several, the binomial test of a rate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from harness.compare.stats.blocks import Numbers
from harness.compare.stats.intervals import welch_error

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
