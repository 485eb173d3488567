"""Exact intervals and probabilities of counts, by which rates in tests are judged."""

from __future__ import annotations

from typing import Literal

from harness.compare.stats.intervals import CONFIDENCE


def exact_interval(successes: int, trials: int, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Return the ends of the exact interval of a rate: Clopper and Pearson, Biometrika 26 (1934)."""
    from scipy.special import betaincinv

    tail = (1 - confidence) / 2
    low = float(betaincinv(successes, trials - successes + 1, tail)) if successes else 0.0
    high = float(betaincinv(successes + 1, trials - successes, 1 - tail)) if successes < trials else 1.0
    return low, high


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
