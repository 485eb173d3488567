"""Axes: round ticks, and where a value lies between the ends of its axis."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

_ROUND = (1.0, 2.0, 2.5, 5.0, 10.0)


@dataclass(frozen=True, slots=True)
class Scale:
    """An axis from ``low`` to ``high`` (low < high; above 0 where ``log``) with its ticks."""

    low: float
    high: float
    ticks: tuple[float, ...]
    log: bool = False

    def place(self, value: float) -> float:
        """Return where the value lies: 0 at the low end, 1 at the high end, never outside."""
        if self.log:
            value = max(value, self.low)
            place = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            place = (value - self.low) / (self.high - self.low)
        return min(1.0, max(0.0, place))


def linear(values: Iterable[float], most_ticks: int = 5, from_zero: bool = False) -> Scale:
    """Return an axis over the values whose ends are round, with about ``most_ticks`` ticks.

    Args:
        from_zero: let the axis begin (or end) at 0.
    """
    found = [value for value in values if math.isfinite(value)] or [0.0, 1.0]
    low, high = min(found), max(found)
    if from_zero:
        low, high = min(0.0, low), max(0.0, high)
    if high - low <= 1e-12 * max(abs(low), abs(high), 1e-300):
        reach = abs(high) * 0.1 or 1.0
        low, high = (0.0, high + reach) if from_zero and low == 0 else (low - reach, high + reach)
    step = _round_step((high - low) / most_ticks)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    ticks = tuple(step * number for number in range(first, last + 1))
    return Scale(ticks[0], ticks[-1], ticks)


def whole(low: float, high: float, most_ticks: int = 5) -> Scale:
    """Return an axis that ends at the values themselves, its ticks round and inside; for steps and seconds."""
    if high <= low:
        return Scale(low, low + 1.0, (low,))
    step = _round_step((high - low) / most_ticks)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return Scale(low, high, tuple(step * number for number in range(first, last + 1)))


def logarithmic(values: Iterable[float]) -> Scale:
    """Return a logarithmic axis over the positive values; ticks at 1, 2 and 5 times powers of ten, few of them."""
    found = [value for value in values if math.isfinite(value) and value > 0] or [1.0]
    low, high = math.floor(math.log10(min(found)) + 1e-9), math.ceil(math.log10(max(found)) - 1e-9)
    high = max(high, low + 1)
    parts = (1, 2, 5) if high - low <= 1 else (1,)
    ticks = [part * 10.0**power for power in range(low, high + 1) for part in parts]
    return Scale(10.0**low, 10.0**high, tuple(tick for tick in ticks if tick <= 10.0**high * (1 + 1e-9)), log=True)


def _round_step(rough: float) -> float:
    power = 10.0 ** math.floor(math.log10(rough))
    return next(part * power for part in _ROUND if part * power >= rough * (1 - 1e-9))


def tick_text(value: float, scale: Scale) -> str:
    """Write a tick with as many decimals as tell it from its neighbours: 0.25, 40, 1,000, 2e-05."""
    value = 0.0 if abs(value) < 1e-12 * max(abs(scale.low), abs(scale.high)) else value
    largest = max(abs(scale.low), abs(scale.high))
    if value and (largest < 0.001 or (scale.log and value < 0.001) or largest >= 1e7):
        return f"{value:.3g}".replace("e-0", "e-").replace("e+0", "e").replace("e+", "e")
    gap = value if scale.log else min((b - a for a, b in zip(scale.ticks, scale.ticks[1:], strict=False)), default=1.0)
    decimals = max(0, -math.floor(math.log10(gap) + 1e-9)) if gap else 0
    if not scale.log and decimals < 6 and round(gap, decimals) != round(gap, decimals + 1):
        decimals += 1
    return f"{value:,.{decimals}f}"
