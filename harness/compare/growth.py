"""How a KL figure grows over training, and whether it goes with the reward. Plain least squares on plain lists."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from harness.compare.evaluations import evaluations
from harness.results import Run

FEWEST_POINTS = 8
_CURVATURES = tuple(0.25 * number for number in range(-32, 33))
Shape = Literal["linear", "exponential", "saturating", "falling", "no clear trend"]


@dataclass(frozen=True, slots=True)
class Growth:
    """The shape of a series.

    Attributes:
        curvature: c in y = a + b (exp(c s) - 1) / c, s running from 0 at the first step to 1 at the last; 0 is a line.
        r_squared: share of the variance that the curve explains.
        linear_r_squared: the same for the line.
    """

    shape: Shape
    curvature: float
    r_squared: float
    linear_r_squared: float
    points: int


def growth(steps: Sequence[float], values: Sequence[float]) -> Growth | None:
    """Describe how a series grows; None for fewer than ``FEWEST_POINTS`` points or a constant series.

    The curve y = a + b (exp(c s) - 1) / c is fitted by least squares for c from -8 to 8. It counts as a bend only where
    it leaves at most 90% of the line's squared error, and as no clear trend where it explains less than half of the
    variance.
    """
    if len(values) < FEWEST_POINTS:
        return None
    span = steps[-1] - steps[0]
    positions = [(step - steps[0]) / span for step in steps]
    total = _squared_error([1.0] * len(values), values)
    if total <= 0.0:
        return None
    errors = {c: _squared_error([_bend(c, s) for s in positions], values) for c in _CURVATURES}
    best = min(errors, key=lambda c: (errors[c], abs(c)))
    line = errors[0.0]
    if errors[best] > 0.9 * line:
        best = 0.0
    explained = 1.0 - errors[best] / total
    shape: Shape = "linear" if best == 0.0 else "exponential" if best > 0.0 else "saturating"
    if explained < 0.5:
        shape = "no clear trend"
    elif (correlation(positions, values) or 0.0) < 0.0:
        shape = "falling"
    return Growth(shape, best, explained, 1.0 - line / total, len(values))


def correlation(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Return Pearson's correlation, or None for fewer than four pairs or a constant series."""
    count = len(first)
    if count < 4:
        return None
    mean_first, mean_second = math.fsum(first) / count, math.fsum(second) / count
    products = math.fsum((a - mean_first) * (b - mean_second) for a, b in zip(first, second, strict=True))
    scale = _centred_squares(first, mean_first) * _centred_squares(second, mean_second)
    return products / math.sqrt(scale) if scale > 0 else None


def metric_series(run: Run, name: str) -> tuple[list[int], list[float]]:
    """Return (steps, values) of a metric over the run's training steps; steps without a finite value are left out."""
    found = [(row.step, metric.value) for row in run.steps if (metric := row.metric(name)) is not None]
    finite = [(step, value) for step, value in found if math.isfinite(value)]
    return [step for step, _ in finite], [value for _, value in finite]


def kl_against_reward(run: Run, name: str) -> tuple[float, int] | None:
    """Correlate a KL figure with the validation reward of the same policy version.

    Training step t measures policy version t, so an evaluation of version v is paired with the row of step v.

    Returns:
        Pearson's correlation and the number of pairs, or None where there are too few.
    """
    by_step = dict(zip(*metric_series(run, name), strict=True))
    pairs = [(by_step[item.step], item.reward) for item in evaluations(run) if item.step in by_step]
    value = correlation([kl for kl, _ in pairs], [reward for _, reward in pairs])
    return None if value is None else (value, len(pairs))


def _bend(curvature: float, position: float) -> float:
    return position if curvature == 0.0 else math.expm1(curvature * position) / curvature


def _squared_error(regressor: Sequence[float], values: Sequence[float]) -> float:
    """Return the squared error of the best a + b x; of the best constant where x is constant."""
    count = len(values)
    mean_x, mean_y = math.fsum(regressor) / count, math.fsum(values) / count
    squares = _centred_squares(regressor, mean_x)
    total = _centred_squares(values, mean_y)
    if squares == 0.0:
        return total
    products = math.fsum((x - mean_x) * (y - mean_y) for x, y in zip(regressor, values, strict=True))
    return max(0.0, total - products * products / squares)


def _centred_squares(values: Sequence[float], mean: float) -> float:
    return math.fsum((value - mean) ** 2 for value in values)
