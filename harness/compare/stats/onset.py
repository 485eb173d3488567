"""Where the growth of a series changes: one break, tested against every smooth curve that could pass for it.

The KL to the reference policy grows as a policy learns, along a line, a parabola or a curve that levels off. What is
asked for here is another thing: a step from which on it grows faster than the curve so far leads to expect.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]
FEWEST_POINTS = 20
FASTER = 2.0
"""Growth after the break over growth before it, at least."""
LEVEL = 0.025
"""Chance of so clear a break in a series without any; below 5%, since the noise's memory is an estimate."""
_MOST_POINTS = 240  # longer series are averaged over equal runs of neighbours
_EXPONENTIALS = tuple(0.5 * number for number in range(-16, 17) if number)
_POWERS = (0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0)
_SIGMOIDS = tuple((power, rate) for power in (1.5, 2.0, 3.0) for rate in (1.0, 2.0, 4.0, 8.0))
_BENDS_AFTER = (0.0, 5.0, 10.0)  # 0: a straight line after the break
_DRAWS, _DRAW_SEED = 199, 20_261_122
_FLOOR = 0.02  # of the largest value: noise does not vanish with the curve
_MOST_MEMORY = 0.9
_EXACT = 1e-12


@dataclass(frozen=True, slots=True)
class Onset:
    """A break.

    Attributes:
        step: from which on the series grows faster.
        before, after: its growth for each step on average, up to the break and from there to the end.
        p: chance of a break as clear as this one in a smooth series.
    """

    step: float
    before: float
    after: float
    p: float


def growth_onset(steps: Sequence[float], values: Sequence[float]) -> Onset | None:
    """Return the step at which growth changes, or None where none is found.

    Two kinds of curves are fitted by least squares, s running from 0 at the first step to 1 at the last. Smooth ones:
    a + b f(s) with f = s^q (q from 1/4 to 4), exp(c s) (c from -8 to 8) or 1 - exp(-c s^q), which rises slowly, then
    fast, and levels off. Broken ones: a + b s + d g(s - s0) from the break s0 on, g a line or bending upwards as exp(5
    s) or exp(10 s) does, d > 0 (a broken stick: Hinkley, Biometrika 56, 1969). A tenth of the points, and five at
    least, lie on either side of the break. Noise is in proportion to the curve, so errors are weighted by the inverse
    of the fitted value.

    The best broken curve must leave so much less error than the best smooth one as series drawn from that smooth
    curve, with noise of the same size and memory (AR(1), by the broken curve's residuals), leave in at most 2.5% (a
    parametric bootstrap, as of Cox's test of separate families, JRSS B 24, 1962), and growth must at least double.
    """
    if len(values) < FEWEST_POINTS:
        return None
    at, series = _averaged(np.asarray(steps, dtype=np.float64), np.asarray(values, dtype=np.float64))
    if not np.ptp(series) > 0:
        return None
    fits = _Fits(len(series), series)
    before, after = fits.growths()
    if not (after > 0 and after >= FASTER * before):
        return None
    p = fits.chance()
    if p > LEVEL:
        return None
    per_step = float(at[-1] - at[0])
    return Onset(float(at[fits.place]), before / per_step, after / per_step, p)


