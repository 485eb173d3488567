"""Exact intervals and probabilities of counts, by which rates in tests are judged."""

from __future__ import annotations

from harness.compare.stats.intervals import CONFIDENCE


def exact_interval(successes: int, trials: int, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Return the ends of the exact interval of a rate: Clopper and Pearson, Biometrika 26 (1934)."""
    from scipy.stats import binomtest

    ends = binomtest(successes, trials).proportion_ci(confidence, "exact") if trials else None
    return (0.0, 1.0) if ends is None else (float(ends.low), float(ends.high))


def at_least(successes: int, trials: int, rate: float) -> float:
    """Return the exact probability of at least so many successes, if each trial succeeds with ``rate``."""
    from scipy.stats import binomtest

    return float(binomtest(successes, trials, rate, "greater").pvalue)
