"""How far predictions are from measurements: pure functions of numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import sqrt
from statistics import fmean, median


def signed_error(predicted: float, measured: float) -> float:
    """Return predicted / measured - 1: above 0 where the prediction is too slow.

    Raises:
        ValueError: the measurement is not above 0.
    """
    if measured <= 0:
        raise ValueError(f"measured {measured}, must be above 0")
    return predicted / measured - 1


def median_absolute(errors: Iterable[float]) -> float:
    """Return the median of the absolute values."""
    return median(map(abs, errors))


def noise_floor(repeats: Sequence[Sequence[float]]) -> float | None:
    """Return the median absolute error that a perfect predictor would show, from repeats of the same arms.

    It would know each arm's true mean, and still miss the measured mean of n repeats by sd / sqrt(n). A repeat lies
    sd x sqrt((n - 1) / n) from the mean of all n, so |repeat / mean - 1| / sqrt(n - 1) is spread as the perfect
    predictor's error is. The median goes over all repeats of all arms. None where no arm has two repeats.

    Args:
        repeats: measured values of each arm.
    """
    distances = [
        abs(value / fmean(values) - 1) / sqrt(len(values) - 1)
        for values in repeats
        if len(values) > 1
        for value in values
    ]
    return median(distances) if distances else None


def inside(low: float, high: float, repeats: Iterable[float]) -> int:
    """Return how many repeats lie in the interval, its ends included."""
    return sum(low <= value <= high for value in repeats)


def lag_distance(mine: Mapping[int, float], theirs: Mapping[int, float]) -> float:
    """Return how far apart two distributions of lag are, in versions: Wasserstein's distance of order 1.

    The area between the two cumulative distributions; 1 means that one is the other shifted by a version. Weights need
    not add up to 1.

    Raises:
        ValueError: one of them is empty.
    """
    totals = sum(mine.values()), sum(theirs.values())
    if not all(totals):
        raise ValueError("a distribution without rollouts has no distance to another one")
    lags = range(min((*mine, *theirs)), max((*mine, *theirs)))
    gap = area = 0.0
    for lag in lags:
        gap += mine.get(lag, 0) / totals[0] - theirs.get(lag, 0) / totals[1]
        area += abs(gap)
    return area


def mean_lag(lags: Mapping[int, float]) -> float:
    """Return the mean lag in versions; NaN where no rollout was trained on."""
    total = sum(lags.values())
    return sum(lag * weight for lag, weight in lags.items()) / total if total else float("nan")


def kendall_tau(predicted: Sequence[float], measured: Sequence[float]) -> float:
    """Return Kendall's tau-b of two rankings: 1 where every pair of arms is in the right order, -1 where none is."""
    from scipy.stats import kendalltau  # here, since it takes a second to load

    return float(kendalltau(predicted, measured).statistic)


def tau_between_repeats(repeats: Sequence[Sequence[float]]) -> float | None:
    """Return the mean tau of one repeat of all arms against the mean of their others: what noise leaves of a ranking.

    None where an arm has fewer than two repeats.

    Args:
        repeats: measured values of each arm, in the same order of repeats.
    """
    count = min(map(len, repeats))
    if count < 2:
        return None
    taus = []
    for left_out in range(count):
        others = [fmean([*values[:left_out], *values[left_out + 1 : count]]) for values in repeats]
        taus.append(kendall_tau(others, [values[left_out] for values in repeats]))
    return fmean(taus)


@dataclass(frozen=True, slots=True)
class Choice:
    """What it costs to follow the simulator.

    Attributes:
        picked: arm with the smallest predicted value.
        best: arm with the smallest measured value.
        regret: measured value of the picked arm over that of the best one, minus 1.
        pairs: of arms that one can choose between.
        wrong: of these, in which the arm with the smaller prediction measured more.
        mean_cost: regret over all pairs, 0 in those that are right.
        worst_cost: regret of the worst pair.
    """

    picked: str
    best: str
    regret: float
    pairs: int
    wrong: int
    mean_cost: float
    worst_cost: float


def choose(predicted: Mapping[str, float], measured: Mapping[str, float]) -> Choice:
    """Choose the smallest, among all arms and of each pair of arms, by prediction; pay by measurement.

    Args:
        predicted, measured: the same arms, two at least; less is better.

    Raises:
        ValueError: fewer than two arms.
    """
    if len(predicted) < 2:
        raise ValueError(f"{len(predicted)} arms: there is nothing to choose between")
    picked, best = min(predicted, key=predicted.__getitem__), min(measured, key=measured.__getitem__)
    costs = []
    for pair in combinations(predicted, 2):
        taken = min(pair, key=predicted.__getitem__)
        costs.append(measured[taken] / min(measured[arm] for arm in pair) - 1)
    return Choice(
        picked=picked,
        best=best,
        regret=measured[picked] / measured[best] - 1,
        pairs=len(costs),
        wrong=sum(cost > 0 for cost in costs),
        mean_cost=fmean(costs),
        worst_cost=max(costs),
    )
