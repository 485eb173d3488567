"""Seconds of two arms over the tokens of their steps: per response token, and where the responses were as long.

A step takes longer where responses are longer, so seconds per step say nothing of speed where lengths differ. Seconds
per token do not either: what a step takes beside its tokens spreads over more of them. So steps of equal length are set
against each other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import log
from typing import NamedTuple

import numpy as np

from harness.compare.stats.estimates import Estimate
from harness.compare.stats.intervals import CONFIDENCE, Interval, Numbers, t_quantile

CLASS_WIDTH = 0.02
"""Of a class of lengths, in log units: lengths that differ by less than 2% are alike."""
FEWEST_ALIKE = 0.1
"""Share of the steps that has to be alike in length in both arms before they are matched."""


class Steps(NamedTuple):
    """Steps of one arm: seconds, response tokens and mean response length of each; shape [steps].

    ``aside_s`` are further seconds of a mean step that no length of a response changes, as those of evaluations: which
    step has one is chance between steps of equal length.
    """

    seconds: Numbers
    tokens: Numbers
    length: Numbers
    aside_s: float = 0.0


def per_token(before: Steps, after: Steps) -> float | None:
    """Return the log-ratio of the seconds per response token; None where either has no such steps."""
    if not len(before.tokens) or not len(after.tokens):
        return None
    rates = [side.seconds.sum() / side.tokens.sum() + side.aside_s / side.tokens.mean() for side in (before, after)]
    return log(rates[1] / rates[0])


def at_matched_lengths(before: Steps, after: Steps) -> float | None:
    """Return the log-ratio of the seconds per response token if both arms had the same mixture of lengths.

    The steps are put into classes of ``CLASS_WIDTH`` of their length. Each class has the seconds per token of either
    arm, and both are averaged over the classes that both have, with the same weights a b / (a + b) of the a and b steps
    there, which leave out what only one arm has:

        log(sum_c w_c r'_c / sum_c w_c r_c)        r_c, r'_c: seconds over tokens in class c, before and after

    This is direct standardisation (Kitagawa, JASA 50, 1955, 1168-1194) over subclasses (Cochran, Biometrics 24, 1968,
    295-313) with the weights of Mantel and Haenszel (JNCI 22, 1959, 719-748).

    Returns:
        None where fewer than ``FEWEST_ALIKE`` of the steps of one arm have their like in the other: the overlap is
        sum_c min(a_c / a, b_c / b).
    """
    if not len(before.tokens) or not len(after.tokens):
        return None
    sides, first = [], np.log(np.concatenate([before.length, after.length])).min()
    places = [np.floor((np.log(side.length) - first) / CLASS_WIDTH).astype(np.int64) for side in (before, after)]
    size = 1 + max(int(own.max()) for own in places)
    for side, own in zip((before, after), places, strict=True):
        sides.append([np.bincount(own, weights, size) for weights in (None, side.seconds, side.tokens)])
    (mine, *my_sums), (theirs, *their_sums) = sides
    if np.minimum(mine / mine.sum(), theirs / theirs.sum()).sum() < FEWEST_ALIKE:
        return None
    both = (mine > 0) & (theirs > 0)
    weights = (mine * theirs)[both] / (mine + theirs)[both]
    per_step = float(weights @ ((my_sums[1] + their_sums[1]) / (mine + theirs).clip(1))[both])
    means = [
        (float(weights @ (seconds[both] / tokens[both])) + side.aside_s * weights.sum() ** 2 / per_step)
        for side, (seconds, tokens) in zip((before, after), (my_sums, their_sums), strict=True)
    ]
    return log(means[1] / means[0])


def explained(
    gaps: Sequence[float], rest: Sequence[float], estimate_of: Callable[[Sequence[float]], Estimate | None]
) -> Interval | None:
    """Return the share of a gap that is gone where work is equal, 1 - mean(rest) / mean(gaps), with its 95% interval.

    The interval is Fieller's (JRSS B 16, 1954, 175-185): the shares s for which the mean of rest - (1 - s) gaps is not
    told from 0. Its errors are those of ``estimate_of``, which knows how far blocks hang together.

    Args:
        gaps, rest: log-ratios of the same blocks: of seconds per step, and at equal work.

    Returns:
        None where the gap itself is not told from 0, so that any share of it would do.
    """
    estimates = [estimate_of(values) for values in (gaps, rest)]
    spread = np.cov(gaps, rest) if len(gaps) > 1 else np.zeros((2, 2))
    scale = 0.0
    for place, estimate in enumerate(estimates):
        if estimate is None or estimate.error is None:
            return None
        variance = float(spread[place, place])
        reach = t_quantile((1 + CONFIDENCE) / 2, estimate.degrees) * estimate.error
        scale = max(scale, reach**2 / variance if variance > 0 else 0.0)
    gap, left = float(np.mean(gaps)), float(np.mean(rest))
    square = gap**2 - scale * float(spread[0, 0])
    if square <= 0:
        return None
    middle = gap * left - scale * float(spread[0, 1])
    root = max(0.0, middle**2 - square * (left**2 - scale * float(spread[1, 1]))) ** 0.5
    return Interval(1 - left / gap, 1 - (middle + root) / square, 1 - (middle - root) / square)
