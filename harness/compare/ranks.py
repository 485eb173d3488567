"""Which rank of a Learner the others wait for, and why: it has more work, is slower, or was held up now and then.

Collectives make the seconds of a stage equal on all ranks, so the slow one is known by the seconds that its thread
computed (``RankStep``). A thread whose processor others use too computes longer for the same: so ranks are compared as
if equally crowded, by the line through the steps' seconds over how much more often one was ready without a processor.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from harness.compare.stats.estimates import Estimate, of_blocks
from harness.compare.stats.intervals import Numbers
from harness.core.types import RankStep

WORTH_SAYING = 0.1
"""A rank is named if it computes so much longer than the others, as a share.

Healthy ranks of a busy machine differ for the length of a run: of 22 runs the log ratio had a deviation of 0.055. With
the interval's own reach, usually 0.05, one healthy run of a hundred has a rank named, and 21% more is found in 80%.
"""
EQUAL = 0.05
"""Work that differs by less is called equal."""
CONFIDENCE = 0.99
"""Of the intervals, divided over the ranks, since the slowest of them is looked at."""
SLOPE, SLOPE_ERROR = 0.3, 0.3
"""How much longer, in ln(seconds), a thread computes for the same that never has a processor, and how far that may be
off. Measured once: 46 ms instead of 37, of a thread that had none for 70% of its time."""
FEWEST_STEPS = 4
FEW, OUTLYING = 0.1, 5.0
"""Share of the steps that may carry a one-off, and the deviations by which such a step lies above the others."""


class Straggler(NamedTuple):
    """The rank that computes longest: ``more work``, ``slower machine``, both, ``other processes`` or ``one-off``.

    ``longer`` is by what share than the mean of the others: of the typical step, or of all seconds where it is a
    one-off; ``more_work`` and ``slower`` have it for its work, and for equal work. A one-off is of ``steps`` alone.
    """

    rank: int
    cause: str
    longer: float
    more_work: float
    slower: float
    steps: int
    all_steps: int

    @property
    def sentence(self) -> str:
        """Say it in one line."""
        head = f"rank {self.rank} computes {100 * self.longer:.0f}% longer than the others"
        if self.cause == "one-off":
            return f"{head}, most of it in {self.steps} of {self.all_steps} steps: one-off"
        if abs(self.more_work) < EQUAL:
            return f"{head} at equal tokens: {self.cause}"
        share = f"{100 * abs(self.more_work):.0f}% {'more' if self.more_work > 0 else 'less'} work"
        return f"{head} with {share}: {self.cause}"


def find_straggler(steps: Sequence[Sequence[RankStep]]) -> Straggler | None:
    """Return the rank that the others wait for, and why; None where there is none, or where it cannot be told.

    Of each step s, d_s = ln(seconds that the rank computed / mean of the others), w_s is the same of its work (the
    plan's cost), v_s = d_s - w_s that of seconds for equal work, and x_s by how much more of its time than the others
    it was ready and had no processor. The work is known, and no noise: where the plan gives a rank more in most steps
    and less in others, d_s and v_s are taken at the mean of w_s, by the line through the steps. The rank with most
    seconds is named if the interval of d_s where x = 0 lies above ln(1 + ``WORTH_SAYING``), and so are its causes by
    that of v_s and the mean of w_s; where neither lies there alone, both are. If only the plain mean of d_s lies there,
    and that of x_s above ``WORTH_SAYING``, the cause is other processes. The intervals are widened as far as
    neighbouring steps may resemble each other (``estimates``).

    Else it is a one-off if all its seconds exceed the others' by that much, and half of this is gone without the steps
    that lie more than ``OUTLYING`` deviations above the median, a tenth of all at most. The deviation is that of the
    median of absolute ones (Leys et al. 2013).

    Args:
        steps: of the measured window, each rank by rank; fewer than four say nothing.
    """
    known = [of_ranks for of_ranks in steps if all(rank.computing_s and rank.cost > 0 for rank in of_ranks)]
    ranks = min((len(of_ranks) for of_ranks in known), default=0)
    if ranks < 2 or len(known) < FEWEST_STEPS:
        return None
    totals = [sum(of_ranks[rank].computing_s or 0.0 for of_ranks in known) for rank in range(ranks)]
    slowest = totals.index(max(totals))

    def against_others(value: Callable[[RankStep], float]) -> tuple[Numbers, Numbers]:
        """Return a value of the slowest rank, and the mean of the others, in each step: shape [steps] each."""
        values = [np.array([value(rank) for rank in of_ranks]) for of_ranks in known]
        own, others = zip(*((each[slowest], np.delete(each, slowest).mean()) for each in values), strict=True)
        return np.array(own), np.array(others)

    own_s, others_s = against_others(lambda rank: rank.computing_s or 0.0)
    longer = np.log(own_s / others_s)
    work = np.log(np.divide(*against_others(lambda rank: rank.cost)))
    crowded = np.subtract(*against_others(_crowding))
    more_work = float(work.mean())
    typical = _where_equally_crowded(_at_its_mean(longer, work), crowded)
    slower = replace(typical, point=typical.point - more_work)

    def named(cause: str, longer: float, carrying: int = len(known)) -> Straggler:
        shares = longer, math.expm1(more_work), math.expm1(slower.point)
        return Straggler(slowest, cause, *shares, carrying, len(known))

    if _exceeds(typical, ranks):
        causes = {"more work": more_work > math.log1p(WORTH_SAYING), "slower machine": _exceeds(slower, ranks)}
        alone = [name for name, exceeds in causes.items() if exceeds]
        return named(" and ".join(alone or causes), math.expm1(typical.point))
    plain = _mean(longer)
    if _exceeds(plain, ranks) and _exceeds(_mean(crowded), ranks):
        return named("other processes", math.expm1(plain.point))
    excess = own_s - others_s
    middle = np.median(excess)
    spread = 1.4826 * np.median(abs(excess - middle))  # of a normal distribution its standard deviation
    few = excess[excess > middle + OUTLYING * spread]
    whole, without_few = (float(seconds / others_s.sum()) for seconds in (excess.sum(), excess.sum() - few.sum()))
    if whole > WORTH_SAYING and 0 < len(few) <= math.ceil(FEW * len(known)) and without_few < whole / 2:
        return named("one-off", whole, len(few))
    return None


def _crowding(rank: RankStep) -> float:
    """Return the share of its time in which it was ready and had no processor; 0 where that is not known."""
    ready_s = rank.runnable_s or 0.0
    return ready_s / (ready_s + (rank.computing_s or 0.0))


def _mean(values: Numbers) -> Estimate:
    estimate = of_blocks(values)
    assert estimate is not None
    return estimate


def _at_its_mean(longer: Numbers, work: Numbers) -> Numbers:
    """Return ``longer`` less what steps with more or less work than usual add; seconds grow as fast as work at most."""
    centred = work - work.mean()
    squares = float(centred @ centred)
    slope = min(max(float(centred @ longer) / squares, 0.0), 1.0) if squares > 0 else 0.0
    even: Numbers = longer - slope * centred
    return even


def _where_equally_crowded(values: Numbers, crowded: Numbers) -> Estimate:
    """Return where the line of the values over ``crowded`` is at 0, with its error.

    Its slope is the mean of the one by least squares and of ``SLOPE``, weighted by their precisions: steps that are all
    crowded alike say nothing of it (Gelman et al., Bayesian Data Analysis, 3rd edition, 2.5).
    """
    centred = crowded - crowded.mean()
    squares, slope, precision = float(centred @ centred), SLOPE, 1 / SLOPE_ERROR**2
    if squares > 0:
        own = float(centred @ values) / squares
        error = _mean(values - own * crowded).error
        own_precision = squares / max(len(values) * (error or 0.0) ** 2, 1e-12)
        slope = (slope * precision + own * own_precision) / (precision + own_precision)
        precision += own_precision
    estimate = _mean(values - slope * crowded)
    return replace(estimate, error=math.hypot(estimate.error or 0.0, float(crowded.mean()) / math.sqrt(precision)))


def _exceeds(estimate: Estimate, ranks: int) -> bool:
    interval = estimate.interval(1 - (1 - CONFIDENCE) / ranks)
    return interval is not None and interval.low > math.log1p(WORTH_SAYING)
