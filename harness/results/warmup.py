"""Where a run's warm-up ends: after a fixed floor, or after the slower levels that it starts on.

Compilation, allocators and connections make the first steps slow, and no fixed number of them fits all. Levels are cut
from the start on, each only if it is slower than the next and ends early. A faster start is never cut: what follows is
slower for another reason. Many programs never settle (Barrett et al., arXiv 1602.00602); such a run is said to have no
steady state instead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import isfinite, log, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.core.errors import UserError
from harness.core.trace import Stage
from harness.results.rows import WARMUP_FLOOR, StepRow, StepSeconds, WarmUp

Numbers = NDArray[np.float64]

MOST = 0.3
"""Largest share of the steps that may be warm-up."""
FEWEST_STEPS = 6
"""In shorter series a change of level cannot be told from noise: only the floor is cut."""
SHORTEST_LEVEL = 2
"""Steps of the shortest level, so that a single slow step is no level."""
CLIP = 3.0
"""Log times further than this many noise widths from their median are moved there, so that an outlier weighs little."""
PRICE_PER_LOG, PRICE = 2.0, 6.0
"""Price of a change of level, in noise variances: 2 log(steps) for a level and its place, as in Schwarz's criterion,
and 6 more since the noise itself is estimated from the same few steps. How often noise without any change is then seen
to change stands in docs/measuring.md."""
NARROWEST = 0.001
"""Narrowest noise assumed, in log units: levels closer than that are one."""


def warm_up_of(steps: Sequence[StepSeconds]) -> WarmUp:
    """Return a run's warm-up, in steps of the run, found from the plain ones; from all where none is plain.

    Args:
        steps: in rising order.
    """
    looked_at = [step for step in steps if step.plain] or steps
    times = [step.seconds for step in looked_at]
    if not times or min(times) <= 0:  # simulated steps may take no time at all
        return WarmUp(WARMUP_FLOOR, None)
    found = steady_from(times)
    last = looked_at[found.steps - 1].step if found.steps > WARMUP_FLOOR else 0
    return WarmUp(max(WARMUP_FLOOR, last + 1), found.steady, found.slow_start)


def read_warm_up(outcome: Mapping[str, Any], rows: Sequence[StepRow]) -> WarmUp:
    """Return a run's warm-up as its manifest's outcome has it; else, as in runs of an older recorder, from its rows."""
    stored = outcome.get("warmup")
    if isinstance(stored, dict) and isinstance(stored.get("steps"), int) and "slow_start" in stored:
        return WarmUp(stored["steps"], stored.get("steady"), bool(stored["slow_start"]))
    steps = list[StepSeconds]()
    for row in rows:
        resumed = row.warmup and row.step >= WARMUP_FLOOR
        plain = not (row.profiled or resumed or row.stages_s.get(Stage.EVALUATE.value))
        steps.append(StepSeconds(row.step, row.wall_s, plain))
    return warm_up_of(steps)


def steady_from(times: Sequence[float]) -> WarmUp:
    """Return how many of a run's first steps are warm-up.

    Args:
        times: seconds of every training step, in order.

    Raises:
        UserError: a time is not a number above 0.
    """
    if not len(times):
        return WarmUp(0, None)
    check_times(times, "the run")
    if len(times) < FEWEST_STEPS:
        return WarmUp(min(WARMUP_FLOOR, len(times)), None)
    log_times = np.log(np.asarray(times, dtype=np.float64))
    noise, middle = noise_width(log_times), float(np.median(log_times))
    clipped = np.clip(log_times, middle - CLIP * noise, middle + CLIP * noise)
    starts = [*level_starts(clipped, (PRICE_PER_LOG * log(len(times)) + PRICE) * noise**2), len(times)]
    levels = [float(np.median(log_times[start:end])) for start, end in pairwise(starts)]
    warm = WARMUP_FLOOR
    for start, (before, after) in zip(starts[1:-1], pairwise(levels), strict=True):
        if start > max(WARMUP_FLOOR, MOST * len(times)):
            return WarmUp(warm, False, slow_start=before > after)
        if before <= after and start > WARMUP_FLOOR:
            return WarmUp(warm, False)
        warm = max(warm, start)
    return WarmUp(warm, True)


def noise_width(log_times: Numbers) -> float:
    """Return the standard deviation of a step around its level, from the differences of neighbours.

    The median absolute difference, since a change of level or an outlier spoils one or two differences only; scaled by
    1.4826 for normal noise, and by sqrt(2) since a difference has the noise of two steps.
    """
    return max(NARROWEST, 1.4826 * float(np.median(np.abs(np.diff(log_times)))) / sqrt(2))


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
            what = f"{whose} has a step time of {seconds!r} s at place {place}; it must be a number above 0"
            raise UserError(what, fix="leave out steps in which the stage did not occur")
