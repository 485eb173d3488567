"""Where a run's warm-up ends: a fixed floor, then the first change of level.

Compilation, allocators and connections make the first steps slow, and no fixed number of them fits all. Nor must the
cut be fitted to what looks nice: it ends at the *first* change of level, and only where that comes early. Many programs
never settle (Barrett et al., arXiv 1602.00602); such a run is said to have no steady state instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite, log, sqrt

import numpy as np
from numpy.typing import NDArray

from harness.core.errors import UserError

Numbers = NDArray[np.float64]

FLOOR = 2
"""Steps that are always warm-up: the first makes things, the second still meets caches that are half full."""
MOST = 0.3
"""Largest share of the steps that may be warm-up."""
FEWEST_STEPS = 8
"""In shorter series a change of level cannot be told from noise: only the floor is cut."""
SHORTEST_LEVEL = 2
"""Steps of the shortest level, so that a single slow step is no level."""
CLIP = 3.0
"""Log times further than this many noise widths from their median are moved there, so that an outlier weighs little."""
PRICE_PER_LOG, PRICE = 2.0, 6.0
"""Price of a change of level, in noise variances: 2 log(steps) for a level and its place, as in Schwarz's criterion,
and 6 more since the noise itself is estimated from the same few steps. On noise without any change a level is then seen
to change in about 5% of 10-step series, and fewer of longer ones; and in about 1% the cut goes past the floor."""
NARROWEST = 0.001
"""Narrowest noise assumed, in log units: levels closer than that are one."""


@dataclass(frozen=True, slots=True)
class WarmUp:
    """The start of a run that statistics leave out.

    Attributes:
        steps: how many steps, from the first.
        steady: whether what follows keeps one level from early on; False where the level first changes after
            ``MOST`` of the steps, and then ``steps`` is the floor.
    """

    steps: int
    steady: bool


def steady_from(times: Sequence[float]) -> WarmUp:
    """Return how many of a run's first steps are warm-up.

    Args:
        times: seconds of every training step, in order.

    Raises:
        UserError: a time is not a number above 0.
    """
    if not len(times):
        return WarmUp(0, True)
    check_times(times, "the run")
    if len(times) < FEWEST_STEPS:
        return WarmUp(min(FLOOR, len(times)), True)
    first = first_change(np.log(np.asarray(times, dtype=np.float64)))
    if first is None or first <= FLOOR:
        return WarmUp(FLOOR, True)
    if first > MOST * len(times):
        return WarmUp(FLOOR, False)
    return WarmUp(first, True)


def first_change(log_times: Numbers) -> int | None:
    """Return the index at which the second level starts, or None where one level fits.

    Args:
        log_times: shape [steps].
    """
    noise = noise_width(log_times)
    middle = float(np.median(log_times))
    clipped = np.clip(log_times, middle - CLIP * noise, middle + CLIP * noise)
    starts = level_starts(clipped, (PRICE_PER_LOG * log(len(log_times)) + PRICE) * noise**2)
    return starts[1] if len(starts) > 1 else None


def noise_width(log_times: Numbers) -> float:
    """Return the standard deviation of a step around its level, from the differences of neighbours.

    The median absolute difference: a change of level, and an outlier, spoil one or two differences only. Scaled by
    1.4826 for normal noise, and by sqrt(2) since a difference has the noise of two steps.
    """
    differences = np.abs(np.diff(log_times))
    return max(NARROWEST, 1.4826 * float(np.median(differences)) / sqrt(2))


def level_starts(values: Numbers, price: float) -> list[int]:
    """Return the indices at which levels start in the cheapest split of ``values``, shape [n]; the first is 0.

    A split costs the squared distances to each level's mean, and ``price`` for each change. The best split of the
    first n values is the best split of some shorter start and one more level (Jackson et al., IEEE Signal Processing
    Letters 12, 2005). O(n^2) time, O(n) memory.
    """
    count = len(values)
    sums = np.concatenate([[0.0], np.cumsum(values - values.mean())])
    squares = np.concatenate([[0.0], np.cumsum((values - values.mean()) ** 2)])
    best = np.full(count + 1, np.inf)
    best[0] = -price
    came_from = np.zeros(count + 1, dtype=np.intp)
    for end in range(SHORTEST_LEVEL, count + 1):
        start = np.arange(end - SHORTEST_LEVEL + 1)
        level = squares[end] - squares[start] - (sums[end] - sums[start]) ** 2 / (end - start)
        costs = best[start] + level + price
        came_from[end] = int(np.argmin(costs))
        best[end] = costs[came_from[end]]
    starts, end = [], count
    while end > 0:
        end = int(came_from[end])
        starts.append(end)
    return starts[::-1]


def check_times(times: Sequence[float], whose: str) -> None:
    """Refuse an empty sequence of seconds, and any that is not a number above 0.

    Raises:
        UserError: naming the first such value and its place.
    """
    if not len(times):
        raise UserError(f"a block of {whose} has no kept steps", fix="leave the block out, or run more steps in it")
    for place, seconds in enumerate(times):
        if not (isfinite(seconds) and seconds > 0):
            raise UserError(
                f"{whose} has a step time of {seconds!r} s at place {place}; it must be a number above 0",
                fix="leave out steps in which the stage did not occur",
            )