def _averaged(steps: Numbers, values: Numbers) -> tuple[Numbers, Numbers]:
    size = -(-len(values) // _MOST_POINTS)
    starts = np.arange(0, len(values), size)
    counts = np.diff([*starts, len(values)])
    return np.add.reduceat(steps, starts) / counts, np.add.reduceat(values, starts) / counts


@lru_cache(maxsize=8)
def _curves(count: int) -> tuple[Numbers, Numbers, NDArray[np.int64]]:
    """Return the smooth curves [F, n], the curves after a break [K, n], and the place of each one's break [K]."""
    s = np.linspace(0.0, 1.0, count)
    sigmoids = [-np.expm1(-rate * s**power) for power, rate in _SIGMOIDS]
    smooth = np.array([s**power for power in _POWERS] + [np.expm1(c * s) / c for c in _EXPONENTIALS] + sigmoids)
    margin = max(5, count // 10)
    places = np.arange(margin, count - margin)
    beyond = np.maximum(0.0, s - s[places][:, None])
    broken = np.concatenate([beyond if c == 0 else np.expm1(c * beyond) / c for c in _BENDS_AFTER])
    return smooth, broken, np.tile(places, len(_BENDS_AFTER))


class _Fits:
    """The best smooth and the best broken curve of a series [n], and the test of one against the other."""

    def __init__(self, count: int, series: Numbers) -> None:
        self.series, self.s = series, np.linspace(0.0, 1.0, count)
        self.smooth_curves, self.broken_curves, places = _curves(count)
        self.weights = np.ones(count)
        for _ in range(3):  # the weights follow from the fit
            _, smooth, broken = self.compare(series[None])
            columns = np.stack([np.ones(count), self.s, self.broken_curves[broken[0]]], axis=1)
            self.fitted = self._fit(columns)
            self.weights = 1 / np.maximum(np.abs(self.fitted), _FLOOR * np.max(np.abs(series)))
        self.place = int(places[broken[0]])
        self.smooth = self._fit(np.stack([np.ones(count), self.smooth_curves[smooth[0]]], axis=1))

    def growths(self) -> tuple[float, float]:
        """Return the growth for the whole length of the series, on average before and after the break."""
        start, middle, end = (float(self.fitted[place]) for place in (0, self.place, -1))
        share = float(self.s[self.place])
        return (middle - start) / share, (end - middle) / (1 - share)

    def chance(self) -> float:
        """Return the share of series drawn from the smooth curve whose best break is at least as clear."""
        count = len(self.series)
        residuals = (self.series - self.fitted) * self.weights
        squares = float(residuals @ residuals)
        memory = float(residuals[1:] @ residuals[:-1]) / max(squares, _EXACT)
        memory = min(_MOST_MEMORY, max(0.0, memory + (1 + 4 * memory) / count))  # Kendall's correction of its bias
        noise = np.random.default_rng(_DRAW_SEED).standard_normal((_DRAWS, count))
        for place in range(1, count):
            noise[:, place] = memory * noise[:, place - 1] + np.sqrt(1 - memory**2) * noise[:, place]
        drawn = self.smooth + np.sqrt(squares / (count - 4)) * noise / self.weights
        clear = self.compare(self.series[None])[0][0]
        return float((1 + np.sum(self.compare(drawn)[0] >= clear)) / (1 + _DRAWS))

    def compare(self, rows: Numbers) -> tuple[Numbers, NDArray[np.int64], NDArray[np.int64]]:
        """Return for each row [R, n] log(smooth error / broken error), the best smooth and the best broken curve."""
        constant, line = np.ones((len(self.s), 1)), np.stack([np.ones(len(self.s)), self.s], axis=1)
        smooth_errors, smooth = self._best(rows, constant, self.smooth_curves, rising=False)
        broken_errors, broken = self._best(rows, line, self.broken_curves, rising=True)
        floor = _EXACT * np.sum((rows * self.weights) ** 2, axis=1)
        return np.log((smooth_errors + floor) / (broken_errors + floor)), smooth, broken

    def _best(
        self, rows: Numbers, columns: Numbers, curves: Numbers, rising: bool
    ) -> tuple[Numbers, NDArray[np.int64]]:
        """Return each row's least weighted error with the columns and one of the curves beside them, and which one."""
        basis, _ = np.linalg.qr(columns * self.weights[:, None])
        left, directions = (
            scaled - (scaled @ basis) @ basis.T for scaled in (rows * self.weights, curves * self.weights)
        )
        lengths = np.linalg.norm(directions, axis=1, keepdims=True)
        along = left @ (directions / np.maximum(lengths, _EXACT)).T
        gains = np.maximum(along, 0.0) ** 2 if rising else along**2
        return np.maximum(0.0, np.sum(left**2, axis=1) - gains.max(axis=1)), gains.argmax(axis=1)

    def _fit(self, columns: Numbers) -> Numbers:
        found, *_ = np.linalg.lstsq(columns * self.weights[:, None], self.series * self.weights, rcond=None)
        return np.asarray(columns @ found)
