"""What to choose on an axis, and what it costs to be wrong.

The knee of a line is the smallest value whose throughput is within 5% of the best one on that line. That, and the price
of one step less or more, is taken draw by draw, and then the median: the same worlds stand behind all values, so that
what they share cancels. Medians of throughput alone would compare the middle world of one value with that of another.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from harness.compare import numbers
from harness.simulate.axes import Axis, shown
from harness.simulate.forecast import Estimate, estimate

TOLERANCE = 0.05


@dataclass(frozen=True, slots=True)
class Choice:
    """One value of an axis: its throughput in each draw, in tokens a second."""

    value: Any
    throughput: tuple[float, ...]

    @property
    def middle(self) -> float:
        """Median over the draws."""
        return median(self.throughput)


@dataclass(frozen=True, slots=True)
class Step:
    """A neighbour of the choice: its value, and its throughput over that of the choice."""

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
    less: Step | None
    more: Step | None
    between: tuple[float, float] | None
    at_end: bool


def find_knee(choices: Sequence[Choice], axis: Axis) -> Knee:
    """Return what to choose of the values on one line.

    Args:
        choices: at least one, each with equally many draws, in the order of the axis.
        axis: on which they are.
    """
    return _on_ordered(choices) if axis.is_numeric else _of_names(choices)


def _on_ordered(choices: Sequence[Choice]) -> Knee:
    ordered = sorted(choices, key=lambda choice: choice.value)
    shares = shares_of_best(ordered)
    place, best = smallest_good(shares), ordered[shares.index(max(shares))]
    draws = range(len(ordered[0].throughput))
    chosen = [ordered[smallest_good([choice.throughput[draw] for choice in ordered])].value for draw in draws]
    return Knee(
        value=ordered[place].value,
        throughput=estimate(ordered[place].throughput),
        best=(best.value, best.middle),
        less=against(ordered[place], ordered[place - 1]) if place else None,
        more=against(ordered[place], ordered[place + 1]) if place + 1 < len(ordered) else None,
        between=_between(chosen),
        at_end=len(ordered) > 1 and best is ordered[-1],
    )


def _between(chosen: Sequence[float]) -> tuple[float, float]:
    """Return the choices between which nine in ten lie, none beyond those that were made."""
    spread = estimate(chosen)
    return max(min(chosen), math.floor(spread.low)), min(max(chosen), math.ceil(spread.high))


def _of_names(choices: Sequence[Choice]) -> Knee:
    best, *others = sorted(choices, key=lambda choice: -choice.middle)
    return Knee(
        value=best.value,
        throughput=estimate(best.throughput),
        best=(best.value, best.middle),
        less=against(best, others[-1]) if len(others) > 1 else None,
        more=against(best, others[0]) if others else None,
        between=None,
        at_end=False,
    )


def shares_of_best(choices: Sequence[Choice]) -> list[float]:
    """Return each value's throughput over that of the draw's best value, as the median over the draws."""
    best = [max(draw) for draw in zip(*(choice.throughput for choice in choices), strict=True)]
    return [
        median(own / most if most else 1.0 for own, most in zip(choice.throughput, best, strict=True))
        for choice in choices
    ]


def smallest_good(throughputs: Sequence[float]) -> int:
    """Return the place of the first value within ``TOLERANCE`` of the highest."""
    enough = (1 - TOLERANCE) * max(throughputs)
    return next(place for place, value in enumerate(throughputs) if value >= enough)


def against(chosen: Choice, other: Choice) -> Step:
    """Return another value's throughput over the chosen one's, draw by draw."""
    pairs = zip(other.throughput, chosen.throughput, strict=True)
    return Step(other.value, estimate([theirs / mine if mine else 1.0 for theirs, mine in pairs]))


def advice(knee: Knee, axis: Axis, line: str) -> str:
    """Say what to choose on a line, and what it costs to be wrong."""
    where = f"With {line}: " if line else ""
    tokens = f"{numbers.number(knee.throughput.value)} tokens a second"
    if knee.between is None:
        return f"{where}take {axis.name} {shown(knee.value)} ({tokens}){_names_cost(knee)}."
    said = f"{where}take {axis.name} {shown(knee.value)}, the smallest within 5% of the best throughput: {tokens}"
    if knee.best[0] != knee.value:
        said += f" against {numbers.number(knee.best[1])} at {shown(knee.best[0])}"
    steps = [_cost("one step less", knee.less), _cost("one step more", knee.more)]
    said += "".join(f"; {step}" for step in steps if step) + "."
    low, high = knee.between
    if low != high:
        said += f" Over the draws the choice lies between {low:g} and {high:g}."
    if knee.at_end and knee.best[0] == knee.value:
        said += f" It is the last value of the axis: beyond {shown(knee.value)} there may be more to gain."
    return said


def _cost(words: str, step: Step | None) -> str:
    return "" if step is None else f"{words} ({shown(step.value)}): {change(step.ratio)} throughput"


def _names_cost(knee: Knee) -> str:
    steps = [(word, step) for word, step in (("the next best", knee.more), ("the worst", knee.less)) if step]
    return "".join(f"; {word}, {shown(step.value)}: {change(step.ratio)} throughput" for word, step in steps)


def change(ratio: Estimate) -> str:
    """Write a ratio as a change with its interval: ``-9.1% [-11.0%, -7.4%]``."""
    ends = f" [{numbers.change(ratio.low)}, {numbers.change(ratio.high)}]" if ratio.low != ratio.high else ""
    return numbers.change(ratio.value) + ends
