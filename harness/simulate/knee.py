"""What to choose on a line of a sweep, and what it costs to be wrong.

The knee of a line is the smallest value whose throughput is within 5% of the best one on that line. That, and the price
of one step less or more, is taken draw by draw, and then the median: the same worlds stand behind all values, so that
what they share cancels. Medians of throughput alone would compare the middle world of one value with that of another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from harness.compare import numbers
from harness.simulate.forecast import Estimate, estimate
from harness.simulate.points import Axis, shown

TOLERANCE = 0.05


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A value beside the choice, and its throughput over that of the choice."""

    value: Any
    ratio: Estimate


@dataclass(frozen=True)
class Knee:
    """What to choose on one line.

    Attributes:
        value: the choice.
        throughput: there, in tokens a second.
        best: the value that comes closest to the highest throughput of each draw, and its throughput.
        less, more: the neighbours; None at the ends of the axis. For values without an order, ``more`` is the next best
            and ``less`` the worst.
        between: the smallest and largest choice in 90% of the draws; None for values without an order.
        at_end: whether the best value is the axis' last one.
    """

    value: Any
    throughput: Estimate
    best: tuple[Any, float]
    less: Neighbour | None
    more: Neighbour | None
    between: tuple[float, float] | None
    at_end: bool


def find_knee(values: Sequence[Any], rates_VD: ArrayLike, axis: Axis) -> Knee:
    """Return what to choose of the values on one line.

    Args:
        values: at least one, of the axis.
        rates_VD: tokens a second of each value in each draw.
        axis: on which they are.
    """
    rates = np.asarray(rates_VD, dtype=float)
    middle = np.median(rates, axis=1)
    order = np.argsort(values if axis.is_numeric else -middle, kind="stable")
    values, rates, middle = [values[place] for place in order], rates[order], middle[order]
    last = len(values) - 1
    place, best, less, more = 0, 0, last if last > 1 else None, 1 if last else None
    between: tuple[float, float] | None = None
    if axis.is_numeric:
        shares = np.median(ratios(rates, rates.max(axis=0)), axis=1)
        place, best = int(smallest_good(shares[:, None])[0]), int(shares.argmax())
        less, more = place - 1 if place else None, place + 1 if place < last else None
        between = _between([values[chosen] for chosen in smallest_good(rates)])

    def beside(other: int | None) -> Neighbour | None:
        return None if other is None else Neighbour(values[other], over(rates[other], rates[place]))

    return Knee(
        value=values[place],
        throughput=estimate(rates[place].tolist()),
        best=(values[best], float(middle[best])),
        less=beside(less),
        more=beside(more),
        between=between,
        at_end=axis.is_numeric and bool(last) and best == last,
    )


def ratios(rates: NDArray[np.float64], base_D: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return rates over others, draw by draw; 1 where the others are 0."""
    return np.divide(rates, base_D, out=np.ones_like(rates), where=np.broadcast_to(base_D, rates.shape) != 0)


def over(rates_D: NDArray[np.float64], base_D: NDArray[np.float64]) -> Estimate:
    """Return one value's throughput over another's, draw by draw."""
    return estimate(ratios(rates_D, base_D).tolist())


def smallest_good(rates_VD: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return for each draw the place of the first value within ``TOLERANCE`` of the highest."""
    places: NDArray[np.int64] = (rates_VD >= (1 - TOLERANCE) * rates_VD.max(axis=0)).argmax(axis=0)
    return places


def _between(chosen: Sequence[float]) -> tuple[float, float]:
    """Return the choices between which nine in ten lie, of those that were made."""
    spread = estimate(chosen)
    low = max((value for value in chosen if value <= spread.low), default=min(chosen))
    return low, min((value for value in chosen if value >= spread.high), default=max(chosen))


def advice(knee: Knee, axis: Axis, line: str) -> str:
    """Say what to choose on a line, and what it costs to be wrong."""
    said = f"{f'With {line}: ' if line else ''}take {axis.name} {shown(knee.value)}"
    tokens, has_order = f"{numbers.number(knee.throughput.value)} tokens a second", knee.between is not None
    said += f", the smallest within 5% of the best throughput: {tokens}" if has_order else f" ({tokens})"
    if has_order and knee.best[0] != knee.value:
        said += f" against {numbers.number(knee.best[1])} at {shown(knee.best[0])}"
    less, more = ("one step less (", knee.less), ("one step more (", knee.more)
    if not has_order:
        less, more = ("the next best, ", knee.more), ("the worst, ", knee.less)
    end = ")" if has_order else ""
    for words, beside in (less, more):
        if beside is not None:
            said += f"; {words}{shown(beside.value)}{end}: {change(beside.ratio)} throughput"
    said += "."
    if knee.between is not None and knee.between[0] != knee.between[1]:
        said += " Over the draws the choice lies between {:g} and {:g}.".format(*knee.between)
    if knee.at_end and knee.best[0] == knee.value:
        said += f" It is the last value of the axis: beyond {shown(knee.value)} there may be more to gain."
    return said


def change(ratio: Estimate) -> str:
    """Write a ratio as a change with its interval: ``-9.1% [-11.0%, -7.4%]``."""
    ends = f" [{numbers.change(ratio.low)}, {numbers.change(ratio.high)}]" if ratio.low != ratio.high else ""
    return numbers.change(ratio.value) + ends
